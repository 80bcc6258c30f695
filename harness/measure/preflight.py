"""Whether the board is in the state its file asks for, by what was read back from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from device_agents.contract import BoardState


class WantedState(Protocol):
    """The ``state`` section of a board file; ``None`` where nothing is asked."""

    @property
    def power_mode(self) -> str | None: ...
    @property
    def governor(self) -> str | None: ...
    @property
    def max_temperature_c(self) -> float | None: ...


@dataclass(frozen=True)
class Preflight:
    mismatches: tuple[str, ...]
    """What was asked for and is otherwise: a measurement taken so is ``invalid``."""
    notices: tuple[str, ...]
    """What was asked for and the board does not show."""
    too_hot: bool = False
    """One of the mismatches is the temperature, which waiting may mend."""


def preflight(wanted: WantedState, state: BoardState) -> Preflight:
    """Compares; texts are compared without regard to case, as boards' tools differ in it."""
    mismatches: list[str] = []
    notices: list[str] = []
    pairs = (("power mode", wanted.power_mode, state.power_mode), ("governor", wanted.governor, state.governor))
    for name, asked, read in pairs:
        if asked is None:
            continue
        if read is None:
            notices.append(f"{name} {asked!r} is asked for, but the board does not show its own")
        elif read.strip().casefold() != asked.strip().casefold():
            mismatches.append(f"preflight: {name} is {read!r}, {asked!r} is asked for")
    limit = wanted.max_temperature_c
    too_hot = limit is not None and state.temperature_c is not None and state.temperature_c > limit
    if limit is not None:
        if state.temperature_c is None:
            notices.append(f"at most {limit:g} °C is asked for, but the board shows no temperature")
        elif too_hot:
            mismatches.append(
                f"preflight: the board is at {state.temperature_c:.1f} °C, at most {limit:g} °C is asked for"
            )
    if state.throttled:
        # Not asked for in the file; the measurement judges it by what the board reports around its blocks.
        notices.append("the board reported throttling before anything ran")
    return Preflight(tuple(mismatches), tuple(notices), too_hot)
