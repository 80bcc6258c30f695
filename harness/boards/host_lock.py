"""The lock that keeps everything else on this host quiet while a board that shares its processors is timed."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from device_agents.host_lock import HostBusy, HostLock, Work
from harness.boards.folders import runtime_folder
from harness.boards.schema import Board
from harness.boards.transports import SshTransport

__all__ = ["HostBusy", "HostLock", "Work", "host_lock", "host_lock_folder", "times_on_this_host"]


def host_lock_folder() -> Path:
    """The lock's folder: one per user and machine; raises ConfigError if it cannot be had."""
    return runtime_folder() / "host"


def host_lock() -> HostLock:
    """The user's host lock; cheap to make, and all instances are the same lock."""
    return HostLock(host_lock_folder())


def times_on_this_host(board: Board) -> bool:
    """Whether timing the board needs this host's processors, so that it must hold :meth:`HostLock.clock`."""
    transport = board.transport
    if transport.kind in ("emulated_ssh", "emulated_serial"):
        return board.emulated is not None and board.emulated.pace == "real"
    if isinstance(transport, SshTransport):
        # Through a jump host, a loopback address is one of the jump host's.
        return transport.proxy_jump is None and _is_loopback(transport.host)
    return transport.kind == "local"


def _is_loopback(host: str) -> bool:
    """A container or virtual machine behind a port of this host shares its processors too."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost")
