"""What a metric says about the outputs of one model: values that cross from ``harness.data`` to statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["proportion", "mean", "blackbox"]
"""``proportion``: a mean of zeros and ones (top-k); ``mean``: a mean over samples of any other number;
``blackbox``: a function of all samples at once, of which only pseudo-values are known."""


@dataclass(frozen=True)
class MetricFacts:
    """What statistics and reports need to know about a metric."""

    name: str
    """As the user wrote it, without a direction suffix: ``top1``, ``top1@logits``, ``my_metrics:f1``."""
    unit: str
    """``fraction`` (0..1), ``dB``, or empty for the outputs' own unit."""
    higher_is_better: bool
    kind: Kind
    versus_float: bool
    """True where the metric compares a candidate with the float model (SNR, cosine, error without targets): the
    value is then itself the comparison, and there is no paired difference."""


@dataclass(frozen=True, eq=False)
class Score:
    """A metric's value on one model's outputs."""

    value: float
    """Finite."""
    n: int
    """Samples behind it."""
    per_sample: npt.NDArray[np.float64] | None
    """float64 [n], its mean is :attr:`value`; for ``blackbox`` metrics float64 [groups], jackknife pseudo-values
    of groups of samples (the same groups for every model); ``None`` where there are none."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """JSON-serialisable facts a metric adds, kept with the trial."""
