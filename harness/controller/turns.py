"""Serves trials in the order of their numbers, whatever order they arrive in.

A board's thermal state, caches and (when emulated) virtual time depend on what it did before; so for a seeded run
to be reproducible, each board must see the same trials in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Turns:
    """Numbers pass one at a time, ascending; a number that will not come must be skipped."""

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._skipped: set[int] = set()
        self._condition = threading.Condition()

    def skip(self, numbers: Iterable[int]) -> None:
        """These will not come (again); passed and skipped numbers are ignored."""
        with self._condition:
            self._skipped.update(n for n in numbers if n >= self._next)
            self._advance()

    @contextmanager
    def turn(self, number: int, timeout_s: float = 3600.0) -> Iterator[None]:
        """Waits for the number's turn. Raises ``TimeoutError`` naming what it waited for."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._next >= number, timeout_s):
                raise TimeoutError(f"trial {number} waited {timeout_s:.0f} s for trial {self._next}")
        try:
            yield
        finally:
            self.skip([number])

    def _advance(self) -> None:
        while self._next in self._skipped:
            self._skipped.discard(self._next)
            self._next += 1
        self._condition.notify_all()
