"""Mistakes in the input are told before a board is touched, with exit code 2, the place and the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from harness.errors import ExitCode
from tests.controller import made_up

Boardtune = Callable[..., tuple[int, str, str]]
SEARCH = ("--calib", "calib.npz", "--eval", "eval.npz", "--boards", "alpha", "--run-dir", "run")


def model(
    inputs: list[Any], nodes: list[Any], *, opset: int = 17, initializers: dict[str, Any] | None = None
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in (initializers or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def value(shape: list[Any], name: str = "x") -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def truncated(path: Path) -> None:
    path.write_bytes(made_up.write_model(path).read_bytes()[:100])


def text(path: Path) -> None:
    path.write_text("<html>404 not found</html>\n")


def folder(path: Path) -> None:
    path.mkdir()


def missing(path: Path) -> None:
    """Nothing is written."""


def too_new(path: Path) -> None:
    made = model([value([1, 6])], [helper.make_node("Relu", ["x"], ["y"])])
    made.opset_import[0].version = 999
    path.write_bytes(made.SerializeToString())


def no_inputs(path: Path) -> None:
    constant = {"c": np.ones((1, 6), np.float32)}
    onnx.save(model([], [helper.make_node("Relu", ["c"], ["y"])], initializers=constant), str(path))


def external_data_missing(path: Path) -> None:
    weights = {"w": np.ones((6, 400), np.float32)}
    made = model([value([1, 6])], [helper.make_node("MatMul", ["x", "w"], ["y"])], initializers=weights)
    onnx.save(made, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    (path.parent / "weights.bin").unlink()


def dynamic_inner_axis(path: Path) -> None:
    onnx.save(model([value(["batch", "length"])], [helper.make_node("Relu", ["x"], ["y"])]), str(path))


def already_quantized(path: Path) -> None:
    scale = {"s": np.float32(0.1), "z": np.int8(0)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    onnx.save(model([value([1, 6])], nodes, initializers=scale), str(path))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (missing, "no such model file"),
        (empty, "empty"),
        (truncated, ""),
        (text, "not an ONNX model"),
        (folder, "folder"),
        (too_new, "999"),
        (no_inputs, "no inputs"),
        (external_data_missing, "weights.bin"),
        (dynamic_inner_axis, "--set-dim length="),
        (already_quantized, "quantized"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_models(boardtune: Boardtune, tmp_path: Path, damage: Callable[[Path], None], told: str, dry: bool) -> None:
    path = tmp_path / "bad.onnx"
    damage(path)
    code, out, err = boardtune("search", "--model", path, *SEARCH, *(["--dry-run"] if dry else []))
    assert code == ExitCode.USAGE, err
    assert err.removeprefix("preparing …\n").startswith("error: ")
    assert "bad.onnx" in err
    assert told.lower() in err.lower()
    assert out == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("damage", [missing, empty, truncated, text, folder, no_inputs, external_data_missing])
def test_models_to_measure(boardtune: Boardtune, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "bad.onnx"
    damage(path)
    code, out, err = boardtune("measure", path, "--boards", "alpha")
    assert code == ExitCode.USAGE, err
    assert "bad.onnx" in err
    assert out == ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--budget", "0s"], "budget"),
        (["--budget", "10"], "is not a duration"),
        (["--trials", "2", "--top-k", "3"], "3 candidates cannot be picked from 2 trials"),
        (["--top-k", "500"], "more than the"),
        (["--trials", "0"], "trials"),
        (["--max-latency", "0ms"], "max_latency"),
        (["--min-accuracy", "much"], "much"),
        (["--min-accuracy", "1.5"], "1.5"),
        (["--min-offload", "2"], "min_offload"),
        (["--metric", "top9"], "top9"),
        (["--metric", "top5"], "top5"),
        (["--preset", "quik"], "quick"),
        (["--filter", "paretto"], "pareto"),
        (["--sampler", "tpee"], "tpe"),
        (["--boards", "alfa"], "alpha"),
        (["--boards", ""], "board"),
        (["--calib", "none.npz"], "none.npz"),
        (["--eval", "model.onnx"], "model.onnx"),
        (["--scope", "pipeline"], "preprocess"),
        (["--set-dim", "batch"], "give the dimension's name"),
        (["--set-dim", "wide=3"], "wide"),
        (["--recipe", "none.json"], "none.json"),
        (["--preprocess", "none.yaml"], "none.yaml"),
    ],
)
def test_plans(boardtune: Boardtune, options: list[str], told: str) -> None:
    code, out, err = boardtune("search", "--model", "model.onnx", *SEARCH, *options)
    assert code == ExitCode.USAGE, err
    assert told in err
    assert out == ""


def test_a_metric_that_does_not_fit_the_data(boardtune: Boardtune, tmp_path: Path) -> None:
    made_up.write_data(tmp_path / "bare.npz", 60, labels=None)
    code, _, err = boardtune("search", "--model", "model.onnx", *SEARCH, "--eval", "bare.npz", "--metric", "top1")
    assert code == ExitCode.USAGE
    assert "top1" in err
    assert "labels" in err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"x": np.zeros((60, 5), np.float32)}, "5"),
        ({"x": np.zeros((60, 6), np.int64)}, "int64"),
        ({"x": np.full((60, 6), np.nan, np.float32)}, "nan"),
        ({"x": None}, "'x'"),
        ({"labels": np.full(60, 9)}, "9"),
        ({"labels": np.zeros(59, np.int64)}, "59"),
    ],
)
def test_data(boardtune: Boardtune, tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    made_up.write_data(tmp_path / "bad.npz", 60, **changes)
    code, _, err = boardtune("search", "--model", "model.onnx", *SEARCH, "--eval", "bad.npz")
    assert code == ExitCode.USAGE, err
    assert told in err.lower()


def test_without_what_is_needed(boardtune: Boardtune) -> None:
    code, _, err = boardtune("search", "--calib", "calib.npz")
    assert code == ExitCode.USAGE
    assert "--model is missing" in err
    code, _, err = boardtune("search", "--model", "model.onnx", *SEARCH[2:], "--resume")
    assert code == ExitCode.USAGE
    assert "--calib is missing" in err
    code, _, err = boardtune("search", "--model", "model.onnx", *SEARCH[:-2], "--resume")
    assert code == ExitCode.USAGE
    assert "--resume needs --run-dir" in err
    code, _, err = boardtune("measure")
    assert code == ExitCode.USAGE
    assert "give one model: MODEL or --model" in err


@pytest.mark.parametrize(("word", "meant"), [("serch", "search"), ("mesure", "measure"), ("board", "boards")])
def test_commands_that_are_nearly_right(boardtune: Boardtune, word: str, meant: str) -> None:
    code, _, err = boardtune(word)
    assert code == ExitCode.USAGE
    assert f"did you mean '{meant}'?" in err


def test_options_that_are_nearly_right(boardtune: Boardtune) -> None:
    code, _, err = boardtune("search", "--modell", "x")
    assert code == ExitCode.USAGE
    assert "--model" in err


def test_a_plan_file_with_a_mistake(boardtune: Boardtune, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("model: model.onnx\ncalib: calib.npz\nbudgett: 5m\n")
    code, _, err = boardtune("search", "--plan", "plan.yaml")
    assert code == ExitCode.USAGE
    assert "plan.yaml:3: unknown key 'budgett' in the plan" in err
    assert "did you mean 'budget'?" in err


def test_a_dry_run_says_what_would_be_tried(boardtune: Boardtune, tmp_path: Path) -> None:
    plan = {"model": "model.onnx", "calib": "calib.npz", "eval": "eval.npz", "boards": ["alpha", "beta"], "trials": 5}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    code, out, _ = boardtune("search", "--plan", "plan.yaml", "--dry-run")
    assert code == 0
    assert out.startswith("5 trials of preset quick, ranked on top1:\n     0  float32")
    assert "alpha: " in out
    assert "device minutes" in out
    assert not (tmp_path / "runs").exists()
