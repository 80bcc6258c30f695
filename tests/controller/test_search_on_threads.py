"""Whole searches without Ray: interruptions, lost boards, damaged files, and what a resume makes of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import local_ray
import made_up
import pytest
from made_up import MadeUpDevice, MadeUpQuantizer, session_on

from device_agents.contract import BlockRequest, LinkError, ModelRejected
from harness.boards.schema import Board
from harness.controller.actors import Session
from harness.controller.crew import Staff
from harness.controller.progress import Progress, SilentWatcher, Watcher
from harness.controller.search import SearchResult, search
from harness.errors import BoardtuneError, BoardUnavailable, ConfigError, ExitCode
from harness.ledger import events
from harness.ledger.run_directory import RunDirectory
from harness.ledger.state import LedgerState
from harness.plan import Plan
from harness.quantize.contract import Artifact, QuantizeJob, Refusal
from harness.recipes.recipe import Calibration, Recipe

Faults = Mapping[str, list[Exception | None]]


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOARDTUNE_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("BOARDTUNE_RUNTIME_DIR", str(tmp_path / "runtime"))
    made_up.write_boards(tmp_path / "boards")
    with local_ray.installed(), mock.patch("harness.report.build.write_report", lambda run: run.path):
        yield


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return made_up.tiny_plan(tmp_path / "data")


def run(
    plan: Plan,
    folder: str = "run",
    *,
    resume: bool = False,
    devices: Callable[[Board], Session] | None = None,
    quantizer: type[MadeUpQuantizer] = MadeUpQuantizer,
    watcher: Watcher | None = None,
) -> SearchResult:
    staff = Staff(quantizer, devices or made_up.MadeUpSessions())
    return search(plan, Path(folder), resume=resume, staff=staff, watcher=watcher)


def candidates(folder: str = "run") -> bytes:
    return (Path(folder) / "candidates.json").read_bytes()


def with_faults(**boards: Faults) -> made_up.MadeUpSessions:
    return made_up.MadeUpSessions(boards)


def test_a_search(plan: Plan) -> None:
    result = run(plan)
    assert result.exit_code == ExitCode.OK
    assert json.loads(candidates()) == result.candidates
    assert sum(result.candidates["trials"].values()) == 6
    assert set(result.candidates["picks"]) == {"alpha", "beta"}
    with RunDirectory.open(Path("run")) as recorded:
        assert recorded.state.finished is not None
        assert recorded.state.stop_reason == "as many trials as were asked for"


@pytest.mark.parametrize("window", [1, 2, 5])
def test_the_same_again(plan: Plan, window: int) -> None:
    wide = plan.model_copy(update={"window": window, "preset": "standard", "trials": 14, "seed": 5})
    run(wide, "one")
    run(wide, "two")
    assert candidates("one") == candidates("two")


class Interrupting:
    """Presses Ctrl-C at the n-th call of an operation on alpha."""

    def __init__(self, operation: str, at: int) -> None:
        self.operation, self.at = operation, at
        self.pressed = threading.Event()

    def __call__(self, made: Board) -> Session:
        outer = self

        class Device(MadeUpDevice):
            def _call(self, operation: str) -> None:
                super()._call(operation)
                if (
                    self.name == "alpha"
                    and self.calls.count(outer.operation) == outer.at
                    and operation == outer.operation
                ):
                    outer.pressed.set()
                    interruption.asked = True

        interruption = INTERRUPTIONS[-1]
        return session_on(Device(made.name), made)


INTERRUPTIONS: list[Any] = []


@pytest.fixture
def interruptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps hold of the search's own interruption."""
    from harness.controller.interrupt import Interruption

    class Held(Interruption):
        def __init__(self) -> None:
            super().__init__()
            INTERRUPTIONS.append(self)

    monkeypatch.setattr("harness.controller.search.Interruption", Held)


@pytest.mark.usefixtures("interruptions")
@pytest.mark.parametrize(
    ("operation", "at"), [("connect", 1), ("measure", 1), ("infer", 3), ("measure", 40), ("infer", 7)]
)
def test_interrupted_and_resumed_is_the_uninterrupted_run(plan: Plan, operation: str, at: int) -> None:
    run(plan, "whole")
    devices = Interrupting(operation, at)
    result = run(plan, devices=devices)
    assert devices.pressed.is_set()
    assert result.exit_code == ExitCode.INTERRUPTED
    assert result.stop_reason == "interrupted"
    # Everything is written.
    assert json.loads(candidates()) == result.candidates
    assert (Path("run") / "summary.json").exists()
    again = run(plan, resume=True)
    assert again.exit_code == ExitCode.OK
    assert candidates() == candidates("whole")


SUGGESTED = Recipe(activation="uint16", granularity="per_channel", calibration=Calibration("percentile", 99.9))


def suggest(folder: str, *recipes: Recipe) -> None:
    with RunDirectory.open_for_suggestions(Path(folder)) as opened:
        opened.record(*(events.suggested(r.to_dict(), r.label, r.digest, "a test") for r in recipes))


def digests(folder: str = "run") -> list[str]:
    with RunDirectory.open(Path(folder)) as recorded:
        return [trial.recipe_digest for _, trial in sorted(recorded.state.trials.items())]


class TestSuggestions:
    @pytest.mark.parametrize("preset", ["quick", "standard"])
    def test_one_is_tried_on_resume_beyond_the_trials_asked_for(self, plan: Plan, preset: str) -> None:
        plan = plan.model_copy(update={"preset": preset})
        run(plan)
        before = digests()
        suggest("run", SUGGESTED)
        run(plan, resume=True)
        assert digests() == [*before, SUGGESTED.digest]
        # Resumed once more, the record comes out the same and nothing is left to do.
        again = candidates()
        assert run(plan, resume=True).exit_code == ExitCode.OK
        assert candidates() == again
        # More trials go on where the preset's own ended.
        more = plan.model_copy(update={"trials": 8})
        run(more, resume=True)
        run(more, "whole")
        assert [digest for digest in digests() if digest != SUGGESTED.digest] == digests("whole")

    @pytest.mark.usefixtures("interruptions")
    def test_one_given_to_an_interrupted_run_comes_next_and_resuming_stays_exact(self, plan: Plan) -> None:
        run(plan, "whole")
        run(plan, devices=Interrupting("infer", 3))
        begun = len(digests())
        assert 0 < begun < 6
        suggest("run", SUGGESTED)
        run(plan, resume=True, devices=Interrupting("infer", 3))
        run(plan, resume=True)
        assert digests()[begun] == SUGGESTED.digest
        assert [digest for digest in digests() if digest != SUGGESTED.digest] == digests("whole")

    def test_waiting_for_a_suggestion_is_no_time_of_the_search(self) -> None:
        state = LedgerState.from_events(
            [
                {**events.run({}), "time": "2026-01-01T00:00:00Z"},
                {**events.proposed(0, {}, "float32"), "time": "2026-01-01T00:00:10Z"},
                {**events.suggested({}, "x", "d", "r"), "time": "2026-01-02T00:00:00Z"},
                {**events.resumed(), "time": "2026-01-03T00:00:00Z"},
            ]
        )
        assert state.active_s == 10.0
        assert [suggestion.number for suggestion in state.suggestions] == [1]

    def test_a_run_in_use_takes_none(self, plan: Plan) -> None:
        run(plan)
        with (
            RunDirectory.open_for_suggestions(Path("run")),
            pytest.raises(ConfigError, match="in use"),
        ):
            suggest("run", SUGGESTED)
        with pytest.raises(ConfigError, match="no run here"):
            suggest("elsewhere", SUGGESTED)


class TestBoards:
    def test_one_that_is_not_as_its_file_wants_it(self, plan: Plan) -> None:
        """Nothing is sent to it, and what is recorded says so."""
        found: list[MadeUpDevice] = []

        def devices(made: Board) -> Session:
            if made.name == "beta":
                made = made.model_copy(update={"state": made.state.model_copy(update={"governor": "performance"})})
            found.append(MadeUpDevice(made.name, state={"governor": "powersave"}))
            return session_on(found[-1], made)

        result = run(plan, devices=devices)
        assert result.candidates["picks"]["alpha"]
        assert result.candidates["picks"]["beta"] == []
        with RunDirectory.open(Path("run")) as recorded:
            events = [json.loads(line) for line in (recorded.path / "ledger.jsonl").read_text().splitlines()]
            trials = list(recorded.state.trials.values())
        assert any(trial.boards["beta"].status == "evaluated" for trial in trials if "beta" in trial.boards)
        sent = {name: sum(e["sent_bytes"] for e in events if e["event"] == "deployed" and e["board"] == name)
                for name in ("alpha", "beta")}  # fmt: skip
        canary = found[0]._files[found[0].requests[0][0]]
        # The canary was on its way before anything was known.
        assert sent["beta"] in (0, len(canary))
        assert sent["alpha"] > len(canary)

    def test_none_answers(self, plan: Plan) -> None:
        with pytest.raises(BoardUnavailable) as raised:
            run(plan, devices=with_faults(alpha={"connect": [LinkError("refused", hint="is it on?")]}))
        assert "board 'alpha': refused" in raised.value.message
        assert raised.value.hint == "is it on?"
        # The run can be taken up when it does.
        assert run(plan, resume=True).exit_code == ExitCode.OK

    def test_one_board_refuses_a_model(self, plan: Plan) -> None:
        result = run(plan, devices=with_faults(beta={"load": [None, None, None, ModelRejected("no such operator")]}))
        assert result.exit_code == ExitCode.OK
        with RunDirectory.open(Path("run")) as recorded:
            causes = [t.boards["beta"].cause for t in recorded.state.trials.values() if "beta" in t.boards]
        assert "ModelRejected" in causes

    def test_a_defect_on_one_board_leaves_the_other(self, plan: Plan) -> None:
        result = run(plan, devices=with_faults(beta={"infer": [KeyError("oops")]}))
        assert result.exit_code == ExitCode.OK
        with RunDirectory.open(Path("run")) as recorded:
            first = recorded.state.trials[0]
        assert first.status == "done"
        assert first.boards["beta"].cause == "internal"
        assert "oops" in first.boards["beta"].message

    def test_lost_for_good_then_back(self, plan: Plan) -> None:
        """The search says so, does not count the recipes out, and a resume gives the uninterrupted result."""
        alone = plan.model_copy(update={"boards": ("alpha",)})
        run(alone, "whole")
        gone = [*[None] * 21, *[LinkError("unplugged") for _ in range(40)]]
        result = run(
            alone, devices=with_faults(alpha={"measure": list(gone), "recover": [LinkError("unplugged")] * 40})
        )
        assert "no board is left: alpha: 3 failures in a row, the last: unplugged" in result.stop_reason
        assert result.exit_code == ExitCode.OK
        assert result.candidates["picks"]["alpha"] == [0] or result.candidates["picks"]["alpha"]
        again = run(alone, resume=True)
        assert again.exit_code == ExitCode.OK
        found, whole = json.loads(candidates()), json.loads(candidates("whole"))
        # What was lost was device time too.
        assert found.pop("device_seconds")["alpha"] > whole.pop("device_seconds")["alpha"]
        assert found == whole

    def test_lost_before_anything_was_measured(self, plan: Plan) -> None:
        alone = plan.model_copy(update={"boards": ("alpha",)})
        lost = {"measure": [LinkError("unplugged") for _ in range(40)]}
        result = run(alone, devices=with_faults(alpha=lost))
        assert result.exit_code == ExitCode.BOARD_UNAVAILABLE

    def test_another_board_under_the_same_name(self, plan: Plan) -> None:
        run(plan)

        def swapped(made: Board) -> Session:
            return session_on(MadeUpDevice(f"another {made.name}"), made)

        with pytest.raises(ConfigError, match="hardware_id"):
            run(plan, resume=True, devices=swapped)


class TestQuantizers:
    def test_one_that_breaks_ends_the_trial_only(self, plan: Plan) -> None:
        class Broken(MadeUpQuantizer):
            def quantize(self, job: QuantizeJob) -> Artifact | Refusal:
                if job.recipe.activation == "uint8" and not job.recipe.is_float32:
                    raise RuntimeError("a defect of the quantizer")
                return super().quantize(job)

        told: list[str] = []

        class Listening(SilentWatcher):
            def notice(self, message: str) -> None:
                told.append(message)

        result = run(plan, quantizer=Broken, watcher=Listening())
        assert result.exit_code == ExitCode.OK
        with RunDirectory.open(Path("run")) as recorded:
            failed = [t for t in recorded.state.trials.values() if t.status == "failed"]
        assert failed
        assert failed[0].cause == "internal"
        assert "a defect of the quantizer" in failed[0].message
        assert any("search.log" in message for message in told)


class TestResume:
    def killed(self, plan: Plan, until: Callable[[Any], bool]) -> None:
        """A run's ledger cut after the first event for which ``until`` holds, as a kill leaves it."""
        run(plan)
        ledger = Path("run") / "ledger.jsonl"
        lines = ledger.read_text().splitlines(keepends=True)
        end = next(i for i, line in enumerate(lines) if until(json.loads(line))) + 1
        ledger.write_text("".join(lines[:end]))

    @pytest.mark.timeout(60)
    def test_boards_do_not_wait_for_trials_that_ended_before(self, plan: Plan) -> None:
        """A later trial had ended (refused, a duplicate) while an earlier one was still to be measured."""
        run(plan, "whole")
        self.killed(plan, lambda e: e["event"] == "duplicate")
        assert run(plan, resume=True).exit_code == ExitCode.OK
        assert candidates() == candidates("whole")

    @pytest.mark.parametrize("damage", ["lost", "altered"])
    def test_an_unfinished_trials_artifact(self, plan: Plan, damage: str) -> None:
        run(plan, "whole")
        self.killed(plan, lambda e: e["event"] == "gated" and e["trial"] == 1)
        harm(Path("run/0001/model.onnx"), damage)
        result = run(plan, resume=True)
        assert candidates() == candidates("whole")
        with RunDirectory.open(Path("run")) as recorded:
            assert any("trial 0001 starts over" in notice for notice in recorded.state.notices)
        assert result.exit_code == ExitCode.OK

    @pytest.mark.parametrize("damage", ["lost", "altered"])
    def test_a_done_trials_artifact_is_made_again(self, plan: Plan, damage: str) -> None:
        result = run(plan)
        before = candidates()
        model = Path("run/0001/model.onnx")
        content = model.read_bytes()
        harm(model, damage)
        result = run(plan, resume=True)
        assert model.read_bytes() == content
        assert candidates() == before
        assert any("0001" in notice and "made again" in notice for notice in result.notices)

    def test_a_done_trials_artifact_that_cannot_be_made_again(self, plan: Plan) -> None:
        class Another(MadeUpQuantizer):
            def quantize(self, job: QuantizeJob) -> Artifact | Refusal:
                made = super().quantize(job)
                if isinstance(made, Artifact) and not job.recipe.is_float32:
                    return Artifact(made.path, "f" * 64, "f" * 64, made.size_bytes, 40.0, 1)
                return made

        run(plan)
        Path("run/0001/model.onnx").unlink()
        result = run(plan, resume=True, quantizer=Another)
        assert any("cannot be made again" in notice for notice in result.notices)

    def test_more_trials(self, plan: Plan) -> None:
        more = plan.model_copy(update={"trials": 8})
        run(plan)
        result = run(more, resume=True)
        assert sum(result.candidates["trials"].values()) == 8
        assert any("plan.trials" in notice for notice in RunDirectory.open(Path("run")).state.notices)

    def test_of_another_plan(self, plan: Plan) -> None:
        run(plan)
        with pytest.raises(ConfigError, match=r"plan\.seed: the run has 0, now 3"):
            run(plan.model_copy(update={"seed": 3}), resume=True)

    def test_without_being_asked(self, plan: Plan) -> None:
        run(plan)
        with pytest.raises(ConfigError, match="holds a run already"):
            run(plan)

    def test_while_it_runs(self, plan: Plan) -> None:
        raised: list[BaseException] = []

        class Second(SilentWatcher):
            def update(self, progress: Progress) -> None:
                if progress.phase != "preparing" and not raised:
                    try:
                        RunDirectory.open_for_resume(Path("run"), {})
                    except ConfigError as error:
                        raised.append(error)

        run(plan, watcher=Second())
        assert "in use" in str(raised[0])


class TestTrouble:
    def test_a_display_that_breaks_does_not_end_the_search(self, plan: Plan) -> None:
        class Broken(SilentWatcher):
            def update(self, progress: Progress) -> None:
                if progress.phase not in ("preparing", "connecting"):
                    raise RuntimeError("no terminal")

        assert run(plan, watcher=Broken()).exit_code == ExitCode.OK

    def test_the_recorder_dies(self, plan: Plan) -> None:
        handles: list[local_ray.Handle] = []
        made = local_ray.Handle.__init__

        def keep(self: local_ray.Handle, instance: object) -> None:
            made(self, instance)
            handles.append(self)

        class Killer(MadeUpDevice):
            def measure(self, session: str, inputs: Any, request: BlockRequest, deadline_s: float = 1.0) -> Any:
                if self.calls.count("measure") == 20:
                    handles[0].die()
                return super().measure(session, inputs, request)

        with (
            mock.patch.object(local_ray.Handle, "__init__", keep),
            pytest.raises(BoardtuneError, match="a process of the search died") as raised,
        ):
            run(plan, devices=lambda b: session_on(Killer(b.name), b))
        assert "--resume" in raised.value.hint
        handles[0].revive().close.remote().result(10)
        run(plan, "whole")
        run(plan, resume=True)
        assert candidates() == candidates("whole")

    def test_a_full_disk(self, plan: Plan) -> None:
        from harness.ledger.ledger import Ledger, LedgerError

        write = Ledger._write
        count = [0]

        def full(self: Ledger, data: bytes) -> None:
            count[0] += 1
            if count[0] > 15:
                raise LedgerError("cannot record: No space left on device", hint="free disk space")
            write(self, data)

        with mock.patch.object(Ledger, "_write", full), pytest.raises(LedgerError, match="No space left"):
            run(plan)
        run(plan, "whole")
        assert run(plan, resume=True).exit_code == ExitCode.OK
        assert candidates() == candidates("whole")

    def test_a_defect_in_the_finals_is_not_swallowed(self, plan: Plan) -> None:
        with (
            mock.patch("harness.controller.crew.run_finals", side_effect=ZeroDivisionError("a defect")),
            pytest.raises(ZeroDivisionError),
        ):
            run(plan)


def harm(model: Path, damage: str) -> None:
    if damage == "lost":
        model.unlink()
    else:
        model.write_bytes(model.read_bytes()[:-1] + b"?")
