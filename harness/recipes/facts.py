"""What a search space needs to know about a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

WEIGHTED_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that hold most of the arithmetic and all of the weights in practice."""
_DYNAMIC_OPERATORS = ("Attention", "EmbedLayerNormalization", "Gather", "Gemm", "LSTM", "MatMul")
"""Where ONNX Runtime's dynamic quantization has kernels beside ConvInteger, which is slow (6–17 × float32)."""
_DELICATE_OPERATORS = (
    "Erf",
    "Exp",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LayerNormalization",
    "Pow",
    "Sigmoid",
    "SkipLayerNormalization",
    "Softmax",
    "Softplus",
    "Tanh",
)
"""Of attention, normalization at run time, gates and smooth activations: their results are small differences of large
values, or spread over orders of magnitude, which eight bits with one scale do not hold."""


@dataclass(frozen=True)
class ModelFacts:
    op_types: Mapping[str, int] = field(default_factory=dict)
    """Operator type -> nodes, in all graphs and functions."""
    parameters: int = 0
    """Elements in floating-point initializers."""
    input_dtypes: tuple[str, ...] = ()
    """numpy names, in input order."""
    has_dynamic: bool = False
    """Whether an input dimension is still free."""
    opset: int = 0
    """Of the default domain."""
    matmul_weights: int = 0
    """MatMul and Gemm nodes whose second operand is a constant matrix: what block-wise weights apply to."""

    @property
    def weighted(self) -> tuple[str, ...]:
        """Operator types present that carry weights."""
        return tuple(name for name in WEIGHTED_OPERATORS if self.op_types.get(name))

    @property
    def delicate(self) -> bool:
        """Whether operators without weights are likely to be what 8 bits break. One may be a classifier's last."""
        return sum(self.op_types.get(name, 0) for name in _DELICATE_OPERATORS) > 1

    @property
    def suits_dynamic(self) -> bool:
        """Whether dynamic quantization has at least as much to work on as there are convolutions."""
        suitable = sum(self.op_types.get(name, 0) for name in _DYNAMIC_OPERATORS)
        return 0 < suitable >= self.op_types.get("Conv", 0)

    @property
    def suits_block_weights(self) -> bool:
        """Whether weights of MatMul and Gemm are at least as many as convolutions."""
        return 0 < self.matmul_weights >= self.op_types.get("Conv", 0)
