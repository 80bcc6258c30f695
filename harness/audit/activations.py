"""Activations that quantize badly, from what one pass over the calibration set saw. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto

from harness.audit.finding import Finding, set_to, shown
from harness.quantize.passes.masks import HUGE, mask_tensors
from harness.quantize.statistics import ActivationStatistics, Histogram

HIGH_PERCENTILE = 99.9
LONG_TAIL = 8.0
"""Largest magnitude over the 99.9 % one, from which 8 bits leave less than 5 for 99.9 % of the values. A normal
distribution has about 1.5 over a million values, a Laplace one 2."""
_MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split", "Concat"})
ENOUGH = 2_000
"""Values below which the 99.9 % quantile is next to the largest value and says nothing."""


@dataclass(frozen=True)
class Range:
    """What is reported of every activation."""

    tensor: str
    lowest: float
    highest: float
    high_percentile: float | None
    """99.9 % of all magnitudes are below; ``None`` where all values are zero."""
    count: int
    non_finite: int

    @property
    def tail(self) -> float | None:
        """Largest magnitude over the 99.9 % one."""
        if not self.high_percentile or self.count < ENOUGH:
            return None
        return max(-self.lowest, self.highest) / self.high_percentile


def ranges_of(statistics: Mapping[str, ActivationStatistics]) -> tuple[Range, ...]:
    """In the order of the graph."""
    return tuple(
        Range(
            name,
            stats.lowest,
            stats.highest,
            None if stats.histogram is None else magnitude_quantile(stats.histogram, HIGH_PERCENTILE / 100.0),
            stats.count,
            stats.non_finite,
        )
        for name, stats in statistics.items()
    )


def magnitude_quantile(histogram: Histogram, share: float) -> float:
    """The magnitude below which ``share`` of the values are; the far edge of its bin, so at most a bin too large."""
    half = len(histogram.counts) // 2
    folded = histogram.counts[half:] + histogram.counts[:half][::-1]
    reached = np.searchsorted(np.cumsum(folded), share * folded.sum())
    return float((min(int(reached), half - 1) + 1) * histogram.half_width / half)


def activation_findings(
    model: ModelProto, statistics: Mapping[str, ActivationStatistics], broken: Collection[str] = ()
) -> list[Finding]:
    """``model`` is the prepared one that ``statistics`` are of; ``broken`` names tensors in which there was a NaN or
    plus infinity, which no mask holds."""
    limits = {name: (stats.lowest, stats.highest) for name, stats in statistics.items()}
    non_finite = [name for name, stats in statistics.items() if stats.non_finite]
    masks = mask_tensors(model, limits, non_finite)
    makers = {name: node for node in model.graph.node for name in node.output}
    findings = [_broken(name, statistics[name]) for name in non_finite if name in broken]
    findings += _masks(model, masks - set(broken), statistics)
    shares = _shares(model)
    tails = [
        found
        for found in ranges_of(statistics)
        if found.tensor not in masks and found.tensor not in shares and (found.tail or 0.0) >= LONG_TAIL
    ]
    if tails:
        findings.append(_long_tails(sorted(tails, key=lambda found: -(found.tail or 0.0)), makers))
    seen = {name: stats for name, stats in statistics.items() if name not in masks}
    return [*findings, *_dead(seen, makers)]


def _shares(model: ModelProto) -> set[str]:
    """Results of Softmax, also moved around: most are next to zero, and the few large ones are the answer."""
    found: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "Softmax" or (node.op_type in _MOVES and node.input[0] in found):
            found.update(node.output)
    return found


def _broken(name: str, stats: ActivationStatistics) -> Finding:
    total = stats.count + stats.non_finite
    return Finding(
        code="non_finite_activation",
        severity="error",
        what=f"activation {name!r} of the float model is NaN or infinite in {stats.non_finite} of {total} values",
        where=(name,),
        evidence={"non_finite": stats.non_finite, "values": total},
        advice="look at the calibration samples and the operator before it (a division, Log, Sqrt or Exp); its readers "
        "stay in float",
    )


def _masks(model: ModelProto, masks: Collection[str], statistics: Mapping[str, ActivationStatistics]) -> list[Finding]:
    if not masks:
        return []
    nodes = [node.name for node in model.graph.node if set(masks).intersection((*node.input, *node.output))]
    largest = max((max(-s.lowest, s.highest) for n, s in statistics.items() if n in masks), default=None)
    return [
        Finding(
            code="mask",
            severity="info",
            what=f"masks (minus infinity, or {HUGE:g} and more) are in {len(masks)} tensors; the operators that touch "
            "them stay in float",
            where=(*sorted(masks)[:8], *nodes[:8]),
            evidence={"tensors": sorted(masks), "nodes": nodes, "largest_magnitude": largest},
            advice="nothing for boardtune: it keeps masks out of every range. A smaller constant (-100) before the "
            "Softmax would let these operators be quantized",
        )
    ]


def _long_tails(tails: Sequence[Range], makers: Mapping[str, NodeProto]) -> Finding:
    worst = tails[0]
    tail = worst.tail or 0.0
    maker = makers.get(worst.tensor)
    at = f" ({maker.op_type} {maker.name!r})" if maker is not None else ""
    others = f"; {len(tails) - 1} more activations have long tails" if len(tails) > 1 else ""
    return Finding(
        code="long_tail",
        severity="warning",
        what=f"activation {worst.tensor!r}{at} reaches {tail:.3g} times its {HIGH_PERCENTILE:g} % magnitude: with "
        f"minmax ranges, that share of the values shares {255.0 / tail:.0f} of 255 levels{others}",
        where=tuple(found.tensor for found in tails[:16]),
        evidence={
            "activations": {
                found.tensor: {
                    "lowest": found.lowest,
                    "highest": found.highest,
                    "percentile": HIGH_PERCENTILE,
                    "percentile_magnitude": found.high_percentile,
                    "largest_over_percentile": found.tail,
                    "levels_left": 255.0 / (found.tail or 1.0),
                }
                for found in tails
            }
        },
        advice="clip the tail (calibration: {method: percentile, percentile: 99.9} or mse), or, where the outliers "
        f"matter, 16 bits for these tensors (overrides: {{{worst.tensor}: uint16}})",
        changes=set_to(calibration__method="percentile", calibration__percentile=HIGH_PERCENTILE),
    )


def _dead(statistics: Mapping[str, ActivationStatistics], makers: Mapping[str, NodeProto]) -> list[Finding]:
    findings = []
    zero = [name for name, stats in statistics.items() if stats.lowest == stats.highest == 0.0]
    if zero:
        findings.append(
            Finding(
                code="dead_activation",
                severity="warning",
                what=f"{len(zero)} activations are zero in all values that calibration saw: {shown(zero)}",
                where=tuple(zero[:16]),
                evidence={"activations": {name: {"values": statistics[name].count} for name in zero}},
                advice="calibrate on samples that use them: a range of nothing clips whatever comes",
            )
        )
    dead = {name: dead_channels(stats) for name, stats in statistics.items() if name not in zero}
    dead = dict(sorted(((n, found) for n, found in dead.items() if found.size), key=lambda item: -item[1].size))
    if dead:
        worst = next(iter(dead))
        maker = makers.get(worst)
        at = f" ({maker.op_type} {maker.name!r})" if maker is not None else ""
        findings.append(
            Finding(
                code="dead_channels",
                severity="info",
                what=f"{sum(found.size for found in dead.values())} channels of {len(dead)} activations are never "
                f"other than zero over the calibration set, most in {worst!r}{at} ({dead[worst].size} of "
                f"{_channels(statistics[worst])})",
                where=tuple(list(dead)[:16]),
                evidence={
                    "activations": {
                        name: {
                            "channels": found[:32].tolist(),
                            "dead": int(found.size),
                            "of": _channels(statistics[name]),
                        }
                        for name, found in dead.items()
                    }
                },
                advice="dead units, or a calibration set that does not reach them: give more varied samples; if they "
                "stay dead, prune them",
            )
        )
    return findings


def _channels(stats: ActivationStatistics) -> int:
    return 0 if stats.channels is None else len(stats.channels.lowest)


def dead_channels(stats: ActivationStatistics) -> npt.NDArray[np.intp]:
    """Channels with no value but zero, where channels are told apart."""
    if stats.channels is None:
        return np.zeros(0, np.intp)
    return np.flatnonzero((stats.channels.lowest == 0.0) & (stats.channels.highest == 0.0))
