"""Errors that end a command, and the exit codes of the command line."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    OK = 0
    INTERNAL = 1
    USAGE = 2
    NO_FEASIBLE_CANDIDATE = 3
    BOARD_UNAVAILABLE = 4
    MEASUREMENTS_INVALID = 5
    BUDGET_ENDED = 6
    INTERRUPTED = 130


class BoardtuneError(Exception):
    """Something the user can act on: names what failed, the value, the place, and the way out."""

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, message: str, *, hint: str = "", where: str | Path = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = str(where)
        """``file`` or ``file:line``."""

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.where))


def _rebuild(cls: type[BoardtuneError], message: str, hint: str, where: str) -> BoardtuneError:
    return cls(message, hint=hint, where=where)


class ConfigError(BoardtuneError):
    """A file, option or combination of options is wrong."""

    exit_code = ExitCode.USAGE


class ModelError(ConfigError):
    """The model given cannot be used."""


class DataError(ConfigError):
    """The calibration or evaluation data cannot be used."""


class BoardUnavailable(BoardtuneError):
    exit_code = ExitCode.BOARD_UNAVAILABLE


class MeasurementsInvalid(BoardtuneError):
    exit_code = ExitCode.MEASUREMENTS_INVALID


class NoFeasibleCandidate(BoardtuneError):
    exit_code = ExitCode.NO_FEASIBLE_CANDIDATE


class BudgetEnded(BoardtuneError):
    exit_code = ExitCode.BUDGET_ENDED


class Interrupted(BoardtuneError):
    exit_code = ExitCode.INTERRUPTED
