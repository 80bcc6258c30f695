"""ONNX Runtime's two graph rewriters with the cases mended that they get wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, numpy_helper
from onnxruntime.quantization.operators.base_operator import QuantOperatorBase
from onnxruntime.quantization.registry import CreateOpQuantizer

from harness.quantize.channelwise import ChannelwiseQDQ, ChannelwiseQOperator
from harness.quantize.graph import attributes_of, captured_names


class _Shared:
    """What both rewriters have in common: a range is not narrowed to that of the activation behind it if the tensor
    is seen elsewhere, as an output or inside control flow."""

    model: Any
    tensors_range: Any

    def adjust_tensor_ranges(self) -> None:
        """As the base class, over the right tensors and through chains of activations."""
        if self.tensors_range is None:
            return
        graph = self.model.graph()
        seen = {value.name for value in graph.output} | captured_names(graph)
        before = {node.input[0] for node in graph.node if node.op_type in ("Clip", "Relu")}
        kept = {name: self.tensors_range[name] for name in seen & before if name in self.tensors_range}
        # A chain (Clip behind Clip) needs the last range first: one pass per link.
        for _ in range(_longest_chain(graph.node)):
            super().adjust_tensor_ranges()  # type: ignore[misc]
            for name, data in kept.items():
                self.tensors_range[name] = data


def _longest_chain(nodes: Any) -> int:
    behind: dict[str, int] = {}
    for node in nodes:
        if node.op_type in ("Clip", "Relu"):
            behind[node.output[0]] = behind.get(node.input[0], 0) + 1
    return max(behind.values(), default=1)


class QDQRewriter(_Shared, ChannelwiseQDQ):
    """Writes QuantizeLinear/DequantizeLinear pairs."""

    def __init__(self, model: onnx.ModelProto, *arguments: Any) -> None:
        self._captured = captured_names(model.graph)
        self._transposed_groups = {
            node.name: (node.input[1], int(attributes_of(node).get("group", 1)))
            for node in model.graph.node
            if node.op_type == "ConvTranspose"
        }
        self._matrices = _plain_matrices(model.graph)
        super().__init__(model, *arguments)

    def try_replacing_upstream_output(self, upstream_output_name: str, output_name: str) -> bool:
        """As the base class, but control flow that reads the upstream tensor goes on finding it."""
        if upstream_output_name in self._captured:
            return False
        return bool(super().try_replacing_upstream_output(upstream_output_name, output_name))

    def is_tensor_per_channel(
        self, tensor_name: str, default_axis: int, op_type: str | None = None
    ) -> tuple[bool, int | None]:
        """As the base class, but MatMul's axis is one of channels only in a matrix that is the second operand."""
        if op_type == "MatMul" and tensor_name not in self._matrices:
            return False, None
        found: tuple[bool, int | None] = super().is_tensor_per_channel(tensor_name, default_axis, op_type)
        return found

    def is_tensor_quantized(self, tensor_name: str) -> bool:
        """As the base class, but a bias is not quantized in a way that other operators could share: they would wait
        for its parameters for ever."""
        return tensor_name in self.tensors_to_quantize

    def _get_tensor_quantization_scale(self, tensor_name: str, consumer_node_name: str) -> Any:
        """As the base class, but a transposed convolution's weight has one scale per channel of each group."""
        scale = super()._get_tensor_quantization_scale(tensor_name, consumer_node_name)
        weight, groups = self._transposed_groups.get(consumer_node_name, ("", 1))
        if tensor_name == weight and groups > 1 and scale is not None and scale.size > 1:
            return np.tile(scale, groups)
        return scale

    def _adjust_weight_scale_for_int32_bias(
        self, input_scale: Any, weight_scale: Any, weight_name: str, bias_tp: Any, is_per_channel: bool
    ) -> Any:
        """As the base class; of several groups' biases that one scale serves, the largest counts."""
        bias = numpy_helper.to_array(bias_tp)
        if is_per_channel and weight_scale.ndim == 1 and bias.size != weight_scale.size:
            largest = np.abs(bias.reshape(-1, weight_scale.size)).max(axis=0)
            bias_tp = numpy_helper.from_array(largest, bias_tp.name)
        return super()._adjust_weight_scale_for_int32_bias(
            input_scale, weight_scale, weight_name, bias_tp, is_per_channel
        )

    def _quantize_bias_tensors(self) -> None:
        """As the base class, but a bias too large for a 32-bit integer of its scale stays in float: the base class
        would clip it. It widens the weights' scale instead where those are symmetric 8- or 16-bit integers."""
        for name, info in list(self.bias_to_quantize.items()):
            parts = [
                self._get_tensor_quantization_scale(tensor, info.node_name)
                for tensor in (info.input_name, info.weight_name)
            ]
            if any(part is None for part in parts):
                # Its layer's input or weight stayed in float.
                del self.bias_to_quantize[name]
                continue
            values = np.abs(numpy_helper.to_array(self.model.get_initializer(name)).astype(np.float64)).ravel()
            scale = np.asarray(parts[0], np.float64) * np.asarray(parts[1], np.float64) * info.beta
            if np.any(values > np.iinfo(np.int32).max * np.abs(scale).ravel()):
                del self.bias_to_quantize[name]
        super()._quantize_bias_tensors()

    def _quantize_sharing_param_tensors(self) -> None:
        """As the base class, but tensors that wait for parameters that never come are left in float: the base class
        would wait in an endless loop."""
        waiting = self.tensors_to_quantize
        served = set(self.quantized_value_map)
        moved = True
        while moved:
            ready = {
                n for n, i in waiting.items() if i.quant_para_provider and i.quant_para_provider.input_name in served
            }
            moved = bool(ready - served)
            served |= ready
        for name in [name for name in waiting if name not in served or self.is_input_a_initializer(name)]:
            del waiting[name]
        super()._quantize_sharing_param_tensors()


def _plain_matrices(graph: onnx.GraphProto) -> frozenset[str]:
    """Initializers with two axes that MatMul nodes read as their second operand only."""
    first = {node.input[0] for node in graph.node if node.op_type == "MatMul"}
    second = {node.input[1] for node in graph.node if node.op_type == "MatMul"}
    return frozenset(t.name for t in graph.initializer if len(t.dims) == 2 and t.name in second - first)


class OperatorRewriter(_Shared, ChannelwiseQOperator):
    """Writes QLinear operators (``QLinearOps``) or integer ones (``IntegerOps``)."""

    def quantize_model(self) -> Any:
        """As the base class, but what control flow reads from outside is dequantized for it, and Where reads floats:
        the base class has no quantized form of it, and forgets to say so."""
        captured = captured_names(self.model.graph())
        for node in self.model.nodes():
            before = len(self.new_nodes)
            if any(attribute.HasField("g") for attribute in node.attribute):
                self._dequantize(sorted(captured))
            quantizer = CreateOpQuantizer(self, node)
            if node.op_type == "Where" or not self._weights_are_there(node):
                quantizer = QuantOperatorBase(self, node)
            quantizer.quantize()
            for made in self.new_nodes[before:]:
                self.generated_value_names.update(made.output)
        self._dequantize_outputs()
        graph = self.model.graph()
        del graph.node[:]
        graph.node.extend(self.new_nodes)
        self.model.clean_initializers()
        domains = {opset.domain for opset in self.model.model.opset_import}
        if "com.microsoft" not in domains and any(node.domain == "com.microsoft" for node in self.new_nodes):
            self.model.model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
        return self.model.model

    def quantize_weight_per_channel(self, weight_name: str, weight_type: Any, channel_axis: int, *more: Any) -> Any:
        """As the base class, but ONNX Runtime's QLinearMatMul takes scales per channel of matrices only."""
        tensor = self.model.get_initializer(weight_name)
        if channel_axis == -1 and tensor is not None and len(tensor.dims) != 2:
            return self.quantize_initializer(tensor, weight_type)
        return super().quantize_weight_per_channel(weight_name, weight_type, channel_axis, *more)

    def _dequantize(self, names: list[str]) -> None:
        for name in names:
            made = self._dequantize_value(name)
            if made is not None:
                self.new_nodes.append(made)
                self.generated_value_names.update(made.output)

    def _weights_are_there(self, node: NodeProto) -> bool:
        """Whether a dynamically quantized convolution has the constant weight that the base class takes for granted."""
        return bool(self.static) or node.op_type != "Conv" or self.is_input_a_initializer(node.input[1])
