"""The table in the terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace
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


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_picks_against_float_with_emulated_boards_marked(tmp_path: Path, width: int) -> None:
    text = printed(load_report_data(finished_run(tmp_path / "r")), width)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    assert any(line.startswith("ryzen-ai  EMULATED") for line in lines)
    assert any(line.strip() == "local" for line in lines)
    rows = [line for line in lines if line[:4].isdigit()]
    assert [row.split()[0] for row in rows] == ["0000", "0002", "0006", "0003", "0000", "0006", "0002", "0003"]
    assert all(
        re.search(r"\d [µm]s.* \d\.\d× faster .*\d % −\d\.\d pp .*\d kB", row) or row[:4] == "0000" for row in rows
    )
    assert "lowest latency" in text
    assert "…" not in text, "nothing is cut"
    assert "static QDQ s8/s8 per-channel percentile 99.99" in re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_row_is_a_line_unless_a_recipe_is_long(tmp_path: Path, width: int) -> None:
    text = printed(load_report_data(finished_run(tmp_path / "r")), width)
    table = text[text.index("trial") :].split("\n  0000")[0].rstrip().splitlines()
    assert len(table) == 1 + 4, table


def test_wide_terminals_show_both_ends_of_the_interval_and_narrow_ones_half_of_it(tmp_path: Path) -> None:
    data = load_report_data(finished_run(tmp_path / "r"))
    assert "95 %" in printed(data, 120)
    narrow = printed(data, 80)
    assert "95 %" not in narrow
    result = next(e for e in data.boards[0].candidates if e.trial == 2).result.latency_ns
    assert result is not None
    low, high = result.ci95
    assert f"±{100 * (high - low) / 2 / result.p50:.2g} %" in narrow


def test_what_is_undecided_is_said(tmp_path: Path) -> None:
    data = load_report_data(finished_run(tmp_path / "r"))
    board = data.boards[0]
    first = board.picks[0]
    doubtful = replace(first, result=replace(first.result, constraints={"accuracy": "undecided"}, reason="fastest"))
    suspect = replace(
        board.picks[1], result=replace(board.picks[1].result, verdict="suspect", reasons=("drift",), reason="next")
    )
    changed = replace(data, boards=(replace(board, picks=(doubtful, suspect)),))
    text = printed(changed, 120)
    assert f"  {first.trial:04d}  undecided on accuracy; fastest" in text
    assert "suspect: drift; next" in text


def test_square_brackets_are_text(tmp_path: Path) -> None:
    boards = {"[red]b[/red]": (False, 1e6)}
    cases = [CASES[0], Case(Recipe(exclude_nodes=("[bold]n[/bold]",)), 0.5)]
    text = printed(load_report_data(finished_run(tmp_path / "r", boards=boards, cases=cases)))
    assert "[red]b[/red]" in text
    assert "[bold]n[/bold]" in text
