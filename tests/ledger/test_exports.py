"""Exports: names, provenance inside the model, checksums, refusals."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from synthetic_run import Builder, finished_run, header

from harness.cli.export import command
from harness.errors import BoardtuneError, ConfigError, NoFeasibleCandidate
from harness.ledger.exports import export_pick
from harness.ledger.run_directory import RunDirectory
from harness.quantize.identity import identity

ONE = {"ryzen-ai": (True, 4e5)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return finished_run(tmp_path_factory.mktemp("run") / "r")


def test_names_provenance_identity_and_checksums(run: RunDirectory, tmp_path: Path) -> None:
    files = export_pick(run, tmp_path / "out", pick=1, board="ryzen-ai")
    trial = run.state.trials[files.trial]
    assert trial.artifact is not None
    assert files.trial == run.state.picks["ryzen-ai"][0]
    assert files.model.name == f"fmnist_dscnn_quant_s8s8_{trial.artifact.identity[:8]}.onnx"
    assert identity(files.model) == trial.artifact.identity

    props = {p.key: p.value for p in onnx.load(files.model).metadata_props}
    assert all(key.startswith("boardtune.") for key in props)
    assert props["boardtune.emulated"] == "true"
    assert props["boardtune.board"] == "ryzen-ai"
    assert props["boardtune.recipe_sha256"] == trial.recipe_digest
    assert json.loads(props["boardtune.recipe"]) == trial.recipe
    assert hashlib.sha256(props["boardtune.recipe"].encode()).hexdigest() == trial.recipe_digest
    assert props["boardtune.float_model_sha256"] == "5f" * 32
    assert json.loads(props["boardtune.data_sha256"])["calib"] == "ca" * 32
    assert json.loads(props["boardtune.versions"])["onnxruntime"] == "1.22.0"
    assert props["boardtune.preprocess_sha256"] == "9e" * 32
    assert re.fullmatch("[0-9a-f]{16}", props["boardtune.run"])
    assert props["boardtune.trial"] == str(files.trial)
    best = trial.boards["ryzen-ai"].best
    assert best is not None
    assert best.latency_ns is not None
    assert int(props["boardtune.latency_p50_ns"]) == round(best.latency_ns.p50)

    recipe = json.loads(files.recipe.read_text())
    assert recipe["recipe"] == trial.recipe
    assert recipe["emulated"] is True
    for line in files.checksums.read_text().splitlines():
        assert re.fullmatch(r"[0-9a-f]{64}  \S+", line)
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "-c", files.checksums.name], cwd=files.checksums.parent, check=True, timeout=60)


def test_the_exported_model_computes_the_same(run: RunDirectory, tmp_path: Path) -> None:
    files = export_pick(run, tmp_path, board="local")
    x = {"x": np.arange(4, dtype=np.float32).reshape(1, 4)}
    outputs = [
        ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, x)[0]
        for path in (files.model, run.model_path(files.trial))
    ]
    np.testing.assert_array_equal(*outputs)


def test_a_model_for_the_chips_compiler_goes_along(run: RunDirectory, tmp_path: Path) -> None:
    plain = export_pick(run, tmp_path / "plain", board="local")
    assert ".deploy" not in plain.checksums.read_text()
    run.write_deploy_model(plain.trial, b"for the compiler")
    files = export_pick(run, tmp_path / "out", board="local")
    deploy = files.model.with_name(f"{files.model.stem}.deploy.onnx")
    assert deploy.read_bytes() == b"for the compiler"
    assert f"{hashlib.sha256(deploy.read_bytes()).hexdigest()}  {deploy.name}\n" in files.checksums.read_text()


def test_exporting_twice_gives_the_same_bytes(run: RunDirectory, tmp_path: Path) -> None:
    one = export_pick(run, tmp_path / "a", board="local", pick=2)
    two = export_pick(run, tmp_path / "b", board="local", pick=2)
    for a, b in zip((one.model, one.recipe, one.checksums), (two.model, two.recipe, two.checksums), strict=True):
        assert a.read_bytes() == b.read_bytes()


def test_boards_that_pick_differently_must_be_told_apart(run: RunDirectory, tmp_path: Path) -> None:
    assert run.state.picks["local"][0] != run.state.picks["ryzen-ai"][0], "the case this test needs"
    with pytest.raises(ConfigError, match="differs from board to board") as caught:
        export_pick(run, tmp_path)
    assert "local (trial 0002)" in caught.value.hint
    assert run.state.picks["local"][2] == run.state.picks["ryzen-ai"][2]
    assert export_pick(run, tmp_path, pick=3).trial == run.state.picks["local"][2]


def test_unknown_board_and_pick(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no board 'rpi5'") as caught:
        export_pick(run, tmp_path, board="rpi5")
    assert "local, ryzen-ai" in caught.value.hint
    for pick in (0, 4):
        with pytest.raises(ConfigError, match=f"no pick {pick}"):
            export_pick(run, tmp_path, board="local", pick=pick)


def test_nothing_picked(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "r", ONE)
    builder.search()
    run = builder.finish(picks={"ryzen-ai": []})
    with pytest.raises(NoFeasibleCandidate, match="nothing was picked"):
        export_pick(run, tmp_path / "out")


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_model_that_is_not_the_measured_one_is_not_exported(tmp_path: Path, damage: str) -> None:
    run = finished_run(tmp_path / "r", boards=ONE)
    path = run.model_path(run.state.picks["ryzen-ai"][0])
    if damage == "missing":
        path.unlink()
    else:
        shutil.copy(run.model_path(1), path)
    with pytest.raises(BoardtuneError, match="is missing" if damage == "missing" else "sha256 differs"):
        export_pick(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_hostile_model_name_stays_in_the_folder(tmp_path: Path) -> None:
    hostile = header(model={"digest": "5f" * 32, "path": "../../x/..\\..\\rm -rf; $(id).onnx"})
    run = finished_run(tmp_path / "r", boards=ONE, header=hostile)
    files = export_pick(run, tmp_path / "out")
    assert files.model.parent == tmp_path / "out"
    assert re.fullmatch(r"[A-Za-z0-9._-]+", files.model.name)


def test_the_command_prints_json_and_warns_of_emulated_numbers(run: RunDirectory, tmp_path: Path) -> None:
    arguments = [str(run.path), "--board", "ryzen-ai", "--out", str(tmp_path)]
    result = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    value = json.loads(result.output)
    assert value["emulated"] is True
    assert Path(value["model"]).is_file()
    text = CliRunner().invoke(command, arguments, catch_exceptions=False).output
    assert "emulated board" in text
