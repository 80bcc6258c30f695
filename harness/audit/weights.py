"""Weights that quantize badly: channels that are all zero, and channels of very different size. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, numpy_helper

from harness.audit.finding import Finding, set_to, shown
from harness.quantize.graph import attributes_of, initializers_of
from harness.recipes.facts import WEIGHTED_OPERATORS

LEVELS = 127
"""Of a symmetric 8-bit weight on each side of zero."""
LOST_LEVELS = 4.0
"""A channel whose largest weight has fewer levels than this under one scale for all is as good as 3-bit."""
LOST_SHARE = 0.05
"""Of channels that are lost so, from which it is worth a warning."""


@dataclass(frozen=True)
class Weight:
    """A constant matrix or kernel with the largest magnitude of each output channel."""

    node: str
    op_type: str
    tensor: str
    magnitudes: npt.NDArray[np.float64]
    """float64 [output channels]."""
    biases: npt.NDArray[np.float64] | None
    """float64 [output channels] where there is a constant bias."""
    depthwise: bool
    finite: bool

    @property
    def dead(self) -> npt.NDArray[np.intp]:
        """Channels whose weights are all zero."""
        return np.flatnonzero(self.magnitudes == 0.0)

    @property
    def spread(self) -> float:
        """Largest over smallest magnitude among channels that are not dead; 1 where there are none."""
        alive = self.magnitudes[self.magnitudes > 0.0]
        return float(alive.max() / alive.min()) if alive.size else 1.0

    @property
    def lost(self) -> npt.NDArray[np.intp]:
        """Channels that are not dead, and have fewer than :data:`LOST_LEVELS` levels with one scale for all."""
        step = float(self.magnitudes.max(initial=0.0)) / LEVELS
        return np.flatnonzero((self.magnitudes > 0.0) & (self.magnitudes < LOST_LEVELS * step))


def weights_of(model: ModelProto) -> Iterator[Weight]:
    """Constant weights of the main graph's convolutions and matrix products."""
    constants = initializers_of(model.graph)
    for node in model.graph.node:
        if node.op_type not in WEIGHTED_OPERATORS or len(node.input) < 2 or node.input[1] not in constants:
            continue
        values = numpy_helper.to_array(constants[node.input[1]]).astype(np.float64)
        table = _by_output_channel(node, values)
        if table is None or table.size == 0:
            continue
        bias = None
        if len(node.input) > 2 and node.input[2] in constants:
            found = numpy_helper.to_array(constants[node.input[2]]).astype(np.float64).ravel()
            bias = found if found.size == len(table) else None
        group = int(attributes_of(node).get("group", 1))
        yield Weight(
            node=node.name,
            op_type=node.op_type,
            tensor=node.input[1],
            magnitudes=np.abs(np.nan_to_num(table, posinf=0.0, neginf=0.0)).max(axis=1),
            biases=bias,
            depthwise=node.op_type == "Conv" and group > 1 and values.shape[1] == 1,
            finite=bool(np.isfinite(values).all()),
        )


def weight_findings(model: ModelProto) -> list[Finding]:
    findings: list[Finding] = []
    for weight in weights_of(model):
        if not weight.finite:
            findings.append(_not_finite(weight))
        dead = weight.dead
        if dead.size:
            findings.append(_dead(weight, dead))
        lost = weight.lost
        if len(weight.magnitudes) > 1 and lost.size >= max(1.0, LOST_SHARE * len(weight.magnitudes)):
            findings.append(_spread(weight, lost))
    return findings


def _by_output_channel(node: NodeProto, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
    """[output channels, weights of each]; ``None`` for what is no matrix."""
    if node.op_type == "Conv":
        return values.reshape(len(values), -1) if values.ndim > 1 else None
    if node.op_type == "ConvTranspose":
        group = int(attributes_of(node).get("group", 1))
        if values.ndim < 3 or len(values) % group:
            return None
        # [inputs, outputs of a group, window]: inputs of one group belong to outputs of that group.
        parts = values.reshape(group, len(values) // group, values.shape[1], -1)
        return parts.transpose(0, 2, 1, 3).reshape(group * values.shape[1], -1)
    if values.ndim < 2:
        return None
    if node.op_type == "Gemm" and attributes_of(node).get("transB"):
        return values
    return np.moveaxis(values, -1, 0).reshape(values.shape[-1], -1)


def _dead(weight: Weight, dead: npt.NDArray[np.intp]) -> Finding:
    biased = weight.biases is not None and bool(np.any(weight.biases[dead] != 0.0))
    constant = "; they give their bias, whatever the input" if biased else ""
    return Finding(
        code="dead_weights",
        severity="info",
        what=f"{dead.size} of {len(weight.magnitudes)} output channels of {weight.op_type} {weight.node!r} have only "
        f"zero weights{constant}",
        where=(weight.node, weight.tensor),
        evidence={"channels": dead[:32].tolist(), "dead": int(dead.size), "of": len(weight.magnitudes)},
        advice="they cost time and memory for nothing: prune them before quantizing (boardtune does not)",
    )


def _spread(weight: Weight, lost: npt.NDArray[np.intp]) -> Finding:
    kind = "depthwise Conv" if weight.depthwise else weight.op_type
    return Finding(
        code="weight_spread",
        severity="warning",
        what=f"channels of {kind} {weight.node!r} differ {weight.spread:.3g} times in size: with one scale for all, "
        f"{lost.size} of {len(weight.magnitudes)} have fewer than {LOST_LEVELS:g} of {LEVELS} levels",
        where=(weight.node, weight.tensor),
        evidence={
            "largest_over_smallest": weight.spread,
            "lost_channels": lost[:32].tolist(),
            "lost": int(lost.size),
            "of": len(weight.magnitudes),
            "depthwise": weight.depthwise,
        },
        advice="give each channel its own scale (granularity: per_channel); where the board takes one scale only, even "
        "the channels out first (equalize: true)",
        changes=set_to(granularity="per_channel"),
    )


def _not_finite(weight: Weight) -> Finding:
    return Finding(
        code="weights_not_finite",
        severity="error",
        what=f"weights of {weight.op_type} {weight.node!r} are NaN or infinite: it stays in float",
        where=(weight.node, weight.tensor),
        evidence={"tensor": weight.tensor},
        advice=f"export the model again; a recipe leaves {shown((weight.node,))} in float by itself",
        changes=set_to(exclude_nodes=[weight.node]),
    )
