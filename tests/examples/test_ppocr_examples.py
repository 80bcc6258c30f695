"""The OCR examples without their package: drawn lines, labels, the metric, the plans."""

from __future__ import annotations

import subprocess
import venv
from itertools import groupby
from pathlib import Path
from typing import Any

import environment
import numpy as np
import onnx
import ppocr_package
import pytest
import text_lines
from built import EXAMPLES, load_build
from ctc import BLANK, characters, decode, encode, exact_lines
from onnx import TensorProto, helper

from harness.data.custom_metric import custom_metric
from harness.data.preprocess import Preprocess
from harness.data.source import open_dataset
from harness.plan import load_plan
from harness.tensors import TensorSpec

REC = EXAMPLES / "ppocr_rec"
ALPHABET = ["", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.", " "]


def test_plan_loads_and_its_metric_is_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_plan(REC / "plan.yaml", {})
    assert [plan.model, Path(plan.calib), Path(str(plan.eval))] == [
        REC / name for name in ("model.onnx", "calib.npz", "eval.npz")
    ]
    monkeypatch.chdir(EXAMPLES.parent)
    facts = custom_metric(plan.metrics[0]).facts
    assert (facts.kind, facts.unit, facts.higher_is_better) == ("proportion", "fraction", True)


def test_decoding_merges_what_is_not_parted_by_a_blank() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        best = generator.integers(0, 3, generator.integers(1, 12))
        assert decode(best).tolist() == [value for value, _ in groupby(best.tolist()) if value != BLANK]


def test_exact_lines_count_only_lines_without_a_mistake() -> None:
    lines = ["ab", "aab", "b a"]
    labels = np.stack([encode(line, ALPHABET, 6) for line in lines])
    # Doubled letters need a blank between; the second line has none, so it reads "ab".
    paths = [[1, 1, 0, 2, 2, 0], [1, 1, 1, 2, 2, 0], [2, 0, len(ALPHABET) - 1, 1, 1, 1]]
    scores = np.eye(len(ALPHABET), dtype=np.float32)[np.array(paths)]
    assert exact_lines({"softmax": scores}, labels).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="no labels"):
        exact_lines({"softmax": scores}, None)


def test_characters_of_the_dictionary_lie_between_blank_and_space() -> None:
    assert characters("'\nx\n2\n") == ["", "'", "x", "2", " "]


def test_text_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="é"):
        encode("caf\u00e9", ALPHABET, 10)
    with pytest.raises(ValueError, match="3 characters"):
        encode("abcd", ALPHABET, 3)


def test_drawn_text_is_of_the_vocabulary_and_fits() -> None:
    generator = np.random.default_rng(3)
    texts = [text_lines.draw_text(generator, text_lines.words()) for _ in range(300)]
    assert max(map(len, texts)) <= text_lines.LONGEST
    assert all(text == " ".join(text.split()) for text in texts)
    known = {word.lower() for word in text_lines.words()}
    assert all(part.lower() in known or part.replace(".", "").isdigit() for text in texts for part in text.split())
    assert len(set(texts)) > 250


def test_drawn_lines_have_ink_where_text_is_and_padding_behind() -> None:
    generator = np.random.default_rng(4)
    short = text_lines.draw_line(generator, "ii", (48, 320))
    assert short.shape == (48, 320)
    assert (short[:, -100:] == text_lines.PADDING).all()
    assert np.ptp(short[:, :40].astype(int)) > 30
    again = text_lines.draw_line(np.random.default_rng(4), "ii", (48, 320))
    assert np.array_equal(short, again)


def test_build_makes_data_that_fits_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = load_build("ppocr_rec")
    model = _network(character="\n".join(ALPHABET[1:-1]))
    installed = _installed(tmp_path, monkeypatch, build.RECOGNITION, model)
    monkeypatch.setattr(build, "SPLITS", (("calib.npz", 1, 3), ("eval.npz", 2, 5)))
    out = tmp_path / "out"
    assert build.main(["--out", str(out), "--cache", str(tmp_path / "cache")]) == 0
    assert len(installed) == 2
    preprocess = Preprocess.parse(load_plan(REC / "plan.yaml", {}).preprocess)  # type: ignore[arg-type]
    data = open_dataset(out / "eval.npz", (TensorSpec("x", "float32", (1, 3, 48, 320)),), preprocess)
    assert data.inputs["x"].shape == (5, 3, 48, 320)
    assert np.abs(data.inputs["x"]).max() <= 1
    assert data.labels is not None
    generator = np.random.default_rng(2)
    texts = [text_lines.draw_text(generator, text_lines.words()) for _ in range(5)]
    assert ["".join(ALPHABET[n] for n in row if n) for row in data.labels.tolist()] == texts


def test_network_without_alphabet_and_package_without_network_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build = load_build("ppocr_rec")
    _installed(tmp_path, monkeypatch, build.RECOGNITION, _network(character=None))
    assert build.main(["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]) == 2
    assert "'character'" in capsys.readouterr().err
    (tmp_path / "site" / "rapidocr_onnxruntime" / "models" / build.RECOGNITION).unlink()
    assert build.main(["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]) == 2
    assert build.RECOGNITION in capsys.readouterr().err


def test_every_second_line_of_the_classifier_is_upside_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = load_build("ppocr_cls")
    _installed(tmp_path, monkeypatch, build.DIRECTION, _network(character=None))
    monkeypatch.setattr(build, "SPLITS", (("eval.npz", 2, 6),))
    assert build.main(["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]) == 0
    plan = load_plan(EXAMPLES / "ppocr_cls" / "plan.yaml", {})
    preprocess = Preprocess.parse(plan.preprocess)  # type: ignore[arg-type]
    data = open_dataset(tmp_path / "out" / "eval.npz", (TensorSpec("x", "float32", (1, 3, 48, 192)),), preprocess)
    assert data.labels is not None
    assert data.labels.tolist() == [0, 1, 0, 1, 0, 1]
    # The same random numbers draw the same line, whichever way up it is.
    upright, turned = (
        text_lines.draw_line(np.random.default_rng(7), "Licence 2004", (48, 300), upside_down=down)
        for down in (False, True)
    )
    ends = 1 + int(np.flatnonzero((upright != text_lines.PADDING).any(axis=0))[-1])
    assert np.array_equal(turned[:, ends:], upright[:, ends:])
    difference = turned[::-1, ends - 1 :: -1].astype(int) - upright[:, :ends]
    assert np.abs(difference).mean() < 3


def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, model: Any) -> list[list[str]]:
    """Stands for venv and pip: an environment that holds ``model``; gives what commands were run in it."""
    models = tmp_path / "site" / "rapidocr_onnxruntime" / "models"
    models.mkdir(parents=True)
    onnx.save(model, models / name)
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        said = "" if "pip" in command else f"{tmp_path / 'site'}\n"
        return subprocess.CompletedProcess(command, 0, said, "")

    def create(folder: Path, **_: Any) -> None:
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").touch()

    monkeypatch.setattr(venv, "create", create)
    monkeypatch.setattr(environment.subprocess, "run", run)
    return commands


def _network(character: str | None) -> Any:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, "h", "w"])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "network", [value], [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
    if character is not None:
        helper.set_model_props(model, {"character": character})
    return model


def test_package_is_shared_by_the_examples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ppocr_package.default_folder() == tmp_path / "boardtune" / "examples" / "ppocr"
