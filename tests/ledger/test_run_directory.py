"""The folder of a run: refusals, recovery, resume, its files."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_run import CASES, TWO_BOARDS, Builder, Ticking, finished_run, header

from harness.errors import ConfigError, ExitCode
from harness.ledger import events as ev
from harness.ledger.ledger import LedgerError, read_ledger
from harness.ledger.run_directory import RunDirectory
from harness.ledger.samples import SampleBlock, read_samples
from harness.ledger.summary import build_summary


def test_create_makes_the_layout(tmp_path: Path) -> None:
    with finished_run(tmp_path / "deep" / "r") as run:
        names = {p.name for p in run.path.iterdir()}
    assert {"ledger.jsonl", "summary.json", "candidates.json", "trials.csv", "logs", "0000", "0011"} <= names
    assert {p.name for p in (run.path / "0002").iterdir()} == {
        "recipe.json",
        "model.onnx",
        "measurement.json",
        "samples.parquet",
    }
    assert {p.name for p in (run.path / "0009").iterdir()} == {"recipe.json"}
    assert not list(run.path.rglob("*.tmp"))


def test_a_folder_with_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"thesis\.tex") as caught:
        RunDirectory.create(tmp_path, header())
    assert caught.value.exit_code == ExitCode.USAGE
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_finished_run_is_not_overwritten(tmp_path: Path) -> None:
    finished_run(tmp_path / "r").close()
    before = (tmp_path / "r" / "ledger.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="holds a run already") as caught:
        RunDirectory.create(tmp_path / "r", header())
    assert "--resume" in str(caught.value)
    assert (tmp_path / "r" / "ledger.jsonl").read_bytes() == before


def test_a_folder_that_cannot_be_made_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make") as caught:
        RunDirectory.create(tmp_path / "file" / "r", header())
    assert caught.value.where == str(tmp_path / "file" / "r")


HOLD = """
import sys, time
from pathlib import Path
from harness.ledger.run_directory import RunDirectory
import json
run = RunDirectory.create(Path(sys.argv[1]), json.loads(sys.argv[2]))
if "fork" in sys.argv:
    import os
    if os.fork() == 0:
        os.close(1)
        time.sleep(60)
        os._exit(0)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_a_run_in_use_is_refused_naming_the_process_and_a_killed_one_is_free(tmp_path: Path, how: str) -> None:
    path = tmp_path / "r"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), json.dumps(header()), how], stdout=subprocess.PIPE, process_group=0
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            for attempt in (
                lambda: RunDirectory.create(path, header()),
                lambda: RunDirectory.open_for_resume(path, header()),
            ):
                with pytest.raises(ConfigError, match=f"in use by process {process.pid}"):
                    attempt()
            RunDirectory.open(path)  # reading is always possible
            process.kill()  # with "fork", its child lives on and must not hold the lock
            process.wait(30)
            RunDirectory.open_for_resume(path, header()).close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_the_lock_holds_within_one_process_and_ends_with_close(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "r", header())
    with pytest.raises(ConfigError, match=f"process {os.getpid()}"):
        RunDirectory.open_for_resume(tmp_path / "r", header())
    run.close()
    run.close()
    RunDirectory.open_for_resume(tmp_path / "r", header()).close()


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"model": {"digest": "00" * 32, "path": "other.onnx"}}, ["model"]),
        ({"data": {"calib": {"digest": "00"}, "eval": {"digest": "ea" * 32}}}, ["data.calib"]),
        ({"preprocess": None}, ["preprocess"]),
        ({"metric": ["top5"], "seed": 8}, ["metric", "seed"]),
        ({"plan": {"trials": 99, "objective": "latency"}}, ["plan.boards", "plan.objective", "plan.trials"]),
        ({"versions": {"onnx": "1.21.0", "boardtune": "0.1.0"}}, ["versions.onnxruntime"]),
    ],
)
def test_resuming_something_else_names_every_difference(
    tmp_path: Path, changes: dict[str, Any], fields: list[str]
) -> None:
    RunDirectory.create(tmp_path / "r", header()).close()
    with pytest.raises(ConfigError, match="something else") as caught:
        RunDirectory.open_for_resume(tmp_path / "r", header(**changes))
    for name in fields:
        assert f"{name}: the run has" in caught.value.message
    # The refusal leaves the directory usable.
    RunDirectory.open_for_resume(tmp_path / "r", header()).close()


def test_where_the_model_lies_is_no_difference(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "r", header()).close()
    plan = {**header()["plan"], "model": "/elsewhere/fmnist_dscnn.onnx", "calib": "/elsewhere/c.npz"}
    with RunDirectory.open_for_resume(tmp_path / "r", header(plan=plan)) as run:
        assert run.state.resumed == 1


def test_allowed_changes_are_recorded(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "r", header()).close()
    plan = {**header()["plan"], "trials": 40}
    with RunDirectory.open_for_resume(tmp_path / "r", header(plan=plan), may_change=("plan.trials",)) as run:
        assert run.state.notices == ["on resume: plan.trials: the run has 12, now 40"]
    assert read_ledger(tmp_path / "r" / "ledger.jsonl").events[-1]["event"] == "resumed"


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "a lock", "a torn header"])
def test_resuming_what_never_began_begins(tmp_path: Path, left: str) -> None:
    path = tmp_path / "r"
    if left != "nothing":
        path.mkdir()
    if left == "a lock":
        (path / ".lock").write_text("1\n")
    if left == "a torn header":
        (path / "ledger.jsonl").write_bytes(b'{"seq":0,"event":"run","ti')
    with RunDirectory.open_for_resume(path, header()) as run:
        assert run.state.header == header()
        assert any("nothing to resume" in notice for notice in run.notices)


def test_half_written_things_are_cleared_and_the_rest_is_kept(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "r", TWO_BOARDS)
    builder.trial(0, CASES[0])
    builder.run.close()
    path = tmp_path / "r"
    (path / ".candidates.json.123.tmp").write_text("{")
    (path / "0000" / ".model.onnx.123.tmp").write_text("x")
    (path / "0001").mkdir()  # made before its 'proposed' line
    (path / "0001" / "recipe.json").write_text("{}")
    with (path / "ledger.jsonl").open("ab") as file:
        file.write(b'{"seq":')
    kept = sorted(p.name for p in (path / "0000").iterdir() if p.suffix != ".tmp")
    with RunDirectory.open_for_resume(path, header()) as run:
        assert not list(path.rglob("*.tmp"))
        assert not (path / "0001").exists()
        assert sorted(p.name for p in (path / "0000").iterdir()) == kept
        assert "unfinished" in run.notices[0]
        assert run.state.next_trial == 1


def test_killed_between_any_two_lines_the_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    """Cut after each line, resume, let the unfinished trial start over: the counts end as they would have."""
    whole = finished_run(tmp_path / "whole", boards={"local": (False, 1e6)}, cases=CASES[:3])
    whole.close()
    lines = (whole.path / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    for cut in range(1, len(lines)):
        path = tmp_path / f"cut{cut}"
        path.mkdir()
        (path / "ledger.jsonl").write_bytes(b"".join(lines[:cut]))
        with RunDirectory.open_for_resume(path, header()) as run:
            for trial in run.state.unfinished():
                run.record(ev.retried(trial.number, "killed"), ev.failed(trial.number, "x", "y"))
            while run.state.next_trial < 3:
                number = run.state.next_trial
                run.record(ev.proposed(number, {}, "again"), ev.failed(number, "x", "y"))
            counts = run.state.counts()
        assert counts["done"] + counts["failed"] == 3
        finished_before_cut = sum(b'"event":"done"' in line for line in lines[:cut])
        assert counts["done"] == finished_before_cut


def test_an_illegal_event_is_not_written_but_those_before_it_are(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "r", header())
    with pytest.raises(Exception, match="never proposed"):
        run.record(ev.proposed(0, {}, "x"), ev.gated(5), ev.notice("not reached"))
    assert [e["event"] for e in read_ledger(run.path / "ledger.jsonl").events] == ["run", "proposed"]
    assert run.state.seq == 2


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    finished_run(tmp_path / "r").close()
    with pytest.raises(ConfigError, match="reading only"):
        RunDirectory.open(tmp_path / "r").record(ev.notice("x"))


@pytest.mark.parametrize("content", [None, b"", b'{"seq":0'])
def test_opening_what_is_no_run(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "ledger.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match="no run here"):
        RunDirectory.open(tmp_path)


def test_a_damaged_ledger_is_named_by_line(tmp_path: Path) -> None:
    finished_run(tmp_path / "r").close()
    path = tmp_path / "r" / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b"static QDQ", b"static qdq", 1))
    with pytest.raises(LedgerError) as caught:
        RunDirectory.open_for_resume(tmp_path / "r", header())
    line = next(i for i, text in enumerate(path.read_bytes().splitlines(), 1) if b"static qdq" in text)
    assert caught.value.where == f"{path}:{line}"


def test_artifacts_are_rechecked(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "r")
    assert run.verify_artifacts() == []
    run.model_path(2).write_bytes(b"damaged")
    run.model_path(3).unlink()
    run.drop_model(10)  # a duplicate's model is not needed
    assert [(p.trial, p.problem.split(" ")[2]) for p in run.verify_artifacts()] == [(2, "has"), (3, "is")]


def test_measurements_of_boards_and_phases_join(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "r", header())
    run.write_measurement(0, "a", "search", {"stop": "1", "median": np.float64(2.5)})
    run.write_measurement(0, "b", "search", {"stop": "2"})
    run.write_measurement(0, "a", "final", {"stop": "3"})
    assert run.read_measurement(0) == {
        "boards": {
            "a": {"search": {"stop": "1", "median": 2.5}, "final": {"stop": "3"}},
            "b": {"search": {"stop": "2"}, "final": None},
        }
    }
    assert run.read_measurement(1) is None


def test_samples_of_boards_and_phases_join_and_are_replaced(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "r", header())
    one = [SampleBlock("canary", 0, np.array([5, 6])), SampleBlock("candidate", 1, np.array([2**40, 7, 8]))]
    run.write_samples(0, "a", "search", one, emulated=False)
    run.write_samples(0, "b", "search", [], emulated=True)
    run.write_samples(0, "b", "final", one[:1], emulated=True)
    run.write_samples(0, "a", "search", one[1:], emulated=False)  # measured again
    table = read_samples(run.path / "0000" / "samples.parquet")
    assert table.to_pydict() == {
        "board": ["b", "b", "a", "a", "a"],
        "phase": ["final", "final", "search", "search", "search"],
        "target": ["canary", "canary", "candidate", "candidate", "candidate"],
        "block": [0, 0, 1, 1, 1],
        "index": [0, 1, 0, 1, 2],
        "latency_ns": [5, 6, 2**40, 7, 8],
        "emulated": [True, True, False, False, False],
    }
    assert str(table.schema.field("latency_ns").type) == "int64"


def test_trials_csv_has_a_row_per_trial_and_board(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "r")
    frame = pd.read_csv(io.StringIO(run.write_trials_csv().read_text()))
    assert len(frame) == 8 * 2 + 4
    assert frame["status"].value_counts().to_dict() == {"done": 16, "failed": 2, "pruned": 1, "duplicate": 1}
    row = frame[(frame.trial == 2) & (frame.board == "ryzen-ai")].iloc[0]
    best = run.state.trials[2].boards["ryzen-ai"].best
    assert best is not None
    assert best.latency_ns is not None
    assert row["latency_p50_ns"] == best.latency_ns.p50
    assert row["emulated"]
    assert row["phase"] == "final"
    assert row["top1_outcome"] == "met"
    assert frame[frame.trial == 10].iloc[0]["duplicate_of"] == 2


def test_summary_tells_the_run_in_one_page(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "r", clock=Ticking())
    summary = build_summary(run.state, verdicts={"local": "ship 0002"}, notices=["seen", "seen"])
    assert summary["status"] == "finished"
    assert summary["trials"] == {"done": 8, "failed": 2, "pruned": 1, "duplicate": 1}
    assert summary["boards"]["ryzen-ai"]["emulated"] is True
    assert summary["notices"] == ["seen"]
    assert summary["verdict"] == {"local": "ship 0002"}
    assert summary["started"] < summary["finished"]
    assert json.loads(json.dumps(summary)) == summary


def test_the_same_search_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    names = ("ledger.jsonl", "candidates.json", "summary.json", "trials.csv")
    runs = [finished_run(tmp_path / name).path for name in "ab"]
    for name in names:
        assert (runs[0] / name).read_bytes() == (runs[1] / name).read_bytes()
