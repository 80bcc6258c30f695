"""A small model for each runtime, with samples and what it computes of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import models
import numpy as np

from device_agents.emulated.espdl.interpreter import Interpreter
from device_agents.emulated.espdl.reader import read_model
from device_agents.emulated.espdl.target import Semantics

ESPDL = Path(__file__).parents[1] / "espdl/golden/tiny_images-esp32s3-w8a8.espdl"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Kit:
    """``model(path)`` writes a model and returns its path; ``expected`` maps ``samples(n)`` to outputs."""

    model: Callable[[Path], Path]
    samples: Callable[[int], Arrays]
    expected: Callable[[Arrays], Arrays]


def onnx_kit() -> Kit:
    def samples(count: int) -> Arrays:
        return {"x": np.random.default_rng(7).standard_normal((count, 4)).astype(np.float32)}

    return Kit(models.affine, samples, lambda inputs: {"y": 3 * inputs["x"] + 1})


def espdl_kit() -> Kit:
    parsed = read_model(ESPDL)
    interpreter = Interpreter(parsed, "esp32s3", Semantics.DEVICE)

    def copy(path: Path) -> Path:
        target = path.with_suffix(".espdl")
        target.write_bytes(ESPDL.read_bytes())
        return target

    def samples(count: int) -> Arrays:
        rng = np.random.default_rng(7)
        return {v.name: rng.standard_normal((count, *v.shape[1:])).astype(np.float32) for v in parsed.inputs}

    def expected(inputs: Arrays) -> Arrays:
        integers = {name: interpreter.quantize(name, array) for name, array in inputs.items()}
        outputs = interpreter.run({name: array[:, None] for name, array in integers.items()})
        exponents = {value.name: value.exponent for value in parsed.outputs}
        return {
            name: np.ldexp(array[:, 0].astype(np.float64), exponents[name]).astype(np.float32)
            for name, array in outputs.items()
        }

    return Kit(copy, samples, expected)


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
