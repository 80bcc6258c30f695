"""Which operator is prepared by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from device_agents.emulated.espdl.kernels import activations, elementwise, filters, floats, pools, shapes
from device_agents.emulated.espdl.kernels.base import Run, Site
from device_agents.emulated.espdl.kernels.resize import resize

ACTIVATIONS: Final = (
    "LUT", "Relu", "Clip", "PRelu", "LeakyRelu", "Sigmoid", "Tanh", "Swish", "HardSwish", "HardSigmoid", "Elu", "Gelu",
    "Erf", "Softplus",
    "Exp", "Log", "Sqrt", "Abs", "Neg", "Cos", "Sin", "Tan", "Floor", "Ceil", "Round",
)  # fmt: skip
"""Functions of one value. Those without a known formula work where the model brings a table."""

OPERATORS: Final[Mapping[str, Callable[[Site], Run]]] = MappingProxyType(
    {
        **dict.fromkeys(ACTIVATIONS, activations.activation),
        "Conv": filters.conv,
        "Gemm": filters.gemm,
        "MatMul": filters.matmul,
        "Add": elementwise.add,
        "Sub": elementwise.sub,
        "Mul": elementwise.mul,
        "RequantizeLinear": elementwise.requantize,
        "QuantizeLinear": floats.quantize,
        "DequantizeLinear": floats.dequantize,
        "Softmax": floats.softmax,
        "LogSoftmax": floats.softmax,
        "MaxPool": pools.max_pool,
        "AveragePool": pools.average_pool,
        "GlobalAveragePool": pools.global_average_pool,
        "ReduceMean": pools.reduce_mean,
        "Resize": resize,
        "Concat": shapes.concat,
        "Split": shapes.split,
        "Slice": shapes.slice_,
        "Transpose": shapes.transpose,
        "Reshape": shapes.reshape,
        "Flatten": shapes.flatten,
        "Squeeze": shapes.squeeze,
        "Unsqueeze": shapes.unsqueeze,
        "Identity": shapes.identity,
        "Pad": shapes.pad,
        "Gather": shapes.gather,
        "InsertZeros": shapes.insert_zeros,
    }
)
