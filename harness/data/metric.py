"""The contract of a metric."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from device_agents.contract import Tensors
from harness.data.score import MetricFacts, Score
from harness.errors import BoardtuneError, ExitCode


class MetricFailed(BoardtuneError):
    """A metric cannot be computed from a candidate's outputs: not finite, wrong shape, or its function failed.

    On a candidate, the candidate failed, not the run: record it and go on. On the float model's own outputs it is a
    mistake in what was asked for, hence the exit code.
    """

    exit_code = ExitCode.USAGE


class Metric(Protocol):
    """Scores the outputs of one model on samples."""

    @property
    def facts(self) -> MetricFacts: ...

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> str: ...

    @property
    def higher_is_better(self) -> bool: ...

    def score(self, outputs: Tensors, labels: npt.NDArray[np.generic] | None, float_outputs: Tensors) -> Score:
        """``outputs`` and ``float_outputs``: [samples, ...] by output name, of the same samples in the same order.

        Raises :class:`MetricFailed`.
        """
