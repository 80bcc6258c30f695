"""ESP-PPQ's options, named as its AutoQuant names them, and its search spaces.

Source: ``esp_ppq.autoquant.AutoQuantSearchSetting`` and ``esp_ppq.api.espdl_quantize_onnx`` of esp-ppq 1.3.12
(https://github.com/espressif/esp-ppq, Apache-2.0): names, defaults of parameters, and the values its search walks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.recipes.options import Option, OptionTable

TARGETS = (
    "esp32", "esp32s2", "esp32s3", "esp32c2", "esp32c3", "esp32c5", "esp32c6", "esp32p4", "esp32s31",
)  # fmt: skip
QUANT_TYPES = ("w8a8", "w8a16", "w16a16")
CALIBRATIONS = ("kl", "percentile", "mse", "minmax")
_ALIGN = ("Align to Large", "Align to Output", "None")
_ALIGN_INPUT = ("Align to Input", "Align to Output", "None")
_ALL = (-1.0,)

TABLE = OptionTable(
    "esp_ppq",
    {
        "target": Option("str", "esp32s3", TARGETS),
        "quant_type": Option("str", "w8a8", QUANT_TYPES),
        "calib_algorithm": Option("str", "kl", CALIBRATIONS),
        "calib_steps": Option("int", 32, low=8, high=512),
        "weight_equalization": Option("bool", False),
        "weight_equalization.iterations": Option("int", 10, low=1, high=1000, when="weight_equalization"),
        "weight_equalization.value_threshold": Option("float", 0.5, low=0, high=100, when="weight_equalization"),
        "weight_equalization.opt_level": Option("int", 2, low=1, high=2, when="weight_equalization"),
        "horizontal_layer_split": Option("bool", False),
        "horizontal_layer_split.topk": Option("int", 1, low=1, when="horizontal_layer_split"),
        "horizontal_layer_split.value_threshold": Option("float", 0.1, low=0, when="horizontal_layer_split"),
        "bias_correction": Option("bool", False),
        "bias_correction.block_size": Option("int", 4, low=1, high=64, when="bias_correction"),
        "bias_correction.steps": Option("int", 32, low=1, high=512, when="bias_correction"),
        "bias_correction.topk": Option("int", -1, low=1, extra=_ALL, when="bias_correction"),
        "mixed_precision": Option("bool", False),
        "mixed_precision.topk": Option("int", 3, low=1, when="mixed_precision"),
        "mixed_precision.layers": Option("names", (), when="mixed_precision"),
        "tqt": Option("bool", False),
        "tqt.lr": Option("float", 1e-5, low=0, high=1, when="tqt"),
        "tqt.steps": Option("int", 500, low=1, high=100_000, when="tqt"),
        "tqt.block_size": Option("int", 4, low=1, high=64, when="tqt"),
        "tqt.is_scale_trainable": Option("bool", True, when="tqt"),
        "tqt.gamma": Option("float", 0.0, low=0, when="tqt"),
        "tqt.int_lambda": Option("float", 0.0, low=0, when="tqt"),
        "tqt.topk": Option("int", -1, low=1, extra=_ALL, when="tqt"),
        "fusion_alignment": Option("bool", True),
        # Not AutoQuant's first value, “Align to Large”: the kernels of Add do not rescale their inputs.
        "fusion_alignment.elementwise_to": Option("str", "Align to Output", _ALIGN, when="fusion_alignment"),
        "fusion_alignment.concat_to": Option("str", "Align to Output", _ALIGN, when="fusion_alignment"),
        "fusion_alignment.avgpooling_to": Option("str", "None", _ALIGN_INPUT, when="fusion_alignment"),
        "fusion_alignment.resize_to": Option("str", "Align to Output", _ALIGN_INPUT, when="fusion_alignment"),
        "fusion_alignment.force_overlap": Option("bool", False, when="fusion_alignment"),
        "blockwise_reconstruction": Option("bool", False),
        "blockwise_reconstruction.is_scale_trainable": Option("bool", False, when="blockwise_reconstruction"),
        "blockwise_reconstruction.topk": Option("int", -1, low=1, extra=_ALL, when="blockwise_reconstruction"),
        "blockwise_reconstruction.block_size": Option("int", 4, low=1, high=64, when="blockwise_reconstruction"),
        "blockwise_reconstruction.steps": Option("int", 1000, low=1, high=100_000, when="blockwise_reconstruction"),
        "blockwise_reconstruction.lr": Option("float", 1e-4, low=0, high=1, when="blockwise_reconstruction"),
        "blockwise_reconstruction.gamma": Option("float", 1.0, low=0, when="blockwise_reconstruction"),
    },
    suffix=".espdl",
    precision=("target", "quant_type"),
)
"""``mixed_precision.layers`` is ours: nodes at 16 bit by name; without any, the ``topk`` of the largest layer-wise
error and what reads them, as AutoQuant does. ``topk`` -1 of the other passes means every layer."""

SWITCHES: Mapping[str, tuple[bool, ...]] = {
    "weight_equalization": (True, False),
    "horizontal_layer_split": (False,),
    "bias_correction": (True, False),
    "mixed_precision": (False,),
    "tqt": (True, False),
    "fusion_alignment": (True,),
    "blockwise_reconstruction": (True, False),
}
"""AutoQuant's default ``strategy_space``, in its order."""
PARAMETERS: Mapping[str, tuple[Any, ...]] = {
    "calib_algorithm": ("kl", "percentile", "mse"),
    "weight_equalization.iterations": (10, 50, 100),
    "weight_equalization.value_threshold": (0.1, 0.5, 2.0),
    "weight_equalization.opt_level": (2,),
    "horizontal_layer_split.topk": (1,),
    "horizontal_layer_split.value_threshold": (0.1, 0.2),
    "bias_correction.block_size": (4, 2, 1),
    "bias_correction.steps": (32,),
    "bias_correction.topk": (-1, 1, 2, 3),
    "mixed_precision.topk": (3,),
    "tqt.lr": (1e-5, 5e-5),
    "tqt.steps": (500, 1000, 2000),
    "tqt.block_size": (4, 2, 1),
    "tqt.is_scale_trainable": (True,),
    "tqt.gamma": (0.0,),
    "tqt.int_lambda": (0.0,),
    "tqt.topk": (-1,),
    "fusion_alignment.elementwise_to": ("Align to Large", "Align to Output"),
    "fusion_alignment.concat_to": ("Align to Large", "Align to Output"),
    "fusion_alignment.avgpooling_to": ("Align to Input", "Align to Output"),
    "fusion_alignment.resize_to": ("Align to Input", "Align to Output"),
    "fusion_alignment.force_overlap": (False,),
    "blockwise_reconstruction.is_scale_trainable": (False,),
    "blockwise_reconstruction.topk": (-1, 1, 2, 3),
    "blockwise_reconstruction.block_size": (4, 2),
    "blockwise_reconstruction.steps": (1000,),
    "blockwise_reconstruction.lr": (1e-4,),
    "blockwise_reconstruction.gamma": (1.0,),
}
"""AutoQuant's default ``param_space``: the first value of each is what its ``fast`` mode starts from."""


def first_stage() -> Iterator[dict[str, Any]]:
    """Options of AutoQuant's ``fast`` mode, stage 1: each calibration method under each strategy, every other
    parameter at its first value."""
    for switches in itertools.product(*SWITCHES.values()):
        strategy = dict(zip(SWITCHES, switches, strict=True))
        firsts = {name: values[0] for name, values in PARAMETERS.items() if strategy.get(name.partition(".")[0], True)}
        for method in PARAMETERS["calib_algorithm"]:
            yield {**strategy, **firsts, "calib_algorithm": method}


def belongs(name: str, strategy: Mapping[str, Any]) -> bool:
    """Whether a parameter matters under these switches."""
    return strategy.get(name.partition(".")[0], True) is not False


def count(spaces: Sequence[str] = tuple(SWITCHES)) -> int:
    """Number of experiments of AutoQuant's ``exhaustive`` mode over these switches."""
    total = len(PARAMETERS["calib_algorithm"])
    for switch in spaces:
        widths = [len(values) for name, values in PARAMETERS.items() if name.startswith(f"{switch}.")]
        on = 1
        for width in widths:
            on *= width
        total *= sum(on if value else 1 for value in SWITCHES[switch])
    return total
