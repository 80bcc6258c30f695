"""Calibration samples from an ``.npz``, fed to a model."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.errors import DataError
from harness.quantize.npz_map import read_npz
from harness.tensors import TensorSpec

Feeds = dict[str, npt.NDArray[np.generic]]
_GOLDEN = (5.0**0.5 - 1.0) / 2.0


class CalibrationSet:
    """Samples for a model's inputs, in the order of the file.

    ``arrays`` maps each input to an array whose axis 0 is the samples. Where an array has the input's rank, that
    axis is the input's batch axis; where it has one axis more, each element is a whole input.
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[np.generic]], inputs: tuple[TensorSpec, ...]) -> None:
        """Raises DataError if an input is missing, or shapes or counts do not fit."""
        self._inputs = inputs
        missing = [spec.name for spec in inputs if spec.name not in arrays]
        if missing:
            raise DataError(
                f"the calibration data has no array for input {', '.join(map(repr, missing))}",
                hint=f"it has: {', '.join(map(repr, arrays)) or 'nothing'}",
            )
        self._arrays = {spec.name: np.asarray(arrays[spec.name]) for spec in inputs}
        counts = {name: len(array) for name, array in self._arrays.items()}
        if len(set(counts.values())) != 1:
            raise DataError(f"the calibration arrays have different sample counts: {counts}")
        self._count = next(iter(counts.values()))
        self._batch = self._batch_size()
        if self._count < self._batch:
            raise DataError(f"the model takes {self._batch} samples at a time, the calibration data has {self._count}")
        for spec in inputs:
            self._check_shape(spec, self._arrays[spec.name])

    @classmethod
    def read(cls, path: Path, inputs: tuple[TensorSpec, ...]) -> CalibrationSet:
        """Opens an ``.npz``; arrays that are not compressed stay on disk. Never unpickles. Raises DataError."""
        try:
            wanted = {spec.name for spec in inputs}
            arrays = {name: array for name, array in read_npz(path).items() if name != "labels" or name in wanted}
        except (OSError, ValueError, EOFError, struct.error, zipfile.BadZipFile) as error:
            raise DataError(f"cannot read the calibration data: {error}", where=path) from error
        try:
            return cls(arrays, inputs)
        except DataError as error:
            raise DataError(error.message, hint=error.hint, where=path) from None

    def __len__(self) -> int:
        """Samples, whole batches only."""
        return self._count // self._batch * self._batch

    def taken(self, samples: int | None) -> int:
        """How many samples a pass over ``samples`` of them (all if ``None``) really takes: whole batches, one at
        least."""
        wanted = len(self) if samples is None else min(samples, len(self))
        return max(wanted // self._batch, 1) * self._batch

    def feeds(self, samples: int | None = None, *, skip: int = 0) -> Iterator[Feeds]:
        """Model inputs, one batch after the other, over the first ``samples`` samples (all if ``None``) in the order
        of :func:`nested_order`, without the first ``skip`` (whole batches)."""
        rows = nested_order(len(self))[: self.taken(samples)]
        for start in range(skip, len(rows), self._batch):
            yield {spec.name: self._slice(spec, rows[start : start + self._batch]) for spec in self._inputs}

    @property
    def batch(self) -> int:
        """Samples in each feed."""
        return self._batch

    def _slice(self, spec: TensorSpec, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.generic]:
        array = self._arrays[spec.name]
        block = array[rows] if array.ndim == len(spec.shape) else array[rows[0]]
        made = np.ascontiguousarray(block, dtype=np.dtype(spec.dtype))
        if np.issubdtype(made.dtype, np.floating):
            _check_finite(spec.name, made, rows if array.ndim == len(spec.shape) else rows[:1])
        return made

    def _batch_size(self) -> int:
        sizes = {
            int(spec.shape[0])
            for spec in self._inputs
            if spec.shape and self._arrays[spec.name].ndim == len(spec.shape) and not isinstance(spec.shape[0], str)
        }
        if len(sizes) > 1:
            raise DataError(f"the model's inputs have different batch sizes: {sorted(sizes)}")
        return sizes.pop() if sizes else 1

    def _check_shape(self, spec: TensorSpec, array: npt.NDArray[np.generic]) -> None:
        wanted = spec.shape[1:] if array.ndim == len(spec.shape) else spec.shape
        got = array.shape[1:]
        fits = len(got) == len(wanted) and all(isinstance(w, str) or w == g for w, g in zip(wanted, got, strict=True))
        if not fits:
            raise DataError(
                f"calibration array {spec.name!r} has samples of shape {list(got)}, the model's input takes "
                f"{list(wanted)}"
            )


def _check_finite(name: str, block: npt.NDArray[np.generic], rows: npt.NDArray[np.intp]) -> None:
    """Raises DataError for values that are NaN or infinite, except in a mask: minus infinity and one other value."""
    finite = np.isfinite(block)
    if finite.all():
        return
    bad = block[~finite]
    if np.isneginf(bad).all() and np.unique(block[finite]).size <= 1:
        return
    place = int(np.argwhere(~finite)[0][0]) if len(rows) > 1 else 0
    raise DataError(
        f"calibration array {name!r} has values that are NaN or infinite, {bad.size} of {block.size} in sample "
        f"{int(rows[place])} and those fed with it",
        hint="repair that sample or leave it out",
    )


def nested_order(count: int) -> npt.NDArray[np.intp]:
    """All of ``count`` rows in an order whose every beginning is spread evenly over the set.

    Row numbers follow the multiples of the golden ratio (Weyl's sequence, of the least discrepancy known for one
    dimension), so a set sorted by class is covered evenly by any number of samples, and a pass over more samples
    contains every pass over fewer.
    """
    places = np.mod(np.arange(count) * _GOLDEN, 1.0)
    return np.argsort(np.argsort(places, kind="stable"), kind="stable").astype(np.intp)
