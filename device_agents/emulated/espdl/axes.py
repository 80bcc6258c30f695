"""Real tensors as the float model has them, and the integers of an ``.espdl`` file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_agents.emulated.espdl.errors import MalformedModel
from device_agents.emulated.espdl.model import Model, ValueInfo

METADATA = "boardtune.axes"
"""Metadata entry: JSON, name of an input or output to the order in which the file has the ONNX tensor's axes."""


@dataclass(frozen=True)
class Axes:
    """How inputs and outputs are stored.

    Files that boardtune made say it. Of others, an input or output with four axes is taken to be NHWC where the float
    model has NCHW, which is what Espressif's exporter makes of images.
    """

    orders: Mapping[str, tuple[int, ...]]
    values: Mapping[str, ValueInfo]

    @classmethod
    def of(cls, model: Model) -> Axes:
        """Raises :class:`MalformedModel` where the metadata does not fit the model."""
        values = {value.name: value for value in (*model.inputs, *model.outputs)}
        text = model.metadata.get(METADATA)
        if text is None:
            orders: dict[str, tuple[int, ...]] = {
                name: (0, 2, 3, 1) for name, value in values.items() if len(value.shape) == 4
            }
            return cls(orders, values)
        try:
            orders = {str(name): tuple(int(axis) for axis in order) for name, order in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise MalformedModel(f"its metadata entry {METADATA!r} cannot be read: {error}") from None
        for name, order in orders.items():
            if name not in values or sorted(order) != list(range(len(values[name].shape))):
                raise MalformedModel(f"its metadata entry {METADATA!r} does not fit {name!r}: {list(order)}")
        return cls(orders, values)

    def stored(self, name: str, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """[samples, ...] of the float model, in the file's order of axes; the values stay."""
        order = self.orders.get(name)
        if order is None or array.ndim != len(order):
            return array
        return np.ascontiguousarray(_with_samples(array, order))

    def real(self, name: str, integers: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """What the model's integers stand for, float32 [samples, ...] in the float model's order of axes.

        Takes (samples, *shape) with the shape in the file, whose own first axis is one sample's.
        """
        value = self.values[name]
        real = integers
        if integers.dtype.kind in "iu":
            real = (integers.astype(np.float64) * math.ldexp(1.0, value.exponent)).astype(np.float32)
        shape = value.shape
        if real.ndim == len(shape) + 1 and shape[:1] == (1,):
            real = real.reshape(real.shape[0], *shape[1:])
        return self.restored(name, real)

    def restored(self, name: str, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """[samples, ...] as the file has it, in the float model's order of axes; the values stay."""
        order = self.orders.get(name)
        if order is None or array.ndim != len(order):
            return array
        return np.ascontiguousarray(_with_samples(array, tuple(int(axis) for axis in np.argsort(order))))


def _with_samples(array: npt.NDArray[np.generic], order: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """Samples are along the first axis, which an order that moves it cannot have."""
    if order[0] != 0:
        return np.stack([np.transpose(one[np.newaxis], order) for one in array])
    return np.transpose(array, order)
