"""The demo's network and its training, in PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from fashion_mnist_data import CLASSES, Split
from torch import nn

STEM_CHANNELS = 24
BLOCKS: Sequence[tuple[int, int]] = ((48, 1), (64, 2), (64, 1), (96, 1))
"""Output channels and stride of each depthwise-separable block."""

OPSET = 17

log = logging.getLogger("train")


@dataclass(frozen=True)
class Hyperparameters:
    epochs: int = 3
    batch: int = 128
    max_learning_rate: float = 6e-3
    weight_decay: float = 1e-3


def build() -> Any:
    """A depthwise-separable CNN (Howard et al., arXiv:1704.04861) of 18,218 parameters.

    float32 [batch, 1, 28, 28] in 0..1 to logits [batch, 10]. ReLU6 and batch norm behind every convolution: the
    per-channel scales that batch norm leaves in the depthwise weights are what per-tensor int8 cannot follow.
    """
    layers: list[Any] = [*_normalised(nn.Conv2d(1, STEM_CHANNELS, 3, stride=2, padding=1, bias=False))]
    channels = STEM_CHANNELS
    for width, stride in BLOCKS:
        depthwise = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False)
        pointwise = nn.Conv2d(channels, width, 1, bias=False)
        layers.append(nn.Sequential(*_normalised(depthwise), *_normalised(pointwise)))
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def train(network: Any, data: Split, parameters: Hyperparameters) -> None:
    """AdamW, one-cycle learning rate, random horizontal flips, cross-entropy. Logs each epoch's loss.

    Reproducible on one machine after ``torch.manual_seed``.
    """
    images, labels = _tensor(data.images), torch.from_numpy(data.labels)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=parameters.weight_decay)
    steps = -(-len(labels) // parameters.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=parameters.max_learning_rate, epochs=parameters.epochs, steps_per_epoch=steps
    )
    network.train()
    for epoch in range(parameters.epochs):
        total = 0.0
        for rows in torch.randperm(len(labels)).split(parameters.batch):
            batch = images[rows]
            flipped = torch.rand(len(rows)) < 0.5
            batch[flipped] = batch[flipped].flip(-1)
            loss = nn.functional.cross_entropy(network(batch), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        log.info("epoch %d of %d: loss %.4f", epoch + 1, parameters.epochs, total / len(labels))


def top1(network: Any, data: Split) -> float:
    """Share of images whose label has the highest logit."""
    network.eval()
    with torch.inference_mode():
        said = torch.cat([network(batch).argmax(1) for batch in _tensor(data.images).split(1000)])
    return float(np.mean(said.numpy() == data.labels))


def export(network: Any, path: Path) -> None:
    """Writes ONNX: input ``image`` float32 [batch, 1, 28, 28], output ``logits`` [batch, 10], batch norm folded."""
    network.eval()
    # The TorchScript exporter folds batch norm into the convolutions, and names nodes by layer ("/3/3.0/Conv").
    torch.onnx.export(
        network,
        (torch.zeros(1, 1, 28, 28),),
        str(path),
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=OPSET,
        dynamo=False,
    )


def _normalised(convolution: Any) -> tuple[Any, Any, Any]:
    return convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU6()


def _tensor(images: npt.NDArray[np.uint8]) -> Any:
    return torch.from_numpy(images.astype(np.float32) / 255).unsqueeze(1)
