"""The signal-to-noise ratio under which a search refuses a quantized model unseen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.data.metric import Metric
from harness.measure.paired import AccuracyBound
from harness.plan import Plan

WITHOUT_LABELS_DB = 15.0
"""Where nothing else says whether outputs are still right."""
LABELS_DECIDE_DB = 3.0
"""Noise of half the signal's power, which only keeps garbage off the boards.

Scores say little about answers: of the networks in ``examples``, some recipes as right as float keep 8 to 12 dB,
whereas those that get nothing right keep under 2 dB.
"""


def floor_db(plan: Plan, metrics: Sequence[Metric], bounds: Mapping[str, AccuracyBound]) -> float:
    """The plan's own floor; else a low one where a bounded metric compares with labels, as that decides then."""
    if plan.min_snr is not None:
        return plan.min_snr
    labels_decide = any(metric.name in bounds and not metric.facts.versus_float for metric in metrics)
    return LABELS_DECIDE_DB if labels_decide else WITHOUT_LABELS_DB
