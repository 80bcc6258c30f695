"""Names that rewriters make up, kept free.

ONNX Runtime's rewriters call the scale of ``x`` ``x_scale`` without looking whether the model has a tensor of that
name already, and find nodes again by such names.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto

from harness.quantize.graph import all_graphs, all_nodes, free_name, rename_tensors, tensor_names

_TENSOR_SUFFIXES = (
    "_scale", "_zero_point", "_quantized", "quantized", "_quantized_scale", "_quantized_zero_point",
    "_QuantizeLinear", "_QuantizeLinear_Input", "_QuantizeLinear_Output", "_DequantizeLinear",
    "_DequantizeLinear_Input", "_DequantizeLinear_Output", "_output_quantized", "_output_quantized_cast_output",
    "_Abs_Max", "scale_Div", "_bias_reshape_shape", "_bias_reshape_output", "quant_scaled_output",
)  # fmt: skip
_NODE_SUFFIXES = (
    "_QuantizeLinear", "_DequantizeLinear", "_quant", "_quant_scales_mul", "_quant_output_scale_mul", "_bias_add",
    "_output_quantized_cast", "_ReduceMin", "_ReduceMax", "_Cast", "_MatMul", "_Add",
)  # fmt: skip


def colliding_tensors(model: ModelProto) -> dict[str, str]:
    """Tensors whose names a rewriter would make up for another tensor -> free names for them meanwhile."""
    names = tensor_names(model)
    made_up = {f"{name}{suffix}" for name in names for suffix in _TENSOR_SUFFIXES}
    # ONNX Runtime numbers copies of a shared bias: "b" becomes "b1".
    taken = names | made_up
    return {name: free_name(f"{name}.own", taken) for name in sorted(names & made_up)}


def rename_colliding_nodes(model: ModelProto) -> None:
    """Renames nodes whose names a rewriter would make up; names must be unique."""
    bases = tensor_names(model) | {node.name for node in all_nodes(model)}
    made_up = {f"{base}{suffix}" for base in bases for suffix in _NODE_SUFFIXES}
    taken = bases | made_up
    for node in all_nodes(model):
        if node.name in made_up:
            node.name = free_name(f"{node.name}.node", taken)


def rename_inner_tensors(model: ModelProto) -> None:
    """Gives tensors made inside subgraphs names that no other tensor of the model has.

    The standard lets sibling subgraphs use the same names; tools that look tensors up by name mix them up.
    """
    seen: set[str] = set()
    taken = tensor_names(model)
    for graph in all_graphs(model.graph):
        own = [
            *(value.name for value in graph.input),
            *(tensor.name for tensor in graph.initializer),
            *(name for node in graph.node for name in node.output if name),
        ]
        repeated = [name for name in dict.fromkeys(own) if name in seen]
        names = {name: free_name(name, taken) for name in repeated}
        rename_tensors(graph, names, interface=True)
        seen.update(names.get(name, name) for name in own)


def rename(model: ModelProto, names: Mapping[str, str]) -> None:
    """Renames tensors everywhere, what bears a wanted name already giving way."""
    present = tensor_names(model)
    taken = present | set(names.values())
    in_the_way = {name: free_name(f"{name}.made", taken) for name in names.values() if name in present}
    rename_tensors(model.graph, in_the_way, interface=True)
    rename_tensors(model.graph, names, interface=True)
