"""A link that drops at a chosen moment, planted under the agent's own code."""

from __future__ import annotations

import json

from device_agents.contract import Agent, LinkError


class _DroppingChannel:
    """Sends one request of the chosen operation whole, then is gone before its reply can be read."""

    def __init__(self, inner, operation: str, drops: list[str]) -> None:
        self._inner = inner
        self._operation = operation
        self._drops = drops
        self._dropped = False

    def write(self, data, deadline_s: float) -> None:
        self._inner.write(data, deadline_s)
        if not self._drops and f'"op":{json.dumps(self._operation)}'.encode() in bytes(data):
            self._drops.append(self._operation)
            self._dropped = True

    def read(self, size: int, deadline_s: float) -> bytes:
        if self._dropped:
            self._inner.close()
            raise LinkError("planted: the link dropped")
        return self._inner.read(size, deadline_s)

    def __getattr__(self, name: str):
        return getattr(self._inner, name)


def drop_link_after(agent: Agent, operation: str) -> list[str]:
    """The link drops once, after ``operation`` was sent; the list returned tells whether it happened."""
    drops: list[str] = []
    client = agent._link._client
    client._channel = _DroppingChannel(client._channel, operation, drops)
    return drops
