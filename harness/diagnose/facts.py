"""What a diagnosis is made from. Values only: whoever gathers them does the reading and running."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.audit.weights import Weight
from harness.diagnose.compare import Loss, ratio_db
from harness.diagnose.tensors import Layer
from harness.recipes.recipe import Recipe

Floats = npt.NDArray[np.float64]

DROP = 0.02
"""Loss of the metric (share of float's value; points for a fraction) from which a trial is said to suffer: the 2 % of
vendors' accuracy guides."""
POOR_DB = 20.0
"""Signal-to-noise ratio of the worst output below which a trial without labels is said to suffer: noise of a tenth of
the signal."""


@dataclass(frozen=True)
class MetricFacts:
    """The metric the search ranks on, of both models on the same samples on this host."""

    name: str
    unit: str
    higher_is_better: bool
    versus_float: bool
    float_value: float | None
    """``None`` where the metric compares with float."""
    value: float
    outcome: str = "none"
    """Against the plan's limit: ``met``, ``broken``, ``undecided``, ``none``."""
    certain: bool = True
    """Whether the 95 % interval of the paired difference leaves out no difference."""

    @property
    def drop(self) -> float | None:
        """Loss against float, positive if worse: points of a fraction, else a share of float's value."""
        if self.float_value is None:
            return None
        lost = self.float_value - self.value if self.higher_is_better else self.value - self.float_value
        return lost if self.unit == "fraction" else lost / max(abs(self.float_value), 1e-12)


@dataclass(frozen=True, eq=False)
class Output:
    """One floating-point output of both models, [samples, values of one sample], in its own type."""

    name: str
    maker: str
    """Node of the float model that makes it."""
    expected: npt.NDArray[np.floating[Any]]
    got: npt.NDArray[np.floating[Any]]
    """NaN and infinities as they are."""
    shape: tuple[int, ...]
    """Of one sample."""

    def differences(self) -> Iterator[tuple[Floats, Floats]]:
        """Sample by sample: float's values, and what the quantized model's differ by; what is not finite counts as
        lost wholly. One sample at a time: outputs may be images."""
        for expected, got in zip(self.expected, self.got, strict=True):
            values = expected.astype(np.float64)
            others = got.astype(np.float64)
            yield values, np.where(np.isfinite(others), others, 0.0) - values

    @cached_property
    def _powers(self) -> Floats:
        """float64 [samples, 2]: signal, noise."""
        rows = [(float(np.square(v).sum()), float(np.square(d).sum())) for v, d in self.differences()]
        return np.array(rows, dtype=np.float64).reshape(-1, 2)

    @property
    def signal(self) -> Floats:
        """float64 [samples]."""
        return self._powers[:, 0]

    @property
    def noise(self) -> Floats:
        """float64 [samples]."""
        return self._powers[:, 1]

    @property
    def snr_db(self) -> float:
        return ratio_db(float(self.signal.sum()), float(self.noise.sum()))

    @cached_property
    def sample_snr_db(self) -> Floats:
        return np.array([ratio_db(float(s), float(n)) for s, n in zip(self.signal, self.noise, strict=True)])

    @property
    def non_finite(self) -> int:
        return int(np.count_nonzero(~np.isfinite(self.got)))


@dataclass(frozen=True, eq=False)
class Classes:
    """Of a classifier: int64 [samples] each."""

    labels: npt.NDArray[np.int64]
    expected: npt.NDArray[np.int64]
    """The float model's answers."""
    got: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AccuracyFacts:
    recipe: Recipe
    metric: MetricFacts | None
    outputs: Sequence[Output]
    layers: Sequence[Layer]
    losses: Mapping[str, Loss]
    """By float tensor, over the samples ``rows``; empty where intermediate values cannot be compared."""
    rows: npt.NDArray[np.intp]
    """Sample (row of the outputs) behind each row of a loss."""
    batch: int = 1
    """Samples in each run: a row of a loss is about as many, from ``rows`` on."""
    weights: Mapping[str, Weight] = field(default_factory=dict)
    """By node."""
    classes: Classes | None = None
    unfused: Mapping[str, Floats] = field(default_factory=dict)
    """Outputs of the quantized model run as its graph says, [rows, values]; by name."""
    inserted: frozenset[str] = frozenset()
    """Nodes that the recipe's reshaping put in: no recipe can name them."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """Node -> operator domain, where it is not ONNX's own."""

    @cached_property
    def worst_output(self) -> Output | None:
        return min(self.outputs, key=lambda output: output.snr_db, default=None)

    @property
    def suffers(self) -> bool:
        """Whether accuracy was lost that somebody will miss."""
        if any(output.non_finite for output in self.outputs):
            return True
        drop = self.metric.drop if self.metric else None
        if drop is not None and self.metric is not None:
            return drop > DROP and self.metric.certain
        return self.worst_output is not None and self.worst_output.snr_db < POOR_DB

    @cached_property
    def losing_places(self) -> tuple[str, ...]:
        """Quantized activations in which channels or places of small values are lost, in the order of the graph."""
        return tuple(
            layer.output
            for layer in self.layers
            if layer.output in self.losses
            and self.losses[layer.output].grid is not None
            and any(slices.lost.size for slices in self.losses[layer.output].slices.values())
        )

    @cached_property
    def makers(self) -> dict[str, Layer]:
        """Tensor -> the layer that makes it."""
        return {layer.output: layer for layer in self.layers}


@dataclass(frozen=True)
class BoardFacts:
    """One trial on one board, beside the float model there."""

    name: str
    machine: str
    """CPU architecture, as ``platform.machine()`` gives it."""
    accelerated: bool
    """Whether a provider other than the CPU's was asked for."""
    latency_ns: float | None
    latency_ci95: tuple[float, float] | None
    float_latency_ns: float | None
    float_latency_ci95: tuple[float, float] | None
    metrics: Mapping[str, float]
    samples: Mapping[str, int]
    units: Mapping[str, str]
    placement: Mapping[str, object]
    min_offload: float | None = None

    @property
    def slower(self) -> bool:
        """Certainly slower than float: the intervals do not touch."""
        if self.latency_ci95 is None or self.float_latency_ci95 is None:
            return False
        return self.latency_ci95[0] > self.float_latency_ci95[1]


@dataclass(frozen=True)
class ArtifactNode:
    name: str
    op_type: str
    kind: str
    """``quantized``: computes on integers; ``switch``: converts between float and integers, at the border of what
    computes in float; ``folded``: the same between quantized operators, which runtimes fold away; ``float``: the rest
    that computes; ``constant``: of constants alone; ``view``: moves no data."""
    moved_bytes: int
    """Of the activations it reads and writes."""


@dataclass(frozen=True, eq=False)
class TimeFacts:
    recipe: Recipe
    size_bytes: int
    float_size_bytes: int
    nodes: Sequence[ArtifactNode]
    boards: Sequence[BoardFacts]
