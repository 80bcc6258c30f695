"""Which mixture is worth a trial."""

from __future__ import annotations

import pytest

from harness.recipes.recipe import Recipe
from harness.sensitivity.candidates import MixedCandidate, best_of
from harness.sensitivity.result import Effect, Sensitivity

RECIPE = Recipe()


def effect(snr_db: float | None, value: float | None = None) -> Effect:
    return Effect(snr_db, {} if value is None else {"top1": value})


def found(quantized: Effect, float32: Effect, *, higher: bool = True) -> Sensitivity:
    better = dict.fromkeys(float32.metrics, higher)
    return Sensitivity(RECIPE, 10, float32, quantized, (), (), better, ())


def best(analysis: Sensitivity, *effects: Effect) -> int | None:
    candidates = tuple(MixedCandidate("float", 2**i, RECIPE, e) for i, e in enumerate(effects))
    chosen = best_of(candidates, analysis, "float")
    return None if chosen is None else chosen.groups


def test_the_fewest_that_halve_the_noise() -> None:
    assert best(found(effect(10), effect(200)), effect(12), effect(13), effect(30)) == 2


def test_what_lowers_it_most_where_none_halves_it() -> None:
    assert best(found(effect(10), effect(200)), effect(11.5), effect(12.5), effect(12.5)) == 2


@pytest.mark.parametrize("ratios", [(), (10.5, 9.0), (None, 10.2)])
def test_none_that_changes_little(ratios: tuple[float | None, ...]) -> None:
    assert best(found(effect(10), effect(200)), *(effect(r) for r in ratios)) is None


def test_a_loss_that_is_brought_back_counts_before_noise() -> None:
    analysis = found(effect(7, 0.75), effect(200, 0.85))
    assert best(analysis, effect(11, 0.81), effect(14, 0.835), effect(15, 0.8401), effect(20, 0.86)) == 4
    # Of an error, less is better.
    errors = found(effect(7, 2.0), effect(200, 1.0), higher=False)
    assert best(errors, effect(11, 1.5), effect(14, 1.05), effect(15, 1.0)) == 2


def test_nothing_lost_leaves_it_to_the_noise() -> None:
    assert best(found(effect(20, 0.9), effect(200, 0.9)), effect(22, 0.91), effect(24, 0.89)) == 2


def test_a_model_that_is_not_finite_is_helped_by_any_that_is() -> None:
    assert best(found(effect(None), effect(200)), effect(None), effect(5.0)) == 2
