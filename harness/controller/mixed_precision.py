"""The mixed-precision axis of a search: the model's groups ranked once, before a board is touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from harness.boards.folders import cache_folder
from harness.boards.host_lock import host_lock
from harness.controller.preparation import Prepared
from harness.plan import MixedPrecision
from harness.recipes.mixed import KINDS, Kind, MixedAxis, QuantizerGroup
from harness.recipes.recipe import Recipe
from harness.sensitivity.rank import NoRankingError, ranked_groups

_GRANULARITIES: tuple[Literal["per_channel", "per_tensor"], ...] = ("per_channel", "per_tensor")
_BASE = Recipe(scheme="static", activation="uint8", weight="int8")


def mixed_axis(asked: MixedPrecision, prepared: Prepared) -> tuple[MixedAxis | None, tuple[str, ...]]:
    """The axis, and notices; no axis where none is asked for or the groups of the model cannot be ranked."""
    if asked == "none":
        return None, ()
    kinds: tuple[Kind, ...] = KINDS if asked == "both" else (asked,)
    ranked: dict[str, tuple[QuantizerGroup, ...]] = {}
    try:
        for granularity in _GRANULARITIES:
            with host_lock().work():
                ranked[granularity] = ranked_groups(
                    prepared.model.path,
                    prepared.calibration,
                    _BASE.with_changes(granularity=granularity),
                    cache=cache_folder() / "calibration",
                    digests={"calibration": prepared.calibration_sha256},
                )
    except NoRankingError as error:
        return None, (f"mixed precision is left out, the groups cannot be ranked: {error.message}",)
    return MixedAxis(kinds, ranked), ()


def recorded_axis(asked: MixedPrecision, recorded: Mapping[str, Any] | None) -> MixedAxis | None:
    """The axis of a run that goes on, from its header; ``None`` where it has none."""
    return MixedAxis.from_json(recorded) if asked != "none" and recorded is not None else None
