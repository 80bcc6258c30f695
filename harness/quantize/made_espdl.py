"""An ``.espdl`` file that ESP-PPQ made, run by the interpreter as ESP-PPQ's own simulation computes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_agents.contract import AgentError
from device_agents.emulated.espdl.axes import Axes
from device_agents.emulated.espdl.interpreter import Interpreter
from device_agents.emulated.espdl.model import DTYPES, Model, Node, Tensor, ValueInfo
from device_agents.emulated.espdl.reader import read_model
from harness.audit.finding import Finding
from harness.errors import ModelError
from harness.lints.espdl import lint
from harness.quantize.calibration_data import Feeds

CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear", "RequantizeLinear"})
"""Operators that only change how values are written."""
_INTEGERS = frozenset(key for key, dtype in DTYPES.items() if dtype.kind in "iu" and dtype.itemsize <= 2)


def read_espdl(path: Path) -> Model:
    """Raises :class:`ModelError` where the file cannot be read."""
    try:
        return read_model(path)
    except OSError as error:
        raise ModelError(f"cannot read the model: {error.strerror or error}", where=path) from None
    except AgentError as error:
        raise ModelError(error.message, hint=error.hint, where=path) from error


def computes_on_integers(model: Model, node: Node) -> bool:
    """Whether it is a quantized operator."""
    made = [model.values[name] for name in node.outputs if name in model.values]
    return node.op not in CONVERSIONS and any(value.dtype in _INTEGERS for value in made)


class MadeEspdl:
    """See :class:`harness.quantize.made.Made`."""

    def __init__(self, path: Path, target: str) -> None:
        """Raises :class:`ModelError` where the file cannot be read."""
        self._path = path
        self._target = target
        self.model: Model = read_espdl(path)

    @property
    def operators(self) -> int:
        return sum(computes_on_integers(self.model, node) for node in self.model.nodes)

    @property
    def identity(self) -> str:
        return espdl_identity(self.model)

    @property
    def size_bytes(self) -> int:
        return self._path.stat().st_size

    def found(self) -> Mapping[str, int]:
        return Counter(node.op for node in self.model.nodes if node.op in CONVERSIONS)

    def is_half(self) -> bool:
        return False

    def notices(self) -> tuple[str, ...]:
        return told(lint(self.model, self._target))

    def load(self) -> Callable[[Feeds], Mapping[str, npt.NDArray[np.generic]]]:
        interpreter = Interpreter(self.model, self._target)
        axes = Axes.of(self.model)

        def run(feeds: Feeds) -> Mapping[str, npt.NDArray[np.generic]]:
            integers = {name: interpreter.quantize(name, axes.stored(name, array)) for name, array in feeds.items()}
            return {name: axes.real(name, array) for name, array in interpreter.run(integers).items()}

        return run


def told(findings: Sequence[Finding]) -> tuple[str, ...]:
    """A line for each kind of finding: the first of it, and how many more there are."""
    kinds: dict[str, list[Finding]] = {}
    for finding in findings:
        kinds.setdefault(finding.code, []).append(finding)
    lines = []
    for code, found in kinds.items():
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        lines.append(f"{code}: {found[0].what}{more} {found[0].advice}".rstrip())
    return tuple(lines)


def espdl_identity(model: Model) -> str:
    """sha256 of what the model computes: nodes, shapes, exponents and constants; not its labels, its metadata and the
    test vectors in it."""
    digest = hashlib.sha256()

    def add(value: object) -> None:
        digest.update(json.dumps(value, sort_keys=True, default=_plain).encode() + b"\n")

    for node in model.nodes:
        add([node.op, node.name, node.inputs, node.outputs, dict(node.attributes)])
    add([_value(value) for value in (*model.inputs, None, *model.outputs) if value is not None])
    add(sorted(_value(value) for value in model.values.values()))
    for name in sorted(model.constants):
        tensor = model.constants[name]
        add([name, tensor.dims, tensor.exponents, tensor.layout, tensor.dtype.str])
        digest.update(tensor.values.tobytes())
    return digest.hexdigest()


def _value(value: ValueInfo) -> list[object]:
    return [value.name, value.dtype, list(value.shape), list(value.exponents)]


def _plain(value: object) -> object:
    if isinstance(value, Tensor):
        content = hashlib.sha256(value.values.tobytes()).hexdigest()
        return [value.name, value.dims, value.exponents, value.layout, value.dtype.str, content]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(type(value).__name__)
