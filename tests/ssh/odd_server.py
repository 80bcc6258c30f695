"""SSH servers that OpenSSH cannot easily be made to be: passwords, second factors, answers that never come."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from paramiko.common import (
    AUTH_FAILED,
    AUTH_PARTIALLY_SUCCESSFUL,
    AUTH_SUCCESSFUL,
    OPEN_SUCCEEDED,
)
from paramiko.server import InteractiveQuery
from paramiko.sftp import SFTP_FAILURE, SFTP_OK

from device_agents.ssh.hostkeys import key_fingerprint


@dataclass
class OddServer(paramiko.ServerInterface):
    """``methods``: what it accepts; ``second``: what it wants after a good key; ``password``: the right one."""

    methods: str = "password"
    password: str = "right"
    second: str = ""
    silent_requests: bool = False
    """Takes ``exec`` and ``subsystem`` and never answers."""
    files: Path | None = None
    seen: list[str] = field(default_factory=list)
    port: int = 0
    host_fingerprint: str = ""
    stop: threading.Event = field(default_factory=threading.Event)

    def get_allowed_auths(self, username: str) -> str:
        return self.methods

    def check_auth_none(self, username: str) -> int:
        return AUTH_SUCCESSFUL if self.methods == "none" else AUTH_FAILED

    def check_auth_password(self, username: str, password: str) -> int:
        self.seen.append(f"password {password}")
        return AUTH_SUCCESSFUL if password == self.password else AUTH_FAILED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.seen.append("publickey")
        if self.second:
            self.methods = self.second
            return AUTH_PARTIALLY_SUCCESSFUL
        return AUTH_FAILED

    def check_auth_interactive(self, username: str, submethods: str) -> InteractiveQuery:
        return InteractiveQuery("login", "", ("Password: ", False), ("Your name: ", True))

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        self.seen.append(f"interactive {responses}")
        return AUTH_SUCCESSFUL if responses == [self.password, ""] else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._maybe_never_answer()
        return False

    def check_channel_subsystem_request(self, channel: paramiko.Channel, name: str) -> bool:
        self._maybe_never_answer()
        return super().check_channel_subsystem_request(channel, name)

    def _maybe_never_answer(self) -> None:
        if self.silent_requests:
            self.stop.wait(60)


class _Files(paramiko.SFTPServerInterface):
    """Plain files below one folder, as a server without OpenSSH's extensions offers them."""

    def __init__(self, server: OddServer) -> None:
        super().__init__(server)
        self.root = server.files or Path("/nonexistent")

    def _local(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def stat(self, path: str) -> paramiko.SFTPAttributes | int:
        try:
            return paramiko.SFTPAttributes.from_stat(self._local(path).stat())
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    def mkdir(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        self._local(path).mkdir()
        return SFTP_OK

    def remove(self, path: str) -> int:
        self._local(path).unlink()
        return SFTP_OK

    def rename(self, oldpath: str, newpath: str) -> int:
        if self._local(newpath).exists():
            return SFTP_FAILURE  # SFTP 3 does not replace
        self._local(oldpath).rename(self._local(newpath))
        return SFTP_OK

    def open(self, path: str, flags: int, attr: paramiko.SFTPAttributes) -> paramiko.SFTPHandle | int:
        handle = paramiko.SFTPHandle(flags)
        descriptor = os.open(self._local(path), flags, 0o600)
        handle.writefile = os.fdopen(descriptor, "wb", closefd=True)  # type: ignore[attr-defined]
        handle.readfile = handle.writefile  # type: ignore[attr-defined]
        return handle


@contextmanager
def odd_server(server: OddServer) -> Iterator[OddServer]:
    """Runs it on a free loopback port in threads of this process until the end of the block."""
    key = paramiko.ECDSAKey.generate()
    server.host_fingerprint = key_fingerprint(key.asbytes())
    transports: list[paramiko.Transport] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = int(listener.getsockname()[1])

        def serve() -> None:
            while not server.stop.is_set():
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                transport = paramiko.Transport(link)
                transports.append(transport)
                transport.set_log_channel("tests.odd-server")
                transport.add_server_key(key)
                transport.set_subsystem_handler("sftp", paramiko.SFTPServer, _Files)
                try:
                    transport.start_server(event=threading.Event(), server=server)
                except (paramiko.SSHException, EOFError):
                    continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.stop.set()
            listener.shutdown(socket.SHUT_RDWR)
            for transport in transports:
                transport.packetizer.complete_handshake()
                transport.close()
