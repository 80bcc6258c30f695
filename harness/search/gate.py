"""Cheap tests before an artifact is sent to a board: what the board's file says it cannot take."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from harness.recipes.recipe import Recipe
from harness.units import format_bytes


class BoardLimits(Protocol):
    """The ``limits`` section of a board file; ``None`` where nothing is known."""

    @property
    def max_model_bytes(self) -> int | None: ...
    @property
    def data_types(self) -> tuple[str, ...] | None: ...
    @property
    def operators(self) -> tuple[str, ...] | None: ...
    @property
    def max_memory_bytes(self) -> int | None: ...
    @property
    def lint(self) -> str: ...


def other_format(recipe: Recipe, chip: str | None) -> str:
    """Why a board cannot load what is made of the recipe at all; empty if it can. ``chip``: of a board that runs
    ``.espdl`` models, as ESP-PPQ calls it."""
    runs = ".onnx" if chip is None else ".espdl"
    if recipe.suffix != runs:
        what = "the float model" if recipe.is_float32 else f"an {recipe.suffix} model"
        return f"{what} does not run there: the board takes {runs} models"
    made_for = dict(recipe.options).get("target") if chip is not None else None
    return f"made for {made_for}, the board is an {chip}" if made_for != chip else ""


def gate(
    limits: BoardLimits,
    *,
    size_bytes: int,
    operators: Collection[str] = (),
    data_types: Collection[str] = (),
    snr_db: float | None = None,
    min_snr_db: float | None = None,
) -> tuple[str, ...]:
    """Why the artifact must not go to the board; empty if it may.

    ``operators`` and ``data_types`` are those in the artifact (ONNX operator types, numpy names of tensor types).
    """
    reasons: list[str] = []
    if limits.max_model_bytes is not None and size_bytes > limits.max_model_bytes:
        reasons.append(f"model of {format_bytes(size_bytes)}, the board takes {format_bytes(limits.max_model_bytes)}")
    for what, have, allowed in (
        ("operators", operators, limits.operators),
        ("data types", data_types, limits.data_types),
    ):
        missing = sorted(set(have) - set(allowed)) if allowed is not None else []
        if missing:
            reasons.append(f"{what} the board does not support: {', '.join(missing)}")
    if snr_db is not None and min_snr_db is not None and not snr_db >= min_snr_db:
        reasons.append(f"signal-to-noise ratio {snr_db:.1f} dB, at least {min_snr_db:g} dB is asked for")
    return tuple(reasons)
