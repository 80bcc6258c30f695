"""What a search tells while it runs, and how to go on with it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import run
from harness.cli.progress import PlainWatcher, headline, watcher_for
from harness.cli.search import resume_command
from harness.controller.progress import Progress
from harness.controller.recorder import Snapshot
from harness.plan import load_plan


def progress(phase: str = "searching", ended: int = 2) -> Progress:
    counts = {"done": ended, "failed": 1, "pruned": 0, "duplicate": 0}
    return Progress(phase, 12, Snapshot(counts, ((3, "int8", "deployed"),), {"pi": 12.4}, ended + 1))


def test_a_line_when_something_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = PlainWatcher(["pi"], quiet=False)
    for shown in (progress(), progress(), progress(ended=3), progress("finals", 3)):
        watcher.update(shown)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert sum("nothing to pick yet" in line for line in lines) <= 3
    assert lines[0] == "searching …"
    assert lines[1].startswith("searching: 3 of 12 trials (1 failed) | pi (12 s on the board)")
    assert "finals …" in lines


def test_json_is_not_disturbed(capsys: pytest.CaptureFixture[str]) -> None:
    with watcher_for(["pi"], quiet=True) as watcher:
        watcher.notice("something")
        watcher.update(progress())
    assert capsys.readouterr() == ("", "")


def test_before_anything_is_known() -> None:
    assert headline(Progress("connecting", 12)) == "connecting …"


@pytest.mark.parametrize(
    ("given", "command"),
    [
        (["search", "--plan", "p.yaml"], "boardtune search --plan p.yaml --resume --run-dir 'runs/my run'"),
        (["search", "--resume", "--run-dir", "x"], "boardtune search --resume --run-dir x"),
        (["search", "--run-dir=x"], "boardtune search --run-dir=x --resume"),
        (["search", "--seed", "3 4", "--run-dir", "x"], "boardtune search --seed '3 4' --run-dir x --resume"),
    ],
)  # fmt: skip
def test_the_command_that_goes_on(given: list[str], command: str) -> None:
    found = resume_command(Path("runs/my run"), given)
    assert found == command
    assert shlex.split(found)[1 : 1 + len(given)] == given


def test_an_interrupted_demo_goes_on_as_a_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``demo`` itself has no --resume."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr("harness.cli.search.run_search", lambda plan, folder, **named: asked.update(named) or 0)
    assert run(["demo", "--run-dir", str(tmp_path / "x")]) == 0
    words = shlex.split(resume_command(tmp_path / "x", asked["arguments"]))
    assert words[:3] == ["boardtune", "search", "--plan"]
    assert load_plan(Path(words[3]), {}).model.is_file()
    assert words[4:] == ["--resume", "--run-dir", str(tmp_path / "x")]
