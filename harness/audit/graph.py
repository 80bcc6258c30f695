"""What the graph itself tells: free dimensions, control flow, operators of other domains, models that are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

from onnx import ModelProto

from harness.audit.finding import Finding, set_to, shown
from harness.audit.structure import Structure
from harness.quantize.contract import ModelRefused
from harness.quantize.graph import DEFAULT_DOMAINS, all_nodes, subgraphs

_PLAIN = re.compile(r"[\w.-]+")
KNOWN_DOMAINS = frozenset({*DEFAULT_DOMAINS, "com.microsoft", "ai.onnx.ml"})
"""What ONNX Runtime has kernels for by itself."""


def graph_findings(
    model: ModelProto, structure: Structure, *, set_dims: Mapping[str, int], prepared: bool
) -> list[Finding]:
    return [
        *_dynamic(structure, set_dims, prepared),
        *_control_flow(model),
        *_domains(model),
    ]


def refusal_findings(error: ModelRefused) -> list[Finding]:
    """A model that can be read and not quantized."""
    return [
        Finding(
            code=str(error.cause),
            severity="error",
            what=error.message,
            where=(error.where,),
            evidence={"cause": str(error.cause)},
            advice=error.hint,
        )
    ]


def _dynamic(structure: Structure, set_dims: Mapping[str, int], prepared: bool) -> list[Finding]:
    findings = []
    batch = [dim for dim in structure.free if dim.axis == 0]
    inner = [dim for dim in structure.free if dim.axis > 0]
    # A shell takes what is in other names for something else.
    names = list(dict.fromkeys(dim.name if _PLAIN.fullmatch(dim.name) else dim.place for dim in inner))
    if inner:
        asked = all(dim.name in set_dims or dim.place in set_dims for dim in inner)
        options = " ".join(f"--set-dim {name}=N" for name in names)
        findings.append(
            Finding(
                code="dynamic_shape",
                severity="info" if asked else "warning",
                what=f"{len(inner)} dimensions are free: " + "; ".join(f"{d.name!r} ({d.place})" for d in inner),
                where=tuple(dim.place for dim in inner),
                evidence={"dimensions": names, "set": dict(set_dims)},
                advice=f"give each a size: {options}. Accelerators compile for fixed sizes; choose the largest that "
                "will be seen, or run one search for each size"
                + ("" if prepared else f". Until then shapes, MACs and ranges are unknown here: add {options}"),
            )
        )
    if batch:
        listed = list(dict.fromkeys(dim.name for dim in batch))
        findings.append(
            Finding(
                code="free_batch",
                severity="info",
                what=f"the first axis ({shown(listed)}) is free: it is set to 1",
                where=tuple(dim.place for dim in batch),
                evidence={"dimensions": listed},
                advice="search --batch N measures other sizes",
            )
        )
    return findings


def _control_flow(model: ModelProto) -> list[Finding]:
    findings = []
    for node in model.graph.node:
        inner = sum(len(graph.node) for graph in subgraphs(node))
        if inner:
            findings.append(
                Finding(
                    code="control_flow",
                    severity="info",
                    what=f"{inner} operators inside {node.op_type} {node.name!r} stay in float with static recipes",
                    where=(node.name,),
                    evidence={"nodes": inner},
                    advice=(
                        "dynamic and weight-only recipes reach MatMul and Gemm there; export without control flow "
                        "where the condition is constant: accelerators do not run it"
                    ),
                )
            )
    return findings


def _domains(model: ModelProto) -> list[Finding]:
    found: dict[str, list[str]] = {}
    for node in all_nodes(model):
        if node.domain not in KNOWN_DOMAINS:
            found.setdefault(f"{node.domain}::{node.op_type}", []).append(node.name)
    return [
        Finding(
            code="custom_operator",
            severity="warning",
            what=f"{len(nodes)} nodes of the custom operator {name}",
            where=tuple(nodes[:8]),
            evidence={"nodes": nodes},
            advice="every board needs its library; leave it and what feeds it in float and compare",
            changes=set_to(exclude_nodes=nodes),
        )
        for name, nodes in found.items()
    ]
