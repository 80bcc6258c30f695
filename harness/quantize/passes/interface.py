"""Outputs that no node computes: graph inputs and initializers that are outputs as well, and outputs listed twice.

A rewriter that quantizes such a tensor takes it for the result of a node and gives its name to another.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import ModelProto, TensorProto, ValueInfoProto

from harness.quantize.graph import initializers_of
from harness.quantize.passes.names import rename


@dataclass(frozen=True)
class SetAside:
    """What was taken out, to be put back."""

    outputs: tuple[ValueInfoProto, ...]
    """All outputs, in order."""
    constants: tuple[TensorProto, ...]
    """Initializers that are outputs."""


def set_aside(model: ModelProto) -> SetAside:
    """Takes outputs that are inputs or initializers, and repetitions, out of the graph's outputs."""
    graph = model.graph
    constants = initializers_of(graph)
    passed = {value.name for value in graph.input} | set(constants)
    everything = tuple(ValueInfoProto.FromString(v.SerializeToString()) for v in graph.output)
    kept = list({value.name: value for value in everything if value.name not in passed}.values())
    del graph.output[:]
    graph.output.extend(kept)
    tensors = [constants[value.name] for value in everything if value.name in constants]
    return SetAside(everything, tuple(TensorProto.FromString(t.SerializeToString()) for t in tensors))


def put_back(model: ModelProto, aside: SetAside) -> None:
    """Makes the outputs what they were; a constant given another type meanwhile keeps that under another name."""
    graph = model.graph
    present = initializers_of(graph)
    changed = (t.name for t in aside.constants if t.name in present and present[t.name].data_type != t.data_type)
    rename(model, {name: name for name in changed})
    del graph.output[:]
    graph.output.extend(aside.outputs)
    present = initializers_of(graph)
    graph.initializer.extend(tensor for tensor in aside.constants if tensor.name not in present)
