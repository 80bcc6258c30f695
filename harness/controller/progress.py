"""What a search tells whoever watches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from harness.controller.recorder import Snapshot
from harness.results import Candidate


@dataclass(frozen=True)
class Progress:
    phase: str
    """``preparing``, ``connecting``, ``searching``, ``finals``, ``writing``."""
    trials: int
    """Asked for; 0 while that is not known yet."""
    snapshot: Snapshot | None = None
    candidates: Sequence[Candidate] = ()
    best: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Board -> the picks as they would be now."""


class Watcher(Protocol):
    def notice(self, message: str) -> None:
        """Something the user should read."""

    def update(self, progress: Progress) -> None:
        """Called about twice a second, from a thread of its own."""


class SilentWatcher:
    """For programs."""

    def notice(self, message: str) -> None:
        """Not shown; it is in the ledger."""

    def update(self, progress: Progress) -> None:
        """Not shown."""
