"""What a measurement asks its driver to do next."""

from __future__ import annotations

from dataclasses import dataclass

from device_agents.contract import BlockRequest

CANARY = "canary"
"""Target name of the pinned reference model."""
CANDIDATE = "candidate"
"""Target name of the measured model where there is only one."""


@dataclass(frozen=True)
class Warmup:
    """One untimed window: its samples decide whether the session is steady and enter no result."""

    target: str
    request: BlockRequest
    fresh: bool
    """Load a new session (process) of the target before this window; ``False``: use the one there is, load if none."""


@dataclass(frozen=True)
class TimedBlock:
    """One block of timed inferences in the target's current session."""

    target: str
    request: BlockRequest
    fresh: bool
    """The first block of its session (information: the load was asked for by the warm-up window before)."""


@dataclass(frozen=True)
class Cool:
    """Leave the board idle until it is at or below ``below_c`` (where it shows a temperature), at most ``seconds``."""

    seconds: float
    below_c: float | None
    reason: str


Step = Warmup | TimedBlock | Cool
