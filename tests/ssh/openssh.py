"""A real OpenSSH server on loopback, for tests and benchmarks.

``running_sshd(folder)`` starts Debian's ``sshd`` on a free port with fresh host keys and one authorised user key, all
inside ``folder``; nothing outside it is written, apart from ``/run/sshd``, which sshd insists on when it runs as root.
The accounts are the machine's own: one logs in as the user who runs the tests.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from device_agents.ssh.target import SshTarget

_SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/sftp-server", "/usr/libexec/openssh/sftp-server")
_HOST_KEY_TYPES = ("ed25519", "ecdsa", "rsa")


def missing_openssh() -> str | None:
    """Why there is no usable OpenSSH server here, or ``None`` if there is one."""
    if sshd_path() is None:
        return "no OpenSSH server (Debian: apt-get install openssh-server)"
    if shutil.which("ssh-keygen") is None:
        return "no ssh-keygen (Debian: apt-get install openssh-client)"
    if os.getuid() == 0 and not Path("/run/sshd").is_dir():
        try:
            Path("/run/sshd").mkdir(mode=0o755)
        except OSError as error:
            return f"sshd needs /run/sshd: {error}"
    return None


def sshd_path() -> str | None:
    return shutil.which("sshd", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """A fresh private key at ``path`` (its public half beside it, ``.pub``)."""
    size = ["-b", "2048"] if kind == "rsa" else []
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, *size, "-N", passphrase, "-C", "boardtune-test", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    return path


def fingerprint(public_key: Path) -> str:
    """``SHA256:…`` as ssh-keygen computes it: an independent source for tests."""
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-E", "sha256", "-f", str(public_key)], check=True, capture_output=True, text=True
    )
    return shown.stdout.split()[1]


@dataclass
class OpenSshServer:
    """A running server. ``folder`` holds its keys, configuration and ``log``."""

    folder: Path
    port: int
    user_key: Path
    process: subprocess.Popen[bytes]
    host: str = "127.0.0.1"
    user: str = field(default_factory=getpass.getuser)

    @property
    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    def host_public_key(self, kind: str = "ed25519") -> Path:
        return self.folder / f"host_{kind}.pub"

    def host_fingerprint(self, kind: str = "ed25519") -> str:
        return fingerprint(self.host_public_key(kind))

    def known_hosts_line(self, kind: str = "ed25519") -> str:
        algorithm, encoded = self.host_public_key(kind).read_text().split()[:2]
        return f"[{self.host}]:{self.port} {algorithm} {encoded}"

    def target(self, workdir: Path | str, **changes: Any) -> SshTarget:
        """A target that works: pinned key, own lock folder, no user configuration."""
        values: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "key_file": self.user_key,
            "host_key": self.host_fingerprint(),
            "config_file": Path(os.devnull),
            "use_agent": False,
            "python": sys.executable,
            "workdir": str(workdir),
            "lock_dir": self.folder / "locks",
        }
        return SshTarget(**{**values, **changes})

    def sessions(self) -> list[int]:
        """Process ids of the per-connection children of sshd."""
        return _children(self.process.pid)

    def drop_connections(self) -> int:
        """Kills every connection the way a power cut on the path does: no goodbye. Returns how many."""
        victims = self.sessions()
        for pid in victims:
            for child in (*_children(pid), pid):  # without root there is an unprivileged child below the monitor
                if _is_sshd(child):
                    _kill(child)
        return len(victims)

    def stop(self) -> None:
        self.drop_connections()
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)


@contextmanager
def running_sshd(
    folder: Path,
    *,
    extra: Sequence[str] = (),
    sftp: bool = True,
    port: int | None = None,
    host_key_types: Sequence[str] = _HOST_KEY_TYPES,
    authorized: Sequence[Path] = (),
) -> Iterator[OpenSshServer]:
    """Starts sshd and stops it with all its connections at the end.

    ``extra`` are further lines of sshd_config (put first: sshd takes the first value it sees); ``authorized`` further
    public keys to accept. Host keys in ``folder`` are kept if they are there, so that a server can be restarted.
    Raises ``RuntimeError`` with the log if the server does not come up.
    """
    reason = missing_openssh()
    if reason is not None:
        raise RuntimeError(reason)
    folder.mkdir(parents=True, exist_ok=True)
    for kind in host_key_types:
        if not (folder / f"host_{kind}").exists():
            make_key(folder / f"host_{kind}", kind)
    user_key = folder / "user_key"
    if not user_key.exists():
        make_key(user_key)
    accepted = [Path(f"{user_key}.pub"), *authorized]
    (folder / "authorized_keys").write_text("".join(path.read_text() for path in accepted))
    number = port or free_port()
    lines = [
        *extra,
        f"Port {number}",
        "ListenAddress 127.0.0.1",
        *(f"HostKey {folder / f'host_{kind}'}" for kind in host_key_types),
        f"AuthorizedKeysFile {folder / 'authorized_keys'}",
        "StrictModes no",
        "PidFile none",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "AllowTcpForwarding yes",
        "MaxStartups 100:30:200",
        "MaxSessions 50",
        "PrintMotd no",
        "UseDNS no",
        "LogLevel VERBOSE",
    ]
    if sftp:
        lines.append(f"Subsystem sftp {next((p for p in _SFTP_SERVERS if Path(p).exists()), 'internal-sftp')}")
    config = folder / "sshd_config"
    config.write_text("\n".join(lines) + "\n")
    with (folder / "sshd.log").open("ab") as log:
        process = subprocess.Popen(
            [str(sshd_path()), "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    server = OpenSshServer(folder=folder, port=number, user_key=user_key, process=process)
    try:
        _wait_until_listening(server)
        yield server
    finally:
        server.stop()


def _wait_until_listening(server: OpenSshServer, timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if server.process.poll() is not None:
            raise RuntimeError(f"sshd ended with code {server.process.returncode}:\n{server.log}")
        try:
            with socket.create_connection((server.host, server.port), timeout=1) as link:
                if link.recv(4).startswith(b"SSH-"):
                    return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"sshd does not answer on port {server.port}:\n{server.log}")


def _children(pid: int) -> list[int]:
    shown = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], check=False, capture_output=True, text=True)
    return [int(word) for word in shown.stdout.split()]


def _is_sshd(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "comm=", "-p", str(pid)], check=False, capture_output=True, text=True)
    return shown.stdout.strip().startswith("sshd")


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
