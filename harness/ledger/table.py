"""``trials.csv``: one row per trial and board, for spreadsheets and pandas."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.ledger.state import BoardProgress, LedgerState, TrialState

COLUMNS = (
    "trial",
    "board",
    "emulated",
    "label",
    "status",
    "cause",
    "message",
    "duplicate_of",
    "verdict",
    "phase",
    "latency_p50_ns",
    "latency_ci95_low_ns",
    "latency_ci95_high_ns",
    "latency_p90_ns",
    "samples",
    "load_ns",
    "first_ns",
    "peak_memory_bytes",
    "size_bytes",
    "snr_db",
    "device_seconds",
    "artifact_sha256",
    "artifact_identity",
    "recipe_digest",
)  # fmt: skip
"""Fixed columns; a ``NAME``, ``NAME_difference`` and ``NAME_outcome`` column per metric follow."""


def trials_csv(state: LedgerState) -> str:
    """Text of the file. A trial that reached no board has one row, without a board."""
    rows: list[dict[str, Any]] = []
    for _, trial in sorted(state.trials.items()):
        shared = _trial_row(trial)
        rows.extend(shared | {"board": name} | _board_row(board) for name, board in sorted(trial.boards.items()))
        if not trial.boards:
            rows.append(shared)
    metrics = [column for row in rows for column in row if column not in COLUMNS]
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *dict.fromkeys(metrics)])
    whole = [c for c in COLUMNS if c.endswith("_bytes") or c in ("duplicate_of", "samples", "load_ns", "first_ns")]
    return frame.astype(dict.fromkeys(whole, "Int64")).to_csv(index=False, lineterminator="\n")


def _trial_row(trial: TrialState) -> dict[str, Any]:
    artifact = trial.artifact
    return {
        "trial": trial.number,
        "label": trial.label,
        "status": trial.status,
        "cause": trial.cause or None,
        "message": trial.message or None,
        "duplicate_of": trial.duplicate_of,
        "snr_db": trial.snr_db,
        "size_bytes": artifact and artifact.size_bytes,
        "artifact_sha256": artifact and artifact.sha256,
        "artifact_identity": artifact and artifact.identity,
        "recipe_digest": trial.recipe_digest or None,
    }


def _board_row(board: BoardProgress) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if board.status in ("failed", "pruned"):
        row = {"status": board.status, "cause": board.cause or None, "message": board.message or None}
    result = board.best
    if result is None:
        return row
    latency = result.latency_ns
    row |= {
        "emulated": result.emulated,
        "verdict": result.verdict,
        "phase": result.phase,
        "load_ns": result.load_ns,
        "first_ns": result.first_ns,
        "peak_memory_bytes": result.peak_memory_bytes,
        "device_seconds": result.device_seconds,
    }
    if latency is not None:
        row |= {
            "latency_p50_ns": latency.p50,
            "latency_ci95_low_ns": latency.ci95[0],
            "latency_ci95_high_ns": latency.ci95[1],
            "latency_p90_ns": latency.p90,
            "samples": latency.n,
        }
    for name, metric in sorted(result.metrics.items()):
        row |= {name: metric.value, f"{name}_difference": metric.difference, f"{name}_outcome": metric.outcome}
    return row
