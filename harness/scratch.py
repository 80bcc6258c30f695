"""Folders for intermediate files, which outlive nobody: those of processes that were killed are removed later."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"boardtune-work-(?P<space>\d+)-(?P<pid>\d+)-\w+")


def scratch_prefix() -> str:
    """For :mod:`tempfile`: names the process, so that :func:`sweep` knows when nobody needs the folder any more."""
    return f"boardtune-work-{_pid_space()}-{os.getpid()}-"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, removed at the end; what killed processes left is removed first."""
    sweep()
    with tempfile.TemporaryDirectory(prefix=scratch_prefix(), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def sweep(parent: Path | None = None) -> list[Path]:
    """Removes the user's scratch folders whose process is dead; returns them. Never raises.

    Does nothing on Windows, where asking after a process would end it.
    """
    if sys.platform == "win32":
        return []
    swept = []
    with contextlib.suppress(OSError):
        for folder in (parent or Path(tempfile.gettempdir())).glob("boardtune-work-*"):
            if _is_left_over(folder):
                shutil.rmtree(folder, ignore_errors=True)
                swept.append(folder)
    return swept


def _is_left_over(folder: Path) -> bool:
    match = _NAME.fullmatch(folder.name)
    if match is None or int(match["space"]) != _pid_space():
        return False
    try:
        return folder.lstat().st_uid == os.getuid() and not _alive(int(match["pid"]))
    except OSError:
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _pid_space() -> int:
    """Containers may share a folder for temporary files, but not what a process's number means."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
