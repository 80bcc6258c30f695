"""Calibration samples from an ``.npz``, fed to a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.errors import DataError
from harness.tensors import TensorSpec

Feeds = dict[str, npt.NDArray[np.generic]]
_SEED = 20240229


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
        """Reads an ``.npz``; never unpickles. Raises DataError."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files if name != "labels"}
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"cannot read the calibration data: {error}", where=path) from error
        try:
            return cls(arrays, inputs)
        except DataError as error:
            raise DataError(error.message, hint=error.hint, where=path) from None

    def __len__(self) -> int:
        """Samples, whole batches only."""
        return self._count // self._batch * self._batch

    def feeds(self, samples: int | None = None) -> Iterator[Feeds]:
        """Model inputs, one batch after the other, over ``samples`` samples (all if ``None``)."""
        rows = pick_rows(self._count, samples)
        rows = rows[: max(len(rows) // self._batch, 1) * self._batch]
        if len(rows) < self._batch:
            rows = np.arange(self._batch)
        for start in range(0, len(rows), self._batch):
            yield {spec.name: self._slice(spec, rows[start : start + self._batch]) for spec in self._inputs}

    def _slice(self, spec: TensorSpec, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.generic]:
        array = self._arrays[spec.name]
        block = array[rows] if array.ndim == len(spec.shape) else array[rows[0]]
        return np.ascontiguousarray(block, dtype=np.dtype(spec.dtype))

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


def pick_rows(count: int, samples: int | None) -> npt.NDArray[np.intp]:
    """Indices of ``samples`` of ``count`` rows: one at random (seeded) from each of as many equal stretches.

    A set sorted by class is thus covered evenly. All rows, in order, if ``samples`` is ``None`` or too many.
    """
    if samples is None or samples >= count:
        return np.arange(count)
    edges = np.linspace(0, count, samples + 1)
    low = np.ceil(edges[:-1]).astype(np.intp)
    high = np.maximum(np.ceil(edges[1:]).astype(np.intp), low + 1)
    return np.random.default_rng(_SEED).integers(low, high).astype(np.intp)
