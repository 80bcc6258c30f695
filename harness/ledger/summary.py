"""``summary.json``: the run in one page, made from the ledger's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.ledger.plain import plain
from harness.ledger.state import LedgerState


def build_summary(
    state: LedgerState, *, verdicts: Mapping[str, str] | None = None, notices: Sequence[str] = ()
) -> dict[str, Any]:
    """``verdicts``: board -> sentence (``harness.report.verdict``); ``notices`` join the ledger's own.

    ``status`` is ``finished``, ``stopped`` (ended early) or ``unfinished`` (running, or killed).
    """
    header = state.header
    key = header.get("key", {})
    summary = {
        "boardtune": header.get("boardtune"),
        "status": "finished" if state.finished else "stopped" if state.stop_reason else "unfinished",
        "started": state.started,
        "finished": state.finished,
        "resumed": state.resumed,
        "stop_reason": state.stop_reason,
        "model": header.get("model", {}),
        "data": header.get("data", {}),
        "preprocess": key.get("preprocess"),
        "metric": key.get("metric", []),
        "metric_units": header.get("metric_units", {}),
        "plan": header.get("plan", {}),
        "seed": key.get("seed"),
        "boards": {name: entry["facts"] for name, entry in sorted(state.boards.items())},
        "runtime_options": {name: entry["options"] for name, entry in sorted(state.boards.items())},
        "versions": key.get("versions", {}),
        "trials": state.counts(),
        "device_seconds": dict(sorted(state.device_seconds.items())),
        "notices": list(dict.fromkeys([*state.notices, *notices])),
        "verdict": dict(verdicts or {}),
    }
    return plain(summary)  # type: ignore[no-any-return]
