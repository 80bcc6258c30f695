"""Identity of an artifact: sha256 over what a model computes, not over how it was labelled.

Left out: metadata properties, producer name and version, model version and domain, doc strings at every level, and
the order of opset imports and initializers. Included: the graph with its names, functions, tensor types, and the
bytes of all tensors wherever they are stored (inline, typed fields, or external files).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from harness.errors import ModelError
from harness.quantize.graph import all_graphs, messages

_DROPPED_EVERYWHERE = ("doc_string", "metadata_props")
_DROPPED_OF_MODEL = ("producer_name", "producer_version", "domain", "model_version", "training_info")


def identity(path: Path) -> str:
    """sha256 (hexadecimal) of a model file's canonical content.

    Raises ModelError if the file is not ONNX or its external data is missing.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except (OSError, DecodeError) as error:
        raise ModelError(f"cannot read the model: {error}", where=path) from error
    return identity_of(model, path.parent)


def identity_of(model: onnx.ModelProto, base_dir: Path = Path()) -> str:
    """As :func:`identity`, of a model in memory; ``base_dir`` holds its external data. ``model`` is not changed."""
    canonical = onnx.ModelProto()
    canonical.CopyFrom(model)
    for name in _DROPPED_OF_MODEL:
        canonical.ClearField(name)
    _drop_labels(canonical)
    for tensor in _tensors(canonical):
        _hash_content(tensor, base_dir)
    _sort(canonical.opset_import, lambda o: (o.domain, o.version))
    for graph in all_graphs(canonical.graph):
        _sort(graph.initializer, lambda t: t.name)
        _sort(graph.value_info, lambda v: v.name)
    return hashlib.sha256(canonical.SerializeToString(deterministic=True)).hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 (hexadecimal) of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _drop_labels(message: onnx.ModelProto) -> None:
    for item in messages(message):
        for name in _DROPPED_EVERYWHERE:
            if name in item.DESCRIPTOR.fields_by_name:
                item.ClearField(name)


def _tensors(message: onnx.ModelProto) -> Iterator[TensorProto]:
    for item in messages(message):
        if isinstance(item, TensorProto):
            yield item


def _hash_content(tensor: TensorProto, base_dir: Path) -> None:
    """Puts the sha256 of a tensor's bytes in their place, so that typed, raw and external storage are alike."""
    if tensor.data_type == TensorProto.STRING:
        return
    if uses_external_data(tensor):
        try:
            load_external_data_for_tensor(tensor, str(base_dir))
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise ModelError(
                f"external data of tensor {tensor.name!r} cannot be read: {error}", where=base_dir
            ) from error
    if not tensor.HasField("raw_data"):
        plain = TensorProto()
        plain.CopyFrom(tensor)
        plain = numpy_helper.from_array(numpy_helper.to_array(plain), tensor.name)
        content = plain.raw_data
    else:
        content = tensor.raw_data
    for name in (
        "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "external_data",
        "data_location",
    ):  # fmt: skip
        tensor.ClearField(name)
    tensor.raw_data = hashlib.sha256(content).digest()


def _sort(repeated: Any, key: Any) -> None:
    items = sorted(repeated, key=key)
    copies = [type(item)() for item in items]
    for copy, item in zip(copies, items, strict=True):
        copy.CopyFrom(item)
    del repeated[:]
    repeated.extend(copies)
