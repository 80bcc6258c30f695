"""Networks whose latency has been published, as layer shapes. Batch 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnx import ModelProto

from .layers import Layers, Value


def mobilenet_v1(integer: bool) -> ModelProto:
    """Howard et al., arXiv:1704.04861, width 1.0, 224×224: 569 M multiply-accumulates, 4.2 M parameters."""
    net = Layers(integer=integer)
    x = net.conv(net.input(1, 3, 224, 224), 32, 3, 2, activation="Relu")
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for channels, stride in plan:
        x = net.conv(x, x.channels, 3, stride, groups=x.channels, activation="Relu")
        x = net.conv(x, channels, activation="Relu")
    return net.model(net.dense(net.global_pool(x), 1000))


def mobilenet_v2(integer: bool) -> ModelProto:
    """Sandler et al., arXiv:1801.04381, width 1.0, 224×224: 300 M multiply-accumulates, 3.4 M parameters."""
    net = Layers(integer=integer)
    x = net.conv(net.input(1, 3, 224, 224), 32, 3, 2, activation="Clip")
    plan = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expand, channels, repeats, first_stride in plan:
        for i in range(repeats):
            stride = first_stride if i == 0 else 1
            y = net.conv(x, x.channels * expand, activation="Clip") if expand > 1 else x
            y = net.conv(y, y.channels, 3, stride, groups=y.channels, activation="Clip")
            y = net.conv(y, channels)
            x = net.binary("Add", x, y) if stride == 1 and x.channels == channels else y
    x = net.conv(x, 1280, activation="Clip")
    return net.model(net.dense(net.global_pool(x), 1000))


def _resnet_stem(net: Layers) -> Value:
    x = net.conv(net.input(1, 3, 224, 224), 64, 7, 2, activation="Relu")
    return net.pool("MaxPool", x, 3, 2, 1)


def resnet18(integer: bool) -> ModelProto:
    """He et al., arXiv:1512.03385: 1.8 G multiply-accumulates, 11.7 M parameters."""
    net = Layers(integer=integer)
    x = _resnet_stem(net)
    for stage, channels in enumerate((64, 128, 256, 512)):
        for i in range(2):
            stride = 2 if stage and i == 0 else 1
            y = net.conv(x, channels, 3, stride, activation="Relu")
            y = net.conv(y, channels, 3)
            short = net.conv(x, channels, 1, stride) if stride > 1 else x
            x = net.binary("Add", short, y, activation="Relu")
    return net.model(net.dense(net.global_pool(x), 1000))


def resnet50(integer: bool) -> ModelProto:
    """He et al., arXiv:1512.03385, stride in the 3×3 (version 1.5): 4.1 G multiply-accumulates, 25.6 M parameters."""
    net = Layers(integer=integer)
    x = _resnet_stem(net)
    for stage, (channels, repeats) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for i in range(repeats):
            stride = 2 if stage and i == 0 else 1
            y = net.conv(x, channels, activation="Relu")
            y = net.conv(y, channels, 3, stride, activation="Relu")
            y = net.conv(y, channels * 4)
            short = net.conv(x, channels * 4, 1, stride) if i == 0 else x
            x = net.binary("Add", short, y, activation="Relu")
    return net.model(net.dense(net.global_pool(x), 1000))


def inception_v3(integer: bool) -> ModelProto:
    """Szegedy et al., arXiv:1512.00567, as in torchvision, 299×299: 5.7 G multiply-accumulates, 23.8 M parameters."""
    net = Layers(integer=integer)

    def conv(x: Value, channels: int, kernel: int | tuple[int, int] = 1, stride: int = 1, valid: bool = False) -> Value:
        return net.conv(x, channels, kernel, stride, pads=(0, 0) if valid else None, activation="Relu")

    def pooled(x: Value) -> Value:
        return net.pool("AveragePool", x, 3, 1, 1)

    x = conv(net.input(1, 3, 299, 299), 32, 3, 2, valid=True)
    x = conv(conv(x, 32, 3, valid=True), 64, 3)
    x = net.pool("MaxPool", x, 3, 2)
    x = conv(conv(x, 80), 192, 3, valid=True)
    x = net.pool("MaxPool", x, 3, 2)
    for features in (32, 64, 64):
        b = conv(conv(x, 48), 64, 5)
        c = conv(conv(conv(x, 64), 96, 3), 96, 3)
        x = net.concat([conv(x, 64), b, c, conv(pooled(x), features)])
    b = conv(conv(conv(x, 64), 96, 3), 96, 3, 2, valid=True)
    x = net.concat([conv(x, 384, 3, 2, valid=True), b, net.pool("MaxPool", x, 3, 2)])
    for c7 in (128, 160, 160, 192):
        b = conv(conv(conv(x, c7), c7, (1, 7)), 192, (7, 1))
        c = conv(conv(conv(conv(conv(x, c7), c7, (7, 1)), c7, (1, 7)), c7, (7, 1)), 192, (1, 7))
        x = net.concat([conv(x, 192), b, c, conv(pooled(x), 192)])
    b = conv(conv(x, 192), 320, 3, 2, valid=True)
    c = conv(conv(conv(conv(x, 192), 192, (1, 7)), 192, (7, 1)), 192, 3, 2, valid=True)
    x = net.concat([b, c, net.pool("MaxPool", x, 3, 2)])
    for _ in range(2):
        b = conv(x, 384)
        b = net.concat([conv(b, 384, (1, 3)), conv(b, 384, (3, 1))])
        c = conv(conv(x, 448), 384, 3)
        c = net.concat([conv(c, 384, (1, 3)), conv(c, 384, (3, 1))])
        x = net.concat([conv(x, 320), b, c, conv(pooled(x), 192)])
    return net.model(net.dense(net.global_pool(x), 1000))


def yolo11n(integer: bool) -> ModelProto:
    """Ultralytics YOLO11n, 640×640, head without decoding: 3.2 G multiply-accumulates, 2.6 M parameters."""
    return _yolo11(integer, width=0.25)


def yolo11s(integer: bool) -> ModelProto:
    """Ultralytics YOLO11s, 640×640, head without decoding: 10.7 G multiply-accumulates, 9.4 M parameters."""
    return _yolo11(integer, width=0.5)


def _yolo11(integer: bool, width: float) -> ModelProto:
    """``ultralytics/cfg/models/11/yolo11.yaml``, depth 0.5 (scales n and s)."""
    net = Layers(integer=integer)

    def wide(channels: int) -> int:
        return int(channels * width)

    def conv(x: Value, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Value:
        return net.conv(x, channels, kernel, stride, groups, activation="SiLU")

    def bottleneck(x: Value, share: float = 0.5) -> Value:
        return net.binary("Add", x, conv(conv(x, int(x.channels * share), 3), x.channels, 3))

    def c3k(x: Value) -> Value:
        half = x.channels // 2
        y = bottleneck(bottleneck(conv(x, half), 1.0), 1.0)
        return conv(net.concat([y, conv(x, half)]), x.channels)

    def c3k2(x: Value, channels: int, deep: bool, share: float = 0.5) -> Value:
        hidden = int(channels * share)
        a, b = net.split(conv(x, 2 * hidden), [hidden, hidden])
        return conv(net.concat([a, b, c3k(b) if deep else bottleneck(b)]), channels)

    def sppf(x: Value) -> Value:
        y = conv(x, x.channels // 2)
        pools = [y]
        for _ in range(3):
            pools.append(net.pool("MaxPool", pools[-1], 5, 1, 2))
        return conv(net.concat(pools), x.channels)

    def attention(x: Value) -> Value:
        batch, channels, height, columns = x.shape
        heads, n = channels // 64, height * columns
        head, key = channels // heads, channels // heads // 2
        qkv = net.reshape(net.conv(x, channels + 2 * key * heads), batch, heads, 2 * key + head, n)
        q, k, v = net.split(qkv, [key, key, head], axis=2)
        scores = net.softmax(net.matmul(net.transpose(q, 0, 1, 3, 2), k), axis=3)
        out = net.reshape(net.matmul(v, net.transpose(scores, 0, 1, 3, 2)), *x.shape)
        place = net.conv(net.reshape(v, *x.shape), channels, 3, groups=channels)
        return net.conv(net.binary("Add", out, place), channels)

    def c2psa(x: Value) -> Value:
        half = x.channels // 2
        a, b = net.split(conv(x, 2 * half), [half, half])
        b = net.binary("Add", b, attention(b))
        b = net.binary("Add", b, net.conv(conv(b, 2 * half), half))
        return conv(net.concat([a, b]), x.channels)

    x = conv(net.input(1, 3, 640, 640), wide(64), 3, 2)
    x = c3k2(conv(x, wide(128), 3, 2), wide(256), False, 0.25)
    p3 = c3k2(conv(x, wide(256), 3, 2), wide(512), False, 0.25)
    p4 = c3k2(conv(p3, wide(512), 3, 2), wide(512), True)
    p5 = c2psa(sppf(c3k2(conv(p4, wide(1024), 3, 2), wide(1024), True)))
    n4 = c3k2(net.concat([net.upsample(p5), p4]), wide(512), False)
    o3 = c3k2(net.concat([net.upsample(n4), p3]), wide(256), False)
    o4 = c3k2(net.concat([conv(o3, wide(256), 3, 2), n4]), wide(512), False)
    o5 = c3k2(net.concat([conv(o4, wide(512), 3, 2), p5]), wide(1024), True)
    boxes_channels, classes = max(16, o3.channels // 4, 64), max(o3.channels, 80)
    heads = []
    for x in (o3, o4, o5):
        boxes = net.conv(conv(conv(x, boxes_channels, 3), boxes_channels, 3), 64)
        y = conv(conv(x, x.channels, 3, groups=x.channels), classes)
        y = conv(conv(y, classes, 3, groups=classes), classes)
        heads += [boxes, net.conv(y, 80)]
    return net.model(*heads)


NETWORKS: Mapping[str, Callable[[bool], ModelProto]] = {
    build.__name__: build for build in (mobilenet_v1, mobilenet_v2, resnet18, resnet50, inception_v3, yolo11n, yolo11s)
}
"""Builders by name; the argument asks for the int8 QDQ form."""
