"""This machine as a board: the same runner, without SSH."""

from __future__ import annotations

from pathlib import Path

from device_agents.local.transport import LocalTransport
from device_agents.runner_agent import RunnerAgent


def local_agent(
    name: str = "local",
    *,
    python: str | None = None,
    workdir: Path | None = None,
    cache_bytes: int = 4 << 30,
    exclusive_sessions: bool = False,
) -> RunnerAgent:
    """An agent, not yet connected, for this machine.

    ``python``: interpreter with numpy and ONNX Runtime, by default the one that runs this; ``workdir``: by default
    ``~/.boardtune``, which is also where an SSH connection to this machine works, so that the two exclude each other.
    """
    return RunnerAgent(
        name, LocalTransport(python, workdir), cache_bytes=cache_bytes, exclusive_sessions=exclusive_sessions
    )


__all__ = ["LocalTransport", "local_agent"]
