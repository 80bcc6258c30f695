"""The placement receipt: the artifact's nodes mapped to provider, fused or folded, from two sources.

Source one is the runtime's own assignment list (ONNX Runtime with ``session.record_ep_graph_assignment_info``), source
two the kernels of a profiled inference. Where only the CPU provider is asked for, the answer is known beforehand.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

from .onnx_nodes import Node
from .platform import KernelTime

CPU = "CPUExecutionProvider"
_NO_KERNEL = frozenset(("Constant",))
"""Operators that become initializers when the model is loaded and never run."""
_LAYOUT_SUFFIXES = ("_nchwc", "_nhwc", "_quant", "_token_0")


def receipt(
    nodes: Sequence[Node],
    providers: Sequence[str],
    assignment: Optional[Mapping[str, Sequence[str]]],
    profile: Sequence[KernelTime],
) -> Dict[str, Any]:
    """The fields of ``contract.Placement``.

    ``nodes``: the artifact's nodes; ``providers``: those asked for; ``assignment``: provider -> node names or ``None``;
    ``profile``: executed kernels, empty where there was no profile.
    """
    cpu_only = all(provider == CPU for provider in providers)
    carried = _carried(nodes, profile)
    ran: Dict[str, List[str]] = {}
    fused: List[str] = []
    assigned = {name: provider for provider, names in (assignment or {}).items() for name in names}
    for node in nodes:
        provider = carried.get(node.name)
        if provider is None:
            provider = assigned.get(node.name)
            if provider == CPU and profile:
                provider = None  # a CPU kernel shows itself in the profile; this node went into another one
        if provider is None and not profile and assignment is None and cpu_only and node.op_type not in _NO_KERNEL:
            provider = CPU
        if provider is None:
            fused.append(node.name)
        else:
            ran.setdefault(provider, []).append(node.name)
    return {
        "nodes": ran,
        "fused": fused,
        "evidence": _evidence(cpu_only, assignment, profile),
        "agrees": _agrees(cpu_only, assigned, assignment, carried, profile),
        "offload_ratio": None if cpu_only else _offload_ratio(assignment, profile),
        "time_share": _time_share(profile),
        "fallback_reasons": {},
    }


def _carried(nodes: Sequence[Node], profile: Sequence[KernelTime]) -> Dict[str, str]:
    """Artifact node -> provider, for the nodes an executed kernel carries.

    A fused kernel keeps the name of one of its nodes, or of the output it makes, with or without a layout suffix.
    """
    by_name = {node.name: node.name for node in nodes}
    for node in nodes:
        for output in node.outputs:
            by_name.setdefault(output, node.name)
    out: Dict[str, str] = {}
    for kernel in profile:
        name = by_name.get(kernel.node)
        if name is None:
            for suffix in _LAYOUT_SUFFIXES:
                if kernel.node.endswith(suffix):
                    name = by_name.get(kernel.node[: -len(suffix)])
                    break
        if name is not None:
            out.setdefault(name, kernel.provider)
    return out


def _evidence(
    cpu_only: bool, assignment: Optional[Mapping[str, Sequence[str]]], profile: Sequence[KernelTime]
) -> List[str]:
    out = ["cpu-only"] if cpu_only else []
    if assignment is not None:
        out.append("ort-graph-assignment")
    if profile:
        out.append("ort-profile")
    return out


def _agrees(
    cpu_only: bool,
    assigned: Mapping[str, str],
    assignment: Optional[Mapping[str, Sequence[str]]],
    carried: Mapping[str, str],
    profile: Sequence[KernelTime],
) -> Optional[bool]:
    """Whether the profile contradicts the first source; ``None`` without two sources."""
    if not profile or (assignment is None and not cpu_only):
        return None
    seen = {kernel.provider for kernel in profile}
    if cpu_only and seen != {CPU}:
        return False
    if assignment is None:
        return True
    # A provider that took nodes but ran no kernel accepted the model and did not execute it. (Not so for the CPU: all
    # of its nodes may have been folded.)
    idle: Set[str] = {provider for provider, names in assignment.items() if names and provider != CPU} - seen
    moved = [name for name, provider in carried.items() if assigned.get(name, provider) != provider]
    return not idle and not moved


def _offload_ratio(assignment: Optional[Mapping[str, Sequence[str]]], profile: Sequence[KernelTime]) -> Optional[float]:
    """By nodes of the assignment where there is one; else by kernels, where a compiled subgraph counts once."""
    if assignment is not None:
        total = sum(len(names) for names in assignment.values())
        return 1.0 - len(assignment.get(CPU, ())) / total if total else None
    if profile:
        return sum(kernel.provider != CPU for kernel in profile) / len(profile)
    return None


def _time_share(profile: Sequence[KernelTime]) -> Dict[str, float]:
    total = sum(kernel.duration_ns for kernel in profile)
    share: Dict[str, float] = {}
    for kernel in profile:
        share[kernel.provider] = share.get(kernel.provider, 0.0) + kernel.duration_ns
    return {provider: value / total for provider, value in share.items()} if total else {}
