"""Running the board's Python behind a real OpenSSH server."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agents.contract import BoardUnfit, DeviceTimeout, LinkError
from device_agents.ssh import SshTransport
from device_agents.ssh.command import command_line, is_windows, sftp_path
from device_agents.transport import Channel, Deadline
from tests.ssh.openssh import OpenSshServer, running_sshd

ECHO = b"""
import sys
while True:
    data = sys.stdin.buffer.read1(1 << 16)
    if not data:
        break
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
"""


@pytest.fixture
def transport(sshd: OpenSshServer, board: Path) -> Iterator[SshTransport]:
    made = SshTransport(sshd.target(board))
    made.open(30)
    yield made
    made.close()


def run(transport: SshTransport, program: bytes, *args: str) -> Channel:
    transport.write_file("run/program.py", program)
    return transport.start(["-u", "run/program.py", *args], 30)


def read_all(channel: Channel, deadline_s: float = 30) -> bytes:
    deadline, data = Deadline(deadline_s), b""
    while piece := channel.read(1 << 16, deadline.remaining()):
        data += piece
    return data


def test_runs_in_the_work_folder_with_its_arguments(transport: SshTransport, board: Path) -> None:
    channel = run(transport, b"import os, sys; print(os.getcwd(), sys.executable, sys.argv[1:])", "serve", "--n=1")
    assert read_all(channel).decode().strip() == f"{board} {sys.executable} ['serve', '--n=1']"
    assert channel.exit_status() == 0
    channel.close()


def test_folder_with_blanks(sshd: OpenSshServer, tmp_path: Path) -> None:
    made = SshTransport(sshd.target(tmp_path / "my board"))
    made.open(30)
    assert read_all(run(made, b"import os; print(os.getcwd())")).decode().strip() == str(tmp_path / "my board")
    made.close()


def test_bytes_pass_unchanged_both_ways(transport: SshTransport) -> None:
    data = bytes(range(256)) * 4000
    channel = run(transport, ECHO)
    got = b""
    for start in range(0, len(data), 200_000):
        channel.write(memoryview(data)[start : start + 200_000], 30)
        while len(got) < min(len(data), start + 200_000):
            got += channel.read(1 << 16, 30)
    assert got == data
    channel.close()


def test_read_gives_what_is_there_and_no_more_than_asked(transport: SshTransport) -> None:
    channel = run(transport, ECHO)
    channel.write(b"abcdef", 30)
    assert channel.read(4, 30) == b"abcd"
    assert channel.read(100, 30) == b"ef"
    channel.close()


def test_silence_ends_at_the_deadline_and_the_process_lives_on(transport: SshTransport) -> None:
    channel = run(transport, ECHO)
    with pytest.raises(DeviceTimeout, match=r"0\.4 s"):
        channel.read(1, 0.4)
    assert channel.exit_status() is None
    channel.write(b"x", 30)
    assert channel.read(1, 30) == b"x"
    channel.close()


def test_process_that_reads_nothing_does_not_hang_the_writer(transport: SshTransport) -> None:
    channel = run(transport, b"import time; print('up'); time.sleep(60)")
    assert channel.read(10, 30).strip() == b"up"
    with pytest.raises(DeviceTimeout, match="took no data"):
        channel.write(bytes(8_000_000), 1.0)
    channel.close()
    transport.write_file("still", b"works")


def test_much_stderr_does_not_block_stdout(transport: SshTransport) -> None:
    program = b"""
import sys
for i in range(40):
    sys.stderr.write('x' * 500_000)
sys.stderr.write('the last words')
sys.stderr.flush()
print('done')
"""
    channel = run(transport, program)
    assert read_all(channel).strip() == b"done"
    assert channel.stderr_tail().endswith("the last words")
    assert len(channel.stderr_tail()) <= 8192
    channel.close()


def test_exit_status_and_last_words_of_a_failure(transport: SshTransport) -> None:
    channel = run(transport, b"print('hello'); import sys; sys.stderr.write('went wrong\\n'); sys.exit(7)")
    assert read_all(channel).strip() == b"hello"
    assert channel.exit_status() == 7
    assert channel.stderr_tail() == "went wrong\n"
    with pytest.raises(LinkError, match="exit status 7"):
        channel.write(b"too late", 30)
    channel.close()
    channel.close()


def test_closing_ends_the_process(transport: SshTransport, board: Path) -> None:
    channel = run(transport, ECHO + b"open('ended', 'w').close()\n")
    channel.write(b"x", 30)
    assert channel.read(1, 30) == b"x"
    channel.close()
    end = time.monotonic() + 20
    while not (board / "ended").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert (board / "ended").exists()


@pytest.mark.parametrize("python", ["python-that-is-not-there", "/nowhere/bin/python3", "no/such/python"])
def test_no_python_on_the_board(sshd: OpenSshServer, board: Path, python: str) -> None:
    made = SshTransport(sshd.target(board, python=python))
    made.open(30)
    channel = made.start(["-c", "1"], 30)
    with pytest.raises(BoardUnfit, match=f"cannot run '{python}'") as caught:
        channel.read(1, 30)
    assert "python3" in caught.value.hint
    assert channel.exit_status() == 127
    made.close()


def test_python_that_may_not_be_run(sshd: OpenSshServer, board: Path, tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("not executable")
    made = SshTransport(sshd.target(board, python=str(tmp_path / "python3")))
    made.open(30)
    with pytest.raises(BoardUnfit, match="exit status 126"):
        made.start(["x"], 30).read(1, 30)
    made.close()


def test_connection_dropped_while_a_process_runs(board: Path, tmp_path: Path) -> None:
    with running_sshd(tmp_path / "sshd") as server:
        made = SshTransport(server.target(board))
        made.open(30)
        channel = run(made, ECHO)
        channel.write(b"x", 30)
        assert channel.read(1, 30) == b"x"
        assert server.drop_connections() == 1
        with pytest.raises(LinkError, match="dropped"):
            channel.read(1, 30)
        with pytest.raises(LinkError):
            channel.write(b"y", 30)
        assert channel.exit_status() is None
        assert not made.connected()
        channel.close()
        made.open(30)
        again = run(made, ECHO)
        again.write(b"z", 30)
        assert again.read(1, 30) == b"z"
        made.close()


def test_dropped_link_is_not_mistaken_for_the_end_of_the_process(board: Path, tmp_path: Path) -> None:
    """Repeated, because the two look alike for an instant."""
    with running_sshd(tmp_path / "sshd") as server:
        made = SshTransport(server.target(board))
        for _ in range(5):
            made.open(30)
            channel = run(made, b"import sys, time; print('up'); time.sleep(60)")
            assert channel.read(10, 30)
            server.drop_connections()
            with pytest.raises(LinkError, match="dropped"):
                read_all(channel)
        made.close()


def test_jump_host_that_dies_drops_the_board(sshd: OpenSshServer, board: Path, tmp_path: Path) -> None:
    with running_sshd(tmp_path / "gate", authorized=[Path(f"{sshd.user_key}.pub")]) as gate:
        known = tmp_path / "known"
        known.write_text(gate.known_hosts_line() + "\n")
        made = SshTransport(sshd.target(board, proxy_jump=f"127.0.0.1:{gate.port}", known_hosts=known))
        made.open(30)
        channel = run(made, ECHO)
        channel.write(b"x", 30)
        assert channel.read(1, 30) == b"x"
        gate.drop_connections()
        with pytest.raises(LinkError, match="dropped"):
            channel.read(1, 30)
        assert not made.connected()
        made.close()


def test_command_line_for_posix_shells() -> None:
    assert command_line("python3", ".boardtune", ["-u", "run/x.py"]) == "cd .boardtune && exec python3 -u run/x.py"
    assert command_line("~/my venv/bin/python", "~/b t", ["x"]) == "cd ~/'b t' && exec ~/'my venv/bin/python' x"
    assert command_line("venv/bin/python", "/data/bt", ["x"]) == "cd /data/bt && exec ~/venv/bin/python x"


def test_command_line_for_windows() -> None:
    assert command_line("python", ".boardtune", ["x.py"], windows=True) == 'cmd /c "cd /d .boardtune && python x.py"'
    line = command_line("C:/Python/python.exe", "C:\\bt", ["x.py"], windows=True)
    assert line == 'cmd /c "cd /d C:\\bt && C:\\Python\\python.exe x.py"'
    with pytest.raises(ValueError, match="blanks"):
        command_line("C:/Program Files/python.exe", "bt", [], windows=True)
    assert is_windows("/C:/Users/pi")
    assert not is_windows("/home/pi")


@pytest.mark.parametrize(
    ("workdir", "path"),
    [(".boardtune", ".boardtune"), ("~/x/", "x"), ("/data//", "/data"), ("/", "/"), ("C:\\b\\t", "/C:/b/t")],
)
def test_work_folder_as_sftp_sees_it(workdir: str, path: str) -> None:
    assert sftp_path(workdir) == path


@given(st.text(min_size=1))
def test_no_argument_gets_a_shell_to_do_anything(argument: str) -> None:
    try:
        line = command_line("python3", "work", [argument])
    except ValueError:
        return
    assert line == f"cd work && exec python3 {argument}"
    assert not set(argument) & set(" \t\n;|&$`'\"\\<>(){}[]*?!#~^%")


def test_what_a_board_prints_cannot_drive_a_terminal(transport: SshTransport) -> None:
    channel = run(transport, b"import sys; sys.stderr.write('a\\x1b[2J\\x07\\x9b b\\r\\n\\tc'); sys.exit(3)")
    assert read_all(channel) == b""
    assert channel.stderr_tail() == "a\ufffd[2J\ufffd\ufffd b\n\tc"


def test_keepalive_is_sent_while_nothing_else_is(board: Path, tmp_path: Path) -> None:
    with running_sshd(tmp_path / "sshd", extra=["LogLevel DEBUG1"]) as server:
        made = SshTransport(server.target(board, keepalive_s=1))
        made.open(30)
        end = time.monotonic() + 20
        while "keepalive@" not in server.log and time.monotonic() < end:
            time.sleep(0.05)
        assert "keepalive@" in server.log
        assert made.connected()
        made.close()
