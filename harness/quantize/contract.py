"""What a quantizer backend takes and gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from harness.errors import ModelError
from harness.recipes.recipe import Recipe


class Cause(StrEnum):
    """Why a quantization was refused. Values are stable: they are in the ledger and in ``--json``."""

    UNSUPPORTED = "unsupported"
    """The backend cannot make this recipe from this model."""
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    DOES_NOT_LOAD = "does_not_load"
    DOES_NOT_RUN = "does_not_run"
    NON_FINITE = "non_finite"
    LOW_SNR = "low_snr"
    NOTHING_QUANTIZED = "nothing_quantized"
    ALREADY_QUANTIZED = "already_quantized"
    OTHER_INTERFACE = "other_interface"
    """A model made elsewhere whose inputs or outputs are not the float model's."""
    BAD_CALIBRATION = "bad_calibration"
    FAILED = "failed"
    """The backend raised something else; the message carries it."""


class ModelRefused(ModelError):
    """The file holds an ONNX model, and no recipe can be made of it; ``cause`` says why."""

    def __init__(self, message: str, *, cause: Cause, hint: str = "", where: str | Path = "") -> None:
        super().__init__(message, hint=hint, where=where)
        self.cause = cause

    def __reduce__(self) -> tuple[object, ...]:
        return (_refused, (self.message, self.cause, self.hint, self.where))


def _refused(message: str, cause: Cause, hint: str, where: str) -> ModelRefused:
    return ModelRefused(message, cause=cause, hint=hint, where=where)


@dataclass(frozen=True)
class Artifact:
    """What was made from a recipe: one deployable file."""

    path: Path
    sha256: str
    """Of the file."""
    identity: str
    """Of the canonical content (DESIGN: identity of an artifact)."""
    size_bytes: int
    snr_db: float | None
    """Signal-to-noise ratio against the float model on the worst output over the acceptance samples; ``None`` for
    float32."""
    quantized_operators: int
    notices: tuple[str, ...] = ()
    backend_version: str = ""
    """Of a vendor's quantizer: its packages with their versions."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What a vendor's quantizer made of the recipe, in its own words, as JSON."""


@dataclass(frozen=True)
class Refusal:
    cause: Cause
    message: str
    snr_db: float | None = None
    detail: str = ""
    """Traceback or log tail; kept in the trial's folder."""


@dataclass(frozen=True)
class QuantizeLimits:
    """Raises ``ValueError`` on a limit that is not a number, which would limit nothing."""

    timeout_s: float = 600.0
    memory_bytes: int = 8 << 30
    min_snr_db: float = 15.0

    def __post_init__(self) -> None:
        for name in ("timeout_s", "min_snr_db"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)}: must be finite")


@dataclass(frozen=True)
class QuantizeJob:
    """Everything a child needs; plain values only, so that it crosses a pipe."""

    model: Path
    """Prepared float model (never modified)."""
    calibration: Path
    """``.npz``: one array per model input, model-ready, samples on axis 0."""
    recipe: Recipe
    out: Path
    """File to write."""
    limits: QuantizeLimits = field(default_factory=QuantizeLimits)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON and paths: ``host_lock`` (folder of the host lock to hold), ``cache`` (folder for calibration
    statistics; the user's cache folder if missing, none if empty), ``digests`` (sha256 of the ``model`` and
    ``calibration`` files, where known), ``imported`` (the file to take, for a recipe of scheme ``imported``),
    ``vendor_socket`` (where the recipe's vendor listens; set by the worker)."""


class Backend(Protocol):
    """Makes the file; runs inside the child. Raises on failure; acceptance is not its business."""

    name: str

    def version(self) -> str: ...

    def quantize(self, model: Path, calibration: Path, recipe: Recipe, out: Path) -> tuple[str, ...]:
        """Writes ``out``; returns notices."""
