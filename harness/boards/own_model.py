"""Boards whose firmware contains one model and takes no other: MLPerf Tiny."""

from __future__ import annotations

from device_agents.contract import BoardFacts
from harness.boards.schema import Board
from harness.boards.transports import MlperfTinyTransport

_COMMAND_BYTES, _COMMAND_CHARACTERS = 31, 75
"""Of a row in one command, and of that command with its reply on the line, 10 bits each."""
_TURN_S = 0.02
"""Of an FTDI bridge with its default latency timer of 16 ms."""
_STEP_SHARE = 0.01


def has_own_model(board: Board) -> bool:
    return isinstance(board.transport, MlperfTinyTransport)


def doubts(board: Board, facts: BoardFacts, median_ns: float | None) -> tuple[str, ...]:
    """Why a result without evidence of placement is suspect; and, where the firmware's clock counts in steps of more
    than a hundredth of what it times, that the interval says too little."""
    if not has_own_model(board):
        return ("no placement receipt: what ran where is not known",)
    receipt = "no placement receipt: that the firmware contains the model you named cannot be checked"
    step_us = int(facts.extra.get("clock_step_us", "0"))
    if median_ns is None or 1000 * step_us <= _STEP_SHARE * median_ns:
        return (receipt,)
    return receipt, f"the firmware's clock counts in steps of {step_us} µs: each time is off by up to as much"


def sending_s(board: Board, size_bytes: int) -> float:
    """Seconds that samples take on the line during an accuracy pass; 0 where they are sent beforehand."""
    if not isinstance(board.transport, MlperfTinyTransport):
        return 0.0
    commands = size_bytes / _COMMAND_BYTES
    return commands * (10 * _COMMAND_CHARACTERS / board.transport.baud + _TURN_S)
