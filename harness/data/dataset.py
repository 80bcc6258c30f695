"""Samples for a model: arrays by input name, labels, and a digest of their content."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from device_agents.contract import Tensors
from harness.errors import DataError

LABELS = "labels"
"""Name of the label array in ``.npz`` files and folders."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Model-ready samples. Arrays are read-only; every one has the samples on axis 0, the same number each."""

    inputs: Tensors
    """By the model's input name: [samples, ...] in the input's dtype."""
    raw: Tensors | None
    """The same samples before the arithmetic of the preprocessing (after decoding, resizing and cropping), for
    timing a pipeline on the device; ``None`` where no preprocessing was declared."""
    labels: npt.NDArray[np.generic] | None
    """[samples, ...]; integer class indices [samples] for classification."""
    origin: str
    """Where the samples came from, for messages and reports."""
    notices: tuple[str, ...] = field(default=())
    """What the user should know about how the data was read."""

    def __post_init__(self) -> None:
        if not self.inputs:
            raise DataError("no input arrays", where=self.origin)
        counts = {name: int(a.shape[0]) if a.ndim else 0 for name, a in self.inputs.items()}
        if self.labels is not None:
            counts[LABELS] = len(self.labels) if self.labels.ndim else 0
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{name!r} has {n}" for name, n in counts.items())
            raise DataError(
                f"the number of samples differs: {found}",
                where=self.origin,
                hint="Give every array the same number of samples on axis 0.",
            )
        if min(counts.values()) == 0:
            raise DataError("no samples", where=self.origin, hint="Give at least one sample on axis 0.")
        for array in (*self.inputs.values(), *(self.raw or {}).values()):
            array.flags.writeable = False
        if self.labels is not None:
            self.labels.flags.writeable = False

    def __len__(self) -> int:
        return int(next(iter(self.inputs.values())).shape[0])

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) over names, dtypes, shapes and little-endian C-order bytes of inputs and labels.

        Independent of the container (``.npz``, folder, function), of the order of the inputs and of the byte
        order on disk; two datasets with one digest give the same result on the same model.
        """
        total = hashlib.sha256(b"boardtune-dataset-v1\0")
        arrays: list[tuple[str, npt.NDArray[np.generic]]] = [
            (f"input:{name}", self.inputs[name]) for name in sorted(self.inputs)
        ]
        if self.labels is not None:
            arrays.append((LABELS, self.labels))
        for name, array in arrays:
            _update(total, name, array)
        return total.hexdigest()

    def rows(self, index: Sequence[int] | npt.NDArray[np.integer[Any]] | slice) -> Dataset:
        """The samples at ``index`` (int [k], or a slice), in that order."""
        where = index if isinstance(index, slice) else np.asarray(index, dtype=np.int64)
        return Dataset(
            inputs={name: a[where] for name, a in self.inputs.items()},
            raw=None if self.raw is None else {name: a[where] for name, a in self.raw.items()},
            labels=None if self.labels is None else self.labels[where],
            origin=self.origin,
            notices=self.notices,
        )

    def save_npz(self, path: Path, *, labels: bool = True, raw: bool = False) -> None:
        """Writes one array per model input (``raw`` ones instead if asked) and the labels, uncompressed.

        The bytes depend on the content alone, so that the file's digest can address it on a board. The file
        appears whole or not at all.
        """
        if raw and self.raw is None:
            raise DataError("there are no raw samples to write: no preprocessing was declared", where=self.origin)
        arrays = dict(self.raw if raw and self.raw is not None else self.inputs)
        if labels and self.labels is not None:
            if LABELS in arrays:
                raise DataError(f"an input is called {LABELS!r}: labels cannot be written too", where=self.origin)
            arrays[LABELS] = self.labels
        write_npz(path, arrays)


def write_npz(path: Path, arrays: Tensors) -> None:
    """Writes ``arrays`` as an uncompressed ``.npz``, sorted by name, without time stamps, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                for name in sorted(arrays):
                    # ZipInfo's default date is 1980-01-01: the bytes do not depend on the clock.
                    entry = zipfile.ZipInfo(f"{name}.npy")
                    with archive.open(entry, "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.ascontiguousarray(arrays[name]), allow_pickle=False)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _update(total: Any, name: str, array: npt.NDArray[np.generic]) -> None:
    little = array.dtype.newbyteorder("<")
    header = io.StringIO()
    header.write(f"{name}\0{little.str}\0{','.join(map(str, array.shape))}\0")
    total.update(header.getvalue().encode())
    step = max(1, (64 << 20) // max(1, array[:1].nbytes))
    for start in range(0, len(array), step):
        part = np.ascontiguousarray(array[start : start + step], dtype=little)
        total.update(part.tobytes())
