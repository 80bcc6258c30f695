"""Small models and board descriptions for the tests of emulation."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from device_agents.emulated import EmulatedSpec

PROCESSOR: dict[str, Any] = {
    "cores": 4,
    "parallel_efficiency": 0.5,
    "gmac_per_s": {"float32": 10.0, "float16": 20.0, "int8": 40.0},
    "gelement_per_s": 2.0,
    "memory_gb_s": 8.0,
    "launch_us": 3.0,
    "invocation_us": 20.0,
    "operators": {"Conv": ["int8", "float16"], "Relu": ["int8"], "MatMul": ["int8"]},
}
NPU: dict[str, Any] = {
    "provider": "VitisAIExecutionProvider",
    "gmac_per_s": {"int8": 1000.0},
    "gelement_per_s": 50.0,
    "memory_gb_s": 20.0,
    "launch_us": 1.0,
    "invocation_us": 100.0,
    "transfer_us": 10.0,
    "transfer_gb_s": 4.0,
    "operators": {"Conv": ["int8"], "Relu": ["int8"], "MatMul": ["int8"]},
}


def cost_model(processor: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "name": "test",
        "processor": {**PROCESSOR, **(processor or {})},
        "load_ms": 5.0,
        "load_mb_per_s": 100.0,
        "runtime_mb": 30.0,
        **changes,
    }


def make_spec(**changes: Any) -> EmulatedSpec:
    return EmulatedSpec.model_validate(
        {
            "seed": 7,
            "cost_model": cost_model(),
            "presents": {"cpu_model": "Test CPU", "machine": "aarch64", "os": "Test OS", "memory_mb": 1000},
            "noise": {"sigma": 0.02, "block_sigma": 0.005, "spike_probability": 0.0},
            **changes,
        }
    )


def conv_net(channels: int = 8, seed: int = 0) -> onnx.ModelProto:
    """x [batch, 3, 8, 8] -> Conv 3×3 -> Relu -> GlobalAveragePool -> Flatten -> Gemm -> y [batch, 5]."""
    random = np.random.default_rng(seed)
    weights = {
        "w": random.normal(size=(channels, 3, 3, 3)).astype(np.float32),
        "b": random.normal(size=channels).astype(np.float32),
        "fw": random.normal(size=(channels, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"], name="pool"),
        helper.make_node("Flatten", ["g"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "fw"], ["y"], name="gemm"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(model: onnx.ModelProto, folder: Path, name: str) -> tuple[Path, str]:
    """(path, sha256) of a model written to a file."""
    path = folder / f"{name}.onnx"
    onnx.save(model, str(path))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()
