"""The lock that keeps everything else on this host quiet while a board that shares its processors is timed."""

from __future__ import annotations

from pathlib import Path

from device_agents.host_lock import HostBusy, HostLock, Work
from harness.boards.folders import runtime_folder
from harness.boards.schema import Board

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
    if transport.kind == "emulated_ssh":
        return board.emulated is not None and board.emulated.pace == "real"
    return transport.kind == "local"
