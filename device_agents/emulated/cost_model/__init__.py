"""Latency of an ONNX model on a board that is not there, from work, bytes and published figures."""

from .estimate import Estimate, NodeCost, estimate
from .tensors import UnknownShapes

__all__ = ["Estimate", "NodeCost", "UnknownShapes", "estimate"]
