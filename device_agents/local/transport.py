"""Files and processes of this machine behind the transport seam."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from device_agents.contract import BoardUnfit, DeviceTimeout, LeaseLost, LinkError
from device_agents.local.channel import LocalChannel
from device_agents.transport import Deadline, checked_relpath

_COPY_BYTES = 1 << 20
_held: set[int] = set()


def _close_in_child() -> None:
    # A forked child shares the open file description and would keep the lock after its parent's death.
    for descriptor in tuple(_held):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


class LocalTransport:
    """Implements :class:`device_agents.transport.Transport`. Everything it starts ends with :meth:`close`."""

    def __init__(self, python: str | None = None, workdir: Path | None = None) -> None:
        self._python = python or sys.executable
        self._folder = (workdir or Path.home() / ".boardtune").expanduser().absolute()
        self._lock: int | None = None
        self._channels: list[LocalChannel] = []

    def open(self, deadline_s: float) -> None:
        self._take_lock()
        self._end_processes()
        probe = self._folder / f"write-test-{os.getpid()}"
        with self._refusals(f"write in the work folder {str(self._folder)!r}"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe.write_bytes(b"\n")
            probe.unlink()

    def file_size(self, relpath: str) -> int | None:
        try:
            return self._path(relpath).stat().st_size
        except FileNotFoundError:
            return None

    def upload(self, local: Path, relpath: str, offset: int, deadline_s: float) -> int:
        deadline = Deadline(deadline_s)
        path = self._path(relpath)
        sent = 0
        with self._refusals(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with local.open("rb") as source, path.open("r+b" if offset else "wb") as target:
                source.seek(offset)
                target.seek(offset)
                while chunk := source.read(_COPY_BYTES):
                    if deadline.passed:
                        raise DeviceTimeout(f"copying {local} took longer than {deadline_s:g} s")
                    target.write(chunk)
                    sent += len(chunk)
        return sent

    def write_file(self, relpath: str, data: bytes) -> None:
        path = self._path(relpath)
        temporary = path.with_name(f"{path.name}.new-{os.getpid()}")
        with self._refusals(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(data)
            temporary.replace(path)

    def start(self, args: Sequence[str], deadline_s: float) -> LocalChannel:
        if self._lock is None:
            raise LinkError("not connected")
        try:
            process = subprocess.Popen(
                [self._python, *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._folder,
                bufsize=0,
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            raise BoardUnfit(
                f"this machine has no Python {self._python!r}: {error.strerror}",
                hint="name its path as python in the board file",
            ) from error
        except OSError as error:
            raise LinkError(f"a process cannot be started: {error}") from error
        channel = LocalChannel(process)
        self._channels.append(channel)
        return channel

    def connected(self) -> bool:
        return self._lock is not None

    def close(self) -> None:
        self._end_processes()
        if self._lock is not None:
            _held.discard(self._lock)
            os.close(self._lock)
            self._lock = None

    def _path(self, relpath: str) -> Path:
        return self._folder / checked_relpath(relpath)

    def _end_processes(self) -> None:
        channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        folder = _lock_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = hashlib.sha256(os.fsencode(self._folder)).hexdigest()[:16]
        descriptor = os.open(folder / f"local-{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 200).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise LeaseLost(
                f"another process on this machine ({holder or 'unknown'}) works in {self._folder}",
                hint="wait for it to finish, or give this board a workdir of its own",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode("ascii"), 0)
        self._lock = descriptor
        _held.add(descriptor)

    @contextlib.contextmanager
    def _refusals(self, task: str) -> Iterator[None]:
        """The file system's refusals as errors of the board."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                free = shutil.disk_usage(self._folder).free
                raise BoardUnfit(
                    f"the disk is full ({free} bytes free): cannot {task}", hint="make room, or name another workdir"
                ) from error
            raise BoardUnfit(
                f"cannot {task}: {error.strerror}", hint="name a folder you may write in as workdir in the board file"
            ) from error


def _lock_folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "boardtune"
    return Path(tempfile.gettempdir()) / f"boardtune-{os.getuid()}"
