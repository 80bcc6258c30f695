"""Mean absolute and mean squared error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from device_agents.contract import Tensors
from harness.data.metric import MetricFailed
from harness.data.outputs import flat, take
from harness.data.score import MetricFacts, Score
from harness.data.stored import Array


@dataclass(frozen=True)
class OutputError:
    """Mean over samples of the mean absolute (or squared) error of ``output`` [samples, ...].

    Against the labels where they are targets of the output's own shape, otherwise (``versus_float``) against the float
    model's output.
    """

    name: str
    squared: bool
    output: str
    versus_float: bool
    unit: str = ""
    higher_is_better: bool = False

    @property
    def facts(self) -> MetricFacts:
        return MetricFacts(self.name, self.unit, False, "mean", self.versus_float)

    def score(self, outputs: Tensors, labels: Array | None, float_outputs: Tensors) -> Score:
        ours = flat(take(outputs, self.output, self.name))
        target = self._target(labels, float_outputs, len(ours))
        if ours.shape != target.shape:
            raise MetricFailed(
                f"metric {self.name!r}: output {self.output!r} has {ours.shape[1]} values a sample, the reference "
                f"{target.shape[1]}"
            )
        gap = ours - target
        errors = (np.square(gap) if self.squared else np.abs(gap)).mean(axis=1)
        return Score(value=float(errors.mean()), n=len(errors), per_sample=errors)

    def _target(self, labels: Array | None, float_outputs: Tensors, samples: int) -> Array:
        if self.versus_float:
            return flat(take(float_outputs, self.output, self.name, samples=samples))
        if labels is None or len(labels) != samples:
            raise MetricFailed(f"metric {self.name!r}: {samples} samples and not as many labels")
        return flat(labels)
