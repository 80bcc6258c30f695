"""What an artifact was made from and what came of it, as a run's ledger or an exported model tells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.errors import ConfigError
from harness.ledger.provenance import read_stamp, stamped_json
from harness.ledger.run_directory import RunDirectory
from harness.plan import Plan
from harness.quantize.contract import QuantizeLimits
from harness.quantize.model_file import parse_model
from harness.recipes.recipe import Recipe


@dataclass(frozen=True)
class Origin:
    what: str
    """For messages: ``trial 0003 of runs/x``, or the exported file."""
    recipe: Recipe
    sha256: str
    """Of the artifact, as it was sent to boards."""
    identity: str
    digests: Mapping[str, str]
    """``float model``, ``calibration data``, ``preprocessing`` -> digest of what it was; empty: there was none."""
    versions: Mapping[str, str]
    """Of boardtune and the packages that make artifacts."""
    model: Path | None = None
    calibration: str | None = None
    preprocess: Path | Mapping[str, Any] | None = None
    set_dim: Mapping[str, int] = field(default_factory=dict)
    batch: int = 1
    candidate: Path | None = None
    """The file that was made elsewhere, for an imported one."""
    kept: Path | None = None
    """Where the artifact is, if it still is."""
    limits: QuantizeLimits = field(default_factory=QuantizeLimits)
    backend: str = ""
    """Name and versions of the quantizer, where known."""


NO_FLOOR_DB = -200.0
"""What was accepted once is not judged again: its bytes are compared."""
VERSIONS = ("onnx", "onnxruntime", "numpy")
"""Packages that decide what bytes come out."""


def origin_of_trial(run: RunDirectory, number: int) -> Origin:
    """Raises ConfigError for a trial that is not there or made nothing, and for a run that does not say enough."""
    trials = run.state.trials
    if number not in trials:
        last = max(trials, default=None)
        hint = "it has none" if last is None else f"its trials go from 0 to {last}"
        raise ConfigError(f"the run has no trial {number}", where=run.path, hint=hint)
    trial, header = trials[number], run.state.header
    if trial.artifact is None:
        ended = f"it {trial.status}: {trial.message}" if trial.terminal else f"it is only {trial.status}"
        raise ConfigError(f"trial {number:04d} made no model: {ended}", where=run.path)
    try:
        plan = Plan.from_json(header["plan"])
    except (KeyError, ValidationError) as error:
        raise ConfigError(f"the run's header has no plan that can be read: {error}", where=run.path) from error
    recipe = Recipe.from_dict(trial.recipe, where=str(run.trial_folder(number)))
    files = {str(entry["identity"]): Path(entry["path"]) for entry in header.get("candidates", ())}
    key = header.get("key", {})
    return Origin(
        what=f"trial {number:04d} of {run.path}",
        recipe=recipe,
        sha256=trial.artifact.sha256,
        identity=trial.artifact.identity,
        digests=_digests(header.get("model", {}), header.get("data", {}).get("calibration", {}), key.get("preprocess")),
        versions=_versions(header.get("boardtune"), key.get("versions", {})),
        model=plan.model,
        calibration=plan.calib,
        preprocess=plan.preprocess,
        set_dim=plan.set_dim,
        batch=plan.batch,
        candidate=files.get(recipe.source),
        kept=run.model_path(number),
        backend=trial.backend,
        limits=QuantizeLimits(plan.quantize_timeout / 1e9, plan.quantize_memory, NO_FLOOR_DB),
    )


def origin_of_export(path: Path) -> Origin:
    """Of a model that ``boardtune export`` wrote; it names no files, so those must be given.

    Raises ModelError, and ConfigError where the file has no provenance or not all that is needed.
    """
    stamp = read_stamp(parse_model(path))
    if not stamp:
        hint = "give a run directory with --trial, or a model that `boardtune export` wrote"
        raise ConfigError("the model has no boardtune provenance", where=path, hint=hint)
    needed = ("recipe", "measured_artifact_sha256", "artifact_identity", "float_model_sha256", "calibration_sha256")
    missing = [name for name in needed if name not in stamp]
    if missing:
        message = f"its provenance lacks {', '.join(missing)}; it was exported by boardtune {stamp.get('version')}"
        raise ConfigError(message, where=path, hint="export it again from its run")
    try:
        recipe = json.loads(stamp["recipe"])
        batch = int(stamp.get("batch", "1"))
    except ValueError as error:
        raise ConfigError(f"its provenance cannot be read: {error}", where=path) from error
    return Origin(
        what=str(path),
        recipe=Recipe.from_dict(recipe, where=str(path)),
        sha256=stamp["measured_artifact_sha256"],
        identity=stamp["artifact_identity"],
        digests=_digests(
            {"digest": stamp["float_model_sha256"]},
            {"digest": stamp["calibration_sha256"]},
            stamp.get("preprocess_sha256"),
        ),
        versions=_versions(stamp.get("version"), stamped_json(stamp, "versions")),
        set_dim=stamped_json(stamp, "set_dim"),
        batch=batch,
        limits=QuantizeLimits(min_snr_db=NO_FLOOR_DB),
    )


def _digests(model: Mapping[str, Any], calibration: Mapping[str, Any], preprocess: str | None) -> dict[str, str]:
    return {
        "float model": str(model.get("digest", "")),
        "calibration data": str(calibration.get("digest", "")),
        "preprocessing": preprocess or "",
    }


def _versions(boardtune: str | None, packages: Mapping[str, Any]) -> dict[str, str]:
    known = {"boardtune": boardtune, **{name: packages.get(name) for name in VERSIONS}}
    return {name: str(version) for name, version in known.items() if version}
