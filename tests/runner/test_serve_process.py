"""The runner as a process, driven frame by frame: what holds when links, controllers and processes die."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from device_agents.runner import arrays, frames
from device_agents.runner_package import build_runner

LIMIT_S = 60.0


class Runner:
    """One ``serve`` process in ``folder``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        pyz = folder / "runner" / f"{build_runner()[1]}.pyz"
        pyz.parent.mkdir(exist_ok=True)
        pyz.write_bytes(build_runner()[0])
        self.process = subprocess.Popen(
            [sys.executable, f"runner/{pyz.name}", "serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, bufsize=0,
        )  # fmt: skip
        assert self._exactly(len(frames.MARKER)) == frames.MARKER
        self._count = 0

    def send(self, operation: str, blobs=(), name: str | None = None, **fields) -> str:
        self._count += 1
        name = name or f"{self._count:08x}"
        for part in frames.encode({"id": name, "op": operation, "deadline_s": 30.0, **fields}, blobs):
            self.process.stdin.write(part)
        return name

    def receive(self):
        return frames.read_frame(self._exactly)

    def ask(self, operation: str, blobs=(), **fields):
        name = self.send(operation, blobs, **fields)
        reply, out = self.receive()
        assert reply["id"] == name
        return reply, out

    def hello(self, controller: str, **fields):
        return self.ask("hello", controller=controller, holder=f"{controller}@host", **fields)[0]

    def drop(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.process.stdout.read(size - len(data))
            if not chunk:
                raise EOFError(self.process.stderr.read().decode())
            data += chunk
        return data


@pytest.fixture
def start(tmp_path: Path):
    started: list[Runner] = []

    def start_one() -> Runner:
        started.append(Runner(tmp_path / "board"))
        return started[-1]

    yield start_one
    for runner in started:
        with contextlib.suppress(OSError):
            runner.process.kill()
        runner.process.wait(timeout=10)
        for stream in (runner.process.stdin, runner.process.stdout, runner.process.stderr):
            stream.close()


@pytest.fixture
def model(tmp_path: Path) -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"], name="neg")], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


OPTIONS = {
    "providers": [["CPUExecutionProvider", []]], "intra_op_threads": 1, "inter_op_threads": 1,
    "graph_optimization": "all", "session_config": [],
}  # fmt: skip


def deployed(runner: Runner, folder: Path, data: bytes) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    (folder / "models" / f"{sha256}.part").write_bytes(data)
    assert runner.ask("commit", sha256=sha256, size=len(data))[0]["ok"]
    return sha256


def loaded(runner: Runner, folder: Path, data: bytes) -> str:
    reply, _ = runner.ask("load", sha256=deployed(runner, folder, data), options=OPTIONS)
    assert reply["ok"], reply
    return reply["session"]


def measure_fields(min_ns: int):
    described, blobs = arrays.to_wire({"x": np.zeros((1, 2), np.float32)})
    return blobs, {"min_count": 1, "min_ns": min_ns, "max_ns": 10**11, "rows": 1, "arrays": described}


def until(condition, what: str):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {LIMIT_S} s: {what}")


def ended(runner: Runner) -> int:
    return runner.process.wait(timeout=LIMIT_S)


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    """Dead, or a zombie whose reaper is slow."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_result_outlives_its_connection(start, tmp_path: Path, model: bytes) -> None:
    folder = tmp_path / "board"
    first = start()
    assert first.hello("me")["ok"]
    session = loaded(first, folder, model)
    blobs, fields = measure_fields(1_500_000_000)
    first.send("measure", blobs, name="feedbeef", session=session, **fields)
    until((folder / "results" / "feedbeef.running").exists, "the request is in hand")
    first.drop()
    second = start()
    states = []

    def done():
        reply, out = second.ask("fetch", request="feedbeef")
        assert reply["ok"], reply
        states.append(reply["state"])
        return out if reply["state"] == "done" else None

    (frame,) = until(done, "the result is kept")
    assert states[0] == "running"
    rest = memoryview(frame)

    def read_exact(size: int):
        nonlocal rest
        head, rest = rest[:size], rest[size:]
        return head

    reply, out = frames.read_frame(read_exact)
    assert reply["ok"]
    assert reply["id"] == "feedbeef"
    assert np.frombuffer(out[0], "<i8").sum() > 500_000_000
    assert ended(first) == 0
    assert second.hello("me", wait_s=10)["ok"]
    assert second.ask("fetch", request="0000beef")[0]["state"] == "unknown"


def test_hang_up_and_broken_pipe_do_not_end_the_work(start, tmp_path: Path, model: bytes) -> None:
    folder = tmp_path / "board"
    runner = start()
    runner.hello("me")
    session = loaded(runner, folder, model)
    blobs, fields = measure_fields(500_000_000)
    runner.send("measure", blobs, name="feedbeef", session=session, **fields)
    until((folder / "results" / "feedbeef.running").exists, "the request is in hand")
    os.kill(runner.process.pid, signal.SIGHUP)
    os.kill(runner.process.pid, signal.SIGPIPE)
    runner.drop()
    assert ended(runner) == 0
    assert (folder / "results" / "feedbeef").stat().st_size > 100


def test_a_second_controller_is_told_who_holds_the_board(start) -> None:
    first, second = start(), start()
    token = first.hello("alice")["token"]
    error = second.hello("bob")["error"]
    assert error["kind"] == "LeaseLost"
    assert "alice@host" in error["message"]
    assert second.ask("has", sha256="0" * 64)[0]["error"]["kind"] == "LeaseLost"
    first.ask("stop")
    assert ended(first) == 0
    assert second.hello("bob")["token"] == token + 1


def test_a_dead_runner_s_lease_is_free_at_once(start) -> None:
    first, second = start(), start()
    first.hello("alice")
    first.process.kill()
    first.process.wait(timeout=LIMIT_S)
    assert second.hello("bob")["ok"]


def test_an_orphan_at_work_is_waited_for(start, tmp_path: Path, model: bytes) -> None:
    folder = tmp_path / "board"
    first = start()
    first.hello("alice")
    session = loaded(first, folder, model)
    blobs, fields = measure_fields(1_000_000_000)
    first.send("measure", blobs, name="feedbeef", session=session, **fields)
    until((folder / "results" / "feedbeef.running").exists, "the request is in hand")
    first.drop()
    second = start()
    assert second.hello("bob", wait_s=30)["ok"]
    assert (folder / "results" / "feedbeef").exists()


def test_the_same_controller_replaces_its_idle_runner(start) -> None:
    first = start()
    first.hello("me")
    # The connection of the first still stands as far as the board can tell.
    second = start()
    assert second.hello("me", wait_s=10)["ok"]
    assert ended(first) == -signal.SIGTERM


def test_a_runner_whose_folder_was_replaced_has_lost_the_board(start, tmp_path: Path) -> None:
    first = start()
    first.hello("alice")
    (tmp_path / "board").rename(tmp_path / "old")
    second = start()
    assert second.hello("bob")["ok"]
    error = first.ask("has", sha256="0" * 64)[0]["error"]
    assert error["kind"] == "LeaseLost"
    assert "bob@host" in error["message"]


def test_children_die_with_the_runner(start, tmp_path: Path, model: bytes) -> None:
    runner = start()
    runner.hello("me")
    loaded(runner, tmp_path / "board", model)
    (child,) = children(runner.process.pid)
    runner.process.kill()
    until(lambda: gone(child), "the child is gone")


def test_an_idle_child_that_is_killed_is_a_crash(start, tmp_path: Path, model: bytes) -> None:
    runner = start()
    runner.hello("me")
    session = loaded(runner, tmp_path / "board", model)
    (child,) = children(runner.process.pid)
    os.kill(child, signal.SIGABRT)
    blobs, fields = measure_fields(1)
    reply, _ = runner.ask("measure", blobs, session=session, **fields)
    assert reply["error"]["kind"] == "DeviceCrash"
    assert "SIGABRT" in reply["error"]["message"]
    assert runner.ask("health")[0]["ok"]


def test_malformed_requests_are_answered_and_survived(start) -> None:
    runner = start()
    runner.hello("me")
    for operation, fields in [
        ("dance", {}),
        ("__init__", {}),
        ("has", {}),
        ("has", {"sha256": 7}),
        ("load", {"sha256": "0" * 64}),
        ("measure", {"session": "x"}),
        ("infer", {"session": ["x"], "batch": 1}),
        ("make_room", {"sha256": "0" * 64, "size": "much", "cache_bytes": 1}),
    ]:
        reply, _ = runner.ask(operation, **fields)
        assert reply["error"]["kind"] == "BadData", (operation, reply)
    assert runner.ask("health")[0]["ok"]


def test_what_native_code_prints_stays_out_of_the_stream(tmp_path: Path) -> None:
    """Descriptor 1 is written to below Python, as a driver library does it, in both processes."""
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        "import os, sys\n"
        "pyz, command = sys.argv[1:]\n"
        "sys.path.insert(0, pyz)\n"
        "import runner\n"
        "from runner.machine import MachinePlatform\n"
        "class Chatty(MachinePlatform):\n"
        "    def facts(self):\n"
        "        os.write(1, b'driver: hello\\n'); os.system('echo from a shell')\n"
        "        return dict(super().facts(), hardware_id='chatty')\n"
        "    def state(self):\n"
        "        os.write(1, b'driver: state\\n')\n"
        "        return super().state()\n"
        "    def child_command(self):\n"
        "        return [sys.executable, os.path.abspath(sys.argv[0]), pyz, 'child']\n"
        "raise SystemExit(runner.main([command], platform=Chatty()))\n"
    )
    pyz = tmp_path / "runner.pyz"
    pyz.write_bytes(build_runner()[0])

    class Launched(Runner):
        def __init__(self) -> None:
            self.process = subprocess.Popen(
                [sys.executable, launcher, pyz, "serve"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, bufsize=0,
            )  # fmt: skip
            assert self._exactly(len(frames.MARKER)) == frames.MARKER
            self._count = 0

    runner = Launched()
    try:
        assert runner.hello("me")["runner_sha256"] == build_runner()[1]
        assert runner.ask("describe")[0]["facts"]["hardware_id"] == "chatty"
        assert runner.ask("health")[0]["ok"]
        runner.ask("stop")
        assert b"driver: state" in runner.process.stderr.read()
    finally:
        runner.process.kill()
        runner.process.wait(timeout=10)
        runner.drop()
        runner.process.stderr.close()


def test_onnx_model_of_this_file_is_valid(model: bytes) -> None:
    onnx.checker.check_model(onnx.load_from_string(model))
