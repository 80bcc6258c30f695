"""The one writer: which of two equal artifacts is the duplicate does not depend on who was first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.controller.recorder import Recorder
from harness.controller.trial import Quantized
from harness.ledger import events
from harness.ledger.run_directory import RunDirectory
from harness.recipes.recipe import FLOAT32, Recipe
from harness.results import ArtifactInfo

HEADER = {"key": {}}


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with RunDirectory.create(tmp_path / "run", HEADER) as run:
        yield Recorder(run)


def propose(recorder: Recorder, *trials: int) -> None:
    for trial in trials:
        recorder.propose(trial, FLOAT32, {})


def made(identity: str) -> Quantized:
    return Quantized(ArtifactInfo("0" * 64, identity, 3), 40.0, 1)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_lowest_trial_keeps_its_artifact(tmp_path_factory: pytest.TempPathFactory, identities: list, order) -> None:  # type: ignore[type-arg, no-untyped-def]
    with RunDirectory.create(tmp_path_factory.mktemp("runs") / "run", HEADER) as run:
        recorder = Recorder(run)
        propose(recorder, *range(len(identities)))
        asked = list(range(len(identities)))
        order.shuffle(asked)

        def claim(trial: int) -> int | str | None:
            original = recorder.claim(trial, identities[trial], timeout_s=20)
            if original is not None and original != "interrupted":
                recorder.record(events.duplicate(trial, int(original)))
            return original

        with ThreadPoolExecutor(len(asked)) as pool:
            found = dict(zip(asked, pool.map(claim, asked), strict=True))
    for trial, identity in enumerate(identities):
        first = identities.index(identity)
        assert found[trial] == (None if identity is None or first == trial else first)


def test_it_waits_for_lower_trials_and_not_for_ended_ones(recorder: Recorder) -> None:
    propose(recorder, 0, 1, 2)
    recorder.record(events.failed(0, "low_snr", "3 dB"))
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(recorder.claim(2, "x", timeout_s=20)))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    assert recorder.claim(1, "x", timeout_s=20) is None
    waiting.join(20)
    assert answers == [1]


def test_who_does_not_come_is_named(recorder: Recorder) -> None:
    propose(recorder, 0, 1, 2)
    with pytest.raises(TimeoutError, match=r"trial 2 waited 0 s for trials \[0, 1\]"):
        recorder.claim(2, "x", timeout_s=0.01)


def test_stopping_wakes_who_waits_and_decides_nothing(recorder: Recorder) -> None:
    """Trial 0 may yet turn out to have made the same artifact: on resume it is asked again."""
    propose(recorder, 0, 1, 2)
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(recorder.claim(2, "x", timeout_s=60)))
    waiting.start()
    recorder.stop()
    waiting.join(20)
    assert answers == ["interrupted"]
    assert recorder.claim(0, "x", timeout_s=1) is None
    assert recorder.claim(1, "x", timeout_s=1) == 0


def test_a_trial_without_an_artifact_waits_for_nobody(recorder: Recorder) -> None:
    propose(recorder, 0, 1)
    assert recorder.claim(1, None, timeout_s=0.01) is None


def test_a_trial_that_dies_after_its_claim_keeps_it(recorder: Recorder) -> None:
    propose(recorder, 0, 1)
    assert recorder.claim(0, "x") is None
    assert recorder.claim(0, None) is None
    assert recorder.claim(1, "x", timeout_s=1) == 0


def test_claims_survive_a_resume(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", HEADER) as run:
        recorder = Recorder(run)
        propose(recorder, 0, 1)
        recorder.keep_model(0, b"model", made("x"), notices=(), backend="b", seconds=0.0)
        recorder.claim(0, "x")
        recorder.record(events.gated(0))
    with RunDirectory.open_for_resume(tmp_path / "run", HEADER) as run:
        again = Recorder(run)
        assert again.claim(1, "x", timeout_s=1) == 0


def test_the_model_is_there_before_it_is_told(recorder: Recorder) -> None:
    recorder.propose(0, Recipe(), {})
    recorder.keep_model(0, b"model", made("x"), notices=("a notice",), backend="b", seconds=1.5)
    state = recorder.state(0)
    assert state.status == "quantized"
    assert recorder.model_path(0).read_bytes() == b"model"
    assert recorder.snapshot().running == ((0, Recipe().label, "quantized"),)


def test_a_model_for_the_chips_compiler_is_kept_and_dropped_with_the_other(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", HEADER) as run:
        recorder = Recorder(run)
        propose(recorder, 0)
        recorder.keep_model(0, b"model", made("x"), notices=(), backend="b", seconds=0.0, deploy=b"other")
        assert (tmp_path / "run" / "0000" / "model.deploy.onnx").read_bytes() == b"other"
        run.drop_model(0)
        assert not list((tmp_path / "run" / "0000").glob("model*"))


def test_a_copy_of_the_state_stays_as_it_is(recorder: Recorder) -> None:
    before = recorder.ledger_state()
    propose(recorder, 0)
    assert before.trials == {}
    assert set(recorder.ledger_state().trials) == {0}
