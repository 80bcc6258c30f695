"""Block-wise weights of MatMul and Gemm (as QDQ also of LSTM, GRU and RNN) in 4 or 8 bits, activations in float.

Two forms: ``QOperator`` makes ONNX Runtime's ``com.microsoft.MatMulNBits``; ``QDQ`` keeps the operator and feeds it
from a DequantizeLinear with a block size (opset 21). Layouts are those of the operators' specifications
(ContribOperators.md, Operators.md). Round to nearest, as ONNX Runtime's default algorithm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx.version_converter
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from harness.quantize.graph import (
    all_graphs,
    drop_unread_initializers,
    initializers_of,
    is_plain_product,
    is_transposed,
    opset_of,
)
from harness.recipes.axes import BITS, SIGNED
from harness.recipes.recipe import Recipe

MICROSOFT = "com.microsoft"
RECURRENT = ("LSTM", "GRU", "RNN")
_BLOCK_OPSET = 21
_BLOCK_IR_VERSION = 10
_QDQ_TYPES = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4, "int8": np.int8, "uint8": np.uint8}


@dataclass(frozen=True)
class BlockWeights:
    """A [K, N] weight matrix in blocks of ``block_size`` along K."""

    codes: npt.NDArray[np.uint8]
    """uint8 [N, blocks, block_size]: unsigned codes, K padded with the zero point."""
    scales: npt.NDArray[np.float32]
    """float32 [N, blocks]."""
    zero_points: npt.NDArray[np.uint8]
    """uint8 [N, blocks], in the codes' unsigned terms."""
    rows: int
    """K, without padding."""


def quantize_blocks(matrix: npt.NDArray[np.float32], bits: int, block_size: int, symmetric: bool) -> BlockWeights:
    """Rounds a float32 [K, N] matrix to nearest in blocks along K.

    Symmetric blocks have the zero point in the middle (2^(bits-1)) and use the negative end for the largest magnitude.
    """
    rows, columns = matrix.shape
    blocks = -(-rows // block_size)
    padded = np.zeros((blocks * block_size, columns), dtype=np.float32)
    padded[:rows] = matrix
    values = padded.T.reshape(columns, blocks, block_size)
    largest = 2**bits - 1
    middle = 2 ** (bits - 1)
    if symmetric:
        index = np.abs(values).argmax(axis=2)
        extreme = np.take_along_axis(values, index[..., None], axis=2)[..., 0]
        scales = extreme / np.float32(-middle)
        zeros = np.full(scales.shape, middle, dtype=np.float32)
    else:
        low = np.minimum(values.min(axis=2), 0.0)
        high = np.maximum(values.max(axis=2), 0.0)
        scales = (high - low) / np.float32(largest)
        safe = np.where(scales == 0.0, np.float32(1.0), scales)
        zeros = np.clip(np.round(-low / safe), 0, largest)
    scales = np.where(scales == 0.0, np.float32(1.0), scales)
    codes = np.clip(np.round(values / scales[..., None]) + zeros[..., None], 0, largest)
    return BlockWeights(codes.astype(np.uint8), scales.astype(np.float32), zeros.astype(np.uint8), rows)


def quantize_weight_only(model: ModelProto, recipe: Recipe, excluded_nodes: Collection[str]) -> ModelProto:
    """The model with the weights of its MatMul and plain Gemm nodes (and recurrent ones) in blocks; ``model`` is
    consumed."""
    if recipe.format == "QDQ" and opset_of(model) < _BLOCK_OPSET:
        model = onnx.version_converter.convert_version(model, _BLOCK_OPSET)
        model.ir_version = max(model.ir_version, _BLOCK_IR_VERSION)
    changed = False
    for graph in all_graphs(model.graph):
        constants = initializers_of(graph)
        nodes: list[NodeProto] = []
        for node in graph.node:
            if node.op_type in RECURRENT and recipe.format == "QDQ" and node.name not in excluded_nodes:
                made, tensors = _recurrent_nodes(node, constants, recipe)
                nodes.extend(made)
                graph.initializer.extend(tensors)
                constants |= {tensor.name: tensor for tensor in tensors}
                continue
            weight = (
                constants.get(node.input[1]) if is_plain_product(node) and node.name not in excluded_nodes else None
            )
            if weight is None or weight.data_type != TensorProto.FLOAT or len(weight.dims) != 2 or 0 in weight.dims:
                nodes.append(_copy(node))
                continue
            make = _qdq_nodes if recipe.format == "QDQ" else _matmul_nbits
            made, tensors = make(node, weight, recipe)
            nodes.extend(made)
            present = {t.name for t in graph.initializer}
            graph.initializer.extend(t for t in tensors if t.name not in present)
            changed = True
        del graph.node[:]
        graph.node.extend(nodes)
        drop_unread_initializers(model, graph)
    if changed and recipe.format == "QOperator" and MICROSOFT not in {o.domain for o in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return model


def _recurrent_nodes(
    node: NodeProto, constants: Mapping[str, TensorProto], recipe: Recipe
) -> tuple[list[NodeProto], list[TensorProto]]:
    """The weights of inputs and of the recurrence, [directions, gates x hidden, K], in blocks along K."""
    reading, made, tensors = _copy(node), [], []
    for index in (1, 2):
        weight = constants.get(node.input[index])
        if weight is None or weight.data_type != TensorProto.FLOAT or len(weight.dims) != 3 or 0 in weight.dims:
            continue
        prefix = f"{weight.name}_b{BITS[recipe.weight]}_{recipe.block_size}"
        directions, rows, width = weight.dims
        matrix = numpy_helper.to_array(weight).reshape(directions * rows, width).T
        parts = _codes(matrix, recipe, prefix, (directions, rows))
        tensors += [tensor for tensor in parts if tensor.name not in constants]
        output = f"{prefix}_{node.name}_{index}_dequantized"
        made.append(_dequantize(parts, output, f"{node.name}_{index}_DequantizeLinear", recipe, axis=2))
        reading.input[index] = output
    return [*made, reading], tensors


def _matrix(node: NodeProto, weight: TensorProto) -> npt.NDArray[np.float32]:
    """The weight as [K, N], whichever way the node reads it."""
    array: npt.NDArray[np.float32] = numpy_helper.to_array(weight)
    return array.T if is_transposed(node) else array


def _prefix(node: NodeProto, weight: TensorProto, recipe: Recipe) -> str:
    """Of the new tensors' names; nodes that read a weight alike share them."""
    return f"{weight.name}_b{BITS[recipe.weight]}_{recipe.block_size}" + ("_t" if is_transposed(node) else "")


def _matmul_nbits(node: NodeProto, weight: TensorProto, recipe: Recipe) -> tuple[list[NodeProto], list[TensorProto]]:
    bits, block = BITS[recipe.weight], recipe.block_size or 0
    symmetric = recipe.weight in SIGNED
    blocks = quantize_blocks(_matrix(node, weight), bits, block, symmetric)
    columns = blocks.scales.shape[0]
    prefix = _prefix(node, weight, recipe)
    tensors = [
        numpy_helper.from_array(_packed(blocks.codes, bits), f"{prefix}_codes"),
        numpy_helper.from_array(blocks.scales.reshape(-1), f"{prefix}_scales"),
    ]
    inputs = [node.input[0], *(t.name for t in tensors)]
    if not symmetric:
        tensors.append(numpy_helper.from_array(_packed(blocks.zero_points, bits).reshape(-1), f"{prefix}_zeros"))
        inputs.append(tensors[-1].name)
    bias = node.input[2] if len(node.input) > 2 else ""
    product = f"{node.output[0]}_{prefix}_product" if bias else node.output[0]
    made = [
        helper.make_node(
            "MatMulNBits", inputs, [product], node.name,
            domain=MICROSOFT, K=blocks.rows, N=columns, bits=bits, block_size=block,
        )
    ]  # fmt: skip
    if bias:
        made.append(helper.make_node("Add", [product, bias], list(node.output), f"{node.name}_bias"))
    return made, tensors


def _packed(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """4-bit codes two to a byte along the last axis, the first in the low half; 8-bit codes as they are."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], 1), dtype=np.uint8)], axis=-1)
    return np.bitwise_or(codes[..., 0::2], np.left_shift(codes[..., 1::2], 4)).astype(np.uint8)


def _qdq_nodes(node: NodeProto, weight: TensorProto, recipe: Recipe) -> tuple[list[NodeProto], list[TensorProto]]:
    prefix = _prefix(node, weight, recipe)
    rows = _codes(_matrix(node, weight), recipe, prefix)
    tensors = [numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(t).T), t.name) for t in rows]
    output = f"{prefix}_{node.name}_dequantized"
    reading = _copy(node)
    reading.input[1] = output
    for attribute in reading.attribute:
        if attribute.name == "transB":
            attribute.i = 0
    return [_dequantize(tensors, output, f"{node.name}_DequantizeLinear", recipe, axis=0), reading], tensors


def _codes(
    matrix: npt.NDArray[np.float32], recipe: Recipe, prefix: str, rows: tuple[int, ...] = (-1,)
) -> list[TensorProto]:
    """Integers, scales and zero points of a [K, N] matrix as [N, K] and [N, blocks], N reshaped to ``rows``."""
    bits = BITS[recipe.weight]
    symmetric = recipe.weight in SIGNED
    blocks = quantize_blocks(matrix, bits, recipe.block_size or 0, symmetric)
    shift = 2 ** (bits - 1) if symmetric else 0
    columns = blocks.scales.shape[0]
    codes = blocks.codes.reshape(columns, -1)[:, : blocks.rows].astype(np.int16) - shift
    zeros = blocks.zero_points.astype(np.int16) - shift
    kind = _QDQ_TYPES[recipe.weight]
    arrays = {"codes": codes.astype(kind), "scales": blocks.scales, "zeros": zeros.astype(kind)}
    return [
        numpy_helper.from_array(np.ascontiguousarray(values.reshape(*rows, values.shape[1])), f"{prefix}_{end}")
        for end, values in arrays.items()
    ]


def _dequantize(tensors: list[TensorProto], output: str, name: str, recipe: Recipe, *, axis: int) -> NodeProto:
    inputs = [tensor.name for tensor in tensors]
    return helper.make_node("DequantizeLinear", inputs, [output], name, axis=axis, block_size=recipe.block_size)


def _copy(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy
