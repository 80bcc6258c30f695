"""Pre- and post-processing on the device (``contract.Pipeline``), as numpy operations inside the timed region."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Optional, Tuple

import numpy as np

from .arrays import Array
from .errors import RunnerError

Step = Callable[[Array], Array]
Work = List[Tuple[str, int]]
"""(ONNX operator that does the same, elements) of each pass over an array; views are none."""

_AFTER = {"softmax": "Softmax", "argmax": "ArgMax"}


class Pipeline:
    """``before`` maps samples [n, ...] to what the model takes, ``after`` one output [n, ...] to what is returned."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = spec
        self._steps = _before_steps(spec)
        self._post = str(spec.get("post", "none"))
        self._after = _after_step(self._post)

    def before(self, samples: Array) -> Array:
        for step in self._steps:
            samples = step(samples)
        return samples

    def after(self, output: Array) -> Array:
        return self._after(output) if self._after else output

    def work_before(self, samples: Array) -> Work:
        """The passes of :meth:`before` over these samples."""
        changes = (("Mul", self._spec.get("scale", 1.0) != 1.0), ("Sub", self._spec.get("mean")))
        passes = [name for name, done in (*changes, ("Div", self._spec.get("std"))) if done]
        dtype = np.dtype(np.float32) if passes else samples.dtype
        reordered = self._spec.get("reverse_channels") or self._spec.get("transpose")
        if reordered or dtype != np.dtype(str(self._spec.get("dtype", "float32"))):
            passes.append("Cast")  # the copy into the model's layout and type
        return [(name, int(samples.size)) for name in passes]

    def work_after(self, output: Array) -> Work:
        """The passes of :meth:`after` over one output."""
        return [(_AFTER[self._post], int(output.size))] if self._after else []


def _before_steps(spec: Mapping[str, Any]) -> List[Step]:
    steps: List[Step] = []
    if spec.get("reverse_channels"):
        steps.append(lambda x: x[..., ::-1])
    scale = np.float32(spec.get("scale", 1.0))
    mean = _per_channel(spec.get("mean") or ())
    std = _per_channel(spec.get("std") or ())
    if scale != 1.0:
        steps.append(lambda x: x.astype(np.float32) * scale)
    if mean is not None:
        steps.append(lambda x: x.astype(np.float32, copy=False) - _fitting(mean, x, "mean"))
    if std is not None:
        steps.append(lambda x: x.astype(np.float32, copy=False) / _fitting(std, x, "std"))
    axes = [int(axis) + 1 for axis in spec.get("transpose") or ()]
    if axes:
        steps.append(lambda x: _transposed(x, axes))
    expand = spec.get("expand_axis")
    if expand is not None:
        # Counted within one sample, from either end.
        axis = int(expand) + 1 if int(expand) >= 0 else int(expand)
        steps.append(lambda x: np.expand_dims(x, axis))
    dtype = np.dtype(str(spec.get("dtype", "float32")))
    steps.append(lambda x: np.ascontiguousarray(x, dtype=dtype))
    return steps


def _per_channel(values: Any) -> Optional[Array]:
    return np.asarray(values, dtype=np.float32) if len(values) else None


def _fitting(values: Array, samples: Array, what: str) -> Array:
    """Per channel of the last axis, or one for all."""
    if values.size not in (1, samples.shape[-1]):
        raise RunnerError(
            "BadData",
            "the pipeline's {} has {} values, the samples' last axis (channels) has {}".format(
                what, values.size, samples.shape[-1]
            ),
        )
    return values


def _transposed(samples: Array, axes: List[int]) -> Array:
    if sorted(axes) != list(range(1, samples.ndim)):
        raise RunnerError(
            "BadData",
            "the pipeline's transpose {} does not fit samples of {} axes".format(
                [axis - 1 for axis in axes], samples.ndim - 1
            ),
        )
    return samples.transpose([0, *axes])


def _after_step(post: str) -> Optional[Step]:
    if post == "softmax":
        return _softmax
    if post == "argmax":
        return lambda x: np.argmax(x, axis=-1)
    if post == "none":
        return None
    raise RunnerError("BadData", "unknown post-processing {!r}; known: none, softmax, argmax".format(post))


def _softmax(x: Array) -> Array:
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    out: Array = shifted / shifted.sum(axis=-1, keepdims=True)
    return out
