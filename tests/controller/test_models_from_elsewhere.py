"""``--add-candidate``: another tool's model takes part in a search like ours, or is refused in words."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import made_up
import numpy as np
import onnx
import pytest
import real_quantizer
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from real_quantizer import run

from harness.controller.dry_run import describe
from harness.errors import ConfigError, ExitCode, ModelError
from harness.ledger.exports import export_pick
from harness.ledger.run_directory import RunDirectory
from harness.plan import Plan, load_plan
from harness.quantize.contract import Cause, ModelRefused
from harness.quantize.identity import identity
from harness.quantize.imported import import_model
from harness.quantize.prepare import PreparedModel
from harness.recipes.facts import ModelFacts
from harness.recipes.recipe import Recipe
from harness.tensors import TensorSpec

PREPARED = PreparedModel(
    Path("float.onnx"),
    "",
    (TensorSpec("x", "float32", (1, 6)),),
    (TensorSpec("y", "float32", (1, 4)),),
    ModelFacts(),
)
"""What preparing :func:`made_up.write_model` gives."""


class Reader(CalibrationDataReader):  # type: ignore[misc]  # ONNX Runtime has no types here
    def __init__(self) -> None:
        self._samples = iter(np.random.default_rng(1).normal(size=(32, 1, 6)).astype(np.float32))

    def get_next(self) -> dict[str, np.ndarray] | None:
        sample = next(self._samples, None)
        return None if sample is None else {"x": sample}


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with real_quantizer.world(tmp_path, monkeypatch):
        yield


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The float model, quantized by ONNX Runtime's own tool; its first axis is free."""
    made_up.tiny_plan(tmp_path / "data")
    out = tmp_path / "theirs.onnx"
    quantize_static(tmp_path / "data" / "model.onnx", out, Reader(), quant_format=QuantFormat.QDQ)
    return out


def plan_with(*candidates: Path | str, **changes: object) -> Plan:
    listed = {"candidates": [str(path) for path in candidates]}
    return made_up.tiny_plan(Path("data"), **{"trials": 3, "top_k": 2, "min_accuracy": "-100pp", **listed, **changes})


def changed(source: Path, out: str, change: Callable[[ModelProto], object]) -> Path:
    model = onnx.load(source)
    change(model)
    onnx.save(model, out)
    return Path(out)


def test_it_is_the_first_trial_after_float_and_can_win_on_every_board(theirs: Path) -> None:
    def levels(sha256: str) -> float:
        sent = Path("run/0001/model.onnx")
        mine = sent.exists() and hashlib.sha256(sent.read_bytes()).hexdigest() == sha256
        return 2e5 if mine else 1e6

    result = run(plan_with(theirs, objective="latency"), levels=levels)
    assert result.exit_code == ExitCode.OK
    assert {trials[0] for trials in result.candidates["picks"].values()} == {1}
    by_trial = {candidate["trial"]: candidate for candidate in result.candidates["candidates"]}
    recipe = by_trial[1]["recipe"]
    assert (recipe["scheme"], recipe["source_file"]) == ("imported", "theirs.onnx")
    assert recipe["source"] == identity(theirs)
    assert recipe["source_sha256"] == hashlib.sha256(theirs.read_bytes()).hexdigest()
    assert by_trial[1]["label"].startswith("imported theirs.onnx")
    # The other recipes of the preset follow as they would have come.
    assert by_trial[2]["label"].startswith("static QDQ s8/s8 per-tensor")
    assert set(by_trial[1]["boards"]) == {"alpha", "beta"}

    rows = list(csv.DictReader(Path("run/trials.csv").read_text().splitlines()))
    assert {row["board"] for row in rows if row["label"].startswith("imported theirs.onnx")} == {"alpha", "beta"}
    with RunDirectory.open(Path("run")) as recorded:
        # The free first axis is fixed as the float model's is.
        assert any("theirs.onnx" in notice and "batch = 1" in notice for notice in recorded.state.notices)
        assert recorded.state.trials[1].backend.startswith("imported ")
        shipped = export_pick(recorded, Path("out"), board="alpha")
    assert shipped.model.name.startswith("model_quant_imported_")
    stamped = {entry.key: entry.value for entry in onnx.load(shipped.model).metadata_props}
    assert Recipe.from_dict(json.loads(stamped["boardtune.recipe"])).source == identity(theirs)


def test_bytes_are_deployed_as_given(theirs: Path) -> None:
    def fix(model: ModelProto) -> None:
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 1
        model.producer_name = "another tool"

    fixed = changed(theirs, "fixed.onnx", fix)
    run(plan_with(fixed))
    assert Path("run/0001/model.onnx").read_bytes() == fixed.read_bytes()


def test_one_file_twice_is_one_candidate(theirs: Path) -> None:
    def relabel(model: ModelProto) -> None:
        model.producer_name = "somebody else"
        model.doc_string = "the same inside"

    copy = changed(theirs, "copy.onnx", relabel)
    described = describe(plan_with(theirs, copy, theirs, trials=4))
    assert [label.startswith("imported") for label in described.recipes] == [False, True, False, False]
    assert sum("same model as" in notice for notice in described.notices) == 2


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_before_the_plans_recipes_and_the_presets(theirs: Path, preset: str) -> None:
    Path("mine.yaml").write_text("scheme: static\nactivation: uint8\nweight: uint8\n")
    order = describe(plan_with(theirs, preset=preset, recipes=["mine.yaml"], trials=4)).recipes
    assert [label.split()[0] for label in order[:2]] == ["float32", "imported"]
    assert order[2] == "static QDQ u8/u8 per-tensor minmax"
    assert order[3] == "static QDQ s8/s8 per-tensor minmax"


def test_what_we_make_ourselves_is_a_duplicate_of_it() -> None:
    made_up.tiny_plan(Path("data"))
    run(plan_with(trials=2), "first")
    result = run(plan_with("first/0001/model.onnx"))
    with RunDirectory.open(Path("run")) as recorded:
        assert (recorded.state.trials[2].status, recorded.state.trials[2].duplicate_of) == ("duplicate", 1)
    assert result.candidates["trials"]["duplicate"] == 1


def test_float_variants_may_take_part(theirs: Path) -> None:
    run(plan_with("data/model.onnx"))
    with RunDirectory.open(Path("run")) as recorded:
        assert recorded.state.trials[1].snr_db == 200.0
        assert recorded.state.trials[1].quantized_operators == 0


def _other_weights(model: ModelProto) -> None:
    weights = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 2)
    array = numpy_helper.to_array(weights)
    weights.CopyFrom(numpy_helper.from_array(np.full_like(array, 3), weights.name))


@pytest.mark.parametrize(
    ("change", "cause", "told"),
    [
        (_other_weights, Cause.LOW_SNR, "--min-snr"),
        (lambda m: m.graph.node[0].__setattr__("op_type", "Nonsense"), Cause.DOES_NOT_LOAD, "Nonsense"),
    ],
)
def test_a_bad_one_is_a_failed_trial(
    theirs: Path, change: Callable[[ModelProto], object], cause: str, told: str
) -> None:
    odd = changed(theirs, "odd.onnx", change)
    result = run(plan_with(odd))
    assert result.exit_code == ExitCode.OK
    with RunDirectory.open(Path("run")) as recorded:
        trial = recorded.state.trials[1]
    assert (trial.status, trial.cause) == ("failed", cause)
    assert told in trial.message


def test_quantizing_and_leaving_it_again_is_no_quantized_model() -> None:
    made_up.tiny_plan(Path("data"))
    model = onnx.load("data/model.onnx")
    model.graph.node[0].output[0] = "float"
    model.graph.node.extend(
        [
            helper.make_node("QuantizeLinear", ["float", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ]
    )
    model.graph.initializer.extend(
        [numpy_helper.from_array(np.float32(0.05), "s"), numpy_helper.from_array(np.int8(0), "z")]
    )
    onnx.save(model, "idle.onnx")
    run(plan_with("idle.onnx"))
    with RunDirectory.open(Path("run")) as recorded:
        assert recorded.state.trials[1].cause == Cause.NOTHING_QUANTIZED


def _renamed(model: ModelProto) -> None:
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "x":
                node.input[index] = "image"
    model.graph.input[0].name = "image"


def _wider(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 7


def _bytes_in(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8


def _no_output_type(model: ModelProto) -> None:
    model.graph.output[0].ClearField("type")


def _bytes_out(model: ModelProto) -> None:
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_renamed, ["inputs are 'image'", "the float model's 'x'"]),
        (_wider, ["input 'x' has shape [1, 7]", "[1, 6]"]),
        (_bytes_in, ["input 'x' is uint8", "float32"]),
        (_bytes_out, ["output 'y' is int8", "float32"]),
        (_no_output_type, ["outputs are", "'y'"]),
    ],
)
def test_another_interface_is_refused(theirs: Path, change: Callable[[ModelProto], None], told: list[str]) -> None:
    other = changed(theirs, "other.onnx", change)
    with pytest.raises(ModelRefused) as raised:
        import_model(other, PREPARED, Path("out.onnx"))
    assert raised.value.cause == Cause.OTHER_INTERFACE
    assert raised.value.where == "other.onnx"
    for words in told:
        assert words in str(raised.value)
    assert raised.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("missing.onnx", None, "no such model file"),
        ("empty.onnx", b"", "empty"),
        ("text.onnx", b"<html>no</html>", "not an ONNX model"),
        ("model.tflite", b"\x1c\x00\x00\x00TFL3" + bytes(64), "no board that boardtune drives"),
        ("renamed.onnx", b"\x1c\x00\x00\x00TFL3" + bytes(64), "LiteRT"),
        ("model.xml", b'<?xml version="1.0"?>\n<net name="m" version="11"></net>', "OpenVINO"),
        ("folder", "folder", "is a folder"),
    ],
)
def test_files_that_are_no_model(name: str, content: bytes | str | None, told: str) -> None:
    if content == "folder":
        Path(name).mkdir()
    elif isinstance(content, bytes):
        Path(name).write_bytes(content)
    with pytest.raises(ModelError, match=name) as raised:
        import_model(Path(name), PREPARED, Path("out.onnx"))
    assert told in str(raised.value)
    assert raised.value.exit_code == ExitCode.USAGE


def test_a_mistake_is_told_before_a_run_begins(theirs: Path) -> None:
    other = changed(theirs, "other.onnx", _bytes_in)
    with pytest.raises(ModelRefused, match=r"other\.onnx"):
        run(plan_with(other))
    assert not Path("run").exists()


def test_a_truncated_file(theirs: Path) -> None:
    Path("half.onnx").write_bytes(theirs.read_bytes()[:-40])
    with pytest.raises(ModelError, match=r"half.onnx.*truncated"):
        import_model(Path("half.onnx"), PREPARED, Path("out.onnx"))


def test_external_data(theirs: Path, tmp_path: Path) -> None:
    Path("apart").mkdir()
    onnx.save(onnx.load(theirs), "apart/m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    assert Path("apart/m.bin").stat().st_size > 0
    run(plan_with("apart/m.onnx"))
    with RunDirectory.open(Path("run")) as recorded:
        assert recorded.state.trials[1].status == "done"
    # It is sent in one file, and is the same model as the one with its weights inside.
    both = describe(plan_with("apart/m.onnx", theirs))
    assert any("same model as" in notice for notice in both.notices)
    Path("apart/m.bin").unlink()
    with pytest.raises(ModelError, match=r"external data is missing: 'm\.bin'"):
        describe(plan_with("apart/m.onnx"))


class TestResume:
    def test_goes_on(self, theirs: Path) -> None:
        run(plan_with(theirs, trials=2))
        moved = Path("elsewhere") / "renamed.onnx"
        moved.parent.mkdir()
        shutil.move(theirs, moved)
        result = run(plan_with(moved, trials=3), resume=True)
        assert sum(result.candidates["trials"].values()) == 3

    def test_gone_or_another(self, theirs: Path) -> None:
        plan = plan_with(theirs, trials=2)
        run(plan)
        was = hashlib.sha256(theirs.read_bytes()).hexdigest()
        changed(theirs, str(theirs), _other_weights)
        now = hashlib.sha256(theirs.read_bytes()).hexdigest()
        with pytest.raises(ModelError, match="has changed") as raised:
            run(plan, resume=True)
        assert was in str(raised.value)
        assert now in str(raised.value)
        theirs.unlink()
        with pytest.raises(ModelError, match=f"is gone.*{was}"):
            run(plan, resume=True)
        with pytest.raises(ConfigError, match=r"candidates: the run has .*[0-9a-f]{40}"):
            run(plan_with(trials=2), resume=True)

    def test_two_files_of_one_name(self, theirs: Path) -> None:
        other = Path("other") / theirs.name
        other.parent.mkdir()
        changed(theirs, str(other), lambda model: model.graph.node[-1].__setattr__("name", "renamed"))
        run(plan_with(theirs, other, trials=3))
        run(plan_with(theirs, other, trials=3), resume=True)
        with RunDirectory.open(Path("run")) as recorded:
            assert recorded.state.trials[2].recipe["source"] == identity(other)


def test_weights_that_are_quantized_on_loading_are_told() -> None:
    made_up.tiny_plan(Path("data"))
    model = onnx.load("data/model.onnx")
    for source in ("x", "w"):
        model.graph.node.insert(0, helper.make_node("DequantizeLinear", [f"{source}_q", "s", "z"], [f"{source}_d"]))
        model.graph.node.insert(0, helper.make_node("QuantizeLinear", [source, "s", "z"], [f"{source}_q"]))
    model.graph.node[-1].input[:] = ["x_d", "w_d"]
    model.graph.initializer.extend(
        [numpy_helper.from_array(np.float32(0.02), "s"), numpy_helper.from_array(np.int8(0), "z")]
    )
    onnx.save(model, "trained.onnx")
    (notice,) = (
        text
        for text in import_model(Path("trained.onnx"), PREPARED, Path("out.onnx")).notices
        if "float" in text and "on loading" in text
    )
    # 24 weights of 4 bytes.
    assert "1 of its tensors" in notice
    assert "72 B less" in notice


def test_one_dimension_cannot_have_two_sizes(theirs: Path) -> None:
    def square(model: ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "batch"

    with pytest.raises(ModelRefused, match=r"'batch' would have to be both 1 and 6"):
        import_model(changed(theirs, "square.onnx", square), PREPARED, Path("out.onnx"))


def test_trials_must_hold_them(theirs: Path) -> None:
    with pytest.raises(ConfigError, match="--trials 1 leaves no room"):
        describe(plan_with(theirs, trials=1, top_k=1))


def test_paths_of_a_plan_file_are_relative_to_it(theirs: Path, tmp_path: Path) -> None:
    shutil.move(theirs, "data/theirs.onnx")
    Path("data/plan.yaml").write_text(
        "model: model.onnx\ncalib: calib.npz\ncandidates: [theirs.onnx]\nboards: alpha\ntrials: 2\ntop_k: 1\n"
    )
    plan = load_plan(Path("data/plan.yaml"), {})
    assert plan.candidates == (Path("data/theirs.onnx"),)
    assert describe(plan).recipes[1].startswith("imported theirs.onnx")


def test_an_imported_recipe_without_its_file_says_where_it_belongs(theirs: Path) -> None:
    Path("r.json").write_text(json.dumps(Recipe(scheme="imported", source="ab" * 32).to_dict()))
    run(plan_with(recipes=["r.json"]))
    with RunDirectory.open(Path("run")) as recorded:
        trial = recorded.state.trials[1]
    assert trial.cause == Cause.UNSUPPORTED
    assert "--add-candidate" in trial.message


def test_a_file_by_another_name_is_the_same_recipe() -> None:
    one = Recipe(scheme="imported", source="ab" * 32, source_file="a.onnx", source_sha256="cd" * 32)
    other = Recipe(scheme="imported", source="ab" * 32, source_file="b.onnx")
    assert (one, one.digest) == (other, other.digest)
    assert Recipe.from_dict(one.to_dict()).source_file == "a.onnx"
    assert "source_file" not in Recipe().to_dict()
