"""Accuracy of a microcontroller: its own outputs, or the interpreter's where both agree to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from device_agents.contract import Agent, DataRef, Inference, Tensors
from device_agents.emulated.espdl.axes import Axes
from device_agents.emulated.espdl.interpreter import Interpreter
from device_agents.emulated.espdl.reader import read_model
from device_agents.emulated.espdl.target import Semantics
from harness.controller.accuracy import SPOT_ROWS, VERIFIED_SAMPLES, chip_evaluator, evaluate_on_board
from harness.controller.evaluation import EvaluationPart

MODEL = Path(__file__).resolve().parents[1] / "espdl" / "golden" / "tiny_images-esp32s3-w8a8.espdl"
SAMPLES = 150


def real_outputs(inputs: Mapping[str, npt.NDArray[Any]], semantics: Semantics = Semantics.DEVICE) -> Tensors:
    model = read_model(MODEL)
    interpreter, axes = Interpreter(model, "esp32s3", semantics), Axes.of(model)
    fed = {name: interpreter.quantize(name, axes.stored(name, array)) for name, array in inputs.items()}
    return {name: axes.real(name, array) for name, array in interpreter.run(fed).items()}


@pytest.fixture
def part(tmp_path: Path) -> EvaluationPart:
    model = read_model(MODEL)
    rng = np.random.default_rng(5)
    axes = Axes.of(model)
    inputs = {}
    for value in model.inputs:
        order = axes.orders.get(value.name, tuple(range(len(value.shape))))
        shape = [value.shape[list(order).index(axis)] for axis in range(len(order))]
        inputs[value.name] = rng.normal(size=(SAMPLES, *shape[1:])).astype(np.float32)
    path = tmp_path / "part.npz"
    np.savez(path, **inputs)
    outputs = {name: array.astype(np.float64) for name, array in real_outputs(inputs).items()}
    return EvaluationPart("final", path, "ab" * 32, SAMPLES, np.arange(SAMPLES) % 4, outputs)


class Chip:
    """Computes as the interpreter does, except where it is told to differ."""

    def __init__(self, part: EvaluationPart, wrong: tuple[int, ...] = ()) -> None:
        self._part = part
        self._wrong = wrong
        self.asked: list[tuple[int, ...] | None] = []

    def infer(self, session: str, inputs: DataRef, batch: int = 1, deadline_s: float = 0.0) -> Inference:
        rows = tuple(range(self._part.samples)) if inputs.rows is None else inputs.rows
        self.asked.append(inputs.rows)
        with np.load(self._part.path) as arrays:
            outputs = dict(real_outputs({name: arrays[name][list(rows)] for name in arrays.files}))
        for place, row in enumerate(rows):
            if row in self._wrong:
                name = sorted(outputs)[0]
                outputs[name] = outputs[name].copy()
                outputs[name].reshape(len(rows), -1)[place, -1] += 1.0
        return Inference("boot", outputs, 1234)


def evaluate(chip: Chip, part: EvaluationPart, *, latency_ns: float | None = 1e6, chip_s: float = 120.0) -> Any:
    agent: Agent = chip  # type: ignore[assignment]  # only infer is asked
    return chip_evaluator("esp32s3", chip_s=chip_s)(agent, "s", MODEL, part, 1, latency_ns, 60.0)


def test_a_chip_that_agrees_computes_some_samples_and_the_interpreter_all(part: EvaluationPart) -> None:
    chip = Chip(part)
    found = evaluate(chip, part)
    assert found.evidence == "host-verified"
    assert found.part is part
    (rows,) = chip.asked
    assert rows is not None
    assert len(set(rows)) == VERIFIED_SAMPLES
    assert rows[:SPOT_ROWS] == tuple(range(SPOT_ROWS))
    for name, array in found.outputs.items():
        np.testing.assert_array_equal(array, part.float_outputs[name].astype(np.float32))
    assert found.peak_memory_bytes == 1234


def test_a_chip_that_differs_is_believed_on_what_it_computed(part: EvaluationPart) -> None:
    chip = Chip(part, wrong=(2,))
    found = evaluate(chip, part, latency_ns=1e9, chip_s=100.0)
    assert found.evidence == "device"
    assert [len(rows or ()) for rows in chip.asked] == [VERIFIED_SAMPLES, 100]
    assert found.part.samples == 100
    rows = list(chip.asked[1] or ())
    assert found.part.labels is not None
    np.testing.assert_array_equal(found.part.labels, np.array(rows) % 4)
    name = sorted(found.outputs)[0]
    unequal = found.outputs[name] != found.part.float_outputs[name].astype(np.float32)
    assert set(np.argwhere(unequal)[:, 0].tolist()) == {rows.index(2)}
    assert f"differ in output {name!r} on 1 of 64 samples, the first is sample 2" in found.notices[0]
    assert "on 100 of 150 samples" in found.notices[0]


def test_a_slow_chip_that_differs_computes_no_more(part: EvaluationPart) -> None:
    chip = Chip(part, wrong=(0,))
    found = evaluate(chip, part, latency_ns=60e9, chip_s=100.0)
    assert len(chip.asked) == 1
    assert found.part.samples == VERIFIED_SAMPLES


def test_a_model_the_interpreter_cannot_run(part: EvaluationPart, tmp_path: Path) -> None:
    broken = tmp_path / "model.espdl"
    broken.write_bytes(MODEL.read_bytes()[:100])
    agent: Any = Chip(part)
    found = chip_evaluator("esp32s3")(agent, "s", broken, part, 1, 1e6, 60.0)
    assert found.evidence == "device"
    assert "the interpreter cannot run the model" in found.notices[0]
    assert found.part.samples == SAMPLES, "a millisecond each: there is time for all"


def test_other_boards_compute_everything(part: EvaluationPart) -> None:
    agent: Any = Chip(part)
    found = evaluate_on_board(agent, "s", MODEL, part, 1, 1e6, 60.0)
    assert agent.asked == [None]
    assert found.evidence == "device"
    assert found.part is part
