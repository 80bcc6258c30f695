"""Counts the requests of a board's life and says when a planted fault strikes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .spec import ChipFault, ChipFaultKind


class Faults:
    """Over all boots of one board."""

    def __init__(self, faults: Sequence[ChipFault]) -> None:
        self._faults = faults
        self._seen: Counter[int] = Counter()
        self._struck: Counter[int] = Counter()

    def strike(self, request: str) -> ChipFaultKind | None:
        """The fault that strikes at this request, if one does."""
        found: ChipFaultKind | None = None
        for index, fault in enumerate(self._faults):
            if fault.during not in (request, "*"):
                continue
            self._seen[index] += 1
            spent = fault.times is not None and self._struck[index] >= fault.times
            if found is None and not spent and self._seen[index] > fault.after:
                self._struck[index] += 1
                found = fault.kind
        return found
