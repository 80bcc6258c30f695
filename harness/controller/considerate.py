"""Boards that share this host's processors make way for a clock, of whatever process, whenever they compute untimed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

from device_agents.contract import Agent

OPERATIONS = ("deploy", "load", "infer")
"""What keeps the board's processors busy. Timed blocks are not among them: their caller holds the clock."""


def considerate(agent: Agent, work: Callable[[], AbstractContextManager[object]]) -> Agent:
    """The agent, with :meth:`HostLock.work` held during :data:`OPERATIONS`; inside a clock of the same
    :class:`HostLock` object and thread, that takes nothing."""
    return cast(Agent, _Considerate(agent, work))


class _Considerate:
    def __init__(self, agent: Agent, work: Callable[[], AbstractContextManager[object]]) -> None:
        self._agent = agent
        self._work = work

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._agent, name)
        if name not in OPERATIONS:
            return member

        @functools.wraps(member)
        def call(*values: Any, **named: Any) -> Any:
            with self._work():
                return member(*values, **named)

        return call
