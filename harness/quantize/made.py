"""What a quantizer made, whatever its format: as acceptance, the gate and the ledger look at it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from harness.quantize import graph as graphs
from harness.quantize.calibration_data import Feeds
from harness.quantize.identity import identity_of
from harness.quantize.made_espdl import MadeEspdl
from harness.quantize.model_file import load_model
from harness.quantize.outputs import data_of
from harness.quantize.sessions import open_session, run_by_name
from harness.recipes.recipe import Recipe

Run = Callable[[Feeds], Mapping[str, npt.NDArray[np.generic]]]
"""One sample through the model: outputs by name."""


class Made(Protocol):
    """A file that a quantizer made."""

    @property
    def operators(self) -> int:
        """How many operators compute on quantized values."""

    @property
    def identity(self) -> str:
        """sha256 of the canonical content (DESIGN: identity of an artifact)."""

    @property
    def size_bytes(self) -> int:
        """With its external data."""

    def found(self) -> Mapping[str, int]:
        """Operator types that quantize, with their number."""

    def is_half(self) -> bool:
        """Whether anything in it is float16."""

    def notices(self) -> tuple[str, ...]:
        """What is known to be computed otherwise on a board than here."""

    def load(self) -> Run:
        """Ready to run on this host. Raises what its runtime raises, or UnsupportedOperator."""


class MadeOnnx:
    """See :class:`Made`; runs in ONNX Runtime on the CPU."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._model = load_model(path)
        self.operators: int = graphs.count_quantized_operators(self._model)

    @property
    def identity(self) -> str:
        return identity_of(self._model, self._path.parent)

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self._path, data_of(self._path)) if path.exists())

    def found(self) -> Mapping[str, int]:
        return graphs.quantization_found(self._model)

    def is_half(self) -> bool:
        return bool(graphs.has_float16(self._model))

    def notices(self) -> tuple[str, ...]:
        return ()

    def load(self) -> Run:
        session = open_session(self._path)
        return lambda feeds: run_by_name(session, feeds)


def read_made(path: Path, recipe: Recipe) -> Made:
    """Raises ModelError where the file cannot be read."""
    if recipe.suffix == ".espdl":
        return MadeEspdl(path, str(dict(recipe.options)["target"]))
    return MadeOnnx(path)
