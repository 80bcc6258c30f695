"""Exit codes of the errors that agents raise."""

from __future__ import annotations

from device_agents.contract import AgentError, BadData, DeviceCrash, ModelRejected, OutOfMemory
from harness.errors import BoardtuneError, ExitCode

_WORST_FIRST = (
    ExitCode.INTERNAL,
    ExitCode.BOARD_UNAVAILABLE,
    ExitCode.USAGE,
    ExitCode.NO_FEASIBLE_CANDIDATE,
    ExitCode.MEASUREMENTS_INVALID,
)


def exit_code_of(error: Exception) -> ExitCode:
    """What went wrong: the input, the model on that board, the board, or boardtune itself."""
    if isinstance(error, BoardtuneError):
        return error.exit_code
    if isinstance(error, BadData):
        return ExitCode.USAGE
    if isinstance(error, ModelRejected | OutOfMemory | DeviceCrash):
        # The board is well; it is this model that cannot be had there.
        return ExitCode.NO_FEASIBLE_CANDIDATE
    return ExitCode.BOARD_UNAVAILABLE if isinstance(error, AgentError) else ExitCode.INTERNAL


def worst(codes: list[ExitCode]) -> ExitCode:
    """Of what happened on several boards, what a script should hear of first."""
    return next((code for code in _WORST_FIRST if code in codes), ExitCode.OK)
