"""Boards whose firmware contains one model and takes no other: MLPerf Tiny."""

from __future__ import annotations

from harness.boards.schema import Board
from harness.boards.transports import MlperfTinyTransport

_COMMAND_BYTES, _COMMAND_CHARACTERS = 31, 75
"""Of a row in one command, and of that command with its reply on the line, 10 bits each."""
_TURN_S = 0.02
"""Of an FTDI bridge with its default latency timer of 16 ms."""


def has_own_model(board: Board) -> bool:
    return isinstance(board.transport, MlperfTinyTransport)


def no_receipt(board: Board) -> str:
    """Why a result without evidence of placement is suspect."""
    if has_own_model(board):
        what = "that the firmware contains the model you named cannot be checked"
    else:
        what = "what ran where is not known"
    return f"no placement receipt: {what}"


def sending_s(board: Board, size_bytes: int) -> float:
    """Seconds that samples take on the line during an accuracy pass; 0 where they are sent beforehand."""
    if not isinstance(board.transport, MlperfTinyTransport):
        return 0.0
    commands = size_bytes / _COMMAND_BYTES
    return commands * (10 * _COMMAND_CHARACTERS / board.transport.baud + _TURN_S)
