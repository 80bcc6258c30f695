"""The Ray actors of a search: one recorder, a few quantizers, one per board. They only carry calls across processes;
what they do is in :mod:`recorder`, :mod:`harness.quantize` and :mod:`board_session`."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import ray

from device_agents.contract import AgentError, BoardFacts, RuntimeOptions
from harness.boards.host_lock import host_lock, host_lock_folder
from harness.boards.schema import Board
from harness.controller.board_session import BoardSession
from harness.controller.logs import log_to_file
from harness.controller.messages import BoardTask, Material, QuantizeReply
from harness.controller.preparation import Prepared
from harness.controller.recorder import Recorder
from harness.controller.request import MeasureOutcome, MeasureRequest
from harness.controller.trial import Quantized
from harness.controller.turns import Turns
from harness.errors import BoardtuneError, ConfigError
from harness.ledger import events
from harness.ledger.key import result_key
from harness.ledger.plain import plain
from harness.ledger.run_directory import RunDirectory
from harness.ledger.state import TrialState
from harness.quantize.contract import Artifact, QuantizeJob, QuantizeLimits, Refusal
from harness.quantize.outputs import deployed_of, remove_model
from harness.recipes.recipe import Recipe
from harness.results import ArtifactInfo
from harness.scratch import scratch_prefix

log = logging.getLogger(__name__)

_BACKEND_PACKAGES = ("onnxruntime", "onnx")


class RecorderActor(Recorder):
    """Owns the run directory's lock; dies with the search, which frees it."""

    def __init__(self) -> None:
        """:meth:`open` comes first: what an actor's constructor raises reaches nobody."""

    def open(self, path: Path, header: Mapping[str, Any], resume: bool, may_change: Sequence[str]) -> tuple[str, ...]:
        """Takes the run directory; returns its notices. Raises :class:`ConfigError` where it cannot be had."""
        try:
            run = (
                RunDirectory.open_for_resume(path, header, may_change=may_change)
                if resume
                else RunDirectory.create(path, header)
            )
        except OSError as error:
            message = f"cannot use it as a run directory: {error.strerror or error}"
            raise ConfigError(message, where=path, hint="name another --run-dir") from None
        super().__init__(run)
        self._directory = run
        log_to_file(run.logs / "recorder.log")
        return run.notices

    def logs(self) -> Path:
        return self._directory.logs

    def damaged(self) -> list[tuple[int, str]]:
        """Trials whose artifact on disk is not what the ledger says."""
        return [(problem.trial, str(problem)) for problem in self._directory.verify_artifacts()]

    def close(self) -> None:
        self._directory.close()


class Quantizer(Protocol):
    """What makes artifacts in a quantizer actor; :class:`QuantizeWorker` is the real one."""

    def quantize(self, job: QuantizeJob) -> Artifact | Refusal: ...

    def close(self) -> None: ...


class QuantizerActor:
    """A warm quantizer, on whatever node."""

    def __init__(self, limits: QuantizeLimits, make_quantizer: Callable[[], Quantizer]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=scratch_prefix())
        folder = Path(self._folder.name)
        self._model = folder / "model.onnx"
        self._calibration = folder / "calibration.npz"
        self._limits = limits
        self._worker = make_quantizer()

    def quantize(self, recipe: Recipe, material: Material) -> QuantizeReply:
        """``material`` is fetched on the first call; it comes with every call, as a restarted actor has nothing."""
        started = time.monotonic()
        for path, reference in ((self._model, material.model), (self._calibration, material.calibration)):
            if not path.exists():
                path.write_bytes(ray.get(reference))
        out = Path(self._folder.name) / f"{recipe.digest}{recipe.suffix}"
        job = QuantizeJob(
            model=self._model,
            calibration=self._calibration,
            recipe=recipe,
            out=out,
            limits=self._limits,
            extra={"host_lock": str(host_lock_folder()), **self._imported(recipe, material)},
        )
        made = self._worker.quantize(job)
        seconds = time.monotonic() - started
        if isinstance(made, Refusal):
            remove_model(out)
            return QuantizeReply(made, None, (), self._backend(recipe), seconds)
        model, deployed = made.path.read_bytes(), deployed_of(made.path)
        deploy = deployed.read_bytes() if deployed.exists() else None
        remove_model(made.path)
        info = ArtifactInfo(made.sha256, made.identity, made.size_bytes)
        kept = Quantized(info, made.snr_db, made.quantized_operators)
        backend = f"{recipe.backend} {made.backend_version}" if made.backend_version else self._backend(recipe)
        return QuantizeReply(kept, model, made.notices, backend, seconds, made.settings, deploy)

    def _imported(self, recipe: Recipe, material: Material) -> dict[str, str]:
        if recipe.source not in material.imported:
            return {}
        path = Path(self._folder.name) / f"{recipe.source}.imported.onnx"
        if not path.exists():
            path.write_bytes(ray.get(material.imported[recipe.source]))
        return {"imported": str(path)}

    def _backend(self, recipe: Recipe) -> str:
        """Name and versions, part of the key of a result."""
        name = "imported" if recipe.scheme == "imported" else recipe.backend
        return " ".join([name, *(f"{name} {importlib.metadata.version(name)}" for name in _BACKEND_PACKAGES)])

    def close(self) -> None:
        self._worker.close()
        self._folder.cleanup()


def board_session(board: Board) -> BoardSession:
    """The real session of a board on this host."""
    lock = host_lock()
    return BoardSession(board, clock_lock=lock.clock, work_lock=lock.work)


class Session(Protocol):
    """What a board actor needs of :class:`BoardSession`."""

    quarantined: str | None
    spent_s: float

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> RuntimeOptions: ...

    def open(self) -> BoardFacts: ...

    def measure(self, request: MeasureRequest, deployed: Callable[[int], None]) -> MeasureOutcome: ...

    def close(self) -> None: ...


OpenSession = Callable[[Board], Session]


class BoardActor:
    """Owns one board's connection for the whole run and serves trials in their order."""

    def __init__(self, board: Board, prepared: Prepared, recorder: Any, batch: int, open_session: OpenSession) -> None:
        self._session = open_session(board)
        self._prepared = prepared
        self._recorder = recorder
        self._turns = Turns()
        self._batch = batch
        self._stopping = False
        self._closing = False
        log_to_file(ray.get(recorder.logs.remote()) / f"board-{board.name}.log")

    def open(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Connects; returns the board's facts and the runtime options as JSON. Raises :class:`AgentError`."""
        self._facts = self._session.open()
        return plain(self._facts), plain(self._session.options)

    def skip(self, trials: Iterable[int]) -> None:
        self._turns.skip(trials)

    def stop(self) -> None:
        """Trials that wait for their turn are given back."""
        self._stopping = True
        self._turns.release()

    def measure(self, task: BoardTask) -> str | None:
        """Measures and records; ``None``, or why it failed. ``interrupted``: it was not begun."""
        turn = self._turns.out_of_turn if task.phase == "final" else self._turns.turn
        with turn(task.trial):
            return self._measure(task)

    def _measure(self, task: BoardTask) -> str | None:
        if self._stopping:
            return "interrupted"
        name = self._session.name
        state = ray.get(self._recorder.state.remote(task.trial))
        if self._session.quarantined and task.phase == "final":
            # Not recorded: on resume the board may be back.
            return f"the board is in quarantine: {self._session.quarantined}"
        if self._session.quarantined:
            return self._failed(task, "quarantined", f"the board is in quarantine: {self._session.quarantined}")
        sent: int | None = None

        def deployed(sent_bytes: int) -> None:
            nonlocal sent
            sent = (sent or 0) + sent_bytes
            if task.phase == "search":
                ray.get(self._recorder.record.remote(events.deployed(task.trial, name, sent_bytes=sent_bytes)))

        def failed(cause: str, message: str, detail: str = "") -> str:
            spent_s = self._session.spent_s
            return self._failed(task, cause, message, detail, sent_bytes=sent or 0, spent_s=spent_s)

        recipe = Recipe.from_dict(state.recipe)
        request = MeasureRequest(
            model=ray.get(self._recorder.model_path.remote(task.trial)),
            artifact=state.artifact,
            settings=task.settings,
            part=self._prepared.parts[task.phase],
            scoring=self._prepared.scoring,
            is_float=recipe.is_float32,
            batch=self._batch,
            pipeline=self._prepared.pipeline,
        )
        try:
            outcome = self._session.measure(request, deployed)
        except AgentError as error:
            return failed(type(error).__name__, error.message, error.detail)
        except BoardtuneError as error:
            return failed("evaluation", str(error))
        except Exception as error:
            # A defect met on one board must not end the trial on the others.
            log.exception("trial %d on %s", task.trial, name)
            return failed("internal", f"{type(error).__name__}: {error}", traceback.format_exc())
        if sent is None:
            # A board that is not as its file wants it is sent nothing; a result comes after ``deployed`` all the same.
            deployed(0)
        result = replace(outcome.result, phase=task.phase)
        futile = task.phase == "search" and outcome.measurement.stop_reason == "futility"
        record = {**outcome.record, "key": self._key(state, recipe, outcome.record)}
        ray.get(
            self._recorder.keep_result.remote(
                task.trial, name, task.phase, result, record, outcome.measurement, futile=futile, sent_bytes=sent or 0
            )
        )
        return None

    def _key(self, state: TrialState, recipe: Recipe, record: Mapping[str, Any]) -> dict[str, Any]:
        """What the result is a result of."""
        prepared, before = self._prepared, record.get("state_before", {})
        key = result_key(
            model=prepared.model.digest,
            data={role: prepared.digests[role] for role in ("calibration", "evaluation")},
            preprocess=prepared.digests["preprocess"] or None,
            metric=tuple(metric.name for metric in prepared.scoring.metrics),
            recipe=recipe.digest,
            backend=state.backend,
            facts=self._facts,
            options=self._session.options,
            power_state=" ".join(str(before[k]) for k in ("power_mode", "governor") if before.get(k)) or None,
        )
        return {"digest": key.digest, **asdict(key)}

    def _failed(
        self,
        task: BoardTask,
        cause: str,
        message: str,
        detail: str = "",
        *,
        sent_bytes: int = 0,
        spent_s: float = 0.0,
    ) -> str:
        name = self._session.name
        if self._closing:
            # Cut short by us, which is no failure of the board or the model.
            return "interrupted"
        if task.phase == "final":
            event = events.final(
                task.trial,
                name,
                None,
                cause=cause,
                message=message,
                sent_bytes=sent_bytes,
                device_seconds=spent_s,
            )
        else:
            event = events.failed(task.trial, cause, message, board=name, detail=detail, device_seconds=spent_s)
        ray.get(self._recorder.record.remote(event))
        return message

    def quarantined(self) -> str | None:
        return self._session.quarantined

    def close(self) -> None:
        self._stopping = self._closing = True
        with contextlib.suppress(AgentError):
            self._session.close()
