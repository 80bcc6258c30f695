"""The table in the terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_run import CASES, Case, finished_run

from harness.recipes.recipe import Recipe
from harness.report.data import ReportData
from harness.report.load import load_report_data
from harness.report.terminal import print_top, print_verdicts


def printed(data: ReportData, width: int = 150) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    print_verdicts(console, data)
    print_top(console, data)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [150, 100, 60])
def test_picks_against_float_with_emulated_boards_marked(tmp_path: Path, width: int) -> None:
    text = printed(load_report_data(finished_run(tmp_path / "r")), width)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    assert any(line.startswith("ryzen-ai  EMULATED") for line in lines)
    assert any(line.strip() == "local" for line in lines)
    if width == 150:
        starts = [line.split()[0] for line in lines if line[:4].isdigit()]
        assert starts == ["0000", "0002", "0006", "0003", "0000", "0006", "0002", "0003"]
        assert "2.9× faster" in text
        assert "lowest latency" in text


def test_square_brackets_are_text(tmp_path: Path) -> None:
    boards = {"[red]b[/red]": (False, 1e6)}
    cases = [CASES[0], Case(Recipe(exclude_nodes=("[bold]n[/bold]",)), 0.5)]
    text = printed(load_report_data(finished_run(tmp_path / "r", boards=boards, cases=cases)))
    assert "[red]b[/red]" in text
    assert "[bold]n[/bold]" in text
