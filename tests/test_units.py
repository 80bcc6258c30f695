"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.units import format_bytes, format_ns, parse_duration_ns, parse_size_bytes, two_digits


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1ns", 1), ("500us", 500_000), ("500µs", 500_000), ("8ms", 8_000_000), ("1.5s", 1_500_000_000),
        ("10m", 600 * 10**9), ("10min", 600 * 10**9), ("2h", 7200 * 10**9), (" 8 ms ", 8_000_000),
        (".5s", 500_000_000), ("1e-3s", 1_000_000), ("0.4ns", 0),
    ],
)  # fmt: skip
def test_durations(text: str, nanoseconds: int) -> None:
    assert parse_duration_ns(text) == nanoseconds


@pytest.mark.parametrize("text", ["8", "", "ms", "8 parsecs", "-8ms", "8ms 3", "1.2.3s", "infs", "nans", "8MS", "8Ms"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: a number and one of ns, us"):
        parse_duration_ns(text)


@pytest.mark.parametrize("parse", [parse_duration_ns, parse_size_bytes])
def test_too_large_for_a_number(parse: object) -> None:
    unit = "s" if parse is parse_duration_ns else "kB"
    with pytest.raises(ValueError, match="too large"):
        parse(f"1e400{unit}")  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096), (4096, 4096), ("500kB", 500_000), ("500KB", 500_000), ("2MiB", 2 << 20),
        ("1.5 GB", 1_500_000_000), ("1gib", 1 << 30), ("7 b", 7),
    ],
)  # fmt: skip
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "kB", "5 k", "5 TB", "-5kB", "5kB/s", "0x10"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ns"), (999, "999 ns"), (1234, "1.23 µs"), (1.5e6, "1.5 ms"), (2e9, "2 s"), (1.5e12, "1500 s"),
        (-2e6, "-2 ms"), (999_999, "1 ms"), (999_400, "999 µs"),
    ],
)  # fmt: skip
def test_durations_for_people(value: float, text: str) -> None:
    assert format_ns(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (77_100, "77.1 kB"),
        (2e6, "2 MB"),
        (3.5e9, "3.5 GB"),
        (999_999, "1 MB"),
        (5e12, "5000 GB"),
    ],
)
def test_sizes_for_people(value: float, text: str) -> None:
    assert format_bytes(value) == text


@given(st.integers(1, 10**15))
def test_what_is_shown_means_what_was_meant(value: int) -> None:
    shown = format_ns(value)
    assert "e+" not in shown
    assert parse_duration_ns(shown) == pytest.approx(value, rel=0.006)
    assert "e+" not in format_bytes(value % 10**12)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_duration_ns, parse_size_bytes):
        try:
            assert parse(text) >= 0
        except ValueError:
            pass


@pytest.mark.parametrize(
    ("value", "text"), [(0.812, "0.81"), (7.249, "7.2"), (36.4, "36"), (99.6, "100"), (110.0, "110")]
)
def test_two_digits(value: float, text: str) -> None:
    assert two_digits(value) == text
