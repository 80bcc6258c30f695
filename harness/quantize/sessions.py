"""ONNX Runtime sessions on this host: quiet, one thread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from harness.tensors import TensorSpec

_LEVELS = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_FATAL_ONLY = 4


def open_session(
    model: Path | bytes,
    optimization: Literal["disabled", "basic", "all"] = "all",
    optimized_path: Path | None = None,
) -> Any:
    """An ``onnxruntime.InferenceSession`` on the CPU with one thread. Raises what ONNX Runtime raises."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL_ONLY
    options.graph_optimization_level = _LEVELS[optimization]
    if optimized_path is not None:
        options.optimized_model_filepath = str(optimized_path)
    source = model if isinstance(model, bytes) else str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def random_feeds(inputs: tuple[TensorSpec, ...], seed: int) -> dict[str, npt.NDArray[np.generic]]:
    """One seeded sample for fixed-size inputs: normal floats, integers 0 or 1 (valid for masks and most indices)."""
    generator = np.random.default_rng(seed)
    feeds: dict[str, npt.NDArray[np.generic]] = {}
    for spec in inputs:
        shape = tuple(int(size) for size in spec.shape)
        dtype = np.dtype(spec.dtype)
        if np.issubdtype(dtype, np.floating):
            feeds[spec.name] = generator.standard_normal(shape).astype(dtype)
        else:
            feeds[spec.name] = generator.integers(0, 2, shape).astype(dtype)
    return feeds


def run_by_name(session: Any, feeds: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, npt.NDArray[np.generic]]:
    """Outputs by name. Raises what ONNX Runtime raises.

    Sequences and maps (of classical classifiers) become one flat array of what is in them, an absent optional an empty
    one.
    """
    names = [output.name for output in session.get_outputs()]
    return {name: _as_array(value) for name, value in zip(names, session.run(names, dict(feeds)), strict=True)}


def _as_array(value: Any) -> npt.NDArray[np.generic]:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Mapping):
        return np.asarray([value[key] for key in sorted(value)])
    if isinstance(value, list):
        parts = [_as_array(item).ravel() for item in value]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)
    return np.zeros(0, dtype=np.float32) if value is None else np.asarray(value)
