"""The agent against the real firmware core, built for this computer, on a pty."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from device_agents.contract import (
    BadData,
    BlockRequest,
    BoardUnfit,
    DeviceCrash,
    DeviceReboot,
    LeaseLost,
    LinkError,
    ModelRejected,
    RuntimeOptions,
)
from device_agents.serial.agent import SerialAgent
from device_agents.serial.codes import Type
from device_agents.serial.port import Found
from device_agents.transport import Deadline
from tests.serial.host_firmware import MAC, Board, running

CANARY = hashlib.sha256((Path(__file__).parents[2] / "harness/boards/canaries/firmware-1.txt").read_bytes()).hexdigest()
SHORT = BlockRequest(min_count=5, min_ns=1, max_ns=10**10)


@pytest.fixture
def board(host_binary: Path, tmp_path: Path) -> Iterator[Board]:
    with running(host_binary, tmp_path, "--flash", str(tmp_path / "flash")) as found:
        yield found


@pytest.fixture
def agent(board: Board) -> Iterator[SerialAgent]:
    made = SerialAgent("host", board.target())
    made.connect()
    yield made
    made.close()


def random_file(path: Path, size: int, seed: int) -> tuple[Path, str]:
    data = np.random.default_rng(seed).bytes(size)
    path.write_bytes(data)
    return path, hashlib.sha256(data).hexdigest()


def pictures(count: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((count, 16, 16, 8)).astype(np.float32)


def canary_by_numpy(images: np.ndarray) -> np.ndarray:
    """The canary computed another way: int64 einsum over shifted pictures."""
    state, weights = 1, []
    for _ in range(16 * 9 * 8):
        state = (state * 1664525 + 1013904223) % 2**32
        weights.append(state >> 24)
    kernel = np.array(weights, np.uint8).view(np.int8).reshape(16, 3, 3, 8).astype(np.int64)
    integers = np.clip(np.floor(images.astype(np.float64) * 32 + 0.5), -128, 127).astype(np.int64)
    padded = np.pad(integers, ((0, 0), (1, 1), (1, 1), (0, 0)))
    total = sum(
        np.einsum("nyxi,oi->nyxo", padded[:, dy : dy + 16, dx : dx + 16], kernel[:, dy, dx])
        for dy in range(3)
        for dx in range(3)
    )
    sums = np.clip((total + 128) >> 8, -128, 127).sum((1, 2))
    return np.clip((sums + 128) >> 8, -128, 127)


def test_facts_and_state(agent: SerialAgent) -> None:
    facts = agent.describe()
    assert (facts.hardware_id, facts.machine, facts.runtime) == (MAC, "esp32s3", "esp-dl")
    assert int(facts.extra["baud"]) > 115200  # negotiated; a busy computer may miss the highest
    first, second = agent.health(), agent.health()
    assert first.boot_id == second.boot_id == facts.boot_id
    assert second.clock_ns > first.clock_ns
    assert all(text.startswith("ok") for text in agent.self_test().values())


def test_an_upload_arrives_once_and_the_next_one_uses_it(agent: SerialAgent, tmp_path: Path) -> None:
    path, sha256 = random_file(tmp_path / "a", 300_001, 1)
    assert not agent.has(sha256)
    assert agent.deploy(path, sha256).sent_bytes == 300_001
    assert agent.has(sha256)
    assert agent.deploy(path, sha256).sent_bytes == 0
    data = bytearray(path.read_bytes())
    data[100_000:100_010] = b"0123456789"
    (tmp_path / "b").write_bytes(data)
    second = agent.deploy(tmp_path / "b", hashlib.sha256(data).hexdigest())
    assert second.sent_bytes < 0.05 * len(data)


@pytest.mark.parametrize("content", [b"a" * 100_000, b"abc" * 20_000 + bytes(range(256)) * 40, b"x"])
def test_packed_uploads_arrive_as_they_were(agent: SerialAgent, tmp_path: Path, content: bytes) -> None:
    # The board's own sha256 decides.
    path = tmp_path / "f"
    path.write_bytes(content)
    report = agent.deploy(path, hashlib.sha256(content).hexdigest())
    assert report.sent_bytes <= max(1, len(content) // 4)


def test_a_wrong_digest_is_refused_before_anything_is_sent(agent: SerialAgent, tmp_path: Path) -> None:
    path, sha256 = random_file(tmp_path / "a", 1000, 2)
    with pytest.raises(BadData, match=sha256):
        agent.deploy(path, "ab" * 32)


def test_a_file_larger_than_every_slot(agent: SerialAgent, tmp_path: Path) -> None:
    path, sha256 = random_file(tmp_path / "a", 5_000_000, 3)
    with pytest.raises(BoardUnfit, match="5000000"):
        agent.deploy(path, sha256)


def test_what_is_in_flash_outlives_a_reset(host_binary: Path, tmp_path: Path) -> None:
    path, sha256 = random_file(tmp_path / "a", 200_000, 4)
    arguments = ("--flash", str(tmp_path / "flash"), "--psram", "0")
    with running(host_binary, tmp_path, *arguments) as board:
        agent = SerialAgent("host", board.target())
        agent.connect()
        agent.deploy(path, sha256)
        agent._link.ask(Type.RESET, b"", Deadline(5))
        with pytest.raises(DeviceReboot):
            agent.health()
        assert agent.has(sha256)
        agent.close()
    # A byte that flips in flash is noticed at the next start.
    spoilt = bytearray((tmp_path / "flash").read_bytes())
    spoilt[777] ^= 1
    (tmp_path / "flash").write_bytes(spoilt)
    with running(host_binary, tmp_path, *arguments) as board:
        agent = SerialAgent("host", board.target())
        agent.connect()
        assert not agent.has(sha256)
        agent.close()


def test_the_canary_runs_and_computes_what_it_must(agent: SerialAgent) -> None:
    report = agent.load(CANARY, RuntimeOptions())
    assert report.inputs == (("picture", "float32", (1, 16, 16, 8)),)
    images = pictures(300)  # more than one frame: through the data slot
    got = agent.infer(report.session, {"picture": images}).outputs["sums"]
    np.testing.assert_array_equal(got, canary_by_numpy(images))
    one = agent.infer(report.session, {"picture": images[7:8].transpose(0, 3, 1, 2)}).outputs["sums"]
    np.testing.assert_array_equal(one, got[7:8])


def test_a_block_has_every_time(agent: SerialAgent) -> None:
    report = agent.load(CANARY, RuntimeOptions())
    # More times than a reply holds.
    block = agent.measure(report.session, {"picture": pictures(3)}, BlockRequest(700, 1, 10**11))
    assert block.samples_ns.dtype == np.int64
    assert len(block.samples_ns) == 700
    assert (block.samples_ns > 0).all()
    assert block.first_ns is not None
    assert block.after.clock_ns - block.before.clock_ns >= block.samples_ns.sum()
    again = agent.measure(report.session, {"picture": pictures(3)}, BlockRequest(3, 2_000_000, 10**11))
    assert again.first_ns is None
    assert again.samples_ns[:-1].sum() < 2_000_000 or len(again.samples_ns) == 3


def test_samples_that_do_not_fit_are_named(agent: SerialAgent) -> None:
    report = agent.load(CANARY, RuntimeOptions())
    for samples in (
        {},
        {"picture": np.zeros((2, 16, 16, 9), np.float32)},
        {"picture": np.zeros((0, 16, 16, 8), np.float32)},
        {"picture": np.zeros((1, 16, 16, 8), np.float64)},
    ):
        with pytest.raises(BadData, match=r"'picture' .*float32 \[n, 16, 16, 8\]"):
            agent.infer(report.session, samples)
    with pytest.raises(BadData, match="NaN"):
        agent.infer(report.session, {"picture": np.full((1, 16, 16, 8), np.nan, np.float32)})
    with pytest.raises(BadData, match="takes 1"):
        agent.measure(report.session, {"picture": pictures(1)}, BlockRequest(1, 1, 1, batch=2))


def test_a_file_that_is_no_model_is_rejected(agent: SerialAgent, tmp_path: Path) -> None:
    path, sha256 = random_file(tmp_path / "m", 5000, 5)
    agent.deploy(path, sha256)
    with pytest.raises(ModelRejected):
        agent.load(sha256, RuntimeOptions())
    with pytest.raises(BadData, match="deploy"):
        agent.load("ef" * 32, RuntimeOptions())
    assert agent.load(CANARY, RuntimeOptions()).session


def test_a_panic_is_a_crash_with_its_reason(board: Board, agent: SerialAgent) -> None:
    report = agent.load(CANARY, RuntimeOptions())
    os.kill(board.process.pid, signal.SIGSEGV)
    with pytest.raises(DeviceCrash, match="LoadProhibited") as caught:
        agent.measure(report.session, {"picture": pictures(1)}, SHORT)
    assert "Guru Meditation" in caught.value.detail
    with pytest.raises(LinkError, match="load it again"):
        agent.infer(report.session, {"picture": pictures(1)})
    assert agent.recover().extra["reset_reason"] == "panic"
    assert agent.load(CANARY, RuntimeOptions()).session


def test_a_silent_reset_is_a_reboot(board: Board, agent: SerialAgent) -> None:
    boot_id = agent.describe().boot_id
    agent._link.ask(Type.RESET, b"", Deadline(5))
    time.sleep(0.1)
    with pytest.raises(DeviceReboot):
        agent.health()
    assert agent.health().boot_id != boot_id


def test_only_one_agent_drives_a_board(board: Board, agent: SerialAgent) -> None:
    with pytest.raises(LeaseLost):
        SerialAgent("other", board.target()).connect()


def test_closing_and_connecting_again_is_the_same_boot(agent: SerialAgent) -> None:
    boot_id = agent.describe().boot_id
    agent.close()
    agent.close()
    with pytest.raises(LinkError, match="host"):
        agent.health()
    assert agent.connect().boot_id == boot_id


def test_a_rate_that_garbles_is_left_again(host_binary: Path, tmp_path: Path) -> None:
    with running(host_binary, tmp_path, "--clean-baud", "230400") as board:
        agent = SerialAgent("host", board.target(max_baud=921600))
        assert agent.connect().extra["baud"] == "230400"
        path, sha256 = random_file(tmp_path / "a", 20_000, 6)
        agent.deploy(path, sha256)
        agent.close()
        # The board is still at the rate that was agreed on; whoever comes next finds it there.
        later = SerialAgent("host", board.target(max_baud=921600))
        assert later.connect().extra["baud"] == "230400"
        later.close()


def test_the_board_is_found_by_its_mac_on_another_port(host_binary: Path, tmp_path: Path) -> None:
    with (
        running(host_binary, tmp_path, "--mac", "02:00:00:00:00:aa") as other,
        running(host_binary, tmp_path) as board,
    ):
        ports = [Found(other.port), Found(board.port)]
        target = board.target(port=other.port, mac=MAC, list_ports=lambda: ports)
        agent = SerialAgent("host", target)
        assert agent.connect().hardware_id == MAC
        agent.close()
        wrong = SerialAgent("host", board.target(port=other.port, mac=MAC, list_ports=lambda: ports[:1]))
        with pytest.raises(BoardUnfit, match="02:00:00:00:00:aa"):
            wrong.connect()
        with pytest.raises(BoardUnfit, match="esp32p4"):
            SerialAgent("host", board.target(chip="esp32p4")).connect()
