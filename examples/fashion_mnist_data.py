"""Fashion-MNIST as the examples use it: reading the published files, and drawing class-balanced subsets.

Needs numpy only. The set is 60,000 training and 10,000 test images, grey, 28 x 28, ten classes (Xiao, Rasul and
Vollgraf, arXiv:1708.07747; MIT licence, Zalando SE).
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's and Ubuntu's package ``dataset-fashion-mnist`` puts the files."""

CLASSES = 10
CALIBRATION_PER_CLASS = 51
EVALUATION_PER_CLASS = 200

_IDX_UINT8 = 0x08


class DataProblem(Exception):
    """A file of the set is missing or not what it should be; the message says what to do."""


class Split(NamedTuple):
    images: npt.NDArray[np.uint8]
    """[samples, 28, 28], 0 is background."""
    labels: npt.NDArray[np.int64]
    """[samples], 0..9."""


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """The array of an idx file of bytes, plain or gzip-compressed, in its own shape.

    The format is that of MNIST: two zero bytes, the element type (8: unsigned byte), the number of axes, each axis as
    a big-endian 32-bit integer, then the elements (http://yann.lecun.com/exdb/mnist/). Raises :class:`DataProblem`.
    """
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataProblem(f"{path}: cannot be read ({error}); get the file again") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _IDX_UINT8:
        raise DataProblem(f"{path}: not an idx file of bytes (starts with {content[:4].hex() or 'nothing'})")
    axes = content[3]
    start = 4 + 4 * axes
    header = content[4:start]
    shape = tuple(int.from_bytes(header[at : at + 4], "big") for at in range(0, len(header), 4))
    if len(header) != 4 * axes or len(content) - start != math.prod(shape):
        raise DataProblem(
            f"{path}: {len(content)} bytes are not what its header announces ({' x '.join(map(str, shape))} bytes "
            "of data); the file is truncated or damaged, get it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def load_split(folder: Path, part: str) -> Split:
    """``part`` is ``train`` (60,000 images) or ``t10k`` (10,000), plain or ``.gz``. Raises :class:`DataProblem`."""
    images = read_idx(_find(folder, f"{part}-images-idx3-ubyte"))
    labels = read_idx(_find(folder, f"{part}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataProblem(f"{folder}: {part} has images of shape {images.shape} but labels of shape {labels.shape}")
    return Split(images, labels.astype(np.int64))


def stratified_rows(
    labels: npt.NDArray[np.int64], per_class: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """``per_class`` rows of each class, without repetition, drawn class after class from ``generator``.

    Rows are in class order; within a class in the order drawn. Raises :class:`DataProblem` where a class has too few.
    """
    chosen = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) < per_class:
            raise DataProblem(f"class {label} has {len(rows)} samples, {per_class} were asked for")
        chosen.append(generator.choice(rows, per_class, replace=False))
    return np.concatenate(chosen).astype(np.int64)


def draw_subsets(
    train: Split, test: Split, seed: int = 0, evaluation_per_class: int = EVALUATION_PER_CLASS
) -> tuple[Split, Split]:
    """Calibration (510 training images) and evaluation (test images) subsets, from one seeded generator.

    With seed 0 and 2,000 test images these are those of ``fashion_mnist/calib.npz`` and ``fashion_mnist/eval.npz``.
    """
    generator = np.random.default_rng(seed)
    calibration = stratified_rows(train.labels, CALIBRATION_PER_CLASS, generator)
    evaluation = stratified_rows(test.labels, evaluation_per_class, generator)
    return (
        Split(train.images[calibration], train.labels[calibration]),
        Split(test.images[evaluation], test.labels[evaluation]),
    )


def write_npz(path: Path, split: Split) -> None:
    """``image`` uint8 [samples, 28, 28] and ``labels`` int64 [samples], compressed."""
    arrays: Mapping[str, npt.NDArray[Any]] = {"image": split.images, "labels": split.labels}
    np.savez_compressed(path, allow_pickle=False, **arrays)


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise DataProblem(
        f"{folder / name}[.gz] is missing\n"
        "  On Debian or Ubuntu: apt-get install dataset-fashion-mnist (31 MB); without root rights:\n"
        "    apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb fm\n"
        "    and --data fm/usr/share/datasets/fashion-mnist\n"
        "  Elsewhere: put the four idx files of https://github.com/zalandoresearch/fashion-mnist into a folder and\n"
        "    name it with --data."
    )
