"""Whether the model that was timed computes what the evaluated one computes.

After MLPerf LoadGen's ``accuracy_log_sampling_target``: some outputs of the performance run are compared with the
accuracy run's, to catch a fast path that computes something else.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from device_agents.contract import Tensors

RELATIVE_TOLERANCE = 1e-3
"""Of the output's largest magnitude. The same artifact, runtime and samples: only the order of summation may differ."""


def same_outputs(timed: Tensors, evaluated: Tensors, tolerance: float = RELATIVE_TOLERANCE) -> str | None:
    """``None`` if the outputs agree, otherwise where they do not.

    Arrays are [samples, ...]. Floats may differ by ``tolerance`` times the largest magnitude of that output; integers
    (labels, quantized values) by the same, at least 1. NaN equals NaN in the same place.
    """
    if set(timed) != set(evaluated):
        return f"outputs {sorted(timed)} against {sorted(evaluated)}"
    for name in sorted(timed):
        problem = _compare(np.asarray(timed[name]), np.asarray(evaluated[name]), tolerance)
        if problem:
            return f"output {name!r} {problem}"
    return None


def _compare(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic], tolerance: float) -> str:
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"is {a.dtype} {list(a.shape)} against {b.dtype} {list(b.shape)}"
    if a.dtype.kind not in "fiu" and a.dtype.name != "bfloat16":
        return "" if np.array_equal(a, b) else "differs"
    left, right = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(left) & np.isfinite(right)
    # Infinities of one sign and NaN are equal to themselves; anything else that is not finite is a difference.
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return "has NaN or infinity in different places"
    if not finite.any():
        return ""
    scale = max(float(np.abs(left[finite]).max()), float(np.abs(right[finite]).max()))
    allowed = max(tolerance * scale, 1.0 if a.dtype.kind in "iu" else 0.0)
    worst = float(np.abs(left[finite] - right[finite]).max())
    return f"differs by up to {worst:.3g} where {allowed:.3g} is allowed" if worst > allowed else ""
