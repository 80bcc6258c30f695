"""From a run directory to its report, and to the summary that carries the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.ledger.run_directory import RunDirectory
from harness.report.load import load_report_data
from harness.report.page import render_html


def write_report(run: RunDirectory) -> Path:
    """Writes ``report.html`` from what the run directory holds now; works on unfinished runs. Returns its path."""
    return run.write_report(render_html(load_report_data(run)))


def write_summary(run: RunDirectory, notices: Sequence[str] = ()) -> Mapping[str, Any]:
    """Writes ``summary.json`` with the verdict sentence of each board. ``candidates.json`` comes first."""
    summary = dict(load_report_data(run, samples=False).summary)
    summary["notices"] = list(dict.fromkeys([*summary["notices"], *notices]))
    run.write_summary(summary)
    return summary
