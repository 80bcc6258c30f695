"""``measure`` on several boards, some of which fail."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from unittest import mock

import pytest

from device_agents.contract import (
    BadData,
    BoardUnfit,
    DeviceCrash,
    DeviceTimeout,
    LeaseLost,
    LinkError,
    ModelRejected,
    OutOfMemory,
    UnsupportedOperator,
    Untrusted,
)
from harness.boards.schema import Board
from harness.cli.exit_codes import exit_code_of, worst
from harness.cli.measure import failure_text
from harness.controller.measuring import measure
from harness.errors import ExitCode
from tests.controller.made_up import MadeUpDevice

Boardtune = Callable[..., tuple[int, str, str]]
MEASURE = ("measure", "model.onnx", "--boards", "alpha,beta", "--effort", "quick")


@pytest.fixture
def beta_raises() -> Iterator[Callable[[Exception], None]]:
    """Plants what the board beta raises when a model is loaded."""
    planted: list[Exception] = []

    def agent(made: Board) -> MadeUpDevice:
        return MadeUpDevice(made.name, faults={"load": list(planted) * 9} if made.name == "beta" else {})

    with mock.patch("harness.controller.measuring.measure", functools.partial(measure, agent_factory=agent)):
        yield planted.append


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LinkError("unplugged"), ExitCode.BOARD_UNAVAILABLE),
        (DeviceTimeout("silent"), ExitCode.BOARD_UNAVAILABLE),
        (LeaseLost("in use"), ExitCode.BOARD_UNAVAILABLE),
        (Untrusted("unknown key"), ExitCode.BOARD_UNAVAILABLE),
        (BoardUnfit("no python"), ExitCode.BOARD_UNAVAILABLE),
        (ModelRejected("odd"), ExitCode.NO_FEASIBLE_CANDIDATE),
        (UnsupportedOperator("Foo"), ExitCode.NO_FEASIBLE_CANDIDATE),
        (OutOfMemory("too large"), ExitCode.NO_FEASIBLE_CANDIDATE),
        (DeviceCrash("SIGSEGV"), ExitCode.NO_FEASIBLE_CANDIDATE),
        (BadData("wrong shape"), ExitCode.USAGE),
    ],
)
def test_codes_and_what_is_kept(
    boardtune: Boardtune, beta_raises: Callable[[Exception], None], error: Exception, code: ExitCode
) -> None:
    beta_raises(error)
    found, out, err = boardtune(*MEASURE, "--json")
    assert found == code
    value = json.loads(out)
    assert value["beta"] is None
    assert value["alpha"]["verdict"] == "valid"
    assert f"error: board 'beta': {error}" in err
    assert "alpha" not in err.replace("alpha,beta", "")


def test_in_words(boardtune: Boardtune, beta_raises: Callable[[Exception], None]) -> None:
    beta_raises(LinkError("unplugged", hint="plug it in"))
    code, out, err = boardtune(*MEASURE)
    assert code == ExitCode.BOARD_UNAVAILABLE
    assert out.startswith("alpha (emulated): valid")
    assert "beta" not in out
    assert "error: board 'beta': unplugged\n  plug it in" in err


def test_a_defect_is_called_one() -> None:
    assert exit_code_of(KeyError("oops")) == ExitCode.INTERNAL
    assert failure_text("beta", KeyError("oops")) == "board 'beta': internal error: KeyError: 'oops'"


def test_what_is_told_first() -> None:
    assert worst([]) == ExitCode.OK
    assert worst([ExitCode.MEASUREMENTS_INVALID, ExitCode.NO_FEASIBLE_CANDIDATE]) == ExitCode.NO_FEASIBLE_CANDIDATE
    assert worst([ExitCode.USAGE, ExitCode.BOARD_UNAVAILABLE]) == ExitCode.BOARD_UNAVAILABLE
