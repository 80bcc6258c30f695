"""Latency of an ``.espdl`` model: a sum over its nodes. See :class:`ChipCosts`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from device_agents.emulated.espdl.model import Model, Node

from .spec import ChipCosts

_FILTERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
_WIDE = frozenset({1, 4, 5, 11})
"""float32, uint16, int16, float64 among the schema's data types."""


@dataclass(frozen=True)
class NodeCost:
    name: str
    op: str
    ms: float


def node_costs(
    model: Model, shapes: Mapping[str, tuple[int, ...]], costs: ChipCosts, *, in_flash: bool, multi_core: bool
) -> tuple[NodeCost, ...]:
    """Time of every node in milliseconds.

    ``shapes``: of every activation as computed (the file's are not to be relied on), without samples.
    """
    factor = (costs.multi_core_factor if multi_core else 1.0) * (costs.flash_factor if in_flash else 1.0)
    found = []
    for node in model.nodes:
        wide = any(model.values[name].dtype in _WIDE for name in node.outputs if name in model.values)
        width = costs.int16_factor if wide else 1.0
        written = 0.0 if node.op in _VIEWS else sum(math.prod(shapes.get(name, (0,))) for name in node.outputs) / 1e6
        macs = _macs(model, node, shapes) / 1e6
        ms = factor * width * (costs.ms_per_mmac * macs + costs.ms_per_mactivation * written)
        found.append(NodeCost(node.name, node.op, ms))
    return tuple(found)


def _macs(model: Model, node: Node, shapes: Mapping[str, tuple[int, ...]]) -> int:
    if node.op not in _FILTERS or len(node.inputs) < 2 or not node.outputs:
        return 0
    out = math.prod(shapes.get(node.outputs[0], (0,)))
    weights = model.constants.get(node.inputs[1])
    if weights is None:  # a product of two activations
        return out * (shapes.get(node.inputs[0], (1,)) or (1,))[-1]
    channels = max(1, shapes.get(node.outputs[0], (1,))[-1])
    if node.op == "ConvTranspose":
        return (
            math.prod(shapes.get(node.inputs[0], (0,)))
            * weights.values.size
            // max(1, shapes.get(node.inputs[0], (1,))[-1])
        )
    return out * weights.values.size // channels
