"""The emulated board's SFTP server: one private folder, nothing outside it."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any

import paramiko
from paramiko.sftp import (
    CMD_EXTENDED,
    CMD_EXTENDED_REPLY,
    CMD_VERSION,
    SFTP_FAILURE,
    SFTP_OK,
    SFTP_OP_UNSUPPORTED,
    SFTP_PERMISSION_DENIED,
)
from paramiko.sftp_server import SFTPServer

from .machine import Machine

_EXTENSIONS = ("posix-rename@openssh.com", "statvfs@openssh.com", "fsync@openssh.com")
_BLOCK = 4096


class Folder(paramiko.SFTPServerInterface):
    """Paths are relative to ``home``, which clients see as ``/``; whatever leads out of it is refused."""

    def __init__(self, server: paramiko.ServerInterface, home: Path, machine: Machine) -> None:
        super().__init__(server)
        self._home = home.resolve()
        self._machine = machine
        self._written = 0

    # ---- paths ---------------------------------------------------------------------------------------------------

    def canonicalize(self, path: str) -> str:
        return os.path.normpath("/" + path.lstrip("/"))

    def inside(self, path: str) -> Path | None:
        """The real path, or ``None`` if it is outside the folder, also by way of a link."""
        depth = 0
        for part in path.split("/"):
            depth += -1 if part == ".." else 0 if part in ("", ".") else 1
            if depth < 0:
                return None
        real = self._home / os.path.normpath(path.lstrip("/") or ".")
        try:
            target = real.resolve()
        except (OSError, RuntimeError):
            return None
        return real if target == self._home or self._home in target.parents else None

    # ---- requests ------------------------------------------------------------------------------------------------

    def list_folder(self, path: str) -> Any:
        real = self.inside(path)
        if real is None:
            return SFTP_PERMISSION_DENIED
        try:
            return [paramiko.SFTPAttributes.from_stat(entry.lstat(), entry.name) for entry in real.iterdir()]
        except OSError as error:
            return SFTPServer.convert_errno(error.errno or errno.EIO)

    def stat(self, path: str) -> Any:
        real = self.inside(path)
        if real is None:
            return SFTP_PERMISSION_DENIED
        try:
            return paramiko.SFTPAttributes.from_stat(real.stat())
        except OSError as error:
            return SFTPServer.convert_errno(error.errno or errno.EIO)

    lstat = stat

    def open(self, path: str, flags: int, attr: paramiko.SFTPAttributes) -> Any:
        real = self.inside(path)
        writing = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
        if real is None or (writing and self._unwritable()):
            return SFTP_PERMISSION_DENIED
        try:
            descriptor = os.open(real, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            return SFTPServer.convert_errno(error.errno or errno.EIO)
        return File(self, descriptor, flags, is_upload=real.suffix == ".part")

    def mkdir(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        return self._change(path, lambda real: real.mkdir(mode=0o700))

    def rmdir(self, path: str) -> int:
        return self._change(path, Path.rmdir)

    def remove(self, path: str) -> int:
        return self._change(path, Path.unlink)

    def rename(self, oldpath: str, newpath: str) -> int:
        target = self.inside(newpath)
        if target is None:
            return SFTP_PERMISSION_DENIED
        if target.exists():
            return SFTP_FAILURE
        return self._change(oldpath, lambda real: real.rename(target))

    def posix_rename(self, oldpath: str, newpath: str) -> int:
        target = self.inside(newpath)
        if target is None:
            return SFTP_PERMISSION_DENIED
        return self._change(oldpath, lambda real: real.replace(target))

    def _change(self, path: str, action: Any) -> int:
        real = self.inside(path)
        if real is None or self._unwritable():
            return SFTP_PERMISSION_DENIED
        try:
            action(real)
        except OSError as error:
            return SFTPServer.convert_errno(error.errno or errno.EIO)
        return SFTP_OK

    # ---- planted faults ------------------------------------------------------------------------------------------

    def _unwritable(self) -> bool:
        return self._machine.strike("unwritable") is not None

    def free_bytes(self) -> int:
        fault = self._machine.planted("disk_full")
        if fault is not None:
            return max(0, fault.after_bytes - self._written)
        stats = os.statvfs(self._home)
        return stats.f_bavail * stats.f_frsize

    def admit(self, size: int) -> bool:
        """Whether so many more bytes fit on the disk."""
        fault = self._machine.planted("disk_full")
        if fault is not None and self._written + size > fault.after_bytes:
            self._machine.strike("disk_full")
            return False
        self._written += size
        return True

    def spoil(self, offset: int, data: bytes) -> bytes:
        """The bytes of an upload as they reach the disk."""
        fault = self._machine.planted("corrupt_upload")
        if fault is None or not offset <= fault.after_bytes < offset + len(data):
            return data
        self._machine.strike("corrupt_upload")
        at = fault.after_bytes - offset
        return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


class File(paramiko.SFTPHandle):
    """An open file, read and written by position."""

    def __init__(self, folder: Folder, descriptor: int, flags: int, *, is_upload: bool) -> None:
        super().__init__(flags)
        self._folder = folder
        self._descriptor = descriptor
        self._is_upload = is_upload

    def read(self, offset: int, length: int) -> Any:
        try:
            return os.pread(self._descriptor, length, offset)
        except OSError as error:
            return SFTPServer.convert_errno(error.errno or errno.EIO)

    def write(self, offset: int, data: Any) -> int:
        data = bytes(data)
        if not self._folder.admit(len(data)):
            return SFTP_FAILURE
        if self._is_upload:
            data = self._folder.spoil(offset, data)
        try:
            while data:
                done = os.pwrite(self._descriptor, data, offset)
                offset, data = offset + done, data[done:]
        except OSError as error:
            return SFTPServer.convert_errno(error.errno or errno.EIO)
        return SFTP_OK

    def stat(self) -> Any:
        return paramiko.SFTPAttributes.from_stat(os.fstat(self._descriptor))

    def sync(self) -> int:
        os.fsync(self._descriptor)
        return SFTP_OK

    def close(self) -> None:
        super().close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Files(SFTPServer):
    """paramiko's SFTP server with the extensions of OpenSSH's that agents use.

    paramiko has no hook for extensions, so this overrides two methods that it keeps to itself.
    """

    def _send_server_version(self) -> int:
        wire: Any = self
        packet = wire._read_packet()
        version: int = struct.unpack(">I", packet[1][:4])[0]
        message = paramiko.Message()
        message.add_int(3)
        for name in _EXTENSIONS:
            message.add_string(name)
            message.add_string("2" if name.startswith("statvfs") else "1")
        wire._send_packet(CMD_VERSION, message)
        return version

    def _process(self, t: int, request_number: int, msg: paramiko.Message) -> None:
        wire: Any = self
        if t != CMD_EXTENDED:
            parent: Any = super()
            parent._process(t, request_number, msg)
            return
        name = msg.get_text()
        folder: Folder = wire.server
        if name == "posix-rename@openssh.com":
            wire._send_status(request_number, folder.posix_rename(msg.get_text(), msg.get_text()))
        elif name == "fsync@openssh.com":
            file = wire.file_table.get(msg.get_binary())
            wire._send_status(request_number, file.sync() if file is not None else SFTP_FAILURE)
        elif name == "statvfs@openssh.com":
            free = folder.free_bytes() // _BLOCK
            reply = paramiko.Message()
            reply.add_int(request_number)
            # f_bsize, f_frsize, f_blocks, f_bfree, f_bavail, f_files, f_ffree, f_favail, f_fsid, f_flag, f_namemax
            for value in (_BLOCK, _BLOCK, max(free, 1 << 20), free, free, 1 << 20, 1 << 20, 1 << 20, 0, 0, 255):
                reply.add_int64(value)
            wire._send_packet(CMD_EXTENDED_REPLY, reply)
        else:
            wire._send_status(request_number, SFTP_OP_UNSUPPORTED)
