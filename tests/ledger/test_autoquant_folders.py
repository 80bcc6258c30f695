"""ESP-PPQ AutoQuant's run folders, read and written."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import Case, finished_run

from harness.cli.main import run as boardtune
from harness.errors import ConfigError
from harness.ledger.autoquant import read_autoquant, write_autoquant
from harness.quantize.vendors.environments import find_environment
from harness.recipes.esp_presets import esp_recipe
from harness.recipes.recipe import FLOAT32

STRATEGY = {
    "num_of_bits": True,
    "calib_algorithm": True,
    "weight_equalization": False,
    "horizontal_layer_split": False,
    "bias_correction": True,
    "mixed_precision": False,
    "tqt": False,
    "fusion_alignment": True,
    "blockwise_reconstruction": False,
}
"""As esp-ppq 1.3.12 writes it."""


def record(index: int, score: Any, method: str = "kl", **more: Any) -> dict[str, Any]:
    return {
        "hash": f"h{index}",
        "index": index,
        "folder": f"outputs/{index:04d}",
        "files": ["quant_setting.json", "model.espdl"],
        "strategy": STRATEGY,
        "params": {
            "num_of_bits": {"value": 8},
            "calib_algorithm": {"method": method},
            "weight_equalization": None,
            "horizontal_layer_split": None,
            "bias_correction": {"block_size": 2, "steps": 32, "topk": 3},
            "mixed_precision": None,
            "tqt": None,
            "fusion_alignment": {
                "elementwise_to": "Align to Large",
                "concat_to": "Align to Output",
                "avgpooling_to": "Align to Input",
                "resize_to": "Align to Output",
                "force_overlap": False,
            },
            "blockwise_reconstruction": None,
        },
        "score": score,
        **more,
    }


def autoquant(folder: Path, *records: Any, runtime: Mapping[str, Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(records))
    told = {"target": "esp32p4", "score_direction": "maximize"} if runtime is None else runtime
    for one in records:
        if isinstance(one, dict) and "index" in one:
            (folder / f"{one['index']:04d}").mkdir()
            (folder / f"{one['index']:04d}" / "config.json").write_text(json.dumps({"runtime": told}))
    return folder


def test_experiments_become_recipes_best_first(tmp_path: Path) -> None:
    run = read_autoquant(autoquant(tmp_path / "run", record(0, 0.7), record(1, 0.9, "mse", top5=0.99)))
    assert [e.index for e in run.experiments] == [1, 0]
    assert run.experiments[0].extras == {"top5": 0.99}
    assert run.experiments[0].recipe == esp_recipe(
        target="esp32p4",
        calib_algorithm="mse",
        bias_correction=True,
        bias_correction__block_size=2,
        bias_correction__topk=3,
        fusion_alignment__elementwise_to="Align to Large",
        fusion_alignment__avgpooling_to="Align to Input",
    )


def test_errors_are_ranked_the_other_way_round(tmp_path: Path) -> None:
    runtime = {"target": "esp32s3", "score_direction": "minimize"}
    run = read_autoquant(autoquant(tmp_path / "run", record(0, 0.7), record(1, 0.9, "mse"), runtime=runtime))
    assert [e.index for e in run.experiments] == [0, 1]


def test_what_no_recipe_holds_is_told_and_left_out(tmp_path: Path) -> None:
    odd = record(1, 0.9)
    odd["params"]["num_of_bits"]["value"] = 4
    unknown = record(2, 0.9)
    unknown["params"]["tqt"] = {"speed": 1}
    unknown["strategy"] = {**STRATEGY, "tqt": True}
    run = read_autoquant(autoquant(tmp_path / "run", record(0, 0.7), odd, unknown, record(3, None)))
    assert [e.index for e in run.experiments] == [0]
    assert len(run.notices) == 3
    assert "num_of_bits is 4" in run.notices[0]
    assert "unknown option 'tqt.speed'" in run.notices[1]
    assert "its score is None" in run.notices[2]


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"summary\.json: there is no such file\n  give the run_dir"):
        read_autoquant(tmp_path)
    with pytest.raises(ConfigError, match="does not say the target\n  give it with --target"):
        read_autoquant(autoquant(tmp_path / "a", record(0, 1.0), runtime={}))
    assert read_autoquant(tmp_path / "a", "esp32").experiments[0].recipe.label.endswith("target esp32")
    with pytest.raises(ConfigError, match="no experiment is recorded"):
        read_autoquant(autoquant(tmp_path / "b"))
    (tmp_path / "b" / "summary.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot read it"):
        read_autoquant(tmp_path / "b")


def test_the_command_writes_recipe_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = autoquant(tmp_path / "run", record(0, 0.7), record(1, 0.9, "mse"))
    assert boardtune(["import", str(folder), "--out", str(tmp_path / "recipes"), "--best", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["found"] == 2
    assert [row["experiment"] for row in printed["recipes"]] == [1]
    kept = json.loads((tmp_path / "recipes" / "autoquant-001.json").read_text())
    assert kept["options"]["calib_algorithm"] == "mse"


# ---- written ---------------------------------------------------------------------------------------------------------

CASES = (
    Case(FLOAT32),
    Case(esp_recipe(calib_algorithm="mse", tqt=True), 0.5, top1_loss=0.02),
    Case(esp_recipe(mixed_precision=True, bias_correction=True), 0.7, top1_loss=0.001),
    Case(esp_recipe(quant_type="w8a16"), 0.9),
    Case(esp_recipe(mixed_precision=True, mixed_precision__layers=["conv"]), 0.9),
    Case(esp_recipe(quant_type="w16a16"), 0.9, ends="failed", cause="crashed", message="x"),
)


def written(tmp_path: Path) -> tuple[Path, int, list[str]]:
    out = tmp_path / "autoquant"
    with finished_run(tmp_path / "run", cases=CASES, boards={"s3": (True, 1e6)}) as run:
        count, notices = write_autoquant(run, out)
    return out, count, notices


def test_our_trials_as_an_autoquant_folder(tmp_path: Path) -> None:
    out, count, notices = written(tmp_path)
    assert count == 2
    assert ["w8a16" in notices[0], "16 bit" in notices[1]] == [True, True]
    best = json.loads((out / "candidates.json").read_text())
    assert [r["index"] for r in best] == [2, 1]
    assert best[0]["latency_ms"] == pytest.approx(0.7, rel=0.1)
    assert (out / "0002" / "model.espdl").is_file()
    back = read_autoquant(out)
    assert {e.recipe for e in back.experiments} == {CASES[1].recipe, CASES[2].recipe}


def test_a_folder_that_holds_something(tmp_path: Path) -> None:
    with finished_run(tmp_path / "run", cases=CASES, boards={"s3": (True, 1e6)}) as run:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "x").touch()
        with pytest.raises(ConfigError, match="the folder is not empty"):
            write_autoquant(run, tmp_path / "full")


def test_a_run_without_such_trials(tmp_path: Path) -> None:
    with finished_run(tmp_path / "run") as run, pytest.raises(ConfigError, match="no measured trial of ESP-PPQ's"):
        write_autoquant(run, tmp_path / "out")


READS = """
import json, sys
from esp_ppq.api import load_best_setting
from esp_ppq.autoquant.interface import _strategy_hash
folder = sys.argv[1]
setting = load_best_setting(folder + "/candidates.json")
hashes = []
for record in json.load(open(folder + "/summary.json")):
    strategy = {name: {"value": on} for name, on in record["strategy"].items()}
    hashes.append(_strategy_hash(strategy, record["params"]) == record["hash"])
print(json.dumps({"strategy": setting.strategy_space, "params": setting.param_space, "hashes": hashes}))
"""


def _python() -> Path | None:
    try:
        return find_environment("esp_ppq").python
    except ConfigError:
        return None


@pytest.mark.slow
@pytest.mark.skipif(_python() is None, reason="ESP-PPQ is not installed: boardtune backends install esp_ppq")
def test_autoquant_itself_reads_it(tmp_path: Path) -> None:
    out, _, _ = written(tmp_path)
    ran = subprocess.run([str(_python()), "-c", READS, str(out)], capture_output=True, text=True, check=True)
    told = json.loads(ran.stdout.strip().splitlines()[-1])
    assert told["hashes"] == [True, True]
    assert told["strategy"]["mixed_precision"] == [True]
    assert told["params"]["bias_correction"] == {"block_size": [4], "steps": [32], "topk": [-1]}
