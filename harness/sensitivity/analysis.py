"""Sensitivity of every quantizer group, both ways, at the cost of the part of the model that each group changes.

Each group is quantized alone, and left in float alone, by the real quantizer. Of the model it makes only what differs
from the float model (or from the model with everything quantized) is run, from values that those computed: the result
is that of the whole model, at about half its cost on average.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from device_agents.runner.feeds import Collector
from device_agents.runner.platform import Spec
from harness.errors import ConfigError
from harness.quantize.calibrate import Subject
from harness.quantize.contract import Cause, ModelRefused
from harness.quantize.graph import sort_nodes
from harness.quantize.ort_backend import excluded_nodes
from harness.quantize.passes.unshare import merge_equal_initializers
from harness.quantize.static_recipe import ReadyStatic, ready_static
from harness.recipes.mixed import QuantizerGroup
from harness.recipes.recipe import Recipe
from harness.sensitivity.activations import Activations, Samples
from harness.sensitivity.groups import quantizer_groups
from harness.sensitivity.result import Effect, GroupSensitivity, Sensitivity
from harness.sensitivity.same_values import value_keys
from harness.sensitivity.slices import Slicer

CACHED_BYTES = 1 << 30
"""Activations held at once, of the float and the quantized model together."""
_FLOAT_SHARE = 0.75
"""Of these; quantized activations take a quarter of the bytes of float ones."""

Outputs = Mapping[str, npt.NDArray[np.generic]]
Scorer = Callable[[Outputs, Outputs, npt.NDArray[np.intp]], Effect]
"""Of (a model's outputs, the float model's, places of the samples in their set)."""
Breathe = Callable[[], None]
Phase = Callable[[str], None]


class Analysis:
    """The float model and the one with everything quantized, run once over the samples; then any mixture of both."""

    def __init__(
        self,
        subject: Subject,
        recipe: Recipe,
        samples: Samples,
        *,
        cached_bytes: int = CACHED_BYTES,
        breathe: Breathe = lambda: None,
        phase: Phase = lambda name: None,
    ) -> None:
        """The subject's model is consumed. Raises ConfigError for a recipe that is not static, ModelRefused where
        nothing is quantized, and what ONNX Runtime raises."""
        self.recipe = recipe
        analysed_recipe, self.notices = analysed(recipe)
        model = subject.model
        self.ready: ReadyStatic = ready_static(subject, analysed_recipe, excluded_nodes(model, recipe), breathe, phase)
        self.groups = quantizer_groups(self.ready)
        if not self.groups:
            raise _nothing(recipe)
        sort_nodes(self.ready.subject.model.graph)
        self.samples = samples
        phase("running the float model")
        share = int(cached_bytes * _FLOAT_SHARE)
        self._float = Activations(self.ready.subject.model, samples, share, breathe)
        phase("running the quantized model")
        self._quantized = Activations(self._made(()), samples, cached_bytes - share, breathe)

    @property
    def float_outputs(self) -> Outputs:
        return self._stacked(self._float.outputs)

    @property
    def quantized_outputs(self) -> Outputs:
        return self._stacked(self._quantized.outputs)

    def alone(self, group: QuantizerGroup) -> Outputs | None:
        """Outputs of the model with only ``group`` quantized; ``None`` if that changes nothing in the float model."""
        others = [name for other in self.groups if other != group for name in other.nodes]
        return self._changed(self._made(others), self._float)

    def without(self, groups: Sequence[QuantizerGroup]) -> Outputs | None:
        """Outputs of the model with all but ``groups`` quantized; ``None`` if that is all the same."""
        return self._changed(self._made([name for group in groups for name in group.nodes]), self._quantized)

    def by(self, recipe: Recipe) -> Outputs:
        """Outputs of the model by a variant of the analysed recipe that differs in nodes left in float and overrides.

        Raises what ONNX Runtime raises.
        """
        ready = replace(self.ready, recipe=analysed(recipe)[0])
        excluded = {*excluded_nodes(self.ready.subject.model, recipe), *self.ready.excluded}
        outputs = self._changed(_rewritten(ready, excluded), self._quantized)
        return self.quantized_outputs if outputs is None else outputs

    def _made(self, in_float: Sequence[str]) -> ModelProto:
        return _rewritten(self.ready, {*self.ready.excluded, *in_float})

    def _changed(self, made: ModelProto, base: Activations) -> Outputs | None:
        keys = value_keys(made)
        names = {name: base.names[key] for name, key in keys.items() if key in base.names}

        def is_same(name: str) -> bool:
            return keys[name] == base.keys.get(name)

        slicer = Slicer(made)
        wanted = slicer.changed(is_same, names.__contains__)
        if not wanted.nodes:
            return None
        base.keep([names[name] for name in wanted.known])
        part = slicer.changed(is_same, lambda name: name in names and base.has(names[name]))
        return self._stacked({**base.outputs, **base.run(part, names)})

    def _stacked(self, outputs: Mapping[str, Sequence[npt.NDArray[np.generic]]]) -> Outputs:
        names = list(outputs)
        collector = Collector([Spec(name, outputs[name][0].dtype.name, outputs[name][0].shape) for name in names])
        for index in range(len(self.samples)):
            collector.add([outputs[name][index] for name in names], self.samples.batch, self.samples.batch)
        return collector.result()


def _rewritten(ready: ReadyStatic, excluded: Collection[str]) -> ModelProto:
    made = ready.rewrite(ready.subject.model, sorted(excluded))
    # As the backend does: ONNX Runtime fuses differently where a constant has several readers.
    merge_equal_initializers(made)
    sort_nodes(made.graph)
    return made


def analyse(analysis: Analysis, score: Scorer, higher_is_better: Mapping[str, bool], phase: Phase) -> Sensitivity:
    """Every group both ways.

    Raises ModelRefused where no group changes a value, MetricFailed where a metric cannot be computed from the float
    model's outputs, and what ONNX Runtime raises.
    """
    reference = analysis.float_outputs
    rows = analysis.samples.rows

    def effect(outputs: Outputs) -> Effect:
        return score(outputs, reference, rows)

    float32, quantized = effect(reference), effect(analysis.quantized_outputs)
    found, idle = [], []
    for number, group in enumerate(analysis.groups, start=1):
        phase(f"group {number} of {len(analysis.groups)}: {group.name}")
        alone, without = analysis.alone(group), analysis.without([group])
        if alone is None and without is None:
            idle.append(group.name)
            continue
        found.append(
            GroupSensitivity(
                group,
                float32 if alone is None else effect(alone),
                quantized if without is None else effect(without),
            )
        )
    if not found:
        raise _nothing(analysis.recipe)
    return Sensitivity(
        recipe=analysis.recipe,
        samples=len(rows),
        float32=float32,
        quantized=quantized,
        groups=tuple(sorted(found, key=GroupSensitivity.order)),
        idle=tuple(idle),
        higher_is_better=dict(higher_is_better),
        notices=(*analysis.notices, *analysis.ready.notices),
    )


def _nothing(recipe: Recipe) -> ModelRefused:
    return ModelRefused(
        f"no operator of the model is quantized by this recipe ({recipe.label})",
        cause=Cause.NOTHING_QUANTIZED,
        hint="choose another recipe with --recipe",
    )


def analysed(recipe: Recipe) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe as it is analysed, and what is approximated by that. Raises ConfigError unless it is static.

    Corrections that look at the whole quantized model (rounding, biases) would have to be made anew for every group.
    """
    if recipe.scheme != "static":
        raise ConfigError(
            f"sensitivity is about static recipes, and this one is {recipe.label!r}",
            hint="give --recipe a file or preset:NAME#k whose scheme is static",
        )
    plain = recipe.with_changes(rounding="nearest", bias_correction=False)
    if plain == recipe:
        return recipe, ()
    return plain, ("analysed without the recipe's rounding and bias correction, which are made once all else is known",)
