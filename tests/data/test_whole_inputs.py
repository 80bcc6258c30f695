"""Arrays each element of which is all that the model takes at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.data.source import open_dataset
from harness.errors import DataError
from harness.tensors import TensorSpec

SEQUENCE = TensorSpec("x", "float32", (7, 2, 4))
"""Time on the first axis."""
OTHER = TensorSpec("z", "float32", (3, 4))
NUMBER = TensorSpec("gain", "float32", ())
IMAGE = TensorSpec("image", "float32", (1, 3, 8, 8))


def _file(folder: Path, **shapes: tuple[int, ...]) -> Path:
    random = np.random.default_rng(0)
    np.savez(folder / "c.npz", **{n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()})
    return folder / "c.npz"


def test_inputs_of_different_first_axes_and_single_numbers(tmp_path: Path) -> None:
    path = _file(tmp_path, x=(5, 7, 2, 4), z=(5, 3, 4), gain=(5,))
    found = open_dataset(path, [SEQUENCE, OTHER, NUMBER], None, whole=True)
    assert len(found) == 5
    assert {name: array.shape for name, array in found.inputs.items()} == {
        "x": (5, 7, 2, 4),
        "z": (5, 3, 4),
        "gain": (5,),
    }
    with np.load(path) as given:
        assert all(np.array_equal(array, given[name]) for name, array in found.inputs.items())


def test_where_batches_are_timed_they_are_refused_with_the_way_out(tmp_path: Path) -> None:
    path = _file(tmp_path, x=(5, 7, 2, 4))
    with pytest.raises(DataError, match="whole inputs, which quantize, audit and sensitivity take"):
        open_dataset(path, [SEQUENCE], None)
    with pytest.raises(DataError, match="scalar"):
        open_dataset(_file(tmp_path, gain=(5,)), [NUMBER], None)


def test_one_input_by_samples_and_another_whole_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path, x=(14, 2, 4), z=(14, 3, 4))
    with pytest.raises(DataError, match="every input"):
        open_dataset(path, [SEQUENCE, OTHER], None, whole=True)


@pytest.mark.parametrize("whole", [False, True])
def test_a_first_axis_of_one_is_dropped_for_every_command(whole: bool, tmp_path: Path) -> None:
    path = _file(tmp_path, image=(6, 1, 3, 8, 8))
    assert open_dataset(path, [IMAGE], None, whole=whole).inputs["image"].shape == (6, 3, 8, 8)


def test_whole_inputs_are_checked_like_samples(tmp_path: Path) -> None:
    values = np.zeros((4, 3, 4), np.float32)
    values[2, 1, 1] = np.nan
    np.savez(tmp_path / "c.npz", z=values)
    with pytest.raises(DataError, match="NaN in sample 2"):
        open_dataset(tmp_path / "c.npz", [OTHER], None, whole=True)
