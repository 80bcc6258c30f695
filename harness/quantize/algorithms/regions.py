"""Parts of a graph named by tensors: everything after one, everything between two."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ModelProto, NodeProto

from harness.quantize.graph import all_graphs
from harness.suggest import near_hint


class UnknownTensorError(ValueError):
    """The model has no such tensor; the message says which, and what is close."""


def nodes_after(model: ModelProto, tensors: Iterable[str]) -> set[str]:
    """Names of the main graph's nodes that depend on one of ``tensors``. Raises :class:`UnknownTensorError`."""
    reached = set(_known(model, tensors))
    found = set()
    for node in model.graph.node:
        if reached & set(_reads(node)):
            found.add(node.name)
            reached.update(node.output)
    return found


def nodes_before(model: ModelProto, tensors: Iterable[str]) -> set[str]:
    """Names of the main graph's nodes that one of ``tensors`` depends on. Raises :class:`UnknownTensorError`."""
    needed = set(_known(model, tensors))
    found = set()
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            found.add(node.name)
            needed.update(_reads(node))
    return found


def nodes_between(model: ModelProto, first: str, last: str) -> set[str]:
    """Names of the nodes on any path from ``first`` to ``last``. Raises :class:`UnknownTensorError`."""
    return nodes_after(model, [first]) & nodes_before(model, [last])


def _reads(node: NodeProto) -> list[str]:
    """What a node reads, also from inside its subgraphs."""
    names = list(node.input)
    for attribute in node.attribute:
        for outer in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            for graph in all_graphs(outer):
                names += [name for inner in graph.node for name in inner.input]
                names += [value.name for value in graph.output]
    return [name for name in names if name]


def _known(model: ModelProto, tensors: Iterable[str]) -> list[str]:
    names = list(tensors)
    there = {value.name for value in model.graph.input} | {o for node in model.graph.node for o in node.output if o}
    for name in names:
        if name not in there:
            guess = near_hint(name, there)
            raise UnknownTensorError(
                f"{name!r}, which the prepared model does not have" + (f"; {guess}" if guess else "")
            )
    return names
