"""What actors send each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.controller.trial import Quantized
from harness.measure.settings import MeasurementSettings
from harness.quantize.contract import Refusal

if TYPE_CHECKING:
    from harness.ledger.run_directory import Phase


@dataclass(frozen=True)
class Material:
    """References to bytes that quantizers work with, on whatever node."""

    model: Any
    calibration: Any
    imported: Mapping[str, Any]
    """Models made elsewhere, by their recipes' ``source``."""


@dataclass(frozen=True)
class QuantizeReply:
    """Plain values and bytes: a quantizer may be on another node than the run directory."""

    made: Quantized | Refusal
    model: bytes | None
    notices: tuple[str, ...]
    backend: str
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    """A vendor's quantizer's own."""
    deploy: bytes | None = None
    """The model for the chip's compiler, where the quantizer makes another for it."""


@dataclass(frozen=True)
class BoardTask:
    """One trial for one board."""

    trial: int
    phase: Phase
    settings: MeasurementSettings
