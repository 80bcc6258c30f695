"""Weights that quantize badly: channels that are all zero, and channels of very different size. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
VANISHING = 1e-9
"""Of the largest channel: no format here tells it from zero."""
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
        """Channels whose weights are all zero, or as good as (normalizations of pruned channels leave 1e-40)."""
        return np.flatnonzero(self.magnitudes <= VANISHING * self.magnitudes.max(initial=0.0))

    @property
    def spread(self) -> float:
        """Largest over smallest magnitude among channels that are not dead; 1 where there are none."""
        alive = np.delete(self.magnitudes, self.dead)
        return float(alive.max() / alive.min()) if alive.size else 1.0

    @property
    def lost(self) -> npt.NDArray[np.intp]:
        """Channels that are not dead, and have fewer than :data:`LOST_LEVELS` levels with one scale for all."""
        step = float(self.magnitudes.max(initial=0.0)) / LEVELS
        small = np.flatnonzero(self.magnitudes < LOST_LEVELS * step)
        return np.setdiff1d(small, self.dead)


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
    """One for each kind, the worst operators first in it."""
    weights = list(weights_of(model))
    findings = [_not_finite(weight) for weight in weights if not weight.finite]
    spread = [weight for weight in weights if weight.lost.size >= max(1.0, LOST_SHARE * len(weight.magnitudes))]
    if spread:
        findings.append(_spread(sorted(spread, key=lambda weight: -weight.lost.size / len(weight.magnitudes))))
    dead = [weight for weight in weights if weight.dead.size]
    if dead:
        findings.append(_dead(sorted(dead, key=lambda weight: -weight.dead.size)))
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


def _dead(weights: Sequence[Weight]) -> Finding:
    worst = weights[0]
    biased = any(w.biases is not None and bool(np.any(w.biases[w.dead] != 0.0)) for w in weights)
    constant = "; some give their bias, whatever the input" if biased else ""
    return Finding(
        code="dead_weights",
        severity="info",
        what=f"{sum(w.dead.size for w in weights)} output channels of {len(weights)} operators have only zero weights, "
        f"most in {worst.op_type} {worst.node!r} ({worst.dead.size} of {len(worst.magnitudes)}){constant}",
        where=tuple(weight.node for weight in weights[:16]),
        evidence={
            "operators": {
                w.node: {"channels": w.dead[:32].tolist(), "dead": int(w.dead.size), "of": len(w.magnitudes)}
                for w in weights
            }
        },
        advice="they cost time and memory for nothing: prune them before quantizing (boardtune does not)",
    )


def _spread(weights: Sequence[Weight]) -> Finding:
    worst = weights[0]
    kind = "depthwise Conv" if worst.depthwise else worst.op_type
    others = f"; so do those of {len(weights) - 1} more operators" if len(weights) > 1 else ""
    return Finding(
        code="weight_spread",
        severity="warning",
        what=f"channels of {kind} {worst.node!r} differ {worst.spread:.3g} times in size: with one scale for all, "
        f"{worst.lost.size} of {len(worst.magnitudes)} have fewer than {LOST_LEVELS:g} of {LEVELS} levels{others}",
        where=tuple(weight.node for weight in weights[:16]),
        evidence={
            "operators": {
                weight.node: {
                    "largest_over_smallest": weight.spread,
                    "lost_channels": weight.lost[:32].tolist(),
                    "lost": int(weight.lost.size),
                    "of": len(weight.magnitudes),
                    "depthwise": weight.depthwise,
                }
                for weight in weights
            }
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
