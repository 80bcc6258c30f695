"""The SSH agent against a real OpenSSH server, for the battery."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from device_agents.contract import Agent
from device_agents.ssh import ssh_agent
from tests.conformance.limits import CACHE_BYTES
from tests.ssh.openssh import missing_openssh, running_sshd


@contextmanager
def factory(tmp_path: Path) -> Iterator[Agent]:
    """An agent, not yet connected, whose board is this machine behind an sshd of its own."""
    reason = missing_openssh()
    if reason is not None:
        pytest.skip(reason)
    with running_sshd(tmp_path / "sshd", host_key_types=["ed25519"]) as server:
        agent = ssh_agent("conformance", server.target(tmp_path / "board"), cache_bytes=CACHE_BYTES)
        try:
            yield agent
        finally:
            agent.close()
