"""A linear classifier on frozen features, and its place at the end of an ONNX graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from scipy.optimize import minimize

Floats = npt.NDArray[np.float64]

FEATURES = "features"
LOGITS = "logits"


class Head(NamedTuple):
    weight: npt.NDArray[np.float32]
    """[classes, features]."""
    bias: npt.NDArray[np.float32]
    """[classes]."""


def fit_head(
    features: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], *, penalty: float = 0.03, iterations: int = 200
) -> Head:
    """Multinomial logistic regression by L-BFGS; no random numbers, so the same features give the same head.

    ``features`` [samples, features], ``labels`` [samples] in 0..classes-1. ``penalty`` weighs half the squared
    coefficients against the mean cross-entropy; its default did best (with 0.01) on training images held out of the
    fit. Features are centred and divided by one number for all, which is folded into the coefficients returned: a
    number for each would give rare features large coefficients, and they would amplify the noise of quantization.
    """
    mean = features.mean(axis=0, dtype=np.float64)
    deviation = float(np.sqrt(np.mean((features - mean) ** 2))) or 1.0
    standard = (features - mean) / deviation
    classes = int(labels.max()) + 1
    truth = np.eye(classes)[labels]

    def loss(flat: Floats) -> tuple[float, Floats]:
        weight, bias = _unflatten(flat, classes)
        scores = standard @ weight.T + bias
        scores -= scores.max(axis=1, keepdims=True)
        log_total = np.log(np.exp(scores).sum(axis=1, keepdims=True))
        error = (np.exp(scores - log_total) - truth) / len(labels)
        value = float(-((scores - log_total) * truth).sum() / len(labels) + penalty / 2 * (weight**2).sum())
        gradient = np.concatenate([error.T @ standard + penalty * weight, error.sum(axis=0)[:, np.newaxis]], axis=1)
        return value, gradient.ravel()

    start = np.zeros(classes * (standard.shape[1] + 1))
    fitted = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    weight, bias = _unflatten(fitted.x, classes)
    weight = weight / deviation
    return Head(weight.astype(np.float32), (bias - weight @ mean).astype(np.float32))


def attach_head(backbone: Any, head: Head) -> Any:
    """A copy of ``backbone`` (its output ``features`` [batch, features]) that gives ``logits`` [batch, classes]."""
    model = onnx.ModelProto()
    model.CopyFrom(backbone)
    graph = model.graph
    outputs = [output.name for output in graph.output]
    if outputs != [FEATURES]:
        raise ValueError(f"the backbone gives {outputs}, not [{FEATURES!r}]")
    batch = graph.output[0].type.tensor_type.shape.dim[0].dim_param or "batch"
    graph.initializer.append(numpy_helper.from_array(head.weight, "head.weight"))
    graph.initializer.append(numpy_helper.from_array(head.bias, "head.bias"))
    graph.node.append(helper.make_node("Gemm", [FEATURES, "head.weight", "head.bias"], [LOGITS], name="head", transB=1))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, [batch, len(head.bias)]))
    onnx.checker.check_model(model)
    return model


def _unflatten(flat: Floats, classes: int) -> tuple[Floats, Floats]:
    table = flat.reshape(classes, -1)
    return table[:, :-1], table[:, -1]
