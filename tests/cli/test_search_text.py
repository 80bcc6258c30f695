"""What a search says while it runs and when it has ended."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from harness.cli.main import COMMANDS, cli
from harness.cli.progress import best_line, describe, headline
from harness.cli.search import export_command
from harness.controller.progress import Progress
from harness.controller.recorder import Snapshot
from harness.results import ArtifactInfo, BoardResult, Candidate, LatencyResult, MetricResult


def candidate(trial: int, p50: float | None) -> Candidate:
    latency = LatencyResult(p50, (0.99 * p50, 1.01 * p50), n=100, blocks=3) if p50 is not None else None
    result = BoardResult(
        emulated=False,
        verdict="valid",
        reasons=(),
        artifact=ArtifactInfo("a" * 64, "b" * 64, 1000),
        compiled_sha256=None,
        latency_ns=latency,
        load_ns=None,
        first_ns=None,
        peak_memory_bytes=None,
        metrics={"top1": MetricResult(0.897, 0.0, (-0.01, 0.01), unit="fraction")},
        placement={},
    )
    return Candidate(trial, {}, f"recipe {trial}", {"pi": result})


def test_the_best_is_compared_with_float_in_words() -> None:
    baseline = candidate(0, 2e6)
    assert describe(candidate(3, 1e6), "pi", baseline) == "0003 1 ms (2.0× faster than float), top-1 89.7 %, recipe 3"
    assert "(2.0× slower than float)" in describe(candidate(3, 4e6), "pi", baseline)
    assert describe(baseline, "pi", baseline) == "0000 2 ms, top-1 89.7 %, recipe 0"
    assert describe(candidate(3, None), "pi", baseline) == "0003"


def test_only_what_did_not_end_well_is_counted_aside() -> None:
    def line(**counts: int) -> str:
        whole = {"done": 0, "failed": 0, "pruned": 0, "duplicate": 0, **counts}
        snapshot = Snapshot(whole, (), {"pi": 12.4}, sum(whole.values()))
        return headline(Progress("searching", 9, snapshot))

    assert line(done=4) == "searching: 4 of 9 trials"
    assert line(done=4, failed=1, duplicate=2) == "searching: 7 of 9 trials (1 failed, 2 duplicate)"
    assert headline(Progress("connecting", 9)) == "connecting …"


def test_a_board_without_a_pick_says_so() -> None:
    snapshot = Snapshot({"done": 1}, (), {"pi": 12.4}, 1)
    assert best_line(Progress("searching", 9, snapshot), "pi") == "pi (12 s on the board): nothing to pick yet"
    picked = Progress("searching", 9, snapshot, [candidate(0, 2e6)], {"pi": [0]})
    assert best_line(picked, "pi") == "pi (12 s on the board): best 0000 2 ms, top-1 89.7 %, recipe 0"


def test_the_export_command_names_a_board_only_where_they_differ() -> None:
    run = Path("runs/my run")
    assert export_command(run, {"pi": [3, 1], "npu": [3]}) == "boardtune export 'runs/my run' --pick 1"
    assert export_command(run, {"pi": [3], "npu": [0]}).endswith("--pick 1 --board pi")
    assert export_command(run, {"pi": [], "npu": [2]}).endswith("--pick 1")


def test_the_overview_cuts_no_sentence() -> None:
    for arguments in (["--help"], ["boards", "--help"]):
        text = CliRunner().invoke(cli, arguments, terminal_width=80).output
        commands = text.split("Commands:")[1]
        assert "..." not in commands
        if arguments == ["--help"]:
            assert all(f"\n  {name} " in commands for name in COMMANDS)
