"""Noise is seeded, has the shape it says, and depends on what is measured only."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from emulated_boards import make_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agents.emulated.machine import Machine
from device_agents.emulated.noise import Contexts, factors
from device_agents.emulated.spec import Noise


def draw(noise: Noise, count: int, *key: object) -> np.ndarray:
    return np.array(list(itertools.islice(factors(noise, *key), count)))


def test_the_same_key_gives_the_same_factors_and_another_key_others() -> None:
    noise = Noise()
    np.testing.assert_array_equal(draw(noise, 5000, 1, "a", 0, 0), draw(noise, 5000, 1, "a", 0, 0))
    for other in ((2, "a", 0, 0), (1, "b", 0, 0), (1, "a", 1, 0), (1, "a", 0, 1)):
        assert not np.array_equal(draw(noise, 10, 1, "a", 0, 0), draw(noise, 10, *other))


@settings(max_examples=15, deadline=None)
@given(st.floats(0.001, 0.2), st.integers(0, 2**40))
def test_logarithms_are_normal_with_the_stated_deviation(sigma: float, seed: int) -> None:
    noise = Noise(sigma=sigma, block_sigma=0.0, spike_probability=0.0)
    logs = np.log(draw(noise, 20_000, seed))
    # Five standard errors of a mean and of a standard deviation of 20,000 normal values.
    assert abs(logs.mean()) < 5 * sigma / np.sqrt(20_000)
    assert logs.std() == pytest.approx(sigma, rel=5 / np.sqrt(2 * 20_000))


def test_blocks_share_a_factor_of_the_stated_deviation() -> None:
    noise = Noise(sigma=0.0, block_sigma=0.05, spike_probability=0.0)
    blocks = [draw(noise, 10, seed) for seed in range(4000)]
    assert all(np.ptp(block) == 0 for block in blocks)
    logs = np.log([block[0] for block in blocks])
    assert logs.std() == pytest.approx(0.05, rel=5 / np.sqrt(2 * 4000))


def test_spikes_come_as_often_and_as_high_as_stated() -> None:
    noise = Noise(sigma=0.0, block_sigma=0.0, spike_probability=0.1, spike_factor=3.0)
    values = draw(noise, 20_000, 0)
    assert set(values) == {1.0, 3.0}
    assert (values == 3.0).mean() == pytest.approx(0.1, abs=5 * np.sqrt(0.09 / 20_000))


def test_no_noise_is_one() -> None:
    assert set(draw(Noise(kind="none"), 100, 0)) == {1.0}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine.switch_on(tmp_path / "m", make_spec(), "x", None)


def test_sessions_of_a_model_are_counted_apart_from_others(machine: Machine) -> None:
    contexts = Contexts(machine, "life")
    assert [contexts.load(m).ordinal for m in ("x", "canary", "x", "canary", "x")] == [0, 0, 1, 1, 2]


def test_a_context_is_the_same_after_others_and_alone_in_a_new_runner(machine: Machine) -> None:
    after_others, alone = Contexts(machine, "long"), Contexts(machine, "short")
    for model in ("w", "canary", "w", "canary", "x", "canary", "x"):
        after_others.load(model)
    for contexts in (after_others, alone):
        contexts.begin()
    for model, ordinal in (("canary", 0), ("y", 0), ("canary", 1), ("y", 1)):
        assert after_others.load(model).ordinal == alone.load(model).ordinal == ordinal


def test_a_session_that_stays_loaded_counts_as_new_in_a_new_context(machine: Machine) -> None:
    contexts = Contexts(machine, "life")
    contexts.load("canary")
    kept = contexts.load("canary")
    assert (kept.ordinal, contexts.renew("canary", kept)) == (1, kept)
    contexts.begin()
    renewed = contexts.renew("canary", kept)
    assert (renewed.context, renewed.ordinal) == (kept.context + 1, 0)
    assert contexts.renew("canary", renewed) == renewed
    assert contexts.load("canary").ordinal == 1


def test_lives_of_runners_are_apart(machine: Machine) -> None:
    Contexts(machine, "one").load("x")
    assert Contexts(machine, "two").load("x").ordinal == 0
