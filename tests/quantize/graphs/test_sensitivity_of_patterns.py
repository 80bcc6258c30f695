"""Sensitivity on graphs that are hard to cut: what is run in part gives what the whole gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from patterns import PATTERNS, Pattern

from harness.quantize.cache import Cache
from harness.quantize.calibrate import Subject
from harness.quantize.calibration_data import CalibrationSet
from harness.quantize.ort_backend import OrtBackend
from harness.quantize.prepare import prepare_model
from harness.quantize.sessions import open_session
from harness.recipes.recipe import Recipe
from harness.sensitivity.activations import Samples
from harness.sensitivity.analysis import Analysis

RECIPE = Recipe(granularity="per_channel", activation="uint8")
SHARED = [pattern for pattern in PATTERNS if "shared" in pattern.name or "tied" in pattern.name]
CUT = [pattern for pattern in PATTERNS if any(w in pattern.name for w in ("capture", "output", "mask", "two_inputs"))]
SAMPLES = 2


@pytest.mark.parametrize("pattern", [*SHARED[:6], *CUT[:6]], ids=lambda pattern: pattern.name)
def test_in_part_as_in_whole(pattern: Pattern, tmp_path: Path) -> None:
    model = pattern.build()
    data = pattern.data(model)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    np.savez(tmp_path / "c.npz", **data)  # type: ignore[arg-type]
    prepared = prepare_model(tmp_path / "m.onnx", tmp_path / "p.onnx")
    subject = Subject.read(prepared.path, tmp_path / "c.npz", Cache(None))
    samples = Samples(CalibrationSet(data, prepared.inputs), SAMPLES)
    analysis = Analysis(subject, RECIPE, samples)
    every = [name for group in analysis.groups for name in group.nodes]
    for group in analysis.groups:
        others = tuple(name for name in every if name not in group.nodes)
        for ours, base, excluded in (
            (analysis.alone(group), analysis.float_outputs, others),
            (analysis.without([group]), analysis.quantized_outputs, group.nodes),
        ):
            recipe = RECIPE.with_changes(exclude_nodes=excluded)
            OrtBackend().quantize(prepared.path, tmp_path / "c.npz", recipe, tmp_path / "w.onnx")
            session = open_session(tmp_path / "w.onnx")
            names = [output.name for output in session.get_outputs()]
            rows = [session.run(names, feed) for feed in samples]
            for index, name in enumerate(names):
                got = (base if ours is None else ours)[name]
                whole = np.stack([row[index] for row in rows]).reshape(got.shape)
                close = np.isclose(got, whole, rtol=1e-4, atol=1e-4 * np.nanmax(np.abs(whole)), equal_nan=True)
                assert close.mean() > 0.98, (group.nodes, name)
