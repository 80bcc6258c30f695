"""The claim of an accelerator against the CPU."""

from __future__ import annotations

import math

import numpy as np

from harness.measure.offloaded import BLOCKS, compare

OUT = {"y": np.array([[1.0, -4.0], [0.5, 2.0]], np.float32)}
FAST, SLOW = [1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.1, 2.2, 2.3, 2.4]


def test_another_latency_and_the_same_outputs_are_plausible() -> None:
    found = compare(OUT, OUT, FAST, SLOW, 0.05)
    assert found.problems == ()
    assert (found.latency_ns, found.cpu_latency_ns) == (1.2, 2.2)


def test_slower_than_the_cpu_is_a_time_of_its_own_too() -> None:
    assert compare(OUT, OUT, SLOW, FAST, 0.05).problems == ()


def test_the_cpu_s_latency_is_suspect() -> None:
    mixed = [1.35, 1.5, 1.6, 1.7, 1.8]
    found = compare(OUT, OUT, FAST, mixed, 0.05)
    assert not found.distinguishable
    assert len(found.problems) == 1
    assert "as long as on the CPU" in found.problems[0]


def test_other_outputs_are_suspect_beyond_the_tolerance() -> None:
    near = {"y": OUT["y"] + np.float32(0.19)}  # of a largest magnitude of 4: 4.75 %
    far = {"y": OUT["y"] + np.float32(0.25)}
    assert compare(near, OUT, FAST, SLOW, 0.05).problems == ()
    assert "something else" in compare(far, OUT, FAST, SLOW, 0.05).problems[0]
    assert "something else" in compare({"y": OUT["y"] * np.nan}, OUT, FAST, SLOW, 0.05).problems[0]


def test_the_chance_of_telling_equals_apart_is_the_stated_one() -> None:
    assert round(2 / math.comb(2 * BLOCKS, BLOCKS), 3) == 0.008
