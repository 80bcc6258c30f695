"""Writes idx files as Yann LeCun's page describes them, independently of the reader."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt


def idx_bytes(array: npt.NDArray[np.uint8]) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", size) for size in array.shape)
    return header + array.tobytes()


def write_split(folder: Path, part: str, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> None:
    """``part`` as Debian ships it: compressed."""
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(array)))


def small_split(per_class: int, seed: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Random images [10 * per_class, 28, 28] and shuffled labels."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.repeat(np.arange(10, dtype=np.uint8), per_class))
    return generator.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8), labels
