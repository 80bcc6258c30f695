"""How much memory a model's activations take on a device."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from device_agents.emulated.espdl.interpreter import Interpreter
from device_agents.emulated.espdl.model import DTYPES, Model

ALIGNMENT = 16


def activation_shapes(model: Model, target: str) -> dict[str, tuple[int, ...]]:
    """Of every activation, found by running the model on zeros: what the file says of inner ones is not reliable.

    Raises what :class:`Interpreter` raises.
    """
    zeros = {value.name: np.zeros((1, *value.shape), DTYPES[value.dtype]) for value in model.inputs}
    shapes = {value.name: value.shape for value in model.inputs}
    for name, array in Interpreter(model, target).tensors(zeros):
        shapes[name] = array.shape[1:]
    return shapes


def activation_bytes(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Peak of a first-fit plan: each activation lives from the node that makes it to the last that reads it; inputs
    and outputs of the model live all the time. The portable engine uses this very plan, esp-dl's greedy manager a
    similar one."""
    last: dict[str, int] = {}
    for index, node in enumerate(model.nodes):
        for name in (*node.inputs, *node.outputs):
            last[name] = index
    for value in (*model.inputs, *model.outputs):
        last[value.name] = len(model.nodes)
    places: list[tuple[int, int, str]] = []
    peak = 0
    for value in model.inputs:
        peak = max(peak, _place(places, value.name, _size(model, shapes, value.name)))
    for index, node in enumerate(model.nodes):
        for name in node.outputs:
            peak = max(peak, _place(places, name, _size(model, shapes, name)))
        places = [place for place in places if last[place[2]] != index]
    return peak


def _size(model: Model, shapes: Mapping[str, tuple[int, ...]], name: str) -> int:
    width = DTYPES[model.values[name].dtype].itemsize
    return -(-math.prod(shapes[name]) * width // ALIGNMENT) * ALIGNMENT


def _place(places: list[tuple[int, int, str]], name: str, size: int) -> int:
    """Into the first gap; gives its end."""
    at = 0
    for start, end, _ in sorted(places):
        if at + size <= start:
            break
        at = max(at, end)
    places.append((at, at + size, name))
    return at + size


def parameter_bytes(model: Model) -> int:
    """Of the constants that nodes read."""
    read = {name for node in model.nodes for name in node.inputs} | {node.text("lut") for node in model.nodes}
    return sum(tensor.values.nbytes for name, tensor in model.constants.items() if name in read)
