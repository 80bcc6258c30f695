"""The timed loop. Everything here is about not adding to what is timed."""

from __future__ import annotations

import gc
from array import array
from typing import Any, Callable, Sequence

_CHUNK = 1 << 16


def timed_block(
    run: Callable[[Any], Any],
    items: Sequence[Any],
    clock_ns: Callable[[], int],
    min_count: int,
    min_ns: int,
    max_ns: int,
) -> "array[int]":
    """Times ``run(item)`` over ``items`` in turn; int64 nanoseconds, one per call, none dropped.

    Ends when at least ``min_count`` calls *and* ``min_ns`` nanoseconds are done, or at ``max_ns``; at least one call.
    The garbage collector is off meanwhile, and results are kept until after the clock is read, so that freeing them
    falls outside.
    """
    samples = array("q", bytes(8 * _CHUNK))
    room, count, turn, turns = _CHUNK, 0, 0, len(items)
    collecting = gc.isenabled()
    gc.disable()
    try:
        started = clock_ns()
        while True:
            item = items[turn]
            before = clock_ns()
            kept = run(item)
            after = clock_ns()
            del kept
            samples[count] = after - before
            count += 1
            turn += 1
            if turn == turns:
                turn = 0
            passed = after - started
            if (count >= min_count and passed >= min_ns) or passed >= max_ns:
                break
            if count == room:
                samples.extend(array("q", bytes(8 * _CHUNK)))
                room += _CHUNK
    finally:
        if collecting:
            gc.enable()
    return samples[:count]
