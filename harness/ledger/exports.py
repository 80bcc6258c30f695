"""A pick as files to ship: the model with its provenance inside, its recipe, and checksums."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from harness.errors import BoardtuneError, ConfigError, NoFeasibleCandidate
from harness.ledger.files import build_atomic, sha256_of, write_atomic, write_json
from harness.ledger.provenance import provenance_of, stamp
from harness.ledger.run_directory import CANDIDATES, RunDirectory
from harness.ledger.state import TrialState
from harness.quantize.identity import identity
from harness.quantize.outputs import deployed_of
from harness.recipes.recipe import Recipe
from harness.results import BoardResult, to_json


@dataclass(frozen=True)
class Export:
    trial: int
    board: str
    emulated: bool
    """The numbers stamped into the model come from an emulated board."""
    model: Path
    recipe: Path
    checksums: Path


def export_pick(run: RunDirectory, out: Path, *, pick: int = 1, board: str | None = None) -> Export:
    """Writes pick number ``pick`` (from 1) of ``board`` to ``out``: ``NAME_quant_PRECISION_HASH8.onnx`` (or with the
    suffix of the recipe's format), and beside it ``.recipe.json`` and ``.sha256`` (``sha256sum -c`` reads it), and
    ``.deploy.onnx`` where the chip's compiler takes another model.
    ``HASH8`` begins the artifact's identity, which the stamped provenance leaves as it is; the same run gives the same
    bytes every time.

    ``board`` may be left out where one board has picks, or all boards pick the same. Raises :class:`ConfigError` for a
    pick or board that is not there, :class:`NoFeasibleCandidate` where nothing was picked, :class:`BoardtuneError`
    where the model in the run directory is not the one that was measured.
    """
    name, trial, result = _find(run, pick, board)
    source = run.model_path(trial.number)
    _check_digest(source, trial)
    recipe = Recipe.from_dict(trial.recipe, where=str(run.trial_folder(trial.number) / "recipe.json"))
    recorded_identity = result.artifact.identity
    stem = f"{_model_name(run)}_quant_{recipe.precision}_{recorded_identity[:8]}"
    provenance = provenance_of(run, trial, name, result)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the export folder: {error.strerror}", where=out) from error
    files = Export(
        trial.number,
        name,
        result.emulated,
        out / f"{stem}{recipe.suffix}",
        out / f"{stem}.recipe.json",
        out / f"{stem}.sha256",
    )
    build_atomic(files.model, lambda temporary: _stamp(source, temporary, provenance, recorded_identity))
    write_json(
        files.recipe,
        {
            "recipe": recipe.to_dict(),
            "label": trial.label,
            "trial": trial.number,
            "board": name,
            "emulated": result.emulated,
            "result": to_json(result),
            "provenance": provenance,
        },
    )
    written = [files.model, files.recipe]
    deploy = run.deploy_path(trial.number)
    if deploy.exists():
        written.append(deployed_of(files.model))
        shutil.copyfile(deploy, written[-1])
    sums = "".join(f"{sha256_of(path)}  {path.name}\n" for path in written)
    write_atomic(files.checksums, sums)
    return files


def _find(run: RunDirectory, pick: int, board: str | None) -> tuple[str, TrialState, BoardResult]:
    picks = _picks(run)
    if board is not None and board not in picks:
        known = ", ".join(sorted(picks)) or "none"
        raise ConfigError(f"the run has no board {board!r}", where=run.path, hint=f"boards of this run: {known}")
    chosen = {name: trials for name, trials in picks.items() if trials and board in (None, name)}
    if not chosen:
        raise NoFeasibleCandidate(
            "nothing was picked" + (f" for board {board!r}" if board else ""),
            where=run.path,
            hint="the report says why; loosen the constraints or search longer",
        )
    most = max(len(trials) for trials in chosen.values())
    reachable = {name: trials[pick - 1] for name, trials in chosen.items() if 1 <= pick <= len(trials)}
    if not reachable:
        raise ConfigError(f"there is no pick {pick}", where=run.path, hint=f"picks go from 1 to {most}")
    if len(set(reachable.values())) > 1 or len(reachable) < len(chosen):
        names = ", ".join(f"{name} (trial {number:04d})" for name, number in sorted(reachable.items()))
        raise ConfigError(f"pick {pick} differs from board to board", where=run.path, hint=f"add --board: {names}")
    name, number = sorted(reachable.items())[0]
    trial = run.state.trials.get(number)
    progress = trial.boards.get(name) if trial else None
    if trial is None or progress is None or progress.best is None:
        raise BoardtuneError(f"the ledger has no result of trial {number:04d} on {name!r}", where=run.path)
    return name, trial, progress.best


def _picks(run: RunDirectory) -> Mapping[str, tuple[int, ...]]:
    """From ``candidates.json``, which is current while a run goes on; else from the ledger."""
    live = run.read_candidates()
    if live is None:
        return run.state.picks
    picks = live.get("picks")
    if not isinstance(picks, dict):
        raise ConfigError(
            "there are no picks in it", where=run.path / CANDIDATES, hint="run: boardtune search --resume"
        )
    return {str(name): tuple(int(trial) for trial in trials) for name, trials in picks.items()}


def _check_digest(path: Path, trial: TrialState) -> None:
    recorded = trial.artifact.sha256 if trial.artifact else None
    found = sha256_of(path) if path.is_file() else None
    if found is None or found != recorded:
        problem = "is missing" if found is None else "is not the one that was measured: its sha256 differs"
        raise BoardtuneError(
            f"the model of trial {trial.number:04d} {problem}",
            where=path,
            hint="go on with the run by --resume, which rechecks its artifacts",
        )


def _stamp(source: Path, target: Path, provenance: Mapping[str, str], expected_identity: str) -> None:
    if source.suffix != ".onnx":
        # Only its own exporter can write into it; the recipe's file beside it holds the provenance.
        shutil.copyfile(source, target)
        return
    model = onnx.load(source)
    stamp(model, provenance)
    target.write_bytes(model.SerializeToString(deterministic=True))
    if (found := identity(target)) != expected_identity:
        raise BoardtuneError(
            f"the exported model has identity {found}, the measured one {expected_identity}; nothing was written",
            where=source,
        )


def _model_name(run: RunDirectory) -> str:
    """Stem of the float model's file, with whatever a file name should not hold replaced."""
    stem = Path(str(run.state.header.get("model", {}).get("path") or "model").replace("\\", "/")).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "model"
