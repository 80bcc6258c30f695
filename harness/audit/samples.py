"""What is wrong with a calibration set, before anything is calibrated. Pure: over the samples in memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.audit.finding import Finding
from harness.data.checks import FEW_CALIBRATION_SAMPLES, check_data
from harness.data.dataset import Dataset
from harness.errors import DataError
from harness.tensors import TensorSpec

ALIKE = 0.02
"""Distance of two samples over the root mean square distance in the set, under which they are near-duplicates: the
same picture compressed again, or the next frame of a video at rest. Samples drawn independently are near 1."""
ALIKE_SHARE = 0.25
"""Of samples with such a neighbour, from which the set says less than its size."""
_MOST = 512
"""Samples compared with each other."""
_ROUNDING = 1e-6
_FEATURES = 4096
"""Values looked at per sample, evenly taken."""


def sample_findings(
    calib: Dataset, evaluation: Dataset | None, inputs: tuple[TensorSpec, ...], classes: int | None = None
) -> list[Finding]:
    """``classes``: of the model's output, where it gives one score for each."""
    findings = [*_few(calib), *_alike(calib)]
    if evaluation is None:
        return [*findings, *_missing_classes(calib, classes)]
    return [*findings, *_against(calib, evaluation, inputs)]


def near_duplicates(calib: Dataset) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """For each sample looked at (int [k], rows of the set): its nearest other (int [k]), and the distance over the
    root mean square distance of two samples (float64 [k]); all zero where all samples are equal."""
    rows = np.linspace(0, len(calib) - 1, min(len(calib), _MOST)).astype(np.intp)
    features = _features(calib, rows)
    norm = float(np.sqrt(np.mean(np.square(features).sum(axis=1))))
    features = features - features.mean(axis=0)  # Centred, the products below lose no digits to the mean.
    squares = np.einsum("ij,ij->i", features, features)
    typical = float(np.sqrt(2.0 * squares.mean()))
    if typical <= _ROUNDING * norm:
        return rows, np.roll(rows, 1), np.zeros(len(rows))
    distances = np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2.0 * (features @ features.T), 0.0))
    np.fill_diagonal(distances, np.inf)
    return rows, rows[distances.argmin(axis=1)], distances.min(axis=1) / typical


def _few(calib: Dataset) -> list[Finding]:
    if len(calib) >= FEW_CALIBRATION_SAMPLES:
        return []
    return [
        Finding(
            code="few_samples",
            severity="warning",
            what=f"the calibration set has only {len(calib)} samples: ranges still move with each of them",
            where=(calib.origin,),
            evidence={"samples": len(calib), "enough": FEW_CALIBRATION_SAMPLES},
            advice="give 100 or more with --calib; with few, percentile and entropy cut what another sample would "
            "show, so keep minmax",
        )
    ]


def _alike(calib: Dataset) -> list[Finding]:
    if len(calib) < 2:
        return []
    rows, nearest, distance = near_duplicates(calib)
    alike = distance < ALIKE
    share = float(alike.mean())
    if share < ALIKE_SHARE:
        return []
    pairs = [[int(a), int(b)] for a, b in zip(rows[alike][:5], nearest[alike][:5], strict=True)]
    return [
        Finding(
            code="samples_alike",
            severity="warning",
            what=f"{100 * share:.0f} % of the calibration samples are near-duplicates of another one",
            where=(calib.origin,),
            evidence={
                "share": share,
                "samples_compared": len(rows),
                "pairs": pairs,
                "closer_than": ALIKE,
                "median_nearest_distance": float(np.median(distance)),
            },
            advice="take samples from different scenes, speakers or days: frames of one video count as one",
        )
    ]


def _missing_classes(calib: Dataset, classes: int | None) -> list[Finding]:
    labels = calib.labels
    if labels is None or classes is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
        return []
    missing = np.setdiff1d(np.arange(classes), labels)
    # A thousand classes cannot all be in a hundred samples.
    if not missing.size or len(calib) < classes:
        return []
    return [_missing(missing, classes, calib)]


def _missing(missing: npt.NDArray[np.generic], of: int, calib: Dataset) -> Finding:
    return Finding(
        code="missing_classes",
        severity="warning",
        what=f"the calibration set has no sample of {missing.size} of {of} classes",
        where=(calib.origin,),
        evidence={"classes": missing[:32].tolist(), "missing": int(missing.size), "of": of},
        advice="add some samples of each: what only they activate is clipped otherwise",
    )


def _against(calib: Dataset, evaluation: Dataset, inputs: tuple[TensorSpec, ...]) -> list[Finding]:
    findings = []
    ours, theirs = calib.labels, evaluation.labels
    if ours is not None and theirs is not None and ours.ndim == theirs.ndim == 1 and ours.dtype.kind in "iu":
        missing = np.setdiff1d(theirs, ours)
        if missing.size:
            findings.append(_missing(missing, len(np.unique(theirs)), calib))
    try:
        notices = check_data(calib, evaluation, inputs, ())
    except DataError as error:
        advice = error.hint or "give both sets the same preprocessing"
        code = "calibration_unlike_evaluation"
        return [*findings, Finding(code, "error", error.message, (calib.origin,), _ranges(calib, evaluation), advice)]
    told_apart = (*calib.notices, *evaluation.notices)
    for notice in notices:
        # Said above, with numbers.
        if notice in told_apart or notice.startswith(("only ", "the calibration set has no sample")):
            continue
        code = "shared_samples" if "too good" in notice else "calibration_unlike_evaluation"
        advice = (
            "calibrate on samples that are not evaluated on"
            if code == "shared_samples"
            else "give both sets the same preprocessing (--preprocess), and calibrate on what will be seen"
        )
        findings.append(
            Finding(code, "warning", notice, (calib.origin, evaluation.origin), _ranges(calib, evaluation), advice)
        )
    return findings


def _ranges(calib: Dataset, evaluation: Dataset) -> dict[str, list[float]]:
    """Lowest and highest of each input in both sets."""
    found = {}
    for name in calib.inputs:
        for role, data in (("calibration", calib), ("evaluation", evaluation)):
            values = data.inputs[name]
            found[f"{role}_range_of_{name}"] = [float(values.min()), float(values.max())]
    return found


def _features(calib: Dataset, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """float64 [rows, values]: of all inputs, each in units of its own deviation."""
    parts = []
    for name in sorted(calib.inputs):
        taken = calib.inputs[name][rows].reshape(len(rows), -1)
        # An odd step does not stay on one channel of an image whose sizes are even.
        step = max(1, taken.shape[1] // _FEATURES) | 1
        values = taken[:, ::step].astype(np.float64)
        values = np.nan_to_num(values, posinf=0.0, neginf=0.0)
        deviation = float(values.std())
        parts.append(values / deviation if deviation > 0.0 else values * 0.0)
    return np.concatenate(parts, axis=1)
