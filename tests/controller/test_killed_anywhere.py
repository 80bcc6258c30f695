"""kill -9 at every place where something is recorded, written or asked of a board; the resumed result is the
uninterrupted run's, byte for byte."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import made_up
import pytest

from harness.controller.wired import OPERATIONS

ROOT = Path(__file__).parents[2]
KINDS = (
    "board", "notice", "proposed", "quantized", "gated", "deployed", "measured", "evaluated", "done", "duplicate",
    "failed", "pruned", "final", "stopped", "finished",
)  # fmt: skip
"""In about the order in which they first happen."""


class Zygote:
    """Starts searches in a moment."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def run(self, folder: Path, **job: Any) -> dict[str, Any]:
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("no pipes")
        self.process.stdin.write(json.dumps({"folder": str(folder), **job}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert answer["signal"] == signal.SIGKILL or answer["code"] == 0, (folder / "child.log").read_text()
        return answer


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    if made.process.stdin is not None:
        made.process.stdin.close()
    made.process.wait(30)
    if made.process.stdout is not None:
        made.process.stdout.close()


@pytest.fixture(scope="module")
def uninterrupted(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = new_folder(tmp_path_factory.mktemp("uninterrupted"))
    assert zygote.run(folder) == {"signal": None, "code": 0}
    kinds = Counter(event["event"] for event in events_in(folder))
    assert set(KINDS) <= set(kinds), "the made-up search no longer has every kind of event"
    return (folder / "run" / "candidates.json").read_bytes()


def new_folder(folder: Path) -> Path:
    made_up.write_boards(folder / "boards")
    made_up.tiny_plan(folder / "data")
    return folder


def events_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "ledger.jsonl").read_text().splitlines()]


def kill_and_resume(zygote: Zygote, folder: Path, failpoints: Sequence[str], result: bytes) -> set[str]:
    """Kills one run after the other at the failpoints, resuming each time; gives those that were really passed.

    A run that gets through instead is compared, and the next begins anew.
    """
    killed: set[str] = set()
    for failpoint in [*failpoints, None]:
        answer = zygote.run(folder, failpoint=failpoint, resume=True)
        if answer["signal"] is not None:
            killed.add(str(failpoint))
            continue
        assert (folder / "run" / "candidates.json").read_bytes() == result
        nothing_twice(folder)
        shutil.rmtree(folder / "run")
    return killed


def nothing_twice(folder: Path) -> None:
    """What was recorded is not done again: at most the step in hand is."""
    counts = Counter((e["event"], e.get("trial"), e.get("board")) for e in events_in(folder))
    once = ("proposed", "quantized", "gated", "measured", "evaluated", "done", "duplicate", "final")
    assert {key: count for key, count in counts.items() if count > 1 and key[0] in once} == {}


@pytest.mark.slow
@pytest.mark.parametrize("side", ["before", "after"])
def test_around_every_ledger_line(zygote: Zygote, tmp_path: Path, uninterrupted: bytes, side: str) -> None:
    folder = new_folder(tmp_path)
    wanted = [f"line.{side}.run", *(f"line.{side}.{kind}" for kind in KINDS)]
    wanted.insert(5, f"line.{side}.resumed")
    killed = kill_and_resume(zygote, folder, wanted, uninterrupted)
    for left in sorted(set(wanted) - killed):
        # It had happened before the one it was to be killed at: from the beginning, then.
        killed |= kill_and_resume(zygote, folder, [left], uninterrupted)
    assert killed == set(wanted)


@pytest.mark.slow
def test_at_later_ones_of_a_kind(zygote: Zygote, tmp_path: Path, uninterrupted: bytes) -> None:
    folder = new_folder(tmp_path)
    wanted = [
        "ledger.before.proposed@4", "ledger.after.quantized@3", "model.before.commit@2", "ledger.before.measured@3",
        "ledger.after.done@3", "measurement.written@9", "ledger.after.final@3", "model.before.commit",
        "measurement.written", "ledger.before.duplicate@2", "ledger.after.pruned@4",
    ]  # fmt: skip
    killed: set[str] = set()
    for failpoint in wanted:
        killed |= kill_and_resume(zygote, folder, [failpoint], uninterrupted)
    assert killed == set(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["before", "after"])
def test_around_every_request_to_a_board(zygote: Zygote, tmp_path: Path, uninterrupted: bytes, side: str) -> None:
    folder = new_folder(tmp_path)
    # Recovery has a fault before it, which these boards do not have.
    wanted = [f"wire.{side}.{name}" for name in OPERATIONS if name != "recover"]
    wanted += [f"wire.{side}.measure@70", f"wire.{side}.infer@5"]
    killed = kill_and_resume(zygote, folder, wanted, uninterrupted)
    assert killed == set(wanted)


@pytest.mark.slow
def test_a_run_that_is_over_is_resumed_to_the_same(zygote: Zygote, tmp_path: Path, uninterrupted: bytes) -> None:
    folder = new_folder(tmp_path)
    for _ in range(2):
        zygote.run(folder, resume=True)
        assert (folder / "run" / "candidates.json").read_bytes() == uninterrupted
    nothing_twice(folder)
