"""One model, one recipe, one artifact: what ``boardtune quantize`` does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.boards.host_lock import host_lock, host_lock_folder
from harness.data.preprocess import Preprocess
from harness.data.source import open_dataset
from harness.errors import ConfigError
from harness.quantize.contract import Artifact, ModelRefused, QuantizeJob, QuantizeLimits, Refusal
from harness.quantize.model_file import copy_model
from harness.quantize.outputs import deployed_of
from harness.quantize.prepare import prepare_model
from harness.quantize.vendors.environments import find_environment
from harness.quantize.worker import QuantizeWorker
from harness.recipes.files import resolve_recipe
from harness.recipes.recipe import Recipe
from harness.scratch import scratch_folder


@dataclass(frozen=True)
class Outcome:
    """What came of one recipe."""

    recipe: Recipe | None
    """``None`` where the model was refused, whatever the recipe."""
    result: Artifact | Refusal
    notices: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The value ``boardtune quantize --json`` prints."""
        value: dict[str, Any] = {
            "status": "accepted",
            "cause": None,
            "message": "",
            "snr_db": self.result.snr_db,
            "artifact": None,
            "recipe": self.recipe.to_dict() if self.recipe else None,
            "label": self.recipe.label if self.recipe else None,
            "notices": list(self.notices),
        }
        if isinstance(self.result, Refusal):
            value.update(status="refused", cause=str(self.result.cause), message=self.result.message)
            return value
        value["artifact"] = {
            "sha256": self.result.sha256,
            "identity": self.result.identity,
            "size_bytes": self.result.size_bytes,
            "path": str(self.result.path),
        }
        return value


def quantize_once(
    model: Path,
    calibration: str,
    recipe: str,
    out: Path,
    *,
    set_dims: Mapping[str, int],
    preprocess: Path | None,
    limits: QuantizeLimits,
    continue_quantized: bool = False,
) -> Outcome:
    """Prepares ``model``, makes the artifact and writes it with its recipe into the folder ``out``.

    ``calibration`` is a data specification, ``recipe`` a file or ``preset:NAME[#k]``. The files are called
    ``<model>_quant_<precision>_<identity8>``. A model that cannot be quantized at all (already quantized, say) is a
    refusal too (unless ``continue_quantized`` takes one that is quantized in part); one that cannot be read raises
    ModelError. Raises DataError, ConfigError.
    """
    _check_folder(out)
    with scratch_folder() as scratch:
        try:
            with host_lock().work():
                prepared = prepare_model(model, scratch / "float.onnx", set_dims, continue_quantized=continue_quantized)
        except ModelRefused as error:
            return Outcome(None, Refusal(error.cause, str(error)), ())
        chosen = resolve_recipe(recipe, prepared.facts)
        if chosen.scheme == "vendor":
            find_environment(chosen.backend)
        declared = Preprocess.load(preprocess) if preprocess else None
        dataset = open_dataset(calibration, prepared.inputs, declared, whole=True)
        samples = scratch / "calibration.npz"
        dataset.save_npz(samples, labels=False)
        job = QuantizeJob(
            model=prepared.path,
            calibration=samples,
            recipe=chosen,
            out=scratch / f"quantized{chosen.suffix}",
            limits=limits,
            extra={"host_lock": str(host_lock_folder())},
        )
        with QuantizeWorker() as worker:
            result = worker.quantize(job)
        notices = (*prepared.notices, *dataset.notices)
        if isinstance(result, Artifact):
            notices += result.notices
            result = _keep(result, model, chosen, out)
    return Outcome(chosen, result, notices)


def _check_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out: cannot make the folder: {error.strerror or error}", where=out, hint="give another folder"
        ) from error


def _keep(artifact: Artifact, model: Path, recipe: Recipe, out: Path) -> Artifact:
    path = out / f"{model.stem}_quant_{recipe.precision}_{artifact.identity[:8]}{recipe.suffix}"
    try:
        copy_model(artifact.path, path)
        deployed = deployed_of(artifact.path)
        if deployed.exists():
            deployed_of(path).write_bytes(deployed.read_bytes())
        text = json.dumps(recipe.to_dict(), indent=2, sort_keys=True)
        path.with_suffix(".recipe.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out: cannot write: {error.strerror or error}", where=path) from error
    return replace(artifact, path=path)
