"""Durations and sizes as people write them (``8ms``, ``10m``, ``200kB``), parsed into integers."""

from __future__ import annotations

import math
import re

_DURATION_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_LONG_NS = {"m": 60_000_000_000, "min": 60_000_000_000, "h": 3_600_000_000_000}
_SIZE = {
    "": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1024, "mib": 1024**2, "gib": 1024**3,
}  # fmt: skip
MINUS = "\N{MINUS SIGN}"
IDENTICAL_DB = 200.0
"""Signal-to-noise ratio from which two outputs are the same as far as float32 goes."""
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Zµ]*)\s*")


def parse_duration_ns(text: str) -> int:
    """Nanoseconds of ``8ms``, ``500us``, ``1.5s``, ``10m``, ``2h``.

    Raises ``ValueError`` naming the text and the accepted units; a bare number is refused, as its unit is a guess.
    """
    match = _NUMBER.fullmatch(text)
    units = {**_DURATION_NS, **_LONG_NS}
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is not a duration: a number and one of {', '.join(units)} (such as 8ms)")
    return _whole(float(match[1]) * units[match[2]], text)


def parse_size_bytes(text: str | int) -> int:
    """Bytes of ``200kB`` (1000), ``2MiB`` (1024²), ``4096``; case is ignored. Raises ``ValueError``."""
    match = _NUMBER.fullmatch(str(text))
    if match is None or match[2].lower() not in _SIZE:
        raise ValueError(f"{text!r} is not a size: a number and one of B, kB, MB, GB, KiB, MiB, GiB (such as 500kB)")
    return _whole(float(match[1]) * _SIZE[match[2].lower()], str(text))


def _whole(value: float, text: str) -> int:
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is too large")
    return round(value)


def format_ns(value: float) -> str:
    """Human form with three significant digits: ``1.23 ms``."""
    return _scaled(value, (("s", 1e9), ("ms", 1e6), ("µs", 1e3)), "ns")


def format_bytes(value: float) -> str:
    """Human form in decimal units: ``77.1 kB``."""
    return _scaled(value, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)), "B")


def _scaled(value: float, units: tuple[tuple[str, float], ...], smallest: str) -> str:
    for unit, size in units:
        # 999.9 of the next smaller unit reads 1000, which is 1 of this one.
        if abs(value) >= 0.9995 * size:
            scaled = value / size
            return f"{scaled:.3g} {unit}" if abs(scaled) < 999.5 else f"{scaled:.0f} {unit}"
    return f"{value:.0f} {smallest}"


def signed(value: float, digits: int) -> str:
    """With a real minus sign; a difference that rounds to zero has none."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return f"±{text}"
    return (MINUS if value < 0 else "+") + text


def signed_digits(value: float) -> str:
    """Three significant digits, with a real minus sign."""
    if value == 0:
        return "±0"
    return (MINUS if value < 0 else "+") + f"{abs(value):.3g}"


def two_digits(value: float) -> str:
    """Two significant digits, whole numbers in full: ``0.81``, ``7.2``, ``110``."""
    return f"{value:.2g}" if abs(value) < 99.5 else f"{value:.0f}"


def format_metric(value: float, unit: str) -> str:
    """A metric's value in its unit (``fraction``, ``dB`` or empty): ``89.7 %``, ``29.4 dB``, ``0.0312``.

    From :data:`IDENTICAL_DB` on it is ``identical``.
    """
    if unit == "dB" and value >= IDENTICAL_DB:
        return "identical"
    if unit == "fraction":
        return f"{100 * value:.1f} %"
    return f"{value:.1f} dB" if unit == "dB" else f"{value:.4g}"


def format_difference(value: float, unit: str) -> str:
    """A difference of two values of a metric: ``−0.2 pp``, ``+1.3 dB``."""
    if unit == "fraction":
        return f"{signed(100 * value, 1)} pp"
    return f"{signed(value, 1)} dB" if unit == "dB" else signed_digits(value)
