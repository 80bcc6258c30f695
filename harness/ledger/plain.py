"""One canonical JSON text for everything the run directory holds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import PurePath
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """JSON types only: numpy scalars and arrays, tuples, paths and dataclasses are converted, and a number that is
    not finite becomes ``None`` (a missing number, which is unrankable). Raises ``TypeError`` for anything else."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return [plain(v) for v in items]
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    raise TypeError(f"{type(value).__name__} value {value!r:.80} has no JSON form")


def canonical_json(value: Any) -> str:
    """One line: keys sorted, no spaces, ASCII only, no NaN."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def pretty_json(value: Any) -> str:
    """For files people read: keys in the order given, two spaces, a newline at the end."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
