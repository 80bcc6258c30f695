"""Estimates of a model file, by input shapes, for the options a board was asked to load it with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx

from device_agents.runner.platform import KernelTime, Options

from .cost_model import Estimate, estimate
from .cost_model.graph import Effort
from .cost_model.roofline import Work, node_ns
from .spec import CostModel, Processor

Shapes = dict[str, tuple[int, ...]]


class Costs:
    """Estimates of one model by input shapes."""

    def __init__(self, cost_model: CostModel, model_path: str, options: Options) -> None:
        self._model = onnx.load(model_path)
        self._cost_model = cost_model
        self._providers = [name for name, _ in options.providers]
        self._threads = options.intra_op_threads
        self._optimization: Any = options.graph_optimization
        self._known: dict[tuple[tuple[str, tuple[int, ...]], ...], Estimate] = {}
        initializers = {tensor.name for tensor in self._model.graph.initializer}
        self._declared = {
            value.name: tuple(dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim)
            for value in self._model.graph.input
            if value.name not in initializers
        }

    def at(self, shapes: Shapes) -> Estimate:
        key = tuple(sorted(shapes.items()))
        if key not in self._known:
            self._known[key] = estimate(
                self._model,
                self._cost_model,
                shapes,
                providers=self._providers,
                threads=self._threads,
                optimization=self._optimization,
            )
        return self._known[key]

    def at_declared_shapes(self) -> Estimate:
        """At the shapes of the model's inputs, free dimensions being 1."""
        return self.at(dict(self._declared))


def processing_ns(processor: Processor, passes: Iterable[tuple[str, int]]) -> float:
    """Nanoseconds of passes over arrays outside the model, (ONNX operator, elements) each: what an element-wise float32
    operator takes on one core, reading and writing four bytes per element."""
    return sum(
        node_ns(processor, Work(Effort(operator, elements=elements), "float32", 8 * elements))
        for operator, elements in passes
    )


def kernels(estimate: Estimate, processor: str) -> list[KernelTime]:
    """What a profile of the runtime shows: nodes of the processor one by one, compiled subgraphs as a whole."""
    found: list[KernelTime] = []
    for node in estimate.nodes:
        duration = round(node.time_ns)
        previous = found[-1] if found else None
        if node.provider != processor and previous is not None and previous.provider == node.provider:
            found[-1] = previous._replace(duration_ns=previous.duration_ns + duration)
        elif node.provider != processor:
            found.append(KernelTime(f"{node.provider}_subgraph_{len(found)}", "Subgraph", node.provider, duration))
        else:
            found.append(KernelTime(node.name, node.op_type, node.provider, duration))
    return found
