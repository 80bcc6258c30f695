"""``boards clean``: removes all that boardtune left on a board."""

from __future__ import annotations

from device_agents.contract import Agent, AgentError
from harness.boards.agents import open_agent
from harness.boards.findings import from_error
from harness.boards.schema import Board
from harness.errors import BoardUnavailable


def clean_board(board: Board, agent: Agent | None = None) -> tuple[str, ...]:
    """Removes it, and returns what was removed, as the board names it.

    Raises:
        BoardUnavailable: the board cannot be reached, or something could not be removed.
        ConfigError: a secret cannot be read.
    """
    agent = agent or open_agent(board)
    try:
        agent.connect()
        return tuple(agent.clean())
    except AgentError as error:
        raise unavailable(error, board) from error
    finally:
        agent.close()


def unavailable(error: AgentError, board: Board) -> BoardUnavailable:
    """The error as one that ends a command."""
    finding = from_error(error, board.name)
    return BoardUnavailable(f"board {board.name!r}: {finding.what}", hint=finding.hint)
