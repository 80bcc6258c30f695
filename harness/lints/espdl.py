"""Lints of ``.espdl`` artifacts: where esp-dl's kernels are known, from their source, to do something else than
ESP-PPQ simulated.

Every difference between the interpreter's two semantics is announced by one of these. None was seen on silicon.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from device_agents.contract import AgentError
from device_agents.emulated.espdl.arithmetic import limits, rounded
from device_agents.emulated.espdl.errors import EspdlError, UnsupportedNode
from device_agents.emulated.espdl.kernels.base import BITS
from device_agents.emulated.espdl.kernels.filters import matrix_of
from device_agents.emulated.espdl.kernels.lanes import lane_reach, whole_lanes
from device_agents.emulated.espdl.kernels.pools import averaged
from device_agents.emulated.espdl.kernels.registry import ACTIVATIONS, OPERATORS
from device_agents.emulated.espdl.memory import activation_bytes, activation_shapes, parameter_bytes
from device_agents.emulated.espdl.model import Model, Node, Tensor
from device_agents.emulated.espdl.reader import read_model
from device_agents.emulated.espdl.target import TARGETS, Target, target_named
from harness.audit.finding import Change, Finding, by_severity
from harness.errors import ConfigError, ModelError
from harness.lints.target import other_target
from harness.suggest import did_you_mean

MOVING = frozenset(
    {
        "Concat",
        "Split",
        "Slice",
        "Transpose",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Identity",
        "Pad",
        "Gather",
        "MaxPool",
        "InsertZeros",
    }
)
"""Operators whose kernels copy integers without looking at exponents."""
FINAL_SUM_SHIFT = 12
"""Up to this shift a sum that leaves a 20-bit lane is clipped to 127 or -128 anyway: 2**19 >> 12 = 128."""
AVERAGES = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean"})
MOST_SUMS = 1 << 22
"""Possible sums that are tried one by one; above, the difference is assumed possible."""
_ALIGN = "fusion_alignment: elementwise_to 'Align to Output'"
_ALIGNED = (
    Change("options.fusion_alignment", None, True),
    Change("options.fusion_alignment.elementwise_to", None, "Align to Output"),
)
_SIXTEEN = (
    "give this layer 16 bits (mixed_precision), equalize or split it (weight_equalization, horizontal_layer_split)"
)


def _sixteen(node: Node) -> tuple[Change, ...]:
    """Of an ESP-PPQ recipe: 16 bits for this node."""
    return (Change("options.mixed_precision", None, True), Change("options.mixed_precision.layers", None, [node.name]))


@dataclass(frozen=True)
class BoardMemory:
    """What a board offers, in bytes; ``None`` where it is not known."""

    psram_bytes: int | None = None
    flash_slot_bytes: int | None = None
    model_in: str = "psram"
    """``psram`` or ``flash``: where the model's bytes are kept while it runs."""


@dataclass(frozen=True)
class _Looked:
    """A model with what the lints ask of its tensors."""

    model: Model
    target: Target
    shapes: Mapping[str, tuple[int, ...]]
    """Empty when it cannot be run here."""

    def exponents(self, name: str) -> tuple[int, ...]:
        constant = self.model.constants.get(name)
        if constant is not None:
            return constant.exponents or (0,)
        value = self.model.values.get(name)
        return (value.exponent,) if value is not None else (0,)

    def exponent(self, name: str) -> int:
        return self.exponents(name)[0]

    def bits(self, name: str) -> int:
        """8, 16, 0 for float, -1 for what is no activation."""
        constant = self.model.constants.get(name)
        if constant is not None:
            return {"int8": 8, "int16": 16, "float32": 0}.get(constant.dtype.name, -1)
        value = self.model.values.get(name)
        return -1 if value is None else BITS.get(value.dtype, -1)


def lint(model: Model, target: str, memory: BoardMemory | None = None) -> tuple[Finding, ...]:
    """All findings, errors first. ``target`` is a chip as ESP-PPQ names it; an unknown one raises
    :class:`KeyError`."""
    profile = target_named(target)
    try:
        shapes: Mapping[str, tuple[int, ...]] = activation_shapes(model, target)
    except (EspdlError, UnsupportedNode):
        shapes = {}
    looked = _Looked(model, profile, shapes)
    found: list[Finding] = []
    for node in model.nodes:
        for check in (_unsupported, _unequal, _moved, _lanes, _negative, _float_fallback, _table, _average):
            found.extend(check(looked, node))
    found.extend(other_target(model, target))
    if memory is not None:
        found.extend(_memory(looked, memory))
    return by_severity(found)


def lint_file(path: Path, target: str, memory: BoardMemory | None = None) -> tuple[Finding, ...]:
    """Findings of a file. Raises :class:`ModelError` where it cannot be read, :class:`ConfigError` for an unknown
    target."""
    if target not in TARGETS:
        raise ConfigError(f"no target {target!r}", hint=did_you_mean(target, TARGETS, what="targets"))
    try:
        return lint(read_model(path), target, memory)
    except AgentError as error:
        raise ModelError(error.message, hint=error.hint, where=path) from error


def _unsupported(looked: _Looked, node: Node) -> Iterator[Finding]:
    if node.op not in OPERATORS:
        yield Finding(
            "unsupported-operator",
            "error",
            f"{node.label}: neither the emulated boards nor the portable engine have {node.op}.",
            (node.name,),
            {"operator": node.op},
            "Export the model without it, or keep this part on the host.",
        )
    groups = node.integer("group", 1)
    if node.op == "Conv" and groups > 1 and len(node.inputs) > 1 and node.inputs[1] in looked.model.constants:
        inner = looked.model.constants[node.inputs[1]].dims[-1]
        if inner != 1:
            yield Finding(
                "unsupported-operator",
                "error",
                f"{node.label}: esp-dl has kernels for one group and for depthwise, "
                f"not for {groups} groups of {inner} channels.",
                (node.name,),
                {"groups": groups, "channels_of_a_group": inner},
                "Split it into single convolutions.",
            )


def _unequal(looked: _Looked, node: Node) -> Iterator[Finding]:
    if node.op not in ("Add", "Sub") or len(node.inputs) < 2:
        return
    exponents = [looked.exponent(name) for name in (*node.inputs[:2], node.outputs[0])]
    if len(set(exponents)) > 1:
        verb = "adds" if node.op == "Add" else "subtracts"
        yield Finding(
            "add-exponents",
            "error",
            f"{node.label}: inputs of exponents {exponents[0]} and {exponents[1]}, output of {exponents[2]}; "
            f"esp-dl {verb} the integers as they are, without rescaling.",
            (node.name,),
            {"input_exponents": exponents[:2], "output_exponent": exponents[2]},
            f"Quantize with {_ALIGN} (AutoQuant's default space has 'Align to Large').",
            _ALIGNED,
        )


def _moved(looked: _Looked, node: Node) -> Iterator[Finding]:
    if node.op not in MOVING:
        return
    sources = node.inputs if node.op == "Concat" else node.inputs[:1]
    kinds = [(looked.exponent(name), looked.bits(name)) for name in sources]
    for name in node.outputs:
        made = (looked.exponent(name), looked.bits(name))
        differing = [kind for kind in kinds if kind != made and made[1] > 0]
        if differing:
            yield Finding(
                "copy-exponents",
                "error",
                f"{node.label} copies integers of exponent {differing[0][0]} ({differing[0][1]} bits) "
                f"into {name!r} of exponent {made[0]} ({made[1]} bits).",
                (node.name,),
                {"input_exponents": [kind[0] for kind in kinds], "output_exponent": made[0]},
                "Quantize with fusion_alignment: concat_to 'Align to Output', "
                "avgpooling_to and resize_to 'Align to Input'.",
            )


def _lane_bits(target: Target, bits: int) -> tuple[int, int]:
    return (target.lane_bits_8, target.lanes_8) if bits == 8 else (target.lane_bits_16, target.lanes_16)


def _lanes(looked: _Looked, node: Node) -> Iterator[Finding]:
    if node.op not in ("Conv", "Gemm", "MatMul") or len(node.inputs) < 2:
        return
    bits = looked.bits(node.inputs[0])
    lane, block = _lane_bits(looked.target, bits)
    if bits not in (8, 16) or not lane:
        return
    weight = looked.model.constants.get(node.inputs[1])
    low, high = limits(lane)
    shift = looked.exponent(node.outputs[0]) - looked.exponent(node.inputs[0]) - min(looked.exponents(node.inputs[1]))
    if weight is None:
        yield from _dynamic(looked, node, bits, lane, shift)
        return
    matrix = matrix_of(node.op, weight, max(1, node.integer("group", 1)))
    bias = looked.model.constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.op != "MatMul" else None
    least, greatest = lane_reach(matrix, _values(bias), bits)
    whole = whole_lanes(matrix.shape[1], block)
    risky = int(np.count_nonzero((least[:whole] < low) | (greatest[:whole] > high)))
    if risky:
        yield _saturation(node, lane, shift, risky, whole, float(least[:whole].min()), float(greatest[:whole].max()))


def _values(bias: Tensor | None) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None:
    return None if bias is None else bias.values.astype(np.float64)


def _dynamic(looked: _Looked, node: Node, bits: int, lane: int, shift: int) -> Iterator[Finding]:
    shape = looked.shapes.get(node.inputs[0], ())
    right = looked.shapes.get(node.inputs[1], ())
    terms = shape[-1] if shape else MOST_SUMS
    if terms << (2 * bits - 2) > limits(lane)[1]:
        reach = float(terms << (2 * bits - 2))
        yield _saturation(node, lane, shift, right[-1] if right else 0, right[-1] if right else 0, -reach, reach)


def _saturation(node: Node, lane: int, shift: int, risky: int, channels: int, least: float, greatest: float) -> Finding:
    final = shift > FINAL_SUM_SHIFT and lane == 20
    return Finding(
        "lane-saturation",
        "error" if final else "warning",
        f"{node.label}: sums of {risky} of {channels} output channels can leave the {lane}-bit "
        "accumulators, which saturate"
        + (f"; with a shift of {shift} even final sums are clipped where the output is not." if final else "."),
        (node.name,),
        {
            "lane_bits": lane,
            "mac_shift": shift,
            "channels_at_risk": risky,
            "least_sum": least,
            "greatest_sum": greatest,
        },
        f"Measure with real inputs whether it happens; if so, {_SIXTEEN}.",
        _sixteen(node),
    )


def _negative(looked: _Looked, node: Node) -> Iterator[Finding]:
    if node.op not in ("Conv", "Gemm", "MatMul", "Mul") or len(node.inputs) < 2:
        return
    shift = looked.exponent(node.outputs[0]) - looked.exponent(node.inputs[0]) - max(looked.exponents(node.inputs[1]))
    if shift < 0:
        yield Finding(
            "negative-shift",
            "error",
            f"{node.label}: its result would be shifted left by {-shift}; the kernels only shift right.",
            (node.name,),
            {"mac_shift": shift},
            f"Choose another calib_algorithm for this layer (a wider output range), or {_SIXTEEN}.",
            _sixteen(node),
        )


def _float_fallback(looked: _Looked, node: Node) -> Iterator[Finding]:
    plain = node.op in ("Relu", "Clip", "PRelu", "LUT", "LeakyRelu")
    if node.op in ACTIVATIONS and not plain and looked.bits(node.inputs[0]) == 16 and not node.text("lut"):
        yield Finding(
            "float-activation",
            "warning",
            f"{node.label} has 16 bits and no table: the device computes it in floating point, hundreds of "
            "milliseconds for a large image (esp-dl#286).",
            (node.name,),
            {"bits": 16},
            "Keep this layer at 8 bits, or export with int16_lut_step.",
        )


def _table(looked: _Looked, node: Node) -> Iterator[Finding]:
    name = node.text("lut")
    if node.op in ACTIVATIONS and node.op != "LUT" and name and looked.bits(node.inputs[0]) == 16:
        entries = len(looked.model.constants[name].values) if name in looked.model.constants else 0
        yield Finding(
            "coarse-table",
            "warning",
            f"{node.label} has 16 bits and a table of {entries} entries, of which the device takes the nearest; "
            "ESP-PPQ simulated the function itself.",
            (node.name,),
            {"entries": entries, "step": 65536 // (entries - 1) if entries > 1 else 0},
            "Keep this layer at 8 bits, give the whole model 16 bits (then ESP-PPQ simulates the table), "
            "or take a smaller int16_lut_step.",
        )


def _average(looked: _Looked, node: Node) -> Iterator[Finding]:
    """ESP-PPQ divides by the count, esp-dl multiplies by its float32 reciprocal: is there a sum that rounds
    otherwise?"""
    if node.op not in AVERAGES:
        return
    bits, shift = looked.bits(node.inputs[0]), looked.exponent(node.outputs[0]) - looked.exponent(node.inputs[0])
    shape, made = looked.shapes.get(node.inputs[0]), looked.shapes.get(node.outputs[0])
    kernel = node.integers("kernel_shape") or ()
    if not shape or made is None or bits not in (8, 16):
        return
    count = int(np.prod(kernel)) if node.op == "AveragePool" else int(np.prod(shape)) // max(1, int(np.prod(made)))
    partial = node.op == "AveragePool" and bool(node.integer("ceil_mode"))
    if partial or reciprocal_differs(count, shift, bits, looked.bits(node.outputs[0]), looked.target):
        yield Finding(
            "average-rounding",
            "info",
            f"{node.label} averages {count} values: some averages are rounded to the other side by the device"
            + (", and windows that ceil_mode adds are divided by the whole window." if partial else "."),
            (node.name,),
            {"count": count, "shift": shift},
            "One unit in rare ties; a window of a power of two values avoids it.",
        )


def reciprocal_differs(count: int, shift: int, bits: int, out_bits: int, target: Target) -> bool:
    """Whether some sum of ``count`` integers of ``bits`` has another average when multiplied by 1/count in float32
    than divided by count."""
    if count & (count - 1) == 0:
        return False
    low, high = limits(bits)
    if count * (high - low) > MOST_SUMS:
        return True
    sums = np.arange(count * low, count * high + 1, dtype=np.float64)
    clip = limits(out_bits)
    a, b = (
        np.clip(rounded(averaged(sums, count, shift, reciprocal=reciprocal), target), *clip)
        for reciprocal in (False, True)
    )
    return bool(np.any(a != b))


def _memory(looked: _Looked, memory: BoardMemory) -> Iterator[Finding]:
    model = looked.model
    if (
        memory.flash_slot_bytes is not None
        and memory.model_in == "flash"
        and model.size_bytes > memory.flash_slot_bytes
    ):
        yield Finding(
            "model-memory",
            "error",
            f"The file of {model.size_bytes} bytes does not fit the flash slot of {memory.flash_slot_bytes}.",
            (),
            {"size_bytes": model.size_bytes, "flash_slot_bytes": memory.flash_slot_bytes},
            "Use fewer bits or a smaller model.",
        )
    if memory.psram_bytes is None or not looked.shapes:
        return
    activations = activation_bytes(model, looked.shapes)
    held = model.size_bytes if memory.model_in == "psram" else 0
    if activations + held > memory.psram_bytes:
        yield Finding(
            "activation-memory",
            "error",
            f"Activations of {activations} bytes"
            + (f" and the file of {held}" if held else "")
            + f" do not fit the PSRAM of {memory.psram_bytes} bytes.",
            (),
            {
                "activation_bytes": activations,
                "model_bytes": held,
                "parameter_bytes": parameter_bytes(model),
                "psram_bytes": memory.psram_bytes,
            },
            "Keep the model in flash (slot: flash), use 8 instead of 16 bits, or a smaller input.",
        )
