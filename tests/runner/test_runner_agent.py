"""The agent over transports that misbehave, and sessions that exclude each other."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from device_agents.contract import (
    BadData,
    BlockRequest,
    BoardUnfit,
    DataRef,
    DeviceReboot,
    LeaseLost,
    LinkError,
    Pipeline,
    RuntimeOptions,
)
from device_agents.local import LocalTransport, local_agent
from device_agents.runner_agent import RunnerAgent
from device_agents.runner_package import build_runner
from device_agents.transport import checked_relpath

EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion_mnist"
SHORT = BlockRequest(min_count=5, min_ns=1, max_ns=10**10)

LAUNCHER = """
import os, sys
launcher, pyz, command = os.path.abspath(sys.argv[0]), *sys.argv[1:]
sys.path.insert(0, pyz)
import runner
from runner.machine import MachinePlatform
class Scripted(MachinePlatform):
    def boot_id(self):
        return open(os.path.join(os.path.dirname(launcher), "boot_id")).read()
    def child_command(self):
        return [sys.executable, launcher, pyz, "child"]
if command == "serve":
    sys.stdout.write("Welcome to the board! " * int(open(os.path.join(os.path.dirname(launcher), "noise")).read()))
    sys.stdout.flush()
raise SystemExit(runner.main([command], platform=Scripted()))
"""


class ScriptedTransport(LocalTransport):
    """Starts the uploaded runner through a launcher whose boot id and noise the test sets; breaks uploads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(None, folder / "board")
        self.script = folder / "script"
        self.script.mkdir()
        (self.script / "launcher.py").write_text(LAUNCHER)
        self.set(boot_id="boot-1", noise=0)
        self.break_after: list[int] = []
        self.started = 0

    def set(self, **values: object) -> None:
        for name, value in values.items():
            (self.script / name).write_text(str(value))

    def start(self, args: Sequence[str], deadline_s: float):
        self.started += 1
        return super().start([str(self.script / "launcher.py"), *args], deadline_s)

    def upload(self, local: Path, relpath: str, offset: int, deadline_s: float) -> int:
        if not self.break_after:
            return super().upload(local, relpath, offset, deadline_s)
        part = self.script / "part"
        part.write_bytes(local.read_bytes()[: offset + self.break_after.pop(0)])
        super().upload(part, relpath, offset, deadline_s)
        raise LinkError("planted: the link dropped during the upload")


def save(path: Path, slope: float) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "slope"], ["y"], name="mul")],
        "g", [x], [y], [numpy_helper.from_array(np.float32(slope), "slope")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def deploy(agent: RunnerAgent, path: Path) -> str:
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    agent.deploy(path, sha256)
    return sha256


@pytest.fixture
def transport(tmp_path: Path) -> ScriptedTransport:
    return ScriptedTransport(tmp_path)


@pytest.fixture
def agent(transport: ScriptedTransport) -> Iterator[RunnerAgent]:
    agent = RunnerAgent("scripted", transport, cache_bytes=100_000_000)
    yield agent
    agent.close()


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_a_reboot_is_noticed_at_the_next_reply_and_recovered_from(agent, transport, tmp_path: Path) -> None:
    assert agent.connect().boot_id == "boot-1"
    path = save(tmp_path / "m.onnx", 2.0)
    session = agent.load(deploy(agent, path), RuntimeOptions()).session
    transport.set(boot_id="boot-2")
    with pytest.raises(DeviceReboot, match="void") as caught:
        agent.measure(session, {"x": X}, SHORT)
    assert "boot-1" in caught.value.detail
    assert caught.value.board == "scripted"
    with pytest.raises(LinkError, match="rebooted"):
        agent.measure(session, {"x": X}, SHORT)
    assert agent.recover().boot_id == "boot-2"
    session = agent.load(deploy(agent, path), RuntimeOptions()).session
    assert agent.measure(session, {"x": X}, SHORT).boot_id == "boot-2"


def test_login_noise_is_skipped_up_to_its_limit(agent, transport) -> None:
    transport.set(noise=2500)
    assert agent.connect().boot_id == "boot-1"
    agent.close()
    transport.set(noise=4000)
    with pytest.raises(BoardUnfit, match="65536 bytes"):
        agent.connect()


@pytest.mark.parametrize("damage", ["cut", "flipped", "zeroed"])
def test_a_damaged_runner_on_the_board_is_sent_again(agent, transport, tmp_path: Path, damage: str) -> None:
    agent.connect()
    agent.close()
    data, sha256 = build_runner()
    pyz = tmp_path / "board" / "runner" / f"{sha256}.pyz"
    if damage == "cut":
        pyz.write_bytes(data[:1000])
    elif damage == "zeroed":
        pyz.write_bytes(bytes(len(data)))
    else:
        # In a comment of a source file: it still runs, but is not what was sent.
        at = data.index(b"# The clock around every inference")
        pyz.write_bytes(data[: at + 5] + b"X" + data[at + 6 :])
    if damage == "zeroed":
        agent = RunnerAgent("plain", LocalTransport(None, tmp_path / "board"))
    agent.connect()
    agent.close()
    assert pyz.read_bytes() == data


def test_an_upload_goes_on_after_every_drop(agent, transport, tmp_path: Path) -> None:
    agent.connect()
    path = tmp_path / "f"
    path.write_bytes(os.urandom(100_000))
    transport.break_after = [10_000, 20_000, 0, 0, 30_000]
    report = agent.deploy(path, hashlib.sha256(path.read_bytes()).hexdigest())
    assert report.sent_bytes == 100_000
    assert not report.resumed
    assert agent.has(report.sha256)


def test_an_upload_without_progress_gives_up(agent, transport, tmp_path: Path) -> None:
    agent.connect()
    path = tmp_path / "f"
    path.write_bytes(os.urandom(1000))
    transport.break_after = [0] * 50
    with pytest.raises(LinkError, match="planted"):
        deploy(agent, path)
    assert len(transport.break_after) == 45
    assert agent.health().boot_id == "boot-1"


# ---- exclusive sessions --------------------------------------------------------------------------------------------


def test_exclusive_sessions_take_turns(tmp_path: Path) -> None:
    agent = local_agent("npu", workdir=tmp_path / "board", exclusive_sessions=True)
    agent.connect()
    try:
        one = agent.load(deploy(agent, save(tmp_path / "a.onnx", 2.0)), RuntimeOptions()).session
        two = agent.load(deploy(agent, save(tmp_path / "b.onnx", 5.0)), RuntimeOptions()).session
        pid = agent._link._client._channel._process.pid
        firsts = []
        for session, slope in [(one, 2), (two, 5), (one, 2), (one, 2)]:
            firsts.append(agent.measure(session, {"x": X}, SHORT).first_ns)
            np.testing.assert_array_equal(agent.infer(session, {"x": X}).outputs["y"], slope * X)
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            assert len(children) == 1
        # Loading again is a first inference too, but not the session's.
        assert firsts[2:] == [None, None]
        agent.unload(two)
        agent.unload(one)
        with pytest.raises(BadData):
            agent.infer(one, {"x": X})
    finally:
        agent.close()


# ---- pipeline ------------------------------------------------------------------------------------------------------


def test_a_pipeline_makes_the_model_s_input_on_the_device(agent) -> None:
    agent.connect()
    model = EXAMPLE / "model.onnx"
    raw = np.load(EXAMPLE / "eval.npz", allow_pickle=False)["image"][:20]
    pipeline = Pipeline(scale=1 / 255, expand_axis=0, post="argmax")
    report = agent.load(deploy(agent, model), RuntimeOptions(), pipeline)
    reference = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    expected = reference.run(None, {"image": (raw[:, None] / 255).astype(np.float32)})[0].argmax(axis=1)
    ref = DataRef(deploy(agent, EXAMPLE / "eval.npz"), tuple(range(20)))
    for samples, batch in [({"image": raw}, 1), ({"image": raw}, 6), (ref, 20)]:
        np.testing.assert_array_equal(agent.infer(report.session, samples, batch).outputs["logits"], expected)
    assert len(agent.measure(report.session, ref, SHORT).samples_ns) == 5
    with pytest.raises(BadData, match="after the pipeline"):
        agent.infer(report.session, {"image": raw[:, :, :7]})


# ---- this machine --------------------------------------------------------------------------------------------------


def test_a_python_that_is_not_there(tmp_path: Path) -> None:
    agent = local_agent(python=str(tmp_path / "no-python"), workdir=tmp_path / "board")
    with pytest.raises(BoardUnfit, match="no-python"):
        agent.connect()
    agent.close()


@pytest.mark.parametrize(
    ("module", "text", "match"),
    [
        ("numpy", "raise ModuleNotFoundError('none', name='numpy')", "has no package 'numpy'"),
        ("onnxruntime", "raise ModuleNotFoundError('none', name='onnxruntime')", "has no package 'onnxruntime'"),
        ("onnxruntime", "raise ImportError('libfoo.so: no such file')", "libfoo.so"),
        ("onnxruntime", "__version__ = '1.15.1'", "1.15.1 is too old.*1.16"),
    ],
)
def test_a_python_without_what_the_runner_needs(tmp_path: Path, module: str, text: str, match: str) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / f"{module}.py").write_text(text)
    python = tmp_path / "bare-python"
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH={tmp_path}/lib\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    agent = local_agent(python=str(python), workdir=tmp_path / "board")
    with pytest.raises(BoardUnfit, match=match) as caught:
        agent.connect()
    assert "pip install" in caught.value.hint
    agent.close()


def test_two_agents_of_one_folder_exclude_each_other(tmp_path: Path) -> None:
    first, second = (local_agent(name, workdir=tmp_path / "board") for name in ("first", "second"))
    first.connect()
    with pytest.raises(LeaseLost, match=f"process {os.getpid()}"):
        second.connect()
    first.close()
    second.connect()
    second.close()


def test_a_work_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    agent = local_agent(workdir=tmp_path / "file" / "board")
    with pytest.raises(BoardUnfit, match="board"):
        agent.connect()
    agent.close()


def test_closing_leaves_no_process(tmp_path: Path) -> None:
    agent = local_agent(workdir=tmp_path / "board")
    agent.connect()
    agent.load(deploy(agent, save(tmp_path / "m.onnx", 1.0)), RuntimeOptions())
    pid = agent._link._client._channel._process.pid
    agent.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../b", "-rf", "a//b", "a b", "a;b", "a/.ssh", "ä", "a\n"]
)
def test_paths_that_leave_the_work_folder_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        checked_relpath(path)


def test_paths_of_our_own_are_taken() -> None:
    for path in ("runner/ab12.pyz", "models/ab12.part", "a_b/c-d.e"):
        assert checked_relpath(path) == path
