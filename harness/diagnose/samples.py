"""Samples that collapse while the others are fine, and classes that suffer more than others. Pure."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harness.audit.finding import Finding
from harness.diagnose.accuracy import CLIP_SHARE, cause_and_remedy, layer_losses, worst_layers
from harness.diagnose.changes import first_that_changes, leave_in_float, sixteen_bits, whole_range
from harness.diagnose.facts import AccuracyFacts, Classes, Output

FEW = 0.05
"""Of the samples: what may be called single cases."""
MOST_OF_THE_NOISE = 0.5
COLLAPSED_DB = 10.0
FINE_DB = 20.0
ENOUGH_SAMPLES = 16
SIGNIFICANCE = 0.05
"""Of a class's losses over its wins being chance, times the number of classes (Bonferroni)."""
CLASS_DROP = 0.1


def sample_findings(facts: AccuracyFacts) -> list[Finding]:
    findings = [made for output in facts.outputs if (made := _bad_cases(facts, output)) is not None]
    if facts.classes is not None:
        findings += _classes(facts, facts.classes)
    return findings


def worst_samples(output: Output, most: int = 8) -> list[tuple[int, float]]:
    """(row, SNR in dB), the most noise first."""
    order = np.argsort(-output.noise, kind="stable")[:most]
    return [(int(row), float(output.sample_snr_db[row])) for row in order if output.noise[row] > 0.0]


def collapsed(output: Output) -> npt.NDArray[np.intp]:
    """Rows of the few samples that hold most of the noise and are lost, while the median sample is fine; else none."""
    count = len(output.noise)
    none = np.zeros(0, np.intp)
    if count < ENOUGH_SAMPLES or float(np.median(output.sample_snr_db)) < FINE_DB:
        return none
    few = max(1, math.floor(FEW * count))
    order = np.argsort(-output.noise, kind="stable")[:few]
    lost = order[output.sample_snr_db[order] < COLLAPSED_DB]
    total = float(output.noise.sum())
    if not lost.size or float(output.noise[lost].sum()) < MOST_OF_THE_NOISE * total:
        return none
    return np.asarray(lost, np.intp)


def _bad_cases(facts: AccuracyFacts, output: Output) -> Finding | None:
    lost = collapsed(output)
    if not lost.size:
        return None
    share = float(output.noise[lost].sum() / output.noise.sum())
    clipped = _clipped_there(facts, lost)
    evidence = {
        "samples": lost.tolist(),
        "snr_db": [float(output.sample_snr_db[row]) for row in lost],
        "median_snr_db": float(np.median(output.sample_snr_db)),
        "share_of_noise": share,
        "clipped_share_there": {tensor: there for tensor, there, _ in clipped},
        "clipped_share_elsewhere": {tensor: elsewhere for tensor, _, elsewhere in clipped},
    }
    why = "look at these samples"
    changes = first_that_changes(sixteen_bits(facts.recipe))
    if clipped:
        tensor, there, elsewhere = clipped[0]
        why = (
            f"{there:.1%} of activation {tensor!r} is cut off in them, {elsewhere:.1%} in the others: their like is "
            "missing in the calibration set, or its percentile cuts it off; add some with --calib"
        )
        maker = facts.makers.get(tensor)
        nodes = [maker.node] if maker is not None else []
        changes = first_that_changes(whole_range(facts.recipe), leave_in_float(facts.recipe, nodes))
    return Finding(
        code="bad_cases",
        severity="warning",
        what=f"{lost.size} of {len(output.noise)} samples collapse in output {output.name!r} (below {COLLAPSED_DB:g} "
        f"dB, {share:.0%} of all noise), the median one has {evidence['median_snr_db']:.1f} dB",
        where=tuple(f"sample {row}" for row in lost[:8]),
        evidence=evidence,
        advice=why,
        changes=changes,
    )


def _clipped_there(facts: AccuracyFacts, lost: npt.NDArray[np.intp]) -> list[tuple[str, float, float]]:
    """(tensor, share cut off in those samples, in the others) where clipping is what loses them, first layer first."""
    there = np.isin(facts.rows // facts.batch, lost // facts.batch)
    if not there.any() or there.all():
        return []
    found = []
    for layer in layer_losses(facts):
        name, loss = layer.layer.output, layer.loss
        noise = float(loss.noise[there].sum())
        if noise > 0.0 and float(loss.clip_noise[there].sum()) >= CLIP_SHARE * noise:
            mean_there, mean_else = float(loss.clipped[there].mean()), float(loss.clipped[~there].mean())
            if mean_there > 2.0 * mean_else:
                found.append((name, mean_there, mean_else))
    return found[:4]


def _classes(facts: AccuracyFacts, classes: Classes) -> list[Finding]:
    right, kept = classes.expected == classes.labels, classes.got == classes.labels
    overall = float(right.mean() - kept.mean())
    known = np.unique(classes.labels)
    suffering = []
    for label in known:
        rows = classes.labels == label
        lost, won = int(np.sum(right & ~kept & rows)), int(np.sum(~right & kept & rows))
        drop = (lost - won) / int(rows.sum())
        chance = sign_test(lost, won) * len(known)
        if drop >= CLASS_DROP and drop >= 2.0 * overall and chance < SIGNIFICANCE:
            taken = classes.got[right & ~kept & rows]
            values, counts = np.unique(taken, return_counts=True)
            suffering.append(
                {
                    "class": int(label),
                    "samples": int(rows.sum()),
                    "float_right": int(np.sum(right & rows)),
                    "quantized_right": int(np.sum(kept & rows)),
                    "mostly_taken_for": int(values[counts.argmax()]),
                    "chance": chance,
                }
            )
    if not suffering:
        return []
    named = ", ".join(
        f"{row['class']} ({row['float_right']} -> {row['quantized_right']} of {row['samples']} right, taken for "
        f"{row['mostly_taken_for']})"
        for row in suffering[:4]
    )
    heads = [output.maker for output in facts.outputs if output.maker]
    layers = worst_layers(facts)
    remedy = cause_and_remedy(facts, layers[0])[1] if layers else ()
    return [
        Finding(
            code="classes_suffer",
            severity="warning",
            what=f"{len(suffering)} of {len(known)} classes lose more than the others: {named}",
            where=tuple(f"class {row['class']}" for row in suffering),
            evidence={"classes": suffering, "overall_drop": overall},
            advice="calibrate on more samples of these classes (--calib); their scores may be too small for the step "
            "of the last layers",
            changes=first_that_changes(remedy, leave_in_float(facts.recipe, heads), sixteen_bits(facts.recipe)),
        )
    ]


def sign_test(lost: int, won: int) -> float:
    """Probability of at least ``lost`` losses among ``lost + won`` changes if each is as likely a win (one-sided)."""
    changes = lost + won
    return sum(math.comb(changes, k) for k in range(lost, changes + 1)) / 2.0**changes
