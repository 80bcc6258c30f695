"""Names and wiring of an ONNX model's nodes, read from the file without the onnx package (boards rarely have it).

Walks the protobuf wire format: ``ModelProto.graph`` is field 7; ``GraphProto`` has ``node`` 1, ``initializer`` 5,
``input`` 11, ``output`` 12; ``NodeProto`` has ``input`` 1, ``output`` 2, ``name`` 3, ``op_type`` 4; the name of a
``TensorProto`` is field 8, of a ``ValueInfoProto`` 1 (onnx/onnx.proto). Weights are skipped, not read.
Nodes inside subgraphs (If, Loop, Scan) belong to their outer node.
"""

from __future__ import annotations

import mmap
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple, Union

_Bytes = Union[bytes, mmap.mmap]


class Node(NamedTuple):
    name: str
    """As in the file. Where it has none: ``OpType_index`` as ONNX Runtime's profile shows it, which counts no Constant
    nodes; a Constant's is its output's."""
    op_type: str
    outputs: Tuple[str, ...]
    inputs: Tuple[str, ...] = ()


class Graph(NamedTuple):
    """The main graph; names of its tensors."""

    nodes: Sequence[Node]
    """In file order."""
    initializers: Sequence[str] = ()
    inputs: Sequence[str] = ()
    """Those that are fed."""
    outputs: Sequence[str] = ()


_NAME_FIELD = {5: 8, 11: 1, 12: 1}
"""Of ``GraphProto``'s fields -> where their message keeps its name."""


def read_graph(path: str) -> Graph:
    """An empty graph if the file is not an ONNX model in protobuf form."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _graph(data)
    except (OSError, ValueError, IndexError):
        return Graph(())


def read_nodes(path: str) -> List[Node]:
    """Nodes of the main graph in file order; an empty list if the file is not an ONNX model in protobuf form."""
    return list(read_graph(path).nodes)


def write_named(path: str, target: str) -> bool:
    """Writes the model with the names of :func:`read_graph` for nodes without one; ``False``, and no file, if all have
    names. Runtimes leave nodes without a name anonymous when they tell where they run.

    Raises:
        OSError, ValueError: the file cannot be read, is no ONNX model, or the copy cannot be written.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        whole: List[bytes] = []
        named = False
        for field, key, a, b in _raw_fields(data, 0, len(data)):
            if field == 7:
                graph, changed = _with_names(data, a, b)
                named = named or changed
                whole.append(_message(7, graph))
            else:
                whole.append(bytes(data[key:b]))
    if named:
        with open(target, "wb") as out:
            out.writelines(whole)
    return named


def _with_names(data: _Bytes, start: int, end: int) -> Tuple[bytes, bool]:
    parts: List[bytes] = []
    index = 0
    changed = False
    for field, key, a, b in _raw_fields(data, start, end):
        if field != 1:
            parts.append(bytes(data[key:b]))
            continue
        node = _node(data, a, b, index)
        index += node.op_type != "Constant"
        content = bytes(data[a:b])
        if not any(inner == 3 and c < d for inner, c, d in _fields(data, a, b)):
            content += _message(3, node.name.encode())
            changed = True
        parts.append(_message(1, content))
    return b"".join(parts), changed


def _message(field: int, content: bytes) -> bytes:
    """A length-delimited field."""
    out = bytearray([field << 3 | 2])
    size = len(content)
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + content


def _graph(data: _Bytes) -> Graph:
    nodes: List[Node] = []
    names: Dict[int, List[str]] = {field: [] for field in _NAME_FIELD}
    index = 0
    for field, start, end in _fields(data, 0, len(data)):
        if field != 7:
            continue
        for inner, a, b in _fields(data, start, end):
            if inner == 1:
                node = _node(data, a, b, index)
                nodes.append(node)
                index += node.op_type != "Constant"
            elif inner in _NAME_FIELD:
                names[inner] += [_text(data, c, d) for at, c, d in _fields(data, a, b) if at == _NAME_FIELD[inner]]
    known = set(names[5])
    # Models of old IR versions list initializers as inputs too.
    return Graph(nodes, names[5], [name for name in names[11] if name not in known], names[12])


def _node(data: _Bytes, start: int, end: int, index: int) -> Node:
    inputs: List[str] = []
    outputs: List[str] = []
    name = op_type = ""
    for field, a, b in _fields(data, start, end):
        if field == 1:
            inputs.append(_text(data, a, b))
        elif field == 2:
            outputs.append(_text(data, a, b))
        elif field == 3:
            name = _text(data, a, b)
        elif field == 4:
            op_type = _text(data, a, b)
    if not name:
        name = outputs[0] if op_type == "Constant" and outputs else "{}_{}".format(op_type, index)
    return Node(name, op_type, tuple(outputs), tuple(inputs))


def _text(data: _Bytes, start: int, end: int) -> str:
    return bytes(data[start:end]).decode("utf-8", "replace")


def _fields(data: _Bytes, at: int, end: int) -> Iterator[Tuple[int, int, int]]:
    """(field number, start, end) of the length-delimited fields; the others are skipped."""
    for field, key, start, stop in _raw_fields(data, at, end):
        if data[key] & 7 == 2:
            yield field, start, stop


def _raw_fields(data: _Bytes, at: int, end: int) -> Iterator[Tuple[int, int, int, int]]:
    """(field number, start of its key, start of its content, end) of all fields."""
    while at < end:
        first = at
        key, at = _varint(data, at, end)
        kind, start = key & 7, at
        if kind == 2:
            size, start = _varint(data, at, end)
            at = start + size
        elif kind == 0:
            _, at = _varint(data, at, end)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError("wire type {}".format(kind))
        if at > end:
            raise ValueError("truncated")
        yield key >> 3, first, start, at


def _varint(data: _Bytes, at: int, end: int) -> Tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("truncated")
