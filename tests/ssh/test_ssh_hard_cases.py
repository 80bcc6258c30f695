"""Passwords and second factors, servers without extensions, and every way of not getting an answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from device_agents.contract import AgentError, DeviceTimeout, LinkError
from device_agents.secret import Secret
from device_agents.ssh import SshTransport
from device_agents.ssh import transport as transport_module
from device_agents.ssh.guard import within
from device_agents.ssh.target import SshTarget
from tests.ssh.odd_server import OddServer, odd_server
from tests.ssh.openssh import OpenSshServer, make_key, running_sshd


def target(server: OddServer, tmp_path: Path, **changes: Any) -> SshTarget:
    values: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": server.port,
        "user": "pi",
        "host_key": server.host_fingerprint,
        "config_file": Path(os.devnull),
        "use_agent": False,
        "lock_dir": tmp_path / "locks",
        "workdir": "work",
    }
    return SshTarget(**{**values, **changes})


@pytest.fixture(autouse=True)
def _empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


def test_password(tmp_path: Path, files: Path) -> None:
    with odd_server(OddServer(files=files)) as server:
        made = SshTransport(target(server, tmp_path, password=Secret("right")))
        made.open(20)
        assert made.connected()
        made.close()
        assert server.seen == ["password right"]


def test_wrong_password_is_told_without_showing_it(tmp_path: Path) -> None:
    with odd_server(OddServer()) as server:
        with pytest.raises(LinkError, match="tried: password; the server accepts: password") as caught:
            SshTransport(target(server, tmp_path, password=Secret("hunter2"))).open(20)
        assert "hunter2" not in f"{caught.value} {caught.value.detail}"


def test_server_that_wants_a_password_and_gets_none(tmp_path: Path) -> None:
    with odd_server(OddServer()) as server, pytest.raises(LinkError, match="wants a password") as caught:
        SshTransport(target(server, tmp_path)).open(20)
    assert "env:NAME" in caught.value.hint


def test_password_asked_for_interactively_and_nothing_else_answered(tmp_path: Path, files: Path) -> None:
    with odd_server(OddServer(methods="keyboard-interactive", files=files)) as server:
        made = SshTransport(target(server, tmp_path, password=Secret("right")))
        made.open(20)
        made.close()
        assert server.seen == ["interactive ['right', '']"]


def test_key_and_then_password(tmp_path: Path, files: Path) -> None:
    key = make_key(tmp_path / "key")
    with odd_server(OddServer(methods="publickey", second="password", files=files)) as server:
        made = SshTransport(target(server, tmp_path, key_file=key, password=Secret("right")))
        made.open(20)
        made.close()
        assert server.seen[0] == "publickey"
        assert server.seen[-1] == "password right"


def test_board_without_any_login(tmp_path: Path, files: Path) -> None:
    with odd_server(OddServer(methods="none", files=files)) as server:
        made = SshTransport(target(server, tmp_path))
        made.open(20)
        made.close()


def test_server_without_openssh_extensions(tmp_path: Path, files: Path) -> None:
    local = tmp_path / "model"
    local.write_bytes(os.urandom(500_000))
    with odd_server(OddServer(methods="none", files=files)) as server:
        made = SshTransport(target(server, tmp_path))
        made.open(20)
        for data in (b"one", b"two"):
            made.write_file("a/b", data)
        assert (files / "work/a/b").read_bytes() == b"two"
        assert made.upload(local, "c", 0, 20) == 500_000
        assert (files / "work/c").read_bytes() == local.read_bytes()
        made.close()


@pytest.mark.timeout(30)
def test_server_that_never_answers_a_request(tmp_path: Path) -> None:
    silent = OddServer(methods="none", silent_requests=True)
    with odd_server(silent) as server, pytest.raises(DeviceTimeout, match="SFTP"):
        SshTransport(target(server, tmp_path)).open(1.5)


def test_server_that_refuses_commands(tmp_path: Path, files: Path) -> None:
    with odd_server(OddServer(methods="none", files=files)) as server:
        made = SshTransport(target(server, tmp_path))
        made.open(20)
        with pytest.raises(LinkError, match="runs no command"):
            made.start(["x"], 20)
        made.close()


@contextmanager
def frozen(server: OpenSshServer) -> Iterator[None]:
    """The other side stops in the middle of everything, and the network keeps the connection open."""
    pids = server.sessions()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def own_sshd(sshd: OpenSshServer, tmp_path: Path) -> Iterator[OpenSshServer]:
    with running_sshd(tmp_path / "sshd") as server:
        yield server


@pytest.mark.timeout(45)  # each of these would wait for ever
def test_board_that_freezes_answers_nothing_in_time(
    own_sshd: OpenSshServer, board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "_SMALL_FILE_S", 0.5)
    local = tmp_path / "model"
    local.write_bytes(bytes(20_000_000))
    made = SshTransport(own_sshd.target(board))
    made.open(20)
    channel = made.start(["-c", "1"], 20)
    with frozen(own_sshd):
        with pytest.raises(DeviceTimeout):
            channel.read(1, 0.5)
        for call in (
            lambda: made.file_size("a"),
            lambda: made.upload(local, "b", 0, 0.5),
            lambda: made.write_file("c", b"x"),
            lambda: made.start(["-c", "1"], 0.5),
            lambda: channel.write(bytes(20_000_000), 0.5),
        ):
            with pytest.raises((DeviceTimeout, LinkError)):
                call()
        made.close()


@pytest.mark.timeout(45)
def test_board_that_freezes_during_an_upload(own_sshd: OpenSshServer, board: Path, tmp_path: Path) -> None:
    local = tmp_path / "model"
    local.write_bytes(bytes(60_000_000))
    made = SshTransport(own_sshd.target(board))
    made.open(20)
    with frozen(own_sshd), pytest.raises(DeviceTimeout):
        made.upload(local, "b", 0, 1.0)
    made.open(20)
    made.write_file("c", b"works again")
    made.close()


def test_server_that_accepts_and_says_nothing(own_sshd: OpenSshServer, board: Path) -> None:
    os.kill(own_sshd.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(LinkError, match="handshake within 1 s"):
            SshTransport(own_sshd.target(board)).open(1)
    finally:
        os.kill(own_sshd.process.pid, signal.SIGCONT)


def test_recovers_when_the_server_comes_back(board: Path, tmp_path: Path) -> None:
    with running_sshd(tmp_path / "sshd") as server:
        made = SshTransport(server.target(board))
        made.open(20)
        port = server.port
    with pytest.raises(AgentError):
        made.write_file("a", b"")
    with pytest.raises(LinkError, match="refused"):
        made.open(5)
    with running_sshd(tmp_path / "sshd", port=port):
        made.open(20)
        made.write_file("a", b"back")
    assert (board / "a").read_bytes() == b"back"
    made.close()


def test_within_hands_over_results_and_errors_and_gives_up() -> None:
    assert within(10, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(10, lambda: 1 // 0)
    with pytest.raises(TimeoutError):
        within(0.05, lambda: time.sleep(5))
