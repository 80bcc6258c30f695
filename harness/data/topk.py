"""Top-k accuracy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from device_agents.contract import Tensors
from harness.data.metric import MetricFailed
from harness.data.outputs import flat, take
from harness.data.score import MetricFacts, Score
from harness.data.stored import Array


@dataclass(frozen=True)
class TopK:
    """Share of samples whose label is among the ``k`` highest scores of ``output`` [samples, classes].

    Ties are broken towards the lower class number, as ``argmax`` does: a quantized model whose scores coincide gets no
    credit for a tie it would not win when used. An output of class numbers [samples] is compared with the label itself.
    """

    name: str
    k: int
    output: str
    unit: str = "fraction"
    higher_is_better: bool = True

    @property
    def facts(self) -> MetricFacts:
        return MetricFacts(self.name, self.unit, True, "proportion", versus_float=False)

    def score(self, outputs: Tensors, labels: Array | None, float_outputs: Tensors) -> Score:
        """Per-sample scores are 0 or 1."""
        if labels is None:
            raise MetricFailed(f"metric {self.name!r}: no labels")
        scores = take(outputs, self.output, self.name, samples=len(labels))
        hits = self._hits(scores, labels.astype(np.int64)).astype(np.float64)
        return Score(value=float(hits.mean()), n=len(hits), per_sample=hits)

    def _hits(self, scores: Array, labels: Array) -> Array:
        values = flat(scores)
        if values.shape[1] == 1 and scores.dtype.kind in "iu":
            return np.asarray(scores.reshape(-1) == labels)
        if labels.max() >= values.shape[1] or labels.min() < 0:
            raise MetricFailed(
                f"metric {self.name!r}: label {labels.max()} and output {self.output!r} of {values.shape[1]} classes"
            )
        if self.k >= values.shape[1]:
            raise MetricFailed(f"metric {self.name!r}: output {self.output!r} has {values.shape[1]} classes")
        own = values[np.arange(len(values)), labels][:, np.newaxis]
        before = np.arange(values.shape[1]) < labels[:, np.newaxis]
        rank = np.count_nonzero((values > own) | ((values == own) & before), axis=1)
        return np.asarray(rank < self.k)
