"""The top-K filter and what it is made of."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_values import BOARD, candidate

from harness.errors import ConfigError
from harness.results import Candidate, LimitStanding, Outcome
from harness.search.filters import balanced_filter, score_filter
from harness.search.futility import futility_threshold_ns
from harness.search.pareto import dominates, fronts, greedy_hypervolume, hypervolume, normalised
from harness.search.ranking import Ranked, rank_on_board
from harness.search.topk import select_top_k


def trials(candidates: Sequence[Candidate], k: int = 3, **options: object) -> tuple[int, ...]:
    return select_top_k(candidates, BOARD, k, **{"metric": "top1", **options}).trials  # type: ignore[arg-type]


class TestPareto:
    def test_closed_forms_of_hypervolume(self) -> None:
        assert hypervolume([(0.25,)], (1.0,)) == 0.75
        assert hypervolume([(0.0, 0.5), (0.5, 0.0)], (1.0, 1.0)) == pytest.approx(0.75)
        assert hypervolume([(0.0, 0.0, 0.5), (0.5, 0.5, 0.0)], (1.0, 1.0, 1.0)) == pytest.approx(0.5 + 0.125)
        assert hypervolume([(1.0, 0.0), (2.0, -1.0)], (1.0, 1.0)) == 0.0
        assert hypervolume([], (1.0, 1.0)) == 0.0

    @given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=6), st.integers(2, 3))
    def test_hypervolume_by_counting_cells(self, points: list[tuple[int, ...]], dimensions: int) -> None:
        cut = [tuple(float(x) for x in p[:dimensions]) for p in points]
        cells = itertools.product(range(7), repeat=dimensions)
        covered = sum(any(all(x <= c for x, c in zip(p, cell, strict=True)) for p in cut) for cell in cells)
        assert hypervolume(cut, (7.0,) * dimensions) == covered

    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
    def test_fronts_peel_all_points(self, points: list[tuple[int, int]]) -> None:
        cut = [(float(a), float(b)) for a, b in points]
        layers = list(fronts(cut))
        assert sorted(i for layer in layers for i in layer) == list(range(len(cut)))
        for upper, layer in zip([None, *layers], layers, strict=False):
            assert not any(dominates(cut[i], cut[j]) for i in layer for j in layer)
            if upper is not None:
                assert all(any(dominates(cut[i], cut[j]) for i in upper) for j in layer)

    @given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=7), st.integers(1, 3))
    def test_greedy_volume_is_near_the_best(self, points: list[tuple[float, float]], k: int) -> None:
        chosen = greedy_hypervolume(points, k)
        assert len(chosen) == len(set(chosen)) == min(k, len(points))
        best = max(hypervolume(c, (1.1, 1.1)) for c in itertools.combinations(points, min(k, len(points))))
        assert hypervolume([points[i] for i in chosen], (1.1, 1.1)) >= (1 - 1 / math.e) * best - 1e-12

    def test_normalised(self) -> None:
        assert normalised([(1.0, 5.0), (3.0, 5.0), (2.0, 5.0)]) == [(0.0, 0.0), (1.0, 0.0), (0.5, 0.0)]
        assert normalised([(1.0, 5.0), (3.0, 6.0)], (1.0, 4.0)) == [(0.0, 0.0), (1.0, 0.25)]


class TestConstraintsFirst:
    def test_a_broken_constraint_is_out_however_fast(self) -> None:
        found = select_top_k(
            [candidate(0, 9e6, 0.9), candidate(1, 1e3, 0.99, constraints={"accuracy": "broken"})],
            BOARD,
            3,
            metric="top1",
        )
        assert found.trials == (0,)
        assert "not accurate enough" in found.others[1]
        assert found.feasible == 1

    @pytest.mark.parametrize("name", ["latency", "accuracy", "size", "memory", "offload"])
    def test_every_constraint_has_its_sentence(self, name: str) -> None:
        found = select_top_k([candidate(4, constraints={name: "broken"})], BOARD, 1, metric="top1")
        assert found.picks == ()
        assert found.others[4]

    def test_undecided_ranks_after_met_and_is_never_dropped(self) -> None:
        undecided = candidate(1, 1e3, 0.99, constraints={"accuracy": "undecided", "latency": "met"})
        met = candidate(2, 9e6, 0.8, constraints={"accuracy": "met", "latency": "met"})
        found = select_top_k([undecided, met], BOARD, 2, metric="top1")
        assert found.trials == (2, 1)
        assert "undecided on accuracy" in found.reasons[1]
        assert trials([undecided, met], 1) == (2,)
        assert trials([undecided], 1) == (1,)

    def test_suspect_ranks_after_valid(self) -> None:
        found = select_top_k(
            [candidate(1, 1e3, 0.99, verdict="suspect"), candidate(2, 9e6, 0.8)], BOARD, 2, metric="top1"
        )
        assert found.trials == (2, 1)
        assert "suspect (drift: it drifted)" in found.reasons[1]

    @pytest.mark.parametrize(
        "bad",
        [
            candidate(1, None),
            candidate(1, math.nan),
            candidate(1, -math.inf),
            candidate(1, 0.0),
            candidate(1, -5.0),
            candidate(1, 1.0, None),
            candidate(1, 1.0, math.nan),
            candidate(1, 1.0, math.inf),
            candidate(1, 1.0, width=math.nan),
            candidate(1, 1.0, verdict="invalid"),
            candidate(1, 1.0, board="other"),
        ],
    )
    def test_what_is_missing_or_invalid_cannot_win(self, bad: Candidate) -> None:
        found = select_top_k([bad, candidate(2, 9e9, 0.1)], BOARD, 2, metric="top1")
        assert found.trials == (2,)
        assert found.others[1]

    def test_accuracy_may_be_missing_where_nothing_ranks_by_it(self) -> None:
        assert trials([candidate(1, 1e6, None), candidate(2, 2e6, None)], metric=None) == (1, 2)

    def test_the_same_artifact_is_one_candidate(self) -> None:
        found = select_top_k(
            [candidate(5, 1e6, identity="x"), candidate(3, 1.1e6, identity="x")], BOARD, 2, metric="top1"
        )
        assert found.trials == (3,)
        assert found.others[5] == "the same artifact as 0003"


def limited(
    trial: int, latency_ns: float, difference: float, half: float, outcome: Outcome, **options: Any
) -> Candidate:
    """A candidate of 90 % + ``difference``, known to ``half``, under the limit of -1pp."""
    is_float = options.get("scheme") == "float32"
    estimate: Outcome = "met" if difference >= -0.01 else "broken"
    return candidate(
        trial,
        latency_ns,
        0.9 + difference,
        difference=None if is_float else difference,
        ci95=(difference - half, difference + half),
        constraints={"accuracy": outcome},
        limit=LimitStanding("-1pp", True, 0.01, estimate, 2300 if outcome == "undecided" else None),
        **options,
    )


class TestFloatUnderALimit:
    """That float differs from itself by nothing is no finding about the others."""

    FLOAT = limited(0, 2e6, 0.0, 0.0, "met", scheme="float32")
    LIKELY = limited(1, 1e6, -0.002, 0.011, "undecided")
    UNLIKELY = limited(2, 0.9e6, -0.012, 0.011, "undecided")

    def test_few_samples_do_not_speak_for_float(self) -> None:
        found = select_top_k([self.FLOAT, self.LIKELY, self.UNLIKELY], BOARD, 3, metric="top1")
        assert found.trials == (1, 0, 2)
        assert "about 2,300 samples like these 1,000 would tell whether it keeps -1pp" in found.reasons[1]

    def test_it_stays_before_what_the_estimate_speaks_against(self) -> None:
        assert trials([self.FLOAT, self.UNLIKELY]) == (0, 2)

    def test_it_wins_where_it_is_the_fastest(self) -> None:
        assert trials([limited(0, 0.5e6, 0.0, 0.0, "met", scheme="float32"), self.LIKELY]) == (0, 1)

    def test_a_certain_one_stays_before_the_undecided(self) -> None:
        certain = limited(3, 1.5e6, -0.001, 0.005, "met")
        assert trials([self.FLOAT, self.LIKELY, certain])[0] == 3
        assert trials([self.FLOAT, self.LIKELY, certain])[-1] == 1

    def test_a_limit_on_the_value_is_a_finding(self) -> None:
        absolute = LimitStanding("90%", False, 0.0, "met")
        base = candidate(0, 2e6, 0.92, scheme="float32", constraints={"accuracy": "met"}, limit=absolute)
        other = candidate(1, 1e6, 0.91, constraints={"accuracy": "undecided"}, limit=absolute)
        assert trials([base, other]) == (0, 1)

    def test_so_is_a_limit_on_latency(self) -> None:
        late = replace(
            self.LIKELY,
            boards={BOARD: replace(self.LIKELY.boards[BOARD], constraints={"accuracy": "met", "latency": "undecided"})},
        )
        assert trials([self.FLOAT, late]) == (0, 1)

    def test_suspect_ones_stay_behind(self) -> None:
        assert trials([self.FLOAT, limited(1, 1e6, -0.002, 0.011, "undecided", verdict="suspect")]) == (0, 1)


def test_a_difference_within_the_limit_weighs_less_than_time() -> None:
    rows = [(1, 1e6, -0.001), (2, 1.2e6, 0.0), (3, 4e6, -0.001)]
    assert trials([limited(*row, 0.004, "met") for row in rows], 1) == (1,)
    # Stretched to 0..1, the tenth of a point would weigh as much as the fourfold time between the ends.
    assert trials([candidate(n, time, 0.9 + difference) for n, time, difference in rows], 1) == (2,)
    # What exceeds the limit counts as before.
    assert trials([limited(n, time, 100 * d, 0.004, "met") for n, time, d in rows], 1) == (2,)


class TestObjectives:
    FRONT = (candidate(1, 1e6, 0.80), candidate(2, 2e6, 0.89), candidate(3, 8e6, 0.90), candidate(4, 2.1e6, 0.85))

    def test_latency(self) -> None:
        assert trials(self.FRONT, 2, objective="latency") == (1, 2)

    def test_accuracy(self) -> None:
        assert trials(self.FRONT, 2, objective="accuracy") == (3, 2)

    def test_pareto_takes_the_knee_first(self) -> None:
        assert trials(self.FRONT, 1) == (2,)
        assert set(trials(self.FRONT, 3)) == {1, 2, 3}

    def test_dominated_ones_fill_up_last_and_say_so(self) -> None:
        found = select_top_k(self.FRONT, BOARD, 4, metric="top1")
        assert found.trials[-1] == 4
        assert "next after the Pareto set (0002 is better" in found.reasons[4]

    def test_lower_may_be_better(self) -> None:
        errors = [candidate(1, 1e6, 0.5, higher_is_better=False), candidate(2, 2e6, 0.1, higher_is_better=False)]
        assert trials(errors, 1, objective="accuracy") == (2,)

    def test_float_may_win_and_others_are_compared_with_it(self) -> None:
        found = select_top_k(
            [
                candidate(0, 1e6, 0.9, scheme="float32"),
                candidate(1, 4e6, 0.85),
                candidate(2, 0.5e6, 0.88, difference=-0.02),
            ],
            BOARD,
            3,
            objective="accuracy",
            metric="top1",
        )
        assert found.trials[0] == 0
        assert "2.00× faster than float, top1 −0.02" in found.reasons[2]
        assert "4.00× slower than float" in found.reasons[1]

    def test_close_latencies_are_called_so(self) -> None:
        found = select_top_k([candidate(1, 1e6, 0.9), candidate(2, 1.01e6, 0.9)], BOARD, 1, metric="top1")
        assert "intervals overlap" in found.others[2]

    def test_ties_go_to_the_earlier_trial(self) -> None:
        same = [candidate(i) for i in (7, 3, 5)]
        assert trials(same, 2) == (3, 5)
        assert trials(same, 2, filter_by="balanced") == (3, 7)  # 3 and 5 are the faster half, one of each half
        assert trials(same, 2, filter_by="score") == (3, 5)


class TestFilters:
    def ranked(self, *points: tuple[float, float]) -> list[Ranked]:
        found = [rank_on_board(candidate(i, x, y), BOARD, "top1") for i, (x, y) in enumerate(points)]
        assert all(isinstance(r, Ranked) for r in found)
        return found  # type: ignore[return-value]

    def test_balanced_is_espressifs_rule(self) -> None:
        # Faster half: 0, 1, 2; k = 3: one of it, two of the rest, by accuracy.
        items = self.ranked((1e6, 0.80), (2e6, 0.85), (3e6, 0.82), (4e6, 0.90), (5e6, 0.70), (6e6, 0.88))
        assert [r.trial for r in balanced_filter(items, 3)] == [3, 5, 1]
        assert [r.trial for r in balanced_filter(items, 1)] == [3]
        assert [r.trial for r in balanced_filter(items, 99)] == [3, 5, 1, 2, 0, 4]

    def test_balanced_fills_what_a_pool_lacks(self) -> None:
        items = self.ranked((1e6, 0.8), (2e6, 0.9), (3e6, 0.7))
        assert [r.trial for r in balanced_filter(items, 3)] == [1, 0, 2]

    def test_score_weighs(self) -> None:
        items = self.ranked((1e6, 0.1), (1e8, 0.9))
        assert [r.trial for r in score_filter(0.9)(items, 1)] == [0]
        assert [r.trial for r in score_filter(0.1)(items, 1)] == [1]
        with pytest.raises(ValueError, match="weight"):
            score_filter(1.5)

    def test_any_callable(self) -> None:
        def slowest(candidates: Sequence[Candidate], k: int) -> list[Candidate]:
            return sorted(candidates, key=lambda c: -c.boards[BOARD].latency_ns.p50)[:k]  # type: ignore[union-attr]

        pool = [candidate(1, 1e6), candidate(2, 3e6), candidate(3, None)]
        found = select_top_k(pool, BOARD, 1, metric="top1", filter_by=slowest)
        assert found.trials == (2,)
        assert "slowest" in found.reasons[2]
        assert trials(pool, 2, filter_by=lambda c, k: [1]) == (1,)

    @pytest.mark.parametrize("answer", [[3], [99], [1, 1], ["1"], [True], [1, 2, 4]], ids=str)
    def test_a_callable_cannot_pick_what_it_was_not_given(self, answer: list[object]) -> None:
        pool = [candidate(1), candidate(2, 2e6), candidate(3, None), candidate(4, 3e6)]
        with pytest.raises(ConfigError, match="filter"):
            select_top_k(pool, BOARD, 2, metric="top1", filter_by=lambda c, k: answer)

    def test_unknown_filter(self) -> None:
        with pytest.raises(ConfigError, match="pareto, balanced, score"):
            select_top_k([], BOARD, 1, filter_by="best")


class TestSelection:
    def test_nothing_to_pick_from(self) -> None:
        found = select_top_k([], BOARD, 3)
        assert (found.picks, dict(found.others), found.feasible) == ((), {}, 0)

    def test_k_below_one_and_trials_twice(self) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            select_top_k([], BOARD, 0)
        with pytest.raises(ValueError, match="twice"):
            select_top_k([candidate(1), candidate(1)], BOARD, 1)

    MAYBE = st.none() | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1e300]) | st.floats(1e3, 1e9)

    @settings(max_examples=200)
    @given(
        rows=st.lists(
            st.tuples(
                MAYBE,
                st.none() | st.sampled_from([math.nan, math.inf, -math.inf]) | st.floats(0, 1),
                st.sampled_from(["valid", "suspect", "invalid"]),
                st.sampled_from(["met", "undecided", "broken", "none"]),
                st.sampled_from(["a", "b", "c", "d", None]),
            ),
            max_size=10,
        ),
        k=st.integers(1, 5),
        objective=st.sampled_from(["latency", "accuracy", "pareto"]),
        filter_by=st.sampled_from(["pareto", "balanced", "score"]),
        shuffle=st.randoms(use_true_random=False),
    )
    def test_invariants(
        self, rows: list[tuple], k: int, objective: str, filter_by: str, shuffle: random.Random
    ) -> None:
        pool = [
            candidate(i, p50, value, verdict=verdict, constraints={"accuracy": outcome}, identity=identity)
            for i, (p50, value, verdict, outcome, identity) in enumerate(rows)
        ]
        options = {"metric": "top1", "objective": objective, "filter_by": filter_by}
        found = select_top_k(pool, BOARD, k, **options)  # type: ignore[arg-type]
        mixed = pool[:]
        shuffle.shuffle(mixed)
        assert select_top_k(mixed, BOARD, k, **options) == found  # type: ignore[arg-type]
        assert len(found.picks) == min(k, found.feasible)
        assert set(found.reasons) == set(range(len(pool)))
        assert all(found.reasons.values())
        assert not set(found.trials) & set(found.others)
        tiers = []
        for trial in found.trials:
            p50, value, verdict, outcome, _ = rows[trial]
            assert p50 is not None
            assert 0 < p50 < 1e101
            assert value is not None
            assert math.isfinite(value)
            assert verdict != "invalid"
            assert outcome != "broken"
            tiers.append((verdict == "suspect", outcome == "undecided"))
        assert tiers == sorted(tiers)

    def test_a_growing_set_keeps_working(self) -> None:
        rng = np.random.default_rng(0)
        pool = [
            candidate(i, float(x), float(y)) for i, (x, y) in enumerate(rng.uniform((1e5, 0.5), (1e7, 1.0), (60, 2)))
        ]
        for n in range(1, 61):
            picks = trials(pool[:n], 3, objective="latency")
            points = [(c.boards[BOARD].latency_ns.p50, -c.boards[BOARD].metrics["top1"].value) for c in pool[:n]]  # type: ignore[union-attr]
            front = [i for i in range(n) if not any(dominates(points[j], points[i]) for j in range(n))]
            assert picks[0] == min(range(n), key=lambda i: pool[i].boards[BOARD].latency_ns.p50)  # type: ignore[union-attr]
            assert set(picks[: len(front)]) <= set(front)


class TestFutility:
    POOL = (candidate(1, 1e6, 0.80), candidate(2, 2e6, 0.85), candidate(3, 3e6, 0.9), candidate(4, 1.5e6, 0.7))

    def test_is_the_kth_best_upper_end_on_the_front(self) -> None:
        found = futility_threshold_ns(self.POOL, BOARD, 2, objective="latency", metric="top1")
        assert found == pytest.approx(2e6 * 1.01)

    @pytest.mark.parametrize("objective", ["pareto", "accuracy"])
    def test_other_objectives_have_none_but_the_limit(self, objective: str) -> None:
        assert futility_threshold_ns(self.POOL, BOARD, 1, objective=objective, metric="top1") is None  # type: ignore[arg-type]
        limited = futility_threshold_ns(self.POOL, BOARD, 1, objective=objective, metric="top1", max_latency_ns=8e6)  # type: ignore[arg-type]
        assert limited == 8e6

    def test_too_few_sure_candidates_give_none(self) -> None:
        assert futility_threshold_ns(self.POOL, BOARD, 4, objective="latency", metric="top1") is None
        doubtful = [candidate(1, verdict="suspect"), candidate(2, constraints={"accuracy": "undecided"})]
        assert futility_threshold_ns(doubtful, BOARD, 1, objective="latency", metric="top1") is None

    @given(
        st.lists(st.tuples(st.floats(1e5, 1e7), st.floats(0, 1)), min_size=1, max_size=8),
        st.integers(1, 3),
        st.floats(1.0001, 5.0),
        st.floats(0, 1),
    )
    def test_a_slower_candidate_never_enters_whatever_its_accuracy(
        self, rows: list[tuple[float, float]], k: int, factor: float, accuracy: float
    ) -> None:
        pool = [candidate(i, x, y, width=0.0) for i, (x, y) in enumerate(rows)]
        threshold = futility_threshold_ns(pool, BOARD, k, objective="latency", metric="top1")
        if threshold is not None:
            late = candidate(99, threshold * factor, accuracy, width=0.0)
            assert 99 not in trials([*pool, late], k, objective="latency")
