"""From a plan to what trials work on, before a board is touched."""

from __future__ import annotations

import hashlib
import signal
import sys
from pathlib import Path
from typing import Any

import made_up
import numpy as np
import pytest

from harness.controller.dry_run import describe
from harness.controller.floor import LABELS_DECIDE_DB, WITHOUT_LABELS_DB
from harness.controller.interrupt import Interruption
from harness.controller.inventory import inventory
from harness.controller.policy import MeasurementPolicy, seed_of
from harness.controller.preparation import Prepared, accuracy_bounds, prepare, run_on_host
from harness.controller.setup import OPEN_SPACE_TRIALS, header_of, set_up
from harness.errors import ConfigError
from harness.ledger.header import differences
from harness.recipes.recipe import FLOAT32, Recipe


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOARDTUNE_CONFIG_HOME", str(tmp_path / "config"))
    made_up.write_boards(tmp_path / "boards")
    (tmp_path / "work").mkdir()


def prepared(tmp_path: Path, **changes: Any) -> Prepared:
    return prepare(made_up.tiny_plan(tmp_path / "data", **changes), tmp_path / "work")


class TestParts:
    def test_the_search_and_the_report_share_no_sample(self, tmp_path: Path) -> None:
        found = prepared(tmp_path)
        search, final = (np.load(found.parts[name].path)["x"] for name in ("search", "final"))
        rows = {row.tobytes() for row in search}
        assert len(rows) == len(search) == found.parts["search"].samples
        assert not rows & {row.tobytes() for row in final}
        assert len(search) + len(final) == 60

    def test_labels_and_float_outputs_go_with_their_samples(self, tmp_path: Path) -> None:
        for part in prepared(tmp_path, metrics=["top1", "snr"]).parts.values():
            y = np.load(part.path)["x"] @ made_up.WEIGHTS
            np.testing.assert_allclose(part.float_outputs["y"], y, rtol=1e-4, atol=1e-5)
            assert part.labels is not None
            assert (y.argmax(axis=1) == part.labels).all()

    def test_float_outputs_go_nowhere_unless_something_is_compared_with_them(self, tmp_path: Path) -> None:
        parts = prepared(tmp_path, metrics=["top1"]).parts
        assert all(not part.float_outputs for part in parts.values())

    def test_float_is_scored_on_both(self, tmp_path: Path) -> None:
        found = prepared(tmp_path)
        assert {name: scores["top1"].value for name, scores in found.scoring.float_scores.items()} == {
            "search": 1.0,
            "final": 1.0,
        }

    def test_by_the_seed(self, tmp_path: Path) -> None:
        one, same, other = (prepared(tmp_path, seed=seed).parts["search"].sha256 for seed in (1, 1, 2))
        assert one == same
        assert one != other

    def test_the_users_file_is_left_alone(self, tmp_path: Path) -> None:
        plan = made_up.tiny_plan(tmp_path / "data")
        before = plan.model.read_bytes()
        prepare(plan, tmp_path / "work")
        assert plan.model.read_bytes() == before


def test_without_an_evaluation_set(tmp_path: Path) -> None:
    found = prepared(tmp_path, eval=None, min_accuracy=None)
    assert [metric.name for metric in found.scoring.metrics] == ["snr"]
    assert any("no evaluation set" in notice for notice in found.notices)
    assert found.parts["search"].labels is None


def test_a_bound_on_another_metric_than_the_first(tmp_path: Path) -> None:
    metrics = prepared(tmp_path).scoring.metrics
    assert set(accuracy_bounds("-1pp", metrics)) == {"top1"}
    assert set(accuracy_bounds(None, metrics)) == {"top1"}
    with pytest.raises(ConfigError, match="'top5', which is not measured"):
        accuracy_bounds("top5>=0.9", metrics)


def test_batches_that_do_not_come_out_even(tmp_path: Path) -> None:
    model = made_up.write_model(tmp_path / "fixed.onnx")
    found = prepare(made_up.tiny_plan(tmp_path / "data", set_dim={"batch": 4}), tmp_path / "work")
    x = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)
    np.testing.assert_allclose(run_on_host(found.model.path, {"x": x}, 1)["y"], x @ made_up.WEIGHTS, rtol=1e-5)
    assert len(run_on_host(model, {"x": np.zeros((6, 6), np.float32)}, 3)["y"]) == 6


class TestFloor:
    """Of the signal-to-noise ratio: scores say little where answers can be compared with labels."""

    def test_labels_decide_where_there_are_any(self, tmp_path: Path) -> None:
        assert prepared(tmp_path).min_snr_db == LABELS_DECIDE_DB == 3.0

    @pytest.mark.parametrize(
        "changes",
        [
            {"eval": None, "min_accuracy": None},
            {"metrics": ["snr"], "min_accuracy": "20dB"},
            {"metrics": ["top1", "snr"], "min_accuracy": "snr>=20dB"},
        ],
    )
    def test_without_them_it_is_all_there_is(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        assert prepared(tmp_path, **changes).min_snr_db == WITHOUT_LABELS_DB == 15.0

    @pytest.mark.parametrize("asked", [-5.0, 20.0])
    def test_what_is_asked_for_wins(self, tmp_path: Path, asked: float) -> None:
        assert prepared(tmp_path, min_snr=asked).min_snr_db == asked


def test_no_more_than_a_thousand_samples_are_searched_on(tmp_path: Path) -> None:
    plan = made_up.tiny_plan(tmp_path / "data")
    made_up.write_data(tmp_path / "data" / "eval.npz", 3000, seed=2)
    parts = prepare(plan, tmp_path / "work").parts
    assert {name: part.samples for name, part in parts.items()} == {"search": 1000, "final": 2000}


class TestSetup:
    def test_the_plans_own_recipes_come_after_float(self, tmp_path: Path) -> None:
        mine = Recipe(activation="uint16", granularity="per_channel", reduce_range=True)
        (tmp_path / "mine.json").write_text(mine.to_json())
        for preset in ("quick", "standard"):
            plan = made_up.tiny_plan(tmp_path / "data", recipes=[str(tmp_path / "mine.json")], preset=preset)
            space = set_up(plan, tmp_path / "work").space
            first = space.enumerated if space.enumerated is not None else space.seeds
            assert first[:2] == (FLOAT32, mine)

    def test_as_many_trials_as_recipes(self, tmp_path: Path) -> None:
        quick = set_up(made_up.tiny_plan(tmp_path / "data", trials=None), tmp_path / "work")
        assert quick.space.enumerated is not None
        assert quick.trials == len(quick.space.enumerated)
        opened = set_up(made_up.tiny_plan(tmp_path / "data", trials=None, preset="full"), tmp_path / "work")
        assert opened.trials == OPEN_SPACE_TRIALS

    def test_a_preset_is_tried_as_far_as_what_it_puts_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("BOARDTUNE_BACKEND_QUARK", sys.executable)
        made = set_up(made_up.tiny_plan(tmp_path / "data", trials=None, preset="quark-advanced"), tmp_path / "work")
        assert made.trials == 37, "36 calibrations after float"

    def test_a_quantizer_that_is_not_installed_is_told_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("BOARDTUNE_BACKEND_QUARK", raising=False)
        monkeypatch.setenv("BOARDTUNE_DATA_HOME", str(tmp_path))
        with pytest.raises(ConfigError, match=r"quark backend .* is not installed\n  boardtune backends install quark"):
            set_up(made_up.tiny_plan(tmp_path / "data", preset="quark-xint8"), tmp_path / "work")

    def test_a_run_is_of_its_content_not_of_its_paths(self, tmp_path: Path) -> None:
        one = header_of(set_up(made_up.tiny_plan(tmp_path / "data"), tmp_path / "work"))
        moved = header_of(set_up(made_up.tiny_plan(tmp_path / "elsewhere"), tmp_path / "work"))
        assert differences(one, moved) == ()
        made_up.write_data(tmp_path / "elsewhere" / "eval.npz", 60, seed=9)
        other = header_of(set_up(made_up.tiny_plan(tmp_path / "elsewhere"), tmp_path / "work"))
        assert [d.field for d in differences(one, other)] == ["data.evaluation"]

    def test_a_dry_run_estimates(self, tmp_path: Path) -> None:
        few = describe(made_up.tiny_plan(tmp_path / "data", trials=4))
        many = describe(made_up.tiny_plan(tmp_path / "data", trials=8))
        assert few.recipes == many.recipes[:4]
        assert few.estimates["alpha"].high_s < many.estimates["alpha"].high_s
        assert set(many.to_json()["device_minutes"]) == {"alpha", "beta"}


class TestPolicy:
    POLICY = MeasurementPolicy(7, "standard", {"a": "dedicated", "b": "shared"})

    def test_every_measurement_has_a_seed_of_its_own(self) -> None:
        policy = self.POLICY
        seeds = {s.seed for n in range(3) for b in "ab" for s in (policy.screening(n, b), policy.final(n, b))}
        assert len(seeds) == 12

    def test_the_same_in_every_process(self) -> None:
        # The first eight bytes of `printf '7\0a' | sha256sum`, halved.
        assert seed_of(7, "a") == int(hashlib.sha256(b"7\0a").hexdigest()[:16], 16) // 2
        assert 0 <= seed_of("x") < 2**63
        assert seed_of(1, 23) != seed_of(12, 3)

    def test_noise_and_futility_are_handed_on(self) -> None:
        assert self.POLICY.screening(0, "b", 5e6).noise == "shared"
        assert self.POLICY.screening(0, "b", 5e6).futility_ns == 5e6
        assert self.POLICY.final(0, "a").futility_ns is None

    def test_quick_is_quicker(self) -> None:
        quick = MeasurementPolicy(7, "quick", {"a": "dedicated"})
        assert quick.final(0, "a").block.min_ns < self.POLICY.final(0, "a").block.min_ns


def test_what_a_model_uses(tmp_path: Path) -> None:
    found = inventory(made_up.write_model(tmp_path / "m.onnx"))
    assert found.operators == {"Gemm"}
    assert found.data_types == {"float32"}


class TestInterruption:
    def test_once_asks_twice_ends(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        with Interruption() as interruption:
            assert not interruption.asked
            signal.raise_signal(signal.SIGINT)
            assert interruption.asked
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is before

    def test_terminating_is_interrupting(self) -> None:
        with Interruption() as interruption:
            signal.raise_signal(signal.SIGTERM)
            assert interruption.asked
