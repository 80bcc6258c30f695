"""What a board cannot take of a model, or will run on its processor instead of its accelerator. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from onnx import ModelProto

from device_agents.emulated.cost_model import estimate
from device_agents.emulated.cost_model.tensors import UnknownShapes
from device_agents.emulated.spec import Accelerator, EmulatedSpec
from harness.audit.finding import Finding, set_to
from harness.audit.structure import Structure, input_shapes
from harness.boards.schema import Board
from harness.controller.inventory import Inventory
from harness.quantize.graph import all_nodes
from harness.units import format_bytes

INT8 = "int8"
_FOLDED = frozenset({"Constant", "ConstantOfShape", "Identity", "Range", "Shape", "Size"})
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Asked:
    """A model as far as boards care."""

    model: ModelProto
    structure: Structure
    inventory: Inventory
    size_bytes: int
    """Of the float model's file."""

    @property
    def quantized_bytes(self) -> int:
        """About: one byte for each parameter, and everything that is no weight."""
        return self.size_bytes - self.structure.weight_bytes + self.structure.parameters

    @property
    def op_types(self) -> Counter[str]:
        return Counter(node.op_type for node in all_nodes(self.model))

    @property
    def computing(self) -> Counter[str]:
        """Without what runtimes fold away when they load the model."""
        return Counter({op: count for op, count in self.op_types.items() if op not in _FOLDED})


def board_findings(board: Board, asked: Asked) -> list[Finding]:
    findings = [*_operators(board, asked), *_data_types(board, asked), *_sizes(board, asked), *_memory(board, asked)]
    if isinstance(board.emulated, EmulatedSpec):
        findings += _placed(board, board.emulated, asked)
    return findings


def _operators(board: Board, asked: Asked) -> list[Finding]:
    allowed = board.limits.operators
    if allowed is None:
        return []
    findings = []
    missing = {op: count for op, count in sorted(asked.op_types.items()) if op not in allowed}
    if missing:
        nodes = [node.name for node in all_nodes(asked.model) if node.op_type in missing]
        listed = ", ".join(f"{count} {op}" for op, count in missing.items())
        findings.append(
            Finding(
                code="unsupported_operator",
                severity="error",
                what=f"board {board.name!r} does not run {listed}",
                where=(board.name, *nodes[:16]),
                evidence={"operators": missing, "nodes": nodes},
                advice="replace them in the model and export it again; no recipe can: every candidate is pruned there. "
                "If the board does run them, add them to limits.operators of its file",
            )
        )
    if not missing and not set(_QUANTIZERS) <= set(allowed):
        findings.append(
            Finding(
                code="no_quantize_operators",
                severity="warning",
                what=f"board {board.name!r} lists no {' or '.join(_QUANTIZERS)}: QDQ recipes are pruned there",
                where=(board.name,),
                evidence={"operators": sorted(allowed)},
                advice="use format: QOperator, or add the two to limits.operators of its file",
                changes=set_to(format="QOperator"),
            )
        )
    return findings


def _data_types(board: Board, asked: Asked) -> list[Finding]:
    allowed = board.limits.data_types
    if allowed is None:
        return []
    missing = sorted(asked.inventory.data_types - set(allowed))
    if not missing:
        return []
    floats = [name for name in missing if name.startswith(("float", "bfloat"))]
    return [
        Finding(
            code="unsupported_data_type",
            severity="error" if set(missing) - set(floats) else "warning",
            what=f"board {board.name!r} has no {', '.join(missing)}, which the float model uses"
            + (": the float baseline cannot run there" if floats else ""),
            where=(board.name,),
            evidence={"data_types": missing, "board": list(allowed)},
            advice="only recipes that leave nothing in these types pass its gate; export inputs and outputs in types "
            "the board has",
        )
    ]


def _sizes(board: Board, asked: Asked) -> list[Finding]:
    limit = board.limits.max_model_bytes
    if limit is None or asked.size_bytes <= limit:
        return []
    fits = asked.quantized_bytes <= limit
    return [
        Finding(
            code="model_too_large",
            severity="warning" if fits else "error",
            what=f"the float model has {format_bytes(asked.size_bytes)}, board {board.name!r} takes "
            f"{format_bytes(limit)}; 8-bit weights make it about {format_bytes(asked.quantized_bytes)}",
            where=(board.name,),
            evidence={
                "size_bytes": asked.size_bytes,
                "quantized_bytes": asked.quantized_bytes,
                "max_model_bytes": limit,
            },
            advice="only recipes with 8-bit weights for everything large fit"
            if fits
            else "8 bits are not enough: weight_only with int4 halves the matrices, or take a smaller model",
            changes=() if fits else set_to(scheme="weight_only", weight="int4"),
        )
    ]


def _memory(board: Board, asked: Asked) -> list[Finding]:
    limit = board.limits.max_memory_bytes
    structure = asked.structure
    if limit is None or structure.activation_bytes is None:
        return []
    least = structure.weight_bytes + structure.activation_bytes
    if least <= limit:
        return []
    quantized = structure.parameters + structure.activation_bytes // 4
    return [
        Finding(
            code="memory",
            severity="warning" if quantized <= limit else "error",
            what=f"weights and the largest activation of the float model take {format_bytes(least)}, board "
            f"{board.name!r} has {format_bytes(limit)}; in 8 bits about {format_bytes(quantized)}",
            where=(board.name,),
            evidence={"float_bytes": least, "quantized_bytes": quantized, "max_memory_bytes": limit},
            advice="static 8-bit recipes may fit, dynamic and weight_only ones keep activations in float"
            if quantized <= limit
            else "take a smaller input or model: no recipe fits",
        )
    ]


def _placed(board: Board, emulated: EmulatedSpec, asked: Asked) -> list[Finding]:
    """By the cost model of the board's file: what its accelerator and its processor execute natively."""
    findings: list[Finding] = []
    cost_model = emulated.cost_model
    providers = [provider.name for provider in board.runtime.providers]
    accelerator = cost_model.accelerator
    if accelerator is not None and accelerator.provider in providers:
        findings += _fallbacks(board, accelerator, asked)
    never = {
        op: count
        for op, count in sorted(asked.computing.items())
        if INT8 not in cost_model.processor.operators.get(op, ())
        and (accelerator is None or op not in accelerator.operators)
    }
    if never:
        findings.append(
            Finding(
                code="runs_in_float",
                severity="info",
                what=f"board {board.name!r} executes {', '.join(f'{n} {op}' for op, n in never.items())} in float32 "
                "whatever the recipe: quantized neighbours are converted around them",
                where=(board.name, *never),
                evidence={"operators": never, "cost_model": cost_model.name},
                advice=f"leave them out of quantization (exclude_op_types: [{', '.join(never)}]) and compare",
                changes=set_to(exclude_op_types=list(never)),
            )
        )
    return findings


def _fallbacks(board: Board, accelerator: Accelerator, asked: Asked) -> list[Finding]:
    unsupported = {op: n for op, n in sorted(asked.computing.items()) if op not in accelerator.operators}
    total = sum(asked.computing.values())
    ratio = 1.0 - sum(unsupported.values()) / total if total else 1.0
    floor = board.limits.min_offload
    findings = []
    if unsupported:
        nodes = [node.name for node in all_nodes(asked.model) if node.op_type in unsupported]
        broken = floor is not None and ratio < floor
        wanted = f"; its file wants {floor:.0%}" if floor is not None else ""
        findings.append(
            Finding(
                code="fallback",
                severity="error" if broken else "warning",
                what=f"the accelerator of {board.name!r} ({accelerator.provider}) has no "
                f"{', '.join(f'{op} ({n})' for op, n in unsupported.items())}: at most {ratio:.0%} of the operators "
                f"run on it{wanted}",
                where=(board.name, *nodes[:16]),
                evidence={"operators": unsupported, "nodes": nodes, "most_offload_ratio": ratio, "min_offload": floor},
                advice="replace them by what it has (see operators: in the board's file), or move them to the ends of "
                "the model: each in the middle costs two transfers",
            )
        )
    reasons = _float_fallbacks(board, asked)
    only_float = {n: r for n, r in reasons.items() if n not in {m for f in findings for m in f.evidence["nodes"]}}
    if only_float:
        types = sorted({t for kinds in accelerator.operators.values() for t in kinds})
        findings.append(
            Finding(
                code="float_falls_back",
                severity="info",
                what=f"{len(only_float)} operators of the float model run on the processor of {board.name!r}: its "
                f"accelerator computes in {', '.join(types)}",
                where=(board.name, *list(only_float)[:16]),
                evidence={"reasons": only_float},
                advice="static 8-bit recipes of these operators bring them to the accelerator; what a recipe leaves in "
                "float stays on the processor",
                changes=set_to(scheme="static", activation="int8", weight="int8"),
            )
        )
    return findings


def _float_fallbacks(board: Board, asked: Asked) -> Mapping[str, str]:
    """Node of the float model -> why the cost model leaves it on the processor."""
    if not isinstance(board.emulated, EmulatedSpec) or asked.structure.macs is None:
        return {}
    try:
        made = estimate(
            asked.model,
            board.emulated.cost_model,
            input_shapes(asked.model),
            providers=[provider.name for provider in board.runtime.providers],
            optimization=board.runtime.graph_optimization,
        )
    except UnknownShapes:
        return {}
    return dict(made.fallback_reasons)
