"""Which boards run ``.espdl`` models, and for which chip."""

from __future__ import annotations

from device_agents.emulated.chip.spec import EmulatedChipSpec
from harness.boards.schema import Board
from harness.boards.transports import SerialTransport


def chip_of(board: Board) -> str | None:
    """The chip as ESP-PPQ calls it; ``None`` for a board that runs ONNX models."""
    if board.runtime.name != "esp-dl":
        return None
    if isinstance(board.transport, SerialTransport):
        return board.transport.target
    return board.emulated.chip.target if isinstance(board.emulated, EmulatedChipSpec) else None
