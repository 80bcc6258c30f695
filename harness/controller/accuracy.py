"""The accuracy pass: what a board computes for the samples of an evaluation part."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from device_agents.contract import Agent, AgentError, DataRef, Tensors
from device_agents.emulated.espdl.axes import Axes
from device_agents.emulated.espdl.interpreter import Interpreter
from device_agents.emulated.espdl.reader import read_model
from device_agents.emulated.espdl.target import Semantics
from harness.controller.evaluation import EvaluationPart

SPOT_ROWS = 4
"""The first samples of a part, which a board always computes: they are compared with the timed session's outputs."""
VERIFIED_SAMPLES = 64
"""Samples a chip computes before the interpreter is believed for the rest."""
CHIP_S = 120.0
"""Device time spent on samples where the chip must compute them itself; more than :data:`VERIFIED_SAMPLES` only."""

Evidence = Literal["device", "host-verified"]


@dataclass(frozen=True, eq=False)
class Evaluated:
    outputs: Tensors
    """[samples, ...] by output name."""
    part: EvaluationPart
    """What they are the outputs of: all that was asked for, or as many samples as there was time for."""
    evidence: Evidence = "device"
    """``host-verified``: computed on this host by the interpreter, which the chip agreed with to the bit on some."""
    peak_memory_bytes: int | None = None
    notices: tuple[str, ...] = ()


class Evaluator(Protocol):
    def __call__(
        self, agent: Agent, session: str, model: Path, part: EvaluationPart, batch: int, latency_ns: float | None,
        deadline_s: float,
    ) -> Evaluated:  # fmt: skip
        """Raises :class:`AgentError`."""


def evaluate_on_board(
    agent: Agent, session: str, model: Path, part: EvaluationPart, batch: int, latency_ns: float | None,
    deadline_s: float,
) -> Evaluated:  # fmt: skip
    """Every sample on the board itself."""
    whole = agent.infer(session, DataRef(part.sha256), batch, deadline_s=deadline_s)
    return Evaluated(whole.outputs, part, peak_memory_bytes=whole.peak_memory_bytes)


def chip_evaluator(target: str, *, seed: int = 0, chip_s: float = CHIP_S) -> Evaluator:
    """For microcontrollers, where a line is slow and a sample may take seconds.

    Some samples, drawn by ``seed``, run on the chip and are compared with the interpreter bit for bit. If all are
    equal, the interpreter computes the part; if not, only what the chip itself computes counts: those samples, and as
    many more as ``chip_s`` seconds allow.
    """

    def evaluate(
        agent: Agent, session: str, model: Path, part: EvaluationPart, batch: int, latency_ns: float | None,
        deadline_s: float,
    ) -> Evaluated:  # fmt: skip
        order = list(range(SPOT_ROWS, part.samples))
        random.Random(seed).shuffle(order)
        order = [*range(min(SPOT_ROWS, part.samples)), *order]
        rows = sorted(order[:VERIFIED_SAMPLES])
        chip = agent.infer(session, DataRef(part.sha256, tuple(rows)), batch, deadline_s=deadline_s)
        run, unable = _interpreted(model, target)
        different = unable or _difference(run(part.path, rows), chip.outputs, rows)
        peak = chip.peak_memory_bytes
        if not different:
            notice = f"accuracy is host-verified: {len(rows)} samples on the chip equal the interpreter's to the bit"
            return Evaluated(run(part.path, list(range(part.samples))), part, "host-verified", peak, (notice,))
        more = _affordable(latency_ns, chip_s, part.samples)
        outputs = chip.outputs
        if more > len(rows):
            rows = sorted(order[:more])
            outputs = agent.infer(session, DataRef(part.sha256, tuple(rows)), batch, deadline_s=deadline_s).outputs
        notice = f"{different}; accuracy is the chip's on {len(rows)} of {part.samples} samples"
        return Evaluated(outputs, part.rows(rows), "device", peak, (notice,))

    return evaluate


Run = Callable[[Path, list[int]], Tensors]


def _interpreted(model: Path, target: str) -> tuple[Run, str]:
    """What computes rows of an evaluation part as the chip's kernels do, and why that cannot be had, if so."""
    try:
        read = read_model(model)
        interpreter = Interpreter(read, target, Semantics.DEVICE)
        axes = Axes.of(read)
    except AgentError as error:
        return lambda path, rows: {}, f"the interpreter cannot run the model ({error.message})"

    def run(path: Path, rows: list[int]) -> Tensors:
        with np.load(path, allow_pickle=False) as arrays:
            feeds = {name: axes.stored(name, arrays[name][rows]) for name in arrays.files}
        made = interpreter.run({name: interpreter.quantize(name, array) for name, array in feeds.items()})
        return {name: axes.real(name, array) for name, array in made.items()}

    return run, ""


def _difference(expected: Tensors, got: Tensors, rows: list[int]) -> str:
    """Names the output and the first sample that differ; empty where all are equal."""
    for name, array in expected.items():
        other = got.get(name)
        if other is None or other.shape != array.shape:
            return f"the chip's output {name!r} has another shape than the interpreter's"
        unequal = (array != other).reshape(len(array), -1).any(axis=1)
        if unequal.any():
            first, count = int(np.flatnonzero(unequal)[0]), int(unequal.sum())
            return (
                f"the chip and the interpreter differ in output {name!r} on {count} of {len(rows)} samples, "
                f"the first is sample {rows[first]}"
            )
    return ""


def _affordable(latency_ns: float | None, seconds: float, samples: int) -> int:
    if not latency_ns:
        return 0
    return min(samples, int(seconds * 1e9 / latency_ns))
