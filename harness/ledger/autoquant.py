"""ESP-PPQ AutoQuant's run folders: their experiments as recipes, and our trials as one that AutoQuant reads.

Layout (``esp_ppq.autoquant.save`` of 1.3.12): ``summary.json``, a list of every experiment; ``candidates.json``, the
best of them, best first; ``NNNN/`` with ``config.json``, ``quant_setting.json`` and the model.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.ledger.files import write_json
from harness.ledger.run_directory import SETTINGS, RunDirectory
from harness.ledger.state import TrialState
from harness.recipes.esp_ppq import SWITCHES, TABLE
from harness.recipes.recipe import Recipe
from harness.results import BoardResult

_BITS = {8: "w8a8", 16: "w16a16"}
_STRUCTURAL = ("num_of_bits", "calib_algorithm")
"""Modules that are always on; the others are switches."""
_DEVICE = "collecting_device"
"""Of no recipe's, and left out of AutoQuant's own hash."""
_DEVICE_MODULES = ("tqt", "blockwise_reconstruction")


@dataclass(frozen=True)
class Experiment:
    """One of AutoQuant's."""

    index: int
    recipe: Recipe
    score: float
    extras: Mapping[str, float]
    """Further numbers its ``evaluate_fn`` gave."""


@dataclass(frozen=True)
class AutoQuantRun:
    experiments: tuple[Experiment, ...]
    """Best first."""
    maximize: bool
    notices: tuple[str, ...]


def read_autoquant(folder: Path, target: str | None = None) -> AutoQuantRun:
    """The experiments of a run folder. ``target`` where the folder does not say it.

    Raises :class:`ConfigError` where it is no such folder, or an experiment holds what no recipe can.
    """
    summary = _read(folder / "summary.json")
    if not isinstance(summary, list) or not summary:
        raise ConfigError("no experiment is recorded", where=folder / "summary.json")
    runtime = _runtime(folder, summary)
    chip = target or runtime.get("target")
    if not chip:
        raise ConfigError("the folder does not say the target", where=folder, hint="give it with --target esp32s3")
    maximize = runtime.get("score_direction", "maximize") != "minimize"
    experiments: dict[str, Experiment] = {}
    notices: list[str] = []
    for position, record in enumerate(summary):
        where = f"{folder / 'summary.json'}, experiment {record.get('index', position)}"
        try:
            found = _experiment(record, str(chip), where)
        except ConfigError as error:
            notices.append(f"left out: {error}")
            continue
        known = experiments.get(found.recipe.digest)
        if known is None or (found.score > known.score) == maximize:
            experiments[found.recipe.digest] = found
    if not experiments:
        raise ConfigError(f"none of {len(summary)} experiments can be read: {notices[0]}", where=folder)
    ordered = sorted(experiments.values(), key=lambda e: (-e.score if maximize else e.score, e.index))
    return AutoQuantRun(tuple(ordered), maximize, tuple(notices))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "give the run_dir of an AutoQuant search"
        raise ConfigError("there is no such file", where=path, hint=hint) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read it: {error}", where=path) from None


def _runtime(folder: Path, summary: Sequence[Any]) -> Mapping[str, Any]:
    """As the first experiment whose folder is still there says; they are all of one search."""
    for record in summary:
        index = record.get("index") if isinstance(record, dict) else None
        path = folder / f"{index:04d}" / "config.json" if isinstance(index, int) else None
        if path is not None and path.is_file():
            runtime = _read(path).get("runtime", {})
            return runtime if isinstance(runtime, dict) else {}
    return {}


def _experiment(record: Any, target: str, where: str) -> Experiment:
    if not isinstance(record, dict) or not isinstance(record.get("strategy"), dict):
        raise ConfigError("it has no strategy", where=where)
    score = record.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise ConfigError(f"its score is {score!r}", where=where)
    options = _options(record["strategy"], record.get("params") or {}, where)
    try:
        recipe = Recipe(scheme="vendor", backend=TABLE.backend, options=tuple({**options, "target": target}.items()))
    except ConfigError as error:
        raise ConfigError(error.message, hint=error.hint, where=where) from None
    known = {"score", "hash", "index", "folder", "files", "strategy", "params"}
    extras = {k: v for k, v in record.items() if k not in known and isinstance(v, int | float)}
    return Experiment(int(record.get("index", -1)), recipe, float(score), extras)


def _options(strategy: Mapping[str, Any], params: Mapping[str, Any], where: str) -> dict[str, Any]:
    options: dict[str, Any] = {name: bool(on) for name, on in strategy.items() if name not in _STRUCTURAL}
    for module, values in params.items():
        if not isinstance(values, dict):
            continue
        if module == "num_of_bits":
            bits = values.get("value")
            if bits not in _BITS:
                raise ConfigError(f"num_of_bits is {bits!r}", where=where, hint="8 or 16")
            options["quant_type"] = _BITS[bits]
        elif module == "calib_algorithm":
            options["calib_algorithm"] = values.get("method")
        else:
            options |= {f"{module}.{name}": value for name, value in values.items() if name != _DEVICE}
    return options


def write_autoquant(run: RunDirectory, out: Path, *, board: str | None = None, keep: int = 5) -> tuple[int, list[str]]:
    """Writes the run's ESP-PPQ trials as AutoQuant would have; (how many, notices about those left out).

    ``score`` is the metric the run ranks on, as it was measured on ``board``, beside ``latency_ms``, which AutoQuant
    has no number for. Raises :class:`ConfigError` where there is nothing to write, or ``out`` holds something.
    """
    metric = next(iter(run.state.header.get("key", {}).get("metric", ())), None)
    if out.exists() and any(out.iterdir()):
        raise ConfigError("the folder is not empty", where=out, hint="give a new one")
    records: list[dict[str, Any]] = []
    notices: list[str] = []
    higher = True
    for trial in (run.state.trials[number] for number in sorted(run.state.trials)):
        recipe = Recipe.from_dict(trial.recipe)
        result = _result(trial, board)
        if recipe.backend != TABLE.backend or result is None or result.latency_ns is None or metric is None:
            continue
        try:
            strategy, params = _strategy(recipe)
        except ConfigError as error:
            notices.append(f"trial {trial.number:04d} is left out: {error}")
            continue
        scored = result.metrics.get(metric)
        if scored is None:
            continue
        higher = scored.higher_is_better
        records.append(_record(run, out, trial, strategy, params, scored.value, result.latency_ns.p50 / 1e6))
    if not records:
        raise ConfigError("the run has no measured trial of ESP-PPQ's that AutoQuant could hold", where=run.path)
    write_json(out / "summary.json", [{"hash": _hash(r["strategy"], r["params"]), **r} for r in records])
    best = sorted(records, key=lambda r: (-r["score"] if higher else r["score"], r["index"]))[:keep]
    write_json(out / "candidates.json", best)
    return len(records), notices


def _result(trial: TrialState, board: str | None) -> BoardResult | None:
    for name, progress in sorted(trial.boards.items()):
        if board in (None, name) and progress.best is not None:
            return progress.best
    return None


def _strategy(recipe: Recipe) -> tuple[dict[str, bool], dict[str, Any]]:
    options = dict(recipe.options)
    if options["quant_type"] not in _BITS.values():
        raise ConfigError(f"AutoQuant has no {options['quant_type']}")
    if options.get("mixed_precision.layers"):
        raise ConfigError("AutoQuant does not name the layers it keeps at 16 bit")
    bits = next(number for number, kind in _BITS.items() if kind == options["quant_type"])
    strategy = {"num_of_bits": True, "calib_algorithm": True, **{name: bool(options[name]) for name in SWITCHES}}
    params: dict[str, Any] = {
        "num_of_bits": {"value": bits},
        "calib_algorithm": {"method": options["calib_algorithm"]},
    }
    for name in SWITCHES:
        prefix = f"{name}."
        values = {key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)}
        values.pop("layers", None)
        if name in _DEVICE_MODULES:
            values[_DEVICE] = "cpu"
        params[name] = values if options[name] else None
    return strategy, params


def _record(
    run: RunDirectory,
    out: Path,
    trial: TrialState,
    strategy: Mapping[str, bool],
    params: Mapping[str, Any],
    score: float,
    latency_ms: float,
) -> dict[str, Any]:
    folder = out / f"{trial.number:04d}"
    folder.mkdir(parents=True)
    options = dict(Recipe.from_dict(trial.recipe).options)
    runtime = {"target": options["target"], "device": "cpu", "search_mode": "boardtune", "score_direction": "maximize"}
    write_json(folder / "config.json", {"strategy": strategy, "params": params, "runtime": runtime})
    files = []
    for source, name in (
        (run.trial_folder(trial.number) / SETTINGS, "quant_setting.json"),
        (run.model_path(trial.number), "model.espdl"),
    ):
        if source.is_file():
            shutil.copyfile(source, folder / name)
            files.append(name)
    return {
        "index": trial.number,
        "folder": str(folder),
        "files": files,
        "strategy": dict(strategy),
        "params": dict(params),
        "score": score,
        "latency_ms": latency_ms,
    }


def _hash(strategy: Mapping[str, bool], params: Mapping[str, Any]) -> str:
    """AutoQuant's own key of an experiment, by which it resumes."""
    kept = {
        module: {k: v for k, v in values.items() if k != _DEVICE} if isinstance(values, dict) else values
        for module, values in params.items()
    }
    blob = json.dumps({"strategy": dict(strategy), "params": kept}, sort_keys=True, default=str).encode()
    return hashlib.sha1(blob, usedforsecurity=False).hexdigest()
