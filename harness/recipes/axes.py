"""The axes of a recipe: their values, and which schemes read which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Scheme = Literal["float32", "float16", "dynamic", "static", "weight_only", "imported", "vendor"]
"""``static``: activation ranges from calibration; ``dynamic``: activation ranges at run time; ``weight_only``:
weights of MatMul block-wise in few bits, activations in float; ``imported``: a model quantized elsewhere; ``vendor``: a
vendor's quantizer, the recipe's ``backend``, by its own ``options``."""
Format = Literal["QDQ", "QOperator"]
ActivationType = Literal["uint8", "int8", "uint16", "int16"]
WeightType = Literal["int8", "uint8", "int16", "int4", "uint4"]
Granularity = Literal["per_tensor", "per_channel"]
Scale = Literal["float32", "power_of_two"]
CalibrationMethod = Literal["minmax", "percentile", "entropy", "mse", "distribution", "layerwise_percentile"]
WeightClip = Literal["none", "mse"]
Rounding = Literal["nearest", "adaround", "adaquant"]

SIGNED = frozenset({"int4", "int8", "int16"})
SUB_BYTE = frozenset({"int4", "uint4"})
SIXTEEN_BIT = frozenset({"int16", "uint16"})
SHORT: Mapping[str, str] = {
    "uint4": "u4", "int4": "s4", "uint8": "u8", "int8": "s8", "uint16": "u16", "int16": "s16",
}  # fmt: skip
BITS: Mapping[str, int] = {"uint4": 4, "int4": 4, "uint8": 8, "int8": 8, "uint16": 16, "int16": 16}

ALIGNABLE = ("Add", "AveragePool", "Concat", "GlobalAveragePool", "MaxPool", "Mul", "Sub")
"""Operators whose inputs and output can be made to share one scale."""

_EXCLUSIONS = frozenset({"exclude_op_types", "exclude_nodes", "exclude_after", "exclude_regions"})
_SELECTION = _EXCLUSIONS | {"op_types"}
RELEVANT: Mapping[str, frozenset[str]] = {
    "float32": frozenset(),
    "float16": _EXCLUSIONS,
    "dynamic": _SELECTION | {"weight", "weight_symmetric", "granularity", "reduce_range"},
    "weight_only": _EXCLUSIONS | {"format", "weight", "weight_symmetric", "block_size"},
    "static": _SELECTION
    | {
        "format", "activation", "weight", "activation_symmetric", "weight_symmetric", "granularity",
        "reduce_range", "scale", "calibration", "equalize", "smooth_alpha", "weight_clip", "rounding",
        "bias_correction", "align_scales", "overrides",
    },
    "imported": frozenset({"source", "source_file", "source_sha256"}),
    "vendor": frozenset({"options"}),
}  # fmt: skip
"""Fields each scheme reads, beside ``scheme`` and ``backend``."""
