"""Where a board is and how to log in: the values the SSH agent is made from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from device_agents.secret import Secret
from device_agents.ssh.hostkeys import parse_pin

_HOST = re.compile(r"[A-Za-z0-9_.:%\[\]-]+")
_USER = re.compile(r"[A-Za-z0-9_.@\\+$-]+")
_BOARD_PATH = re.compile(r"[A-Za-z0-9_./~:\\@+ -]+")


def host_problem(host: str) -> str | None:
    """Why a host name cannot be used, or ``None``. It may appear in ``~/.ssh/config`` tokens, so it is strict."""
    if not host:
        return "the host name is empty"
    if host.startswith("-"):
        return f"host name {host!r} starts with '-'"
    if not _HOST.fullmatch(host):
        return f"host name {host!r} has characters other than letters, digits and . - _ : %"
    return None


def user_problem(user: str) -> str | None:
    """Why a login name cannot be used, or ``None``."""
    if user.startswith("-") or not _USER.fullmatch(user):
        return f"{user!r} is not a login name"
    return None


def board_path_problem(path: str) -> str | None:
    """Why a path on the board (work folder, Python) cannot be used, or ``None``.

    Such a path ends up on the board's command line, so only ``[A-Za-z0-9_./~:\\@+ -]`` is let through, and nothing that
    reads as an option or climbs upwards.
    """
    if not path:
        return "the path is empty"
    if path.startswith("-"):
        return f"path {path!r} starts with '-'"
    if not _BOARD_PATH.fullmatch(path) or path != path.strip():
        return f"path {path!r} has characters other than letters, digits, inner spaces and . _ / ~ : \\ @ + -"
    if ".." in re.split(r"[/\\]", path):
        return f"path {path!r} contains '..'"
    if "~" in path and not path.startswith("~/"):
        return f"path {path!r}: '~' is understood only as a leading '~/', the home folder of the login user"
    return None


@dataclass(frozen=True)
class SshTarget:
    """How to reach one board. Fields that are ``None`` come from the OpenSSH client configuration, then its defaults.

    Raises ``ValueError`` with the field's name where a value cannot be used.
    """

    host: str
    """Address, DNS name or ``Host`` alias of the OpenSSH client configuration."""
    lock_dir: Path
    """Folder on this host for the lock that keeps two controllers off one board."""
    port: int | None = None
    user: str | None = None
    key_file: Path | None = None
    """Private key. When given, no other key is tried."""
    password: Secret | None = None
    passphrase: Secret | None = None
    """Of encrypted private keys."""
    host_key: str | None = None
    """The board's pinned key: ``SHA256:…``, ``ssh-ed25519 SHA256:…``, ``ssh-ed25519 AAAA…`` or a known_hosts line."""
    known_hosts: Path | None = None
    """boardtune's own known_hosts file, read besides the user's; it need not exist."""
    proxy_jump: str | None = None
    """``[user@]host[:port]``, several separated by commas, first hop first; ``none`` overrides the configuration."""
    config_file: Path | None = None
    """OpenSSH client configuration; ``None`` means ``~/.ssh/config`` where it exists."""
    use_agent: bool = True
    """Whether keys of a running ssh-agent are tried."""
    python: str = "python3"
    """Interpreter on the board: a command or a path there."""
    workdir: str = ".boardtune"
    """Work folder on the board, relative to the home folder, or absolute."""
    keepalive_s: int = 15

    def __post_init__(self) -> None:
        problem = host_problem(self.host)
        if problem is not None:
            raise ValueError(f"host: {problem}")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise ValueError(f"port: {self.port} is not in 1..65535")
        problem = user_problem(self.user) if self.user is not None else None
        if problem is not None:
            raise ValueError(f"user: {problem}")
        if self.host_key is not None:
            try:
                parse_pin(self.host_key)
            except ValueError as error:
                raise ValueError(f"host_key: {error}") from error
        for field, path in (("python", self.python), ("workdir", self.workdir)):
            problem = board_path_problem(path)
            if problem is not None:
                raise ValueError(f"{field}: {problem}")
        if self.keepalive_s < 0:
            raise ValueError(f"keepalive_s: {self.keepalive_s} is negative")
