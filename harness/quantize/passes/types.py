"""Types of tensors that ONNX's own shape inference does not know: behind operators of other domains."""

from __future__ import annotations

import onnx
from onnx import ModelProto, TensorProto, helper

from harness.quantize.sessions import open_session

_TYPES = {
    "float": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "double": TensorProto.DOUBLE,
    "bfloat16": TensorProto.BFLOAT16, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16, "uint16": TensorProto.UINT16, "int32": TensorProto.INT32,
    "uint32": TensorProto.UINT32, "int64": TensorProto.INT64, "uint64": TensorProto.UINT64, "bool": TensorProto.BOOL,
}  # fmt: skip


def untyped_tensors(model: ModelProto) -> tuple[str, ...]:
    """Computed tensors of the main graph whose type is not known, in graph order."""
    graph = model.graph
    known = {v.name for v in (*graph.value_info, *graph.output) if v.type.tensor_type.elem_type or not _is_tensor(v)}
    return tuple(name for node in graph.node for name in node.output if name and name not in known)


def add_runtime_types(model: ModelProto) -> None:
    """Asks ONNX Runtime for the types (and ranks) of tensors whose type is not known. Raises what it raises."""
    missing = untyped_tensors(model)
    if not missing:
        return
    probe = ModelProto()
    probe.CopyFrom(model)
    outputs = {value.name for value in probe.graph.output}
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in missing if name not in outputs)
    session = open_session(probe.SerializeToString(), "disabled")
    found = {output.name: output for output in session.get_outputs()}
    unknown = set(missing)
    kept = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in model.graph.value_info]
    del model.graph.value_info[:]
    model.graph.value_info.extend(value for value in kept if value.name not in unknown)
    for name in missing:
        kind = _TYPES.get(found[name].type.removeprefix("tensor(").removesuffix(")"))
        if kind is not None and name not in outputs:
            # Of a shape ONNX Runtime could not infer it says the same as of a scalar: none is kept.
            model.graph.value_info.append(helper.make_tensor_value_info(name, kind, list(found[name].shape) or None))


def _is_tensor(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.WhichOneof("value") in (None, "tensor_type"))
