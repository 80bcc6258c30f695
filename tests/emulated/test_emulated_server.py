"""The emulated board's SSH server lets nobody do more than an agent does, and dies with whoever started it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from emulated_boards import make_spec

from device_agents.emulated.launch import ServerProcess, launch
from device_agents.runner_package import build_runner

DEADLINE = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = launch("guarded", make_spec(), tmp_path_factory.mktemp("board"), None, DEADLINE)
    yield process
    process.stop(suspend=False)


@contextlib.contextmanager
def connected(server: ServerProcess, **changes: object) -> Iterator[paramiko.SSHClient]:
    client = paramiko.SSHClient()
    algorithm, blob = server.address.host_key.split()
    name = f"[127.0.0.1]:{server.address.port}"
    line = paramiko.hostkeys.HostKeyEntry.from_line(f"{name} {algorithm} {blob}")
    assert line is not None
    client.get_host_keys().add(name, algorithm, line.key)
    options = {
        "username": "emulated",
        "key_filename": str(server.root / "client_key"),
        "look_for_keys": False,
        "allow_agent": False,
        "timeout": DEADLINE,
        **changes,
    }
    client.connect("127.0.0.1", port=server.address.port, **options)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[paramiko.SSHClient]:
    with connected(server) as client:
        yield client


def test_another_key_another_user_and_passwords_are_rejected(server: ServerProcess, tmp_path: Path) -> None:
    paramiko.ECDSAKey.generate().write_private_key_file(str(tmp_path / "other"))
    for changes in (
        {"key_filename": str(tmp_path / "other")},
        {"username": "root"},
        {"key_filename": None, "password": "x"},
    ):
        with pytest.raises(paramiko.SSHException), connected(server, **changes):
            pass


GOOD = "runner/" + "0" * 64 + ".pyz"
COMMANDS = [
    "id",
    "sh -c id",
    f"cd .boardtune && exec python3 {GOOD} serve; id",
    f"cd .boardtune && exec python3 {GOOD} serve && id",
    f"cd .boardtune && exec python3 {GOOD} child",
    f"cd .boardtune && exec python3 {GOOD}",
    f"cd .boardtune && exec sh {GOOD} serve",
    f"cd .. && exec python3 {GOOD} serve",
    f"cd .boardtune && exec python3 ../{GOOD} serve",
    "cd .boardtune && exec python3 runner/../../x.pyz serve",
    "cd .boardtune && exec python3 -c serve",
    f"cd .boardtune && exec python3 '{GOOD} serve",
    f"cd .boardtune && exec python3 {GOOD}\nid serve",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_any_other_command_is_refused(client: paramiko.SSHClient, command: str) -> None:
    with pytest.raises(paramiko.SSHException):
        client.exec_command(command, timeout=DEADLINE)


def test_shells_and_forwarding_are_refused(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    assert transport is not None
    with pytest.raises(paramiko.SSHException):
        client.invoke_shell()
    with pytest.raises(paramiko.SSHException):
        transport.open_channel("direct-tcpip", ("127.0.0.1", 22), ("127.0.0.1", 0), timeout=DEADLINE)
    with pytest.raises(paramiko.SSHException):
        transport.request_port_forward("127.0.0.1", 0)


def _run(client: paramiko.SSHClient, data: bytes, name: str) -> tuple[int, str, str]:
    with client.open_sftp() as sftp:
        for folder in (".boardtune", ".boardtune/runner"):
            with contextlib.suppress(OSError):
                sftp.mkdir(folder)
        with sftp.open(f".boardtune/runner/{name}.pyz", "wb") as file:
            file.write(data)
    stdin, stdout, stderr = client.exec_command(
        f"cd .boardtune && exec python3 runner/{name}.pyz serve", timeout=DEADLINE
    )
    stdin.channel.shutdown_write()
    out, err = stdout.read(), stderr.read()
    return stdout.channel.recv_exit_status(), out.decode("latin-1"), err.decode()


def test_an_upload_that_does_not_match_its_digest_is_not_run(client: paramiko.SSHClient) -> None:
    data, digest = build_runner()
    status, out, _ = _run(client, data, digest)
    assert (status, "BOARDTUNE" in out.upper() or len(out) > 0) == (0, True)
    marker = b"print('ran')"
    status, out, _ = _run(client, marker, "f" * 64)
    assert (status, out) == (1, "")
    # Under its own digest it is what the agent's user asked for, and runs.
    status, _, err = _run(client, marker, hashlib.sha256(marker).hexdigest())
    assert status != 0
    assert "runner" in err or "zip" in err.lower()


OUTSIDE = [
    "../machine/machine.json",
    "../client_key",
    "/../../../../etc/passwd",
    "x/../../machine/machine.json",
    ".boardtune/../../client_key",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_that_lead_out_are_refused(client: paramiko.SSHClient, server: ServerProcess, path: str) -> None:
    before = (server.root / "client_key").read_bytes()
    with client.open_sftp() as sftp:
        for action in (sftp.stat, sftp.open, sftp.remove, sftp.listdir, lambda p: sftp.open(p, "wb")):
            with pytest.raises(OSError, match=r"(?i)permission|denied"):
                action(path)
        with sftp.open("mine", "wb") as file:
            file.write(b"x")
        with pytest.raises(OSError, match=r"(?i)permission|denied"):
            sftp.posix_rename("mine", path)
    assert (server.root / "client_key").read_bytes() == before


def test_links_that_lead_out_are_refused(client: paramiko.SSHClient, server: ServerProcess) -> None:
    home = server.root / "home"
    for name, target in (("file", "/etc/passwd"), ("folder", str(server.root)), ("absent", "/tmp/no-such-file")):
        link = home / f"link-{name}"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    with client.open_sftp() as sftp:
        for path in ("link-file", "link-folder/client_key", "link-absent"):
            with pytest.raises(OSError, match=r"(?i)permission|denied"):
                sftp.open(path)
            with pytest.raises(OSError, match=r"(?i)permission|denied"):
                sftp.open(path, "wb")
        with pytest.raises(OSError):
            sftp.symlink("/etc/passwd", "made")
        assert not (home / "made").is_symlink()
    assert not Path("/tmp/no-such-file").exists()


def test_an_absolute_path_is_below_the_private_folder(client: paramiko.SSHClient, server: ServerProcess) -> None:
    with client.open_sftp() as sftp:
        with sftp.open("/absolute", "wb") as file:
            file.write(b"x")
        assert sftp.normalize(".") == "/"
    assert (server.root / "home" / "absolute").read_bytes() == b"x"


_LAUNCHER = """
import sys, time
from pathlib import Path
root, package, tests = map(Path, sys.argv[1:4])
sys.path[:0] = [str(package), str(tests)]
from emulated_boards import conv_net, make_spec, save
from device_agents.contract import RuntimeOptions
from device_agents.emulated import emulated_agent
root.mkdir()
agent = emulated_agent("orphan", make_spec(), root=root / "board" if sys.argv[4] == "kept" else None)
agent.connect()
path, digest = save(conv_net(), root, "net")
agent.deploy(path, digest)
agent.load(digest, RuntimeOptions())
print(agent._transport._root, flush=True)
time.sleep(600)
"""


def processes_of(root: Path) -> set[int]:
    """Processes of this host whose command line or current folder is below ``root``."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            if str(root) in command or str(root) in os.readlink(entry / "cwd"):
                found.add(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
@pytest.mark.parametrize("folder", ["kept", "temporary"])
def test_nothing_outlives_a_killed_launcher(tmp_path: Path, folder: str) -> None:
    arguments = [str(tmp_path / "orphan"), str(ROOT), str(Path(__file__).parent), folder]
    launcher = subprocess.Popen([sys.executable, "-c", _LAUNCHER, *arguments], stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    try:
        board = Path(launcher.stdout.readline().decode().strip())
        assert (board / "home").is_dir()
        # Server, nursery, and each of the runner and its child with the process that stands for it.
        assert len(processes_of(board) - {launcher.pid}) >= 4
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait(DEADLINE)
        launcher.stdout.close()
    until = time.monotonic() + DEADLINE
    while processes_of(board) and time.monotonic() < until:
        time.sleep(0.1)
    assert processes_of(board) == set()
    assert board.exists() == (folder == "kept")
