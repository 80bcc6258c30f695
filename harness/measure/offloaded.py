"""Whether an accelerator that claims a model's nodes computes what the CPU computes, and in a time of its own. Pure.

A provider's word is no proof: some accept a model, run it on the CPU and report every node as theirs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from device_agents.contract import Tensors
from harness.measure.plausibility import same_outputs

BLOCKS = 5
"""Of each kind. If the two took the same time, all medians of one kind would lie on one side of all of the other's in
2 of the 252 equally likely orders of five and five (0.8 %)."""

LEAST_DIFFERENCE = 0.10
"""Of the medians, as a share of the smaller. Two processes that do the same differ by up to 3 % (what
``benchmarks/fidelity.py`` allows), and so steadily that blocks alone tell them apart."""


@dataclass(frozen=True)
class CpuComparison:
    """The model as the board runs it, beside the same model on the board's CPU provider alone."""

    outputs_differ: str | None
    """Where, and by how much more than allowed."""
    tolerance: float
    """Share of the largest magnitude of an output that may differ."""
    latency_ns: float
    """Median of block medians."""
    cpu_latency_ns: float
    distinguishable: bool
    """Whether the block medians of the two do not mix, and lie apart by :data:`LEAST_DIFFERENCE`."""

    @property
    def problems(self) -> tuple[str, ...]:
        found = []
        if self.outputs_differ is not None:
            found.append(f"the accelerator computes something else than the CPU: {self.outputs_differ}")
        if not self.distinguishable:
            found.append("it takes as long as on the CPU: what the accelerator claims may have run there")
        return tuple(found)


def compare(
    outputs: Tensors,
    cpu_outputs: Tensors,
    medians_ns: Sequence[float],
    cpu_medians_ns: Sequence[float],
    tolerance: float,
) -> CpuComparison:
    """``outputs``: arrays [samples, ...] of the same samples; ``medians_ns``: of blocks, measured in turn with the
    CPU's, at least one each."""
    apart = max(medians_ns) < min(cpu_medians_ns) or max(cpu_medians_ns) < min(medians_ns)
    ours, cpu = statistics.median(medians_ns), statistics.median(cpu_medians_ns)
    apart = apart and max(ours, cpu) >= min(ours, cpu) * (1.0 + LEAST_DIFFERENCE)
    return CpuComparison(
        outputs_differ=same_outputs(outputs, cpu_outputs, tolerance),
        tolerance=tolerance,
        latency_ns=ours,
        cpu_latency_ns=cpu,
        distinguishable=apart,
    )
