"""What is asked of a search on boards that run ``.espdl`` models, before one is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.boards.chips import chip_of
from harness.boards.registry import load_registry
from harness.cli.main import run as boardtune
from harness.controller.setup import check_for_chips, chips_of, need_backends
from harness.errors import ConfigError
from harness.plan import Plan, load_plan
from harness.quantize.vendors import environments
from harness.quantize.vendors.environments import is_installed
from harness.recipes.esp_presets import esp_recipe

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fashion_mnist"


def boards(*names: str) -> dict[str, Any]:
    registry = load_registry()
    return {name: registry.get(name) for name in names}


def test_chips_of_boards() -> None:
    found = boards("esp32s3-emulated", "esp32p4-emulated", "local")
    assert {name: chip_of(board) for name, board in found.items()} == {
        "esp32s3-emulated": "esp32s3",
        "esp32p4-emulated": "esp32p4",
        "local": None,
    }
    assert chips_of(boards("esp32p4-emulated", "esp32s3-emulated")) == ("esp32p4", "esp32s3")
    assert chips_of(boards("local", "rpi5-emulated")) == ()


def test_boards_without_a_recipe_in_common() -> None:
    with pytest.raises(ConfigError, match=r"esp32s3-emulated run \.espdl models and local ONNX"):
        chips_of(boards("esp32s3-emulated", "local"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"batch": 2}, "--batch 2"),
        ({"mixed_precision": "both"}, "--mixed-precision both"),
        ({"candidates": [Path("qat.onnx")]}, "--add-candidate"),
        ({"scope": "pipeline", "preprocess": Path("p.yaml")}, "--scope pipeline"),
    ],
)
def test_what_chips_cannot_do(changes: dict[str, Any], named: str) -> None:
    plan = Plan(model=Path("m.onnx"), calib="c.npz", boards=["esp32s3-emulated"], **changes)
    with pytest.raises(ConfigError, match=f"{named} is not there for boards that run .espdl models"):
        check_for_chips(plan)


def test_a_quantizer_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BOARDTUNE_BACKEND_ESP_PPQ", raising=False)
    monkeypatch.setenv("BOARDTUNE_DATA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="is not installed\n  boardtune backends install esp_ppq"):
        need_backends([esp_recipe(target="esp32s3")])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not is_installed("esp_ppq"), reason="ESP-PPQ is not installed: boardtune backends install esp_ppq")
def test_a_search_on_two_emulated_chips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preprocess = tmp_path / "preprocess.yaml"
    preprocess.write_text("scale: 1/255\nlayout: NCHW\n")
    run = tmp_path / "run"
    command = [
        "search", "--model", str(EXAMPLE / "model.onnx"), "--calib", str(EXAMPLE / "calib.npz"),
        "--eval", str(EXAMPLE / "eval.npz"), "--preprocess", str(preprocess), "--effort", "quick",
        "--boards", "esp32s3-emulated,esp32p4-emulated", "--trials", "5", "--run-dir", str(run), "--json",
    ]  # fmt: skip
    assert boardtune(command) == 0, capsys.readouterr()
    picks = json.loads((run / "candidates.json").read_text())
    measured = {
        (candidate["trial"], name): result
        for candidate in picks["candidates"]
        for name, result in candidate["boards"].items()
        if result is not None
    }
    targets = {
        candidate["trial"]: candidate["recipe"]["options"]["target"]
        for candidate in picks["candidates"]
        if candidate["recipe"]["scheme"] == "vendor"
    }
    assert measured
    for (trial, name), result in measured.items():
        assert name == f"{targets[trial]}-emulated", "measured on a chip it was not made for"
        assert result["emulated"]
        assert result["verdict"] == "valid", result["reasons"]
        assert result["accuracy_from"] == "host-verified"
        assert (run / f"{trial:04d}" / "model.espdl").is_file()
        assert (run / f"{trial:04d}" / "settings.json").is_file()
    assert {name for _, name in measured} == {"esp32s3-emulated", "esp32p4-emulated"}
    trial, _ = min(measured)
    assert boardtune(["reproduce", str(run), "--trial", str(trial)]) == 0, "the same bytes"
    board = next(name for name in ("esp32s3-emulated", "esp32p4-emulated") if picks["picks"][name])
    assert boardtune(["export", str(run), "--board", board, "--out", str(tmp_path / "shipped")]) == 0
    (shipped,) = (tmp_path / "shipped").glob("*.espdl")
    assert shipped.name.startswith(f"model_quant_{board.removesuffix('-emulated')}-w")


def test_the_second_demos_plan_fits_its_boards() -> None:
    plan = load_plan(EXAMPLE / "plan-esp32.yaml", {})
    assert chips_of(boards(*plan.boards)) == ("esp32s3", "esp32p4")
    check_for_chips(plan)


def test_the_demo_installs_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Up to where the package would be fetched."""
    monkeypatch.delenv("BOARDTUNE_BACKEND_ESP_PPQ", raising=False)
    monkeypatch.setenv("BOARDTUNE_DATA_HOME", str(tmp_path))
    asked: list[str] = []

    def install(name: str, **_: Any) -> None:
        asked.append(name)
        raise ConfigError("no network here")

    monkeypatch.setattr(environments, "install", install)
    assert boardtune(["demo", "esp32", "--run-dir", str(tmp_path / "run")]) == 2
    assert asked == ["esp_ppq"]
    assert not (tmp_path / "run").exists()
