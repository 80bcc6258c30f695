"""How one model's outputs do: signal-to-noise ratio on the worst output, and the user's metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from device_agents.contract import Tensors
from harness.data.metric import Metric, MetricFailed
from harness.quantize.snr import NonFiniteOutputError, snr_db
from harness.sensitivity.result import Effect


class Scorer:
    """Scores outputs [samples, ...] of samples of one evaluation set."""

    def __init__(self, metrics: Sequence[Metric], labels: npt.NDArray[np.generic] | None) -> None:
        """``labels`` are those of the whole set."""
        self._metrics = tuple(metrics)
        self._labels = labels

    def __call__(self, outputs: Tensors, reference: Tensors, rows: npt.NDArray[np.intp]) -> Effect:
        """``reference``: outputs of the float model; ``rows``: places of the samples in the set."""
        labels = None if self._labels is None else self._labels[rows]
        values: dict[str, float | None] = {}
        for metric in self._metrics:
            try:
                values[metric.name] = metric.score(outputs, labels, reference).value
            except MetricFailed:
                if outputs is reference:
                    # Of float, it is a mistake in what was asked for.
                    raise
                values[metric.name] = None
        return Effect(snr_db=worst_snr_db(outputs, reference), metrics=values)


def worst_snr_db(outputs: Tensors, reference: Tensors) -> float | None:
    """Over the outputs, as acceptance computes it; ``None`` where a value is not finite that is so in float."""
    try:
        return min(snr_db([reference[name]], [outputs[name]]) for name in reference)
    except NonFiniteOutputError:
        return None
