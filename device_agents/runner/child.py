"""The process that executes one model. Commands come in and replies go out as frames on its standard streams.

It ends when its input ends, and on Linux also when its parent dies, whatever it is doing at that moment.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from . import frames, streams
from .errors import RunnerError
from .platform import Options, Platform, Plugin, Session, Spec

Reply = Tuple[Dict[str, Any], Sequence[frames.Buffer]]
Command = Tuple[frames.Header, List[frames.Buffer]]


def run_child(platform: Platform) -> int:
    source, sink = streams.claim_standard_streams()
    _die_with_parent()
    commands: "queue.Queue[Command]" = queue.Queue()
    threading.Thread(target=_listen, args=(source, commands), daemon=True).start()
    executor = Executor(platform)
    while True:
        header, blobs = commands.get()
        reply, out = executor.answer(header, blobs)
        for part in frames.encode(reply, out):
            streams.write_all(sink, part)


def _listen(source: int, commands: "queue.Queue[Command]") -> None:
    try:
        while True:
            commands.put(frames.read_frame(lambda size: streams.read_exact(source, size)))
    except (streams.EndOfStream, OSError, frames.FrameError):
        os._exit(0)  # nobody is left to answer; the main thread may be deep inside a native call


def _die_with_parent() -> None:
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # if memory runs out, this process goes, not the runner
    except (OSError, AttributeError):
        pass
    if os.getppid() == 1:
        os._exit(0)


class Executor:
    """At most one loaded model, and what can be asked of it."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._session: Optional[Session] = None
        self._pipeline_spec: Optional[Mapping[str, Any]] = None
        self._ran = False

    def answer(self, header: frames.Header, blobs: Sequence[frames.Buffer]) -> Reply:
        operation = getattr(self, "_op_" + str(header.get("op")), None)
        try:
            if operation is None:
                raise RunnerError("BadData", "unknown command {!r}".format(header.get("op")))
            reply, out = operation(header, blobs)
        except RunnerError as error:
            return {"ok": False, "error": error.to_wire()}, ()
        except MemoryError as error:
            return {"ok": False, "error": RunnerError("OutOfMemory", "out of memory: {}".format(error)).to_wire()}, ()
        return dict(reply, ok=True), out

    # ---- commands ------------------------------------------------------------------------------------------------

    def _op_facts(self, header: frames.Header, blobs: Sequence[frames.Buffer]) -> Reply:
        return {"facts": self._platform.facts()}, ()

    def _op_load(self, header: frames.Header, blobs: Sequence[frames.Buffer]) -> Reply:
        options = options_from_wire(header["options"])
        self._pipeline_spec = header.get("pipeline")
        self._warm_imports()
        started = self._platform.clock_ns()
        session = self._guarded("load", lambda: self._platform.make_session(str(header["path"]), options))
        load_ns = self._platform.clock_ns() - started
        self._session = session
        return {
            "load_ns": load_ns,
            "inputs": [_spec_to_wire(spec) for spec in session.inputs],
            "outputs": [_spec_to_wire(spec) for spec in session.outputs],
            "assignment": session.assignment(),
            "placement_notes": session.placement_notes(),
            "compiled_sha256": session.compiled_sha256,
            "peak_memory_bytes": self._platform.peak_memory_bytes(),
        }, ()

    def _op_profile(self, header: frames.Header, blobs: Sequence[frames.Buffer]) -> Reply:
        options = options_from_wire(header["options"])
        kernels = self._guarded(
            "load", lambda: self._platform.profile(str(header["path"]), options, str(header["folder"]))
        )
        notes = self._platform.profile_notes()
        return {
            "kernels": [list(kernel) for kernel in kernels],
            "refusals": notes.refusals,
            "assignment": notes.assignment,
        }, ()

    def _op_measure(self, header: frames.Header, blobs: Sequence[frames.Buffer]) -> Reply:
        from .timing import timed_block

        session, feeder = self._ready(header, blobs, int(header["rows"]))
        raws = list(feeder.timed(max(1, int(header.get("batch", 1)))))
        if self._pipeline_spec is None:
            items: List[Any] = [feeder.feed(raw) for raw in raws]
            run = session.run
        else:
            items = raws
            feed, finish = self._processing(feeder)

            def run(raw: Any) -> Any:
                return finish(session.run(feed(raw)))

        clock = self._platform.clock_ns
        self._platform.begin_block(str(header.get("label", "")))
        before = self._platform.state()
        first_ns: Optional[int] = None
        if not self._ran:
            started = clock()
            self._guarded("run", lambda: run(items[0]))
            first_ns = clock() - started
            self._ran = True
        samples = self._guarded(
            "run",
            lambda: timed_block(
                run, items, clock, int(header["min_count"]), int(header["min_ns"]), int(header["max_ns"])
            ),
        )
        if sys.byteorder != "little":
            samples.byteswap()
        return {
            "first_ns": first_ns,
            "before": before,
            "after": self._platform.state(),
            "peak_memory_bytes": self._platform.peak_memory_bytes(),
        }, [samples.tobytes()]

    def _op_infer(self, header: frames.Header, blobs: Sequence[frames.Buffer]) -> Reply:
        from . import arrays, feeds

        session, feeder = self._ready(header, blobs, None)
        batch = max(1, int(header.get("batch", 1)))
        feed, finish = self._processing(feeder)
        collector = feeds.Collector(session.outputs)
        for real, raw in feeder.batches(batch):
            values = self._guarded("run", lambda: finish(session.run(feed(raw))))  # noqa: B023 (called at once)
            collector.add(values, real, feeder.group or real)
            self._ran = True
        described, out = arrays.to_wire(collector.result())
        return {"arrays": described, "peak_memory_bytes": self._platform.peak_memory_bytes()}, out

    def _op_self_test(self, header: frames.Header, blobs: Sequence[frames.Buffer]) -> Reply:
        from .self_test import self_test

        return {"findings": self_test(self._platform, str(header["folder"]), float(header["seconds"]))}, ()

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _warm_imports(self) -> None:
        """The runtime's import time is not the model's load time."""
        self._platform.facts()

    def _pipeline(self) -> Any:
        from .pipeline import Pipeline

        return Pipeline(self._pipeline_spec or {})

    def _processing(self, feeder: Any) -> Tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        """(from raw arrays to the model's inputs, from its outputs to those returned), on the platform's clock."""
        if self._pipeline_spec is None:
            return feeder.feed, lambda outputs: outputs
        pipeline = self._pipeline()

        def after(outputs: Any) -> Any:
            return [pipeline.after(output) for output in outputs]

        process = self._platform.processing()
        if process is None:
            return feeder.feed, after

        def feed(raw: Any) -> Any:
            return process(feeder.work(raw), lambda: feeder.feed(raw))

        def finish(outputs: Any) -> Any:
            work = [each for output in outputs for each in pipeline.work_after(output)]
            return process(work, lambda: after(outputs))

        return feed, finish

    def _ready(self, header: frames.Header, blobs: Sequence[frames.Buffer], rows: Optional[int]) -> Any:
        """(session, feeder) for the samples a command names; the first ``rows`` of them."""
        from . import arrays, feeds
        from .npz import NpzRows

        if self._session is None:
            raise RunnerError("BadData", "no model is loaded")
        source: Any
        chosen = header.get("row_indices")
        if header.get("data_path"):
            source = NpzRows(str(header["data_path"]))
        else:
            try:
                source = feeds.Samples(arrays.from_wire(header.get("arrays") or [], blobs))
            except (ValueError, TypeError, KeyError) as error:
                raise RunnerError("BadData", "the samples sent do not decode: {}".format(error)) from None
        pipeline = self._pipeline() if self._pipeline_spec is not None else None
        feeder = feeds.Feeder(self._session.inputs, source, chosen, pipeline, exact=not header.get("data_path"))
        if rows is not None:
            feeder.rows = feeder.rows[: max(1, rows)]
        return self._session, feeder

    def _guarded(self, phase: str, action: Any) -> Any:
        try:
            return action()
        except RunnerError:
            raise
        except Exception as error:
            kind, message = self._platform.classify(error, phase)
            raise RunnerError(kind, message[:4000]) from error


def options_from_wire(value: Mapping[str, Any]) -> Options:
    return Options(
        [(str(name), {str(k): str(v) for k, v in pairs}) for name, pairs in value["providers"]],
        int(value["intra_op_threads"]),
        int(value["inter_op_threads"]),
        str(value["graph_optimization"]),
        {str(k): str(v) for k, v in value["session_config"]},
        tuple(
            Plugin(str(each["provider"]), str(each["library"]), str(each["device"]))
            for each in value.get("plugins") or ()
        ),
    )


def _spec_to_wire(spec: Spec) -> List[Any]:
    return [spec.name, spec.dtype, list(spec.shape)]
