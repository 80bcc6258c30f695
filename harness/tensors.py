"""Descriptions of a model's inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorSpec:
    name: str
    dtype: str
    """numpy name: ``float32``, ``int64``, ``uint8``, …"""
    shape: tuple[int | str, ...]
    """Fixed sizes, or the name of a dimension that is still free."""
