"""What a shipped model says of itself, in the ``metadata_props`` of its file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx import ModelProto

from harness.ledger.plain import canonical_json
from harness.ledger.run_directory import RunDirectory
from harness.ledger.state import LedgerState, TrialState
from harness.recipes.recipe import Recipe
from harness.results import BoardResult

PREFIX = "boardtune."
"""Of the keys in ``metadata_props``."""


def run_id(state: LedgerState) -> str:
    """16 hexadecimal digits by which a run is known: of its header and the time it began."""
    return hashlib.sha256(canonical_json([state.header, state.started]).encode("ascii")).hexdigest()[:16]


def provenance_of(run: RunDirectory, trial: TrialState, board: str, result: BoardResult) -> dict[str, str]:
    """Of the trial's artifact as measured on ``board``: strings by name, without :data:`PREFIX`."""
    return {**_origin(run.state, trial), **_measured(run.state, board, result)}


def _origin(state: LedgerState, trial: TrialState) -> dict[str, str]:
    """What the artifact was made from, enough to make it again."""
    header, recipe = state.header, Recipe.from_dict(trial.recipe)
    key, data, plan = header.get("key", {}), header.get("data", {}), header.get("plan", {})
    values: dict[str, Any] = {
        "version": header.get("boardtune"),
        "run": run_id(state),
        "trial": trial.number,
        "label": trial.label,
        "recipe": recipe.to_json(),
        "recipe_sha256": trial.recipe_digest,
        "source_file": recipe.source_file,
        "source_sha256": recipe.source_sha256,
        "float_model": Path(str(header.get("model", {}).get("path") or "").replace("\\", "/")).name,
        "float_model_sha256": header.get("model", {}).get("digest"),
        "set_dim": canonical_json(plan.get("set_dim") or {}),
        "batch": plan.get("batch"),
        "calibration_sha256": data.get("calibration", {}).get("digest"),
        "evaluation_sha256": data.get("evaluation", {}).get("digest"),
        "preprocess_sha256": key.get("preprocess"),
        "data_sha256": canonical_json(key.get("data", {})),
        "backend": trial.backend,
        "versions": canonical_json(key.get("versions", {})),
        "snr_db": trial.snr_db,
        "quantized_operators": trial.quantized_operators,
    }
    return _text(values)


def _measured(state: LedgerState, board: str, result: BoardResult) -> dict[str, str]:
    facts = state.boards.get(board, {}).get("facts", {})
    latency = result.latency_ns
    values: dict[str, Any] = {
        "measured_artifact_sha256": result.artifact.sha256,
        "artifact_identity": result.artifact.identity,
        "board": board,
        "board_hardware_id": facts.get("hardware_id"),
        "emulated": "true" if result.emulated else "false",
        "runtime": f"{facts.get('runtime', '')} {facts.get('runtime_version', '')}".strip(),
        "verdict": result.verdict,
        "latency_p50_ns": latency and round(latency.p50),
        "latency_ci95_ns": latency and canonical_json([round(bound) for bound in latency.ci95]),
        "metrics": canonical_json(
            {n: {"value": m.value, "difference": m.difference} for n, m in result.metrics.items()}
        ),
    }
    return _text(values)


def _text(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value not in (None, "")}


def stamp(model: ModelProto, provenance: Mapping[str, str]) -> None:
    """Puts it into ``model``, in place of whatever boardtune said there before; other entries stay."""
    kept = [(entry.key, entry.value) for entry in model.metadata_props if not entry.key.startswith(PREFIX)]
    del model.metadata_props[:]
    for key, value in [*kept, *((PREFIX + name, value) for name, value in provenance.items())]:
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value


def read_stamp(model: ModelProto) -> dict[str, str]:
    """What :func:`stamp` wrote, without :data:`PREFIX`; empty for a model that boardtune did not export."""
    return {e.key.removeprefix(PREFIX): e.value for e in model.metadata_props if e.key.startswith(PREFIX)}


def stamped_json(provenance: Mapping[str, str], name: str) -> dict[str, Any]:
    """An entry that holds a JSON object; empty where it is missing or is none."""
    try:
        value = json.loads(provenance.get(name, ""))
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
