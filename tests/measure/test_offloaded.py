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


def test_a_steady_difference_of_two_processes_is_none() -> None:
    # Seen with QNN: a model with a free dimension that ran wholly on the CPU, 39.0 against 38.8 microseconds.
    ours, cpu = [39.0, 39.01, 39.02, 39.03, 39.04], [38.8, 38.81, 38.82, 38.83, 38.84]
    assert not compare(OUT, OUT, ours, cpu, 0.05).distinguishable
    assert not compare(OUT, OUT, cpu, ours, 0.05).distinguishable
    assert compare(OUT, OUT, [38.8 * 1.11] * 5, [38.8] * 5, 0.05).distinguishable


def test_other_outputs_are_suspect_beyond_the_tolerance() -> None:
    near = {"y": OUT["y"] + np.float32(0.19)}  # of a largest magnitude of 4: 4.75 %
    far = {"y": OUT["y"] + np.float32(0.25)}
    assert compare(near, OUT, FAST, SLOW, 0.05).problems == ()
    assert "something else" in compare(far, OUT, FAST, SLOW, 0.05).problems[0]
    assert "something else" in compare({"y": OUT["y"] * np.nan}, OUT, FAST, SLOW, 0.05).problems[0]


def test_the_chance_of_telling_equals_apart_is_the_stated_one() -> None:
    assert round(2 / math.comb(2 * BLOCKS, BLOCKS), 3) == 0.008
