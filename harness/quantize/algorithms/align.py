"""One range for the inputs and the output of an operator, where a target computes it without rescaling."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from onnx import ModelProto

from harness.quantize.ranges import Range


def aligned_ranges(
    model: ModelProto, ranges: Mapping[str, Range], op_types: Collection[str], excluded: Collection[str] = ()
) -> dict[str, Range]:
    """``ranges`` widened so that all activations of each node of ``op_types`` share one; chains share one throughout.

    Nodes named in ``excluded`` are left alone.
    """
    leader = {name: name for name in ranges}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for node in model.graph.node:
        if node.op_type in op_types and node.name not in excluded:
            tied = [find(name) for name in (*node.input, *node.output) if name in leader]
            for name in tied[1:]:
                leader[find(name)] = find(tied[0])
    members: dict[str, list[str]] = {}
    for name in ranges:
        members.setdefault(find(name), []).append(name)
    shared = {
        head: (min(ranges[name][0] for name in names), max(ranges[name][1] for name in names))
        for head, names in members.items()
    }
    return {name: shared[find(name)] for name in ranges}
