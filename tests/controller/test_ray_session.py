"""Joining a cluster fails soon, in words."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from harness.controller.ray_session import ray_session
from harness.errors import ConfigError


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as taken:
        # Bound, and not listening: nobody else can have the port meanwhile.
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        told = f"cannot join the Ray cluster at '{address}'"
        with pytest.raises(ConfigError, match=told) as raised, ray_session(4, tmp_path, address):
            raise AssertionError("it was joined")
    assert "leave out --ray-address" in raised.value.hint


@pytest.mark.parametrize("address", ["no-such-host.invalid:6379", "127.0.0.1:99999"])
def test_no_such_address(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="cannot join"), ray_session(4, tmp_path, address):
        raise AssertionError("it was joined")
