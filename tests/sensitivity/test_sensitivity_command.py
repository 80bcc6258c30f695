"""``boardtune sensitivity`` and the recipes it writes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from sensitivity_models import residual_net, save, save_samples

from harness.cli.sensitivity import command
from harness.errors import ConfigError, DataError, ModelError
from harness.quantize.contract import Artifact, Cause, ModelRefused, QuantizeLimits, Refusal
from harness.quantize.once import quantize_once
from harness.quantize.worker import QuantizeWorker
from harness.recipes.files import read_recipe


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(command, [str(a) for a in arguments], standalone_mode=False)
    if result.exception:
        raise result.exception
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model = residual_net()
    save(model, path / "m.onnx")
    save_samples(path / "c.npz", model, seed=1)
    data = dict(np.load(save_samples(path / "e.npz", model, n=40, seed=2)))
    np.savez(path / "labelled.npz", **data, labels=np.arange(40) % 5)
    (path / "per_tensor.yaml").write_text("scheme: static\n")
    return path


def found(folder: Path, *more: object) -> dict[str, Any]:
    result = run(folder / "m.onnx", "--calib", folder / "c.npz", *more, "--json")
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def test_the_layer_that_is_made_to_be_lost_is_found(folder: Path) -> None:
    value = found(folder, "--eval", folder / "e.npz", "--recipe", folder / "per_tensor.yaml")
    worst = value["groups"][0]
    assert "depthwise" in worst["nodes"]
    ratios = [group["alone"]["snr_db"] for group in value["groups"]]
    assert ratios == sorted(ratios)
    gains = {group["name"]: group["snr_gain_db"] for group in value["groups"]}
    assert max(gains, key=gains.__getitem__) == worst["name"]
    assert value["samples"] == 40
    first = next(c for c in value["candidates"] if c["name"] == "float-1")
    # Leaving out one group is what the table says of it.
    assert first["snr_db"] == pytest.approx(worst["without"]["snr_db"])
    assert first["recipe"]["exclude_nodes"] == sorted(worst["nodes"])


def test_losses_are_of_the_users_metric(folder: Path) -> None:
    value = found(folder, "--eval", folder / "labelled.npz", "--samples", "25")
    assert value["samples"] == 25
    assert list(value["higher_is_better"]) == ["top1"]
    for group in value["groups"]:
        assert group["loss"]["top1"] == pytest.approx(
            value["float32"]["metrics"]["top1"] - group["alone"]["metrics"]["top1"]
        )
        assert group["gain"]["top1"] == pytest.approx(
            group["without"]["metrics"]["top1"] - value["quantized"]["metrics"]["top1"]
        )
        assert group["alone"]["metrics"]["top1"] * 25 == pytest.approx(round(group["alone"]["metrics"]["top1"] * 25))


def test_written_files_are_a_plot_and_recipes_that_quantize(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("--model", folder / "m.onnx", "--calib", folder / "c.npz", "--recipe", folder / "per_tensor.yaml",
                 "--out", out)  # fmt: skip
    assert "depthwise" in result.stdout
    assert "no evaluation set" in result.stderr
    assert ET.parse(out / "sensitivity.svg").getroot().tag.endswith("svg")
    with Image.open(out / "sensitivity.png") as image:
        assert image.size[0] > 1000
    value = json.loads((out / "sensitivity.json").read_text())
    name = next(name for name in value["best"] if name.startswith("float"))
    recipe = out / f"{name}.recipe.json"
    assert read_recipe(recipe).exclude_nodes
    made = quantize_once(
        folder / "m.onnx", str(folder / "c.npz"), str(recipe), tmp_path / "made", set_dims={}, preprocess=None,
        limits=QuantizeLimits(),
    )  # fmt: skip
    assert isinstance(made.result, Artifact)
    predicted = next(c["snr_db"] for c in value["candidates"] if c["name"] == name)
    # Acceptance uses the same samples here, all of the calibration set.
    assert made.result.snr_db == pytest.approx(predicted, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ([], ConfigError, "one model"),
        (["{m}", "--model", "{m}"], ConfigError, "one model"),
        (["nowhere.onnx"], ModelError, "no such model"),
        (["{m}", "--recipe", "preset:quick#0"], ConfigError, "static"),
        (["{m}", "--metric", "top1"], DataError, "labels"),
    ],
)
def test_what_does_not_fit_is_told(folder: Path, arguments: list[str], kind: type[Exception], message: str) -> None:
    filled = [a.format(m=folder / "m.onnx") for a in arguments]
    with pytest.raises(kind, match=message):
        run(*filled, "--calib", folder / "c.npz")


def test_a_recipe_that_quantizes_nothing_or_names_strangers_is_told(folder: Path, tmp_path: Path) -> None:
    for field, message in (("exclude_op_types: [Sinh]", "Sinh"), ("exclude_nodes: [stm]", "stem")):
        (tmp_path / "r.yaml").write_text(f"scheme: static\n{field}\n")
        with pytest.raises(ConfigError, match=message):
            run(folder / "m.onnx", "--calib", folder / "c.npz", "--recipe", tmp_path / "r.yaml")
    (tmp_path / "r.yaml").write_text("scheme: static\nop_types: [Flatten]\n")
    with pytest.raises(ConfigError, match="quantize"):
        run(folder / "m.onnx", "--calib", folder / "c.npz", "--recipe", tmp_path / "r.yaml")


def test_a_quantizer_that_crashes_is_a_refusal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = Refusal(Cause.CRASHED, "the quantizer died (SIGSEGV) while calibrating")
    monkeypatch.setattr(QuantizeWorker, "quantize", lambda self, job: crash)
    with pytest.raises(ModelRefused, match="SIGSEGV") as caught:
        run(folder / "m.onnx", "--calib", folder / "c.npz")
    assert caught.value.cause is Cause.CRASHED
