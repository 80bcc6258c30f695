"""A static recipe from beginning to end: the float model reshaped, calibrated, rewritten, its integers refined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from harness.quantize.algorithms import equalize as equalization
from harness.quantize.algorithms import smooth as smoothing
from harness.quantize.algorithms.align import aligned_ranges
from harness.quantize.algorithms.bias import mean_error, mean_error_of_moments
from harness.quantize.algorithms.clip import clip_weights
from harness.quantize.algorithms.gram import Moments, gather_moments
from harness.quantize.algorithms.layers import (
    Array,
    Layer,
    add_missing_biases,
    linear_layers,
    owned_biases,
    set_constant,
)
from harness.quantize.algorithms.rounding import rounded
from harness.quantize.calibrate import Subject, calibrated, ranges
from harness.quantize.continued import boundary_ranges
from harness.quantize.float_nodes import float_notices, nodes_left_in_float
from harness.quantize.made_weights import MadeWeights, input_quantizer, read_weights, write_weights
from harness.quantize.ranges import Range
from harness.quantize.static import quantizable_types, quantize_static
from harness.quantize.statistics import ActivationStatistics, observed_tensors
from harness.recipes.recipe import Recipe

Step = Callable[[], None]
Phase = Callable[[str], None]
ROUNDING_SAMPLES = 64
"""Samples whose moments decide on integers; 64 places of each are plenty for the matrices concerned."""


@dataclass(frozen=True, eq=False)
class ReadyStatic:
    """All that a static recipe needs before its rewriting; nothing of it depends on which nodes are left in float,
    except where said."""

    subject: Subject
    """Its model reshaped (equalized, smoothed)."""
    recipe: Recipe
    ranges: Mapping[str, Range]
    """Of every activation, not aligned."""
    statistics: Mapping[str, ActivationStatistics]
    """Of the activations that operators to quantize touch."""
    every: Mapping[str, ActivationStatistics]
    excluded: tuple[str, ...]
    """Nodes that the recipe leaves in float, and those that reshaping put in."""
    notices: tuple[str, ...]

    def aligned(self, excluded: Sequence[str]) -> Mapping[str, Range]:
        """Ranges as the recipe aligns them where the nodes ``excluded`` are left in float."""
        if not self.recipe.align_scales:
            return self.ranges
        return aligned_ranges(self.subject.model, self.ranges, self.recipe.align_scales, excluded)

    def left_in_float(self) -> dict[str, str]:
        """Name -> reason of the nodes that cannot be quantized."""
        return nodes_left_in_float(self.subject.model, self.recipe, self.statistics, quantizable_types(self.recipe))

    def rewrite(self, model: ModelProto, excluded: Sequence[str] | None = None) -> ModelProto:
        """The quantized form of ``model``, which is not changed; ``excluded`` in place of the recipe's own."""
        copy = ModelProto()
        copy.CopyFrom(model)
        recipe = self.recipe
        left = self.excluded if excluded is None else excluded
        if recipe.weight_clip == "mse":
            clip_weights(
                copy,
                recipe.weight,
                per_channel=recipe.granularity == "per_channel",
                symmetric=bool(recipe.weight_symmetric) or recipe.granularity == "per_channel",
            )
        return quantize_static(copy, recipe, self.aligned(left), self.statistics, left)


def make_static(
    subject: Subject, recipe: Recipe, excluded: list[str], breathe: Step, phase: Phase
) -> tuple[ModelProto, tuple[str, ...]]:
    """The quantized model, and notices; the subject's model is consumed.

    Raises what ONNX Runtime raises.
    """
    ready = ready_static(subject, recipe, excluded, breathe, phase)
    left = {name: reason for name, reason in ready.left_in_float().items() if name not in ready.excluded}
    notices = (*ready.notices, *float_notices(ready.subject.model, left), *calibration_notices(ready.statistics))
    if recipe.rounding == "nearest" and not recipe.bias_correction:
        return ready.rewrite(ready.subject.model), notices
    return _refined(ready, breathe, phase), notices


def ready_static(subject: Subject, recipe: Recipe, excluded: list[str], breathe: Step, phase: Phase) -> ReadyStatic:
    """Reshapes the subject's model, which is consumed, and calibrates it. Raises what ONNX Runtime raises."""
    model = subject.model
    notices: list[str] = []
    if recipe.equalize:
        phase("equalizing layers")
        # Only a Clip's bound asks what activations reach.
        clipped = any(node.op_type == "Clip" for node in model.graph.node)
        known = calibrated(subject, recipe.calibration.samples, breathe) if clipped else None
        if equalization.equalize(model, known):
            samples = recipe.calibration.samples if clipped else "any"
            subject = subject.changed(f"equalize {equalization.VERSION} {samples}")
        else:
            notices.append("cross-layer equalization found no pair of layers to even out")
    if recipe.smooth_alpha is not None:
        phase("calibrating for SmoothQuant")
        before = calibrated(subject, recipe.calibration.samples, breathe)
        done = smoothing.smooth(model, before, recipe.smooth_alpha)
        excluded = sorted({*excluded, *done.inserted})
        if done.places:
            subject = subject.changed(f"smooth {smoothing.VERSION} {recipe.smooth_alpha} {recipe.calibration.samples}")
        else:
            notices.append("SmoothQuant found no LayerNormalization before a MatMul or Gemm")
    phase("calibrating")
    every = calibrated(subject, recipe.calibration.samples, breathe)
    phase(f"quantizing ({recipe.label})")
    read = set(observed_tensors(model, quantizable_types(recipe)))
    statistics = {name: stats for name, stats in every.items() if name in read}
    chosen = ranges(subject, recipe, statistics)
    given = boundary_ranges(model)
    chosen = {name: given.get(name, found) for name, found in chosen.items()}
    return ReadyStatic(subject, recipe, chosen, statistics, every, tuple(excluded), tuple(notices))


def _refined(ready: ReadyStatic, breathe: Step, phase: Phase) -> ModelProto:
    """Rewritten once to see what becomes of the weights, and again with other biases; other integers come last."""
    recipe, subject, model = ready.recipe, ready.subject, ready.subject.model
    shifts_bias = recipe.bias_correction or recipe.rounding == "adaquant"
    if shifts_bias:
        add_missing_biases(model, [layer for layer in linear_layers(model) if layer.node.name not in ready.excluded])
    layers = {layer.name: layer for layer in linear_layers(model)}
    first = ready.rewrite(model)
    found = {name: read_weights(first, layer, reduce_range=recipe.reduce_range) for name, layer in layers.items()}
    weights = {name: made for name, made in found.items() if made is not None}
    biases = owned_biases(model, list(layers.values())) if shifts_bias else {}
    moments: dict[str, Moments] = {}
    chosen: dict[str, Array] = {}
    if recipe.rounding != "nearest":
        phase("observing what layers read")
        samples = min(recipe.calibration.samples or ROUNDING_SAMPLES, ROUNDING_SAMPLES)
        moments = gather_moments(
            model,
            [layers[name] for name in weights],
            subject.data.feeds(samples),
            input_quantizer(first) if recipe.rounding == "adaquant" else None,
            breathe,
        )
        phase(f"choosing integers ({recipe.rounding})")
        for name, values in moments.items():
            chosen[name] = _integers(layers[name], weights[name], values, recipe, layers[name].bias in biases)
            breathe()
    if not shifts_bias:
        _write(first, layers, chosen)
        return first
    phase("correcting biases")
    for name, made in weights.items():
        layer = layers[name]
        if layer.bias not in biases:
            continue
        real = layer.shaped(made.grid.values(chosen.get(name, made.integers)))
        if recipe.rounding == "adaquant" and name in moments:
            error = mean_error_of_moments(layer, real, moments[name])
        else:
            found_error = mean_error(layer, real, ready.every)
            if found_error is None:
                continue
            error = found_error
        set_constant(model.graph, layer.bias, biases[layer.bias] - error)
    second = ready.rewrite(model)
    # A bias too large for its integer makes the rewriter widen the weights' scale: then the integers mean other values.
    same = {
        name: values
        for name, values in chosen.items()
        if _same_grid(weights[name], read_weights(second, layers[name], reduce_range=recipe.reduce_range))
    }
    _write(second, layers, same)
    return second


def _integers(layer: Layer, made: MadeWeights, moments: Moments, recipe: Recipe, has_bias: bool) -> Array:
    free = recipe.rounding == "adaquant"
    return rounded(
        layer.matrix().astype(np.float64), made.grid, moments, either_way=not free, centered=free and has_bias
    )


def _write(model: ModelProto, layers: Mapping[str, Layer], chosen: Mapping[str, Array]) -> None:
    for name, integers in chosen.items():
        write_weights(model, layers[name], integers)


def _same_grid(one: MadeWeights, other: MadeWeights | None) -> bool:
    if other is None:
        return False
    return np.array_equal(one.grid.scale, other.grid.scale) and np.array_equal(one.grid.zero, other.grid.zero)


def calibration_notices(statistics: Mapping[str, ActivationStatistics]) -> tuple[str, ...]:
    """What a user should know of the calibration samples."""
    bad = {name: stats.non_finite for name, stats in statistics.items() if stats.non_finite}
    if not bad:
        return ()
    shown = ", ".join(f"{name!r} ({count} values)" for name, count in list(bad.items())[:3])
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return (f"NaN or infinite activations during calibration were left out of the ranges: {shown}{more}",)
