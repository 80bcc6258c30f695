"""Makes the packaged canary models, deterministically: ``python -m harness.boards.canaries.make_canaries``.

``conv-8m``: a float32 convolution network of 8.2 million multiply-accumulates, which is about 1 ms on one core of
a Raspberry Pi 5: long against the clock's resolution, short against a block of samples. Its weights (350 kB) and any
layer's activations (131 kB at most) together fit the 512 KiB second-level cache of that core, so that it shows the
clock of the cores more than the memory's.
Opset 13 and IR version 7 are read by every ONNX Runtime the runner supports (1.16 and later).
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 13
IR_VERSION = 7
INPUT_SHAPE = (1, 8, 32, 32)
LAYERS = ((8, 32, 3, 1), (32, 32, 3, 2), (32, 64, 1, 1), (64, 64, 3, 2), (64, 64, 3, 2))
"""(input channels, output channels, kernel, stride) of each convolution."""
CLASSES = 10


def weights(shape: tuple[int, ...], layer: int) -> npt.NDArray[np.float32]:
    """Values in +-1/sqrt(fan-in) from a multiplicative hash of the index (Knuth, TAOCP 3, 6.4).

    They are the same on every machine and in every version of numpy, which a random generator does not promise.
    """
    count = int(np.prod(shape))
    index = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(layer * 1_000_003)
    hashed = (index * np.uint64(2_654_435_761)) % np.uint64(2**32)
    unit = hashed.astype(np.float64) / 2**31 - 1.0
    fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else shape[0]
    values: npt.NDArray[np.float32] = (unit / np.sqrt(fan_in)).astype(np.float32).reshape(shape)
    return values


def conv_8m() -> onnx.ModelProto:
    """Convolution and ReLU layers of ``LAYERS``, global average pool, one fully connected layer."""
    nodes, initializers, value = [], [], "input"
    for number, (inputs, outputs, kernel, stride) in enumerate(LAYERS):
        weight = numpy_helper.from_array(weights((outputs, inputs, kernel, kernel), number), f"w{number}")
        bias = numpy_helper.from_array(weights((outputs,), 100 + number), f"b{number}")
        initializers += [weight, bias]
        pad = kernel // 2
        nodes.append(
            helper.make_node(
                "Conv",
                [value, weight.name, bias.name],
                [f"c{number}"],
                name=f"conv{number}",
                kernel_shape=[kernel, kernel],
                strides=[stride, stride],
                pads=[pad] * 4,
            )
        )
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"], name=f"relu{number}"))
        value = f"r{number}"
    features = LAYERS[-1][1]
    initializers += [
        numpy_helper.from_array(weights((CLASSES, features), 200), "wf"),
        numpy_helper.from_array(weights((CLASSES,), 300), "bf"),
    ]
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten", axis=1),
        helper.make_node("Gemm", ["flat", "wf", "bf"], ["output"], name="classify", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "boardtune-canary-conv-8m",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, INPUT_SHAPE)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, (1, CLASSES))],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="boardtune")
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model, full_check=True)
    return model


def make(folder: Path) -> dict[str, str]:
    """Writes every packaged canary; returns its sha256 by name."""
    data = conv_8m().SerializeToString(deterministic=True)
    (folder / "conv-8m.onnx").write_bytes(data)
    return {"conv-8m": hashlib.sha256(data).hexdigest()}


if __name__ == "__main__":
    for name, digest in make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent).items():
        print(f"{name} {digest}")
