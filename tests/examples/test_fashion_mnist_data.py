"""Reading idx files and drawing balanced subsets."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from fashion_mnist_data import (
    DEBIAN_FOLDER,
    DataProblem,
    Split,
    draw_subsets,
    load_split,
    read_idx,
    stratified_rows,
    write_npz,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from idx_files import idx_bytes, small_split, write_split

SHIPPED = Path(__file__).parents[2] / "examples" / "fashion_mnist"


@given(arrays(np.uint8, array_shapes(min_dims=1, max_dims=3, max_side=6)), st.booleans())
def test_reads_what_was_written(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, compressed: bool) -> None:
    path = tmp_path_factory.mktemp("idx") / "x-ubyte"
    content = idx_bytes(array)
    path.write_bytes(gzip.compress(content) if compressed else content)
    read = read_idx(path)
    assert read.shape == array.shape
    assert np.array_equal(read, array)


@pytest.mark.parametrize("cut", [0, 3, 6, 15, 100])
def test_truncated_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x-ubyte"
    path.write_bytes(idx_bytes(np.ones((4, 28, 28), np.uint8))[:cut])
    with pytest.raises(DataProblem, match="x-ubyte"):
        read_idx(path)


def test_truncated_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.ones((4, 28, 28), np.uint8)))[:-9])
    with pytest.raises(DataProblem, match="cannot be read"):
        read_idx(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x-ubyte"
    # Element type 0x0D is float32.
    path.write_bytes(bytes([0, 0, 0x0D, 1, 0, 0, 0, 1]) + b"\0\0\0\0")
    with pytest.raises(DataProblem, match="not an idx file of bytes"):
        read_idx(path)


def test_missing_set_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataProblem, match=r"apt-get install dataset-fashion-mnist[\s\S]*--data"):
        load_split(tmp_path, "train")


def test_labels_must_fit_the_images(tmp_path: Path) -> None:
    images, labels = small_split(2, seed=0)
    write_split(tmp_path, "train", images, labels[:-1])
    with pytest.raises(DataProblem, match="train"):
        load_split(tmp_path, "train")


@given(st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_subsets_are_balanced_without_repetition(per_class: int, seed: int) -> None:
    labels = small_split(7, seed=3)[1].astype(np.int64)
    rows = stratified_rows(labels, per_class, np.random.default_rng(seed))
    assert np.array_equal(np.bincount(labels[rows], minlength=10), np.full(10, per_class))
    assert len(set(rows.tolist())) == len(rows)


def test_same_seed_same_rows_other_seed_other_rows() -> None:
    labels = small_split(50, seed=3)[1].astype(np.int64)
    first, again, other = (stratified_rows(labels, 10, np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_class_with_too_few_samples_is_named() -> None:
    with pytest.raises(DataProblem, match="class 1 has 2 samples, 3"):
        stratified_rows(np.array([0, 0, 0, 1, 1]), 3, np.random.default_rng(0))


def test_written_file_holds_the_split(tmp_path: Path) -> None:
    images, labels = small_split(3, seed=1)
    split = Split(images, labels.astype(np.int64))
    write_npz(tmp_path / "x.npz", split)
    with np.load(tmp_path / "x.npz", allow_pickle=False) as stored:
        assert sorted(stored) == ["image", "labels"]
        assert np.array_equal(stored["image"], split.images)
        assert np.array_equal(stored["labels"], split.labels)
        assert stored["labels"].dtype == np.int64


@pytest.mark.skipif(not DEBIAN_FOLDER.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_shipped_subsets_are_drawn_from_the_published_set() -> None:
    subsets = draw_subsets(load_split(DEBIAN_FOLDER, "train"), load_split(DEBIAN_FOLDER, "t10k"))
    for name, drawn in zip(("calib.npz", "eval.npz"), subsets, strict=True):
        with np.load(SHIPPED / name, allow_pickle=False) as shipped:
            assert np.array_equal(shipped["image"], drawn.images)
            assert np.array_equal(shipped["labels"], drawn.labels)
