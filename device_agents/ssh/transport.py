"""The SSH transport: one connection, SFTP for files, ``exec`` of a fixed command line for the board's Python."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import paramiko

from device_agents.contract import AgentError, BoardUnfit, DeviceTimeout, LinkError
from device_agents.ssh.channel import SshChannel
from device_agents.ssh.command import command_line, is_windows, sftp_path
from device_agents.ssh.config import route
from device_agents.ssh.connection import Connection, connect
from device_agents.ssh.guard import within
from device_agents.ssh.lock import BoardLock
from device_agents.ssh.sftp import Sftp, SftpError
from device_agents.ssh.target import SshTarget
from device_agents.transport import Deadline, checked_relpath

logger = logging.getLogger(__name__)

_SMALL_FILE_S = 60.0


class SshTransport:
    """Implements :class:`device_agents.transport.Transport` for one :class:`SshTarget`."""

    def __init__(self, target: SshTarget) -> None:
        self._target = target
        self._folder = sftp_path(target.workdir)
        self._lock: BoardLock | None = None
        self._connection: Connection | None = None
        self._sftp: Sftp | None = None
        self._windows = False

    def open(self, deadline_s: float) -> None:
        deadline = Deadline(deadline_s)
        if self._lock is None:
            self._lock = BoardLock(self._target.lock_dir, [f"{hop.host}:{hop.port}" for hop in route(self._target)])
        had_lock = self._lock.held
        self._lock.acquire()
        self._drop()
        try:
            self._connection = connect(self._target, deadline)
            self._prepare_folder(deadline)
        except BaseException:
            self._drop()
            if not had_lock:
                self._lock.release()
            raise

    def file_size(self, relpath: str) -> int | None:
        path = self._path(relpath)
        deadline = Deadline(_SMALL_FILE_S)
        with self._files(f"look at {path}", 0, deadline) as sftp:
            return sftp.size(path, deadline)

    def upload(self, local: Path, relpath: str, offset: int, deadline_s: float) -> int:
        path = self._path(relpath)
        needed = local.stat().st_size - offset
        if offset < 0 or needed < 0:
            raise ValueError(f"offset {offset} is outside {local} of {needed + offset} bytes")
        deadline = Deadline(deadline_s)
        with self._files(f"write {path}", needed, deadline) as sftp, local.open("rb") as source:
            sftp.make_folders(path.rpartition("/")[0], deadline)
            there = sftp.size(path, deadline) or 0
            if there < offset:
                raise ValueError(f"{path} has {there} bytes on the board: cannot go on from byte {offset}")
            free = sftp.free_bytes(self._folder, deadline)
            if free is not None and free + (there - offset) < needed:
                raise _disk_full(path, free, needed)
            source.seek(offset)
            sent = sftp.write(path, source, offset, deadline)
            arrived = sftp.size(path, deadline) or 0
        if arrived < offset + sent:
            raise LinkError(f"{path} has {arrived} bytes on the board after {offset + sent} were written")
        return sent

    def write_file(self, relpath: str, data: bytes) -> None:
        path = self._path(relpath)
        temporary = f"{path}.new-{os.getpid()}"
        deadline = Deadline(_SMALL_FILE_S)
        with self._files(f"write {path}", len(data), deadline) as sftp:
            sftp.make_folders(path.rpartition("/")[0], deadline)
            sftp.write(temporary, BytesIO(data), 0, deadline)
            sftp.rename(temporary, path, deadline)

    def start(self, args: Sequence[str], deadline_s: float) -> SshChannel:
        deadline = Deadline(deadline_s)
        command = command_line(self._target.python, self._target.workdir, args, windows=self._windows)
        connection = self._live()
        channel = connection.open_channel(deadline)
        try:
            # paramiko waits for the server's answer without end.
            within(max(0.1, deadline.remaining()), lambda: channel.exec_command(command))
        except TimeoutError as error:
            channel.close()
            raise DeviceTimeout(f"the SSH server did not start a command within {deadline_s:g} s") from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._refused(f"the SSH server runs no command for this user: {error}") from error
        return SshChannel(connection, channel, self._target.python)

    def connected(self) -> bool:
        return self._connection is not None and self._connection.alive()

    def close(self) -> None:
        self._drop()
        if self._lock is not None:
            self._lock.release()

    def _path(self, relpath: str) -> str:
        return f"{self._folder.rstrip('/')}/{checked_relpath(relpath)}"

    def _prepare_folder(self, deadline: Deadline) -> None:
        """Makes the work folder and writes a byte in it, so that a board that cannot is told at once."""
        probe = f"{self._folder.rstrip('/')}/write-test-{os.getpid()}"
        with self._files(f"write in the work folder {self._target.workdir!r}", 1, deadline) as sftp:
            self._windows = is_windows(sftp.real_path(".", deadline))
            sftp.make_folders(self._folder, deadline)
            sftp.write(probe, BytesIO(b"\n"), 0, deadline)
            sftp.remove(probe, deadline)

    @contextmanager
    def _files(self, task: str, needed: int, deadline: Deadline) -> Iterator[Sftp]:
        """An SFTP session whose refusals come out as errors of the board that say what was being done."""
        connection = self._live()
        connection.give_up_at(time.monotonic() + deadline.seconds)
        try:
            if self._sftp is None or not self._sftp.usable:
                self._sftp = self._open_sftp(connection, deadline)
            yield self._sftp
        except SftpError as error:
            raise self._unfit(error, task, needed) from error
        except (LinkError, DeviceTimeout):
            if self._sftp is not None:
                self._sftp.close()
            self._sftp = None
            raise
        finally:
            connection.give_up_at(None)

    def _open_sftp(self, connection: Connection, deadline: Deadline) -> Sftp:
        channel = connection.open_channel(deadline)
        try:
            within(max(0.1, deadline.remaining()), lambda: channel.invoke_subsystem("sftp"))
        except TimeoutError as error:
            channel.close()
            raise DeviceTimeout(f"the SSH server did not start SFTP within {deadline.seconds:g} s") from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            if not connection.alive():
                raise LinkError("the SSH connection dropped") from error
            raise BoardUnfit(
                "the board's SSH server has no SFTP, and files go there by SFTP",
                hint="sudo apt install openssh-sftp-server, or add 'Subsystem sftp internal-sftp' to its sshd_config",
            ) from error
        return Sftp(channel, deadline)

    def _unfit(self, error: SftpError, task: str, needed: int) -> AgentError:
        if error.denied:
            return BoardUnfit(
                f"no permission to {task}: {error.text}",
                hint="the login user must be able to write there; name another folder as workdir in the board file",
            )
        # SFTP has one status for "disk full", "over quota" and "is a folder": ask the file system.
        deadline = Deadline(10.0)
        free = self._sftp.free_bytes(self._folder, deadline) if self._sftp is not None and self._sftp.usable else None
        if free is not None and free < max(needed, 4096):
            return _disk_full(task.removeprefix("write "), free, needed)
        return BoardUnfit(
            f"cannot {task}: {error.text}",
            hint="is the disk full, over quota or read-only, or is a part of that path not a folder?",
        )

    def _live(self) -> Connection:
        if self._connection is None or not self._connection.alive():
            raise LinkError("not connected to the board" if self._connection is None else "the SSH connection dropped")
        return self._connection

    def _refused(self, message: str) -> AgentError:
        return LinkError(message) if self.connected() else LinkError("the SSH connection dropped", detail=message)

    def _drop(self) -> None:
        self._sftp = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _disk_full(what: str, free: int, needed: int) -> BoardUnfit:
    return BoardUnfit(
        f"the board's disk is full: {free / 1e6:.1f} MB free, {needed / 1e6:.1f} MB needed for {what}",
        hint="free some space there, or let boardtune remove what it left: boardtune boards clean NAME",
    )
