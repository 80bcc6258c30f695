"""The caller's arrays as the board's bytes, and back."""

from __future__ import annotations

import numpy as np
import pytest

from device_agents.contract import BadData
from device_agents.emulated.espdl.axes import Axes
from device_agents.serial.messages import Loaded, TensorInfo
from device_agents.serial.tensors import outputs_from_bytes, rows_to_bytes

IMAGE = TensorInfo("image", "int8", -4, (1, 3, 3, 2), 18)
MAP = TensorInfo("map", "int8", -2, (1, 3, 3, 2), 18)
MODEL = Loaded(0, 0, 0, 0, (IMAGE,), (MAP,))
NHWC = {"image": (0, 2, 3, 1), "map": (0, 2, 3, 1)}


def test_a_file_that_says_its_axes_takes_and_gives_the_float_models() -> None:
    real = np.arange(36, dtype=np.float32).reshape(2, 2, 3, 3) / 16
    data, count = rows_to_bytes(MODEL, {"image": real}, "esp32s3", Axes(NHWC, {}))
    assert count == 2
    stored = np.frombuffer(data, np.int8).reshape(2, 3, 3, 2)
    assert stored[1, 2, 0, 1] == real[1, 1, 2, 0] * 16
    outputs = outputs_from_bytes(MODEL, data, 2, Axes(NHWC, {}))
    np.testing.assert_array_equal(outputs["map"], real * 16 / 4)


def test_a_file_that_says_nothing_gives_its_own() -> None:
    real = np.arange(36, dtype=np.float32).reshape(2, 2, 3, 3) / 16
    data, _ = rows_to_bytes(MODEL, {"image": real}, "esp32s3")
    assert outputs_from_bytes(MODEL, data, 2)["map"].shape == (2, 3, 3, 2)


def test_axes_that_look_alike_are_not_guessed() -> None:
    """Three channels of 3 x 3: by their shape alone nobody can tell which is which."""
    cube = TensorInfo("image", "int8", 0, (1, 3, 3, 3), 27)
    model = Loaded(0, 0, 0, 0, (cube,), (cube,))
    real = np.arange(27, dtype=np.float32).reshape(1, 3, 3, 3)
    data, _ = rows_to_bytes(model, {"image": real}, "esp32s3", Axes(NHWC, {}))
    assert np.frombuffer(data, np.int8).reshape(3, 3, 3)[2, 1, 0] == real[0, 0, 2, 1]


def test_other_shapes_are_refused_with_axes_too() -> None:
    with pytest.raises(BadData, match="input 'image' takes float32"):
        rows_to_bytes(MODEL, {"image": np.zeros((2, 3, 2, 3), np.float32)}, "esp32s3", Axes(NHWC, {}))


@pytest.mark.parametrize(("target", "expected"), [("esp32s3", [1, 2, 3, 0]), ("esp32p4", [0, 2, 2, 0])])
def test_halves_are_rounded_as_the_chip_does(target: str, expected: list[int]) -> None:
    info = TensorInfo("x", "int8", 0, (1, 4), 4)
    model = Loaded(0, 0, 0, 0, (info,), (info,))
    data, _ = rows_to_bytes(model, {"x": np.array([[0.5, 1.5, 2.5, -0.5]], np.float32)}, target)
    assert list(np.frombuffer(data, np.int8)) == expected
