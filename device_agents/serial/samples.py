"""Rows of deployed samples, which stay on this side until a board takes them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_agents.contract import BadData, DataRef


def read_rows(path: Path | None, ref: DataRef) -> dict[str, npt.NDArray[np.generic]]:
    """The rows that are asked for of an ``.npz`` file, each array [n, ...].

    Raises:
        BadData: never deployed (``None``), not an ``.npz`` of plain arrays, or there are no such rows.
    """
    if path is None:
        raise BadData(f"the data {ref.sha256[:12]}… was not deployed", hint="deploy it first")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise BadData(f"{path} is not an .npz file of plain arrays: {error}") from error
    if ref.rows is None:
        return arrays
    rows = list(ref.rows)
    for name, array in arrays.items():
        if array.ndim == 0 or any(not 0 <= row < len(array) for row in rows):
            count = len(array) if array.ndim else 0
            raise BadData(f"rows up to {max(rows)} are asked for; {name!r} has {count} samples")
    return {name: array[rows] for name, array in arrays.items()}
