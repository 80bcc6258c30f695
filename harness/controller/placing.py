"""Where one model's nodes run on some boards, without a search or a measurement: ``boardtune placement``."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from device_agents.contract import Agent, AgentError, BoardFacts, ModelRejected, Placement
from harness.boards.agents import open_agent
from harness.boards.host_lock import host_lock, times_on_this_host
from harness.boards.options import runtime_options
from harness.boards.registry import load_registry
from harness.boards.schema import Board
from harness.controller.considerate import considerate
from harness.controller.cpu_comparison import claims_an_accelerator, compare_with_cpu
from harness.controller.deployable import Deployable, deployable, fits
from harness.controller.evaluation import sha256_file
from harness.controller.wired import wired
from harness.errors import BoardtuneError
from harness.measure.offloaded import CpuComparison
from harness.scratch import scratch_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Placed:
    """A model's receipt on one board, with what a reader needs to judge it."""

    facts: BoardFacts
    placement: Placement
    op_types: Mapping[str, str]
    """Node of the artifact -> operator type; empty for models that are not ONNX."""
    load_ns: int
    min_offload: float | None
    """The board's floor."""
    comparison: CpuComparison | None = None
    """With the board's CPU provider, where it was asked for and the board has another."""

    @property
    def unaccounted(self) -> tuple[str, ...]:
        """Nodes of the artifact that the receipt does not mention."""
        placement = self.placement
        told = {name for names in placement.nodes.values() for name in names}
        told.update(placement.fused, placement.folded)
        return tuple(name for name in self.op_types if name not in told)

    @property
    def below_floor(self) -> bool:
        """Whether the board asks for more on its accelerator; also where it asks and nothing is known."""
        ratio = self.placement.offload_ratio
        return self.min_offload is not None and (ratio is None or ratio < self.min_offload)

    def to_json(self) -> dict[str, Any]:
        placement = asdict(self.placement)
        placement["nodes"] = {name: list(nodes) for name, nodes in self.placement.nodes.items()}
        comparison = None
        if self.comparison is not None:
            comparison = {**asdict(self.comparison), "problems": list(self.comparison.problems)}
        return {
            "emulated": self.facts.emulated,
            "runtime": f"{self.facts.runtime} {self.facts.runtime_version}",
            "placement": placement,
            "op_types": dict(self.op_types),
            "unaccounted": list(self.unaccounted),
            "load_ns": self.load_ns,
            "min_offload": self.min_offload,
            "below_floor": self.below_floor,
            "comparison": comparison,
        }

    def fallbacks(self) -> dict[str, tuple[str, ...]]:
        """Reason -> nodes that run on the CPU for it, the most frequent first."""
        by_reason: dict[str, list[str]] = {}
        for node, reason in self.placement.fallback_reasons.items():
            by_reason.setdefault(reason, []).append(node)
        return {reason: tuple(by_reason[reason]) for reason in sorted(by_reason, key=lambda r: -len(by_reason[r]))}

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """Operator type -> how many of ``names``, the most frequent first."""
        return dict(Counter(self.op_types.get(name, "?") for name in names).most_common())


@dataclass(frozen=True, eq=False)
class PlacedOnBoards:
    boards: Mapping[str, Placed]
    notices: tuple[str, ...]
    failures: Mapping[str, Exception] = field(default_factory=dict)
    """Board -> why it has no receipt."""


def place(
    model: Path,
    boards: Sequence[str],
    set_dim: Mapping[str, int] | None = None,
    *,
    compare_cpu: bool = False,
    tell: Callable[[str], None] = lambda message: None,
    agent_factory: Callable[[Board], Agent] = open_agent,
) -> PlacedOnBoards:
    """Loads the model on one board after the other; what fails on one does not keep the others.

    Raises ConfigError/ModelError before a board is touched.
    """
    registry = load_registry()
    wanted = [registry.get(name) for name in dict.fromkeys(boards)]
    with scratch_folder() as folder:
        ready = deployable(model, folder, set_dim or {}, 1)
        for notice in ready.notices:
            tell(notice)
        placed: dict[str, Placed] = {}
        failures: dict[str, Exception] = {}
        for board in wanted:
            try:
                fits(ready, board)
                placed[board.name] = place_on(board, ready, agent_factory, compare_cpu=compare_cpu)
            except ModelRejected as error:
                failures[board.name] = ready.unloadable or error
            except Exception as error:
                if not isinstance(error, AgentError | BoardtuneError):
                    log.info("placing on %s", board.name, exc_info=True)
                failures[board.name] = error
        return PlacedOnBoards(placed, ready.notices, failures)


def place_on(
    board: Board,
    ready: Deployable,
    agent_factory: Callable[[Board], Agent] = open_agent,
    *,
    compare_cpu: bool = False,
) -> Placed:
    """One board. Raises :class:`AgentError` where the board or the model there fails."""
    agent, lock = agent_factory(board), host_lock()
    shared = times_on_this_host(board)
    agent = wired(considerate(agent, lock.work) if shared else agent)
    try:
        facts = agent.connect()
        sha256 = sha256_file(ready.path)
        agent.deploy(ready.path, sha256)
        report = agent.load(sha256, runtime_options(board))
        agent.unload(report.session)
        placed = Placed(facts, report.placement, _op_types(ready.path), report.load_ns, board.limits.min_offload)
        if compare_cpu and claims_an_accelerator(board):
            timing = lock.clock if shared else contextlib.nullcontext
            placed = replace(placed, comparison=compare_with_cpu(agent, board, ready, sha256, timing))
        return placed
    finally:
        agent.close()


def _op_types(path: Path) -> dict[str, str]:
    """By node, as the runner names those without a name (``device_agents.runner.onnx_nodes``)."""
    if path.suffix != ".onnx":
        return {}
    from device_agents.runner.onnx_nodes import read_nodes

    return {node.name: node.op_type for node in read_nodes(str(path))}
