"""One artifact, several machines: do boards and kernels compute the same? And operators that make garbage. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.audit.finding import Finding
from harness.diagnose.accuracy import layer_losses
from harness.diagnose.changes import first_that_changes, leave_in_float, seven_bits, sixteen_bits
from harness.diagnose.compare import ratio_db
from harness.diagnose.facts import AccuracyFacts, BoardFacts, MetricFacts
from harness.diagnose.tensors import Layer
from harness.recipes.facts import WEIGHTED_OPERATORS
from harness.recipes.recipe import Recipe

HERE = "this host"
POINTS = 0.005
"""Difference of a fraction between two machines on the same samples that rounding does not make."""
DECIBEL = 1.0
SHARE = 0.01
KERNEL_DB = 25.0
"""Between the optimised and the plain execution of one artifact: kernels round differently, at about 40 dB and more."""
MARGIN_DB = 6.0
GARBAGE_DB = 3.0
SOUND_DB = 20.0


def board_differences(
    recipe: Recipe, boards: Sequence[BoardFacts], here: MetricFacts | None, samples_here: int
) -> list[Finding]:
    """Metrics of the same artifact on the same samples, among boards and with this host."""
    findings = []
    names = dict.fromkeys(name for board in boards for name in board.metrics)
    for name in names:
        values = {board.name: board.metrics[name] for board in boards if name in board.metrics}
        units = [board.units.get(name, "") for board in boards if name in board.metrics]
        samples = {board.samples.get(name, 0) for board in boards if name in board.metrics}
        if here is not None and here.name == name and samples == {samples_here}:
            values[HERE] = here.value
        if len(values) < 2:
            continue
        low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
        gap, allowed = values[high] - values[low], _allowed(units[0], max(samples), max(map(abs, values.values())))
        if gap > allowed:
            findings.append(_differing(recipe, name, values, (low, high), allowed))
    return findings


def _allowed(unit: str, samples: int, size: float) -> float:
    if unit == "fraction":
        return max(POINTS, 2.0 / max(samples, 1))
    return DECIBEL if unit == "dB" else SHARE * size


def _differing(recipe: Recipe, name: str, values: dict[str, float], ends: tuple[str, str], allowed: float) -> Finding:
    low, high = ends
    return Finding(
        code="devices_differ",
        severity="error",
        what=f"the same model gives {name} {values[low]:.4g} on {low} and {values[high]:.4g} on {high}",
        where=tuple(values),
        evidence={"metric": name, "values": values, "difference": values[high] - values[low], "allowed": allowed},
        advice="kernels differ: x86 without VNNI saturates 16-bit sums of 8-bit weights (reduce_range), accelerators "
        "round otherwise or compute in other types. Compare runtime versions (`boardtune boards check`)",
        changes=first_that_changes(seven_bits(recipe), sixteen_bits(recipe)),
    )


def kernel_findings(facts: AccuracyFacts) -> list[Finding]:
    """Whether this host's kernels compute what the graph says."""
    findings = []
    for output in facts.outputs:
        plain = facts.unfused.get(output.name)
        if plain is None or output.non_finite or facts.batch > 1:
            continue
        expected, got = output.expected[facts.rows], output.got[facts.rows]
        between = ratio_db(float((plain**2).sum()), float(((plain - got) ** 2).sum()))
        said = ratio_db(float((expected**2).sum()), float(((expected - plain) ** 2).sum()))
        done = ratio_db(float((expected**2).sum()), float(((expected - got) ** 2).sum()))
        if between < KERNEL_DB and said - done >= MARGIN_DB:
            findings.append(
                Finding(
                    code="kernels_differ",
                    severity="error",
                    what=f"output {output.name!r} has {done:.1f} dB here with fused kernels, and {said:.1f} dB as its "
                    "graph says: a kernel saturates or computes something else",
                    where=(output.name,),
                    evidence={"snr_fused_db": done, "snr_as_the_graph_says_db": said, "between_db": between},
                    advice="7-bit weights cannot saturate (reduce_range: true); graph_optimization: basic in the "
                    "board's file avoids the kernel",
                    changes=first_that_changes(seven_bits(facts.recipe), sixteen_bits(facts.recipe)),
                )
            )
    return findings


def garbage_findings(facts: AccuracyFacts) -> list[Finding]:
    """Operators from outside ONNX whose result has nothing to do with float's, though what they read is sound."""
    findings = []
    for found in layer_losses(facts):
        domain = facts.domains.get(found.layer.node)
        if domain is None:
            continue
        lost = found.loss.snr_db < GARBAGE_DB or found.loss.non_finite
        if not lost or found.before_db < SOUND_DB:
            continue
        bad = f"; {found.loss.non_finite} values are NaN or infinite" if found.loss.non_finite else ""
        findings.append(
            Finding(
                code="custom_operator_garbage",
                severity="error",
                what=f"{domain}::{found.layer.op_type} {found.layer.node!r} gives garbage: {found.before_db:.1f} dB "
                f"comes in, {found.loss.snr_db:.1f} dB goes out{bad}",
                where=(found.layer.node, found.layer.output),
                evidence={
                    "domain": domain,
                    "snr_before_db": found.before_db,
                    "snr_after_db": found.loss.snr_db,
                    "non_finite": found.loss.non_finite,
                },
                advice="it magnifies the rounding of its inputs, or takes quantized ones for others: leave it and what "
                "feeds it in float",
                changes=first_that_changes(
                    leave_in_float(facts.recipe, feeding(facts, found.layer)), sixteen_bits(facts.recipe)
                ),
            )
        )
    return findings


def feeding(facts: AccuracyFacts, layer: Layer) -> list[str]:
    """The node and those before it, back to what has weights: what decides how exact its inputs are."""
    nodes: dict[str, None] = {layer.node: None}
    waiting = list(layer.inputs)
    while waiting:
        maker = facts.makers.get(waiting.pop())
        if maker is not None and maker.node not in nodes:
            nodes[maker.node] = None
            if maker.op_type not in WEIGHTED_OPERATORS:
                waiting += maker.inputs
    return list(nodes)
