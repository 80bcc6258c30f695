"""What is in an ``.espdl`` file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from device_agents.emulated.espdl.model import DTYPES, Model, ValueInfo
from harness.lints.target import TARGET_METADATA
from harness.quantize.describe import ModelDescription, by_number
from harness.quantize.identity import file_sha256
from harness.quantize.made_espdl import CONVERSIONS, computes_on_integers, espdl_identity, read_espdl
from harness.tensors import TensorSpec


def describe_espdl(path: Path) -> ModelDescription:
    """Reads ``path``; executes nothing. Inputs and outputs are as the file has them: integers, in its order of axes.
    Raises :class:`~harness.errors.ModelError`."""
    model = read_espdl(path)
    every = Counter(node.op for node in model.nodes)
    quantized = Counter(node.op for node in model.nodes if computes_on_integers(model, node))
    conversions = {name: every.pop(name) for name in sorted(CONVERSIONS) if name in every}
    every.subtract(quantized)
    weights: Counter[str] = Counter()
    for tensor in model.constants.values():
        weights[tensor.dtype.name] += tensor.values.size
    target = model.metadata.get(TARGET_METADATA)
    return ModelDescription(
        path=str(path),
        size_bytes=path.stat().st_size,
        sha256=file_sha256(path),
        identity=espdl_identity(model),
        producer=model.producer,
        ir_version=model.ir_version,
        opsets={},
        inputs=_specs(model.inputs),
        outputs=_specs(model.outputs),
        kind=f"ESP-DL model for {target}" if target else "ESP-DL model",
        quantized=by_number(quantized),
        left_in_float=by_number(every),
        conversions=conversions,
        weights=by_number(weights),
    )


def first_difference_espdl(before: Path, after: Path) -> str:
    """The first node or constant that differs; empty where only labels or metadata do. Raises
    :class:`~harness.errors.ModelError`."""
    first, second = read_espdl(before), read_espdl(after)
    for one, other in zip(first.nodes, second.nodes, strict=False):
        if one != other:
            return f"{one.label} became {other.label}" if one.label != other.label else f"{one.label} differs"
    if len(first.nodes) != len(second.nodes):
        return f"{len(first.nodes)} nodes became {len(second.nodes)}"
    return _values(first, second)


def _values(first: Model, second: Model) -> str:
    for name, value in first.values.items():
        if second.values.get(name) != value:
            return f"activation {name!r} differs: its exponents were {value.exponents}"
    for name, tensor in first.constants.items():
        other = second.constants.get(name)
        if other is None or tensor.exponents != other.exponents or tensor.values.tobytes() != other.values.tobytes():
            return f"constant {name!r} differs"
    return ""


def _specs(values: Iterable[ValueInfo]) -> tuple[TensorSpec, ...]:
    kinds = {key: dtype.name for key, dtype in DTYPES.items()}
    return tuple(TensorSpec(value.name, kinds.get(value.dtype, "unknown"), value.shape) for value in values)
