"""Taking one output of a model for a metric."""

from __future__ import annotations

import numpy as np

from device_agents.contract import Tensors
from harness.data.metric import MetricFailed
from harness.data.stored import Array


def take(outputs: Tensors, name: str, metric: str, *, samples: int | None = None) -> Array:
    """Output ``name`` [samples, ...]; raises :class:`MetricFailed` where it is missing, short, or not finite."""
    if name not in outputs:
        raise MetricFailed(f"metric {metric!r}: no output {name!r}", hint=f"Outputs: {', '.join(map(repr, outputs))}.")
    array = np.asarray(outputs[name])
    if array.ndim == 0 or len(array) == 0:
        raise MetricFailed(f"metric {metric!r}: output {name!r} has no samples")
    if samples is not None and len(array) != samples:
        raise MetricFailed(f"metric {metric!r}: output {name!r} has {len(array)} samples, expected {samples}")
    if array.dtype.kind == "f":
        finite = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
        if not finite.all():
            raise MetricFailed(
                f"metric {metric!r}: output {name!r} is not finite in {np.count_nonzero(~finite)} of "
                f"{len(array)} samples, first in sample {int(np.argmin(finite))}"
            )
    elif array.dtype.kind not in "iub":
        raise MetricFailed(f"metric {metric!r}: output {name!r} has dtype {array.dtype.name}")
    return array


def flat(array: Array) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """float64 [samples, values of one sample]."""
    return array.reshape(len(array), -1).astype(np.float64)
