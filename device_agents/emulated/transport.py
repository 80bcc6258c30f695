"""The transport of an emulated board: the SSH transport, and the board's server process with it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from device_agents.contract import LinkError
from device_agents.ssh import SshTarget
from device_agents.ssh.transport import SshTransport
from device_agents.transport import Channel, Deadline, Transport

from .launch import ServerProcess, client_key, launch
from .server import PYTHON, TEMPORARY, USER, WORK_FOLDER
from .spec import EmulatedSpec


class EmulatedTransport:
    """Implements :class:`~device_agents.transport.Transport`. All but the board's being there is SSH's.

    ``open`` switches the board on where it is off, and makes a new link where it is on. ``close`` ends the link and
    the server; the board keeps what is in its folder, its boot id and its clock. A server that died otherwise comes up
    with a new boot id, as after a power cut.
    """

    def __init__(self, name: str, spec: EmulatedSpec, *, root: Path | None, host_lock: Path | None) -> None:
        self._name = name
        self._spec = spec
        self._given_root = root
        self._root: Path | None = root
        self._host_lock = host_lock
        self._server: ServerProcess | None = None
        self._ssh: SshTransport | None = None

    @property
    def server_pid(self) -> int | None:
        """Process id of the board's server while it is on."""
        return self._server.pid if self._server is not None else None

    def open(self, deadline_s: float) -> None:
        """As the SSH transport's, after the server is up.

        Raises:
            LinkError, DeviceTimeout: the server did not start; else what the SSH transport raises.
        """
        deadline = Deadline(deadline_s)
        if self._ssh is None or self._server is None or not self._server.alive():
            self._power_off(suspend=False)
            self._ssh = self._power_on(deadline)
        self._ssh.open(deadline.remaining())

    def file_size(self, relpath: str) -> int | None:
        return self._live().file_size(relpath)

    def upload(self, local: Path, relpath: str, offset: int, deadline_s: float) -> int:
        return self._live().upload(local, relpath, offset, deadline_s)

    def write_file(self, relpath: str, data: bytes) -> None:
        self._live().write_file(relpath, data)

    def start(self, args: Sequence[str], deadline_s: float) -> Channel:
        return self._live().start(args, deadline_s)

    def connected(self) -> bool:
        return self._ssh is not None and self._ssh.connected()

    def close(self) -> None:
        self._power_off(suspend=True)
        if self._given_root is None and self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None

    def _live(self) -> Transport:
        if self._ssh is None:
            raise LinkError("not connected to the board")
        return self._ssh

    def _power_on(self, deadline: Deadline) -> SshTransport:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="boardtune-emulated-"))
            (self._root / TEMPORARY).touch()
        root = self._root
        self._server = launch(self._name, self._spec, root, self._host_lock, deadline.remaining())
        return SshTransport(
            SshTarget(
                host="127.0.0.1",
                port=self._server.address.port,
                user=USER,
                key_file=client_key(root),
                host_key=self._server.address.host_key,
                # The user's own configuration is about real hosts.
                config_file=Path(os.devnull),
                use_agent=False,
                python=PYTHON,
                workdir=WORK_FOLDER,
                lock_dir=root / "lock",
            )
        )

    def _power_off(self, *, suspend: bool) -> None:
        if self._ssh is not None:
            self._ssh.close()
            self._ssh = None
        if self._server is not None:
            self._server.stop(suspend=suspend)
            self._server = None
