"""The overall drop, and the layers it comes from. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.audit.finding import Finding, shown
from harness.diagnose.changes import (
    Changes,
    clipped_range,
    eight_bit_weights,
    equalized,
    first_that_changes,
    leave_in_float,
    per_channel,
    sixteen_bits,
    whole_range,
)
from harness.diagnose.compare import Loss
from harness.diagnose.facts import DROP, POOR_DB, AccuracyFacts
from harness.diagnose.tensors import Layer
from harness.quantize.snr import MAX_SNR_DB
from harness.units import format_metric

LAYER_DROP_DB = 6.0
"""A layer adds as much noise as three times what came in."""
FUSED = frozenset({"BatchNormalization", "Clip", "LeakyRelu", "PRelu", "Relu"})
"""Operators that runtimes compute together with the one before."""
INPUT = "(input)"
"""Stands for the operator where an input of the model is quantized."""
LAYERS = 3
"""Accused at most."""
CLIP_SHARE = 0.5
"""Of a tensor's noise that comes from values cut off, from which clipping is what is wrong with it."""
COARSE = 8.0
"""Levels of the quantized range for the root mean square of the values, below which the step is what is wrong."""


@dataclass(frozen=True)
class LayerLoss:
    layer: Layer
    loss: Loss
    before_db: float
    """Lowest SNR among what it reads; the largest there is where nothing is known."""

    @property
    def drop_db(self) -> float:
        return self.before_db - self.loss.snr_db


def layer_losses(facts: AccuracyFacts) -> tuple[LayerLoss, ...]:
    """In the order of the graph, inputs of the model first. What the quantized model computes at once (a convolution
    with the activation function behind it) is one layer, named by what has the weights."""
    fed = [name for name in facts.losses if name not in facts.makers]
    found = [LayerLoss(Layer(name, INPUT, "", (), name), facts.losses[name], MAX_SNR_DB) for name in fed]
    known = {name: loss.snr_db for name, loss in facts.losses.items()}
    folded: dict[str, Layer] = {}
    for layer in facts.layers:
        before = min((known[name] for name in layer.inputs if name in known), default=MAX_SNR_DB)
        into = folded.get(layer.inputs[0]) if layer.op_type in FUSED and layer.inputs else None
        loss = facts.losses.get(layer.output)
        if loss is None:
            # What cannot be seen passes on what came in.
            known.setdefault(layer.output, before)
            folded[layer.output] = layer if into is None else into
        elif into is not None:
            found.append(LayerLoss(replace(into, output=layer.output), loss, before))
        else:
            found.append(LayerLoss(layer, loss, before))
    return tuple(found)


def worst_layers(facts: AccuracyFacts) -> list[LayerLoss]:
    """Those whose output is poor and that made it so, the worst first."""
    poor = [found for found in layer_losses(facts) if found.loss.snr_db < POOR_DB and found.drop_db >= LAYER_DROP_DB]
    return sorted(poor, key=lambda found: -found.drop_db)[:LAYERS]


def accuracy_findings(facts: AccuracyFacts) -> list[Finding]:
    """Nothing where accuracy was kept."""
    if not facts.suffers:
        return _undecided(facts)
    layers = worst_layers(facts)
    first = next((found for found in layer_losses(facts) if found.loss.snr_db < POOR_DB), None)
    findings = [_overall(facts, layers, first)]
    findings += [_layer(facts, found) for found in layers]
    saturated = [found for found in layer_losses(facts) if _clips(found.loss) and found.loss.snr_db < POOR_DB]
    if saturated:
        findings.append(_saturated(facts, saturated))
    return findings


def _undecided(facts: AccuracyFacts) -> list[Finding]:
    metric = facts.metric
    if metric is None or metric.drop is None or metric.drop <= DROP or metric.float_value is None:
        return []
    return [
        Finding(
            code="overall_drop",
            severity="info",
            what=f"{metric.name} is {format_metric(metric.value, metric.unit)} where float has "
            f"{format_metric(metric.float_value, metric.unit)}, which may be chance on these samples",
            where=(metric.name,),
            evidence={"metric": metric.name, "float": metric.float_value, "quantized": metric.value},
            advice="give more evaluation samples to decide it (--eval)",
        )
    ]


def cause_and_remedy(facts: AccuracyFacts, found: LayerLoss) -> tuple[str, Changes]:
    """Why a layer loses, in words, and what to do."""
    recipe, node = facts.recipe, found.layer.node
    nodes = [] if found.layer.op_type == INPUT or node in facts.inserted else [node]
    weight = facts.weights.get(node)
    if weight is not None and recipe.granularity == "per_tensor" and weight.lost.size and per_channel(recipe):
        return (
            f"{weight.lost.size} of {len(weight.magnitudes)} channels of its weights have fewer than 4 levels under "
            "one scale for all",
            per_channel(recipe),
        )
    if weight is not None and eight_bit_weights(recipe):
        return "4 bits are too few for its weights", eight_bit_weights(recipe)
    upstream = [name for name in facts.losing_places if name in _before(facts, found)]
    if upstream:
        uneven = [name for name, each in facts.weights.items() if each.lost.size and recipe.granularity == "per_tensor"]
        also = f"; channels of the weights of {len(uneven)} layers share one too" if uneven else ""
        return (
            f"what it magnifies was lost before: small channels of activation {upstream[0]!r} share a step with large "
            f"ones{also}",
            first_that_changes(
                per_channel(recipe) if uneven else (),
                equalized(recipe),
                sixteen_bits(recipe, upstream),
                leave_in_float(recipe, nodes),
            ),
        )
    if _clips(found.loss):
        return (
            f"{found.loss.clip_share_of_noise:.0%} of its noise is values cut off by the calibrated range",
            first_that_changes(whole_range(recipe), sixteen_bits(recipe), leave_in_float(recipe, nodes)),
        )
    levels = _levels(found.loss)
    if levels is not None and levels < COARSE:
        wide = sixteen_bits(recipe, [found.layer.output])
        return (
            f"its step is so coarse that a typical value has {levels:.1f} levels: outliers stretch the range",
            first_that_changes(clipped_range(recipe), wide, leave_in_float(recipe, nodes)),
        )
    return "no single cause: it needs more precision", first_that_changes(
        eight_bit_weights(recipe), leave_in_float(recipe, nodes), sixteen_bits(recipe)
    )


def _before(facts: AccuracyFacts, found: LayerLoss) -> set[str]:
    """Activations that the layer depends on."""
    waiting, seen = list(found.layer.inputs), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += facts.makers[name].inputs if name in facts.makers else ()
    return seen


def _overall(facts: AccuracyFacts, layers: list[LayerLoss], first: LayerLoss | None) -> Finding:
    metric, output = facts.metric, facts.worst_output
    evidence: dict[str, object] = {}
    what = "accuracy is lost"
    if output is not None:
        evidence |= {"output": output.name, "output_snr_db": output.snr_db, "non_finite": output.non_finite}
        what = f"output {output.name!r} keeps {output.snr_db:.1f} dB against float"
        if output.non_finite:
            what = f"output {output.name!r} has {output.non_finite} values that are NaN or infinite"
    if metric is not None and metric.drop is not None and metric.float_value is not None and metric.drop > DROP:
        evidence |= {"metric": metric.name, "float": metric.float_value, "quantized": metric.value}
        evidence |= {"drop": metric.drop, "limit": metric.outcome}
        what = (
            f"{metric.name} falls from {format_metric(metric.float_value, metric.unit)} to "
            f"{format_metric(metric.value, metric.unit)} (more than {DROP:.0%}); {what}"
        )
    changes: Changes = ()
    if layers:
        changes = cause_and_remedy(facts, layers[0])[1]
        evidence["worst_layers"] = [found.layer.node for found in layers]
    if first is not None:
        evidence["first_poor_layer"] = first.layer.node
    if not changes:
        recipe = facts.recipe
        changes = first_that_changes(eight_bit_weights(recipe), per_channel(recipe), sixteen_bits(recipe))
    advice = "see the layers below; "
    if first is not None:
        advice = f"it begins at {first.layer.op_type} {first.layer.node!r} ({first.loss.snr_db:.1f} dB); "
    return Finding(
        code="overall_drop",
        severity="error",
        what=what,
        where=tuple(found.layer.node for found in layers) or ((output.name,) if output else ()),
        evidence=evidence,
        advice=advice + "try the change, or rank the layers by what they cost with `boardtune sensitivity`",
        changes=changes,
    )


def _layer(facts: AccuracyFacts, found: LayerLoss) -> Finding:
    why, changes = cause_and_remedy(facts, found)
    layer, loss = found.layer, found.loss
    before = "exact" if found.before_db >= MAX_SNR_DB else f"{found.before_db:.1f} dB"
    return Finding(
        code="layer_loss",
        severity="warning",
        what=f"{layer.op_type} {layer.node!r}: {before} comes in, {loss.snr_db:.1f} dB goes out; {why}",
        where=(layer.node, layer.output),
        evidence={
            "snr_before_db": found.before_db,
            "snr_after_db": loss.snr_db,
            "drop_db": found.drop_db,
            "clipped_share": loss.clipped_share,
            "clip_share_of_noise": loss.clip_share_of_noise,
            "levels_of_rms": _levels(loss),
        },
        advice="give this layer what it lacks, or leave it in float",
        changes=changes,
    )


def _saturated(facts: AccuracyFacts, saturated: list[LayerLoss]) -> Finding:
    names = [found.layer.output for found in saturated]
    worst = max(saturated, key=lambda found: found.loss.clipped_share)
    grid = worst.loss.grid
    return Finding(
        code="saturation",
        severity="warning",
        what=f"{worst.loss.clipped_share:.2%} of activation {worst.layer.output!r} is cut off: it reaches "
        f"{worst.loss.lowest:.4g} to {worst.loss.highest:.4g}"
        + (f", the quantized range {grid.bounds[0]:.4g} to {grid.bounds[1]:.4g}" if grid else ""),
        where=tuple(names[:16]),
        evidence={
            "tensors": {
                found.layer.output: {
                    "clipped_share": found.loss.clipped_share,
                    "clip_share_of_noise": found.loss.clip_share_of_noise,
                    "range": list(found.loss.grid.bounds) if found.loss.grid else None,
                    "float_range": [found.loss.lowest, found.loss.highest],
                }
                for found in saturated
            }
        },
        advice=f"calibrate on samples like those evaluated on, and cut nothing off ({shown(names)})",
        changes=first_that_changes(whole_range(facts.recipe), sixteen_bits(facts.recipe)),
    )


def _clips(loss: Loss) -> bool:
    return loss.clip_share_of_noise >= CLIP_SHARE


def _levels(loss: Loss) -> float | None:
    """Root mean square of the float values in steps; ``None`` in float."""
    if loss.grid is None or loss.values == 0:
        return None
    return float((loss.signal.sum() / loss.values) ** 0.5 / loss.grid.scale)
