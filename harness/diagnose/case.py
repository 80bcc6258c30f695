"""A trial of a run with all that a diagnosis needs of it: model, data, artifact and results, read again and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from harness.boards.folders import cache_folder
from harness.boards.host_lock import host_lock_folder
from harness.controller.preparation import Prepared, prepare
from harness.errors import BoardtuneError, ConfigError
from harness.ledger.files import sha256_of
from harness.ledger.run_directory import RunDirectory
from harness.ledger.state import TrialState
from harness.plan import Plan
from harness.quantize.contract import Artifact, Cause, QuantizeJob, QuantizeLimits
from harness.quantize.worker import QuantizeWorker
from harness.recipes.recipe import FLOAT32, Recipe

NO_FLOOR_DB = -1000.0
"""Everything that can be compared at all is accepted: a refused artifact is what is to be looked at."""


@dataclass(frozen=True)
class DiagnoseJob:
    """What ``diagnose`` is asked for."""

    run: Path
    trial: int
    board: str | None = None
    """Only this one's results; all boards of the run where ``None``."""
    model: Path | None = None
    """Where the float model, the calibration and the evaluation set are now, if not where the run found them."""
    calib: str | None = None
    eval: str | None = None


@dataclass(frozen=True, eq=False)
class Case:
    run: RunDirectory
    trial: TrialState
    original: TrialState
    """The trial itself, or the one it duplicates."""
    baseline: TrialState | None
    recipe: Recipe
    plan: Plan
    prepared: Prepared
    artifact: Path
    remade: bool
    """The artifact was refused in the run, and made again here to look at it."""
    boards: tuple[str, ...]


def open_case(job: DiagnoseJob, folder: Path) -> Case:
    """Raises :class:`ConfigError` where the run, the trial or the board is not there, the trial is the float model, or
    model or data are no longer what the run was about; and what reading them raises."""
    run = RunDirectory.open(job.run)
    trial = _trial(run, job)
    original = run.state.trials[trial.duplicate_of] if trial.duplicate_of is not None else trial
    recipe = Recipe.from_dict(trial.recipe, where=str(run.trial_folder(trial.number)))
    if recipe.is_float32:
        raise ConfigError(
            f"trial {trial.number} is the float model: there is nothing to compare it with",
            where=job.run,
            hint=f"name a quantized trial: {_known(run)}",
        )
    if recipe.suffix != ".onnx":
        raise ConfigError(
            f"trial {trial.number} made an {recipe.suffix} model, which is not compared layer by layer",
            where=job.run,
            hint="its notices in the report name the layers that the chip computes otherwise",
        )
    boards = _boards(run, job)
    plan = _plan(run, job)
    prepared = prepare(plan, folder)
    _check_same(run, prepared, job)
    artifact = run.model_path(original.number)
    remade = original.artifact is None
    if remade:
        artifact = _made_again(recipe, plan, prepared, original, folder)
    elif not artifact.is_file() or (original.artifact and sha256_of(artifact) != original.artifact.sha256):
        raise ConfigError(
            f"the model of trial {original.number} is missing or was changed",
            where=artifact,
            hint="go on with the run by --resume, which makes it again",
        )
    baseline = next((t for t in run.state.trials.values() if t.recipe_digest == FLOAT32.digest), None)
    return Case(run, trial, original, baseline, recipe, plan, prepared, artifact, remade, boards)


def _trial(run: RunDirectory, job: DiagnoseJob) -> TrialState:
    trial = run.state.trials.get(job.trial)
    if trial is None:
        raise ConfigError(f"the run has no trial {job.trial}", where=job.run, hint=f"it has {_known(run)}")
    return trial


def _known(run: RunDirectory) -> str:
    numbers = sorted(run.state.trials)
    if not numbers:
        return "no trials yet"
    listed = ", ".join(f"{n} ({run.state.trials[n].label})" for n in numbers[1:4])
    return f"trials {numbers[0]} to {numbers[-1]}" + (f": {listed}" if listed else "")


def _boards(run: RunDirectory, job: DiagnoseJob) -> tuple[str, ...]:
    names = tuple(run.state.boards)
    if job.board is None:
        return names
    if job.board not in names:
        known = ", ".join(names) or "none yet"
        raise ConfigError(f"the run has no board {job.board!r}", where=job.run, hint=f"boards of this run: {known}")
    return (job.board,)


def _plan(run: RunDirectory, job: DiagnoseJob) -> Plan:
    try:
        plan = Plan.from_json(run.state.header.get("plan", {}))
    except ValidationError as error:
        raise ConfigError(f"the plan recorded in the run cannot be read: {error}", where=job.run) from error
    moved = {
        name: value
        for name, value in (("model", job.model), ("calib", job.calib), ("eval", job.eval))
        if value is not None
    }
    # Model-ready samples, whatever was timed; what else was tried may be gone by now.
    return plan.model_copy(
        update={**moved, "scope": "inference", "postprocess": "none", "recipes": (), "candidates": ()}
    )


def _check_same(run: RunDirectory, prepared: Prepared, job: DiagnoseJob) -> None:
    key: Mapping[str, object] = run.state.header.get("key", {})
    data = key.get("data", {})
    recorded = {
        "--model": (key.get("model"), prepared.model.digest),
        "--calib": (data.get("calibration") if isinstance(data, Mapping) else None, prepared.digests["calibration"]),
        "--eval": (data.get("evaluation") if isinstance(data, Mapping) else None, prepared.digests["evaluation"]),
    }
    changed = [option for option, (was, now) in recorded.items() if was != now]
    if changed:
        raise ConfigError(
            f"what the run was about has changed since: {', '.join(changed)}",
            where=job.run,
            hint="give the files that the search had with these options; their content counts",
        )


def _made_again(recipe: Recipe, plan: Plan, prepared: Prepared, trial: TrialState, folder: Path) -> Path:
    """A refused artifact, made without a floor."""
    out = folder / "artifact.onnx"
    limits = QuantizeLimits(plan.quantize_timeout / 1e9, plan.quantize_memory, NO_FLOOR_DB)
    extra = {"host_lock": str(host_lock_folder()), "cache": str(cache_folder() / "calibration")}
    with QuantizeWorker() as worker:
        made = worker.quantize(QuantizeJob(prepared.model.path, prepared.calibration, recipe, out, limits, extra))
    if isinstance(made, Artifact) or (made.cause == Cause.NON_FINITE and out.is_file()):
        return out
    raise BoardtuneError(
        f"trial {trial.number} has no model to look at ({made.cause}): {made.message}",
        hint="the recipe cannot be made from this model; see detail.txt in the trial's folder",
    )
