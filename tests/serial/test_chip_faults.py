"""Everything that goes wrong with a microcontroller, planted below the agent that must name it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serial

from device_agents.contract import (
    AgentError,
    BlockRequest,
    BoardUnfit,
    DeviceCrash,
    DeviceReboot,
    DeviceTimeout,
    LinkError,
    ModelRejected,
    OutOfMemory,
    RuntimeOptions,
)
from device_agents.emulated.chip.line import SerialLine
from device_agents.emulated.chip.power import chip_agent
from device_agents.emulated.chip.spec import EmulatedChipSpec, Line
from device_agents.serial.agent import SerialAgent
from device_agents.serial.port import Found, SerialTarget
from tests.serial.host_firmware import running

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "tests/espdl/golden/tiny_images-esp32s3-w8a8.espdl"
MODEL_SHA256 = hashlib.sha256(MODEL.read_bytes()).hexdigest()
CANARY = hashlib.sha256((ROOT / "harness/boards/canaries/firmware-1.txt").read_bytes()).hexdigest()
SHORT = BlockRequest(min_count=3, min_ns=1, max_ns=10**11)


def spec(**changes: Any) -> EmulatedChipSpec:
    chip = {
        "target": "esp32s3",
        "cpu_mhz": 240,
        "internal_kb": 300,
        "psram_kb": 1024,
        "flash_kb": 512,
        "arena_kb": 1024,
        **changes.pop("chip", {}),
    }
    costs = {
        "name": "test",
        "ms_per_mmac": 1.0,
        "ms_per_mactivation": 10.0,
        "canary_us": 1000,
        "leave_one_out_error": 0.0,
    }
    return EmulatedChipSpec.model_validate({"chip": chip, "cost_model": costs, **changes})


def fault(kind: str, during: str = "RUN", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "during": during, **more}


@contextmanager
def chip(*faults: dict[str, Any], **changes: Any) -> Iterator[SerialAgent]:
    agent = chip_agent("chip", spec(faults=faults, **changes))
    try:
        yield agent
    finally:
        agent.close()


def picture(count: int = 2) -> dict[str, np.ndarray]:
    return {"picture": np.random.default_rng(1).standard_normal((count, 16, 16, 8)).astype(np.float32)}


def samples(agent: SerialAgent, report: Any, count: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {name: rng.standard_normal((count, *shape[1:])).astype(np.float32) for name, _, shape in report.inputs}


def everything(agent: SerialAgent, deadline_s: float = 20.0) -> dict[str, np.ndarray]:
    """Each kind of request at least once."""
    agent.deploy(MODEL, MODEL_SHA256, deadline_s)
    report = agent.load(MODEL_SHA256, RuntimeOptions(), deadline_s=deadline_s)
    inputs = samples(agent, report)
    agent.measure(report.session, inputs, SHORT, deadline_s)
    agent.test_model(report.session, deadline_s)
    outputs = agent.infer(report.session, inputs, deadline_s=deadline_s).outputs
    agent.health()
    agent.unload(report.session)
    return dict(outputs)


# ---- nothing there, or not ours ------------------------------------------------------------------------------------


def target(tmp_path: Path, **fields: Any) -> SerialTarget:
    return SerialTarget(lock_dir=tmp_path / "locks", **fields)


def test_no_such_port(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="no port /dev/ttyUSB77"):
        SerialAgent("chip", target(tmp_path, port="/dev/ttyUSB77")).connect()
    with pytest.raises(LinkError, match="no serial port"):
        SerialAgent("chip", target(tmp_path, mac="02:00:00:00:00:09", list_ports=list)).connect()
    found = [Found("/dev/ttyACM0", "B8")]
    with pytest.raises(LinkError, match=r"A7.*ttyACM0 \(B8\)"):
        SerialAgent("chip", target(tmp_path, usb_serial="A7", list_ports=lambda: found)).connect()


def test_a_port_that_another_program_holds(tmp_path: Path) -> None:
    line = SerialLine(Line(), _nowhere())
    with (
        serial.Serial(line.port, exclusive=True),
        pytest.raises(LinkError, match="busy"),
    ):
        SerialAgent("chip", target(tmp_path, port=line.port)).connect()


def _nowhere() -> int:
    import os

    return os.pipe()[0]


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        pytest.param("silent", DeviceTimeout, "starts, and does not answer", marks=pytest.mark.slow),
        pytest.param("garbage", LinkError, "no frame", marks=pytest.mark.slow),
        ("text", BoardUnfit, "text"),
        ("old_firmware", BoardUnfit, r"version 0.*flash"),
        ("reset_loop", DeviceReboot, "again and again"),
    ],
)
def test_boards_that_do_not_speak(kind: str, error: type[AgentError], words: str) -> None:
    with chip(fault(kind, "HELLO", times=None)) as agent, pytest.raises(error, match=words) as caught:
        agent.connect(deadline_s=8.0)
    assert caught.value.board == "chip"


# ---- resets --------------------------------------------------------------------------------------------------------

COMMANDS = ["HAVE", "PUT_BEGIN", "PUT_CHUNK", "PUT_END", "LOAD", "SET_INPUT", "RUN", "PROFILE", "READ", "STATE"]


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    """What :func:`everything` computes on a board that is well."""
    with chip() as agent:
        agent.connect()
        return everything(agent)


QUICK = {"RUN", "PUT_CHUNK"}
"""A board takes a second to start: the other commands are for those who have the time."""


@pytest.mark.parametrize(
    "command",
    [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in [*COMMANDS, "SELFTEST", "UNLOAD"]],
)
def test_a_reset_in_the_middle_of_each_command(command: str, expected: dict[str, np.ndarray]) -> None:
    with chip(fault("reset", command)) as agent:
        agent.connect()
        with pytest.raises(DeviceReboot, match="reboot"):
            everything(agent)
        agent.recover()
        got = everything(agent)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("panic", DeviceCrash, r"LoadProhibited during (RUN|LOAD).*backtrace 0x4200c5cf"),
        ("task_watchdog", DeviceCrash, "task watchdog"),
        ("brownout", DeviceReboot, "brown-out"),
    ],
)
@pytest.mark.parametrize("command", ["RUN", pytest.param("LOAD", marks=pytest.mark.slow)])
def test_the_reason_of_a_crash_is_told(kind: str, error: type[AgentError], words: str, command: str) -> None:
    with chip(fault(kind, command)) as agent:
        agent.connect()
        with pytest.raises(error, match=words) as caught:
            everything(agent)
        assert type(caught.value) is error
        assert caught.value.detail
        agent.recover()
        everything(agent)


def test_a_hang_is_a_timeout_and_the_board_is_reset() -> None:
    with chip(fault("hang", "RUN")) as agent:
        agent.connect()
        report = agent.load(CANARY, RuntimeOptions())
        with pytest.raises(DeviceTimeout):
            agent.infer(report.session, picture(), deadline_s=1.5)
        with pytest.raises(LinkError, match="load it again"):
            agent.infer(report.session, picture())
        agent.recover()
        assert agent.load(CANARY, RuntimeOptions()).session


# ---- the line ------------------------------------------------------------------------------------------------------


def big_file(tmp_path: Path, size: int = 200_000) -> tuple[Path, str]:
    data = np.random.default_rng(9).bytes(size)
    (tmp_path / "big").write_bytes(data)
    return tmp_path / "big", hashlib.sha256(data).hexdigest()


def test_unplugged_in_an_upload_and_back_at_another_port(tmp_path: Path) -> None:
    path, sha256 = big_file(tmp_path)
    with chip(fault("unplug", "PUT_CHUNK", after=20)) as agent:
        before = agent.connect()
        port = agent._link._opened.port.name  # type: ignore[union-attr]
        report = agent.deploy(path, sha256)
        assert agent._link._opened.port.name != port  # type: ignore[union-attr]
        # What had arrived was not sent again.
        assert report.sent_bytes < 200_000 + 10 * 4096
        assert agent.has(sha256)
        assert agent.describe().boot_id == before.boot_id


@pytest.mark.parametrize(
    "kind", ["corrupt", pytest.param("drop", marks=pytest.mark.slow), pytest.param("noise", marks=pytest.mark.slow)]
)
def test_a_bad_line_costs_time_and_nothing_else(kind: str, tmp_path: Path, expected: dict[str, np.ndarray]) -> None:
    path, sha256 = big_file(tmp_path)
    with chip(line={"faults": [{"kind": kind, "per_byte": 1 / 4000}]}, seed=5) as agent:
        agent.connect()
        agent.deploy(path, sha256)
        got = everything(agent)
        assert agent.has(sha256)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


def test_a_stale_reply_is_not_taken_for_the_new_one() -> None:
    with chip(fault("stale_reply", "RUN", times=None)) as agent:
        agent.connect()
        report = agent.load(CANARY, RuntimeOptions())
        first = agent.infer(report.session, picture(1)).outputs["sums"]
        second = agent.infer(report.session, {"picture": -picture(1)["picture"]}).outputs["sums"]
        assert not np.array_equal(first, second)
        np.testing.assert_array_equal(agent.infer(report.session, picture(1)).outputs["sums"], first)


def test_the_hosts_wall_clock_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    jumps: Callable[[], float] = iter(range(0, 10**9, 10**6)).__next__
    monkeypatch.setattr(time, "time", jumps)
    with chip() as agent:
        agent.connect()
        everything(agent)


# ---- models --------------------------------------------------------------------------------------------------------


def deploy_bytes(agent: SerialAgent, tmp_path: Path, data: bytes) -> str:
    (tmp_path / "m.espdl").write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    agent.deploy(tmp_path / "m.espdl", sha256)
    return sha256


def test_models_that_cannot_be_loaded(tmp_path: Path) -> None:
    whole = MODEL.read_bytes()
    encrypted = whole[:4] + b"\1\0\0\0" + whole[8:]
    with chip() as agent:
        agent.connect()
        for data, words in ((whole[: len(whole) // 2], "."), (encrypted, "encrypted"), (b"EDL2" + bytes(60), ".")):
            with pytest.raises(ModelRejected, match=words):
                agent.load(deploy_bytes(agent, tmp_path, data), RuntimeOptions())
        agent.deploy(MODEL, MODEL_SHA256)
        assert agent.load(MODEL_SHA256, RuntimeOptions()).session
        too_large = np.random.default_rng(0).bytes(600_000)
        with pytest.raises(BoardUnfit, match="600000"):
            deploy_bytes(agent, tmp_path, too_large)


def test_activations_that_do_not_fit() -> None:
    with chip(chip={"arena_kb": 0.1}) as agent:
        agent.connect()
        agent.deploy(MODEL, MODEL_SHA256)
        with pytest.raises(OutOfMemory, match="bytes"):
            agent.load(MODEL_SHA256, RuntimeOptions())


def test_full_slots_and_worn_flash(tmp_path: Path) -> None:
    path, sha256 = big_file(tmp_path, 100_000)
    with chip(fault("full_slots", "HELLO")) as agent:
        agent.connect()
        with pytest.raises(BoardUnfit, match="fit"):
            agent.deploy(path, sha256)
    with chip(fault("flash_fails", "HELLO"), chip={"psram_kb": 0}) as agent:
        agent.connect()
        with pytest.raises(BoardUnfit, match="flash"):
            agent.deploy(path, sha256)


# ---- what it computes ----------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_times_and_another_label_others() -> None:
    def times(seed: int, *labels: str) -> list[np.ndarray]:
        found = []
        with chip(seed=seed) as agent:
            agent.connect()
            for label in labels:
                agent.health()  # the beginning of a measurement
                report = agent.load(CANARY, RuntimeOptions())
                request = BlockRequest(50, 1, 10**11, label=label)
                found.append(agent.measure(report.session, picture(), request).samples_ns)
                agent.unload(report.session)
        return found

    first, final, again = times(1, "trial", "final", "trial")
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, final)
    np.testing.assert_array_equal(final, times(1, "final")[0])
    assert not np.array_equal(first, times(2, "trial")[0])
    assert np.median(first) == pytest.approx(1e6, rel=0.02)


def test_python_and_c_compute_the_same(host_binary: Path, tmp_path: Path, expected: dict[str, np.ndarray]) -> None:
    with chip() as agent:
        agent.connect()
        canary = agent.infer(agent.load(CANARY, RuntimeOptions()).session, picture(9)).outputs["sums"]
    with running(host_binary, tmp_path) as board:
        other = SerialAgent("host", board.target())
        other.connect()
        two = everything(other)
        np.testing.assert_array_equal(
            other.infer(other.load(CANARY, RuntimeOptions()).session, picture(9)).outputs["sums"], canary
        )
        other.close()
    assert set(expected) == set(two)
    for name, array in expected.items():
        np.testing.assert_array_equal(two[name], array)
