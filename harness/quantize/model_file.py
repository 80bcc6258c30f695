"""Reading and writing model files, with errors a person can act on."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.external_data_helper import load_external_data_for_model, uses_external_data

from harness.errors import ModelError
from harness.quantize.contract import Cause, ModelRefused
from harness.quantize.graph import all_graphs, all_nodes
from harness.quantize.outputs import data_of, temporary_of
from harness.units import format_bytes

INLINE_LIMIT_BYTES = (2 << 30) - (64 << 20)
"""Above this a model keeps its tensors in a file beside it: protobuf cannot hold 2 GiB."""


def load_model(path: Path) -> onnx.ModelProto:
    """Reads a model with all its external data.

    Raises ModelError if the file is missing, empty, truncated, not ONNX, or if external data is missing.
    """
    model = parse_model(path)
    _check_external_data(model, path)
    try:
        load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"its external data cannot be read: {error}", where=path) from error
    return model


def parse_model(path: Path) -> onnx.ModelProto:
    """Reads a model without its external data. Raises ModelError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError("there is no such model file", where=path) from None
    except IsADirectoryError:
        raise ModelError("is a folder; give the .onnx file in it", where=path) from None
    except OSError as error:
        raise ModelError(f"cannot read the model: {error.strerror or error}", where=path) from error
    if not data:
        raise ModelError("the model file is empty (0 bytes)", where=path, hint="copy or export it again")
    if data.startswith(b"version https://git-lfs"):
        raise ModelError("is a Git LFS pointer, not the model", where=path, hint="fetch the content with: git lfs pull")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        # An ONNX file starts with field 1, the IR version, as a small varint.
        if data[:1] == b"\x08" and len(data) > 2 and 1 <= data[1] <= 32:
            raise ModelError(
                f"is truncated or damaged ({len(data)} bytes)", where=path, hint="copy or export it again"
            ) from error
        raise ModelError("is not an ONNX model", where=path, hint=_hint_by_content(path, data)) from error
    if not model.HasField("graph") or model.ir_version < 1 or not model.graph.output:
        raise ModelError("is not an ONNX model", where=path, hint=_hint_by_content(path, data))
    # protobuf gives bytes for what is no UTF-8.
    if any(isinstance(text, bytes) for text in _names(model)):
        raise ModelError("is damaged: a name in it is no text", where=path, hint="copy or export it again")
    return model


def _names(model: onnx.ModelProto) -> Iterator[object]:
    yield from (model.producer_name, model.producer_version)
    for entry in model.metadata_props:
        yield from (entry.key, entry.value)
    yield from (opset.domain for opset in model.opset_import)
    yield from (tensor.name for tensor in tensors(model))
    for graph in all_graphs(model.graph):
        yield from (value.name for value in (*graph.input, *graph.output, *graph.value_info))
    for node in all_nodes(model):
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def save_model(model: onnx.ModelProto, path: Path) -> None:
    """Writes deterministic bytes atomically: ``path`` appears whole or not at all.

    Tensors stay inside the file unless the model is larger than :data:`INLINE_LIMIT_BYTES`; then they go to
    ``<name>.data`` beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_of(path)
    try:
        if model_bytes(model) > INLINE_LIMIT_BYTES:
            data_of(path).unlink(missing_ok=True)
            onnx.save_model(
                model, temporary, save_as_external_data=True, all_tensors_to_one_file=True, location=data_of(path).name
            )
        else:
            temporary.write_bytes(model.SerializeToString(deterministic=True))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def copy_model(source: Path, target: Path) -> None:
    """Copies a model with its external data, if it has any, under the target's name.

    Raises ModelError and ``OSError``.
    """
    data = data_of(source)
    if not data.exists():
        shutil.copyfile(source, target)
        return
    shutil.copyfile(data, data_of(target))
    model = parse_model(source)
    for tensor in tensors(model):
        for entry in tensor.external_data if uses_external_data(tensor) else ():
            if entry.key == "location":
                entry.value = data_of(target).name
    target.write_bytes(model.SerializeToString(deterministic=True))


def refuse_two_files(path: Path, what: str) -> None:
    """Raises ModelRefused where a model is too large for one file, which is all that ``what`` can handle; reads no
    external data. Raises ModelError too."""
    model = parse_model(path)
    size = model_bytes(model) + sum(_nominal_bytes(t) for t in tensors(model) if uses_external_data(t))
    if size > INLINE_LIMIT_BYTES:
        raise ModelRefused(
            f"the model's tensors take {format_bytes(size)}; {what} takes models that fit into one file, of up to "
            f"{format_bytes(INLINE_LIMIT_BYTES)}",
            cause=Cause.UNSUPPORTED,
            where=path,
            hint="boardtune quantize makes one recipe of it; what that makes can be measured if it is smaller",
        )


_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
"""Element types of which several share a byte."""


def _nominal_bytes(tensor: onnx.TensorProto) -> int:
    """Raises ModelError for an element type that is none."""
    elements = math.prod(tensor.dims)
    try:
        kind = str(onnx.TensorProto.DataType.Name(tensor.data_type))
        item = 8 * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except (KeyError, ValueError):
        raise ModelError(f"tensor {tensor.name!r} has element type {tensor.data_type}, which is none") from None
    return int(-(-elements * _BITS.get(kind, item) // 8))


def model_bytes(model: onnx.ModelProto) -> int:
    """Size of the tensors held in the model; what serialising it takes, but for the structure."""
    return sum(len(tensor.raw_data) + 4 * len(tensor.float_data) for tensor in tensors(model))


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor: initializers and attributes, in all graphs and functions."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        yield from _tensors_of_nodes(function.node)
    for info in model.training_info:
        yield from _tensors_of_graph(info.initialization)
        yield from _tensors_of_graph(info.algorithm)


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            # Reading an absent field would make an empty one.
            sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for tensor in (*sparse, *attribute.sparse_tensors):
                yield from (tensor.values, tensor.indices)
            for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _tensors_of_graph(graph)


def _check_external_data(model: onnx.ModelProto, path: Path) -> None:
    missing: dict[str, str] = {}
    for tensor in tensors(model):
        if not uses_external_data(tensor):
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        file = path.parent / location
        if not location or not file.is_file():
            missing.setdefault(location or "(no location)", tensor.name)
            continue
        end = _end_of(tensor, entries, path)
        if file.stat().st_size < end:
            raise ModelError(
                f"external data file {location!r} is truncated: {file.stat().st_size} bytes, tensor "
                f"{tensor.name!r} ends at {end}",
                where=path,
                hint="copy or export it again",
            )
    if missing:
        names = ", ".join(f"{location!r} (holds tensor {name!r})" for location, name in missing.items())
        raise ModelError(
            f"external data is missing: {names}", where=path, hint=f"put the file beside the model, in {path.parent}"
        )


def _end_of(tensor: onnx.TensorProto, entries: Mapping[str, str], path: Path) -> int:
    """Where the tensor ends in its file. Raises ModelError for places that are none, and for another size than its."""
    size = _nominal_bytes(tensor)
    try:
        offset, length = int(entries.get("offset", "0")), int(entries.get("length", str(size)))
    except ValueError:
        offset = length = -1
    if offset < 0 or length != size:
        raise ModelError(
            f"external data of tensor {tensor.name!r}: offset {entries.get('offset', '0')!r} and length "
            f"{entries.get('length', 'none')!r} do not fit its {size} bytes",
            where=path,
            hint="export the model again",
        )
    return offset + length


def _hint_by_content(path: Path, data: bytes) -> str:
    if data[:2] == b"PK":
        return "it is a zip archive (a PyTorch checkpoint?); export the model with torch.onnx.export"
    if data[4:8] == b"TFL3":
        return "it is a LiteRT (TFLite) model; convert it with tf2onnx"
    if data[:1] in (b"<", b"{") or path.suffix in (".json", ".html", ".txt"):
        return "it looks like text; was a web page saved instead of the model?"
    return "give a file made by an ONNX exporter"
