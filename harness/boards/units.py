"""Sizes and durations as people write them in a board file."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from harness.boards.base import invalid

_SIZE_UNITS = {
    "B": 1,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_TIME_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_SIZE_HINT = 'write a number of bytes or a size such as "8MB" (8,000,000) or "200MiB" (200 * 1,048,576)'
_TIME_HINT = 'write a number of seconds or a duration such as "500ms", "30s" or "2m"'


def parse_size(value: Any) -> Any:
    """Bytes from ``"8MB"`` or a whole number; raises a pydantic error that names the units."""
    if isinstance(value, bool) or not isinstance(value, str):
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise invalid("size", f"a size cannot be {_kind(value)}", hint=_SIZE_HINT)
    number, unit = _split(value, "size", _SIZE_HINT)
    factor = 1 if not unit else _SIZE_UNITS.get(unit)
    if factor is None:
        meant = [known for known in _SIZE_UNITS if known.lower() == unit.lower()]
        hint = f'did you mean "{number:g}{meant[-1]}"?' if meant else _SIZE_HINT
        raise invalid("size", f"unknown unit {unit!r} in size {value!r}", hint=hint)
    return round(number * factor)


def parse_duration(value: Any) -> Any:
    """Seconds from ``"30s"`` or a number; raises a pydantic error that names the units."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        raise invalid("duration", f"a duration cannot be {_kind(value)}", hint=_TIME_HINT)
    number, unit = _split(value, "duration", _TIME_HINT)
    factor = 1.0 if not unit else _TIME_UNITS.get(unit)
    if factor is None:
        raise invalid("duration", f"unknown unit {unit!r} in duration {value!r}", hint=_TIME_HINT)
    return number * factor


def format_size(size_bytes: int) -> str:
    """Short text for people, in powers of 1024."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _split(value: str, what: str, hint: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(value) if len(value) <= 40 else None
    if match is None:
        raise invalid(what, f"not a {what}: {value[:40]!r}", hint=hint)
    number = float(match.group(1))
    if not math.isfinite(number):
        raise invalid(what, f"not a {what}: {value[:40]!r}", hint=hint)
    return number, match.group(2)


def _kind(value: Any) -> str:
    names = {bool: "a yes/no value", float: "a fraction", list: "a list", dict: "a mapping", type(None): "empty"}
    return names.get(type(value), f"a {type(value).__name__}")


SizeBytes = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(ge=1, le=2**60),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?$"},
            ],
            "examples": ["8MB", "200MiB"],
        }
    ),
]
"""Bytes."""

Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(ge=0, le=86_400 * 7),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(ms|s|m|min|h)?$"},
            ],
            "examples": ["500ms", "30s", "2m"],
        }
    ),
]
"""Seconds."""
