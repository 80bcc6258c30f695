"""A model file as it is sent to boards, with what has to be known of it: ONNX or ``.espdl``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from device_agents.emulated.espdl.axes import Axes
from device_agents.emulated.espdl.model import ValueInfo
from harness.boards.chips import chip_of
from harness.boards.host_lock import host_lock
from harness.boards.schema import Board
from harness.errors import ConfigError, ModelError
from harness.lints.espdl import BoardMemory, lint
from harness.quantize.contract import Cause, ModelRefused
from harness.quantize.identity import identity
from harness.quantize.made_espdl import espdl_identity, read_espdl
from harness.quantize.model_file import load_model, refuse_two_files, save_model
from harness.quantize.prepare import check_loads
from harness.quantize.shapes import fix_dims, model_inputs, tensor_outputs, tensor_specs
from harness.tensors import TensorSpec

ESPDL = ".espdl"


@dataclass(frozen=True)
class Deployable:
    path: Path
    """The user's own file, unless dimensions are fixed or its tensors lie beside it."""
    identity: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    notices: tuple[str, ...] = ()
    unloadable: ModelError | None = None
    """Why this host cannot load it, which its runtime says better than most boards."""


def deployable(model: Path, folder: Path, set_dim: Mapping[str, int], batch: int) -> Deployable:
    """Reads the file; a changed one is written into ``folder``.

    Raises :class:`ModelError` where it cannot be read, :class:`ConfigError` where there is nothing to time, or
    dimensions are asked for that it does not have.
    """
    ready = _espdl(model, set_dim, batch) if model.suffix == ESPDL else _onnx(model, folder, set_dim, batch)
    if not ready.inputs:
        raise ConfigError("the model has no inputs: there is nothing to time", where=model)
    return ready


def fits(ready: Deployable, board: Board) -> None:
    """Raises :class:`ConfigError` where the board runs models of another format; lints are the board's notices."""
    chip = chip_of(board)
    runs = ".onnx" if chip is None else ESPDL
    given = ready.path.suffix if ready.path.suffix == ESPDL else ".onnx"
    if runs != given:
        raise ConfigError(
            f"it runs {runs} models, {ready.path.name} is an {given} model",
            hint="boardtune quantize makes one with a recipe of the esp_ppq backend" if chip else "",
        )
    if chip is not None and board.limits.lint == "refuse":
        limit = board.limits.max_memory_bytes
        memory = None if limit is None else BoardMemory(psram_bytes=limit)
        errors = [found for found in lint(read_espdl(ready.path), chip, memory) if found.severity == "error"]
        if errors:
            message = errors[0].what + (f" (and {len(errors) - 1} more)" if len(errors) > 1 else "")
            hint = f"{errors[0].advice} To try it all the same: limits: {{lint: warn}} in the board's file."
            raise ConfigError(message, where=ready.path, hint=hint)


def _onnx(path: Path, folder: Path, set_dim: Mapping[str, int], batch: int) -> Deployable:
    refuse_two_files(path, "a board")
    model = load_model(path)
    before = model.SerializeToString(deterministic=True)
    notices = tuple(fix_dims(model, dict(set_dim), path, batch))
    sent = path
    external = path.stat().st_size < len(before) // 2
    if external or before != model.SerializeToString(deterministic=True):
        sent = folder / "model.onnx"
        save_model(model, sent)
    inputs, outputs = tensor_specs(model_inputs(model)), tensor_specs(tensor_outputs(model))
    return Deployable(sent, identity(sent), inputs, outputs, notices, _unloadable(path))


def _unloadable(model: Path) -> ModelError | None:
    try:
        with host_lock().work():
            check_loads(model)
    except ModelRefused as error:
        if error.cause != Cause.DOES_NOT_LOAD:
            raise
        return error
    return None


def _espdl(path: Path, set_dim: Mapping[str, int], batch: int) -> Deployable:
    if set_dim or batch != 1:
        raise ConfigError("an .espdl model has fixed dimensions, its batch is 1", where=path, hint="quantize it anew")
    model = read_espdl(path)
    axes = Axes.of(model)
    return Deployable(path, espdl_identity(model), _specs(model.inputs, axes), _specs(model.outputs, axes))


def _specs(values: Sequence[ValueInfo], axes: Axes) -> tuple[TensorSpec, ...]:
    """In real numbers and the float model's order of axes: what samples come in."""
    return tuple(
        TensorSpec(value.name, "float32", axes.restored(value.name, np.broadcast_to(np.int8(0), value.shape)).shape)
        for value in values
    )
