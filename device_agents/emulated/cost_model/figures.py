"""A cost model against the published figures it names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import ModelProto

from device_agents.emulated.spec import CostModel, Figure

from .estimate import estimate
from .networks import NETWORKS


@dataclass(frozen=True)
class Check:
    figure: Figure
    model_ms: float

    @property
    def error(self) -> float:
        """Relative: 0.1 means the model is 10 % slower than what was published."""
        return self.model_ms / self.figure.latency_ms - 1.0

    @property
    def within(self) -> bool:
        return abs(self.error) <= self.figure.max_error


def check(cost_model: CostModel) -> Iterator[Check]:
    """One check per figure. Raises :class:`KeyError` for a network that has no builder."""
    for figure in cost_model.figures:
        model = NETWORKS[figure.network](figure.precision == "int8")
        result = estimate(model, cost_model, input_shapes(model), providers=figure.providers, threads=figure.threads)
        yield Check(figure, result.latency_ns / 1e6)


def input_shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """The declared shapes of a model whose inputs are all fixed."""
    return {value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in model.graph.input}
