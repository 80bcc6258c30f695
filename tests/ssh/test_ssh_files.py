"""Files on a board behind a real OpenSSH server."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from device_agents.contract import AgentError, BoardUnfit, LinkError
from device_agents.ssh import SshTransport
from tests.ssh.openssh import OpenSshServer, running_sshd


@pytest.fixture
def transport(sshd: OpenSshServer, board: Path) -> Iterator[SshTransport]:
    made = SshTransport(sshd.target(board))
    made.open(30)
    yield made
    made.close()


def content(size: int) -> bytes:
    return os.urandom(size)


@pytest.mark.parametrize("size", [0, 1, 32674, 32675, 32676, 3_000_000])
def test_upload_arrives_whole(transport: SshTransport, board: Path, tmp_path: Path, size: int) -> None:
    local = tmp_path / "model"
    local.write_bytes(content(size))
    assert transport.upload(local, "cache/deep/er/model.part", 0, 60) == size
    assert (board / "cache/deep/er/model.part").read_bytes() == local.read_bytes()
    assert transport.file_size("cache/deep/er/model.part") == size


def test_what_is_there_is_private(transport: SshTransport, board: Path, tmp_path: Path) -> None:
    local = tmp_path / "model"
    local.write_bytes(b"x")
    transport.upload(local, "cache/model", 0, 60)
    assert (board / "cache").stat().st_mode & 0o077 == 0
    assert (board / "cache/model").stat().st_mode & 0o077 == 0


def test_missing_file_has_no_size(transport: SshTransport) -> None:
    assert transport.file_size("cache/nothing") is None


@pytest.mark.parametrize("offset", [1, 32675, 999_999, 1_000_000])
def test_upload_goes_on_where_it_broke(transport: SshTransport, board: Path, tmp_path: Path, offset: int) -> None:
    local = tmp_path / "model"
    local.write_bytes(content(1_000_000))
    part = board / "cache/model.part"
    part.parent.mkdir()
    part.write_bytes(local.read_bytes()[:offset])
    assert transport.upload(local, "cache/model.part", offset, 60) == 1_000_000 - offset
    assert part.read_bytes() == local.read_bytes()


def test_starting_over_leaves_nothing_of_a_longer_file(transport: SshTransport, board: Path, tmp_path: Path) -> None:
    local = tmp_path / "model"
    local.write_bytes(b"new")
    transport.write_file("cache/model", b"old and longer")
    assert transport.upload(local, "cache/model", 0, 60) == 3
    assert (board / "cache/model").read_bytes() == b"new"


def test_hole_in_a_file_is_not_made(transport: SshTransport, tmp_path: Path) -> None:
    local = tmp_path / "model"
    local.write_bytes(b"12345")
    transport.write_file("model", b"1")
    with pytest.raises(ValueError, match="has 1 bytes"):
        transport.upload(local, "model", 3, 60)
    with pytest.raises(ValueError, match="outside"):
        transport.upload(local, "model", 6, 60)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "-rf", "a b", "a;b", "", ".hidden", "a/../b", "a\nb"])
def test_path_outside_the_work_folder_is_refused(transport: SshTransport, path: str) -> None:
    with pytest.raises(ValueError, match="work folder"):
        transport.write_file(path, b"")


def test_small_file_is_replaced_whole(transport: SshTransport, board: Path) -> None:
    for data in (b"first and longer", b"second", b""):
        transport.write_file("run/runner.py", data)
        assert (board / "run/runner.py").read_bytes() == data
    assert [path.name for path in (board / "run").iterdir()] == ["runner.py"]


def test_folder_may_have_blanks_and_be_made_on_the_way(sshd: OpenSshServer, tmp_path: Path) -> None:
    made = SshTransport(sshd.target(tmp_path / "my boards" / "one"))
    made.open(30)
    made.write_file("a/b", b"x")
    made.close()
    assert (tmp_path / "my boards/one/a/b").read_bytes() == b"x"
    assert {path.name for path in (tmp_path / "my boards/one").iterdir()} == {"a"}


def test_work_folder_that_cannot_be_made(sshd: OpenSshServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = SshTransport(sshd.target(tmp_path / "file" / "board"))
    with pytest.raises(BoardUnfit, match="work folder"):
        made.open(30)
    made = SshTransport(sshd.target("/proc/boardtune"))
    with pytest.raises(BoardUnfit, match="work folder"):
        made.open(30)


def test_read_only_work_folder(sshd: OpenSshServer, tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        if os.getuid() == 0:
            pytest.skip(f"cannot mount: {mounted.stderr.decode()}")
        folder.chmod(0o500)
    try:
        with pytest.raises(BoardUnfit, match="work folder") as caught:
            SshTransport(sshd.target(folder)).open(30)
        assert "read-only" in caught.value.hint or "permission" in str(caught.value)
    finally:
        subprocess.run(["umount", str(folder)], check=False, capture_output=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def test_full_disk_is_told_before_anything_is_sent(sshd: OpenSshServer, small_disk: Path, tmp_path: Path) -> None:
    local = tmp_path / "model"
    local.write_bytes(content(2_000_000))
    made = SshTransport(sshd.target(small_disk / "board"))
    made.open(30)
    with pytest.raises(BoardUnfit, match=r"disk is full: 1\.0 MB free, 2\.0 MB needed"):
        made.upload(local, "cache/model", 0, 60)
    assert made.file_size("cache/model") is None
    made.close()


def test_disk_that_fills_up_during_the_upload(
    sshd: OpenSshServer, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "model"
    local.write_bytes(content(2_000_000))
    made = SshTransport(sshd.target(small_disk / "board"))
    made.open(30)
    assert made._sftp is not None
    with monkeypatch.context() as patch:  # the space was there when we looked
        answers = iter([10_000_000])
        real = type(made._sftp).free_bytes
        patch.setattr(type(made._sftp), "free_bytes", lambda *args: next(answers, None) or real(*args))
        with pytest.raises(BoardUnfit, match="disk is full"):
            made.upload(local, "cache/model", 0, 60)
    (small_disk / "board/cache/model").unlink()
    made.write_file("small", b"still works")  # answers to the writes that were under way do not confuse it
    assert (small_disk / "board/small").read_bytes() == b"still works"
    made.close()


def test_file_size_limit_of_the_user(board: Path, tmp_path: Path) -> None:
    """Over quota and other limits look like ``Failure`` to SFTP while the disk has room."""
    wrapper = tmp_path / "limited-sftp"
    server = next(p for p in ("/usr/lib/openssh/sftp-server", "/usr/libexec/sftp-server") if Path(p).exists())
    wrapper.write_text(f"#!/bin/bash\ntrap '' XFSZ\nulimit -f 100\nexec {server}\n")
    wrapper.chmod(0o755)
    local = tmp_path / "model"
    local.write_bytes(content(2_000_000))
    with running_sshd(tmp_path / "sshd", sftp=False, extra=[f"Subsystem sftp {wrapper}"]) as server_:
        made = SshTransport(server_.target(board))
        made.open(30)
        with pytest.raises(BoardUnfit, match=r"cannot write .*Failure") as caught:
            made.upload(local, "cache/model", 0, 60)
        assert "quota" in caught.value.hint
        made.close()


def test_login_noise_before_sftp_is_passed_over(board: Path, tmp_path: Path) -> None:
    forced = tmp_path / "noisy"
    forced.write_text('#!/bin/sh\necho "Welcome to your board!"; echo; date\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    forced.chmod(0o755)
    with running_sshd(tmp_path / "sshd", extra=[f"ForceCommand {forced}"]) as server:
        made = SshTransport(server.target(board))
        made.open(30)
        made.write_file("a", b"quiet")
        assert (board / "a").read_bytes() == b"quiet"
        made.close()


def test_login_that_prints_and_gives_no_sftp(board: Path, tmp_path: Path) -> None:
    forced = ["ForceCommand echo 'This account is not available.'"]
    with (
        running_sshd(tmp_path / "sshd", extra=forced) as server,
        pytest.raises(BoardUnfit, match="This account is not available"),
    ):
        SshTransport(server.target(board)).open(30)


def test_connection_lost_during_an_upload_can_be_resumed(board: Path, tmp_path: Path) -> None:
    local = tmp_path / "model"
    local.write_bytes(content(64_000_000))
    with running_sshd(tmp_path / "sshd") as server:
        made = SshTransport(server.target(board))
        made.open(30)
        part = board / "cache/model.part"

        def cut() -> None:
            end = time.monotonic() + 30
            while time.monotonic() < end and not (part.exists() and part.stat().st_size > 1_000_000):
                time.sleep(0.001)
            server.drop_connections()

        cutter = threading.Thread(target=cut)
        cutter.start()
        with pytest.raises(LinkError):
            made.upload(local, "cache/model.part", 0, 60)
        cutter.join(30)
        assert not made.connected()
        with pytest.raises(LinkError):
            made.file_size("cache/model.part")
        made.open(30)
        offset = made.file_size("cache/model.part")
        assert offset is not None
        assert 1_000_000 < offset < 64_000_000
        assert made.upload(local, "cache/model.part", offset, 60) == 64_000_000 - offset
        assert part.read_bytes() == local.read_bytes()
        made.close()


def test_a_lost_connection_is_not_called_connected(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """paramiko fails the channels of a connection first and calls it inactive after: here much later."""
    unlink = paramiko.Channel._unlink

    def slow(channel: paramiko.Channel) -> None:
        unlink(channel)
        time.sleep(1)

    monkeypatch.setattr(paramiko.Channel, "_unlink", slow)
    with running_sshd(tmp_path / "sshd") as server:
        made = SshTransport(server.target(board))
        made.open(30)
        server.drop_connections()
        with pytest.raises(LinkError):
            made.file_size("cache/model.part")
        assert not made.connected()
        made.close()


def test_use_without_a_connection(sshd: OpenSshServer, board: Path) -> None:
    made = SshTransport(sshd.target(board))
    made.close()
    for call in (lambda: made.file_size("a"), lambda: made.start(["x"], 1), lambda: made.write_file("a", b"")):
        with pytest.raises(AgentError, match="not connected"):
            call()
