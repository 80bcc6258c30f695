"""A model made again has the bytes that were measured, or it is said why not."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import made_up
import numpy as np
import onnx
import pytest
import real_quantizer
from onnx import numpy_helper

import harness
from harness.cli.main import run as boardtune
from harness.errors import ConfigError, ExitCode
from harness.ledger.exports import export_pick
from harness.ledger.run_directory import RunDirectory
from harness.quantize.worker import QuantizeWorker


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with real_quantizer.world(tmp_path, monkeypatch):
        yield


def searched(**changes: Any) -> Path:
    values = {"boards": "alpha", "trials": 2, "top_k": 2, "min_accuracy": "-100pp", **changes}
    real_quantizer.run(made_up.tiny_plan(Path("data"), **values))
    return Path("run")


@pytest.fixture(scope="module")
def two_trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with such a search and its data, to be copied."""
    folder = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch, real_quantizer.world(folder, patch):
        searched()
    return folder


@pytest.fixture
def run(two_trials: Path) -> Path:
    """The same, of the test's own."""
    for name in ("data", "run"):
        shutil.copytree(two_trials / name, name)
    return Path("run")


def artifact(run: Path, trial: int) -> bytes:
    return (run / f"{trial:04d}" / "model.onnx").read_bytes()


def written(folder: str) -> bytes:
    (path,) = Path(folder).glob("*.onnx")
    return path.read_bytes()


@pytest.fixture
def _one_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One quantizer process for several reproductions."""
    with QuantizeWorker() as worker:
        monkeypatch.setattr("harness.controller.reproduce.QuantizeWorker", lambda: contextlib.nullcontext(worker))
        yield


@pytest.mark.usefixtures("_one_worker")
def test_trials_of_every_scheme() -> None:
    run = searched(trials=9, batch=4)
    with RunDirectory.open(run) as recorded:
        made = {t.recipe["scheme"]: n for n, t in sorted(recorded.state.trials.items(), reverse=True) if t.artifact}
    assert made.keys() >= {"float32", "static", "float16", "dynamic"}
    for trial in made.values():
        found = harness.reproduce_trial(run, trial, out=f"out-{trial}")
        assert (found.status, found.changed) == ("equal", ())
        assert written(f"out-{trial}") == artifact(run, trial)


@pytest.mark.usefixtures("_one_worker")
def test_from_the_command_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert boardtune(["reproduce", str(run), "--trial", "1"]) == ExitCode.OK
    assert "equal: the same bytes" in capsys.readouterr().out
    assert boardtune(["reproduce", str(run), "--trial", "1", "--json"]) == ExitCode.OK
    value = json.loads(capsys.readouterr().out)
    assert value["status"] == "equal"
    assert value["made"] == value["recorded"]


class TestInputsThatChanged:
    @pytest.mark.parametrize("changed", ["model", "calib"])
    def test_named_with_digests(self, run: Path, changed: str, capsys: pytest.CaptureFixture[str]) -> None:
        with RunDirectory.open(run) as recorded:
            header = recorded.state.header
        if changed == "model":
            model = onnx.load("data/model.onnx")
            weights = numpy_helper.to_array(model.graph.initializer[0])
            model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights + 1, "w"))
            onnx.save(model, "data/model.onnx")
            was = header["model"]["digest"]
        else:
            made_up.write_data(Path("data/calib.npz"), 16, seed=77)
            was = header["data"]["calibration"]["digest"]
        assert boardtune(["reproduce", str(run), "--trial", "1", "--out", "out"]) == ExitCode.USAGE
        out = capsys.readouterr().out
        assert f"{'float model' if changed == 'model' else 'calibration data'}: was {was}, now " in out
        assert not Path("out").exists()

    def test_preprocessing(self, run: Path) -> None:
        Path("pre.yaml").write_text("scale: 0.5\n")
        found = harness.reproduce_trial(run, 1, preprocess="pre.yaml")
        assert found.status == "other_inputs"
        assert [item.what for item in found.changed] == ["preprocessing", "calibration data"]

    def test_moved_files_are_named(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        shutil.move("data", "elsewhere")
        assert boardtune(["reproduce", str(run), "--trial", "1"]) == ExitCode.USAGE
        assert "--model" in capsys.readouterr().err
        assert boardtune(["reproduce", str(run), "--trial", "1", "--model", "elsewhere/model.onnx"]) == ExitCode.USAGE
        assert "--calib" in capsys.readouterr().err
        words = ["--model", "elsewhere/model.onnx", "--calib", "elsewhere/calib.npz"]
        assert boardtune(["reproduce", str(run), "--trial", "1", *words]) == ExitCode.OK

    def test_code_that_only_the_ledger_names_is_not_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(".")
        Path("mine.py").write_text("import numpy\ndef data():\n    return {'x': numpy.load('x.npy')}\n")
        made_up.tiny_plan(Path("data"))
        np.save("x.npy", np.load("data/calib.npz")["x"])
        run = searched(calib="mine:data")
        with pytest.raises(ConfigError, match="--calib mine:data"):
            harness.reproduce_trial(run, 1)
        assert harness.reproduce_trial(run, 1, calib="mine:data").same


def test_other_versions_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other: Callable[[str], str] = {"boardtune": "9.9", "onnx": "1.0", "onnxruntime": "2.0", "numpy": "3.0"}.__getitem__
    with (
        mock.patch("harness.controller.reproduce.importlib.metadata.version", other),
        mock.patch("harness.controller.reproduce._quantize", _another_model),
    ):
        assert boardtune(["reproduce", str(run), "--trial", "1"]) == ExitCode.INTERNAL
    out = capsys.readouterr().out
    assert "DIFFERS" in out
    for name, version in (("boardtune", "9.9"), ("onnx", "1.0"), ("onnxruntime", "2.0"), ("numpy", "3.0")):
        assert f"{name}: was " in out
        assert f"now {version}" in out


def _another_model(origin: Any, prepared: Any, dataset: Any, out: Path) -> tuple[()]:
    model = onnx.load(origin.kept)
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, tensor.name))
    onnx.save(model, out)
    return ()


def test_what_differs_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch("harness.controller.reproduce._quantize", _another_model):
        assert boardtune(["reproduce", str(run), "--trial", "1"]) == ExitCode.INTERNAL
    out = capsys.readouterr().out
    name = onnx.load(run / "0001" / "model.onnx").graph.initializer[0].name
    assert f"tensors differ, first {name!r}" in out
    assert "a defect" in out


def test_the_same_content_in_other_bytes(run: Path) -> None:
    def relabelled(origin: Any, prepared: Any, dataset: Any, out: Path) -> tuple[()]:
        model = onnx.load(origin.kept)
        model.doc_string = "another label"
        onnx.save(model, out)
        return ()

    with mock.patch("harness.controller.reproduce._quantize", relabelled):
        found = harness.reproduce_trial(run, 1)
    assert (found.status, found.same) == ("relabelled", False)


class TestCandidatesFromElsewhere:
    def test_the_file_is_checked(self, run: Path) -> None:
        shutil.move(run, "first")
        shutil.copy("first/0001/model.onnx", "theirs.onnx")
        run = searched(candidates=["theirs.onnx"])
        assert harness.reproduce_trial(run, 1).same
        shutil.move("theirs.onnx", "moved.onnx")
        with pytest.raises(ConfigError, match="--candidate"):
            harness.reproduce_trial(run, 1)
        assert harness.reproduce_trial(run, 1, candidate="moved.onnx", out="out").same
        assert written("out") == artifact(run, 1)
        found = harness.reproduce_trial(run, 1, candidate="first/0000/model.onnx")
        assert found.status == "other_inputs"
        assert "first/0000/model.onnx" in found.changed[0].what


class TestExportedModels:
    def test_again_from_what_it_says(self, capsys: pytest.CaptureFixture[str]) -> None:
        run = searched(trials=3, batch=2)
        with RunDirectory.open(run) as recorded:
            shipped = export_pick(recorded, Path("shipped"), pick=1)
        words = ["reproduce", str(shipped.model), "--model", "data/model.onnx", "--calib", "data/calib.npz"]
        assert boardtune([*words, "--out", "out"]) == ExitCode.OK
        assert written("out") == artifact(run, shipped.trial)
        assert boardtune(words[:4]) == ExitCode.USAGE
        assert "--calib" in capsys.readouterr().err

    def test_bad_arguments(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for words, told in (
            (["data/model.onnx"], "no boardtune provenance"),
            (["data/model.onnx", "--trial", "1"], "--trial belongs to a run"),
            ([str(run)], "which trial?"),
            ([str(run), "--trial", "77"], "its trials go from 0 to 1"),
            (["missing", "--trial", "0"], "missing"),
            (["data/calib.npz"], "not an ONNX model"),
        ):
            assert boardtune(["reproduce", *words]) == ExitCode.USAGE
            captured = capsys.readouterr()
            assert told in captured.err
            assert captured.out == ""


def test_a_trial_that_made_nothing() -> None:
    run = searched(trials=3, min_snr=150)
    with pytest.raises(ConfigError, match=r"trial 0001 made no model: it failed: .*--min-snr"):
        harness.reproduce_trial(run, 1)
