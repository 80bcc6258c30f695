"""Reads ``.espdl`` files: the container and the flatbuffer in it.

The container is ``EDL2``, whether the rest is encrypted (u32), its length (u32), four zero bytes. Packs hold several
models: ``PDL1`` and ``PDL2``, and ``PDL3`` with a version and a SHA-256. Field numbers are those of esp-dl's
``espdl.fbs``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from device_agents.emulated.espdl.errors import EncryptedModel, EspdlError, MalformedModel
from device_agents.emulated.espdl.flatbuffer import Buffer, Table
from device_agents.emulated.espdl.model import DTYPES, AttributeValue, Model, Node, Tensor, ValueInfo

HEADER_BYTES: Final = 16
MOST_RANK: Final = 8
MOST_EXPONENT: Final = 127
_PACKS: Final = (b"PDL1", b"PDL2", b"PDL3")
_AGAIN: Final = "the file is truncated or corrupted; export it again and compare its size and digest"

# Numbers of AttributeType
_FLOAT, _INT, _STRING, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 6, 7, 8


def read_model(source: Path | bytes) -> Model:
    """The model in a file, or in its bytes.

    Raises :class:`MalformedModel`, :class:`EncryptedModel` or :class:`EspdlError` (a pack; an unreadable file), each
    naming the place.
    """
    if isinstance(source, Path):
        try:
            data = source.read_bytes()
        except OSError as error:
            raise EspdlError(f"cannot read {source}: {error.strerror or error}") from None
    else:
        data = source
    return _model(Buffer(_content(data), HEADER_BYTES), len(data))


def _content(data: bytes) -> memoryview:
    if data[:4] in _PACKS:
        raise EspdlError(
            f"a pack of models ({data[:4].decode()}), not one model",
            hint="give the .espdl files it was made from, one by one",
        )
    if len(data) < HEADER_BYTES:
        raise MalformedModel(
            f"malformed .espdl: {len(data)} bytes are less than the {HEADER_BYTES} of its header", hint=_AGAIN
        )
    if data[:4] != b"EDL2":
        raise MalformedModel(
            f"not an .espdl: it begins with {data[:4]!r} instead of b'EDL2'", hint="was another file given?"
        )
    encrypted, length = struct.unpack_from("<II", data, 4)
    if encrypted == 1:
        raise EncryptedModel("the model is encrypted", hint="export it without encrypt_data: boardtune has no keys")
    if encrypted:
        raise MalformedModel(
            f"malformed .espdl: header at byte 4: {encrypted} says neither plain (0) nor encrypted (1)", hint=_AGAIN
        )
    if length > len(data) - HEADER_BYTES:
        raise MalformedModel(
            f"malformed .espdl: header at byte 8: {length} bytes announced, {len(data) - HEADER_BYTES} follow",
            hint=_AGAIN,
        )
    return memoryview(data)[HEADER_BYTES : HEADER_BYTES + length]


def _model(buffer: Buffer, size: int) -> Model:
    root = buffer.root("model")
    graph = root.table(7, "graph")
    if graph is None:
        raise buffer.fail("model.graph", root.offset, "missing")
    values = {value.name: value for value in _each_value(graph, 6, "value_info")}
    inputs = tuple(_each_value(graph, 4, "input"))
    outputs = tuple(_each_value(graph, 5, "output"))
    for value in (*inputs, *outputs):
        values.setdefault(value.name, value)
    return Model(
        nodes=tuple(_node(table) for table in graph.tables(0, "node")),
        inputs=inputs,
        outputs=outputs,
        values=values,
        constants=_tensors(graph, 2, "initializer"),
        test_inputs=_tensors(graph, 8, "test_inputs_value"),
        test_outputs=_tensors(graph, 9, "test_outputs_value"),
        metadata={entry.text(0, "key"): entry.text(1, "value") for entry in root.tables(8, "metadata_props")},
        name=graph.text(1, "name"),
        producer=root.text(2, "producer_name"),
        ir_version=root.scalar(0, "i", "ir_version"),
        model_version=root.scalar(5, "q", "model_version"),
        size_bytes=size,
    )


def _node(table: Table) -> Node:
    node = Node(
        op=table.text(3, "op_type"),
        name=table.text(2, "name"),
        inputs=table.texts(0, "input"),
        outputs=table.texts(1, "output"),
        attributes=dict(_attribute(attribute) for attribute in table.tables(5, "attribute")),
    )
    if not node.op or not node.outputs:
        raise table.buffer.fail(table.place, table.offset, "a node without operator or outputs")
    return node


def _attribute(table: Table) -> tuple[str, AttributeValue]:
    name, kind = table.text(0, "name"), table.scalar(3, "i", "attr_type")
    value: AttributeValue = None
    if kind == _FLOAT:
        value = table.float32(4, "f")
    elif kind == _INT:
        value = table.scalar(5, "q", "i")
    elif kind == _STRING:
        value = table.text(6, "s")
    elif kind == _FLOATS:
        value = tuple(float(item) for item in table.array(10, "<f4", "floats").tolist())
    elif kind == _INTS:
        value = table.integers(11, "ints")
    elif kind == _STRINGS:
        value = table.texts(12, "strings")
    return name, value


def _each_value(graph: Table, field: int, name: str) -> Iterator[ValueInfo]:
    for table in graph.tables(field, name):
        dtype = 0
        shape: tuple[int, ...] = ()
        info = table.table(1, "value_info_type")
        tensor = info.table(1, "value") if info is not None and info.scalar(0, "B", "value_type") == 1 else None
        if tensor is not None:
            dtype = tensor.scalar(0, "i", "elem_type")
            outline = tensor.table(1, "shape")
            shape = _shape(outline) if outline is not None else ()
        yield ValueInfo(table.text(0, "name"), dtype, shape, _exponents(table, 3))


def _shape(table: Table) -> tuple[int, ...]:
    dims = []
    for dim in table.tables(0, "dim"):
        value = dim.table(0, "value")
        dims.append(0 if value is None else value.scalar(1, "q", "dim_value"))
        if len(dims) > MOST_RANK or not 0 <= dims[-1] < 1 << 31:
            raise table.buffer.fail(dim.place, dim.offset, f"dimension {len(dims)} of {dims[-1]}")
    return tuple(dims)


def _exponents(table: Table, field: int) -> tuple[int, ...]:
    exponents = table.integers(field, "exponents")
    worst = max((abs(value) for value in exponents), default=0)
    if worst > MOST_EXPONENT:
        raise table.buffer.fail(f"{table.place}.exponents", table.offset, f"an exponent of ±{worst}")
    return exponents


def _tensors(graph: Table, field: int, name: str) -> dict[str, Tensor]:
    tensors = (_tensor(table) for table in graph.tables(field, name))
    return {tensor.name: tensor for tensor in tensors}


def _tensor(table: Table) -> Tensor:
    dims = table.integers(0, "dims")
    if len(dims) > MOST_RANK or any(not 0 <= size < 1 << 31 for size in dims):
        raise table.buffer.fail(f"{table.place}.dims", table.offset, f"a shape of {list(dims[:MOST_RANK])}")
    kind = table.scalar(1, "i", "data_type")
    if kind not in DTYPES:
        raise table.buffer.fail(f"{table.place}.data_type", table.offset, f"{kind} is no type of numbers")
    count = math.prod(dims)
    values = _values(table, DTYPES[kind])
    if len(values) < count:
        raise table.buffer.fail(
            f"{table.place} ({table.text(6, 'name')!r})",
            table.offset,
            f"{len(values)} values for a shape of {list(dims)}",
        )
    layout = table.text(7, "doc_string").removeprefix("layout ==> ")
    return Tensor(table.text(6, "name"), dims, _exponents(table, 13), layout, values[:count])


def _values(table: Table, dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    raw = table.bytes_(8, "raw_data", 16)
    if len(raw):
        values = np.frombuffer(raw[: len(raw) - len(raw) % dtype.itemsize], np.uint8 if dtype.kind == "b" else dtype)
        return values.astype(dtype) if dtype.kind == "b" else values
    for field, stored, name in (
        (2, "<f4", "float_data"),
        (3, "<i4", "int32_data"),
        (5, "<i8", "int64_data"),
        (11, "<f8", "double_data"),
        (12, "<u8", "uint64_data"),
    ):
        found = table.array(field, stored, name)
        if len(found):
            with np.errstate(invalid="ignore"):  # numbers out of range in a corrupted file
                return found.astype(dtype)
    return np.empty(0, dtype)
