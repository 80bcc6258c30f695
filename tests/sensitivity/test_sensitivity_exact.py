"""Every figure of the analysis is that of a whole model made by the quantizer, run from its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sensitivity_models import N, residual_net, save, save_samples, two_outputs_net

from harness.quantize.cache import Cache
from harness.quantize.calibrate import Subject
from harness.quantize.calibration_data import CalibrationSet
from harness.quantize.ort_backend import OrtBackend
from harness.quantize.prepare import prepare_model
from harness.quantize.sessions import open_session
from harness.recipes.mixed import can_mix, mixed
from harness.recipes.recipe import Calibration, Recipe
from harness.sensitivity.activations import Samples
from harness.sensitivity.analysis import Analysis

PER_CHANNEL = Recipe(activation="uint8", weight="int8", granularity="per_channel")
RECIPES = {
    "per-channel": PER_CHANNEL,
    "per-tensor": Recipe(activation="int8", weight="int8", calibration=Calibration("percentile", 99.9)),
    "symmetric": PER_CHANNEL.with_changes(activation="int8", activation_symmetric=True),
    "operators": PER_CHANNEL.with_changes(format="QOperator"),
    "power of two": Recipe(activation_symmetric=True, weight_symmetric=True, scale="power_of_two"),
    "aligned": PER_CHANNEL.with_changes(align_scales=("Concat", "Add")),
    "equalized": PER_CHANNEL.with_changes(equalize=True, weight_clip="mse"),
    "16 bit": PER_CHANNEL.with_changes(activation="uint16"),
}
MODELS = {"residual": residual_net, "two outputs": two_outputs_net}
Outputs = Mapping[str, npt.NDArray[Any]]


class Setting:
    """A prepared model with calibration and evaluation samples."""

    def __init__(self, folder: Path, model: str, recipe: Recipe, cached_bytes: int = 1 << 30) -> None:
        proto = MODELS[model]()
        prepared = prepare_model(save(proto, folder / "source.onnx"), folder / "float.onnx")
        self.folder, self.path, self.recipe = folder, prepared.path, recipe
        self.calibration = save_samples(folder / "calibration.npz", proto, seed=1)
        self.data = dict(np.load(save_samples(folder / "evaluation.npz", proto, seed=2)))
        subject = Subject.read(self.path, self.calibration, Cache(None))
        self.samples = Samples(CalibrationSet(self.data, prepared.inputs), None)
        self.analysis = Analysis(subject, recipe, self.samples, cached_bytes=cached_bytes)

    def whole(self, **changes: Any) -> Outputs:
        """Outputs of the recipe's model, made by the backend, over the samples in the analysis's order."""
        made = self.folder / "whole.onnx"
        recipe = self.recipe.with_changes(**changes) if changes else self.recipe
        OrtBackend().quantize(self.path, self.calibration, recipe, made)
        return self.run(made)

    def run(self, model: Path) -> Outputs:
        session = open_session(model)
        names = [output.name for output in session.get_outputs()]
        rows = [session.run(names, {k: v[row : row + 1] for k, v in self.data.items()}) for row in self.samples.rows]
        return {name: np.concatenate([row[index] for row in rows]) for index, name in enumerate(names)}


def assert_same(ours: Outputs | None, whole: Outputs, unchanged: Outputs) -> None:
    """Integers are computed alike; floats differ where ONNX Runtime fuses across the place we cut: a few roundings of
    24 bits, of which a step of quantization may make one more step in a value or two."""
    for name, expected in whole.items():
        got = unchanged[name] if ours is None else ours[name]
        assert got.shape == expected.shape
        close = np.isclose(got, expected, rtol=1e-4, atol=1e-5 * float(np.abs(expected).max()))
        assert close.mean() > 0.99, (name, float(np.abs(got - expected).max()))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", MODELS)
def test_each_group_both_ways_is_as_the_whole_model(tmp_path: Path, model: str, recipe: str) -> None:
    setting = Setting(tmp_path, model, RECIPES[recipe])
    analysis = setting.analysis
    every = [name for group in analysis.groups for name in group.nodes]
    assert len(set(every)) == len(every)
    assert_same(analysis.float_outputs, setting.run(setting.path), {})
    assert_same(analysis.quantized_outputs, setting.whole(), {})
    for group in analysis.groups:
        others = tuple(name for name in every if name not in group.nodes)
        assert_same(analysis.alone(group), setting.whole(exclude_nodes=others), analysis.float_outputs)
        assert_same(analysis.without([group]), setting.whole(exclude_nodes=group.nodes), analysis.quantized_outputs)


@pytest.mark.parametrize("cached", [0, 3000, 20_000])
def test_a_cap_on_memory_changes_no_result(tmp_path: Path, cached: int) -> None:
    small = Setting(tmp_path, "residual", PER_CHANNEL, cached_bytes=cached).analysis
    (tmp_path / "b").mkdir()
    large = Setting(tmp_path / "b", "residual", PER_CHANNEL).analysis
    for group in small.groups:
        for ours, theirs in (
            (small.alone(group), large.alone(group)),
            (small.without([group]), large.without([group])),
        ):
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                np.testing.assert_allclose(ours["y"], theirs["y"], rtol=1e-5, atol=1e-5)
        assert small._float.kept_bytes + small._quantized.kept_bytes <= cached
    assert large._float.kept_bytes > 20_000


@pytest.mark.parametrize("kind", ["float", "a16"])
def test_mixtures_are_as_the_whole_model(tmp_path: Path, kind: Any) -> None:
    setting = Setting(tmp_path, "residual", RECIPES["per-tensor"])
    recipe = mixed(setting.recipe, setting.analysis.groups[1:3], kind)
    expected = setting.whole(exclude_nodes=recipe.exclude_nodes, overrides=recipe.overrides)
    assert_same(setting.analysis.by(recipe), expected, {})
    assert float(np.abs(expected["y"] - setting.analysis.quantized_outputs["y"]).max()) > 0


def test_what_does_not_reach_an_output_is_not_run(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "two outputs", PER_CHANNEL)
    third = next(group for group in setting.analysis.groups if "third" in group.nodes)
    alone = setting.analysis.alone(third)
    assert alone is not None
    np.testing.assert_array_equal(alone["y2"].shape, (N, 7, 6))
    assert np.abs(alone["y2"] - setting.analysis.float_outputs["y2"]).max() > 0


def test_kinds_that_a_recipe_has_no_place_for() -> None:
    assert not can_mix(RECIPES["operators"], "a16")
    assert not can_mix(RECIPES["16 bit"], "a16")
    with pytest.raises(ValueError, match="a16"):
        mixed(RECIPES["operators"], (), "a16")
