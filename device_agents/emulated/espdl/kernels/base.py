"""What an operator gets when it is prepared, and what it gives back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from device_agents.emulated.espdl.arithmetic import Array
from device_agents.emulated.espdl.errors import MalformedModel, UnsupportedNode
from device_agents.emulated.espdl.model import Node, Tensor, ValueInfo
from device_agents.emulated.espdl.target import Semantics, Target

BITS = {3: 8, 5: 16, 1: 0}
"""Of the types that activations have; 0 is float32."""

MOST_ELEMENTS = 1 << 27
"""Of one activation with all its samples: a corrupted shape must not ask for all memory."""

Run = Callable[[Sequence[Array]], list[Array]]
"""Takes the activations among the inputs, in order. Each array is float32, holds integers (or, for float tensors,
reals) and has one more axis than the tensor, in front: the samples."""


@dataclass(frozen=True)
class Operand:
    """An input: an activation with its exponent and bits, or a constant."""

    name: str
    exponent: int
    bits: int
    constant: Tensor | None


@dataclass(frozen=True)
class Site:
    """A node in its model."""

    node: Node
    inputs: tuple[Operand | None, ...]
    """``None`` where an optional input is left out."""
    outputs: tuple[ValueInfo, ...]
    target: Target
    semantics: Semantics
    constants: dict[str, Tensor]

    @property
    def on_device(self) -> bool:
        return self.semantics is Semantics.DEVICE

    @property
    def out(self) -> ValueInfo:
        return self.outputs[0]

    @property
    def out_bits(self) -> int:
        return self.bits_of(self.out)

    def bits_of(self, value: ValueInfo) -> int:
        bits = BITS.get(value.dtype)
        if bits is None:
            raise self.unsupported(f"output {value.name!r} has data type {value.dtype}")
        return bits

    def unsupported(self, why: str) -> UnsupportedNode:
        return UnsupportedNode(f"{self.node.label}: {why}", hint="the interpreter cannot run it", detail=self.node.op)

    def malformed(self, why: str) -> MalformedModel:
        return MalformedModel(f"{self.node.label}: {why}")

    def room(self, *shape: int) -> None:
        """Refuses to make an array of an absurd size, before any memory is taken."""
        if math.prod(shape) > MOST_ELEMENTS:
            raise self.malformed(f"an array of {list(shape)}")

    def operand(self, index: int) -> Operand:
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise self.malformed(f"input {index} is missing")
        return found

    def activation(self, index: int) -> Operand:
        operand = self.operand(index)
        if operand.constant is not None:
            raise self.unsupported(f"input {index} is a constant")
        return operand

    def optional(self, index: int) -> Operand | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def constant(self, index: int) -> Tensor:
        operand = self.operand(index)
        if operand.constant is None:
            raise self.unsupported(f"input {index} ({operand.name!r}) is not a constant")
        return operand.constant

    def integers(self, index: int) -> list[int]:
        """The values of a constant input."""
        values = self.constant(index).values
        if values.dtype.kind not in "iu":
            raise self.malformed(f"input {index} holds {values.dtype}, integers are needed")
        return [int(value) for value in values.tolist()]

    def axis(self, value: int, rank: int) -> int:
        """Of an array with the axis of the samples in front, for an axis of a tensor of ``rank``."""
        if not -rank <= value < rank:
            raise self.malformed(f"axis {value} of a tensor with {rank} dimensions")
        return value % rank + 1


def aligned(arrays: Sequence[Array]) -> list[Array]:
    """Broadcasting among tensors of unequal rank goes from the last axis on, but the samples' axis stays in front."""
    rank = max(array.ndim for array in arrays)
    return [a.reshape(a.shape[0], *(1,) * (rank - a.ndim), *a.shape[1:]) for a in arrays]


def as_float32(tensor: Tensor) -> Array:
    """A constant in the shape of its dims, with an axis for samples in front."""
    return tensor.array().astype(np.float32)[np.newaxis]
