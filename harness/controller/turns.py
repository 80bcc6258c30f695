"""Serves trials in the order of their numbers, whatever order they arrive in.

A board's thermal state, caches and (when emulated) virtual time depend on what it did before; so for a seeded run
to be reproducible, each board must see the same trials in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

WAIT_S = 24 * 3600.0
"""Without any progress. Every step has its own, shorter deadline; this one only keeps a defect from hanging."""


class Turns:
    """Numbers pass one at a time, ascending; a number that will not come must be skipped."""

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._skipped: set[int] = set()
        self._serving: int | None = None
        self._released = False
        self._condition = threading.Condition()

    def skip(self, numbers: Iterable[int]) -> None:
        """These will not come (again); passed and skipped numbers are ignored."""
        with self._condition:
            self._skipped.update(n for n in numbers if n >= self._next)
            self._advance()

    def release(self) -> None:
        """From now on nobody waits for another number's turn, as some may never come; still one at a time."""
        with self._condition:
            self._released = True
            self._condition.notify_all()

    @contextmanager
    def turn(self, number: int, timeout_s: float = WAIT_S) -> Iterator[None]:
        """Waits for the number's turn and to be alone: where a number was skipped while it was served, the next still
        waits for its end. Raises ``TimeoutError`` naming what it waited for when nothing moves for ``timeout_s``."""
        with self._alone(number, number, timeout_s):
            try:
                yield
            finally:
                self.skip([number])

    @contextmanager
    def out_of_turn(self, number: int, timeout_s: float = WAIT_S) -> Iterator[None]:
        """For what has no place in the order (finals): only waits to be alone."""
        with self._alone(number, 0, timeout_s):
            yield

    @contextmanager
    def _alone(self, number: int, not_before: int, timeout_s: float) -> Iterator[None]:
        with self._condition:
            while (self._next < not_before and not self._released) or self._serving is not None:
                waited_for = self._next if self._serving is None else self._serving
                if not self._condition.wait(timeout_s):
                    raise TimeoutError(f"trial {number} waited {timeout_s:.0f} s for trial {waited_for}")
            self._serving = number
        try:
            yield
        finally:
            with self._condition:
                self._serving = None
                self._condition.notify_all()

    def _advance(self) -> None:
        while self._next in self._skipped:
            self._skipped.discard(self._next)
            self._next += 1
        self._condition.notify_all()
