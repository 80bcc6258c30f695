"""``boards check``: connects to a board and says what is wrong, in words a newcomer understands."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from device_agents.contract import Agent, AgentError, BlockRequest, BoardFacts, BoardState
from device_agents.host_lock import HostBusy
from harness.boards.agents import open_agent
from harness.boards.canary import canary_inputs, canary_path, canary_sha256
from harness.boards.check_limits import check_facts, check_limits, check_state
from harness.boards.findings import CheckReport, Finding, from_error, from_self_test
from harness.boards.host_lock import host_lock, times_on_this_host
from harness.boards.options import runtime_options
from harness.boards.schema import Board
from harness.errors import BoardtuneError, ExitCode

log = logging.getLogger(__name__)

_WARM_UP = BlockRequest(min_count=10, min_ns=100_000_000, max_ns=2_000_000_000, rows=1)
_QUICK = BlockRequest(min_count=20, min_ns=400_000_000, max_ns=3_000_000_000, rows=1)
_CLOCK_DEADLINE_S = 60.0


@dataclass
class _Check:
    board: Board
    findings: list[Finding] = field(default_factory=list)
    facts: BoardFacts | None = None
    state: BoardState | None = None
    canary_median_ms: float | None = None

    def report(self, exit_code: ExitCode = ExitCode.OK) -> CheckReport:
        if exit_code == ExitCode.OK and any(finding.level == "error" for finding in self.findings):
            exit_code = ExitCode.BOARD_UNAVAILABLE
        return CheckReport(
            self.board.name, tuple(self.findings), exit_code, self.facts, self.state, self.canary_median_ms
        )


def check_board(board: Board, agent: Agent | None = None, *, seconds: float = 1.0) -> CheckReport:
    """Connects, describes, compares with the board file, tests, and times the canary for about a second.

    Args:
        board: the board.
        agent: drives it; made from the board file if not given. Closed in any case.
        seconds: length of the self-test.

    Never raises for what is wrong with the board; that is in the report.
    """
    check = _Check(board)
    try:
        canary_path(board)
        agent = agent or open_agent(board)
    except BoardtuneError as error:
        check.findings.append(from_error(error, board.name))
        if agent is not None:
            agent.close()
        return check.report(error.exit_code)
    try:
        return _check_connected(check, agent, seconds)
    finally:
        agent.close()


def _check_connected(check: _Check, agent: Agent, seconds: float) -> CheckReport:
    board = check.board
    try:
        check.facts = agent.connect()
        check.findings.extend(check_facts(board, check.facts))
        check.state = agent.health()
        check.findings.extend(check_state(board, check.facts, check.state))
        check.findings.extend(check_limits(board, check.facts, check.state))
        with _quiet_host(board):
            check.findings.extend(from_self_test(agent.self_test(seconds), shared=board.noise == "shared"))
            if not any(finding.level == "error" for finding in check.findings):
                check.canary_median_ms = _canary_median_ms(board, agent)
                check.findings.append(_canary_finding(board, check.canary_median_ms))
    except (AgentError, BoardtuneError) as error:
        log.info("check of %s failed: %s", board.name, getattr(error, "detail", "") or error)
        check.findings.append(from_error(error, board.name))
    except HostBusy as error:
        check.findings.append(
            Finding("warning", f"not timed: {error}", "run the check again when nothing else is measured")
        )
    return check.report()


@contextlib.contextmanager
def _quiet_host(board: Board) -> Iterator[None]:
    if not times_on_this_host(board):
        yield
        return
    with host_lock().clock(_CLOCK_DEADLINE_S):
        yield


def _canary_median_ms(board: Board, agent: Agent) -> float:
    sha256 = canary_sha256(board)
    agent.deploy(canary_path(board), sha256)
    loaded = agent.load(sha256, runtime_options(board))
    inputs = canary_inputs(loaded.inputs)
    agent.measure(loaded.session, inputs, _WARM_UP)
    block = agent.measure(loaded.session, inputs, _QUICK)
    agent.unload(loaded.session)
    return float(np.median(block.samples_ns)) / 1e6


def _canary_finding(board: Board, median_ms: float) -> Finding:
    canary = board.canary
    if canary.median_ms is None:
        return Finding(
            "ok",
            f"canary {canary.model}: {median_ms:.3f} ms",
            f"to be told when the board gets slower, write canary: {{median_ms: {median_ms:.3g}}} into its file",
        )
    ratio = median_ms / canary.median_ms
    text = f"canary {canary.model}: {median_ms:.3f} ms, {ratio:.2f} times the {canary.median_ms:g} ms of its file"
    if abs(ratio - 1) <= canary.tolerance:
        return Finding("ok", text)
    slower = "look for other work, heat, a power-saving governor or a changed runtime"
    faster = "the board or its runtime changed; if that is meant, correct canary.median_ms"
    return Finding("warning", text, slower if ratio > 1 else faster)
