"""``boardtune diagnose``: text, JSON, what it puts into a run, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import helper
from planted_run import Planted, model_of, normal

from harness.cli.diagnose import command
from harness.errors import BoardtuneError, ConfigError
from harness.ledger import events
from harness.ledger.run_directory import RunDirectory
from harness.recipes.files import read_recipe
from harness.recipes.recipe import Calibration, Recipe


def run(*arguments: object) -> str:
    result = CliRunner().invoke(command, [str(a) for a in arguments])
    if result.exception:
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose trial 1 loses what is small beside what is large."""
    folder = tmp_path_factory.mktemp("planted")
    nodes = [
        helper.make_node("MatMul", ["x", "wb"], ["boxes"], "boxes"),
        helper.make_node("MatMul", ["x", "ws"], ["scores"], "scores"),
        helper.make_node("Concat", ["boxes", "scores"], ["y"], "join", axis=1),
    ]
    constants = {"wb": 200.0 * normal(1, 16, 4), "ws": 0.1 * normal(2, 16, 3)}
    model = model_of(nodes, constants, [1, 16], {"y": [1, 7]})
    recipe = Recipe(activation="uint8", granularity="per_channel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOARDTUNE_CACHE_HOME", str(folder / "cache"))
        patch.setenv("BOARDTUNE_RUNTIME_DIR", str(folder / "runtime"))
        return Planted(model, normal(3, 64, 16), normal(4, 80, 16), recipe).make(folder)


def test_json_then_apply_then_nothing_new(planted: Path) -> None:
    value: dict[str, Any] = json.loads(run(planted, "--trial", 1, "--json"))
    assert value["trial"] == 1
    lost = next(f for f in value["findings"] if f["code"] == "small_signals_lost")
    assert lost["changes"] == [{"field": "exclude_nodes", "from": [], "to": ["join"]}]
    layers = {row["node"]: row for row in value["layers"]}
    assert layers["join"]["step"] > layers["scores"]["step"]
    assert value["outputs"][0]["worst_samples"]
    assert value["proposed"] == []
    with RunDirectory.open(planted) as opened:
        assert opened.state.suggestions == ()
        events_before = opened.state.seq

    applied: dict[str, Any] = json.loads(run(planted, "--trial", 1, "--apply", "--json"))
    (proposed,) = applied["proposed"]
    assert proposed["trial"] == 2
    assert proposed["findings"] == ["small_signals_lost"]
    recipe = read_recipe(Path(proposed["file"]))
    assert recipe.exclude_nodes == ("join",)
    assert Path(proposed["file"]).parent == planted / "proposed"
    with RunDirectory.open(planted) as opened:
        (suggestion,) = opened.state.suggestions
        assert suggestion.number == 2
        assert suggestion.recipe_digest == recipe.digest
        assert "diagnosis of trial 1" in suggestion.reason
        assert opened.state.seq == events_before + 1

    again = run(planted, "--trial", 1, "--apply")
    assert "known already as trial 0002" in again
    with RunDirectory.open(planted) as opened:
        assert len(opened.state.suggestions) == 1


def test_text(planted: Path) -> None:
    text = run(planted, "--trial", 1)
    assert "small_signals_lost" in text
    assert 'recipe: exclude_nodes: [] -> ["join"]' in text
    assert "proposed" not in text


def test_files_that_were_moved_are_given_anew(planted: Path, tmp_path: Path) -> None:
    folder = planted.parent
    moved = tmp_path / "elsewhere.npz"
    moved.write_bytes((folder / "eval.npz").read_bytes())
    assert "small_signals_lost" in run(planted, "--trial", 1, "--eval", moved)
    np.savez(moved, x=normal(5, 80, 16))
    with pytest.raises(ConfigError, match="changed since: --eval"):
        run(planted, "--trial", 1, "--eval", moved)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{run}", "--trial", 7], "no trial 7"),
        (["{run}", "--trial", 0], "is the float model"),
        (["{run}", "--trial", 1, "--board", "moon"], "no board 'moon'"),
        (["nowhere", "--trial", 1], "no run here"),
        (["{run}", "--trial", 1, "--model", "gone.onnx"], "no such model file"),
        (["{run}", "--trial", 1, "--calib", "gone.npz"], "no such file"),
    ],
)
def test_bad_input(planted: Path, arguments: list[object], told: str) -> None:
    with pytest.raises(BoardtuneError) as raised:
        run(*(str(a).replace("{run}", str(planted)) for a in arguments))
    assert told in str(raised.value)
    assert raised.value.exit_code == 2


def test_an_altered_artifact_is_refused(planted: Path) -> None:
    path = planted / "0001" / "model.onnx"
    content = path.read_bytes()
    path.write_bytes(content + b"\0")
    try:
        with pytest.raises(ConfigError, match="missing or was changed"):
            run(planted, "--trial", 1)
    finally:
        path.write_bytes(content)


def test_a_run_in_use_takes_no_proposals(planted: Path) -> None:
    with RunDirectory.open_for_suggestions(planted), pytest.raises(ConfigError, match="in use"):
        run(planted, "--trial", 1, "--apply")


def test_a_model_quantized_elsewhere(planted: Path, tmp_path: Path) -> None:
    """It is a trial like any other; what it lacks is said, though no recipe can change it."""
    folder = tmp_path / "run"
    shutil.copytree(planted, folder)
    recipe = Recipe(scheme="imported", source="5" * 64)
    with RunDirectory.open_for_suggestions(folder) as opened:
        number = max(opened.state.next_trial, *(s.number + 1 for s in opened.state.suggestions), 2)
        first = opened.state.trials[1]
        assert first.artifact is not None
        opened.write_recipe(number, recipe.to_dict())
        opened.record(events.proposed(number, recipe.to_dict(), recipe.label, {}, recipe.digest))
        draft = opened.draft_path(number)
        draft.write_bytes(opened.model_path(1).read_bytes())
        opened.commit_model(number, draft)
        opened.record(events.quantized(number, first.artifact), events.gated(number))
    value = json.loads(run(folder, "--trial", number, "--apply", "--json"))
    lost = next(f for f in value["findings"] if f["code"] == "small_signals_lost")
    assert lost["changes"] == []
    assert value["proposed"] == []


def test_a_trial_that_another_made_before(planted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(planted, folder)
    recipe = Recipe(activation="uint8", granularity="per_channel", calibration=Calibration("minmax", samples=64))
    with RunDirectory.open_for_suggestions(folder) as opened:
        number = max(opened.state.next_trial, *(s.number + 1 for s in opened.state.suggestions), 2)
        opened.write_recipe(number, recipe.to_dict())
        opened.record(events.proposed(number, recipe.to_dict(), recipe.label, {}, recipe.digest))
        opened.record(events.duplicate(number, 1))
    assert "small_signals_lost" in run(folder, "--trial", number)
