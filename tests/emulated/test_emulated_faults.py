"""Every fault that can be planted comes out of the real agent as its typed error, and goes away with the fault."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_boards import make_spec

from device_agents.contract import (
    Agent,
    AgentError,
    BadData,
    BlockRequest,
    BoardUnfit,
    DeviceCrash,
    DeviceReboot,
    DeviceTimeout,
    LinkError,
    OutOfMemory,
    RuntimeOptions,
    Untrusted,
)

Models = dict[str, tuple[Path, str]]
X = {"x": np.zeros((1, 3, 8, 8), np.float32)}
REQUEST = BlockRequest(5, 1, 10**12)


@pytest.fixture
def faulty(board: Callable[..., Agent]) -> Callable[..., Agent]:
    def make(kind: str, **details: Any) -> Agent:
        return board(make_spec(faults=[{"kind": kind, **details}]))

    return make


@pytest.fixture
def big(tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "big"
    path.write_bytes(np.random.default_rng(0).bytes(600_000))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


CONNECTING: dict[str, tuple[type[AgentError], str]] = {
    "refuse": (LinkError, ""),
    "reject_login": (LinkError, "authenticat|login|key"),
    "changed_host_key": (Untrusted, "changed"),
    "unwritable": (BoardUnfit, "permission"),
    "no_python": (BoardUnfit, "python3"),
    "no_runtime": (BoardUnfit, "onnxruntime"),
    "old_runtime": (BoardUnfit, r"1\.15\.1"),
}


@pytest.mark.parametrize("kind", CONNECTING)
def test_connecting_fails_with_its_own_error(faulty: Callable[..., Agent], kind: str) -> None:
    expected, text = CONNECTING[kind]
    agent = faulty(kind)
    with pytest.raises(expected, match=f"(?i){text}") as caught:
        agent.connect(deadline_s=20.0)
    assert caught.value.board == "board-0"


def test_a_fault_strikes_as_often_as_planted(faulty: Callable[..., Agent]) -> None:
    agent = faulty("no_python", times=1)
    with pytest.raises(BoardUnfit):
        agent.connect()
    assert agent.connect().emulated


def test_a_dropped_link_is_mended_and_the_upload_goes_on(faulty: Callable[..., Agent], big: tuple[Path, str]) -> None:
    agent = faulty("drop", after_bytes=450_000, times=1)
    agent.connect()
    report = agent.deploy(*big)
    struck = json.loads((agent._transport._root / "machine" / "struck.json").read_text())  # type: ignore[attr-defined]
    assert struck == {"0": 1}
    # What had arrived before the drop was not sent again.
    assert report.sent_bytes == 600_000
    assert agent.has(big[1])


def test_a_slow_link_is_a_timeout(faulty: Callable[..., Agent], big: tuple[Path, str]) -> None:
    agent = faulty("slow_link", kb_per_s=100.0)
    agent.connect(deadline_s=60.0)
    with pytest.raises(DeviceTimeout):
        agent.deploy(*big, deadline_s=2.0)


def test_a_corrupted_upload_is_found_by_its_digest(faulty: Callable[..., Agent], big: tuple[Path, str]) -> None:
    agent = faulty("corrupt_upload", after_bytes=300_000, times=1)
    agent.connect()
    with pytest.raises(BadData):
        agent.deploy(*big)
    assert not agent.has(big[1])
    assert agent.deploy(*big).sent_bytes == 600_000
    assert agent.has(big[1])


def test_a_full_disk_is_told_with_numbers(faulty: Callable[..., Agent], big: tuple[Path, str]) -> None:
    agent = faulty("disk_full", after_bytes=300_000)
    agent.connect()
    with pytest.raises(BoardUnfit, match=r"disk is full.*0\.6 MB needed"):
        agent.deploy(*big)


LOADING: dict[str, tuple[type[AgentError], str]] = {
    "hang_in_load": (DeviceTimeout, "load"),
    "crash_in_load": (DeviceCrash, "SIGSEGV"),
    "out_of_memory": (OutOfMemory, "memory"),
}


@pytest.mark.parametrize("kind", LOADING)
def test_loading_fails_with_its_own_error_and_the_board_lives(
    faulty: Callable[..., Agent], models: Models, kind: str
) -> None:
    expected, text = LOADING[kind]
    agent = faulty(kind, times=1)
    agent.connect()
    agent.deploy(*models["small"])
    with pytest.raises(expected, match=text) as caught:
        agent.load(models["small"][1], RuntimeOptions(), deadline_s=5.0 if kind == "hang_in_load" else 60.0)
    assert type(caught.value) is expected
    session = agent.load(models["small"][1], RuntimeOptions()).session
    assert len(agent.measure(session, X, REQUEST).samples_ns) == 5


def test_a_crash_while_measuring_comes_at_its_block(faulty: Callable[..., Agent], models: Models) -> None:
    agent = faulty("crash_in_run", after_blocks=2, times=1)
    agent.connect()
    agent.deploy(*models["small"])
    session = agent.load(models["small"][1], RuntimeOptions()).session
    for _ in range(2):
        agent.measure(session, X, REQUEST)
    with pytest.raises(DeviceCrash, match="SIGSEGV"):
        agent.measure(session, X, REQUEST)
    again = agent.load(models["small"][1], RuntimeOptions()).session
    assert len(agent.measure(again, X, REQUEST).samples_ns) == 5


def test_a_reboot_voids_what_was_measured(faulty: Callable[..., Agent], models: Models) -> None:
    agent = faulty("reboot", after_blocks=1, times=1)
    boot = agent.connect().boot_id
    agent.deploy(*models["small"])
    session = agent.load(models["small"][1], RuntimeOptions()).session
    agent.measure(session, X, REQUEST)
    with pytest.raises(DeviceReboot):
        agent.measure(session, X, REQUEST)
    assert agent.recover().boot_id != boot
    assert agent.has(models["small"][1])
    again = agent.load(models["small"][1], RuntimeOptions()).session
    assert len(agent.measure(again, X, REQUEST).samples_ns) == 5
