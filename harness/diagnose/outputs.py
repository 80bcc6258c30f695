"""Scores that moved, and signals too small for the step they are quantized with. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.audit.finding import Finding
from harness.diagnose.changes import (
    Changes,
    corrected_biases,
    first_that_changes,
    leave_in_float,
    sixteen_bits,
)
from harness.diagnose.compare import FINE_DB, LOST_DB, SLICES, Slices
from harness.diagnose.facts import AccuracyFacts, Output

SHIFT = 0.02
"""Mean difference over the range of the scores, from which thresholds have to be set anew."""
STEADY = 0.5
"""Mean over root mean square of the differences: half of what is lost is a shift, not noise."""
THRESHOLD = 0.5
ENOUGH_SAMPLES = 16


def output_findings(facts: AccuracyFacts) -> list[Finding]:
    findings = []
    for output in facts.outputs:
        shifted, lost = _shift(facts, output), _small_signals(facts, output)
        findings += [found for found in (shifted, lost) if found is not None]
    return findings


def _shift(facts: AccuracyFacts, output: Output) -> Finding | None:
    expected, got = output.expected, output.got
    if output.non_finite or expected.size == 0 or expected.min() < -1e-6 or expected.max() > 1.0 + 1e-6:
        return None
    spread = float(expected.max() - expected.min())
    difference = got - expected
    shift, rms = float(difference.mean()), float(np.sqrt(np.square(difference).mean()))
    if spread <= 0.0 or abs(shift) < SHIFT * spread or abs(shift) < STEADY * rms:
        return None
    flipped = int(np.count_nonzero((expected >= THRESHOLD) != (got >= THRESHOLD)))
    return Finding(
        code="threshold_shift",
        severity="warning",
        what=f"scores of output {output.name!r} are {abs(shift):.3f} {'lower' if shift < 0 else 'higher'} in the mean "
        f"({abs(shift) / spread:.1%} of their range); {flipped} of {expected.size} cross {THRESHOLD:g}",
        where=(output.name, output.maker),
        evidence={
            "mean_shift": shift,
            "share_of_range": shift / spread,
            "rms_difference": rms,
            "crossed_threshold": flipped,
            "threshold": THRESHOLD,
            "scores": int(expected.size),
        },
        advice="take the mean error off the biases, or leave what makes the scores in float; else set the threshold "
        "anew on the quantized model",
        changes=first_that_changes(corrected_biases(facts.recipe), leave_in_float(facts.recipe, _head(facts, output))),
    )


def _head(facts: AccuracyFacts, output: Output) -> list[str]:
    """The node that makes the output, and the one before it."""
    nodes = [output.maker] if output.maker else []
    last = next((layer for layer in facts.layers if layer.node == output.maker), None)
    if last is not None:
        nodes += [facts.makers[name].node for name in last.inputs if name in facts.makers]
    return nodes


def _small_signals(facts: AccuracyFacts, output: Output) -> Finding | None:
    if output.snr_db < FINE_DB:
        return None  # Everything is lost, not only what is small.
    return _small_places(facts, output) or _small_samples(facts, output)


def slices_of(output: Output) -> dict[int, Slices]:
    """By axis of a sample (from 1), those that are not too long."""
    made: dict[int, Slices] = {}
    axes = [axis for axis, size in enumerate(output.shape) if 1 < size <= SLICES]
    for expected, difference in output.differences():
        values, noise = expected.reshape(output.shape), np.square(difference).reshape(output.shape)
        for axis in axes:
            others = tuple(i for i in range(len(output.shape)) if i != axis)
            parts = (np.square(values).sum(axis=others), noise.sum(axis=others), np.abs(values).max(axis=others))
            known = made.get(axis + 1)
            made[axis + 1] = Slices(*parts) if known is None else known.with_more(*parts)
    return made


def _small_places(facts: AccuracyFacts, output: Output) -> Finding | None:
    found = [(axis, slices, slices.lost) for axis, slices in slices_of(output).items()]
    found = [item for item in found if item[2].size]
    if not found:
        return None
    axis, slices, lost = min(found, key=lambda item: len(item[1].peak))
    culprits = {name: facts.losses[name] for name in facts.losing_places}
    evidence: dict[str, object] = {
        "axis": axis,
        "places": lost[:32].tolist(),
        "lost": int(lost.size),
        "of": len(slices.peak),
        "largest_of_lost": float(slices.peak[lost].max()),
        "largest_of_all": float(slices.peak.max()),
        "snr_db_of_lost": float(np.median(slices.snr_db[lost])),
        "snr_db": output.snr_db,
        "steps": {name: loss.grid.scale for name, loss in culprits.items() if loss.grid},
    }
    first = next(iter(culprits.items()), None)
    step = f"; activation {first[0]!r} has steps of {first[1].grid.scale:.4g}" if first and first[1].grid else ""
    return Finding(
        code="small_signals_lost",
        severity="warning",
        what=f"{lost.size} of {len(slices.peak)} places on axis {axis} of output {output.name!r} reach only "
        f"{evidence['largest_of_lost']:.3g} where others reach {evidence['largest_of_all']:.3g}, and are lost "
        f"({evidence['snr_db_of_lost']:.1f} dB){step}",
        where=(output.name, *list(culprits)[:8]),
        evidence=evidence,
        advice="what is small must not share a range with what is large (scores beside coordinates): leave the "
        "operator that joins them, and what follows, in float, or give it 16 bits",
        changes=_keep_precise(facts, output, list(culprits)),
    )


def _keep_precise(facts: AccuracyFacts, output: Output, tensors: list[str]) -> Changes:
    nodes = [facts.makers[name].node for name in tensors if name in facts.makers] or [output.maker]
    return first_that_changes(leave_in_float(facts.recipe, nodes), sixteen_bits(facts.recipe))


def small_samples(output: Output) -> tuple[npt.NDArray[np.intp], float, float] | None:
    """(rows of the quarter of samples with the least signal, their median SNR, that of the quarter with the most)
    where only the small ones are lost."""
    alive = np.flatnonzero(output.signal > 0.0)
    if len(alive) < ENOUGH_SAMPLES:
        return None
    order = alive[np.argsort(output.signal[alive], kind="stable")]
    quarter = len(order) // 4
    small, large = order[:quarter], order[-quarter:]
    low, high = float(np.median(output.sample_snr_db[small])), float(np.median(output.sample_snr_db[large]))
    return (np.asarray(small, np.intp), low, high) if low < LOST_DB and high >= FINE_DB else None


def _small_samples(facts: AccuracyFacts, output: Output) -> Finding | None:
    found = small_samples(output)
    if found is None:
        return None
    small, low, high = found
    steps = {name: loss.grid.scale for name, loss in facts.losses.items() if loss.grid is not None}
    return Finding(
        code="small_signals_lost",
        severity="warning",
        what=f"samples of small signal are lost in output {output.name!r}: the quarter with the least keeps {low:.1f} "
        f"dB in the median, the quarter with the most {high:.1f} dB",
        where=(output.name, *(f"sample {row}" for row in small[:8])),
        evidence={
            "samples": small[:32].tolist(),
            "snr_db_of_small": low,
            "snr_db_of_large": high,
            "rms_of_small": float(np.sqrt(np.median(output.signal[small]) / output.expected.shape[1])),
            "rms_of_large": float(np.sqrt(np.median(np.sort(output.signal)[-len(small) :]) / output.expected.shape[1])),
            "steps": steps,
        },
        advice="the step is as large as these signals (small objects, quiet sounds): 16-bit activations, or a "
        "calibration that cuts outliers off so that the step gets smaller",
        changes=first_that_changes(sixteen_bits(facts.recipe), leave_in_float(facts.recipe, _head(facts, output))),
    )
