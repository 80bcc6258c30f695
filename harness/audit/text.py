"""Findings and audits for a terminal."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from harness.audit.finding import Finding
from harness.audit.run import Audit
from harness.units import format_bytes

WIDTH = 120
_TENSORS = 20
"""Rows of the table of activations; ``--json`` has all."""
_MARKS = {"error": "error", "warning": "warn ", "info": "info "}


def finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        yield "nothing found"
    for finding in findings:
        yield from _wrapped(f"{_MARKS[finding.severity]}  {finding.what}  [{finding.code}]", "       ")
        if finding.advice:
            yield from _wrapped(f"       do: {finding.advice}", "           ")
        for change in finding.changes:
            before = "" if change.before is None else f"{_short(change.before)} -> "
            yield f"       recipe: {change.field}: {before}{_short(change.after)}"


def audit_lines(audit: Audit) -> Iterator[str]:
    structure = audit.structure
    macs = "unknown" if structure.macs is None else count(structure.macs)
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in sorted(structure.opsets.items()))
    yield (
        f"{audit.model}: {count(structure.parameters)} parameters ({format_bytes(structure.weight_bytes)}), "
        f"{macs} MACs, opset {opsets}"
    )
    for what, values in (("input", structure.inputs), ("output", structure.outputs)):
        for name, dtype, shape in values:
            yield f"  {what} {name}: {dtype} {_shape(shape)}"
    yield ""
    yield from _table(
        ("operator", "nodes", "parameters", "MACs"),
        [
            (
                f"{row.domain}::{row.op_type}" if row.domain else row.op_type,
                str(row.nodes),
                count(row.parameters) if row.parameters else "",
                count(row.macs) if row.macs else "",
            )
            for row in structure.operators
        ],
    )
    if structure.nested_nodes:
        yield f"  (MACs of {structure.nested_nodes} operators in control flow are not counted)"
    if audit.ranges:
        yield from _range_table(audit)
    yield ""
    yield from finding_lines(audit.findings)


def count(value: int) -> str:
    """``3.17 M``."""
    for factor, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return str(value)


def _range_table(audit: Audit) -> Iterator[str]:
    yield ""
    ranked = sorted(audit.ranges, key=lambda found: -(found.tail or 0.0))[:_TENSORS]
    chosen = [found for found in audit.ranges if found in ranked]
    more = len(audit.ranges) - len(chosen)
    yield f"activations over {audit.samples} samples" + (
        f", those with the longest tails (--json has {more} more)" if more else ""
    )
    yield from _table(
        ("activation", "shape", "lowest", "highest", "99.9 %", "max/99.9 %"),
        [
            (
                found.tensor,
                _shape(audit.structure.shapes.get(found.tensor, ())),
                f"{found.lowest:.4g}",
                f"{found.highest:.4g}",
                "" if found.high_percentile is None else f"{found.high_percentile:.4g}",
                "" if found.tail is None else f"{found.tail:.2f}",
            )
            for found in chosen
        ],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        first = row[0].ljust(widths[0])
        yield (
            "  " + "  ".join([first, *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        ).rstrip()


def _shape(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
