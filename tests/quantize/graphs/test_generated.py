"""Random graphs through preparation and the killable worker: quantized and close, or refused with a cause."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from strategy import Generated, SeededChooser, generate, small_graphs

from harness.errors import ModelError
from harness.quantize.contract import Artifact, Cause, QuantizeJob, QuantizeLimits
from harness.quantize.prepare import prepare_model
from harness.quantize.worker import QuantizeWorker
from harness.recipes.recipe import Recipe

_BASE = Recipe(activation="uint8", granularity="per_channel")
RECIPES = (_BASE, _BASE.with_changes(format="QOperator"))
EXPECTED = {Cause.LOW_SNR, Cause.NOTHING_QUANTIZED, Cause.NON_FINITE, Cause.UNSUPPORTED, Cause.BAD_CALIBRATION}
"""Causes that are about the graph; the others would say that something went wrong."""
FLOOR_DB = 15.0


@pytest.fixture(scope="module")
def worker() -> Iterator[QuantizeWorker]:
    with QuantizeWorker() as started:
        yield started


def run(model: bytes | str, graph: Generated) -> list[list[np.ndarray]]:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    count = len(next(iter(graph.data.values())))
    return [session.run(None, {n: np.asarray(a[row]) for n, a in graph.data.items()}) for row in range(count)]


@settings(max_examples=8, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(small_graphs())
def test_quantized_and_close_or_refused(worker: QuantizeWorker, graph: Generated) -> None:
    content = graph.model.SerializeToString()
    try:
        reference = run(content, graph)
    except Exception:
        return  # Not a model to begin with.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "m.onnx").write_bytes(content)
        np.savez(folder / "c.npz", **graph.data)
        try:
            prepare_model(folder / "m.onnx", folder / "p.onnx")
        except ModelError as error:
            pytest.fail(f"a model that runs in float is not prepared: {error}")
        for recipe in RECIPES:
            limits = QuantizeLimits(timeout_s=120.0, min_snr_db=FLOOR_DB)
            result = worker.quantize(
                QuantizeJob(folder / "p.onnx", folder / "c.npz", recipe, folder / "q.onnx", limits)
            )
            if not isinstance(result, Artifact):
                assert result.cause in EXPECTED, f"{recipe.label}: {result}"
                continue
            made = run(str(folder / "q.onnx"), graph)
            for index in range(len(reference[0])):
                want = np.concatenate([s[index].ravel() for s in reference]).astype(np.float64)
                got = np.concatenate([s[index].ravel() for s in made]).astype(np.float64)
                noise = float(np.sum(np.square(want - got)))
                # A decibel for the prepared model, which rounds otherwise than the given one.
                assert noise == 0.0 or 10 * np.log10(np.sum(np.square(want)) / noise) >= FLOOR_DB - 1.0, recipe.label


def test_seeds_give_the_same_graphs() -> None:
    one, other = (generate(SeededChooser(5)) for _ in range(2))
    assert one.model.SerializeToString() == other.model.SerializeToString()
    assert all(np.array_equal(one.data[name], other.data[name]) for name in one.data)
    assert one.model.SerializeToString() != generate(SeededChooser(6)).model.SerializeToString()


def test_most_seeds_are_models_that_run() -> None:
    """A generator of nonsense would prove nothing."""
    ran = 0
    for seed in range(60):
        graph = generate(SeededChooser(seed))
        try:
            run(graph.model.SerializeToString(), graph)
        except Exception:
            continue
        ran += 1
    assert ran >= 57
