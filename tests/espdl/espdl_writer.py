"""Writes ``.espdl`` files for tests, independently of the reader: values in, bytes out.

Tables are written parent first, so that offsets point forward as FlatBuffers want them; a field table precedes each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Emit = Callable[["Out"], int]

DTYPE = {"f4": 1, "u1": 2, "i1": 3, "u2": 4, "i2": 5, "i4": 6, "i8": 7, "b1": 9}


class Out:
    def __init__(self) -> None:
        self.data = bytearray()

    def align(self, size: int) -> None:
        self.data += bytes(-len(self.data) % size)

    def put(self, form: str, *values: float) -> int:
        self.align(struct.calcsize(form[-1]))
        at = len(self.data)
        self.data += struct.pack("<" + form, *values)
        return at

    def point(self, slot: int, target: int) -> None:
        struct.pack_into("<I", self.data, slot, target - slot)


def table(fields: Mapping[int, tuple[str, float] | Emit]) -> Emit:
    """Scalars are ``(form, value)``, everything else is emitted after the table and pointed at."""

    def emit(out: Out) -> int:
        count = max(fields, default=-1) + 1
        out.align(8)
        vtable = out.put(f"{2 + count}H", *[0] * (2 + count))
        out.align(8)
        start = len(out.data)
        out.put("i", start - vtable)
        slots = []
        for index, value in sorted(fields.items()):
            at = out.put(*value) if isinstance(value, tuple) else out.put("I", 0)
            struct.pack_into("<H", out.data, vtable + 4 + 2 * index, at - start)
            if not isinstance(value, tuple):
                slots.append((at, value))
        struct.pack_into("<2H", out.data, vtable, 4 + 2 * count, len(out.data) - start)
        for at, child in slots:
            out.point(at, child(out))
        return start

    return emit


def text(value: str) -> Emit:
    def emit(out: Out) -> int:
        raw = value.encode()
        at = out.put("I", len(raw))
        out.data += raw + b"\0"
        return at

    return emit


def numbers(values: Sequence[int], form: str = "q") -> Emit:
    def emit(out: Out) -> int:
        size = struct.calcsize(form)
        out.align(4)
        while (len(out.data) + 4) % size:
            out.data += b"\0\0\0\0"
        at = out.put("I", len(values))
        out.data += struct.pack(f"<{len(values)}{form}", *values)
        return at

    return emit


def raw_blocks(raw: bytes) -> Emit:
    """A vector of structs of 16 bytes, padded with zeros."""

    def emit(out: Out) -> int:
        out.align(4)
        while (len(out.data) + 4) % 16:
            out.data += b"\0\0\0\0"
        padded = raw + bytes(-len(raw) % 16)
        at = out.put("I", len(padded) // 16)
        out.data += padded
        return at

    return emit


def vector(items: Sequence[Emit]) -> Emit:
    def emit(out: Out) -> int:
        at = out.put("I", len(items))
        slots = [out.put("I", 0) for _ in items]
        for slot, item in zip(slots, items, strict=True):
            out.point(slot, item(out))
        return at

    return emit


@dataclass(frozen=True)
class Constant:
    name: str
    values: Array
    """In the order of the bytes."""
    dims: tuple[int, ...]
    exponents: tuple[int, ...] = (0,)
    layout: str = "UNK"

    def emit(self) -> Emit:
        kind = DTYPE[self.values.dtype.str[1:]]
        return table(
            {
                0: numbers(self.dims),
                1: ("i", kind),
                6: text(self.name),
                7: text(f"layout ==> {self.layout}"),
                8: raw_blocks(self.values.tobytes()),
                13: numbers(self.exponents),
            }
        )


@dataclass(frozen=True)
class Value:
    name: str
    shape: tuple[int, ...]
    exponent: int = 0
    dtype: int = 3

    def emit(self) -> Emit:
        dims = [table({0: table({0: ("b", 1), 1: ("q", size)})}) for size in self.shape]
        shaped = table({0: ("i", self.dtype), 1: table({0: vector(dims)})})
        return table({0: text(self.name), 1: table({0: ("B", 1), 1: shaped}), 3: numbers((self.exponent,))})


@dataclass(frozen=True)
class Step:
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)
    name: str = ""

    def emit(self) -> Emit:
        return table(
            {
                0: vector([text(name) for name in self.inputs]),
                1: vector([text(name) for name in self.outputs]),
                2: text(self.name or f"/{self.outputs[0]}"),
                3: text(self.op),
                5: vector([_attribute(name, value) for name, value in self.attributes.items()]),
            }
        )


def _attribute(name: str, value: object) -> Emit:
    if isinstance(value, bool | int):
        return table({0: text(name), 3: ("i", 2), 5: ("q", int(value))})
    if isinstance(value, float):
        return table({0: text(name), 3: ("i", 1), 4: ("f", value)})
    if isinstance(value, str):
        return table({0: text(name), 3: ("i", 3), 6: numbers(value.encode(), "B")})
    if isinstance(value, tuple | list):
        return table({0: text(name), 3: ("i", 7), 11: numbers([int(item) for item in value])})
    raise TypeError(f"attribute {name} of {type(value)}")


@dataclass
class Graph:
    inputs: list[Value]
    outputs: list[Value]
    values: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    tests_in: list[Constant] = field(default_factory=list)
    tests_out: list[Constant] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        graph = table(
            {
                0: vector([step.emit() for step in self.steps]),
                1: text("graph"),
                2: vector([constant.emit() for constant in self.constants]),
                4: vector([value.emit() for value in self.inputs]),
                5: vector([value.emit() for value in self.outputs]),
                6: vector([value.emit() for value in self.values]),
                8: vector([constant.emit() for constant in self.tests_in]),
                9: vector([constant.emit() for constant in self.tests_out]),
            }
        )
        entries = [table({0: text(key), 1: text(value)}) for key, value in self.metadata.items()]
        root = table({0: ("i", 8), 5: ("q", 1), 7: graph, 8: vector(entries)})
        out = Out()
        slot = out.put("I", 0)
        out.point(slot, root(out))
        return b"EDL2" + struct.pack("<3I", 0, len(out.data), 0) + bytes(out.data)


def blocked(ohwi: Array, lanes: int, groups: int = 1) -> tuple[Array, str]:
    """A filter (N, H, W, C) in the order of the S3 and the P4, element by element as esp-dl's kernels walk it."""
    outer, height, width, inner = ohwi.shape
    whole = outer // lanes * lanes
    order = [
        ohwi[block + lane, y, x, c]
        for block in range(0, whole, lanes)
        for y in range(height)
        for x in range(width)
        for c in range(inner)
        for lane in range(lanes)
    ]
    if groups == 1:
        order += [
            ohwi[n, y, x, c]
            for n in range(whole, outer)
            for y in range(height)
            for x in range(width)
            for c in range(inner)
        ]
    else:
        order += [
            ohwi[n, y, x, c]
            for c in range(inner)
            for y in range(height)
            for x in range(width)
            for n in range(whole, outer)
        ]
    mark = "" if whole == outer else "_UNALIGNED"
    return np.asarray(order, ohwi.dtype), f"(N/{lanes})HWC{lanes}{mark}"
