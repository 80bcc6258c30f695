"""The agents that the battery runs against.

To add one, write ``tests/conformance/agents_NAME.py`` with ``factory(tmp_path)``: a context manager yielding an agent
that is not yet connected, with the cache limit ``limits.CACHE_BYTES`` and its board's files below ``tmp_path``. Name it
in ``_OPTIONAL``. A factory may call ``pytest.skip`` where its board cannot be had.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from device_agents.contract import Agent, LoadReport
from device_agents.local import local_agent
from tests.conformance.limits import CACHE_BYTES

sys.path.insert(0, str(Path(__file__).parent))

Factory = Callable[[Path], AbstractContextManager[Agent]]

_OPTIONAL = {"ssh": "agents_ssh", "emulated": "agents_emulated"}
"""Name in the test's id -> module beside this file."""


@contextmanager
def _local(tmp_path: Path) -> Iterator[Agent]:
    agent = local_agent("conformance", workdir=tmp_path / "board", cache_bytes=CACHE_BYTES)
    try:
        yield agent
    finally:
        agent.close()


def factories() -> dict[str, Factory]:
    found: dict[str, Factory] = {"local": _local}
    for name, module in _OPTIONAL.items():
        if importlib.util.find_spec(module) is not None:
            found[name] = importlib.import_module(module).factory
    return found


NAMES = list(factories())


@pytest.fixture(params=NAMES)
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agent]:
    """An agent of its own before :meth:`connect`, with an empty board: for tests of links, caches and clean-up."""
    with factories()[request.param](tmp_path) as agent:
        yield agent


@pytest.fixture(scope="module", params=NAMES)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """One connected agent for all tests that leave the board usable; connecting takes a second."""
    with factories()[request.param](tmp_path_factory.mktemp(request.param)) as agent:
        agent.connect()
        yield agent


@pytest.fixture
def agent(shared: Agent) -> Iterator[Agent]:
    """The shared agent, without what the test before loaded."""
    loaded: list[str] = []
    load = shared.load

    def remembering(*args: Any, **options: Any) -> LoadReport:
        report = load(*args, **options)
        loaded.append(report.session)
        return report

    shared.load = remembering  # type: ignore[method-assign]
    yield shared
    del shared.load  # type: ignore[attr-defined]
    for session in loaded:
        shared.unload(session)
