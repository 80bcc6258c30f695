"""One quantization configuration: an immutable value with a canonical JSON form and a digest.

Field names follow ONNX Runtime's quantization tool. Fields that mean nothing to a recipe's scheme are reset
to their defaults on construction, so recipes that ask for the same thing are equal and have the same digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

from harness.errors import ConfigError
from harness.recipes.axes import (
    RELEVANT,
    SHORT,
    SIGNED,
    SUB_BYTE,
    ActivationType,
    CalibrationMethod,
    Format,
    Granularity,
    Rounding,
    Scale,
    Scheme,
    WeightClip,
    WeightType,
)
from harness.recipes.checks import (
    check_keys,
    find_problem,
    require_choice,
    require_names,
    require_pairs,
    require_type,
)
from harness.recipes.options import Options
from harness.recipes.vendors import vendor_table

DEFAULT_PERCENTILE = 99.999
"""ONNX Runtime's default for its percentile calibrator."""
DEFAULT_BLOCK_SIZE = 32
"""Default block of ONNX Runtime's MatMulNBits quantizer is 128; 32 is what its CPU kernels are tuned for."""


@dataclass(frozen=True)
class Calibration:
    """How activation ranges are found."""

    method: CalibrationMethod = "minmax"
    percentile: float | None = None
    """Share of the values kept, in percent; only for ``percentile``."""
    samples: int | None = None
    """Calibration samples used, taken evenly and seeded from the set; ``None`` means all."""

    def __post_init__(self) -> None:
        require_choice("calibration.method", self.method, get_args(CalibrationMethod))
        if self.samples is not None:
            require_type("calibration.samples", self.samples, int)
            if self.samples < 1:
                raise ConfigError(f"recipe field 'calibration.samples' is {self.samples}; it must be at least 1")
        if self.method != "percentile":
            object.__setattr__(self, "percentile", None)
            return
        percentile = DEFAULT_PERCENTILE if self.percentile is None else self.percentile
        require_type("calibration.percentile", percentile, (int, float))
        if not 50.0 < percentile <= 100.0:
            raise ConfigError(
                f"recipe field 'calibration.percentile' is {percentile}; it must be above 50 and at most 100"
            )
        object.__setattr__(self, "percentile", float(percentile))


@dataclass(frozen=True)
class Recipe:
    """A quantization recipe. Equal recipes have equal digests.

    Raises :class:`~harness.errors.ConfigError` on construction if a value is unknown or the combination cannot
    be built; the message names the field.
    """

    scheme: Scheme = "static"
    backend: str = "ort"
    format: Format = "QDQ"
    """``QDQ``: float operators between QuantizeLinear and DequantizeLinear; ``QOperator``: QLinear* operators."""
    activation: ActivationType = "int8"
    weight: WeightType = "int8"
    block_size: int | None = None
    """Elements of a weight column that share a scale; only for ``weight_only``."""
    activation_symmetric: bool | None = None
    """Zero point fixed to the middle of the type. Default false."""
    weight_symmetric: bool | None = None
    """Default true for signed weights, false for unsigned (as ONNX Runtime's)."""
    granularity: Granularity = "per_tensor"
    reduce_range: bool = False
    """7-bit weights, against saturation in x86 kernels without VNNI."""
    scale: Scale = "float32"
    calibration: Calibration = field(default_factory=Calibration)
    equalize: bool = False
    """Cross-layer equalization: ranges of weights evened out between consecutive layers, before anything else."""
    smooth_alpha: float | None = None
    """SmoothQuant's migration strength, 0 to 1: outliers of activations after a LayerNormalization move into the
    weights that read them. ``None``: not done."""
    weight_clip: WeightClip = "none"
    """``mse``: weights are clipped where their quantization error is least."""
    rounding: Rounding = "nearest"
    """``adaround``: each weight up or down, ``adaquant``: by any number of steps, such that the layer's output on
    calibration samples is closest to float; ``adaquant`` on quantized inputs, and with the bias."""
    bias_correction: bool = False
    """The mean error of each channel that quantized weights cause is taken off the bias. Not read with ``adaquant``,
    which does that in any case."""
    align_scales: tuple[str, ...] = ()
    """Operator types whose inputs and output share one range."""
    overrides: tuple[tuple[str, str], ...] = ()
    """Integer type of single activations, by tensor name in the prepared model; in files a mapping."""
    exclude_op_types: tuple[str, ...] = ()
    """Operator types left in float."""
    exclude_nodes: tuple[str, ...] = ()
    """Nodes left in float, by name in the prepared model."""
    exclude_after: tuple[str, ...] = ()
    """Tensors all of whose descendants are left in float (the box decoding behind a detector's heads)."""
    exclude_regions: tuple[tuple[str, str], ...] = ()
    """Pairs of tensors: every node on a path from the first to the second is left in float."""
    op_types: tuple[str, ...] = ()
    """Only these operator types are quantized; empty means all that the backend can."""
    options: Options = ()
    """For ``vendor``: the backend's own options, completed; in files a mapping."""
    source: str = ""
    """For ``imported``, a model quantized elsewhere: sha256 of its canonical content, external data included (see
    :mod:`harness.quantize.identity`)."""
    source_file: str = field(default="", compare=False)
    """Name of that file, for people: a file that was renamed is the same candidate."""
    source_sha256: str = field(default="", compare=False)
    """sha256 of that file's bytes, which also cover its labels."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            require_choice(name, getattr(self, name), choices)
        require_type("backend", self.backend, str)
        for name in ("source", *_NOT_CANONICAL):
            require_type(name, getattr(self, name), str)
        for name in ("reduce_range", "equalize", "bias_correction"):
            require_type(name, getattr(self, name), bool)
        if self.smooth_alpha is not None:
            require_type("smooth_alpha", self.smooth_alpha, (int, float))
            object.__setattr__(self, "smooth_alpha", float(self.smooth_alpha))
        for name in ("overrides", "exclude_regions"):
            object.__setattr__(self, name, require_pairs(name, getattr(self, name)))
        for name in ("activation_symmetric", "weight_symmetric"):
            if getattr(self, name) is not None:
                require_type(name, getattr(self, name), bool)
        for name in ("exclude_op_types", "exclude_nodes", "exclude_after", "op_types", "align_scales"):
            object.__setattr__(self, name, require_names(name, getattr(self, name)))
        if self.block_size is not None:
            require_type("block_size", self.block_size, int)
        if not isinstance(self.calibration, Calibration):
            raise ConfigError(f"recipe field 'calibration' must be a section of fields, not {self.calibration!r}")
        self._complete_options()
        self._normalise()
        problem = find_problem(self)
        if problem:
            raise ConfigError(problem)

    def _complete_options(self) -> None:
        """Raises :class:`ConfigError` for a backend that is no vendor's, or options that are not the backend's."""
        if self.scheme == "vendor":
            object.__setattr__(self, "options", vendor_table(self.backend).complete(dict(self.options)))

    def _normalise(self) -> None:
        """Resets what the scheme does not read; resolves defaults that depend on other fields."""
        relevant = RELEVANT[self.scheme]
        for name, default in _DEFAULTS.items():
            if name not in relevant:
                object.__setattr__(self, name, default)
        if self.scheme == "weight_only" and self.block_size is None:
            object.__setattr__(self, "block_size", DEFAULT_BLOCK_SIZE)
        if self.rounding == "adaquant":
            # It sets biases itself.
            object.__setattr__(self, "bias_correction", False)
        if self.activation_symmetric is None:
            object.__setattr__(self, "activation_symmetric", False)
        if self.weight_symmetric is None:
            object.__setattr__(self, "weight_symmetric", self.weight in SIGNED)

    @property
    def is_float32(self) -> bool:
        return self.scheme == "float32"

    @property
    def needs_calibration(self) -> bool:
        """Whether activation ranges are collected before quantizing."""
        return self.scheme in ("static", "vendor")

    @property
    def suffix(self) -> str:
        """Of the file that is made of it: ``.onnx``, or what the vendor's quantizer makes."""
        return vendor_table(self.backend).suffix if self.scheme == "vendor" else ".onnx"

    @property
    def precision(self) -> str:
        """Short form for file names, activation then weight: ``u8s8``; ``f32``, ``f16``, ``dyn-s8``, ``w-s4``."""
        weight = SHORT[self.weight]
        return {
            "float32": "f32",
            "float16": "f16",
            "dynamic": f"dyn-{weight}",
            "weight_only": f"w-{weight}",
            "imported": "imported",
            "vendor": self._vendors_precision(),
            "static": f"{SHORT[self.activation]}{weight}",
        }[self.scheme]

    def _vendors_precision(self) -> str:
        if self.scheme != "vendor":
            return ""
        options = dict(self.options)
        return "-".join(str(options[name]) for name in vendor_table(self.backend).precision) or self.backend

    @property
    def label(self) -> str:
        """One line for people, e.g. ``static QDQ s8/s8 per-channel percentile 99.99``."""
        if self.scheme == "float32":
            return "float32"
        if self.scheme == "imported":
            return " ".join(word for word in ("imported", self.source_file, self.source[:8]) if word)
        if self.scheme == "vendor":
            return " ".join([self.backend, *vendor_table(self.backend).changed(self.options)])
        words: list[str] = [self.scheme.replace("_", "-")]
        if self.scheme in ("static", "weight_only"):
            words.append(self.format)
        if self.scheme == "static":
            words.append(f"{SHORT[self.activation]}/{SHORT[self.weight]}")
        elif self.scheme != "float16":
            words.append(SHORT[self.weight])
        if self.block_size is not None:
            words.append(f"block {self.block_size}")
        if self.scheme in ("static", "dynamic"):
            words.append(self.granularity.replace("_", "-"))
        if self.scheme == "static":
            words.append(self.calibration.method)
            if self.calibration.percentile is not None:
                words.append(f"{self.calibration.percentile:g}")
            if self.calibration.samples is not None:
                words.append(f"({self.calibration.samples} samples)")
        if self.activation_symmetric:
            words.append("symmetric activations")
        if self.scheme in ("static", "dynamic", "weight_only") and self.weight_symmetric != (self.weight in SIGNED):
            words.append("symmetric weights" if self.weight_symmetric else "asymmetric weights")
        if self.reduce_range:
            words.append("reduced range")
        if self.scale == "power_of_two":
            words.append("power-of-two scales")
        words += self._algorithms()
        if self.op_types:
            words.append(f"only {'+'.join(self.op_types)}")
        if self.exclude_op_types:
            words.append(f"float {'+'.join(self.exclude_op_types)}")
        if self.exclude_nodes:
            shown = ",".join(self.exclude_nodes[:2])
            more = len(self.exclude_nodes) - 2
            words.append(f"float nodes {shown}" + (f" and {more} more" if more > 0 else ""))
        return " ".join(words)

    def _algorithms(self) -> list[str]:
        words = ["equalized"] if self.equalize else []
        if self.smooth_alpha is not None:
            words.append(f"SmoothQuant {self.smooth_alpha:g}")
        if self.weight_clip != "none":
            words.append("clipped weights")
        if self.rounding != "nearest":
            words.append({"adaround": "AdaRound", "adaquant": "AdaQuant"}[self.rounding])
        if self.bias_correction:
            words.append("bias correction")
        if self.align_scales:
            words.append(f"aligned {'+'.join(self.align_scales)}")
        words += [f"{kind} {name}" for name, kind in self.overrides[:2]]
        if len(self.overrides) > 2:
            words.append(f"and {len(self.overrides) - 2} more overrides")
        words += [f"float after {name}" for name in self.exclude_after[:2]]
        words += [f"float {first}..{last}" for first, last in self.exclude_regions[:2]]
        hidden = max(len(self.exclude_after) - 2, 0) + max(len(self.exclude_regions) - 2, 0)
        return [*words, f"and {hidden} more regions"] if hidden else words

    def to_dict(self) -> dict[str, Any]:
        """Every field that says what is made, explicit, in plain JSON types; of an imported model its file too."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.scheme != "imported":
            for name in _NOT_CANONICAL:
                del values[name]
        if self.scheme == "vendor":
            values["options"] = {
                name: list(value) if isinstance(value, tuple) else value for name, value in self.options
            }
        else:
            del values["options"]
        values["calibration"] = {f.name: getattr(self.calibration, f.name) for f in fields(Calibration)}
        values["overrides"] = dict(self.overrides)
        values["exclude_regions"] = [list(pair) for pair in self.exclude_regions]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def to_json(self) -> str:
        """Canonical: sorted keys, no spaces, every field explicit that says what is made, ASCII."""
        values = {name: value for name, value in self.to_dict().items() if name not in _NOT_CANONICAL}
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def digest(self) -> str:
        """sha256 of :meth:`to_json`, hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], where: str = "") -> Recipe:
        """Builds a recipe from plain JSON types; missing fields take their defaults.

        ``where`` names the file (and place) for messages. Raises ConfigError.
        """
        try:
            check_keys("", value, [f.name for f in fields(cls)])
            values = dict(value)
            if "calibration" in values:
                calibration = values["calibration"]
                check_keys("calibration", calibration, [f.name for f in fields(Calibration)])
                values["calibration"] = Calibration(**calibration)
            if "options" in values:
                if not isinstance(values["options"], Mapping):
                    raise ConfigError(f"recipe field 'options' must be a mapping, not {values['options']!r}")
                values["options"] = tuple(values["options"].items())
            return cls(**values)
        except ConfigError as error:
            if where and not error.where:
                raise ConfigError(error.message, hint=error.hint, where=where) from None
            raise

    def with_changes(self, **changes: Any) -> Recipe:
        """A copy with some fields changed, checked like any other."""
        return replace(self, **changes)


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "scheme": get_args(Scheme),
    "format": get_args(Format),
    "activation": get_args(ActivationType),
    "weight": get_args(WeightType),
    "granularity": get_args(Granularity),
    "scale": get_args(Scale),
    "weight_clip": get_args(WeightClip),
    "rounding": get_args(Rounding),
}
_DEFAULTS: Mapping[str, Any] = {
    "format": "QDQ",
    "activation": "int8",
    "weight": "int8",
    "block_size": None,
    "activation_symmetric": None,
    "weight_symmetric": None,
    "granularity": "per_tensor",
    "reduce_range": False,
    "scale": "float32",
    "calibration": Calibration(),
    "equalize": False,
    "smooth_alpha": None,
    "weight_clip": "none",
    "rounding": "nearest",
    "bias_correction": False,
    "align_scales": (),
    "overrides": (),
    "exclude_op_types": (),
    "exclude_nodes": (),
    "exclude_after": (),
    "exclude_regions": (),
    "op_types": (),
    "options": (),
    "source": "",
    "source_file": "",
    "source_sha256": "",
}
_NOT_CANONICAL = ("source_file", "source_sha256")
"""What a file is called, and its labels, make no other candidate of it."""

FLOAT32 = Recipe(scheme="float32")
"""The baseline: always trial 0."""

__all__ = ["DEFAULT_PERCENTILE", "FLOAT32", "SUB_BYTE", "Calibration", "Recipe"]
