"""The few SFTP requests that moving files to a board needs, over one channel.

SFTP version 3 (draft-ietf-secsh-filexfer-02) and OpenSSH's extensions (its PROTOCOL file): ``fsync``, ``statvfs``,
``posix-rename``. paramiko's client is not used because it loses errors of pipelined writes, hides the server's list of
extensions, and waits without end (its issues 515, 814, 926).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import paramiko

from device_agents.contract import BoardUnfit, DeviceTimeout, LinkError
from device_agents.ssh.text import printable
from device_agents.transport import Deadline

_INIT, _VERSION, _OPEN, _CLOSE, _WRITE = 1, 2, 3, 4, 6
_REMOVE, _MKDIR, _REALPATH, _STAT, _RENAME = 13, 14, 16, 17, 18
_STATUS, _HANDLE, _NAME, _ATTRS, _EXTENDED, _EXTENDED_REPLY = 101, 102, 104, 105, 200, 201
_OPEN_WRITE, _OPEN_CREATE, _OPEN_TRUNCATE = 0x02, 0x08, 0x10
_OK, _NO_SUCH_FILE, _PERMISSION_DENIED = 0, 2, 3
_ATTR_SIZE, _ATTR_PERMISSIONS = 0x1, 0x4

_SSH_PACKET = 32768 - 64
"""Payload of the largest packet paramiko sends to a server that takes 32 kB, as OpenSSH does."""
_IN_FLIGHT = 48
"""Unanswered writes: 1.5 MB, below the 2 MB window of OpenSSH, where sender and reader would begin to take turns."""
_GARBAGE_LIMIT = 64 << 10
_MAX_REPLY = 256 << 10


class SftpError(Exception):
    """The server answered a request with an error status. ``code`` is the SFTP status code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    @property
    def missing(self) -> bool:
        return self.code == _NO_SUCH_FILE

    @property
    def denied(self) -> bool:
        return self.code == _PERMISSION_DENIED


@dataclass(frozen=True)
class _Reply:
    kind: int
    body: bytes


class Sftp:
    """An SFTP session on a channel whose ``sftp`` subsystem was asked for.

    Each call raises :class:`SftpError` where the server refuses, :class:`LinkError` where the link is gone and
    :class:`DeviceTimeout` at its deadline; after the last two the session is of no use any more.
    """

    def __init__(self, channel: paramiko.Channel, deadline: Deadline) -> None:
        self._channel = channel
        self._next = 0
        self._buffer = bytearray()
        self._replies: dict[int, _Reply] = {}
        self._abandoned: set[int] = set()
        self._send(struct.pack(">IBI", 5, _INIT, 3), deadline)
        self.extensions = frozenset(self._greeting(deadline))

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()

    @property
    def usable(self) -> bool:
        return not self._channel.closed

    def real_path(self, path: str, deadline: Deadline) -> str:
        body = _Reader(self._ask(_REALPATH, _string(path), deadline, _NAME))
        body.number()
        return body.string().decode("utf-8", "surrogateescape")

    def size(self, path: str, deadline: Deadline) -> int | None:
        """Bytes; ``None`` if there is no such file."""
        try:
            body = _Reader(self._ask(_STAT, _string(path), deadline, _ATTRS))
        except SftpError as error:
            if error.missing:
                return None
            raise
        return body.long() if body.number() & _ATTR_SIZE else 0

    def make_folders(self, path: str, deadline: Deadline) -> None:
        """``mkdir -p`` with access for the owner only."""
        if not path or path in (".", "/") or self.size(path, deadline) is not None:
            return
        self.make_folders(path.rpartition("/")[0], deadline)
        try:
            self._ask(_MKDIR, _string(path) + struct.pack(">II", _ATTR_PERMISSIONS, 0o700), deadline, _STATUS)
        except SftpError:
            if self.size(path, deadline) is None:  # else somebody else made it meanwhile
                raise

    def free_bytes(self, path: str, deadline: Deadline) -> int | None:
        """Space left for this user on the file system of ``path``; ``None`` if the server does not tell."""
        if "statvfs@openssh.com" not in self.extensions:
            return None
        try:
            body = self._ask(_EXTENDED, _string("statvfs@openssh.com") + _string(path), deadline, _EXTENDED_REPLY)
        except SftpError:
            return None
        _, fragment, _, _, available = struct.unpack_from(">5Q", body)
        return int(fragment) * int(available)

    def remove(self, path: str, deadline: Deadline) -> None:
        self._ask(_REMOVE, _string(path), deadline, _STATUS)

    def rename(self, old: str, new: str, deadline: Deadline) -> None:
        """Replaces ``new``; atomic where the server can."""
        if "posix-rename@openssh.com" in self.extensions:
            names = _string("posix-rename@openssh.com") + _string(old) + _string(new)
            self._ask(_EXTENDED, names, deadline, _STATUS)
            return
        if self.size(new, deadline) is not None:
            self.remove(new, deadline)
        self._ask(_RENAME, _string(old) + _string(new), deadline, _STATUS)

    def write(self, path: str, source: BinaryIO, offset: int, deadline: Deadline) -> int:
        """Writes what is left of ``source`` to ``path`` from ``offset`` on; offset 0 truncates. Returns bytes sent.

        Requests are pipelined; every one of them is seen answered, and the file is synced where the server can.
        """
        flags = _OPEN_WRITE | _OPEN_CREATE | (_OPEN_TRUNCATE if offset == 0 else 0)
        opened = _string(path) + struct.pack(">III", flags, _ATTR_PERMISSIONS, 0o600)
        handle = _string(_Reader(self._ask(_OPEN, opened, deadline, _HANDLE)).string())
        try:
            sent = self._write_blocks(handle, source, offset, deadline)
            if "fsync@openssh.com" in self.extensions:
                self._ask(_EXTENDED, _string("fsync@openssh.com") + handle, deadline, _STATUS)
        except SftpError:
            self._ask(_CLOSE, handle, deadline, _STATUS)
            raise
        self._ask(_CLOSE, handle, deadline, _STATUS)
        return sent

    def _write_blocks(self, handle: bytes, source: BinaryIO, offset: int, deadline: Deadline) -> int:
        pending: list[int] = []
        # One request fills one SSH packet: length, type, id, handle, offset, size, data.
        block = _SSH_PACKET - (4 + 1 + 4 + len(handle) + 8 + 4)
        position = offset
        try:
            for data in _blocks(source, block):
                head = handle + struct.pack(">QI", position, len(data))
                pending.append(self._request(_WRITE, head + data, deadline))
                position += len(data)
                while len(pending) >= _IN_FLIGHT or (pending and self._channel.recv_ready()):
                    _check(self._reply(pending.pop(0), deadline), _STATUS)
            while pending:
                _check(self._reply(pending.pop(0), deadline), _STATUS)
        except SftpError:
            self._abandoned.update(pending)  # their answers come later and concern nobody
            raise
        return position - offset

    def _ask(self, kind: int, body: bytes, deadline: Deadline, expected: int) -> bytes:
        return _check(self._reply(self._request(kind, body, deadline), deadline), expected)

    def _request(self, kind: int, body: bytes, deadline: Deadline) -> int:
        self._next = (self._next + 1) & 0xFFFFFFFF
        self._send(struct.pack(">IBI", len(body) + 5, kind, self._next) + body, deadline)
        return self._next

    def _reply(self, number: int, deadline: Deadline) -> _Reply:
        while number not in self._replies:
            size = struct.unpack(">I", self._take(4, deadline))[0]
            if not 5 <= size <= _MAX_REPLY:
                self.close()
                raise LinkError(f"the SFTP server sent a packet of {size} bytes: the stream is broken")
            packet = self._take(size, deadline)
            answered = struct.unpack_from(">I", packet, 1)[0]
            if answered in self._abandoned:
                self._abandoned.discard(answered)
            else:
                self._replies[answered] = _Reply(packet[0], packet[5:])
        return self._replies.pop(number)

    def _greeting(self, deadline: Deadline) -> Iterator[str]:
        """The server's VERSION packet, looked for behind whatever a login script printed; gives extension names."""
        mark = struct.pack(">BI", _VERSION, 3)
        while True:
            at = self._buffer.find(mark)
            size = int.from_bytes(self._buffer[at - 4 : at], "big") if at >= 4 else 0
            if 5 <= size <= _GARBAGE_LIMIT and len(self._buffer) >= at + size:
                break
            if len(self._buffer) > 2 * _GARBAGE_LIMIT or not self._receive(deadline):
                text = printable(bytes(self._buffer[:200]).decode("utf-8", "replace")).strip()
                self.close()
                raise BoardUnfit(
                    "the SSH server's SFTP service does not answer" + (f" but prints {text!r}" if text else ""),
                    hint="is its program installed (sudo apt install openssh-sftp-server)? "
                    "Login scripts must print nothing when no terminal is there",
                )
        body = _Reader(bytes(self._buffer[at + 5 : at + size]))
        del self._buffer[: at + size]
        while body.rest():
            yield body.string().decode("ascii", "replace")
            body.string()

    def _take(self, size: int, deadline: Deadline) -> bytes:
        while len(self._buffer) < size:
            if not self._receive(deadline):
                self.close()
                raise LinkError("the SFTP connection ended")
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _receive(self, deadline: Deadline) -> bool:
        self._channel.settimeout(max(0.001, deadline.remaining()))
        try:
            data = self._channel.recv(1 << 16)
        except TimeoutError as error:
            self.close()
            raise DeviceTimeout(f"the SFTP server did not answer within {deadline.seconds:g} s") from error
        self._buffer += data
        return bool(data)

    def _send(self, data: bytes, deadline: Deadline) -> None:
        self._channel.settimeout(max(0.001, deadline.remaining()))
        try:
            while data:
                sent = self._channel.send(data)
                if sent == 0:
                    raise EOFError("closed")
                data = data[sent:]
        except TimeoutError as error:
            self.close()
            raise DeviceTimeout(f"the SFTP server took no data within {deadline.seconds:g} s") from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            if deadline.passed:  # the network took nothing until now, and the guard gave up
                raise DeviceTimeout(f"the board took no data within {deadline.seconds:g} s") from error
            raise LinkError(f"the SFTP connection broke: {error or type(error).__name__}") from error


class _Reader:
    """Takes fields off a packet."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def rest(self) -> int:
        return len(self._body) - self._at

    def number(self) -> int:
        return int.from_bytes(self._field(4), "big")

    def long(self) -> int:
        return int.from_bytes(self._field(8), "big")

    def string(self) -> bytes:
        return self._field(self.number())

    def _field(self, size: int) -> bytes:
        if size > self.rest():
            raise LinkError("the SFTP server sent a packet that is too short")
        field = self._body[self._at : self._at + size]
        self._at += size
        return field


def _string(text: str | bytes) -> bytes:
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return struct.pack(">I", len(data)) + data


def _check(reply: _Reply, expected: int) -> bytes:
    if reply.kind == _STATUS:
        body = _Reader(reply.body)
        code = body.number()
        if code != _OK or expected != _STATUS:
            text = printable(body.string().decode("utf-8", "replace")) if body.rest() >= 4 else ""
            raise SftpError(code, text or f"status {code}")
    elif reply.kind != expected:
        raise LinkError(f"the SFTP server answered with packet type {reply.kind} instead of {expected}")
    return reply.body


def _blocks(source: BinaryIO, size: int) -> Iterator[bytes]:
    while data := source.read(size):
        yield data
