"""Drives a board that runs the runner, over any :class:`~device_agents.transport.Transport`."""

from __future__ import annotations

from device_agents.transport import Transport


class RunnerAgent:
    """The whole :class:`~device_agents.contract.Agent` contract over a transport.

    ``cache_bytes`` limits what deployed files may take on the board (least recently used go first).
    ``exclusive_sessions``: only one model is in memory at a time; using another session loads it again in a fresh
    process (boards whose accelerators disturb each other).
    """

    def __init__(
        self, name: str, transport: Transport, *, cache_bytes: int = 4 << 30, exclusive_sessions: bool = False
    ) -> None:
        self._name = name
        self._transport = transport
        self._cache_bytes = cache_bytes
        self._exclusive = exclusive_sessions
