"""The placement receipt: the artifact's nodes mapped to provider, fused or folded, from two sources.

Source one is the runtime's own assignment list (ONNX Runtime with ``session.record_ep_graph_assignment_info``), source
two the kernels of a profiled inference. Where only the CPU provider is asked for, the answer is known beforehand.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set

from .onnx_nodes import Graph, Node
from .platform import KernelTime

CPU = "CPUExecutionProvider"
_LAYOUT_SUFFIX = re.compile(r"_(nchwc|nhwc|quant|token_\d+)$")
_NOTHING_TO_DO = frozenset(("Constant", "Identity", "Dropout"))
"""Operators that the runtime removes when it loads a model for inference."""


class Profile(NamedTuple):
    """What a profiled inference showed; empty if there was none."""

    kernels: Sequence[KernelTime] = ()
    refusals: Mapping[str, str] = {}
    """Node -> why an accelerator did not take it, in the runtime's words."""
    assignment: Optional[Mapping[str, Sequence[str]]] = None
    """Where nodes without a name have one."""


def whole_assignment(
    loaded: Optional[Mapping[str, Sequence[str]]], profile: Profile
) -> Optional[Mapping[str, Sequence[str]]]:
    """The loaded session's assignment, with names from the profiled one's where nodes have none.

    The profiled session divided the graph alike if each provider has as many nodes; otherwise it says nothing of the
    loaded one.
    """
    named = profile.assignment
    if loaded is None or named is None or all(name for names in loaded.values() for name in names):
        return loaded
    sizes = {provider: len(names) for provider, names in loaded.items()}
    return named if sizes == {provider: len(names) for provider, names in named.items()} else loaded


def receipt(
    graph: Graph,
    providers: Sequence[str],
    assignment: Optional[Mapping[str, Sequence[str]]],
    profile: Sequence[KernelTime],
) -> Dict[str, Any]:
    """The fields of ``contract.Placement``; each of the graph's nodes is under ``nodes``, ``fused`` or ``folded``.

    ``graph``: the artifact's; ``providers``: those asked for; ``assignment``: provider -> node names or ``None``;
    ``profile``: executed kernels, empty where there was no profile.
    """
    cpu_only = all(provider == CPU for provider in providers)
    resolve = _names(graph.nodes)
    carried = _carried(resolve, profile)
    assigned = _assigned(resolve, assignment)
    # Without any source, a board that has only its CPU runs everything there.
    known_beforehand = cpu_only and not profile and assignment is None
    executing = {kernel.provider for kernel in profile}
    constant = _constant(graph)
    ran: Dict[str, List[str]] = {}
    fused: List[str] = []
    folded: List[str] = []
    for node in graph.nodes:
        provider = carried.get(node.name)
        claimed = assigned.get(node.name)
        if provider is None and claimed is not None:
            # Compiled into a kernel that carries no node's name. The CPU has no such kernels: its nodes show
            # themselves in the profile, or went into one that does.
            shown = claimed in executing and claimed != CPU
            provider = claimed if shown or not profile else None
        if provider is None and known_beforehand and node.name not in constant:
            provider = CPU
        if provider is not None:
            ran.setdefault(provider, []).append(node.name)
        elif node.name in constant and claimed is None:
            folded.append(node.name)
        else:
            fused.append(node.name)
    return {
        "nodes": ran,
        "fused": fused,
        "folded": folded,
        "evidence": _evidence(cpu_only, assignment, profile),
        "agrees": _agrees(cpu_only, assigned, assignment, carried, profile),
        "offload_ratio": None if cpu_only else _offload_ratio(assigned, assignment, carried, profile),
        "time_share": _time_share(profile),
        "fallback_reasons": {},
    }


def _constant(graph: Graph) -> Set[str]:
    """Names of the nodes that depend on no input of the model, or do nothing."""
    fixed = {"", *graph.initializers}
    out: Set[str] = set()
    for node in graph.nodes:
        if node.op_type == "Constant" or (node.inputs and all(name in fixed for name in node.inputs)):
            fixed.update(node.outputs)
            out.add(node.name)
        elif node.op_type in _NOTHING_TO_DO:
            out.add(node.name)
    return out


def _names(nodes: Sequence[Node]) -> Callable[[str], Optional[str]]:
    """From what the runtime calls a node to the artifact's node; ``None`` for those it inserted.

    A fused kernel keeps the name of one of its nodes, or of the output it makes; one in another memory layout has a
    suffix (``_nchwc``, ``_token_12``).
    """
    by_name = {node.name: node.name for node in nodes}
    for node in nodes:
        for output in node.outputs:
            by_name.setdefault(output, node.name)

    def resolve(name: str) -> Optional[str]:
        return by_name.get(name) or by_name.get(_LAYOUT_SUFFIX.sub("", name))

    return resolve


def _carried(resolve: Callable[[str], Optional[str]], profile: Sequence[KernelTime]) -> Dict[str, str]:
    """Artifact node -> provider, for the nodes an executed kernel carries."""
    out: Dict[str, str] = {}
    for kernel in profile:
        name = resolve(kernel.node)
        if name is not None:
            out.setdefault(name, kernel.provider)
    return out


def _assigned(
    resolve: Callable[[str], Optional[str]], assignment: Optional[Mapping[str, Sequence[str]]]
) -> Dict[str, str]:
    """Artifact node -> provider, by the runtime's own list."""
    out: Dict[str, str] = {}
    for provider, names in (assignment or {}).items():
        for each in names:
            name = resolve(each)
            if name is not None:
                out.setdefault(name, provider)
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


def _offload_ratio(
    assigned: Mapping[str, str],
    assignment: Optional[Mapping[str, Sequence[str]]],
    carried: Mapping[str, str],
    profile: Sequence[KernelTime],
) -> Optional[float]:
    """By nodes of the assignment where there is one; else by kernels, where a compiled subgraph counts once.

    The profile corrects the assignment: a node that ran on the CPU was not offloaded, nor was one whose provider ran no
    kernel, nor one that the assignment leaves out (as ONNX Runtime 1.24 does with some of the CPU's).
    """
    if assignment is None:
        return sum(kernel.provider != CPU for kernel in profile) / len(profile) if profile else None
    executing = {kernel.provider for kernel in profile}
    final = {name: provider if not profile or provider in executing else CPU for name, provider in assigned.items()}
    final.update(carried)
    return sum(provider != CPU for provider in final.values()) / len(final) if final else None


def _time_share(profile: Sequence[KernelTime]) -> Dict[str, float]:
    total = sum(kernel.duration_ns for kernel in profile)
    share: Dict[str, float] = {}
    for kernel in profile:
        share[kernel.provider] = share.get(kernel.provider, 0.0) + kernel.duration_ns
    return {provider: value / total for provider, value in share.items()} if total else {}
