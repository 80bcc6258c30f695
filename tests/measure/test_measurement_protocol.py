"""The order of steps, the stop rules, redoing and the verdicts, on a board with known truth."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_board import SyntheticBoard

from device_agents.contract import Block, BoardState
from harness.measure.protocol import Measurement
from harness.measure.record import sample_table
from harness.measure.settings import MeasurementSettings, NoiseClass, settings_for
from harness.measure.steps import CANARY, CANDIDATE, Cool, TimedBlock, Warmup


def board(seed: int = 0, **changes: object) -> SyntheticBoard:
    return SyntheticBoard(np.random.default_rng(seed), **changes)  # type: ignore[arg-type]


def timed(found: SyntheticBoard) -> list[str]:
    return ["R" if s.target == CANARY else "A" for s in found.steps if isinstance(s, TimedBlock)]


class TestSequence:
    @pytest.mark.parametrize("profile", ["quick", "screening"])
    def test_candidate_blocks_stand_between_canary_blocks(self, profile: str) -> None:
        b = board(block_noise=0.002)
        result = b.measure(Measurement(settings_for(profile)))  # type: ignore[arg-type]
        assert "".join(timed(b)) == "R" + "AR" * result.latency.blocks  # type: ignore[union-attr]
        assert result.verdict == "valid"

    def test_both_models_are_warm_before_the_first_block(self) -> None:
        b = board()
        b.measure(Measurement(settings_for("screening")))
        first = next(i for i, s in enumerate(b.steps) if isinstance(s, TimedBlock))
        assert {s.target for s in b.steps[:first]} == {CANARY, CANDIDATE}
        assert not any(isinstance(s, Warmup) for s in b.steps[first:])

    def test_final_blocks_come_from_several_sessions_with_a_fence_near(self) -> None:
        b = board(block_noise=0.002)
        result = b.measure(Measurement(settings_for("final")))
        blocks = [r for r in result.records if r.kind == "block"]
        sessions = [r.session for r in blocks if r.target == CANDIDATE]
        assert len(set(sessions)) >= 5
        assert sum(s > 0 for s in sessions) >= 2
        assert b.loads.count(CANDIDATE) == len(set(sessions))
        for i, r in enumerate(blocks):
            if r.target == CANDIDATE:
                assert blocks[i - 1].target == blocks[i + 1].target == CANARY

    def test_fresh_blocks_are_the_first_of_their_sessions(self) -> None:
        b = board(block_noise=0.002)
        b.measure(Measurement(settings_for("final", blocks_per_session=2)))
        fresh = [s.fresh for s in b.steps if isinstance(s, TimedBlock) and s.target == CANDIDATE]
        assert fresh == [i % 2 == 0 for i in range(len(fresh))]
        assert len(fresh) >= 5

    def test_several_targets_share_fences_in_random_order(self) -> None:
        b = board(levels={CANARY: 1e6, "a": 2e6, "b": 4e6, "c": 8e6}, block_noise=0.002)
        m = Measurement(settings_for("final", min_blocks=8, blocks_per_session=None), targets=("a", "b", "c"))
        b.measure(m)
        order = [s.target for s in b.steps if isinstance(s, TimedBlock)]
        rounds = [tuple(order[i + 1 : i + 4]) for i in range(0, len(order) - 4, 4)]
        assert all(order[i] == CANARY for i in range(0, len(order), 4))
        assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
        assert len(set(rounds)) > 1
        for target, truth in (("a", 2e6), ("b", 4e6), ("c", 8e6)):
            low, high = m.result(target).latency.ci95  # type: ignore[union-attr]
            assert low * 0.99 <= truth <= high * 1.01

    def test_exclusive_boards_warm_a_fresh_session_before_each_change(self) -> None:
        b = board(block_noise=0.002)
        b.measure(Measurement(settings_for("quick", exclusive=True)))
        assert "".join(timed(b)).startswith("RARAR")
        loaded = None
        for step in b.steps:
            assert not isinstance(step, Cool)
            if step.target != loaded:
                assert isinstance(step, Warmup)
                assert step.fresh
            loaded = step.target

    def test_without_a_canary_only_the_candidate_runs(self) -> None:
        b = board(block_noise=0.002)
        result = b.measure(Measurement(settings_for("screening", canary=False)))
        assert set(timed(b)) == {"A"}
        assert result.verdict == "valid"
        assert result.ratio_to_canary is None
        assert result.latency is not None
        assert result.latency.p50 == pytest.approx(5e6, rel=0.01)
        assert any(n.startswith("no_canary") for n in result.notices)

    def test_next_repeats_the_step_until_it_is_told(self) -> None:
        m = Measurement(settings_for("quick"))
        assert m.next() is m.next()

    def test_calls_out_of_turn_are_refused(self) -> None:
        b, m = board(), Measurement(settings_for("quick"))
        step = m.next()
        assert isinstance(step, Warmup)
        with pytest.raises(ValueError, match="step in hand"):
            m.cooled(step, b.state())
        block = b.run(step)
        m.tell(step, block)
        with pytest.raises(ValueError, match="step in hand"):
            m.tell(step, block)
        with pytest.raises(ValueError, match="no target"):
            m.result("other")

    def test_the_same_seed_gives_the_same_order(self) -> None:
        def order(seed: int) -> list[str]:
            b = board(levels={CANARY: 1e6, "a": 2e6, "b": 4e6})
            b.measure(Measurement(settings_for("final", seed=seed), targets=("a", "b")))
            return [s.target for s in b.steps if isinstance(s, TimedBlock)]

        assert order(1) == order(1)
        assert any(order(1) != order(seed) for seed in range(2, 6))


class TestWarmup:
    def test_lasts_until_two_windows_agree(self) -> None:
        cold = board(warmup_amount=1.0, warmup_ns=1e9, noise=0.001)
        result = cold.measure(Measurement(settings_for("screening")))
        medians = [r.median_ns for r in result.records if r.kind == "warmup" and r.target == CANDIDATE]
        assert len(medians) > 4
        assert abs(medians[-1] / medians[-2] - 1) < 0.01
        assert medians[0] > 1.5 * medians[-1]
        assert result.latency is not None
        assert result.latency.p50 == pytest.approx(5e6, rel=0.02)

    def test_at_least_ten_inferences_and_one_second(self) -> None:
        for level in (1e5, 3e8):
            b = board(levels={CANARY: 1e6, CANDIDATE: level}, noise=0.0005, max_samples=20_000)
            result = b.measure(Measurement(settings_for("screening")))
            warm = [r for r in result.records if r.kind == "warmup" and r.target == CANDIDATE]
            assert sum(len(r.samples_ns) for r in warm) >= 10
            assert sum(r.device_ns - (r.first_ns or 0) for r in warm) >= 1e9

    def test_a_model_that_never_settles_is_suspect(self) -> None:
        flips = iter(np.tile([1.0, 1.3], 100_000))
        b = board(noise=0.0, levels={CANARY: 1e6, CANDIDATE: 5e7})
        state = {"window": 1.0}

        def environment(now_ns: float) -> float:
            return state["window"]

        b.environment = environment
        m = Measurement(settings_for("screening"))
        while (step := m.next()) is not None and not isinstance(step, TimedBlock):
            assert not isinstance(step, Cool)
            state["window"] = next(flips) if step.target == CANDIDATE else 1.0
            m.tell(step, b.run(step))
        state["window"] = 1.0
        result = b.measure(m)
        assert result.verdict == "suspect"
        assert result.reasons[0].startswith("no_steady_state")
        warm = sum(r.device_ns for r in result.records if r.kind == "warmup" and r.target == CANDIDATE)
        assert 29e9 < warm < 40e9

    def test_a_model_of_seconds_is_steady_by_agreement(self) -> None:
        b = board(levels={CANARY: 1e6, CANDIDATE: 4e9}, noise=0.001)
        result = b.measure(Measurement(settings_for("screening")))
        assert result.verdict == "valid"
        assert result.latency is not None
        assert result.latency.p50 == pytest.approx(4e9, rel=0.01)

    def test_first_inference_is_kept_apart(self) -> None:
        result = board().measure(Measurement(settings_for("quick")))
        assert result.first_ns == 20_000_000
        assert all(r.samples_ns.max() < 10_000_000 for r in result.records)


class TestStopping:
    def test_a_quiet_board_needs_the_fewest_blocks(self) -> None:
        result = board(block_noise=0.001).measure(Measurement(settings_for("screening")))
        assert result.stop_reason == "interval"
        assert result.latency is not None
        assert result.latency.blocks == 3

    def test_a_noisy_one_takes_all_and_says_the_interval_is_wide(self) -> None:
        result = board(block_noise=0.08).measure(Measurement(settings_for("screening", redo_limit=0)))
        assert result.stop_reason == "max_blocks"
        assert result.latency is not None
        assert result.latency.blocks == 6
        assert any(n.startswith("wide_interval") for n in result.notices)

    @pytest.mark.parametrize("noise", ["dedicated", "shared"])
    def test_an_interval_that_leaves_the_level_in_doubt_is_suspect(self, noise: NoiseClass) -> None:
        result = board(block_noise=0.6).measure(Measurement(settings_for("screening", noise=noise, redo_limit=0)))
        assert result.latency is not None
        assert result.latency.ci95[1] / result.latency.p50 > 1.25
        assert result.verdict == "suspect"
        assert any(r.startswith("wide_interval") for r in result.reasons)

    def test_futile_candidates_end_at_the_first_look(self) -> None:
        m = Measurement(settings_for("final", futility_ns=2e6))
        result = board(block_noise=0.002).measure(m)
        assert result.stop_reason == "futility"
        assert result.latency is not None
        assert result.latency.blocks == 3

    def test_the_device_budget_ends_it(self) -> None:
        m = Measurement(settings_for("final", device_budget_ns=8_000_000_000, target_half_width=0.0))
        result = board(max_samples=5000).measure(m)
        assert result.stop_reason == "device_budget"
        assert result.device_ns < 14e9

    def test_a_budget_too_small_for_an_interval_costs_no_more_than_one(self) -> None:
        settings = settings_for("screening", device_budget_ns=1_000_000, target_half_width=0.0)
        result = board().measure(Measurement(settings))
        whole = board().measure(Measurement(settings_for("screening", target_half_width=0.0)))
        assert result.stop_reason == "device_budget"
        assert result.latency is not None
        assert result.latency.blocks == 3
        assert result.device_ns < 0.75 * whole.device_ns
        # Warm-up was cut short, and that is told.
        assert result.verdict == "suspect"
        assert result.reasons[0].startswith("no_steady_state")

    def test_device_time_by_profile(self) -> None:
        for profile, least, most in (("quick", 0.6, 2.0), ("screening", 2.2, 4.5), ("final", 15.0, 60.0)):
            b = board(noise=0.002, block_noise=0.001, max_samples=100_000)
            result = b.measure(Measurement(settings_for(profile)))  # type: ignore[arg-type]
            assert least < result.device_ns / 1e9 < most
            assert result.device_ns == pytest.approx(b.now_ns, rel=0.2)


class TestDriftAndRedo:
    def test_slow_drift_is_redone_twice_then_quarantined(self) -> None:
        b = board(noise=0.002, environment=lambda now: 1.0 + 0.02 * now / 1e9)
        result = b.measure(Measurement(settings_for("screening", cool_s=1.0)))
        assert sum(isinstance(s, Cool) for s in b.steps) == 2
        assert result.redone == 2
        assert result.quarantine
        assert result.verdict == "suspect"
        assert {r.round for r in result.records} == {0, 1, 2}

    def test_a_board_that_recovers_gives_a_valid_second_set(self) -> None:
        b = board(noise=0.002, environment=lambda now: 1.1 if 2e9 < now < 4e9 else 1.0)
        result = b.measure(Measurement(settings_for("screening", cool_s=10.0)))
        assert (result.redone, result.verdict, result.quarantine) == (1, "valid", False)
        assert result.latency is not None
        assert result.latency.p50 == pytest.approx(5e6, rel=0.005)
        used = [r for r in result.records if r.round == 1 and r.kind == "block" and r.target == CANDIDATE]
        assert result.latency.n == sum(len(r.samples_ns) for r in used)

    def test_cools_to_the_starting_temperature_and_a_margin(self) -> None:
        b = board(noise=0.002, environment=lambda now: 1.0 + 0.02 * now / 1e9, temperature=lambda now: 41.0 + now / 1e9)
        b.measure(Measurement(settings_for("screening", cool_s=1.0)))
        pause = next(s for s in b.steps if isinstance(s, Cool))
        assert pause.below_c == pytest.approx(43.0)

    @pytest.mark.parametrize("start_s", [0.0, 1.5, 2.5])
    def test_throttling_is_always_noticed_and_never_valid(self, start_s: float) -> None:
        b = board(
            throttled=lambda now: now > start_s * 1e9, environment=lambda now: 1.5 if now > start_s * 1e9 else 1.0
        )
        result = b.measure(Measurement(settings_for("screening", cool_s=1.0)))
        assert (result.verdict, result.latency, result.quarantine) == ("invalid", None, True)
        assert any(r.startswith("throttled") for r in result.reasons)

    def test_trouble_ends_a_set_early(self) -> None:
        b = board(throttled=lambda now: True)
        b.measure(Measurement(settings_for("final", cool_s=1.0, redo_limit=0)))
        assert len(timed(b)) == 3

    def test_a_clock_below_the_one_asked_for(self) -> None:
        slow = board(frequency_khz=1_500_000)
        result = slow.measure(Measurement(settings_for("quick", cool_s=0.1, min_frequency_khz=2_400_000)))
        assert result.verdict == "invalid"
        assert "1500000 kHz" in result.reasons[0]
        fine = board(frequency_khz=2_400_000)
        assert fine.measure(Measurement(settings_for("quick", min_frequency_khz=2_400_000))).verdict == "valid"

    def test_a_shared_machine_widens_and_quarantines_nothing(self) -> None:
        def environment(now: float) -> float:
            return 1.0 + 0.1 * math.sin(now / 4e8)

        shared = board(noise=0.002, environment=environment)
        result = shared.measure(Measurement(settings_for("screening", noise="shared")))
        assert (result.verdict, result.quarantine, result.redone) == ("valid", False, 0)
        alone = board(noise=0.002, environment=environment)
        reference = alone.measure(Measurement(settings_for("screening", redo_limit=0)))
        assert result.latency is not None
        assert reference.latency is not None
        assert reference.verdict == "suspect"
        width, narrow = (r.ci95[1] / r.ci95[0] for r in (result.latency, reference.latency))
        assert width > narrow

    def test_many_severe_outliers_are_rerun_once_and_kept(self) -> None:
        b = board(spike_share=0.12, noise=0.001)
        result = b.measure(Measurement(settings_for("screening")))
        assert (result.verdict, result.redone, result.quarantine) == ("suspect", 1, False)
        assert result.reasons[0].startswith("severe_outliers")
        assert not any(isinstance(s, Cool) for s in b.steps)
        assert result.latency is not None
        used = [r for r in result.records if r.round == 1 and r.kind == "block" and r.target == CANDIDATE]
        assert result.latency.n == sum(len(r.samples_ns) for r in used)
        assert max(r.samples_ns.max() for r in used) > 1e7


class TestVoid:
    def test_a_changed_boot_id_voids_everything(self) -> None:
        b = board(boot_id=lambda now: "one" if now < 1.5e9 else "two")
        m = Measurement(settings_for("screening"))
        result = b.measure(m)
        assert (result.verdict, result.latency, result.stop_reason) == ("invalid", None, "void")
        assert result.reasons[0].startswith("rebooted")
        assert m.next() is None
        with pytest.raises(ValueError, match="over"):
            m.tell(b.steps[-1], b.run(b.steps[0]))  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "samples",
        [[], [1, 0, 2], [1, -5], [1.0, math.nan], [1.0, math.inf], [[1, 2], [3, 4]], ["1", "2"]],
        ids=str,
    )
    def test_samples_that_cannot_be_true(self, samples: list[object]) -> None:
        b, m = board(), Measurement(settings_for("quick"))
        step = m.next()
        assert isinstance(step, Warmup)
        m.tell(step, replace(b.run(step), samples_ns=np.array(samples)))
        assert m.next() is None
        assert m.result().reasons[0].startswith("bad_samples")
        assert m.result().latency is None

    def test_a_failed_step_ends_it(self) -> None:
        m = Measurement(settings_for("quick"))
        m.next()
        m.fail("the session died")
        assert m.next() is None
        assert (m.result().verdict, m.result().stop_reason) == ("invalid", "failed")
        assert m.result().reasons == ("failed: the session died",)

    def test_an_unfinished_measurement_has_no_number(self) -> None:
        result = Measurement(settings_for("quick")).result()
        assert (result.verdict, result.latency, result.stop_reason) == ("invalid", None, "unfinished")


class TestRecord:
    def test_json_is_plain_and_complete(self) -> None:
        result = board(block_noise=0.002).measure(Measurement(settings_for("screening")))
        text = json.dumps(result.to_json(), allow_nan=False)
        back = json.loads(text)
        assert back["latency_ns"]["p50"] == result.latency.p50  # type: ignore[union-attr]
        assert [b["target"] for b in back["blocks"]] == [r.target for r in result.records]
        assert back["settings"]["block"]["min_count"] == 10
        assert back["canary_ns"] == list(result.canary_ns)

    def test_the_samples_give_the_summary_again(self) -> None:
        result = board(block_noise=0.01, seed=3).measure(Measurement(settings_for("screening")))
        table = sample_table(result.records)
        assert len({len(column) for column in table.values()}) == 1
        own = (table["target"] == CANDIDATE) & (table["kind"] == "block")
        assert result.latency is not None
        assert own.sum() == result.latency.n
        medians = {b: np.median(table["sample_ns"][table["block"] == b]) for b in np.unique(table["block"])}
        canary = {b: m for b, m in medians.items() if table["target"][table["block"] == b][0] == CANARY}
        canary = {b: m for b, m in canary.items() if table["kind"][table["block"] == b][0] == "block"}
        level = np.median(list(canary.values()))
        scaled = [
            table["sample_ns"][table["block"] == b] * level / np.mean([canary[b - 1], canary[b + 1]])
            for b in np.unique(table["block"][own])
        ]
        assert result.latency.p50 == pytest.approx(np.median(np.concatenate(scaled)))
        assert result.latency.minimum_block_median == min(medians[b] for b in np.unique(table["block"][own]))

    def test_empty_table_has_its_columns(self) -> None:
        assert sample_table([])["sample_ns"].dtype == np.int64


class TestSettings:
    @pytest.mark.parametrize("changes", [{"min_blocks": 2}, {"max_blocks": 2}])
    def test_refuses_too_few_blocks(self, changes: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="at least 3"):
            settings_for("quick", **changes)

    def test_refuses_unknown_profiles_and_fields(self) -> None:
        with pytest.raises(ValueError, match="quick, screening, final"):
            settings_for("slow")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            settings_for("quick", speed=1)
        with pytest.raises(ValueError, match="positive"):
            settings_for("quick", scale=0.0)

    def test_scale_stretches_durations(self) -> None:
        whole, half = settings_for("final"), settings_for("final", scale=0.5)
        assert half.block.min_ns * 2 == whole.block.min_ns
        assert half.warmup_min_ns * 2 == whole.warmup_min_ns
        assert half.block.min_count == whole.block.min_count


SAMPLES = st.lists(st.integers(1, 10**12), min_size=1, max_size=12)
STATES = st.builds(
    BoardState,
    boot_id=st.just("b"),
    temperature_c=st.none() | st.floats(-20, 120),
    frequency_khz=st.none() | st.integers(0, 10**7),
    throttled=st.sampled_from([None, False, False, False, True]),
)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    profile=st.sampled_from(["quick", "screening", "final"]),
    noise=st.sampled_from(["dedicated", "shared"]),
    canary=st.booleans(),
    exclusive=st.booleans(),
)
def test_ends_and_never_raises_on_any_positive_samples(
    data: st.DataObject, profile: str, noise: str, canary: bool, exclusive: bool
) -> None:
    made: MeasurementSettings = settings_for(
        profile,  # type: ignore[arg-type]
        noise=noise,  # type: ignore[arg-type]
        canary=canary,
        exclusive=exclusive,
        cool_s=0.0,
        futility_ns=1e7,
        warmup_cap_ns=10**9,
    )
    pool = data.draw(st.lists(SAMPLES, min_size=1, max_size=4))
    states = data.draw(st.lists(STATES, min_size=1, max_size=3))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    m = Measurement(made)
    for _ in range(20_000):
        step = m.next()
        if step is None:
            break
        state = states[int(rng.integers(len(states)))]
        if isinstance(step, Cool):
            m.cooled(step, state)
            continue
        samples = np.array(pool[int(rng.integers(len(pool)))], dtype=np.int64) * 10**6
        m.tell(step, Block("b", samples, None, state, state))
    assert m.next() is None
    result = m.result()
    json.dumps(result.to_json(), allow_nan=False)
    assert (result.latency is None) == (result.verdict == "invalid")
    if result.latency is not None:
        low, high = result.latency.ci95
        assert 0 <= low <= result.latency.p50 <= high < math.inf
