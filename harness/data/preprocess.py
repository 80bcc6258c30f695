"""The declared way from stored samples to a model's inputs.

Two stages. *Geometry* runs on the host: decode, colour conversion, resize, centre crop; its result is the raw sample
([H, W] or [H, W, C]). *Arithmetic* can also run on the board: channel order, ``(x * scale - mean) / std`` in float32,
channel axis, layout, dtype. :mod:`harness.data.transform` does both.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from device_agents.contract import Pipeline, Tensors
from harness.data.transform import Steps, axis_steps, transform_input
from harness.data.yaml_lines import Lines, explain, read_mapping
from harness.errors import ConfigError
from harness.suggest import did_you_mean
from harness.tensors import TensorSpec

_FRACTION = re.compile(r"\s*([0-9.eE+\-]+)\s*/\s*([0-9.eE+\-]+)\s*")


def _number(value: object) -> object:
    """``1/255`` as a number: YAML reads it as text."""
    if isinstance(value, str) and (match := _FRACTION.fullmatch(value)):
        try:
            return float(match[1]) / float(match[2])
        except (ValueError, ZeroDivisionError):
            raise ValueError("not a number or a fraction such as 1/255") from None
    return value


def _numbers(value: object) -> object:
    if isinstance(value, list | tuple):
        return tuple(_number(item) for item in value)
    return (_number(value),)


def _size(value: object) -> object:
    return (value, value) if isinstance(value, int) else value


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Numbers = Annotated[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], BeforeValidator(_numbers)]
Pixels = Annotated[int, Field(ge=1, le=65_536, strict=True)]

FLOAT_TYPES = ("float16", "float32", "float64")


class InputPreprocess(BaseModel):
    """How one model input is made from a stored sample."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: Annotated[tuple[Pixels, Pixels] | None, BeforeValidator(_size)] = None
    """(height, width) in pixels; one number for a square. ``None`` leaves the size."""
    fit: Literal["stretch", "center-crop"] = "stretch"
    """``stretch`` resizes both sides to ``size``; ``center-crop`` keeps the aspect ratio and cuts the centre out."""
    crop_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """With ``center-crop``: share of the shorter side that is kept, e.g. 0.875 for "resize to 256, crop 224"."""
    resize: Literal["nearest", "bilinear", "bicubic", "lanczos", "box"] = "bilinear"
    """Pillow's filter."""
    scale: Number = 1.0
    """Multiplies the stored value; ``1/255`` is understood."""
    mean: Numbers = ()
    """Subtracted after the scale: one number, or one per channel in the model's channel order."""
    std: Numbers = ()
    """Divides after the mean: one number, or one per channel."""
    layout: Literal["NCHW", "NHWC", "NHW"] | None = None
    """Axes of the model's input; a channel axis is added or dropped as it asks. ``None``: not an image, axes stay."""
    raw_layout: Literal["HW", "HWC", "CHW"] | None = None
    """Axes of a stored sample where its shape does not tell."""
    channel_order: Literal["RGB", "BGR", "GRAY"] | None = None
    """Order the model wants; samples are stored as RGB or grey. ``None``: as stored."""
    dtype: Literal["float16", "float32", "float64", "uint8", "int8", "uint16", "int16", "int32", "int64"] | None = None
    """Type of the result; ``None``: the model input's."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.scale == 0:
            raise ValueError("scale must not be 0")
        if any(value == 0 for value in self.std):
            raise ValueError("std must not be 0")
        if self.crop_fraction != 1.0 and self.fit != "center-crop":
            raise ValueError("crop_fraction needs fit: center-crop")
        if self.fit == "center-crop" and self.size is None:
            raise ValueError("fit: center-crop needs size")
        if self.layout is None:
            for name in ("size", "raw_layout", "channel_order"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} needs layout (NCHW, NHWC or NHW)")
        if self.layout == "NHW" and self.channel_order in {"RGB", "BGR"}:
            raise ValueError(f"layout NHW has no channel axis for channel_order {self.channel_order}")
        if self.dtype is not None and self.dtype not in FLOAT_TYPES and self.arithmetic:
            raise ValueError(
                f"dtype {self.dtype} cannot hold the result of scale, mean and std; leave those out, or use float32"
            )
        return self

    @property
    def arithmetic(self) -> bool:
        """Whether values change at all."""
        return self.scale != 1.0 or any(self.mean) or any(value != 1.0 for value in self.std)


class Preprocess(BaseModel):
    """Preprocessing by model input. Load it with :meth:`load`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: Mapping[str, InputPreprocess] = Field(default_factory=dict)
    """By input name."""
    image: InputPreprocess | None = None
    """Applies to the model's only input, or to its first one with three axes or more."""

    @classmethod
    def load(cls, path: Path) -> Preprocess:
        """Reads a YAML file: the keys of :class:`InputPreprocess`, or ``inputs:`` with those keys under each input.

        Raises :class:`ConfigError` with ``file:line`` and a close spelling for unknown keys.
        """
        values, lines = read_mapping(path, "preprocessing")
        return cls.parse(values, lines)

    @classmethod
    def parse(cls, values: Mapping[str, Any], lines: Lines | None = None) -> Preprocess:
        """The same from a mapping, e.g. a section of a larger file. Raises :class:`ConfigError`."""
        known = list(InputPreprocess.model_fields)
        keys = {str(key) for key in values}
        if "inputs" in keys and len(keys) > 1:
            extra = sorted(keys - {"inputs"})[0]
            raise ConfigError(
                f"the preprocessing has 'inputs' and {extra!r} side by side",
                hint=f"Put {extra!r} under the input it is about.",
                where=lines.where((extra,)) if lines else "",
            )
        if "inputs" not in keys:
            try:
                return cls(image=InputPreprocess(**{str(k): v for k, v in values.items()}))
            except ValidationError as error:
                raise explain(error, [*known, "inputs"], lines, "preprocessing") from None
        try:
            return cls(inputs=values["inputs"])
        except ValidationError as error:
            raise explain(error, known, lines, "preprocessing") from None

    @property
    def digest(self) -> str:
        """sha256 (hex) of the canonical JSON form, defaults explicit; part of the key of a result."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def by_input(self, inputs: Sequence[TensorSpec]) -> dict[str, InputPreprocess]:
        """The declarations that apply to a model's inputs, by name; raises :class:`ConfigError` for an unknown one."""
        names = [spec.name for spec in inputs]
        for name in self.inputs:
            if name not in names:
                raise ConfigError(
                    f"the preprocessing is for an input {name!r}, which the model does not have",
                    hint=did_you_mean(name, names),
                )
        found = dict(self.inputs)
        if self.image is not None:
            target = _image_input(inputs)
            if target is None:
                raise ConfigError(
                    f"which input is the preprocessing for? The model has {', '.join(map(repr, names))}",
                    hint="Write `inputs:` with the input's name and put the keys under it.",
                )
            found[target] = self.image
        return found

    def apply(self, arrays: Tensors, inputs: Sequence[TensorSpec]) -> tuple[Tensors, Tensors]:
        """Stored arrays ([samples, ...] by input name) to (raw, ready).

        ``raw`` is after geometry ([samples, H, W] or [samples, H, W, C] for images), ``ready`` after arithmetic, in the
        model's layout and dtype. Inputs without a declaration pass through. Raises :class:`ConfigError`.
        """
        declared = self.by_input(inputs)
        types = {spec.name: spec.dtype for spec in inputs}
        raw: dict[str, np.ndarray[Any, Any]] = {}
        ready: dict[str, np.ndarray[Any, Any]] = {}
        for name, array in arrays.items():
            if name in declared:
                raw[name], ready[name] = transform_input(name, array, declared[name], types[name])
            else:
                raw[name] = ready[name] = np.asarray(array)
        return raw, ready

    def to_pipeline(
        self,
        inputs: Sequence[TensorSpec],
        raw: Tensors,
        post: Literal["none", "softmax", "argmax"] = "none",
    ) -> Pipeline:
        """The arithmetic stage as the board's runner does it, from ``raw`` samples (see :meth:`apply`).

        Raises :class:`ConfigError` where it cannot be expressed: models of several inputs.
        """
        if len(inputs) != 1:
            raise ConfigError(
                f"preprocessing can be timed on the board only for models of one input; this one has {len(inputs)}",
                hint="Use scope: inference.",
            )
        spec = inputs[0]
        declared = self.by_input(inputs).get(spec.name, InputPreprocess())
        steps: Steps = axis_steps(spec.name, raw[spec.name], declared)
        return Pipeline(
            scale=declared.scale,
            mean=declared.mean if declared.arithmetic else (),
            std=declared.std if declared.arithmetic else (),
            transpose=steps.transpose,
            expand_axis=steps.expand_axis,
            reverse_channels=steps.reverse_channels,
            dtype=declared.dtype or spec.dtype,
            post=post,
        )


def _image_input(inputs: Sequence[TensorSpec]) -> str | None:
    if len(inputs) == 1:
        return inputs[0].name
    return next((spec.name for spec in inputs if len(spec.shape) >= 3), None)


def suggest(spec: TensorSpec, sample_shape: Sequence[int] | None) -> str:
    """A preprocessing file to start from, for 8-bit images into ``spec`` (``sample_shape`` without the sample axis)."""
    shape = spec.shape[1:]
    lines = []
    layout = _layout(shape)
    if layout is not None:
        height, width = (shape[1], shape[2]) if layout == "NCHW" else (shape[0], shape[1])
        fits = sample_shape is not None and set(sample_shape) >= {height, width}
        if isinstance(height, int) and isinstance(width, int) and not fits:
            lines.append(f"size: [{height}, {width}]")
        lines.append(f"layout: {layout}")
        channels = {"NCHW": shape[:1], "NHWC": shape[-1:], "NHW": (1,)}[layout]
        if channels == (3,):
            lines.append("channel_order: RGB")
        elif channels == (1,) and (sample_shape is None or len(sample_shape) == 3):
            lines.append("channel_order: GRAY")
    lines.append("scale: 1/255")
    lines.append(f"dtype: {spec.dtype}")
    return "\n".join(f"    {line}" for line in lines)


def _layout(shape: Sequence[int | str]) -> Literal["NCHW", "NHWC", "NHW"] | None:
    if len(shape) == 2 and all(isinstance(n, str) or n > 4 for n in shape):
        return "NHW"
    if len(shape) != 3:
        return None
    first, last = shape[0], shape[-1]
    if isinstance(last, int) and last in {1, 3, 4} and not (isinstance(first, int) and first in {1, 3, 4}):
        return "NHWC"
    return "NCHW"
