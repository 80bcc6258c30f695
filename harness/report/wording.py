"""Numbers as people read them: ratios, differences, metrics with their units."""

from __future__ import annotations

from collections.abc import Mapping

from harness.results import MetricResult
from harness.units import format_bytes, format_difference, format_metric, format_ns, signed, signed_digits

ACCURACY_FROM: Mapping[str, str] = {
    "device": "every sample was computed on the board",
    "host-verified": "computed by the interpreter on this host, which the board equals to the bit on some samples",
}
NONE = "\N{EM DASH}"

_NAMES = {"top1": "top-1", "top5": "top-5", "snr": "SNR", "cosine": "cosine", "mse": "MSE", "mae": "MAE"}


def ratio(value: float) -> str:
    """``3.1×``, ``1.04×``, ``12×``."""
    digits = 3 if 0.995 < value < 1.005 else 2 if value < 2 else 1 if value < 10 else 0
    return f"{value:.{digits}f}\N{MULTIPLICATION SIGN}"


def latency(value: float | None) -> str:
    return NONE if value is None else format_ns(value)


def latency_interval(low: float, high: float) -> str:
    """``1.22–1.26 ms``, the unit once where both share it, with enough digits to tell the ends apart."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0)):
        if low >= size or unit == "ns":
            a, b = low / size, high / size
            digits = 0
            while digits < 4 and (round(b - a, digits) == 0 or (a < 10 and digits < 2) or (a < 100 and digits < 1)):
                digits += 1
            return f"{a:.{digits}f}\N{EN DASH}{b:.{digits}f} {unit}"
    raise AssertionError("unreachable")  # pragma: no cover


def size(value: float | None) -> str:
    return NONE if value is None else format_bytes(value)


def metric_name(name: str) -> str:
    """``top1@logits`` -> ``top-1 (logits)``."""
    base, _, output = name.partition("@")
    shown = _NAMES.get(base, base)
    return f"{shown} ({output})" if output else shown


def metric_unit(name: str, units: dict[str, str]) -> str:
    """``fraction``, ``dB`` or empty; guessed from the metric's own name where the run does not say."""
    if name in units:
        return units[name]
    base = name.partition("@")[0]
    return "fraction" if base in ("top1", "top5") else "dB" if base == "snr" else ""


def metric_difference(metric: MetricResult, unit: str) -> str | None:
    """``−0.2 pp``; ``None`` where there is no paired difference."""
    if metric.difference is None:
        return None
    return format_difference(metric.difference, unit)


def metric_interval(metric: MetricResult, unit: str) -> str | None:
    """Of the paired difference: ``−0.6 … +0.2 pp``; of the value itself where there is no difference."""
    if metric.ci95 is None:
        return None
    low, high = metric.ci95
    if metric.difference is None:
        if low == high:
            return None
        ends = [format_metric(bound, unit).removesuffix(" %").removesuffix(" dB") for bound in (low, high)]
        return " … ".join(ends) + {"fraction": " %", "dB": " dB"}.get(unit, "")
    if unit == "fraction":
        return f"{signed(100 * low, 2)} … {signed(100 * high, 2)} pp"
    if unit == "dB":
        return f"{signed(low, 1)} … {signed(high, 1)} dB"
    return f"{signed_digits(low)} … {signed_digits(high)}"


def trial_name(number: int) -> str:
    return f"{number:04d}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def count(number: int, noun: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
