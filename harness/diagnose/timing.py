"""Where time went: what stayed in float, conversions that remain, fallbacks, and small models that are slow. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from harness.audit.finding import Finding, shown
from harness.diagnose.changes import (
    Changes,
    everything,
    first_that_changes,
    leave_in_float,
    only,
    signed_weights,
    static,
)
from harness.diagnose.facts import ArtifactNode, BoardFacts, TimeFacts
from harness.recipes.facts import WEIGHTED_OPERATORS
from harness.units import format_bytes, format_ns

SMALLER = 0.8
"""Of float's size: what is called small."""
CPU = "CPUExecutionProvider"
X86 = frozenset({"x86_64", "AMD64", "amd64", "i686"})
ENDS = 2
"""Conversions at the ends of a model (each input, each output) that no recipe avoids, more or less."""


def time_findings(facts: TimeFacts) -> list[Finding]:
    findings = []
    slow = [board for board in facts.boards if board.slower]
    for board in slow:
        if facts.size_bytes <= SMALLER * facts.float_size_bytes:
            findings.append(_small_but_slow(facts, board))
    findings += _left_in_float(facts, bool(slow))
    findings += _switches(facts, bool(slow))
    for board in facts.boards:
        findings += _fallbacks(facts, board)
    return findings


def executed_switches(nodes: Sequence[ArtifactNode], placement: Mapping[str, object]) -> list[ArtifactNode]:
    """Conversions that ran as nodes of their own: those the receipt names on the processor; without a receipt of
    executed kernels, those at the borders of what computes in float."""
    ran, evidence = placement.get("nodes"), placement.get("evidence")
    profiled = isinstance(evidence, list | tuple) and bool({"ort-profile", "emulated-cost-model"} & set(evidence))
    if not profiled or not isinstance(ran, Mapping):
        return [node for node in nodes if node.kind == "switch"]
    on_cpu = set(ran.get(CPU, ()))
    return [node for node in nodes if node.kind in ("switch", "folded") and node.name in on_cpu]


def _small_but_slow(facts: TimeFacts, board: BoardFacts) -> Finding:
    ours, theirs = board.latency_ns or 0.0, board.float_latency_ns or 1.0
    share = facts.size_bytes / facts.float_size_bytes
    why, changes = _why_slow(facts, board)
    floats = Counter(node.op_type for node in facts.nodes if node.kind == "float")
    switches = executed_switches(facts.nodes, board.placement)
    return Finding(
        code="small_but_slow",
        severity="warning",
        what=f"on {board.name} it takes {format_ns(ours)} where float takes {format_ns(theirs)} "
        f"({ours / theirs:.2f} times), though it has {share:.0%} of the size: {why}",
        where=(board.name,),
        evidence={
            "latency_ns": ours,
            "float_latency_ns": theirs,
            "size_bytes": facts.size_bytes,
            "float_size_bytes": facts.float_size_bytes,
            "operators_in_float": dict(floats),
            "conversions": len(switches),
            "converted_bytes": sum(node.moved_bytes for node in switches),
            "time_share": board.placement.get("time_share", {}),
            "machine": board.machine,
        },
        advice="small is not fast: only operators with integer kernels on this board gain",
        changes=changes,
    )


def _why_slow(facts: TimeFacts, board: BoardFacts) -> tuple[str, Changes]:
    recipe = facts.recipe
    types = Counter(node.op_type for node in facts.nodes)
    floats = Counter(node.op_type for node in facts.nodes if node.kind == "float")
    switches = executed_switches(facts.nodes, board.placement)
    x86 = board.machine in X86 and not board.accelerated
    if types["ConvInteger"]:
        return (
            f"dynamic quantization of {types['ConvInteger']} convolutions, whose kernel (ConvInteger) is slow",
            static(recipe),
        )
    if x86 and recipe.activation == "uint8" and recipe.weight == "uint8" and recipe.scheme == "static":
        return "uint8 weights with uint8 activations have no fast kernel on x86", signed_weights(recipe)
    if len(switches) > ENDS:
        listed = ", ".join(f"{count} {name}" for name, count in floats.most_common(4)) or "none"
        return (
            f"{len(switches)} conversions between float and integers ran "
            f"({format_bytes(sum(node.moved_bytes for node in switches))}); operators in float: {listed}",
            first_that_changes(_fewer_switches(facts), static(recipe)),
        )
    if board.accelerated:
        return "to run the accelerator at all costs more than this network's arithmetic", ()
    if x86 and recipe.activation == "int8":
        return "int8 activations have no fast kernel on x86; uint8 ones do", first_that_changes(signed_weights(recipe))
    return "the board's integer kernels for these operators and sizes are slower than its float ones", _narrow(facts)


def _fewer_switches(facts: TimeFacts) -> Changes:
    """Only what carries the arithmetic in integers: nothing is converted for the sake of cheap operators. Where that is
    so already, all that can be."""
    present = {node.op_type for node in facts.nodes}
    weighted = [name for name in WEIGHTED_OPERATORS if name in present]
    if facts.recipe.op_types or facts.recipe.exclude_op_types:
        return everything(facts.recipe)
    return only(facts.recipe, weighted) if weighted else ()


def _narrow(facts: TimeFacts) -> Changes:
    present = {node.op_type for node in facts.nodes}
    weighted = [name for name in WEIGHTED_OPERATORS if name in present]
    return only(facts.recipe, weighted) if weighted and not facts.recipe.op_types else ()


def _left_in_float(facts: TimeFacts, slow: bool) -> list[Finding]:
    if facts.recipe.scheme not in ("static", "dynamic"):
        return []
    left = [node for node in facts.nodes if node.kind == "float"]
    if not left or not any(node.kind == "quantized" for node in facts.nodes):
        return []
    counts = Counter(node.op_type for node in left)
    total = sum(node.kind in ("float", "quantized") for node in facts.nodes)
    return [
        Finding(
            code="left_in_float",
            severity="warning" if slow else "info",
            what=f"{len(left)} of {total} operators stay in float: "
            + ", ".join(f"{count} {name}" for name, count in counts.most_common(6)),
            where=tuple(node.name for node in left[:16]),
            evidence={"operators": dict(counts), "of": total, "moved_bytes": sum(node.moved_bytes for node in left)},
            advice="the recipe leaves them out, or the runtime has no integer form of them; replace them in the model "
            "(HardSwish by Relu6, Gelu by Relu) where they stand between quantized ones",
        )
    ]


def _switches(facts: TimeFacts, slow: bool) -> list[Finding]:
    findings = []
    for board in facts.boards or ():
        switches = executed_switches(facts.nodes, board.placement)
        if len(switches) <= ENDS or facts.recipe.scheme not in ("static", "dynamic", "float16"):
            continue
        moved = sum(node.moved_bytes for node in switches)
        findings.append(
            Finding(
                code="precision_switches",
                severity="warning" if slow and board.slower else "info",
                what=f"{len(switches)} conversions between precisions run on {board.name} as operators of their own; "
                f"they read and write {format_bytes(moved)} in each inference",
                where=(board.name, *(node.name for node in switches[:16])),
                evidence={"conversions": len(switches), "moved_bytes": moved, "nodes": [n.name for n in switches]},
                advice="quantize what lies between them, or leave more out so that there are fewer "
                f"({shown(_around(facts))})",
                changes=_fewer_switches(facts) if slow and board.slower else (),
            )
        )
    return findings


def _around(facts: TimeFacts) -> list[str]:
    return list(dict.fromkeys(node.op_type for node in facts.nodes if node.kind == "float")) or ["operators"]


def _fallbacks(facts: TimeFacts, board: BoardFacts) -> list[Finding]:
    if not board.accelerated:
        return []
    ran = board.placement.get("nodes")
    reasons = board.placement.get("fallback_reasons")
    on_cpu = set(ran.get(CPU, ())) if isinstance(ran, Mapping) else set()
    kinds = {node.name: node for node in facts.nodes}
    fallen = [n for n in kinds if n in on_cpu and kinds[n].kind in ("float", "quantized")]
    if not fallen:
        return []
    counts = Counter(kinds[name].op_type for name in fallen)
    ratio = board.placement.get("offload_ratio")
    below = board.min_offload is not None and isinstance(ratio, float) and ratio < board.min_offload
    share = f"; {ratio:.0%} of the operators run on the accelerator" if isinstance(ratio, float) else ""
    return [
        Finding(
            code="fallback",
            severity="error" if below else "warning" if board.slower else "info",
            what=f"{len(fallen)} operators run on the processor of {board.name}: "
            + ", ".join(f"{count} {name}" for name, count in counts.most_common(6))
            + share,
            where=(board.name, *fallen[:16]),
            evidence={
                "operators": dict(counts),
                "nodes": fallen,
                "reasons": dict(reasons) if isinstance(reasons, Mapping) else {},
                "offload_ratio": ratio,
                "time_share": board.placement.get("time_share", {}),
            },
            advice="each is two transfers if it lies in the middle: replace it, or leave what follows there too",
            changes=leave_in_float(facts.recipe, _named(facts, fallen)) if board.slower else (),
        )
    ]


def _named(facts: TimeFacts, nodes: Sequence[str]) -> list[str]:
    """Those that a recipe can name: nodes of the float model keep their names in the artifact."""
    return [node.name for node in facts.nodes if node.name in set(nodes) and node.kind == "quantized"]
