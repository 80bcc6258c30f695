"""Makes an artifact again from what it was made from, and compares it byte by byte."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness.boards.host_lock import host_lock, host_lock_folder
from harness.controller.origin import VERSIONS, Origin
from harness.controller.preparation import read_preprocess
from harness.data.dataset import Dataset
from harness.data.preprocess import Preprocess
from harness.data.source import open_dataset
from harness.errors import BoardtuneError, ConfigError
from harness.quantize.contract import QuantizeJob, Refusal
from harness.quantize.describe_espdl import first_difference_espdl
from harness.quantize.difference import first_difference
from harness.quantize.identity import file_sha256
from harness.quantize.imported import import_model
from harness.quantize.made import read_made
from harness.quantize.prepare import PreparedModel, prepare_model
from harness.quantize.vendors.environments import find_environment
from harness.quantize.worker import QuantizeWorker
from harness.scratch import scratch_folder

Status = Literal["equal", "relabelled", "differs", "other_inputs"]


@dataclass(frozen=True)
class Changed:
    """What is not as it was when the artifact was made."""

    what: str
    recorded: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: was {self.recorded or 'none'}, now {self.now or 'none'}"


@dataclass(frozen=True)
class Made:
    sha256: str
    identity: str


@dataclass(frozen=True)
class Reproduction:
    status: Status
    """``equal``: the same bytes; ``relabelled``: other bytes of the same canonical content; ``differs``: another model;
    ``other_inputs``: not made, as the float model, the data or the candidate's file is not what it was."""
    origin: Origin
    made: Made | None
    changed: tuple[Changed, ...]
    """Inputs and package versions that differ."""
    difference: str
    """The first difference of the two models in words, where both are there."""
    path: Path | None
    """Where the model was written, if that was asked for."""

    @property
    def same(self) -> bool:
        return self.status == "equal"

    def to_json(self) -> dict[str, Any]:
        """The value ``boardtune reproduce --json`` prints."""
        return {
            "status": self.status,
            "of": self.origin.what,
            "label": self.origin.recipe.label,
            "recipe": self.origin.recipe.to_dict(),
            "recorded": {"sha256": self.origin.sha256, "identity": self.origin.identity},
            "made": asdict(self.made) if self.made else None,
            "changed": [asdict(item) for item in self.changed],
            "difference": self.difference or None,
            "path": str(self.path) if self.path else None,
        }


def reproduce(
    origin: Origin,
    *,
    model: Path | None = None,
    calibration: str | None = None,
    preprocess: Path | None = None,
    candidate: Path | None = None,
    out: Path | None = None,
) -> Reproduction:
    """Prepares the float model, reads the data and makes the artifact anew: no statistics kept from earlier are used.

    ``model``, ``calibration``, ``preprocess`` and ``candidate`` say where things are now, where that is not where they
    were. ``out``: folder to write the model to. Code (``module:function``) is run only where ``calibration`` names it.
    Raises ConfigError and its kinds for what is not given or cannot be read, and BoardtuneError where the quantizer
    refuses what it made before.
    """
    with scratch_folder() as folder:
        path = _needed(model or origin.model, origin, "--model")
        with host_lock().work():
            prepared = prepare_model(path, folder / "float.onnx", origin.set_dim, batch=origin.batch)
        changed = [_change("float model", origin, prepared.digest)]
        artifact = folder / f"model{origin.recipe.suffix}"
        if origin.recipe.scheme == "imported":
            given = _needed(candidate or origin.candidate, origin, "--candidate")
            found = import_model(given, prepared, artifact).recipe.source
            if found != origin.recipe.source:
                changed.append(Changed(f"content of {given}", origin.recipe.source, found))
        else:
            declared = read_preprocess(preprocess or origin.preprocess)
            dataset = _dataset(origin, calibration, prepared, declared)
            changed.append(_change("preprocessing", origin, declared.digest if declared else ""))
            changed.append(_change("calibration data", origin, dataset.digest))
        inputs = [item for item in changed if item is not None]
        versions = _other_versions(origin)
        if inputs:
            return Reproduction("other_inputs", origin, None, (*inputs, *versions), "", None)
        if origin.recipe.scheme != "imported":
            versions += _quantize(origin, prepared, dataset, artifact)
        made = Made(file_sha256(artifact), read_made(artifact, origin.recipe).identity)
        status = _status(origin, made)
        difference = ""
        if status == "differs" and origin.kept is not None and origin.kept.is_file():
            compare = first_difference_espdl if origin.recipe.suffix == ".espdl" else first_difference
            difference = compare(origin.kept, artifact)
        written = _write(artifact, out, path.stem, origin, made) if out is not None else None
        return Reproduction(status, origin, made, versions, difference, written)


def _status(origin: Origin, made: Made) -> Status:
    if made.sha256 == origin.sha256:
        return "equal"
    return "relabelled" if made.identity == origin.identity else "differs"


def _needed(path: Path | None, origin: Origin, option: str) -> Path:
    if path is None:
        raise ConfigError(f"{origin.what} does not say where the file is", hint=f"give it with {option}")
    if not path.exists():
        raise ConfigError(
            "there is no such file any more", where=path, hint=f"say where it is now with {option}, or run this where "
            "the search was run"
        )  # fmt: skip
    return path


def _dataset(origin: Origin, given: str | None, prepared: PreparedModel, declared: Preprocess | None) -> Dataset:
    spec = given or origin.calibration
    if spec is None:
        raise ConfigError(f"{origin.what} does not say where the calibration data is", hint="give it with --calib")
    try:
        # What a ledger names may come from elsewhere: its code is run only if the command line names it too.
        return open_dataset(spec, prepared.inputs, declared, allow_code=given is not None)
    except ConfigError as error:
        if given is not None:
            raise
        hint = f"say where it is now with --calib; if it is code, name it: --calib {spec}"
        raise type(error)(error.message, hint=hint, where=error.where) from None


def _change(what: str, origin: Origin, now: str) -> Changed | None:
    recorded = origin.digests.get(what, "")
    return None if recorded == now else Changed(what, recorded, now)


def _other_versions(origin: Origin) -> tuple[Changed, ...]:
    now = {name: importlib.metadata.version(name) for name in ("boardtune", *VERSIONS)}
    return tuple(Changed(name, was, now[name]) for name, was in origin.versions.items() if now[name] != was)


def _quantize(origin: Origin, prepared: PreparedModel, dataset: Dataset, out: Path) -> tuple[Changed, ...]:
    """Writes ``out``; a vendor's quantizer whose versions are others now."""
    if origin.recipe.scheme == "vendor":
        find_environment(origin.recipe.backend)
    samples = out.with_name("calibration.npz")
    dataset.save_npz(samples, labels=False)
    extra: Mapping[str, Any] = {"host_lock": str(host_lock_folder()), "cache": ""}
    with QuantizeWorker() as worker:
        result = worker.quantize(QuantizeJob(prepared.path, samples, origin.recipe, out, origin.limits, extra))
    if isinstance(result, Refusal):
        changed = "; ".join(str(item) for item in _other_versions(origin))
        raise BoardtuneError(
            f"it was accepted then and is refused now ({result.cause}): {result.message}",
            where=origin.what,
            hint=f"other versions: {changed}" if changed else "",
        )
    now = f"{origin.recipe.backend} {result.backend_version}"
    if origin.recipe.scheme != "vendor" or not origin.backend or origin.backend == now:
        return ()
    return (Changed("quantizer", origin.backend, now),)


def _write(artifact: Path, out: Path, stem: str, origin: Origin, made: Made) -> Path:
    target = out / f"{stem}_quant_{origin.recipe.precision}_{made.identity[:8]}{origin.recipe.suffix}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(artifact, target)
    except OSError as error:
        raise ConfigError(f"--out: cannot write: {error.strerror or error}", where=target) from error
    return target
