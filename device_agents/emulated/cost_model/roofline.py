"""Time of one executed node on one unit: ``max(MACs / rate, elements / rate, bytes / bandwidth) + launch``.

The roofline model of Williams, Waterman and Patterson (CACM 52(4), 2009), with a launch overhead per node as in
operator-level predictors (nn-Meter, MobiSys 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

from device_agents.emulated.spec import Accelerator, DataType, Processor, Unit

from .graph import Effort


@dataclass(frozen=True)
class Work:
    """What one node asks for, in the data type it runs in."""

    effort: Effort
    data_type: DataType
    moved_bytes: int


def parallelism(processor: Processor, threads: int) -> float:
    """How many cores ``threads`` threads are worth; 0 threads means one per core."""
    wanted = threads if threads > 0 else processor.cores
    return 1.0 + (min(wanted, processor.cores) - 1) * processor.parallel_efficiency


def node_ns(unit: Unit, work: Work, threads: int = 1) -> float:
    """Nanoseconds of one execution, launch included."""
    launch_ns = unit.launch_us * 1e3
    alone = _busy_ns(unit, work, 1.0)
    if isinstance(unit, Accelerator) or not isinstance(unit, Processor):
        return launch_ns + alone
    speed = parallelism(unit, threads)
    if speed <= 1.0:
        return launch_ns + alone
    # The runtime splits a node only where that pays for waking the threads.
    return launch_ns + min(alone, _busy_ns(unit, work, speed) + unit.fork_join_us * 1e3)


def _busy_ns(unit: Unit, work: Work, speed: float) -> float:
    effort = work.effort
    rate = unit.gmac_per_s[work.data_type] * unit.efficiency.get(effort.kind, 1.0)
    if effort.channels:
        rate *= effort.channels / (effort.channels + unit.half_channels)
    compute = effort.macs / (rate * speed)
    elements = effort.elements * unit.element_cost.get(effort.kind, 1.0) / (unit.gelement_per_s * speed)
    if unit.cache_gb_s is not None and work.moved_bytes <= unit.cache_mb * 1e6:
        moved = work.moved_bytes / (unit.cache_gb_s * speed)
    else:
        moved = work.moved_bytes / unit.memory_gb_s
    return max(compute, elements, moved)
