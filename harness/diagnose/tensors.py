"""Which tensor of a quantized model stands for which of the float one. Pure: over the two graphs.

QDQ: a QuantizeLinear's input keeps the float name, or the DequantizeLinear's output has it. QOperator: integer tensors
are called ``NAME_quantized`` by ONNX Runtime's tool, and their scale is an input of the operator that makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from harness.quantize.graph import DEQUANTIZE, QUANTIZE, attributes_of, initializers_of

_SUFFIXES = ("_quantized", "_QuantizeLinear_Input", "_QuantizeLinear_Output", "_DequantizeLinear_Output")
"""What ONNX Runtime's tools append to the float tensor's name."""
_OUTPUT_SCALE: Mapping[str, int] = {
    QUANTIZE: 1, "QLinearConv": 6, "QLinearMatMul": 6, "QLinearAdd": 6, "QLinearMul": 6, "QGemm": 7, "QLinearWhere": 7,
    "QLinearSigmoid": 3, "QLinearLeakyRelu": 3, "QLinearAveragePool": 3, "QLinearGlobalAveragePool": 3,
    "QLinearSoftmax": 3, "QLinearReduceMean": 3, "QLinearConcat": 0,
}  # fmt: skip
"""Input that is the scale of the operator's output; the zero point follows it (ContribOperators.md)."""
_SAME_GRID = frozenset(
    {
        "MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Gather", "Slice", "Pad", "Split",
        "Resize", "Identity", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "GatherElements",
    }
)  # fmt: skip
"""Operators that move integers and leave their meaning."""

_REMOVABLE = ("Relu", "Clip")

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, eq=False)
class Grid:
    """What an integer tensor means: ``(q - zero_point) * scale`` for q from ``lowest`` to ``highest``. Per tensor."""

    scale: float
    zero_point: int
    lowest: int
    highest: int

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and largest number there is."""
        return (self.lowest - self.zero_point) * self.scale, (self.highest - self.zero_point) * self.scale

    @property
    def bits(self) -> int:
        return int(self.highest - self.lowest).bit_length()

    def values(self, integers: Array) -> npt.NDArray[np.float64]:
        return (integers.astype(np.float64) - self.zero_point) * self.scale


@dataclass(frozen=True)
class Reading:
    """How to read a float activation out of the quantized model."""

    tensor: str
    """Its name in the float model."""
    source: str
    """The artifact's tensor that holds it."""
    grid: Grid | None
    """``None``: it is in float there."""


@dataclass(frozen=True)
class Layer:
    """One node of the float model with the activation it makes."""

    node: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    """Activations it reads."""
    output: str


def layers_of(model: ModelProto) -> tuple[Layer, ...]:
    """Nodes of the main graph in order, one for each output."""
    constants = initializers_of(model.graph)
    return tuple(
        Layer(node.name, node.op_type, node.domain, tuple(n for n in node.input if n and n not in constants), output)
        for node in model.graph.node
        for output in node.output
        if output
    )


def readings_of(model: ModelProto, artifact: ModelProto) -> dict[str, Reading]:
    """By float tensor, in the order of the float graph: activations of ``model`` that ``artifact`` still has."""
    constants = initializers_of(model.graph)
    wanted = [value.name for value in model.graph.input if value.name not in constants]
    wanted += [name for node in model.graph.node for name in node.output if name]
    grids = _grids(artifact)
    found: dict[str, Reading] = {}
    known = set(wanted)
    for node in artifact.graph.node:
        if node.op_type == DEQUANTIZE and node.input[0] in grids:
            _put(found, known, node.output[0], node.input[0], grids)
    for name in grids:
        _put(found, known, name, name, grids)
    for node in artifact.graph.node:
        if node.op_type == QUANTIZE and node.output[0] in grids:
            # The float name is the quantizer's input's: it wins over what a name looks like.
            _put(found, known, node.input[0], node.output[0], grids)
    _pass_on(model, artifact, found)
    made = {name for node in artifact.graph.node for name in node.output}
    for name in wanted:
        if name not in found and name in made:
            found[name] = Reading(name, name, None)
    return {name: found[name] for name in wanted if name in found}


def _pass_on(model: ModelProto, artifact: ModelProto, found: dict[str, Reading]) -> None:
    """Where an activation function was taken out, its input's integers stand for its output: the range cuts off what it
    would have (QOperator keeps the input's name)."""
    kept = {node.name for node in artifact.graph.node}
    for node in model.graph.node:
        taken = found.get(node.input[0]) if node.input and node.op_type in _REMOVABLE else None
        if taken is None or taken.grid is None or node.name in kept:
            continue
        after = found.setdefault(node.output[0], Reading(node.output[0], taken.source, taken.grid))
        if after.source == taken.source:
            del found[node.input[0]]


def _put(found: dict[str, Reading], known: set[str], name: str, source: str, grids: Mapping[str, Grid]) -> None:
    for candidate in _names(name):
        if candidate in known and candidate not in found:
            found[candidate] = Reading(candidate, source, grids[source])
            return


def _names(name: str) -> Iterator[str]:
    yield name
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            yield name.removesuffix(suffix)


def _grids(artifact: ModelProto) -> dict[str, Grid]:
    """Of computed integer tensors, by name; those with one scale for all."""
    constants = initializers_of(artifact.graph)
    grids: dict[str, Grid] = {}
    for node in artifact.graph.node:
        if node.op_type in _OUTPUT_SCALE:
            grid = _grid(node, constants)
            if grid is not None and not _of_constant(node, constants):
                grids[node.output[0]] = grid
        elif node.op_type in _SAME_GRID and node.input and node.input[0] in grids:
            grids.update((name, grids[node.input[0]]) for name in node.output if name)
    return grids


def _of_constant(node: NodeProto, constants: Mapping[str, TensorProto]) -> bool:
    return node.op_type == QUANTIZE and node.input[0] in constants


def _grid(node: NodeProto, constants: Mapping[str, TensorProto]) -> Grid | None:
    at = _OUTPUT_SCALE[node.op_type]
    scale = constants.get(node.input[at]) if len(node.input) > at else None
    if scale is None:
        return None
    scales = numpy_helper.to_array(scale).astype(np.float64).ravel()
    if scales.size != 1:
        return None
    zero, kind = 0, int(attributes_of(node).get("output_dtype", 0)) or TensorProto.UINT8
    if len(node.input) > at + 1 and node.input[at + 1] in constants:
        tensor = constants[node.input[at + 1]]
        zero, kind = int(numpy_helper.to_array(tensor).astype(np.int64).ravel()[0]), tensor.data_type
    if kind not in _LIMITS:
        return None
    return Grid(float(scales[0]), zero, *_LIMITS[kind])


_LIMITS = {
    TensorProto.UINT8: (0, 255), TensorProto.INT8: (-128, 127), TensorProto.UINT16: (0, 65535),
    TensorProto.INT16: (-32768, 32767), TensorProto.UINT4: (0, 15), TensorProto.INT4: (-8, 7),
}  # fmt: skip
