"""Waiting on the host's clock, for boards with real time."""

from __future__ import annotations

import time


def wait_until(at_ns: int) -> None:
    """Sleeps, and spins for the end: a sleep ends some 0.1 ms late."""
    while (left := at_ns - time.perf_counter_ns()) > 0:
        if left > 300_000:
            time.sleep((left - 200_000) / 1e9)
