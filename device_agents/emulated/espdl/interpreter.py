"""Runs ``.espdl`` models with numpy: the integers the model's arithmetic defines, to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from device_agents.contract import BadData
from device_agents.emulated.espdl.arithmetic import Array, quantized
from device_agents.emulated.espdl.errors import MalformedModel, UnsupportedNode
from device_agents.emulated.espdl.kernels.base import BITS, MOST_ELEMENTS, Operand, Run, Site
from device_agents.emulated.espdl.kernels.registry import OPERATORS
from device_agents.emulated.espdl.model import DTYPES, Model, Node, ValueInfo
from device_agents.emulated.espdl.target import Semantics, Target, target_named

CACHED_ELEMENTS = 1 << 18
"""Of the largest activation of the samples that are run together: more of them than a processor's cache holds run
slower than one by one."""


@dataclass(frozen=True)
class _Step:
    node: Node
    run: Run
    takes: tuple[str, ...]
    drops: tuple[str, ...]
    """Activations that nothing needs afterwards."""


class Interpreter:
    """One model on one target.

    Construction prepares every node and raises :class:`MalformedModel` or :class:`UnsupportedNode`, which name the
    node. Runs of the same inputs give the same bytes, alone or in a batch.
    """

    def __init__(self, model: Model, target: str, semantics: Semantics = Semantics.REFERENCE) -> None:
        self.model = model
        self.target: Target = target_named(target)
        self.semantics = semantics
        self._steps = tuple(self._prepared())
        largest = max((math.prod(value.shape) for value in model.values.values()), default=1)
        self._together = max(1, CACHED_ELEMENTS // max(1, largest))

    def _prepared(self) -> Iterator[_Step]:
        known = {value.name for value in self.model.inputs}
        last: dict[str, int] = {}
        for index, node in enumerate(self.model.nodes):
            for name in node.inputs:
                last[name] = index
        keep = {value.name for value in self.model.outputs}
        for index, node in enumerate(self.model.nodes):
            takes = tuple(name for name in node.inputs if name and name not in self.model.constants)
            for name in takes:
                if name not in known:
                    raise MalformedModel(f"{node.label}: its input {name!r} is made by no node before it")
            site = self._site(node)
            prepare = OPERATORS.get(node.op)
            if prepare is None:
                raise UnsupportedNode(
                    f"operator {node.op} ({node.label}) is not implemented",
                    hint="see docs/espdl.md for those that are",
                    detail=node.op,
                )
            try:
                run = prepare(site)
            except (ValueError, OverflowError) as error:  # shapes that no check above foresaw
                raise MalformedModel(f"{node.label}: {error}") from None
            known.update(node.outputs)
            drops = tuple({name for name in takes if last[name] == index and name not in keep})
            yield _Step(node, run, takes, drops)
        missing = keep - known
        if missing:
            raise MalformedModel(f"output {min(missing)!r} is made by no node")

    def _site(self, node: Node) -> Site:
        return Site(
            node=node,
            inputs=tuple(self._operand(name) for name in node.inputs),
            outputs=tuple(self._value(name, node) for name in node.outputs),
            target=self.target,
            semantics=self.semantics,
            constants=dict(self.model.constants),
        )

    def _value(self, name: str, node: Node) -> ValueInfo:
        found = self.model.values.get(name)
        if found is None:
            raise MalformedModel(f"{node.label}: nothing is said of its output {name!r}")
        if found.dtype not in BITS:
            raise UnsupportedNode(f"{node.label}: output {name!r} has data type {found.dtype}", detail=node.op)
        return found

    def _operand(self, name: str) -> Operand | None:
        if not name:
            return None
        constant = self.model.constants.get(name)
        if constant is not None:
            kind = next((key for key, dtype in DTYPES.items() if dtype == constant.dtype), 0)
            return Operand(name, constant.exponent, BITS.get(kind, 0), constant)
        value = self.model.values.get(name)
        if value is None:
            raise MalformedModel(f"nothing is said of tensor {name!r}")
        return Operand(name, value.exponent, BITS.get(value.dtype, 0), None)

    def quantize(self, name: str, real: Array) -> Array:
        """Real values of an input, in its layout, to its integers."""
        value = self._input(name)
        bits = BITS.get(value.dtype, 0)
        real = np.asarray(real, np.float32)
        return quantized(real, value.exponent, bits, self.target).astype(DTYPES[value.dtype]) if bits else real

    def input_dtype(self, name: str) -> np.dtype[np.generic]:
        """Of what :meth:`run` takes for an input."""
        value = self._input(name)
        if value.dtype not in BITS:
            raise MalformedModel(f"input {value.name!r} has data type {value.dtype}")
        return DTYPES[value.dtype]

    def _input(self, name: str) -> ValueInfo:
        for value in self.model.inputs:
            if value.name == name:
                return value
        raise BadData(
            f"no input {name!r}: the model's are {', '.join(repr(value.name) for value in self.model.inputs)}"
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, integers as the model stores them (or float32).

        Each input has the model's shape with any number of samples in front: (samples, *shape), or (samples,
        *shape[1:]) where the first dimension is 1, as for images. Outputs have the same form: (samples, *shape).
        """
        held = self._fed(inputs)
        samples = max((len(array) for array in held.values()), default=1)
        parts = [
            self._outputs({name: array[at : at + self._together] for name, array in held.items()})
            for at in range(0, max(1, samples), self._together)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _outputs(self, held: dict[str, Array]) -> dict[str, Array]:
        wanted = {value.name for value in self.model.outputs}
        return {name: self._stored(name, array) for name, array in self._walk(held) if name in wanted}

    def tensors(self, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """Every activation that a node makes, in execution order, with the samples in front."""
        for name, array in self._walk(self._fed(inputs)):
            yield name, self._stored(name, array)

    def _walk(self, held: dict[str, Array]) -> Iterator[tuple[str, Array]]:
        for step in self._steps:
            try:
                made = step.run([held[name] for name in step.takes])
            except (ValueError, IndexError, OverflowError) as error:  # shapes that no check above foresaw
                raise MalformedModel(f"{step.node.label}: {error}") from None
            for name in step.drops:
                del held[name]
            if len(made) != len(step.node.outputs):
                raise MalformedModel(f"{step.node.label}: {len(made)} results for {len(step.node.outputs)} outputs")
            for name, array in zip(step.node.outputs, made, strict=True):
                if array.size > MOST_ELEMENTS:
                    raise MalformedModel(f"{step.node.label}: an output of {array.size} elements")
                held[name] = array
                yield name, array

    def _fed(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        unknown = set(inputs) - {value.name for value in self.model.inputs}
        if unknown:
            self._input(min(unknown))
        held = {}
        for value in self.model.inputs:
            if value.name not in inputs:
                raise BadData(f"input {value.name!r} is missing")
            held[value.name] = self._shaped(value, np.asarray(inputs[value.name]))
        if len({array.shape[0] for array in held.values()}) > 1:
            raise BadData("inputs with different numbers of samples")
        return held

    def _shaped(self, value: ValueInfo, array: Array) -> Array:
        bits = BITS.get(value.dtype)
        if bits is None:
            raise MalformedModel(f"input {value.name!r} has data type {value.dtype}")
        shapes = {value.shape} | ({value.shape[1:]} if value.shape[:1] == (1,) else set())
        if array.ndim < 1 or array.shape[1:] not in shapes or array.size > MOST_ELEMENTS:
            raise BadData(
                f"input {value.name!r} of shape {list(array.shape)}: (samples, *{list(value.shape)}) is needed"
            )
        if bits and (array.dtype.kind not in "iu" or not np.can_cast(array.dtype, DTYPES[value.dtype], "safe")):
            raise BadData(f"input {value.name!r} is {array.dtype}, {DTYPES[value.dtype]} is needed")
        return array.reshape(array.shape[0], *value.shape).astype(np.float32)

    def _stored(self, name: str, array: Array) -> Array:
        return array.astype(DTYPES[self.model.values[name].dtype], copy=False)


def first_difference(
    expected: Sequence[tuple[str, Array]], got: Mapping[str, Array], tolerance_wide: int = 0
) -> str | None:
    """Name of the first tensor whose values differ: 8 bits at all, wider integers by more than ``tolerance_wide``."""
    for name, values in expected:
        other = got.get(name)
        if other is None:
            continue
        allowed = tolerance_wide if values.dtype.itemsize > 1 else 0
        if (
            values.shape != other.shape
            or np.abs(values.astype(np.int64) - other.astype(np.int64)).max(initial=0) > allowed
        ):
            return name
    return None
