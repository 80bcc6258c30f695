"""Whatever a quantizer does, a typed result comes back and the worker goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import misbehaving_backends
import numpy as np
import onnx
import pytest
from onnx import helper
from quantize_models import conv_net, model_of, samples, weights, write

from device_agents.host_lock import HostLock
from harness.quantize.contract import Artifact, Cause, QuantizeJob, QuantizeLimits, Refusal
from harness.quantize.identity import file_sha256, identity
from harness.quantize.prepare import prepare_model
from harness.quantize.worker import QuantizeWorker
from harness.recipes.recipe import FLOAT32, Recipe

GOOD = Recipe(activation="uint8", granularity="per_channel")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes and signals of POSIX")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> QuantizeJob:
    folder = tmp_path_factory.mktemp("worker")
    prepared = prepare_model(write(conv_net(), folder / "m.onnx"), folder / "p.onnx")
    data = samples(folder / "c.npz", x=(3, 12, 12))
    limits = QuantizeLimits(timeout_s=60.0, memory_bytes=4 << 30, min_snr_db=15.0)
    return QuantizeJob(prepared.path, data, GOOD, folder / "out.onnx", limits)


@pytest.fixture(scope="module")
def worker() -> Iterator[QuantizeWorker]:
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path, before])
    try:
        with QuantizeWorker(misbehaving_backends.ALL) as made:
            yield made
    finally:
        os.environ["PYTHONPATH"] = before


def ask(worker: QuantizeWorker, job: QuantizeJob, backend: str, **limits: float) -> Refusal:
    job.out.unlink(missing_ok=True)
    recipe = GOOD.with_changes(backend=backend)
    result = worker.quantize(replace(job, recipe=recipe, limits=replace(job.limits, **limits)))
    assert isinstance(result, Refusal), result
    assert not job.out.exists()
    assert not list(job.out.parent.glob(f".{job.out.name}*"))
    return result


def works(worker: QuantizeWorker, job: QuantizeJob) -> Artifact:
    result = worker.quantize(job)
    assert isinstance(result, Artifact), result
    return result


def test_accepts_and_describes(worker: QuantizeWorker, job: QuantizeJob) -> None:
    made = works(worker, job)
    assert made.path == job.out
    assert made.sha256 == file_sha256(job.out)
    assert made.identity == identity(job.out)
    assert made.size_bytes == job.out.stat().st_size
    assert made.snr_db is not None
    assert made.snr_db > 20
    assert made.quantized_operators >= 3
    again = works(worker, job)
    assert again == made
    assert works(worker, replace(job, recipe=FLOAT32)).snr_db is None


@pytest.mark.parametrize(
    ("backend", "cause", "words"),
    [
        ("segfault", Cause.CRASHED, ["SIGSEGV", "misbehaving"]),
        ("abort", Cause.CRASHED, ["SIGABRT"]),
        ("leave", Cause.CRASHED, ["exit code 7"]),
        ("raising", Cause.FAILED, ["list index out of range in the rewriter", "raising"]),
        ("bad-data", Cause.BAD_CALIBRATION, ["calibration data is empty", "give some"]),
        ("hog-at-once", Cause.OUT_OF_MEMORY, ["memory"]),
        ("lying", Cause.DOES_NOT_LOAD, ["not an ONNX model"]),
        ("copying", Cause.NOTHING_QUANTIZED, ["no operator"]),
        ("nonsense", Cause.UNSUPPORTED, ["nonsense", "ort"]),
    ],
)
def test_misbehaviour_is_a_typed_refusal(
    worker: QuantizeWorker, job: QuantizeJob, backend: str, cause: Cause, words: list[str]
) -> None:
    refusal = ask(worker, job, backend)
    assert refusal.cause == cause, refusal
    for word in words:
        assert word in refusal.message
    works(worker, job)


def test_last_words_are_kept(worker: QuantizeWorker, job: QuantizeJob) -> None:
    assert "std::logic_error" in ask(worker, job, "abort").detail
    assert "IndexError" in ask(worker, job, "raising").detail


def test_printing_does_no_harm(worker: QuantizeWorker, job: QuantizeJob) -> None:
    works(worker, replace(job, recipe=GOOD.with_changes(backend="noisy")))


def test_hang_is_killed(worker: QuantizeWorker, job: QuantizeJob) -> None:
    refusal = ask(worker, job, "hang", timeout_s=0.3)
    assert refusal.cause == Cause.TIMEOUT
    for word in ("0.3 s", "misbehaving", "--timeout"):
        assert word in refusal.message
    works(worker, job)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int) -> bool:
    until = time.monotonic() + 30
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not alive(pid)


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@linux
def test_descendants_die_too(worker: QuantizeWorker, job: QuantizeJob) -> None:
    pids = job.out.with_suffix(".pids")
    assert ask(worker, job, "hang-deep", timeout_s=4.0).cause == Cause.TIMEOUT
    assert all(gone(int(pid)) for pid in pids.read_text().split())


@linux
def test_memory_hog_is_killed(worker: QuantizeWorker, job: QuantizeJob) -> None:
    refusal = ask(worker, job, "hog", memory_bytes=400 << 20)
    assert refusal.cause == Cause.OUT_OF_MEMORY
    assert "400 MiB" in refusal.message
    works(worker, job)


@linux
def test_death_of_the_worker_process_is_noticed(worker: QuantizeWorker, job: QuantizeJob) -> None:
    works(worker, job)
    first = worker.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    works(worker, job)
    assert worker.pid != first


@linux
def test_worker_killed_in_the_middle(job: QuantizeJob, worker: QuantizeWorker) -> None:
    """The child dies with its parent; the job is tried once more by a new parent, then given up."""
    pids = job.out.with_suffix(".pids")
    pids.unlink(missing_ok=True)
    children: list[int] = []
    done = threading.Event()

    def kill_whenever_it_hangs() -> None:
        while not done.wait(0.01):
            if pids.exists() and pids.read_text():
                children.extend(int(pid) for pid in pids.read_text().split())
                pids.unlink()
                parent = worker.pid
                if parent:
                    os.kill(parent, signal.SIGKILL)

    works(worker, job)
    killer = threading.Thread(target=kill_whenever_it_hangs)
    killer.start()
    try:
        refusal = ask(worker, job, "hang-deep", timeout_s=60.0)
    finally:
        done.set()
        killer.join()
    assert refusal.cause == Cause.CRASHED
    assert "twice" in refusal.message
    assert len(children) == 4
    # The quantizer itself; what it started is an orphan that no one could name any more.
    assert gone(children[0])
    assert gone(children[2])
    for orphan in children[1::2]:
        os.kill(orphan, signal.SIGKILL)
    works(worker, job)


_CLIENT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import misbehaving_backends
from harness.quantize.contract import QuantizeJob, QuantizeLimits
from harness.quantize.worker import QuantizeWorker
from harness.recipes.recipe import Recipe
worker = QuantizeWorker(misbehaving_backends.ALL)
job = QuantizeJob(Path({model!r}), Path({data!r}), Recipe(backend="hang-deep"), Path({out!r}), QuantizeLimits(600.0))
worker.quantize(job)
"""


@linux
def test_nothing_is_left_when_the_client_is_killed(job: QuantizeJob, tmp_path: Path) -> None:
    tests = str(Path(__file__).parent)
    code = _CLIENT.format(tests=tests, model=str(job.model), data=str(job.calibration), out=str(tmp_path / "o.onnx"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    client = subprocess.Popen([sys.executable, "-c", code], env=env)
    pids = tmp_path / "o.pids"
    until = time.monotonic() + 60
    while not (pids.exists() and pids.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    child = int(pids.read_text().split()[0])
    with open(f"/proc/{child}/stat", encoding="ascii") as file:
        parent = int(file.read().rpartition(")")[2].split()[1])
    assert alive(parent)
    client.kill()
    client.wait()
    assert gone(child)
    assert gone(parent)


def test_spawned_children_do_the_same(job: QuantizeJob, worker: QuantizeWorker) -> None:
    """The way of systems whose libraries do not survive a fork."""
    del worker  # For the environment it sets.
    with QuantizeWorker(misbehaving_backends.ALL, spawn=True) as spawning:
        works(spawning, job)
        assert ask(spawning, job, "segfault").cause == Cause.CRASHED
        assert ask(spawning, job, "hang", timeout_s=5.0).cause == Cause.TIMEOUT


def test_waits_for_a_clock_and_the_wait_is_not_working_time(
    worker: QuantizeWorker, job: QuantizeJob, tmp_path: Path
) -> None:
    locked = replace(job, extra={"host_lock": str(tmp_path)}, limits=replace(job.limits, timeout_s=20.0))
    results: list[object] = []
    with HostLock(tmp_path).clock():
        thread = threading.Thread(target=lambda: results.append(worker.quantize(locked)))
        thread.start()
        thread.join(1.0)
        assert thread.is_alive()
        assert not results
    thread.join(60)
    assert isinstance(results[0], Artifact)

    short = replace(locked, limits=replace(job.limits, timeout_s=4.0))
    with HostLock(tmp_path).clock():
        thread = threading.Thread(target=lambda: results.append(worker.quantize(short)))
        thread.start()
        thread.join(4.5)
        assert thread.is_alive()
    thread.join(60)
    assert isinstance(results[1], Artifact), results[1]


def test_close_is_final_and_repeatable(job: QuantizeJob) -> None:
    worker = QuantizeWorker()
    works(worker, job)
    pid = worker.pid
    assert pid is not None
    worker.close()
    worker.close()
    assert worker.pid is None
    assert gone(pid)


# Real failures of ONNX Runtime's tools.


def test_what_makes_a_rewriter_never_end(worker: QuantizeWorker, tmp_path: Path) -> None:
    """A bias that is also reshaped and added, unprepared: ONNX Runtime's QDQ rewriter loops for ever on it."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv"),
        helper.make_node("Reshape", ["b", "shape"], ["r"], "reshape"),
        helper.make_node("Add", ["c", "r"], ["y"], "add"),
    ]
    constants = {"w": weights(1, 4, 3, 1, 1), "b": weights(2, 4), "shape": np.array([1, 4, 1, 1], np.int64)}
    model = model_of(nodes, constants, {"x": [1, 3, 5, 5]}, {"y": [1, 4, 5, 5]})
    path = write(onnx.shape_inference.infer_shapes(model), tmp_path / "m.onnx")
    data = samples(tmp_path / "c.npz", x=(3, 5, 5))
    works(worker, QuantizeJob(path, data, GOOD, tmp_path / "o.onnx", QuantizeLimits(timeout_s=60.0)))


def test_float_model_that_crashes_the_runtime(worker: QuantizeWorker, tmp_path: Path) -> None:
    """An output of Split left out passes the checker and kills ONNX Runtime in float already."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Split", ["c"], ["s1", ""], "split", axis=1),
        helper.make_node("Relu", ["s1"], ["y"], "relu"),
    ]
    model = model_of(nodes, {"w": weights(1, 4, 3, 1, 1)}, {"x": [1, 3, 5, 5]}, {"y": [1, 2, 5, 5]})
    path = write(model, tmp_path / "m.onnx")
    data = samples(tmp_path / "c.npz", x=(3, 5, 5))
    job = QuantizeJob(path, data, Recipe(scheme="float32"), tmp_path / "o.onnx")
    result = worker.quantize(job)
    assert isinstance(result, Refusal)
    assert result.cause == Cause.CRASHED
    assert "SIGSEGV" in result.message
    assert not job.out.exists()
