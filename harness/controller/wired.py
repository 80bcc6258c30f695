"""Failpoints around every request to a board: ``wire.before.OPERATION`` and ``wire.after.OPERATION``."""

from __future__ import annotations

import functools
import os
from typing import Any, cast

from device_agents.contract import Agent
from harness.failpoints import VARIABLE, passing

OPERATIONS = ("connect", "deploy", "load", "measure", "infer", "unload", "health", "recover")


def wired(agent: Agent) -> Agent:
    """The agent itself, unless a test asks for failpoints."""
    return cast(Agent, _Wired(agent)) if os.environ.get(VARIABLE, "").startswith("wire.") else agent


class _Wired:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._agent, name)
        if name not in OPERATIONS:
            return member

        @functools.wraps(member)
        def call(*values: Any, **named: Any) -> Any:
            passing(f"wire.before.{name}")
            result = member(*values, **named)
            passing(f"wire.after.{name}")
            return result

        return call
