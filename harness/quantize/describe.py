"""What is in an ONNX file, quantized or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto
from onnx.external_data_helper import uses_external_data

from harness.quantize import graph as graphs
from harness.quantize.identity import file_sha256, identity_of
from harness.quantize.model_file import load_model, parse_model, tensors
from harness.quantize.shapes import model_inputs, tensor_specs
from harness.tensors import TensorSpec


@dataclass(frozen=True)
class ModelDescription:
    path: str
    size_bytes: int
    """With its external data."""
    sha256: str
    """Of the file."""
    identity: str
    """sha256 of the canonical content, see :mod:`harness.quantize.identity`."""
    producer: str
    ir_version: int
    opsets: Mapping[str, int]
    """By domain; the default one is ``ai.onnx``."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kind: str
    """``float``, ``float16``, ``QDQ``, ``QOperator`` (as soon as one operator is quantized itself) or ``dynamic``."""
    quantized: Mapping[str, int]
    """Operators that compute on quantized values: type -> nodes."""
    left_in_float: Mapping[str, int]
    """All others, conversions apart."""
    conversions: Mapping[str, int]
    """QuantizeLinear and the like."""
    weights: Mapping[str, int]
    """Elements in initializers, by type."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def describe_model(path: Path) -> tuple[ModelDescription, ModelProto]:
    """Reads ``path``; executes nothing. Raises ModelError for a file that is missing, damaged or no ONNX model."""
    locations = {
        entry.value
        for tensor in tensors(parse_model(path))
        if uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    model = load_model(path)
    quantized = graphs.quantized_operators(model)
    every = Counter(node.op_type for node in graphs.all_nodes(model))
    conversions = {name: every.pop(name) for name in graphs.CONVERSIONS if name in every}
    every.subtract(quantized)
    files = [path, *(path.parent / location for location in locations)]
    described = ModelDescription(
        path=str(path),
        size_bytes=sum(file.stat().st_size for file in files),
        sha256=file_sha256(path),
        identity=identity_of(model),
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        ir_version=int(model.ir_version),
        opsets={o.domain or "ai.onnx": int(o.version) for o in model.opset_import},
        inputs=tensor_specs([v for v in model_inputs(model) if v.type.tensor_type.elem_type]),
        outputs=tensor_specs([v for v in model.graph.output if v.type.tensor_type.elem_type]),
        kind=_kind(model),
        quantized=by_number(quantized),
        left_in_float=by_number(every),
        conversions=conversions,
        weights=by_number(_weights(model)),
    )
    return described, model


def _kind(model: ModelProto) -> str:
    types = {node.op_type for node in graphs.all_nodes(model)}
    if any(name.startswith("Dynamic") for name in types):
        return "dynamic"
    if any(graphs.is_quantized_operator(node) for node in graphs.all_nodes(model)):
        return "QOperator"
    if graphs.DEQUANTIZE in types:
        return "QDQ"
    return "float16" if graphs.has_float16(model) else "float"


def _weights(model: ModelProto) -> Counter[str]:
    found: Counter[str] = Counter()
    for graph in graphs.all_graphs(model.graph):
        for tensor in graph.initializer:
            name = TensorProto.DataType.Name(tensor.data_type).lower()
            name = {"float": "float32", "double": "float64"}.get(name, name)
            found[name] += int(np.prod(tensor.dims, dtype=np.int64))
    return found


def by_number(counts: Counter[str]) -> dict[str, int]:
    """Most first, then by name; without zeros."""
    return {name: count for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count > 0}
