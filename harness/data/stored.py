"""What a reader found: stored arrays, before preprocessing and checks."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.errors import DataError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Stored:
    """Arrays as they are stored: [samples, ...] by the model's input name."""

    arrays: Mapping[str, Array]
    labels: Array | None
    notices: tuple[str, ...] = field(default=())


def memory_limit_bytes() -> int:
    """Half of this machine's memory; a data set that needs more is refused rather than swapped to death."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        total = 8 << 30
    return max(1 << 30, total // 2)


def check_fits(shape: tuple[int, ...], dtype: np.dtype[Any], what: str, origin: str) -> None:
    """Raises :class:`DataError` where an array of ``shape`` would not fit in :func:`memory_limit_bytes`."""
    need = math.prod(shape) * dtype.itemsize
    limit = memory_limit_bytes()
    if need > limit:
        raise DataError(
            f"{what} needs {need / 2**30:.1f} GiB of memory ({list(shape)} {dtype.name}); at most "
            f"{limit / 2**30:.1f} GiB may be used",
            where=origin,
            hint="Give fewer samples; a few hundred calibrate, a few thousand evaluate.",
        )
