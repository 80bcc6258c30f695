"""Shapes and stored types of every tensor of a model at given input shapes."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper
import onnx.shape_inference
from onnx import ModelProto, TensorProto

logger = logging.getLogger(__name__)

_KEPT_ELEMENTS = 1024
"""Initializers up to this size keep their values, because shapes may be computed from them."""

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})

_BITS = {
    TensorProto.FLOAT: 32, TensorProto.DOUBLE: 64, TensorProto.FLOAT16: 16, TensorProto.BFLOAT16: 16,
    TensorProto.INT8: 8, TensorProto.UINT8: 8, TensorProto.INT16: 16, TensorProto.UINT16: 16,
    TensorProto.INT32: 32, TensorProto.UINT32: 32, TensorProto.INT64: 64, TensorProto.UINT64: 64,
    TensorProto.BOOL: 8, TensorProto.INT4: 4, TensorProto.UINT4: 4,
}  # fmt: skip


class UnknownShapes(ValueError):
    """Shapes of some tensors can be found neither by inference nor by execution."""


@dataclass(frozen=True)
class Tensor:
    name: str
    element_type: int
    """``onnx.TensorProto.DataType``."""
    shape: tuple[int, ...]
    constant: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        """Per element as stored; types without an entry count as 8."""
        return _BITS.get(self.element_type, 8)

    @property
    def size_bytes(self) -> int:
        return -(-self.elements * self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.element_type in (
            TensorProto.FLOAT,
            TensorProto.DOUBLE,
            TensorProto.FLOAT16,
            TensorProto.BFLOAT16,
        )


def infer_tensors(model: ModelProto, input_shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Tensors by name, with ``input_shapes`` given for every graph input that is not an initializer.

    ``onnx.shape_inference`` first; where it leaves a gap (operators of ``com.microsoft``), one execution with all
    intermediate tensors as outputs, or what the model declares if it has loops. Raises :class:`UnknownShapes` where
    that does not help.
    """
    constants = {tensor.name: tensor for tensor in map(_initializer, model.graph.initializer)}
    inferred = _inferred(model, input_shapes, constants)
    wanted = {name for node in model.graph.node for name in node.output if name}
    gaps = wanted - inferred.keys()
    if gaps and any(node.op_type in _CONTROL_FLOW for node in model.graph.node):
        # Executing a loop may take any time; what is inside it is not counted either.
        inferred.update(_declared(model, gaps))
    elif gaps:
        logger.debug("shape inference leaves %d of %d tensors open; executing once", len(gaps), len(wanted))
        inferred.update(_executed(model, input_shapes, gaps))
        # Sequences, optionals and maps have no shape.
        inferred.update(_declared(model, gaps - inferred.keys()))
    return {**inferred, **constants}


def _initializer(proto: TensorProto) -> Tensor:
    return Tensor(proto.name, proto.data_type, tuple(proto.dims), constant=True)


def _inferred(
    model: ModelProto, input_shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    shapes_only = _without_weights(model)
    for value in shapes_only.graph.input:
        if value.name in constants:
            continue
        tensor_type = value.type.tensor_type
        shape = input_shapes[value.name]
        del tensor_type.shape.dim[:]
        for size in shape:
            tensor_type.shape.dim.add().dim_value = size
    result = onnx.shape_inference.infer_shapes(shapes_only, check_type=False, strict_mode=False, data_prop=True)
    graph = result.graph
    found: dict[str, Tensor] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor_type = value.type.tensor_type
        if not tensor_type.elem_type or not tensor_type.HasField("shape"):
            continue
        sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor_type.shape.dim]
        if all(size >= 0 for size in sizes):
            found[value.name] = Tensor(value.name, tensor_type.elem_type, tuple(sizes))
    return found


def _without_weights(model: ModelProto) -> ModelProto:
    """A copy without large values and without recorded shapes, which may be of another batch size."""
    copy = ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    graph = copy.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    for output in model.graph.output:
        kept = graph.output.add()
        kept.name = output.name
        kept.type.tensor_type.elem_type = output.type.tensor_type.elem_type
    for initializer in model.graph.initializer:
        if math.prod(initializer.dims) <= _KEPT_ELEMENTS:
            graph.initializer.append(initializer)
        else:
            graph.initializer.add(name=initializer.name, data_type=initializer.data_type, dims=initializer.dims)
    return copy


def _declared(model: ModelProto, names: Iterable[str]) -> dict[str, Tensor]:
    """Shapes as the model states them, free sizes being 1; nothing known is a scalar."""
    stated = {value.name: value.type.tensor_type for value in (*model.graph.value_info, *model.graph.output)}
    found = {}
    for name in names:
        tensor_type = stated.get(name)
        if tensor_type is None or not tensor_type.elem_type:
            found[name] = Tensor(name, TensorProto.FLOAT, ())
        else:
            sizes = tuple(max(1, dim.dim_value) for dim in tensor_type.shape.dim)
            found[name] = Tensor(name, tensor_type.elem_type, sizes)
    return found


def _executed(
    model: ModelProto, input_shapes: Mapping[str, tuple[int, ...]], names: Iterable[str]
) -> dict[str, Tensor]:
    import onnxruntime

    instrumented = ModelProto()
    instrumented.CopyFrom(model)
    present = {output.name for output in model.graph.output}
    for name in sorted(set(names) - present):
        instrumented.graph.output.add().name = name
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            instrumented.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        feeds = {value.name: _zeros(value.type, input_shapes[value.name]) for value in session.get_inputs()}
        outputs = session.run(None, feeds)
    except Exception as error:
        raise UnknownShapes(f"shapes of {', '.join(sorted(names)[:3])} …: {error}") from error
    found = {}
    for value, array in zip(session.get_outputs(), outputs, strict=True):
        if isinstance(array, np.ndarray):
            element_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            found[value.name] = Tensor(value.name, element_type, array.shape)
    return found


_ORT_TYPES = {"float": "float32", "double": "float64", "tensor(float16)": "float16"}


def _zeros(ort_type: str, shape: tuple[int, ...]) -> np.ndarray:
    name = ort_type.removeprefix("tensor(").removesuffix(")")
    return np.zeros(shape, np.dtype(_ORT_TYPES.get(name, name)))
