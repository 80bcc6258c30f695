"""The golden files, and what is said in their names."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from device_agents.emulated.espdl.model import Model
from device_agents.emulated.espdl.reader import read_model
from tests.espdl.espdl_writer import Array

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.espdl"))
GOLDEN_8 = [path for path in GOLDEN if path.stem.endswith("w8a8")]
FAMILIES = {"esp32s3": "s3", "esp32p4": "p4", "esp32": "c"}


def target_of(path: Path) -> str:
    return path.stem.split("-")[1]


def test_inputs(model: Model) -> dict[str, Array]:
    return {name: np.asarray(tensor.array())[np.newaxis] for name, tensor in model.test_inputs.items()}


test_inputs.__test__ = False  # type: ignore[attr-defined]  # a helper


def golden(name: str) -> Model:
    return read_model(next(path for path in GOLDEN if path.stem == name))
