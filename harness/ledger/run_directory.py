"""The folder of one run: its ledger, its files, its lock."""

from __future__ import annotations

import logging
import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from harness.errors import ConfigError
from harness.ledger import events
from harness.ledger.files import (
    TEMPORARY_SUFFIX,
    commit,
    fsync_folder,
    read_json,
    sha256_of,
    temporary_for,
    write_atomic,
    write_json,
)
from harness.ledger.header import differences
from harness.ledger.ledger import Clock, Ledger, read_ledger, utc_now
from harness.ledger.lock import LOCK_NAME, DirectoryLock
from harness.ledger.plain import plain
from harness.ledger.samples import SampleBlock, write_samples
from harness.ledger.state import LedgerState
from harness.quantize.outputs import deployed_of
from harness.recipes.recipe import Recipe

log = logging.getLogger(__name__)

LEDGER = "ledger.jsonl"
SUMMARY = "summary.json"
CANDIDATES = "candidates.json"
REPORT = "report.html"
TRIALS = "trials.csv"
LOGS = "logs"
PROPOSED = "proposed"
RECIPE = "recipe.json"
SETTINGS = "settings.json"
MEASUREMENT = "measurement.json"
SAMPLES = "samples.parquet"

Phase = Literal["search", "final"]

_TRIAL_FOLDER = re.compile(r"\d{4,}")
_OWN = re.compile(
    rf"{re.escape(LEDGER)}(\.torn-\d+)?|{SUMMARY}|{CANDIDATES}|{REPORT}|{TRIALS}|{LOGS}|{PROPOSED}|{re.escape(LOCK_NAME)}|\d{{4,}}"
    rf"|\..*{re.escape(TEMPORARY_SUFFIX)}"
)


@dataclass(frozen=True)
class ArtifactProblem:
    trial: int
    path: Path
    problem: str

    def __str__(self) -> str:
        return f"trial {self.trial:04d}: {self.path}: {self.problem}"


class RunDirectory:
    """Use :meth:`create`, :meth:`open_for_resume` (both lock, for the one process that writes) or :meth:`open`
    (reads, also while a run goes on). A context manager; :meth:`close` ends it. Thread-safe."""

    def __init__(self, path: Path, state: LedgerState, ledger: Ledger | None, lock: DirectoryLock | None) -> None:
        self.path = path
        self.state = state
        self.notices: tuple[str, ...] = ledger.notices if ledger else ()
        """What was found and put right on opening."""
        self._ledger = ledger
        self._directory_lock = lock
        self._mutex = threading.RLock()

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any], *, clock: Clock = utc_now) -> Self:
        """A new run in a new or empty folder. Raises :class:`ConfigError` where the folder holds a run, holds other
        things, is in use, or cannot be written."""
        _own_folder(path)
        lock = DirectoryLock(path)
        try:
            if read_ledger(path / LEDGER).events:
                raise _holds_a_run(path)
            return cls._begin(path, header, lock, clock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def check(cls, path: Path, header: Mapping[str, Any], *, resume: bool, may_change: Sequence[str] = ()) -> None:
        """Raises what :meth:`create` or :meth:`open_for_resume` would, and records nothing: so that a search can tell
        before it starts anything else."""
        recorded = recorded_header(path)
        if not recorded:
            _own_folder(path)
        DirectoryLock(path).release()
        if recorded and not resume:
            raise _holds_a_run(path)
        if recorded:
            _same_run(path, recorded, header, may_change)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Reads only and takes no lock. Raises :class:`ConfigError` where there is no run."""
        contents = read_ledger(path / LEDGER)
        if not contents.events:
            raise ConfigError("no run here: ledger.jsonl is missing or empty", where=path)
        return cls(path, LedgerState.from_events(contents.events), None, None)

    @classmethod
    def open_for_resume(
        cls, path: Path, header: Mapping[str, Any], *, may_change: Sequence[str] = (), clock: Clock = utc_now
    ) -> Self:
        """Goes on with a run; one that was killed before its first line, or never began, begins now.

        ``may_change``: glob patterns of dotted header fields that may differ (``plan.budget*``); such changes are
        recorded. Raises :class:`ConfigError` listing every other difference, or where the directory is in use.
        """
        if not path.exists() or not read_ledger(path / LEDGER).events:
            run = cls.create(path, header, clock=clock)
            run.notices += (f"{path}: nothing to resume, a new run begins",)
            return run
        lock = DirectoryLock(path)
        try:
            ledger = Ledger(path / LEDGER, clock=clock)
            state = LedgerState.from_events(ledger.events)
            _same_run(path, state.header, header, may_change)
            run = cls(path, state, ledger, lock)
            run._recover()
            allowed = differences(state.header, header)
            run.record(events.resumed([str(d) for d in allowed]))
            return run
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open_for_suggestions(cls, path: Path, *, clock: Clock = utc_now) -> Self:
        """Takes the lock to add to the record of a run that nobody is running. Raises :class:`ConfigError` where there
        is no run, or it is in use."""
        cls.open(path)
        lock = DirectoryLock(path)
        try:
            ledger = Ledger(path / LEDGER, clock=clock)
            return cls(path, LedgerState.from_events(ledger.events), ledger, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _begin(cls, path: Path, header: Mapping[str, Any], lock: DirectoryLock, clock: Clock) -> Self:
        run = cls(path, LedgerState(), Ledger(path / LEDGER, clock=clock), lock)
        run._recover()
        (path / LOGS).mkdir(exist_ok=True)
        run.record(events.run(header))
        return run

    # -- the ledger -----------------------------------------------------------------------------------------

    def record(self, *new: events.Event) -> None:
        """Appends events with one fsync and brings :attr:`state` up to date. Raises ``IllegalTransition`` for an event
        that cannot follow (those before it are recorded) and ``LedgerError`` where the disk refuses."""
        with self._mutex:
            if self._ledger is None:
                raise ConfigError("the run directory is open for reading only", where=self.path)
            legal: list[events.Event] = []
            time = self._ledger.now()
            try:
                for event in map(plain, new):  # the state is to be what a replay of the file gives
                    self.state.apply({"time": time, **event})
                    legal.append(event)
            finally:
                self._ledger.append_many(legal, time=time)

    # -- files of a trial -----------------------------------------------------------------------------------

    def trial_folder(self, trial: int) -> Path:
        """``NNNN``; not created by asking."""
        return self.path / f"{trial:04d}"

    def model_path(self, trial: int) -> Path:
        """``NNNN/model.onnx``, or as the trial's recipe has it."""
        proposed = self.state.trials.get(trial)
        suffix = Recipe.from_dict(proposed.recipe).suffix if proposed is not None else ".onnx"
        return self.trial_folder(trial) / f"model{suffix}"

    def deploy_path(self, trial: int) -> Path:
        """``NNNN/model.deploy.onnx``: for the chip's compiler, where the quantizer makes another model for it."""
        return deployed_of(self.model_path(trial))

    def draft_path(self, trial: int) -> Path:
        """Where a quantizer writes; :meth:`commit_model` puts it in place. The folder is created."""
        self._make_trial_folder(trial)
        return temporary_for(self.model_path(trial))

    def commit_model(self, trial: int, source: Path) -> Path:
        """Moves a finished model to :meth:`model_path` durably. To be followed by the ``quantized`` event."""
        self._make_trial_folder(trial)
        commit(source, self.model_path(trial))
        return self.model_path(trial)

    def drop_model(self, trial: int) -> None:
        """Frees the space of a model nobody will ask for (a duplicate's, a refused one's)."""
        for path in (self.model_path(trial), self.deploy_path(trial)):
            path.unlink(missing_ok=True)

    def write_recipe(self, trial: int, recipe: Mapping[str, Any]) -> None:
        write_json(self._make_trial_folder(trial) / RECIPE, recipe)

    def write_deploy_model(self, trial: int, model: bytes) -> None:
        self._make_trial_folder(trial)
        write_atomic(self.deploy_path(trial), model)

    def write_settings(self, trial: int, settings: Mapping[str, Any]) -> None:
        """``NNNN/settings.json``: what a vendor's quantizer made of the recipe, in its own words."""
        write_json(self._make_trial_folder(trial) / SETTINGS, settings)

    def write_detail(self, trial: int, text: str) -> None:
        """``NNNN/detail.txt``: traceback or log tail of a failure."""
        write_atomic(self._make_trial_folder(trial) / "detail.txt", text)

    def write_measurement(self, trial: int, board: str, phase: Phase, measurement: Mapping[str, Any]) -> None:
        """Sets one board's phase in ``NNNN/measurement.json``: ``{"boards": {NAME: {"search": M, "final": M}}}``."""
        with self._mutex:
            path = self._make_trial_folder(trial) / MEASUREMENT
            content = read_json(path) if path.exists() else {"boards": {}}
            entry = content["boards"].setdefault(board, {"search": None, "final": None})
            entry[phase] = measurement
            write_json(path, content)

    def read_measurement(self, trial: int) -> dict[str, Any] | None:
        """``None`` where nothing was measured."""
        path = self.trial_folder(trial) / MEASUREMENT
        return read_json(path) if path.exists() else None

    def write_samples(
        self, trial: int, board: str, phase: Phase, blocks: Sequence[SampleBlock], *, emulated: bool
    ) -> None:
        """Sets one board's phase in ``NNNN/samples.parquet``."""
        with self._mutex:
            write_samples(self._make_trial_folder(trial) / SAMPLES, board, phase, blocks, emulated=emulated)

    # -- files of the run -----------------------------------------------------------------------------------

    @property
    def logs(self) -> Path:
        return self.path / LOGS

    def write_candidates(self, candidates: Mapping[str, Any]) -> None:
        write_json(self.path / CANDIDATES, candidates)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_json(self.path / SUMMARY, summary)

    def read_candidates(self) -> dict[str, Any] | None:
        return read_json(self.path / CANDIDATES) if (self.path / CANDIDATES).exists() else None

    def read_summary(self) -> dict[str, Any] | None:
        return read_json(self.path / SUMMARY) if (self.path / SUMMARY).exists() else None

    def write_proposed(self, name: str, recipe: Mapping[str, Any]) -> Path:
        """``proposed/NAME.json``: a recipe somebody suggests."""
        folder = self.path / PROPOSED
        folder.mkdir(exist_ok=True)
        write_json(folder / f"{name}.json", recipe)
        return folder / f"{name}.json"

    def write_report(self, html: str) -> Path:
        write_atomic(self.path / REPORT, html)
        return self.path / REPORT

    def write_trials_csv(self) -> Path:
        """``trials.csv`` from the ledger's state: one row per trial and board."""
        from harness.ledger.table import trials_csv  # pandas takes half a second to import

        write_atomic(self.path / TRIALS, trials_csv(self.state))
        return self.path / TRIALS

    def verify_artifacts(self) -> list[ArtifactProblem]:
        """Rechecks the digest of every model that is still needed: of done and unfinished trials."""
        problems = []
        for number, trial in sorted(self.state.trials.items()):
            if trial.artifact is None or trial.status in ("failed", "pruned", "duplicate"):
                continue
            path = self.model_path(number)
            if not path.is_file():
                problems.append(ArtifactProblem(number, path, "the model is missing"))
            elif (found := sha256_of(path)) != trial.artifact.sha256:
                message = f"the model has sha256 {found}, recorded was {trial.artifact.sha256}"
                problems.append(ArtifactProblem(number, path, message))
        return problems

    def close(self) -> None:
        """Closes the ledger and frees the lock; may be called twice."""
        with self._mutex:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None
            if self._directory_lock is not None:
                self._directory_lock.release()
                self._directory_lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_trial_folder(self, trial: int) -> Path:
        folder = self.trial_folder(trial)
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            fsync_folder(self.path)
        return folder

    def _recover(self) -> None:
        """Removes what a killed run left half-written: temporary files, and folders of trials never proposed."""
        for folder in (self.path, *(p for p in self.path.iterdir() if p.is_dir() and _TRIAL_FOLDER.fullmatch(p.name))):
            for stale in folder.glob(f".*{TEMPORARY_SUFFIX}"):
                stale.unlink()
                log.info("removed half-written %s", stale)
            if folder is not self.path and int(folder.name) not in self.state.trials:
                shutil.rmtree(folder)
                log.info("removed %s: its trial was never recorded", folder)


def recorded_header(path: Path) -> Mapping[str, Any]:
    """Of the run in that folder; empty where there is none (yet)."""
    recorded = read_ledger(path / LEDGER).events if path.exists() else ()
    return LedgerState.from_events(recorded[:1]).header


def _own_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        foreign = sorted(p.name for p in path.iterdir() if not _OWN.fullmatch(p.name))
    except OSError as error:
        raise ConfigError(f"cannot make the run directory: {error.strerror}", where=path) from error
    if foreign:
        raise ConfigError(
            f"the folder is not empty and no run directory: it holds {', '.join(foreign[:5])}",
            where=path,
            hint="name a new or an empty folder",
        )


def _holds_a_run(path: Path) -> ConfigError:
    hint = "go on with it by --resume, or name another --run-dir"
    return ConfigError("the folder holds a run already", where=path, hint=hint)


def _same_run(path: Path, recorded: Mapping[str, Any], header: Mapping[str, Any], may_change: Sequence[str]) -> None:
    if unlike := differences(recorded, header, may_change):
        raise ConfigError(
            "the run here is of something else:\n" + "\n".join(f"    {d}" for d in unlike),
            where=path,
            hint="resume with the same model, data and plan, or name another --run-dir",
        )
