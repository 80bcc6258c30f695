"""Host keys of boards: shown to a person once, then pinned in boardtune's own known_hosts file."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from device_agents.ssh.hostkeys import HostKey, KnownKey, enrol, parse_pin, read_known_hosts
from device_agents.ssh.target import SshTarget
from harness.boards.agents import known_hosts_path, ssh_target
from harness.boards.schema import Board
from harness.boards.transports import SshTransport
from harness.errors import ConfigError

TrustState = Literal["new", "known", "changed", "pinned", "mismatch"]
_LOCK_DEADLINE_S = 10.0


@dataclass(frozen=True)
class TrustQuestion:
    """What a board presented, and what is known about it."""

    board: str
    key: HostKey
    state: TrustState
    """``new``: nothing known. ``known``: enrolled already. ``changed``: another key of this kind is enrolled.
    ``pinned``: equals ``host_key`` in the board file. ``mismatch``: differs from it."""
    known: tuple[KnownKey, ...] = ()


def ask_board(board: Board, fetch: Callable[[SshTarget], HostKey] | None = None) -> TrustQuestion:
    """Fetches the board's host key (no login) and compares it with what is known.

    Raises:
        ConfigError: the board is not reached over ssh.
        device_agents.contract.AgentError: the board cannot be reached.
    """
    if not isinstance(board.transport, SshTransport):
        raise ConfigError(
            f"board {board.name!r} has no host key to trust: it is reached by {board.transport.kind}",
            hint="only boards with transport ssh have one",
        )
    if fetch is None:
        from device_agents.ssh import fetch_host_key

        fetch = fetch_host_key
    key = fetch(ssh_target(board))
    if board.transport.host_key is not None:
        pin = parse_pin(board.transport.host_key)
        return TrustQuestion(board.name, key, "pinned" if _same(pin, key) else "mismatch", (pin,))
    known = read_known_hosts([known_hosts_path()], [key.line.split()[0]])
    if any(other.fingerprint == key.fingerprint and not other.revoked for other in known):
        return TrustQuestion(board.name, key, "known", known)
    return TrustQuestion(board.name, key, "changed" if known else "new", known)


def accept(question: TrustQuestion, *, fingerprint: str | None = None, replace: bool = False) -> Path | None:
    """Enrols the key, unless that would be wrong; returns the file written, ``None`` where nothing was to be done.

    Args:
        question: from :func:`ask_board`.
        fingerprint: what the key must have; compared, never trusted by itself.
        replace: whether a changed key may replace the enrolled one.

    Raises:
        ConfigError: the key is not the one asked for, differs from the pinned or the enrolled one, or its file cannot
            be written.
    """
    key = question.key
    if fingerprint is not None:
        _compare(question, fingerprint)
    if question.state in ("known", "pinned"):
        return None
    if question.state == "mismatch":
        raise ConfigError(
            f"board {question.board!r} presents {key.fingerprint}, and its file pins {question.known[0].fingerprint}",
            hint="if the board was really reinstalled, correct transport.host_key in its file; "
            "otherwise something else answers at its address",
        )
    if question.state == "changed" and not replace:
        enrolled = ", ".join(f"{other.fingerprint} ({other.where})" for other in question.known)
        raise ConfigError(
            f"the host key of board {question.board!r} has changed: it presents {key.fingerprint}, "
            f"enrolled is {enrolled}",
            hint="if the board was really reinstalled, add --replace; otherwise something else answers at its address",
        )
    path = known_hosts_path()
    try:
        with _exclusive(path.with_name(f".{path.name}.lock")):
            enrol(path, key)
    except OSError as error:
        raise ConfigError(
            f"the host key cannot be written: {error.strerror or error}", where=path, hint="make the folder writable"
        ) from None
    return path


def _compare(question: TrustQuestion, fingerprint: str) -> None:
    try:
        wanted = parse_pin(fingerprint if ":" in fingerprint or " " in fingerprint else f"SHA256:{fingerprint}")
    except ValueError as error:
        raise ConfigError(
            f"--fingerprint: {error}", hint="on the board: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
        ) from None
    if not _same(wanted, question.key):
        raise ConfigError(
            f"board {question.board!r} presents {question.key.algorithm} {question.key.fingerprint}, "
            f"not {wanted.fingerprint}",
            hint="compare with what the board itself shows: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        )


def _same(known: KnownKey, key: HostKey) -> bool:
    return known.fingerprint == key.fingerprint and known.algorithm in (None, key.algorithm)


@contextlib.contextmanager
def _exclusive(lock: Path) -> Iterator[None]:
    """Two ``boards trust`` at once would each write the file without the other's line."""
    lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + _LOCK_DEADLINE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise TimeoutError("another process is writing it") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
