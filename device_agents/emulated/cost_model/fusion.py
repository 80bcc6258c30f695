"""Which nodes the runtime executes together: activations folded into convolutions, QDQ groups run as integers.

Follows ONNX Runtime: Conv + BatchNormalization at level ``basic``, Conv + activation and DequantizeLinear → operator →
QuantizeLinear at ``extended``.
"""

from __future__ import annotations

from dataclasses import dataclass

from device_agents.emulated.spec import DataType

from .graph import CONVOLUTIONS, MATRIX_OPERATORS, Graph, Operation
from .tensors import Tensor

_ACTIVATIONS = frozenset({"Relu", "Clip", "LeakyRelu", "HardSigmoid", "Tanh", "Sigmoid"})
_FLOAT_OUTPUT = frozenset({"MatMul", "Gemm"})
"""Run as integers even where their output is not quantized again."""
_INTEGER_OPERATORS = frozenset(
    {"ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QGemm"}
)


@dataclass(frozen=True)
class Group:
    """One operation and what a runtime can fold into it."""

    main: Operation
    data_type: DataType
    """What it computes in where the unit can."""
    chain: tuple[Operation, ...] = ()
    """Float operations that follow and are folded always (BatchNormalization, activation)."""
    dequantize: tuple[Operation, ...] = ()
    """Feed it; folded where the group runs as integers, executed on their own elsewhere."""
    quantize: tuple[Operation, ...] = ()
    """Follow it; as ``dequantize``."""

    @property
    def is_matrix(self) -> bool:
        return self.main.op_type in MATRIX_OPERATORS

    @property
    def last_output(self) -> str:
        return (self.chain[-1] if self.chain else self.main).outputs[0]

    def reads(self, graph: Graph, *, native: bool) -> tuple[Tensor, ...]:
        """Activations and weights taken from memory, as stored when run natively or in float."""
        tensors = []
        sources = {op.outputs[0]: op for op in self.dequantize} if native else {}
        for name in dict.fromkeys(self.main.inputs):
            if not name:
                continue
            dequantize = sources.get(name)
            tensors.append(graph.tensor(dequantize.inputs[0] if dequantize else name))
        return tuple(tensors)

    def writes(self, graph: Graph, *, native: bool) -> tuple[Tensor, ...]:
        stored = [op.outputs[0] for op in self.quantize] if native and self.quantize else [self.last_output]
        return tuple(graph.tensor(name) for name in (*stored, *self.main.outputs[1:]) if name)


def groups(graph: Graph, *, fold_norms: bool = True, fuse: bool = True) -> tuple[Group, ...]:
    """Groups in topological order. Every operation that is not constant is in one of them, except
    DequantizeLinear and QuantizeLinear that belong to no group: those are executed on their own."""
    constant = {op.index for op in graph.folded_constants}
    taken: set[int] = set(constant)
    found = []
    for operation in graph.operations:
        if operation.index in taken or operation.op_type in ("DequantizeLinear", "QuantizeLinear"):
            continue
        chain = _chain(graph, operation, fold_norms, fuse)
        taken.update(op.index for op in chain)
        found.append(
            _group(graph, operation, chain) if fuse else Group(operation, _plain_type(graph, operation), chain)
        )
    return tuple(found)


def _chain(graph: Graph, operation: Operation, fold_norms: bool, fuse: bool) -> tuple[Operation, ...]:
    foldable = operation.op_type in CONVOLUTIONS or operation.op_type == "Gemm"
    chain: list[Operation] = []
    tail = operation
    while True:
        follower = _only_consumer(graph, tail.outputs[0])
        if follower is None or follower.inputs[0] != tail.outputs[0]:
            break
        norm = foldable and fold_norms and not chain and follower.op_type == "BatchNormalization"
        activation = fuse and follower.op_type in _ACTIVATIONS and foldable
        # Relu and Clip in front of a QuantizeLinear go into its clamping, whatever they follow.
        clamp = fuse and follower.op_type in ("Relu", "Clip") and bool(_quantizers(graph, follower.outputs[0]))
        activation = activation or clamp
        if not (norm or activation):
            break
        chain.append(follower)
        tail = follower
        if activation:
            break
    return tuple(chain)


def _only_consumer(graph: Graph, name: str) -> Operation | None:
    consumers = graph.consumers.get(name, [])
    return consumers[0] if len(consumers) == 1 and name not in graph.outputs else None


def _group(graph: Graph, operation: Operation, chain: tuple[Operation, ...]) -> Group:
    plain = Group(operation, _plain_type(graph, operation), chain)
    feeding = [graph.producers.get(name) for name in operation.inputs]
    dequantize = tuple(dict.fromkeys(op for op in feeding if op is not None and op.op_type == "DequantizeLinear"))
    if not dequantize:
        return plain
    computed = [name for name in operation.inputs if name and name not in graph.constants]
    produced = {op.outputs[0] for op in dequantize}
    floats = [name for name in computed if graph.tensor(name).is_float]
    if any(name not in produced for name in floats):
        return plain
    weights = [graph.tensor(name) for name in operation.inputs if name in graph.constants]
    if operation.op_type in MATRIX_OPERATORS and any(w.is_float and w.elements > 1 for w in weights[:1]):
        return plain
    if all(op.inputs[0] in graph.constants for op in dequantize):
        return plain
    quantize = _quantizers(graph, plain.last_output)
    if not quantize and operation.op_type not in _FLOAT_OUTPUT:
        return plain
    stored = [graph.tensor(op.inputs[0]) for op in dequantize if op.inputs[0] not in graph.constants]
    stored += [graph.tensor(op.outputs[0]) for op in quantize]
    wide = any(tensor.bits == 16 for tensor in stored)
    return Group(operation, "int16" if wide else "int8", chain, dequantize, quantize)


def _quantizers(graph: Graph, name: str) -> tuple[Operation, ...]:
    """The QuantizeLinear nodes that consume ``name``, if nothing else does."""
    consumers = graph.consumers.get(name, [])
    if not consumers or name in graph.outputs or any(op.op_type != "QuantizeLinear" for op in consumers):
        return ()
    return tuple(consumers)


def _plain_type(graph: Graph, operation: Operation) -> DataType:
    """Data type of an operation outside a QDQ group, from what it is and from what it reads."""
    if operation.op_type.startswith("QLinear") or operation.op_type in _INTEGER_OPERATORS:
        first = graph.activations(operation)
        return "int16" if first and first[0].bits == 16 and not first[0].is_float else "int8"
    tensors = [*graph.activations(operation), *(graph.tensor(name) for name in operation.outputs if name)]
    floats = [tensor for tensor in tensors if tensor.is_float]
    if floats and all(tensor.bits == 16 for tensor in floats):
        return "float16"
    return "float32"
