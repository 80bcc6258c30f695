"""The plot of how a search went on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from harness.report.data import Entry
from harness.report.history import fastest_so_far


def entry(trial: int, p50_ns: float | None, *broken: str) -> Entry:
    latency = None if p50_ns is None else SimpleNamespace(p50=p50_ns)
    result = SimpleNamespace(latency_ns=latency, constraints=dict.fromkeys(broken, "broken"))
    return Entry(trial, "a label", {"scheme": "static"}, cast(Any, result), None)


def test_only_what_is_faster_and_keeps_the_constraints_counts() -> None:
    entries = [entry(3, 2e6), entry(0, 5e6), entry(1, 7e6), entry(4, 1e6, "latency"), entry(2, 5e6), entry(5, None)]
    assert fastest_so_far(entries) == ([0, 3], [5.0, 2.0])
    assert fastest_so_far([]) == ([], [])
