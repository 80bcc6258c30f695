"""The order of axes in ``.espdl`` files, and integers for real values."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest

from device_agents.emulated.espdl.axes import METADATA, Axes
from device_agents.emulated.espdl.errors import MalformedModel
from device_agents.emulated.espdl.model import Model, ValueInfo

INT8 = 3


def model(shapes: Mapping[str, tuple[int, ...]], axes: object | None = None, exponent: int = -3) -> Model:
    values = {name: ValueInfo(name, INT8, shape, (exponent,)) for name, shape in shapes.items()}
    names = list(values)
    metadata = {} if axes is None else {METADATA: axes if isinstance(axes, str) else json.dumps(axes)}
    return Model(
        nodes=(),
        inputs=(values[names[0]],),
        outputs=tuple(values[name] for name in names[1:]),
        values=values,
        constants={},
        test_inputs={},
        test_outputs={},
        metadata=metadata,
    )


def test_what_is_stored_comes_back() -> None:
    axes = Axes.of(model({"x": (1, 5, 4, 3), "y": (1, 5, 4, 3)}, {"x": [0, 2, 3, 1], "y": [0, 2, 3, 1]}))
    real = np.arange(2 * 3 * 5 * 4).reshape(2, 3, 5, 4)
    stored = axes.stored("x", real)
    assert stored.shape == (2, 5, 4, 3)
    assert stored[1, 4, 2, 1] == real[1, 1, 4, 2]
    back = axes.real("y", stored[:, np.newaxis].astype(np.int8))
    np.testing.assert_array_equal(back, (real.astype(np.int8) / 8).astype(np.float32))


def test_integers_stand_for_multiples_of_a_power_of_two() -> None:
    axes = Axes.of(model({"x": (1, 2), "y": (1, 3)}, {}, exponent=2))
    np.testing.assert_array_equal(axes.real("y", np.array([[[-128, 0, 127]]], np.int8)), [[-512.0, 0.0, 508.0]])
    assert axes.real("y", np.zeros((1, 1, 3), np.float32)).dtype == np.float32


def test_files_that_do_not_say_have_images_as_nhwc() -> None:
    axes = Axes.of(model({"x": (1, 8, 6, 3), "y": (1, 10)}))
    assert axes.stored("x", np.zeros((7, 3, 8, 6))).shape == (7, 8, 6, 3)
    assert axes.stored("y", np.zeros((7, 10))).shape == (7, 10)


def test_a_file_that_says_nothing_is_turned_turns_nothing() -> None:
    axes = Axes.of(model({"x": (1, 8, 6, 3), "y": (1, 10)}, {}))
    assert axes.stored("x", np.zeros((7, 8, 6, 3))).shape == (7, 8, 6, 3)


def test_an_order_that_moves_the_first_axis() -> None:
    axes = Axes.of(model({"x": (4, 1), "y": (1, 2)}, {"x": [1, 0]}))
    stored = axes.stored("x", np.arange(12).reshape(3, 4))
    assert stored.shape == (3, 4, 1)
    np.testing.assert_array_equal(stored[2, :, 0], [8, 9, 10, 11])


@pytest.mark.parametrize("text", ["{", "[]", '{"x": 3}', '{"z": [0, 1]}', '{"x": [0, 1]}', '{"x": [0, 0, 1, 2]}'])
def test_metadata_that_does_not_fit(text: str) -> None:
    with pytest.raises(MalformedModel, match=r"boardtune\.axes"):
        Axes.of(model({"x": (1, 8, 6, 3), "y": (1, 10)}, text))
