"""How a model is measured on one board: retries, quarantine, verdicts, sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_up
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from made_up import MadeUpDevice, board, session_on

from device_agents.contract import (
    AgentError,
    BadData,
    DeviceCrash,
    DeviceReboot,
    DeviceTimeout,
    LeaseLost,
    LinkError,
    ModelRejected,
    OutOfMemory,
    Pipeline,
)
from device_agents.runner.pipeline import Pipeline as BoardPipeline
from harness.boards.host_lock import HostBusy, HostLock
from harness.boards.schema import Limits
from harness.controller.board_session import BoardSession, board_constraints
from harness.controller.evaluation import postprocessed
from harness.controller.measuring import MeasureJob, measure
from harness.controller.preparation import Prepared, prepare
from harness.controller.request import MeasureRequest
from harness.errors import ConfigError, ModelError
from harness.measure.settings import settings_for
from harness.results import ArtifactInfo
from harness.search.constraints import Constraints


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("prepared")
    return prepare(made_up.tiny_plan(folder / "data"), folder)


@pytest.fixture
def request_(prepared: Prepared) -> MeasureRequest:
    path = prepared.model.path
    return MeasureRequest(
        model=path,
        artifact=ArtifactInfo("c0ffee" + "0" * 58, "identity", path.stat().st_size),
        settings=settings_for("quick", seed=1),
        part=prepared.parts["search"],
        scoring=prepared.scoring,
    )


def opened(device: MadeUpDevice, **sections: Any) -> BoardSession:
    session = session_on(device, board(**sections))
    session.open()
    return session


def gone() -> LinkError:
    return LinkError("the link is gone")


def test_a_whole_measurement(request_: MeasureRequest) -> None:
    device = MadeUpDevice()
    outcome = opened(device).measure(request_)
    result = outcome.result
    assert (result.verdict, result.reasons) == ("valid", ())
    assert result.latency_ns is not None
    assert result.latency_ns.p50 == pytest.approx(device.levels(request_.artifact.sha256), rel=0.01)
    assert result.metrics["top1"].n == request_.part.samples
    assert result.peak_memory_bytes == 2 << 20
    assert result.device_seconds == pytest.approx(device.clock_ns / 1e9)
    assert result.emulated is True
    assert set(result.constraints) == {"accuracy"}
    assert outcome.record["verdict"] == "valid"
    # Nothing stays loaded.
    assert device.calls.count("load") == device.calls.count("unload")


class TestWhatIsFed:
    def test_the_batch_reaches_every_block_and_pass_of_the_candidate(self, request_: MeasureRequest) -> None:
        device = MadeUpDevice()
        outcome = opened(device).measure(replace(request_, batch=12))
        candidate = [asked for sha256, asked in device.requests if sha256 == request_.artifact.sha256]
        canary = [asked for sha256, asked in device.requests if sha256 != request_.artifact.sha256]
        assert {(asked.batch, asked.rows) for asked in candidate} == {(12, 12)}
        assert {(asked.batch, asked.rows) for asked in canary} == {(1, 8)}
        assert device.batches == [12, 12]
        assert outcome.record["settings"]["block"]["batch"] == 12

    def test_blocks_of_another_seed_are_another_draw(self, request_: MeasureRequest) -> None:
        device = MadeUpDevice()
        session = opened(device)

        def labels(seed: int) -> set[str]:
            device.requests.clear()
            session.measure(replace(request_, settings=settings_for("quick", seed=seed)))
            return {asked.label for _, asked in device.requests}

        first, second, again = labels(1), labels(2), labels(1)
        assert len(first) == len(second) == 1
        assert first == again != second

    def test_what_was_sent_is_told_once(self, request_: MeasureRequest) -> None:
        sent: list[int] = []
        device = MadeUpDevice()
        session = opened(device)
        session.measure(request_, sent.append)
        assert sent == [sum(len(content) for content in device._files.values())]
        session.measure(request_, sent.append)
        assert sent[1:] == [0]

    def test_what_was_sent_is_told_in_each_attempt(self, request_: MeasureRequest) -> None:
        sent: list[int] = []
        device = MadeUpDevice(faults={"load": [gone()]})
        opened(device).measure(request_, sent.append)
        assert sent == [sum(len(content) for content in device._files.values()), 0]


class TestPostprocessing:
    def test_metrics_are_about_the_models_own_outputs(self, request_: MeasureRequest) -> None:
        plain = opened(MadeUpDevice()).measure(request_)
        timed = opened(MadeUpDevice()).measure(replace(request_, pipeline=Pipeline(post="argmax")))
        assert timed.result.verdict == "valid"
        assert timed.result.metrics == plain.result.metrics
        assert timed.outputs is not None
        assert timed.outputs["y"].shape == (request_.part.samples, 4)

    def test_what_was_timed_has_it(self, request_: MeasureRequest) -> None:
        posts: list[tuple[str, str]] = []

        class Told(MadeUpDevice):
            def measure(self, session: str, *values: Any, **named: Any) -> Any:
                posts.append(("measure", self._post(session)))
                return super().measure(session, *values, **named)

            def infer(self, session: str, *values: Any, **named: Any) -> Any:
                posts.append(("infer", self._post(session)))
                return super().infer(session, *values, **named)

            def _post(self, session: str) -> str:
                pipeline = self._sessions[session].pipeline
                return pipeline.post if pipeline else "canary"

        opened(Told()).measure(replace(request_, pipeline=Pipeline(post="softmax")))
        assert {post for operation, post in posts if operation == "measure"} == {"canary", "softmax"}
        assert [post for operation, post in posts if operation == "infer"] == ["softmax", "none"]

    def test_another_model_is_still_noticed(self, request_: MeasureRequest) -> None:
        device = MadeUpDevice(spot_differs=True)
        result = opened(device).measure(replace(request_, pipeline=Pipeline(post="argmax"))).result
        assert result.verdict == "invalid"
        assert any("computes something else" in reason for reason in result.reasons)


@given(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=4, max_side=5), elements=st.floats(-50, 50, width=32)),
    st.sampled_from(["softmax", "argmax"]),
)
def test_postprocessing_here_is_the_boards(outputs: np.ndarray, post: Any) -> None:
    expected = BoardPipeline({"post": post}).after(outputs)
    found = postprocessed({"y": outputs}, Pipeline(post=post))["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == expected.dtype


class TestRetries:
    @pytest.mark.parametrize("operation", ["deploy", "load", "measure", "infer", "health"])
    @pytest.mark.parametrize("error", [gone(), DeviceTimeout("late"), DeviceReboot("another boot")])
    def test_the_boards_failures_are_tried_again(
        self, request_: MeasureRequest, operation: str, error: AgentError
    ) -> None:
        faults = {operation: [error]}
        device = MadeUpDevice(faults={})
        session = opened(device)
        device.faults = faults
        assert session.measure(request_).result.verdict == "valid"
        assert device.calls.count("recover") == 1
        assert session.quarantined is None

    @pytest.mark.parametrize("error", [ModelRejected("no"), OutOfMemory("no"), DeviceCrash("no"), BadData("no")])
    def test_the_models_failures_are_not(self, request_: MeasureRequest, error: AgentError) -> None:
        device = MadeUpDevice(faults={"load": [None, error]})
        with pytest.raises(type(error)):
            opened(device).measure(request_)
        assert "recover" not in device.calls

    def test_as_often_as_the_board_file_says(self, request_: MeasureRequest) -> None:
        device = MadeUpDevice(faults={"measure": [gone() for _ in range(10)]})
        session = opened(device, recovery={"retries": 4, "quarantine_after": 99, "cool_down_s": 0})
        with pytest.raises(LinkError):
            session.measure(request_)
        assert device.calls.count("recover") == 4

    def test_a_recovery_that_fails_is_one_attempt(self, request_: MeasureRequest) -> None:
        """A board that reboots does not answer at once."""
        device = MadeUpDevice(faults={"measure": [gone()], "recover": [gone(), gone()]})
        session = opened(device, recovery={"retries": 3, "quarantine_after": 99, "cool_down_s": 0})
        assert session.measure(request_).result.verdict == "valid"
        assert device.calls.count("recover") == 3

    def test_it_cools_down_before_each(self, request_: MeasureRequest) -> None:
        slept: list[float] = []
        device = MadeUpDevice(faults={"measure": [gone(), gone()]})
        session = session_on(device, board(recovery={"cool_down_s": 7}))
        session._sleep = slept.append
        session.open()
        session.measure(request_)
        assert slept == [7, 7]

    def test_closing_ends_it(self, request_: MeasureRequest) -> None:
        device = MadeUpDevice(faults={"measure": [gone()]})
        session = opened(device)
        session.close()
        with pytest.raises(LinkError):
            session.measure(request_)
        assert "recover" not in device.calls


class TestQuarantine:
    def test_after_failures_in_a_row(self, request_: MeasureRequest) -> None:
        device = MadeUpDevice(faults={"measure": [gone() for _ in range(3)]})
        session = opened(device, recovery={"retries": 0, "quarantine_after": 3, "cool_down_s": 0})
        for count in range(3):
            assert session.quarantined is None, count
            with pytest.raises(LinkError):
                session.measure(request_)
        assert session.quarantined == "3 failures in a row, the last: the link is gone"

    def test_a_success_between_them_forgives(self, request_: MeasureRequest) -> None:
        device = MadeUpDevice(faults={"deploy": [None, *([gone(), None, None, None] * 3)]})
        session = opened(device, recovery={"retries": 1, "quarantine_after": 2, "cool_down_s": 0})
        for _ in range(3):
            session.measure(request_)
        assert session.quarantined is None

    def test_models_that_the_board_refuses_do_not_count(self, request_: MeasureRequest) -> None:
        device = MadeUpDevice(faults={"load": [None, ModelRejected("no")] * 5})
        session = opened(device, recovery={"quarantine_after": 2})
        for _ in range(5):
            with pytest.raises(ModelRejected):
                session.measure(request_)
        assert session.quarantined is None

    def test_a_board_that_another_controller_took(self, request_: MeasureRequest) -> None:
        device = MadeUpDevice(faults={"health": [LeaseLost("another has it") for _ in range(3)]})
        session = opened(device, recovery={"quarantine_after": 3})
        for _ in range(3):
            with pytest.raises(LeaseLost):
                session.measure(request_)
        assert session.quarantined is not None

    def test_drift_that_does_not_end(self, request_: MeasureRequest) -> None:
        class Drifting(MadeUpDevice):
            def health(self, deadline_s: float = 30.0) -> Any:
                self.levels = lambda sha256: 1e6 * (1 + self.clock_ns / 5e8)
                return super().health()

        session = opened(Drifting())
        outcome = session.measure(request_)
        assert outcome.result.verdict != "valid"
        assert session.quarantined is not None
        assert "drift" in session.quarantined


class TestVerdicts:
    def test_a_state_other_than_asked_for(self, request_: MeasureRequest) -> None:
        device = MadeUpDevice(state={"governor": "powersave"})
        outcome = opened(device, state={"governor": "performance", "max_temperature_c": 60}).measure(request_)
        result = outcome.result
        assert result.verdict == "invalid"
        assert any("powersave" in reason and "performance" in reason for reason in result.reasons)
        # Nothing was spent on it.
        assert not {"load", "measure", "infer"} & set(device.calls)
        assert result.device_seconds == 0
        assert outcome.measurement.verdict == outcome.record["verdict"] == "invalid"
        assert outcome.record["state_before"]["governor"] == "powersave"

    def test_timed_and_evaluated_outputs_differ(self, request_: MeasureRequest) -> None:
        result = opened(MadeUpDevice(spot_differs=True)).measure(request_).result
        assert result.verdict == "invalid"
        assert any("computes something else" in reason for reason in result.reasons)

    def test_no_placement_receipt(self, request_: MeasureRequest) -> None:
        result = opened(MadeUpDevice(evidence=())).measure(request_).result
        assert result.verdict == "suspect"
        assert any("placement receipt" in reason for reason in result.reasons)

    def test_outputs_that_no_metric_can_take(self, request_: MeasureRequest) -> None:
        class Silent(MadeUpDevice):
            def infer(self, *values: Any, **named: Any) -> Any:
                found = super().infer(*values, **named)
                return replace(found, outputs={"y": np.full_like(found.outputs["y"], np.nan)})

        result = opened(Silent()).measure(request_).result
        assert result.verdict == "invalid"
        assert result.reasons

    def test_futile_candidates_are_not_evaluated(self, request_: MeasureRequest) -> None:
        device = MadeUpDevice()
        settings = settings_for("quick", seed=1, futility_ns=1e5, target_half_width=1e-9)
        outcome = opened(device).measure(replace(request_, settings=settings))
        assert outcome.measurement.stop_reason == "futility"
        assert outcome.result.metrics == {}
        assert "infer" not in device.calls


def test_exclusive_boards_hold_one_session(request_: MeasureRequest) -> None:
    device = MadeUpDevice(exclusive=True)
    outcome = opened(device, runtime={"exclusive_session": True}).measure(request_)
    assert outcome.result.verdict == "valid"
    # A session is loaded for each block: canary and candidate never share the board.
    assert device.calls.count("load") >= 2 * outcome.measurement.settings.min_blocks
    assert device.reloaded == ["infer"]


def test_it_waits_for_the_board_to_cool(request_: MeasureRequest) -> None:
    slept: list[float] = []

    class Hot(MadeUpDevice):
        def health(self, deadline_s: float = 30.0) -> Any:
            hot = self.calls.count("measure") > 2 and len(slept) < 2
            return replace(super().health(), throttled=hot, temperature_c=90.0 if hot else 50.0)

    session = session_on(Hot())
    session._sleep = slept.append
    session.open()
    outcome = session.measure(request_)
    assert sum(slept) <= outcome.measurement.settings.cool_s * outcome.measurement.settings.redo_limit
    assert len(slept) == 2
    assert outcome.measurement.redone == 1
    assert outcome.result.verdict == "valid"


class TestDeviceTime:
    """A block of the made-up device takes as long as its samples."""

    def test_of_failed_attempts_is_counted(self, request_: MeasureRequest) -> None:
        whole = opened(MadeUpDevice()).measure(request_).result.device_seconds
        session = opened(MadeUpDevice(faults={"infer": [LinkError("gone")]}))
        again = session.measure(request_).result.device_seconds
        # The first attempt was timed and lost before the evaluation.
        assert 1.9 * whole < again < 2.1 * whole
        assert session.spent_s == again

    @pytest.mark.parametrize("error", [ModelRejected("odd"), LinkError("gone"), KeyError("a defect")])
    def test_is_known_when_all_failed(self, request_: MeasureRequest, error: Exception) -> None:
        whole = opened(MadeUpDevice()).measure(request_).result.device_seconds
        session = opened(MadeUpDevice(faults={"infer": [error] * 9}), recovery={"retries": 0})
        with pytest.raises(type(error)):
            session.measure(request_)
        assert 0.9 * whole < session.spent_s <= whole

    def test_before_anything_ran_there_was_none(self, request_: MeasureRequest) -> None:
        session = opened(MadeUpDevice(faults={"load": [ModelRejected("odd")]}))
        with pytest.raises(ModelRejected):
            session.measure(request_)
        assert session.spent_s == 0


class TestTooHot:
    """The file says at most 60 °C, and the board begins at 70."""

    class Device(MadeUpDevice):
        read = 0

        def __init__(self, *, falls: float, **more: Any) -> None:
            super().__init__(**more)
            self.falls = falls

        def health(self, deadline_s: float = 30.0) -> Any:
            self.read += 1
            return replace(super().health(), temperature_c=70.0 - self.falls * (self.read - 1))

    def session(self, falls: float, **state: Any) -> tuple[BoardSession, Device, list[float]]:
        slept: list[float] = []
        device = self.Device(falls=falls, state={"governor": "powersave"})
        session = session_on(device, board(state={"max_temperature_c": 60, **state}))
        session._sleep = slept.append
        session.open()
        return session, device, slept

    def test_it_cools_before_it_is_measured(self, request_: MeasureRequest) -> None:
        session, _device, slept = self.session(5.0)
        outcome = session.measure(request_)
        assert len(slept) == 1
        assert outcome.result.verdict == "valid"
        assert outcome.record["state_before"]["temperature_c"] == 60.0

    def test_it_is_not_waited_for_ever(self, request_: MeasureRequest) -> None:
        session, device, slept = self.session(0.0)
        outcome = session.measure(request_)
        assert sum(slept) == pytest.approx(request_.settings.cool_s)
        assert outcome.result.verdict == "invalid"
        assert "70.0 °C, at most 60 °C" in outcome.result.reasons[0]
        assert "measure" not in device.calls

    def test_not_at_all_where_waiting_mends_nothing(self, request_: MeasureRequest) -> None:
        session, _device, slept = self.session(5.0, governor="performance")
        assert session.measure(request_).result.verdict == "invalid"
        assert slept == []


class TestTheHostIsQuiet:
    def run(self, made: Any, request: MeasureRequest) -> list[str]:
        log: list[str] = []

        @contextmanager
        def clock() -> Iterator[None]:
            log.append("quiet")
            yield
            log.append("noisy")

        class Told(MadeUpDevice):
            def measure(self, *values: Any, **named: Any) -> Any:
                log.append("measure")
                return super().measure(*values, **named)

            def infer(self, *values: Any, **named: Any) -> Any:
                log.append("infer")
                return super().infer(*values, **named)

        session = BoardSession(made, clock_lock=clock, agent_factory=lambda _: Told(), sleep=lambda s: None)
        session.open()
        session.measure(request)
        return log

    def test_while_a_board_on_it_is_timed_and_not_longer(self, request_: MeasureRequest) -> None:
        log = self.run(board(transport={"kind": "local"}), request_)
        assert log[0] == "quiet"
        timed = log[: log.index("noisy")]
        assert set(timed) == {"quiet", "measure"}
        assert set(log[log.index("noisy") :]) == {"noisy", "infer"}

    def test_not_for_boards_elsewhere(self, request_: MeasureRequest) -> None:
        assert set(self.run(board(), request_)) == {"measure", "infer"}

    @pytest.mark.timeout(60)
    def test_what_is_not_timed_makes_way_for_a_clock(self, request_: MeasureRequest, tmp_path: Path) -> None:
        """Every call that computes finds the host locked by itself, one way or the other."""
        lock, probe = HostLock(tmp_path), HostLock(tmp_path)
        clocks: dict[str, set[bool]] = {}

        class Told(MadeUpDevice):
            def _call(self, operation: str) -> None:
                super()._call(operation)
                try:
                    with probe.clock(deadline_s=0):
                        free = True
                except HostBusy:
                    free = False
                clocks.setdefault(operation, set()).add(free)

        local = board(transport={"kind": "local"})
        session = BoardSession(
            local, clock_lock=lock.clock, work_lock=lock.work, agent_factory=lambda _: Told(), sleep=lambda s: None
        )
        session.open()
        assert session.measure(request_).result.verdict == "valid"
        assert [clocks[name] for name in ("deploy", "load", "measure", "infer")] == [{False}] * 4
        with probe.clock(deadline_s=0):
            """Nothing is held when it is over."""


@pytest.mark.parametrize(
    ("asked", "limit", "memory", "offload"),
    [
        (Constraints(), {}, None, None),
        (Constraints(max_memory_bytes=100), {"max_memory_bytes": 50}, 50, None),
        (Constraints(max_memory_bytes=10, min_offload=0.5), {"max_memory_bytes": 50, "min_offload": 0.9}, 10, 0.9),
    ],
)
def test_the_stricter_of_plan_and_board(
    asked: Constraints, limit: dict[str, Any], memory: int | None, offload: float | None
) -> None:
    found = board_constraints(asked, Limits.model_validate(limit))
    assert (found.max_memory_bytes, found.min_offload) == (memory, offload)


class TestMeasureCommandsWork:
    @pytest.fixture(autouse=True)
    def _boards(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("BOARDTUNE_CONFIG_HOME", str(tmp_path / "config"))
        monkeypatch.setenv("BOARDTUNE_RUNTIME_DIR", str(tmp_path / "runtime"))
        made_up.write_boards(tmp_path / "boards")

    def test_with_data_and_reference(self, tmp_path: Path) -> None:
        plan = made_up.tiny_plan(tmp_path / "data")
        job = MeasureJob(
            plan.model, ["alpha", "beta", "alpha"], data=str(plan.eval), reference=plan.model, effort="quick"
        )
        measured = measure(job, agent_factory=lambda made: MadeUpDevice(made.name))
        assert list(measured.results) == ["alpha", "beta"]
        assert measured.results["alpha"].metrics["top1"].difference is not None
        assert measured.records["alpha"]["blocks"]
        assert any("set to 1" in notice for notice in measured.notices)

    def test_without_data_says_so(self, tmp_path: Path) -> None:
        told: list[str] = []
        plan = made_up.tiny_plan(tmp_path / "data")
        measured = measure(
            MeasureJob(plan.model, ["alpha"], effort="quick"), tell=told.append, agent_factory=lambda _: MadeUpDevice()
        )
        assert measured.results["alpha"].metrics == {}
        assert any("random" in message for message in told)

    def test_post_processing_needs_the_pipeline(self, tmp_path: Path) -> None:
        plan = made_up.tiny_plan(tmp_path / "data")
        with pytest.raises(ConfigError, match="--postprocess argmax is timed with --scope pipeline only"):
            measure(MeasureJob(plan.model, ["alpha"], postprocess="argmax"), agent_factory=lambda _: MadeUpDevice())

    def test_batches(self, tmp_path: Path) -> None:
        plan = made_up.tiny_plan(tmp_path / "data")
        device = MadeUpDevice()
        job = MeasureJob(plan.model, ["alpha"], data=str(plan.eval), reference=plan.model, effort="quick", batch=7)
        measured = measure(job, agent_factory=lambda _: device)
        # 60 samples are no multiple of 7.
        assert measured.results["alpha"].metrics["top1"].n == 60
        assert {asked.batch for _, asked in device.requests} == {1, 7}
        assert any("set to 7" in notice for notice in measured.notices)
        with pytest.raises(ModelError, match="contradict"):
            measure(replace(job, set_dim={"batch": 8}), agent_factory=lambda _: device)

    def test_the_board_is_let_go_after_a_failure(self, tmp_path: Path) -> None:
        device = MadeUpDevice(faults={"load": [ModelRejected("no such operator")]})
        plan = made_up.tiny_plan(tmp_path / "data")
        measured = measure(MeasureJob(plan.model, ["alpha"]), agent_factory=lambda _: device)
        assert measured.results == {}
        assert isinstance(measured.failures["alpha"], ModelRejected)
        assert device.calls[-1] == "close"

    @pytest.mark.parametrize(
        "fault",
        [LinkError("unplugged"), ModelRejected("no such operator"), ConfigError("no key"), KeyError("a defect")],
    )
    @pytest.mark.parametrize("failing", ["alpha", "beta"])
    def test_one_board_that_fails_costs_no_other_its_result(
        self, tmp_path: Path, fault: Exception, failing: str
    ) -> None:
        plan = made_up.tiny_plan(tmp_path / "data")
        measured = measure(
            MeasureJob(plan.model, ["alpha", "beta"], effort="quick"),
            agent_factory=lambda made: MadeUpDevice(
                made.name, faults={"connect": [fault]} if made.name == failing else {}
            ),
        )
        assert measured.failures == {failing: fault}
        assert list(measured.results) == [{"alpha": "beta", "beta": "alpha"}[failing]]

    def test_what_no_runtime_loads_is_said_as_this_host_says_it(self, tmp_path: Path) -> None:
        plan = made_up.tiny_plan(tmp_path / "data")
        model = onnx.load(plan.model)
        model.opset_import[0].version = 999
        plan.model.write_bytes(model.SerializeToString())
        job = MeasureJob(plan.model, ["alpha", "beta"], effort="quick")
        measured = measure(
            job,
            agent_factory=lambda made: MadeUpDevice(
                made.name, faults={"load": [None, ModelRejected("FAIL: /tmp/x")] if made.name == "alpha" else []}
            ),
        )
        assert "opset 999" in str(measured.failures["alpha"])
        assert str(plan.model) in str(measured.failures["alpha"])
        # The other board knows more than this host.
        assert list(measured.results) == ["beta"]
        assert any("opset 999" in notice for notice in measured.notices)
