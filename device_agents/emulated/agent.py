"""The agent of an emulated board: the real SSH agent, and the board's server process with it."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from device_agents.contract import (
    Agent,
    Block,
    BlockRequest,
    BoardFacts,
    BoardState,
    DataRef,
    DeployReport,
    Inference,
    LinkError,
    LoadReport,
    Pipeline,
    RuntimeOptions,
    Tensors,
)
from device_agents.ssh import SshTarget, ssh_agent
from device_agents.transport import Deadline

from .launch import ServerProcess, client_key, launch
from .server import PYTHON, USER, WORK_FOLDER
from .spec import EmulatedSpec

logger = logging.getLogger(__name__)


class EmulatedAgent:
    """Implements :class:`~device_agents.contract.Agent`. Everything but the board's being there is the SSH agent's."""

    def __init__(
        self,
        name: str,
        spec: EmulatedSpec,
        *,
        cache_bytes: int,
        exclusive_sessions: bool,
        root: Path | None,
        host_lock: Path | None,
    ) -> None:
        self._name = name
        self._spec = spec
        self._cache_bytes = cache_bytes
        self._exclusive_sessions = exclusive_sessions
        self._given_root = root
        self._root: Path | None = root
        self._host_lock = host_lock
        self._server: ServerProcess | None = None
        self._ssh: Agent | None = None

    @property
    def name(self) -> str:
        return self._name

    def connect(self, deadline_s: float = 60.0) -> BoardFacts:
        deadline = Deadline(deadline_s)
        self._power_on(deadline)
        return self._agent().connect(deadline.remaining())

    def describe(self, deadline_s: float = 30.0) -> BoardFacts:
        return self._agent().describe(deadline_s)

    def has(self, sha256: str, deadline_s: float = 30.0) -> bool:
        return self._agent().has(sha256, deadline_s)

    def deploy(self, path: Path, sha256: str, deadline_s: float = 600.0) -> DeployReport:
        return self._agent().deploy(path, sha256, deadline_s)

    def load(
        self, sha256: str, options: RuntimeOptions, pipeline: Pipeline | None = None, deadline_s: float = 300.0
    ) -> LoadReport:
        return self._agent().load(sha256, options, pipeline, deadline_s)

    def measure(
        self, session: str, inputs: Tensors | DataRef, request: BlockRequest, deadline_s: float = 120.0
    ) -> Block:
        return self._agent().measure(session, inputs, request, deadline_s)

    def infer(self, session: str, inputs: Tensors | DataRef, batch: int = 1, deadline_s: float = 600.0) -> Inference:
        return self._agent().infer(session, inputs, batch, deadline_s)

    def unload(self, session: str, deadline_s: float = 30.0) -> None:
        self._agent().unload(session, deadline_s)

    def health(self, deadline_s: float = 30.0) -> BoardState:
        return self._agent().health(deadline_s)

    def self_test(self, seconds: float = 1.0, deadline_s: float = 60.0) -> Mapping[str, str]:
        return self._agent().self_test(seconds, deadline_s)

    def recover(self, deadline_s: float = 120.0) -> BoardFacts:
        """Connects again; a server that died is started anew, which is a new boot."""
        deadline = Deadline(deadline_s)
        if self._server is None or not self._server.alive():
            self._power_on(deadline)
            return self._agent().connect(deadline.remaining())
        return self._agent().recover(deadline.remaining())

    def clean(self, deadline_s: float = 60.0) -> Sequence[str]:
        return self._agent().clean(deadline_s)

    def close(self) -> None:
        if self._ssh is not None:
            self._ssh.close()
            self._ssh = None
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._given_root is None and self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None

    @property
    def server_pid(self) -> int | None:
        """Process id of the board's server, for tests and for looking into."""
        return self._server.pid if self._server is not None else None

    def _agent(self) -> Agent:
        if self._ssh is None:
            raise LinkError("the board is not connected", board=self._name, hint="call connect() first")
        return self._ssh

    def _power_on(self, deadline: Deadline) -> None:
        """Starts the server unless it runs, and an SSH agent for where it listens."""
        if self._server is not None and self._server.alive() and self._ssh is not None:
            return
        if self._ssh is not None:
            self._ssh.close()
        if self._server is not None:
            self._server.stop()
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix=f"boardtune-{self._name}-"))
        root = self._root
        self._server = launch(self._name, self._spec, root, self._host_lock, deadline.remaining())
        target = SshTarget(
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
        self._ssh = ssh_agent(
            self._name, target, cache_bytes=self._cache_bytes, exclusive_sessions=self._exclusive_sessions
        )
