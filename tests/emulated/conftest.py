"""Fixtures of the tests of emulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from emulated_boards import conv_net, make_spec, save

from device_agents.contract import Agent
from device_agents.emulated import EmulatedSpec, emulated_agent


@pytest.fixture
def models(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    return {
        "small": save(conv_net(8), tmp_path, "small"),
        "large": save(conv_net(64, seed=1), tmp_path, "large"),
        "other": save(conv_net(16, seed=2), tmp_path, "other"),
    }


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Makes agents of emulated boards and closes them."""
    agents: list[Agent] = []

    def make(spec: EmulatedSpec | None = None, **options: Any) -> Agent:
        agent = emulated_agent(f"board-{len(agents)}", spec or make_spec(), **options)
        agents.append(agent)
        return agent

    yield make
    for agent in agents:
        agent.close()
