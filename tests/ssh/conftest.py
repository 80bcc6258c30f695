from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ssh.openssh import OpenSshServer, missing_openssh, running_sshd


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSshServer]:
    """One real OpenSSH server for all tests; do not stop it, and start another to change its configuration."""
    reason = missing_openssh()
    if reason is not None:
        pytest.skip(reason)
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """A work folder for the board's side."""
    return tmp_path / "board"
