"""Reads a run directory for the report; a run that still goes on is as good as a finished one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from harness.errors import BoardtuneError
from harness.ledger.run_directory import SAMPLES, RunDirectory
from harness.ledger.samples import read_samples
from harness.report.data import ReportData, SampleKey, build_report_data

log = logging.getLogger(__name__)


def load_report_data(run: RunDirectory, *, samples: bool = True) -> ReportData:
    """A file that is missing or damaged leaves a gap and a warning in the log, never no report; only the ledger is
    needed. ``samples=False`` leaves out what only the figures need."""
    candidates = _read(run.read_candidates, "candidates.json")
    picks: Mapping[str, Any] = (candidates or {}).get("picks") or run.state.picks
    wanted = {trial for trials in picks.values() for trial in trials} | {
        number for number, trial in run.state.trials.items() if trial.recipe.get("scheme") == "float32"
    }
    measurements: dict[int, dict[str, Any]] = {}
    for number in run.state.trials if samples else ():
        found = _read(lambda number=number: run.read_measurement(number), f"measurement of trial {number:04d}")
        if found is not None:
            measurements[number] = found
    latencies: dict[SampleKey, npt.NDArray[np.int64]] = {}
    for number in sorted(wanted) if samples else ():
        latencies.update(_samples(run.trial_folder(number) / SAMPLES, number))
    return build_report_data(
        run.state,
        candidates=candidates,
        summary=_read(run.read_summary, "summary.json"),
        measurements=measurements,
        samples=latencies,
    )


def _read(read: Any, what: str) -> dict[str, Any] | None:
    try:
        content = read()
    except BoardtuneError as error:
        log.warning("the report goes without %s: %s", what, error)
        return None
    return content if isinstance(content, dict) else None


def _samples(path: Path, trial: int) -> dict[SampleKey, npt.NDArray[np.int64]]:
    """The candidate's samples by board, of its final measurement where there is one."""
    if not path.exists():
        return {}
    try:
        table = read_samples(path)
    except BoardtuneError as error:
        log.warning("the report goes without the samples of trial %04d: %s", trial, error)
        return {}
    table = table.filter(pc.equal(table["target"], "candidate"))
    found: dict[SampleKey, npt.NDArray[np.int64]] = {}
    for board in sorted(set(table["board"].to_pylist())):
        here = table.filter(pc.equal(table["board"], board))
        final = here.filter(pc.equal(here["phase"], "final"))
        found[(trial, board)] = (final if final.num_rows else here)["latency_ns"].to_numpy()
    return found
