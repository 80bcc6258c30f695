"""Fixing free dimensions of model inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto

from harness.errors import ConfigError, ModelError
from harness.quantize.graph import initializers_of
from harness.suggest import near_hint
from harness.tensors import TensorSpec

_PLACEHOLDERS = frozenset({"", "?", "-1", "None"})
"""What exporters write for "unknown": no names, as axes that share one need not have one size (Paddle's height and
width are both ``?``)."""


@dataclass(frozen=True)
class FreeDim:
    """One axis of an input that the model leaves open."""

    name: str
    """The model's name for it, or ``INPUT:AXIS`` where it has none."""
    input: str
    axis: int

    @property
    def place(self) -> str:
        """``INPUT:AXIS``: accepted in place of the name."""
        return f"{self.input}:{self.axis}"


def model_inputs(model: ModelProto) -> list[onnx.ValueInfoProto]:
    """Inputs that must be fed: those without an initializer."""
    constants = initializers_of(model.graph)
    return [value for value in model.graph.input if value.name not in constants]


def tensor_outputs(model: ModelProto) -> list[onnx.ValueInfoProto]:
    """Outputs that are tensors: not the sequences and maps that classical classifiers give beside them."""
    return [value for value in model.graph.output if value.type.tensor_type.elem_type]


def free_dims(model: ModelProto) -> tuple[FreeDim, ...]:
    found = []
    for value in model_inputs(model):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") or dim.dim_value < 0:
                named = dim.dim_param not in _PLACEHOLDERS
                found.append(FreeDim(dim.dim_param if named else f"{value.name}:{axis}", value.name, axis))
    return tuple(found)


def parse_set_dims(items: Sequence[str]) -> dict[str, int]:
    """``NAME=n`` options of the command line. Raises ConfigError."""
    sizes: dict[str, int] = {}
    for item in items:
        name, separator, size = item.rpartition("=")
        if not separator or not name or not size.isdecimal() or int(size) < 1:
            raise ConfigError(
                f"--set-dim {item!r}: give the dimension's name and a whole number from 1 on",
                hint="for example: --set-dim sequence=64",
            )
        if sizes.get(name, int(size)) != int(size):
            raise ConfigError(f"--set-dim gives dimension {name!r} both {sizes[name]} and {size}")
        sizes[name] = int(size)
    return sizes


def fix_dims(model: ModelProto, set_dims: Mapping[str, int], path: Path, batch: int = 1) -> tuple[str, ...]:
    """Sets free dimensions in place: as asked, and a free first axis to ``batch``; returns notices.

    ``set_dims`` maps a dimension's name (or ``INPUT:AXIS``) to its size. Raises ModelError for unknown names, sizes
    below 1, dimensions left open, and a first axis that contradicts a ``batch`` above 1; ``path`` is for messages.
    """
    free = free_dims(model)
    sizes = _asked_sizes(free, set_dims, path)
    inner = {dim.name for dim in free if dim.axis > 0}
    notices = []
    for name in dict.fromkeys(dim.name for dim in free if dim.axis == 0):
        if name not in sizes and name not in inner:
            sizes[name] = batch
            inputs = ", ".join(repr(dim.input) for dim in free if dim.name == name)
            way = "--batch" if batch > 1 else f"--set-dim {name}=N to change it"
            notices.append(f"the first axis ({name}) of {inputs} is free: set to {batch} ({way})")
    still_open = [dim for dim in free if dim.name not in sizes]
    if still_open:
        raise ModelError(_open_message(still_open), where=path, hint=_open_hint(still_open))
    if batch > 1:
        _check_batch(model, free, set_dims, sizes, batch, path)
    _apply(model, free, sizes)
    return tuple(notices)


def _check_batch(
    model: ModelProto,
    free: tuple[FreeDim, ...],
    set_dims: Mapping[str, int],
    sizes: Mapping[str, int],
    batch: int,
    path: Path,
) -> None:
    by_input = {dim.input: dim for dim in free if dim.axis == 0}
    for value in model_inputs(model):
        dims = value.type.tensor_type.shape.dim
        if not dims:
            raise ModelError(
                f"--batch {batch}: input {value.name!r} is a single number, without an axis for samples",
                where=path,
                hint="leave out --batch",
            )
        dim = by_input.get(value.name)
        if dim is None and dims[0].dim_value != batch:
            raise ModelError(
                f"--batch {batch}: the model fixes the first axis of input {value.name!r} at {dims[0].dim_value}",
                where=path,
                hint="export the model with a free first axis, or leave out --batch",
            )
        if dim is not None and sizes[dim.name] != batch:
            asked = next(name for name in (dim.name, dim.place, *set_dims) if name in set_dims)
            raise ModelError(
                f"--batch {batch} and --set-dim {asked}={sizes[dim.name]} contradict each other: both size the first "
                f"axis of input {value.name!r}",
                where=path,
                hint="give one of the two",
            )


def _asked_sizes(free: tuple[FreeDim, ...], set_dims: Mapping[str, int], path: Path) -> dict[str, int]:
    names = {dim.name: dim.name for dim in free}
    names.update({dim.place: dim.name for dim in free})
    sizes: dict[str, int] = {}
    for asked, size in set_dims.items():
        if asked not in names:
            known = f"free dimensions: {', '.join(dict.fromkeys(d.name for d in free))}" if free else ""
            guess = near_hint(asked, names)
            hint = f"{guess} ({known})" if guess else known or "the model has no free dimensions; drop --set-dim"
            raise ModelError(f"--set-dim {asked}={size}: no free dimension has that name", where=path, hint=hint)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ModelError(f"--set-dim {asked}={size}: the size must be a whole number, 1 or more", where=path)
        name = names[asked]
        if sizes.get(name, size) != size:
            raise ModelError(f"--set-dim gives dimension {name!r} both {sizes[name]} and {size}", where=path)
        sizes[name] = size
    return sizes


def _open_message(dims: list[FreeDim]) -> str:
    places = "; ".join(f"{dim.name!r} (input {dim.input!r}, axis {dim.axis})" for dim in dims)
    return f"these dimensions are free and need a size: {places}"


def _open_hint(dims: list[FreeDim]) -> str:
    options = " ".join(f"--set-dim {name}=N" for name in dict.fromkeys(dim.name for dim in dims))
    return f"add {options}, for example {options.replace('=N', '=64')}"


def _apply(model: ModelProto, free: tuple[FreeDim, ...], sizes: Mapping[str, int]) -> None:
    by_place = {dim.place: sizes[dim.name] for dim in free}
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if f"{value.name}:{axis}" in by_place:
                dim.dim_value = by_place[f"{value.name}:{axis}"]
    if not free:
        return
    # What was inferred with the dimensions open would contradict the sizes.
    del model.graph.value_info[:]
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value") and dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]


def tensor_specs(values: Iterator[onnx.ValueInfoProto] | list[onnx.ValueInfoProto]) -> tuple[TensorSpec, ...]:
    """Name, numpy type and shape of model inputs or outputs."""
    specs = []
    for value in values:
        tensor = value.type.tensor_type
        shape: tuple[int | str, ...] = tuple(
            int(dim.dim_value) if dim.HasField("dim_value") else str(dim.dim_param or "?") for dim in tensor.shape.dim
        )
        specs.append(TensorSpec(value.name, str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)), shape))
    return tuple(specs)
