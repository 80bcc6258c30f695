"""Activations that quantize badly, from what one pass over the calibration set saw. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto

from harness.audit.finding import Finding, set_to
from harness.quantize.passes.masks import HUGE, mask_tensors
from harness.quantize.statistics import ActivationStatistics, Histogram

HIGH_PERCENTILE = 99.9
LONG_TAIL = 8.0
"""Largest magnitude over the 99.9 % one, from which 8 bits leave less than 5 for 99.9 % of the values. A normal
distribution has about 1.5 over a million values, a Laplace one 2."""
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
    for found in ranges_of(statistics):
        if found.tensor in masks:
            continue
        if found.tail is not None and found.tail >= LONG_TAIL:
            findings.append(_long_tail(found, found.tail, makers.get(found.tensor)))
        findings += _dead(found.tensor, statistics[found.tensor], makers.get(found.tensor))
    return findings


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


def _long_tail(found: Range, tail: float, maker: NodeProto | None) -> Finding:
    levels = 255.0 / tail
    at = f" ({maker.op_type} {maker.name!r})" if maker is not None else ""
    return Finding(
        code="long_tail",
        severity="warning",
        what=f"activation {found.tensor!r}{at} reaches {tail:.3g} times its {HIGH_PERCENTILE:g} % magnitude: with "
        f"minmax ranges, that share of the values shares {levels:.0f} of 255 levels",
        where=(found.tensor, *((maker.name,) if maker is not None else ())),
        evidence={
            "lowest": found.lowest,
            "highest": found.highest,
            "percentile": HIGH_PERCENTILE,
            "percentile_magnitude": found.high_percentile,
            "largest_over_percentile": tail,
            "levels_left": levels,
        },
        advice="clip the tail (calibration: {method: percentile, percentile: 99.9} or mse), or, where the outliers "
        f"matter, 16 bits for this tensor (overrides: {{{found.tensor}: uint16}})",
        changes=set_to(calibration__method="percentile", calibration__percentile=HIGH_PERCENTILE),
    )


def _dead(name: str, stats: ActivationStatistics, maker: NodeProto | None) -> list[Finding]:
    if stats.lowest == stats.highest == 0.0:
        return [
            Finding(
                code="dead_activation",
                severity="warning",
                what=f"activation {name!r} is zero in all {stats.count} values that calibration saw",
                where=(name, *((maker.name,) if maker is not None else ())),
                evidence={"values": stats.count},
                advice="calibrate on samples that use it: a range of nothing clips whatever comes",
            )
        ]
    dead = dead_channels(stats)
    # What a convolution reads: after the activation function, where a channel can die.
    if not dead.size or stats.channels is None:
        return []
    return [
        Finding(
            code="dead_channels",
            severity="info",
            what=f"{dead.size} of {len(stats.channels.lowest)} channels of activation {name!r} are never other than "
            "zero over the calibration set",
            where=(name, *((maker.name,) if maker is not None else ())),
            evidence={"channels": dead[:32].tolist(), "dead": int(dead.size), "of": len(stats.channels.lowest)},
            advice="dead units, or a calibration set that does not reach them: give more varied samples; if they stay "
            "dead, prune them",
        )
    ]


def dead_channels(stats: ActivationStatistics) -> npt.NDArray[np.intp]:
    """Channels with no value but zero, where channels are told apart."""
    if stats.channels is None:
        return np.zeros(0, np.intp)
    return np.flatnonzero((stats.channels.lowest == 0.0) & (stats.channels.highest == 0.0))
