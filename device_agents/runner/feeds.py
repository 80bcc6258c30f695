"""From samples to what a model takes, and from its outputs back to one array per output over all samples.

Samples are on axis 0 of every array. A model's first axis is the batch where the sample arrays have as many axes as the
model's input; where they have one more, the model takes one whole sample without a batch axis.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from .arrays import Array, Arrays
from .errors import RunnerError
from .npz import NpzRows
from .pipeline import Pipeline, Work
from .platform import Spec


class Samples:
    """Arrays in memory; :class:`~.npz.NpzRows` has the same methods over a file."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def names(self) -> List[str]:
        return list(self._arrays)

    def shape(self, name: str) -> Tuple[int, ...]:
        return self._arrays[name].shape

    def dtype(self, name: str) -> str:
        return self._arrays[name].dtype.name

    def rows(self, name: str, indices: Sequence[int]) -> Array:
        first = indices[0] if indices else 0
        if list(indices) == list(range(first, first + len(indices))):
            return self._arrays[name][first : first + len(indices)]
        return self._arrays[name][np.asarray(indices, dtype=np.int64)]


def written(spec: Spec) -> str:
    """``float32 [batch, 1, 28, 28]``."""
    return "{} [{}]".format(spec.dtype, ", ".join(str(size) for size in spec.shape))


class Feeder:
    """Checks samples against a model's inputs and cuts them into feeds.

    ``exact``: arrays that are no input of the model are refused, not ignored.

    Raises:
        RunnerError: ``BadData``, saying what was expected.
    """

    def __init__(
        self,
        inputs: Sequence[Spec],
        source: "Samples | NpzRows",
        rows: Optional[Sequence[int]],
        pipeline: Optional[Pipeline],
        exact: bool,
    ) -> None:
        self._inputs = inputs
        self._source = source
        self._pipeline = pipeline
        images = [spec.name for spec in inputs if len(inputs) == 1 or len(spec.shape) >= 3]
        self._image = images[0] if images else None
        self._check_names(exact)
        self._count = self._common_count()
        self.rows = self._checked_rows(rows)
        self.group = self._check_arrays()
        """Samples per inference if the model fixes it, else ``None``."""

    def batches(self, batch: int) -> Iterator[Tuple[int, Arrays]]:
        """(samples in it, raw arrays) for all rows; a fixed batch is filled up by repeating the last sample."""
        size = self.group or batch
        for at in range(0, len(self.rows), size):
            indices = self.rows[at : at + size]
            real = len(indices)
            if self.group:
                indices = indices + indices[-1:] * (size - real)
            yield real, {spec.name: self._source.rows(spec.name, indices) for spec in self._inputs}

    def timed(self, batch: int) -> Iterator[Arrays]:
        """Raw arrays of whole inferences: each holds ``batch`` samples, and after the last row comes the first again.

        Raises:
            RunnerError: ``BadData`` where the model fixes another number than ``batch``, unless that is 1.
        """
        if self.group and batch not in (1, self.group):
            text = "{} samples per inference are asked for; the model takes {}".format(batch, self.group)
            raise RunnerError("BadData", text, hint="its first axis is fixed, or is no batch axis")
        size = self.group or batch
        for at in range(0, len(self.rows), size):
            indices = [self.rows[(at + i) % len(self.rows)] for i in range(size)]
            yield {spec.name: self._source.rows(spec.name, indices) for spec in self._inputs}

    def work(self, raw: Arrays) -> Work:
        """What :meth:`feed` does to these arrays, for platforms that count time."""
        if self._pipeline is None or self._image is None:
            return []
        return self._pipeline.work_before(raw[self._image])

    def feed(self, raw: Arrays) -> Dict[str, Array]:
        """What the model takes, from raw arrays; with a pipeline, its pre-processing happens here."""
        out: Dict[str, Array] = {}
        for spec in self._inputs:
            ready = self._prepared(spec, raw[spec.name])
            out[spec.name] = ready[0] if ready.ndim == len(spec.shape) + 1 else ready
        return out

    def _prepared(self, spec: Spec, samples: Array) -> Array:
        """Through the pipeline, which is for the only input, or else for the first with three axes or more."""
        if self._pipeline is None or spec.name != self._image:
            return samples
        return self._pipeline.before(samples)

    def _check_names(self, exact: bool) -> None:
        wanted = [spec.name for spec in self._inputs]
        given = self._source.names()
        missing = [name for name in wanted if name not in given]
        unknown = [name for name in given if name not in wanted] if exact else []
        if missing or unknown:
            raise RunnerError(
                "BadData",
                "the model's inputs are {}; the data has {}".format(
                    ", ".join("{!r} ({})".format(spec.name, written(spec)) for spec in self._inputs),
                    ", ".join(repr(name) for name in given) or "nothing",
                ),
                hint="name one array per input, samples on axis 0",
            )

    def _common_count(self) -> int:
        counts = {}
        for spec in self._inputs:
            shape = self._source.shape(spec.name)
            if not shape:
                raise RunnerError("BadData", "array {!r} is a single number; samples go on axis 0".format(spec.name))
            counts[spec.name] = shape[0]
        if len(set(counts.values())) > 1:
            raise RunnerError("BadData", "the arrays differ in their number of samples: {}".format(counts))
        return next(iter(counts.values()), 1)  # a model without inputs has one sample

    def _checked_rows(self, rows: Optional[Sequence[int]]) -> List[int]:
        chosen = list(range(self._count)) if rows is None else [int(row) for row in rows]
        if not chosen:
            raise RunnerError("BadData", "no samples were given")
        for row in (min(chosen), max(chosen)):
            if not 0 <= row < self._count:
                raise RunnerError("BadData", "row {} is asked for; the data has {} samples".format(row, self._count))
        return chosen

    def _check_arrays(self) -> Optional[int]:
        groups = {}
        for spec in self._inputs:
            sample = self._source.rows(spec.name, self.rows[:1])
            ready = self._prepared(spec, sample)
            per_sample = ready.ndim == len(spec.shape) + 1
            expected = spec.shape if per_sample else spec.shape[1:]
            fits = (per_sample or ready.ndim == len(spec.shape)) and all(
                not isinstance(size, int) or size == actual for size, actual in zip(expected, ready.shape[1:])
            )
            if ready.dtype.name != spec.dtype or not fits:
                got = "{} [{}]".format(ready.dtype.name, ", ".join(["samples"] + [str(n) for n in ready.shape[1:]]))
                raise RunnerError(
                    "BadData",
                    "input {!r} must be {}; the samples are {}{}".format(
                        spec.name, written(spec), got, " after the pipeline" if self._pipeline else ""
                    ),
                )
            first = spec.shape[0] if spec.shape else None
            groups[spec.name] = 1 if per_sample else (first if isinstance(first, int) else 0)
        fixed = {size for size in groups.values() if size}
        if len(fixed) > 1:
            raise RunnerError("BadData", "the model's inputs fix different numbers of samples: {}".format(groups))
        return fixed.pop() if fixed else None


class Collector:
    """Stacks the outputs of successive inferences to [samples, ...] per output.

    An output whose first axis is the batch is joined along it; one without (a scalar, a list of detections) is stacked
    along a new first axis, which needs one sample per inference and the same shape every time.
    """

    def __init__(self, outputs: Sequence[Spec]) -> None:
        self._outputs = outputs
        self._parts: Dict[str, List[Array]] = {spec.name: [] for spec in outputs}
        self._real: List[int] = []
        self._size = 0

    def add(self, values: Sequence[Array], real: int, size: int) -> None:
        """``size`` samples were run, the first ``real`` of them count."""
        for spec, value in zip(self._outputs, values):
            self._parts[spec.name].append(np.asarray(value))
        self._real.append(real)
        self._size = max(self._size, size)

    def result(self) -> Arrays:
        return {spec.name: self._stack(spec.name, self._parts[spec.name]) for spec in self._outputs}

    def _stack(self, name: str, parts: List[Array]) -> Array:
        last = self._real[-1]
        batched = all(part.ndim and part.shape[0] == self._size for part in parts[:-1])
        batched = batched and bool(parts[-1].ndim) and parts[-1].shape[0] in (last, self._size)
        if not batched and self._size > 1:
            raise RunnerError(
                "BadData",
                "output {!r} has shape {} for {} samples: its first axis is not the batch".format(
                    name, list(parts[0].shape), self._size
                ),
                hint="run one sample at a time (batch 1)",
            )
        shapes = {part.shape[1:] if batched else part.shape for part in parts}
        if len(shapes) > 1:
            raise RunnerError(
                "BadData",
                "output {!r} changes its shape from sample to sample ({}), so the samples cannot be compared".format(
                    name, ", ".join(str(list(shape)) for shape in sorted(shapes)[:3])
                ),
                hint="give the model outputs of fixed shape",
            )
        if not batched:
            return np.stack(parts)
        parts[-1] = parts[-1][:last]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]
