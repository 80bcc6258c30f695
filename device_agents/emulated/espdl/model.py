"""What an ``.espdl`` says: the values of its schema (``espdl.fbs`` of esp-dl, ONNX-like), as plain frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

AttributeValue = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | None

DTYPES: Final[Mapping[int, np.dtype[np.generic]]] = MappingProxyType(
    {
        1: np.dtype("<f4"),
        2: np.dtype("u1"),
        3: np.dtype("i1"),
        4: np.dtype("<u2"),
        5: np.dtype("<i2"),
        6: np.dtype("<i4"),
        7: np.dtype("<i8"),
        9: np.dtype("?"),
        11: np.dtype("<f8"),
        12: np.dtype("<u4"),
        13: np.dtype("<u8"),
    }
)
"""``TensorDataType`` of the schema; 8 (string) and 10 (float16) never hold values here."""


@dataclass(frozen=True)
class Tensor:
    """A constant: ``real = value * 2 ** exponent``, one exponent or one for each output channel."""

    name: str
    dims: tuple[int, ...]
    """What the file says; for filters the order of these dimensions is not that of the bytes (see ``layout``)."""
    exponents: tuple[int, ...]
    layout: str
    """``(N/16)HWC16_UNALIGNED``, ``NHWC``, …; ``UNK`` or empty when the bytes are in the order of ``dims``."""
    values: npt.NDArray[np.generic]
    """Flat, in the order of the bytes."""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return self.values.dtype

    @property
    def exponent(self) -> int:
        return self.exponents[0] if self.exponents else 0

    def array(self) -> npt.NDArray[np.generic]:
        """In the shape of ``dims``; only for tensors that are no filters."""
        return self.values.reshape(self.dims)


@dataclass(frozen=True)
class ValueInfo:
    """An activation. Shapes of inner tensors are not to be relied on: ESP-PPQ 1.3.12 writes those of inserted
    transposes wrongly, and esp-dl computes them anew."""

    name: str
    dtype: int
    """A key of :data:`DTYPES`, or another number of the schema."""
    shape: tuple[int, ...]
    exponents: tuple[int, ...]

    @property
    def exponent(self) -> int:
        return self.exponents[0] if self.exponents else 0


@dataclass(frozen=True)
class Node:
    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)

    def integer(self, name: str, default: int = 0) -> int:
        value = self.attributes.get(name)
        return int(value) if isinstance(value, int | float) else default

    def number(self, name: str, default: float) -> float:
        value = self.attributes.get(name)
        return float(value) if isinstance(value, int | float) else default

    def text(self, name: str, default: str = "") -> str:
        value = self.attributes.get(name)
        return value if isinstance(value, str) else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        value = self.attributes.get(name)
        if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            return tuple(int(item) for item in value)
        return None

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.op} node {self.name!r}" if self.name else f"{self.op} node that makes {self.outputs[:1]}"


@dataclass(frozen=True)
class Model:
    nodes: tuple[Node, ...]
    """In execution order."""
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    values: Mapping[str, ValueInfo]
    constants: Mapping[str, Tensor]
    test_inputs: Mapping[str, Tensor]
    test_outputs: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    name: str = ""
    producer: str = ""
    ir_version: int = 0
    model_version: int = 0
    size_bytes: int = 0
    """Of the file."""
