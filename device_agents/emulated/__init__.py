"""Boards that are not there: an SSH server in a process of its own that the real agents drive.

Latency comes from a cost model named in the board file, outputs from really executing the model. Importing this
package is cheap; :func:`emulated_agent` brings in what it needs.
"""

from __future__ import annotations

from pathlib import Path

from device_agents.contract import Agent

from .spec import EmulatedSpec

__all__ = ["EmulatedSpec", "emulated_agent"]


def emulated_agent(
    name: str,
    spec: EmulatedSpec,
    *,
    cache_bytes: int = 4 << 30,
    exclusive_sessions: bool = False,
    root: Path | None = None,
    host_lock: Path | None = None,
) -> Agent:
    """An agent, not yet connected, for a board that :meth:`Agent.connect` launches and :meth:`Agent.close` ends.

    ``root`` is the board's private folder and is kept; ``None`` means a temporary one. ``host_lock`` is the folder of
    the :class:`~device_agents.host_lock.HostLock` whose clocks the board's real execution makes way for.
    """
    from device_agents.runner_agent import RunnerAgent

    from .transport import EmulatedTransport

    transport = EmulatedTransport(name, spec, root=root, host_lock=host_lock)
    return RunnerAgent(name, transport, cache_bytes=cache_bytes, exclusive_sessions=exclusive_sessions)
