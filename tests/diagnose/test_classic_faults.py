"""The classic table: each fault planted in a small model, found with its evidence, and cured by the recipe proposed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from planted_run import Planted, accused, cured, diagnosed, model_of, normal, rng

from device_agents.emulated.cost_model import estimate
from harness.audit.structure import input_shapes
from harness.boards.registry import load_registry
from harness.diagnose.apply import proposals
from harness.diagnose.case import DiagnoseJob
from harness.diagnose.run import diagnose
from harness.recipes.recipe import Calibration, Recipe

F16 = Recipe(scheme="float16")
U8S8 = Recipe(activation="uint8", weight="int8", granularity="per_channel")


def classifier(scales: list[float]) -> onnx.ModelProto:
    """x [1, 3, 8, 8] -> Conv -> Relu -> depthwise Conv, channels of these sizes -> Clip -> pool -> Gemm -> y.

    Clipped at 6, channels with large weights are no larger than the others: only the weights differ.
    """
    width = len(scales)
    depthwise = normal(2, width, 1, 3, 3) * np.array(scales, np.float32)[:, None, None, None]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "depthwise", pads=[1, 1, 1, 1], group=width),
        helper.make_node("Clip", ["c2", "zero", "six"], ["r2"], "clip"),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3"], ["y"], "head"),
    ]
    constants = {
        "w1": 0.2 * normal(1, width, 3, 3, 3),
        "w2": depthwise,
        "zero": np.float32(0),
        "six": np.float32(6),
        "w3": normal(3, width, 6),
    }
    return model_of(nodes, constants, [1, 3, 8, 8], {"y": [1, 6]})


def run_float(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """First output, [samples, ...]."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return np.concatenate([session.run(None, {"x": row[None]})[0] for row in x])


def images(seed: int, samples: int) -> np.ndarray:
    """[samples, 3, 8, 8], each with a colour of its own."""
    return np.asarray(normal(seed, samples, 3, 8, 8) + 1.5 * normal(seed + 1, samples, 3, 1, 1), np.float32)


def labelled(model: onnx.ModelProto, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """The half of twice as many images about which the float model is surer, with its answers as labels."""
    x = images(11, 2 * samples)
    scores = run_float(model, x)
    best = np.sort(scores, axis=1)
    sure = np.argsort(best[:, -2] - best[:, -1])[:samples]
    return x[sure], scores[sure].argmax(axis=1).astype(np.int64)


def test_a_healthy_trial_is_not_accused(tmp_path: Path) -> None:
    model = classifier([1.0] * 12)
    x, labels = labelled(model, 240)
    for name, recipe in (("8 bits", U8S8), ("QOperator", replace(U8S8, format="QOperator")), ("f16", F16)):
        found = diagnosed(Planted(model, images(21, 64), x, recipe, labels).make(tmp_path / name))
        assert accused(found) == {}, name
        assert not found.accuses
        assert found.metric is not None
        assert found.metric.drop == pytest.approx(0.0, abs=0.02)
        assert proposals(found) == []


class TestOverallDrop:
    @pytest.mark.parametrize("format", ["QDQ", "QOperator"])
    def test_weights_of_very_different_size(self, tmp_path: Path, format: str) -> None:
        model = classifier([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 200.0])
        x, labels = labelled(model, 200)
        recipe = Recipe(activation="uint8", weight="int8", format=format)  # type: ignore[arg-type]
        planted = Planted(model, images(21, 64), x, recipe, labels)
        found = diagnosed(planted.make(tmp_path / "one"))
        drop = accused(found)["overall_drop"]
        assert drop.evidence["drop"] > 0.02
        assert drop.evidence["float"] == 1.0
        layer = accused(found)["layer_loss"]
        assert layer.where[0] == "depthwise"
        assert layer.evidence["snr_before_db"] > layer.evidence["snr_after_db"] + 6
        assert [c.field for c in layer.changes] == ["granularity"]
        assert accused(cured(planted, layer, tmp_path / "two")) == {}

    def test_ranges_cut_off(self, tmp_path: Path) -> None:
        recipe = replace(U8S8, calibration=Calibration("percentile", 80.0))
        planted = Planted(classifier([1.0] * 8), images(21, 64), images(25, 60), recipe)
        found = diagnosed(planted.make(tmp_path / "one"))
        saturation = accused(found)["saturation"]
        evidence = next(iter(saturation.evidence["tensors"].values()))
        assert evidence["clipped_share"] > 0.05
        assert evidence["float_range"][1] > evidence["range"][1]
        assert "cut off" in saturation.what
        assert [(c.field, c.after) for c in saturation.changes] == [
            ("calibration.method", "minmax"),
            ("calibration.percentile", None),
        ]
        assert accused(found)["overall_drop"].changes == saturation.changes
        assert accused(cured(planted, saturation, tmp_path / "two")) == {}

    def test_a_metric_that_does_not_mind_is_no_drop(self, tmp_path: Path) -> None:
        """Cut off alike, all classes keep their order."""
        model = classifier([1.0] * 8)
        x, labels = labelled(model, 200)
        recipe = replace(U8S8, calibration=Calibration("percentile", 80.0))
        found = diagnosed(Planted(model, images(21, 64), x, recipe, labels).make(tmp_path / "one"))
        assert found.outputs[0][1] < 15.0
        assert found.metric is not None
        assert found.metric.drop == pytest.approx(0.0, abs=0.02)
        assert accused(found) == {}

    @pytest.mark.parametrize(
        "recipe", [Recipe(scheme="weight_only", weight="int4", format="QOperator"), U8S8.with_changes(weight="int4")]
    )
    def test_weights_of_four_bits(self, tmp_path: Path, recipe: Recipe) -> None:
        nodes = [
            helper.make_node("MatMul", ["x", "w1"], ["a"], "first"),
            helper.make_node("Tanh", ["a"], ["t"], "tanh"),
            helper.make_node("MatMul", ["t", "w2"], ["y"], "second"),
        ]
        model = model_of(nodes, {"w1": normal(1, 64, 64), "w2": normal(2, 64, 8)}, [1, 64], {"y": [1, 8]})
        planted = Planted(model, normal(3, 64, 64), normal(4, 40, 64), recipe)
        drop = accused(diagnosed(planted.make(tmp_path / "one")))["overall_drop"]
        assert [(change.field, change.after) for change in drop.changes] == [("weight", "int8")]
        assert accused(cured(planted, drop, tmp_path / "two")) == {}

    def test_small_channels_that_a_later_layer_magnifies(self, tmp_path: Path) -> None:
        """Weights, activations and the rows of the last matrix differ widely: cured one after the other."""
        sizes = np.array([1, 1, 1, 1, 0.004, 0.004, 0.004, 0.004], np.float32)
        nodes = [
            helper.make_node("Conv", ["x", "w1"], ["c"], "conv"),
            helper.make_node("Sigmoid", ["c"], ["s"], "sigmoid"),
            helper.make_node("Conv", ["s", "w2"], ["d"], "depthwise", group=8),
            helper.make_node("GlobalAveragePool", ["d"], ["p"], "pool"),
            helper.make_node("Flatten", ["p"], ["f"], "flatten"),
            helper.make_node("Gemm", ["f", "w3"], ["y"], "head"),
        ]
        constants = {
            "w1": normal(1, 8, 3, 1, 1),
            "w2": normal(2, 8, 1, 3, 3) * sizes[:, None, None, None],
            "w3": normal(3, 8, 6) / sizes[:, None],
        }
        model = model_of(nodes, constants, [1, 3, 8, 8], {"y": [1, 6]})
        planted = Planted(model, images(21, 64), images(25, 60), Recipe(activation="uint8"))
        found = diagnosed(planted.make(tmp_path / "0"))
        loss = accused(found)["layer_loss"]
        assert loss.where[0] == "head"
        assert "lost before" in loss.what
        fields = []
        for step in range(1, 4):
            change = accused(found)["overall_drop"].changes
            fields.append([c.field for c in change])
            found = cured(planted, accused(found)["overall_drop"], tmp_path / str(step))
            if not found.accuses:
                break
        assert fields == [["granularity"], ["overrides"], ["exclude_nodes"]]
        assert accused(found) == {}

    def test_a_refused_trial_is_made_again_and_looked_at(self, tmp_path: Path) -> None:
        model = classifier([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 200.0])
        x, labels = labelled(model, 100)
        planted = Planted(model, images(21, 64), x, Recipe(), labels, refused=True)
        found = diagnosed(planted.make(tmp_path / "one"))
        assert "made again" in found.notices[0]
        assert accused(found)["layer_loss"].where[0] == "depthwise"


@pytest.mark.parametrize("changes", [{"equalize": True}, {"smooth_alpha": 0.5}])
def test_rescaled_layers_are_compared_with_float_rescaled_alike(tmp_path: Path, changes: dict[str, object]) -> None:
    """LayerNormalization -> MatMul -> Relu -> MatMul with channels of different size: rescaling changes every value
    between, and what the model computes not at all."""
    sizes = np.logspace(-0.7, 0, 12).astype(np.float32)
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "o"], ["n"], "norm"),
        helper.make_node("MatMul", ["n", "w1"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], "second"),
    ]
    constants = {
        "g": np.linspace(0.1, 8.0, 16).astype(np.float32),
        "o": np.zeros(16, np.float32),
        "w1": normal(1, 16, 12) * sizes,
        "w2": normal(2, 12, 5) / sizes[:, None],
    }
    model = model_of(nodes, constants, [1, 16], {"y": [1, 5]})
    recipe = U8S8.with_changes(activation="uint16", **changes)
    found = diagnosed(Planted(model, normal(3, 64, 16), normal(4, 60, 16), recipe).make(tmp_path / "one"))
    assert accused(found) == {}
    seen = {layer.layer.node: layer.loss.snr_db for layer in found.layers}
    assert {"first", "second"} <= set(seen)
    assert min(seen.values()) > 25.0


class TestSmallObjects:
    def test_scores_beside_coordinates(self, tmp_path: Path) -> None:
        """The classic detector head: boxes up to hundreds and scores up to 1 in one tensor, one step for both."""
        nodes = [
            helper.make_node("MatMul", ["x", "wb"], ["boxes"], "boxes"),
            helper.make_node("MatMul", ["x", "ws"], ["logits"], "logits"),
            helper.make_node("Sigmoid", ["logits"], ["scores"], "scores"),
            helper.make_node("Concat", ["boxes", "scores"], ["y"], "join", axis=1),
        ]
        constants = {"wb": 100.0 * normal(1, 16, 4), "ws": normal(2, 16, 3)}
        model = model_of(nodes, constants, [1, 16], {"y": [1, 7]})
        planted = Planted(model, normal(3, 64, 16), normal(4, 80, 16), U8S8)
        found = diagnosed(planted.make(tmp_path / "one"))
        lost = accused(found)["small_signals_lost"]
        assert lost.evidence["places"] == [4, 5, 6]
        assert lost.evidence["largest_of_lost"] <= 1.0
        assert lost.evidence["steps"]["y"] > 1.0
        assert lost.where == ("y", "y")
        assert [c.after for c in lost.changes] == [["join"]]
        healed = cured(planted, lost, tmp_path / "two")
        assert "small_signals_lost" not in accused(healed)

    def test_samples_of_small_signal(self, tmp_path: Path) -> None:
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "matmul")]
        model = model_of(nodes, {"w": normal(1, 32, 8)}, [1, 32], {"y": [1, 8]})
        x = normal(4, 80, 32)
        x[::2] *= 0.005
        planted = Planted(model, normal(3, 64, 32), x, U8S8)
        found = diagnosed(planted.make(tmp_path / "one"))
        lost = accused(found)["small_signals_lost"]
        assert set(lost.evidence["samples"]) <= set(
            np.flatnonzero(np.abs(evaluated(planted, tmp_path)).max(axis=1) < 0.1)
        )
        assert lost.evidence["snr_db_of_small"] < 6
        assert lost.evidence["snr_db_of_large"] > 20
        assert [(c.field, c.after) for c in lost.changes] == [("activation", "uint16")]
        assert accused(cured(planted, lost, tmp_path / "two")) == {}


def evaluated(planted: Planted, folder: Path) -> np.ndarray:
    """The samples of the search's part."""
    return np.asarray(np.load(folder / "one" / "work" / "evaluation-search.npz")["x"])


def test_single_bad_cases_collapse(tmp_path: Path) -> None:
    """Few samples reach far beyond the others; a percentile cuts them off."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], "second"),
    ]
    model = model_of(nodes, {"w1": normal(1, 16, 24), "w2": normal(2, 24, 8)}, [1, 16], {"y": [1, 8]})
    calib, x = normal(3, 600, 16), normal(4, 120, 16)
    calib[::20] *= 12.0
    bad = np.array([10, 60, 77, 118])
    x[bad] *= 12.0
    recipe = replace(U8S8, calibration=Calibration("percentile", 99.0))
    planted = Planted(model, calib, x, recipe)
    found = diagnosed(planted.make(tmp_path / "one"))
    cases = accused(found)["bad_cases"]
    far = np.flatnonzero(np.abs(evaluated(planted, tmp_path)).max(axis=1) > 10.0)
    assert sorted(cases.evidence["samples"]) == far.tolist()
    assert cases.evidence["median_snr_db"] > 20
    assert cases.evidence["share_of_noise"] > 0.5
    there, elsewhere = cases.evidence["clipped_share_there"], cases.evidence["clipped_share_elsewhere"]
    assert there["x"] > 0.1
    assert elsewhere["x"] < 0.05
    assert ("calibration.method", "minmax") in [(c.field, c.after) for c in cases.changes]
    assert accused(cured(planted, cases, tmp_path / "two")) == {}


def on_pi(path: Path) -> float:
    """Nanoseconds on a Raspberry Pi 5, by the packaged board's cost model."""
    model = onnx.load(path)
    board = load_registry().get("rpi5-emulated")
    assert board.emulated is not None
    return float(estimate(model, board.emulated.cost_model, input_shapes(model)).latency_ns)


class TestSmallButSlow:
    def net(self) -> onnx.ModelProto:
        nodes = [
            helper.make_node("Conv", ["x", "w1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
            helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
            helper.make_node("GlobalAveragePool", ["r2"], ["y"], "pool"),
        ]
        constants = {"w1": normal(1, 32, 3, 3, 3), "w2": normal(2, 32, 32, 3, 3)}
        return model_of(nodes, constants, [1, 3, 32, 32], {"y": [1, 32, 1, 1]})

    def planted(self, recipe: Recipe, **values: object) -> Planted:
        return Planted(self.net(), normal(1, 32, 3, 32, 32), normal(2, 40, 3, 32, 32), recipe, **values)  # type: ignore[arg-type]

    def test_dynamic_convolutions(self, tmp_path: Path) -> None:
        planted = self.planted(Recipe(scheme="dynamic"), boards={"rpi5-emulated": on_pi})
        found = diagnosed(planted.make(tmp_path / "one"))
        slow = accused(found)["small_but_slow"]
        assert slow.evidence["latency_ns"] > slow.evidence["float_latency_ns"]
        assert slow.evidence["size_bytes"] < 0.5 * slow.evidence["float_size_bytes"]
        assert "ConvInteger" in slow.what
        assert ("scheme", "static") in [(c.field, c.after) for c in slow.changes]
        assert accused(cured(planted, slow, tmp_path / "two")) == {}

    def test_uint8_weights_on_x86(self, tmp_path: Path) -> None:
        """Latencies are those measured of EfficientNet-Lite0 at 96 × 96 with ONNX Runtime 1.32 on a Xeon: 2.67 ms in
        float, 1.67 ms with uint8 activations and int8 weights, 17.7 ms with uint8 weights."""

        def on_xeon(path: Path) -> float:
            kinds = {t.data_type for t in onnx.load(path).graph.initializer if np.prod(t.dims) > 100}
            return {onnx.TensorProto.FLOAT: 2.67e6, onnx.TensorProto.INT8: 1.67e6, onnx.TensorProto.UINT8: 17.7e6}[
                min(kinds)
            ]

        recipe = Recipe(activation="uint8", weight="uint8", granularity="per_channel")
        planted = self.planted(recipe, boards={"local": on_xeon})
        slow = accused(diagnosed(planted.make(tmp_path / "one")))["small_but_slow"]
        assert "uint8 weights" in slow.what
        assert slow.evidence["latency_ns"] / slow.evidence["float_latency_ns"] == pytest.approx(17.7 / 2.67)
        assert accused(cured(planted, slow, tmp_path / "two")) == {}
        # The same artifact on another processor is another matter.
        planted = self.planted(recipe, boards={"local": on_xeon}, machines={"local": "aarch64"})
        slow = accused(diagnosed(planted.make(tmp_path / "arm")))["small_but_slow"]
        assert "uint8 weights" not in slow.what


def truncating(path: Path, folder: Path) -> Path:
    """The artifact as a device runs it that truncates where it should round: half a step less before each quantizer."""
    model = onnx.load(path)
    scales = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            name = f"{node.output[0]}_half"
            half = np.asarray(scales[node.input[1]] * np.float32(0.5), np.float32)
            model.graph.initializer.append(numpy_helper.from_array(half, name))
            nodes.append(helper.make_node("Sub", [node.input[0], name], [f"{name}_less"], name))
            node.input[0] = f"{name}_less"
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    onnx.save(model, str(folder / "truncating.onnx"))
    return folder / "truncating.onnx"


def test_devices_differ(tmp_path: Path) -> None:
    model = classifier([1.0] * 8)
    boards = {"local": lambda path: 1e6, "rpi5-emulated": lambda path: 2e6}
    planted = Planted(
        model, images(21, 400), images(23, 80), U8S8, boards=boards,
        devices={"rpi5-emulated": truncating},
    )  # fmt: skip
    run = planted.make(tmp_path / "one")
    differ = accused(diagnosed(run))["devices_differ"]
    assert differ.evidence["metric"] == "snr"
    values = differ.evidence["values"]
    assert values["local"] == pytest.approx(values["this host"], abs=1e-6)
    assert values["rpi5-emulated"] < values["local"] - 1.0
    # One board against this host tells it too; boards that agree are not accused.
    assert "devices_differ" in accused(diagnose(DiagnoseJob(run, 1, "rpi5-emulated")))
    assert accused(diagnose(DiagnoseJob(run, 1, "local"))) == {}


def test_garbage_from_a_custom_operator(tmp_path: Path) -> None:
    """The inverse of a nearly singular matrix: what comes in is rounded a little, what goes out has nothing to do with
    float's. The other output is healthy."""
    base = np.outer(np.arange(1, 5), np.arange(2, 6)).astype(np.float32).ravel()
    weights = np.stack([base + 0.01 * normal(10 + i, 16) for i in range(8)])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "project"),
        helper.make_node("Reshape", ["m", "shape"], ["s"], "square"),
        helper.make_node("Inverse", ["s"], ["y"], "invert", domain="com.microsoft"),
        helper.make_node("MatMul", ["x", "v"], ["z"], "other"),
    ]
    constants = {"w": weights, "shape": np.array([1, 4, 4], np.int64), "v": normal(3, 8, 6)}
    model = model_of(nodes, constants, [1, 8], {"y": [1, 4, 4], "z": [1, 6]}, ["com.microsoft"])
    x = rng(4).uniform(0.5, 1.5, (64, 8)).astype(np.float32)
    planted = Planted(model, x, x[::-1].copy(), U8S8)
    found = diagnosed(planted.make(tmp_path / "one"))
    garbage = accused(found)["custom_operator_garbage"]
    assert garbage.where[0] == "invert"
    assert garbage.evidence["domain"] == "com.microsoft"
    assert garbage.evidence["snr_before_db"] > 20
    assert garbage.evidence["snr_after_db"] < 3
    assert garbage.changes[0].after == ["invert", "project", "square"]
    assert accused(cured(planted, garbage, tmp_path / "two")) == {}


def test_scores_shift_past_their_threshold(tmp_path: Path) -> None:
    """One large weight sets the step, all others are 0.4 of it and vanish: every score is lower by the same."""
    weights = np.full((64, 4), 0.4 / 16, np.float32)
    weights[0, 0] = 127.0 / 16
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node("Add", ["m", "b"], ["logits"], "bias"),
        helper.make_node("Sigmoid", ["logits"], ["y"], "scores"),
    ]
    model = model_of(nodes, {"w": weights, "b": np.full(4, -1.6, np.float32)}, [1, 64], {"y": [1, 4]})
    x = rng(4).uniform(0.0, 2.0, (120, 64)).astype(np.float32)
    x[:, 0] = rng(5).uniform(0.0, 0.05, 120)
    planted = Planted(model, x, x[::-1].copy(), Recipe(activation="uint8", weight="int8"))
    found = diagnosed(planted.make(tmp_path / "one"))
    shift = accused(found)["threshold_shift"]
    assert shift.evidence["mean_shift"] < -0.05
    assert shift.evidence["crossed_threshold"] > 0
    assert [c.field for c in shift.changes] == ["bias_correction"]
    assert "threshold_shift" not in accused(cured(planted, shift, tmp_path / "two"))


def test_classes_that_suffer(tmp_path: Path) -> None:
    """The weights of one class are small beside the others' and made large afterwards, as a badly folded norm does."""
    small = np.array([1, 1, 1, 0.004, 1], np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node("Mul", ["m", "c"], ["y"], "norm"),
    ]
    model = model_of(nodes, {"w": normal(1, 24, 5) * small, "c": 1.0 / small}, [1, 24], {"y": [1, 5]})
    x = normal(2, 3000, 24)
    scores = run_float(model, x)
    best = np.sort(scores, axis=1)
    sure = np.argsort(best[:, -2] - best[:, -1])[:500]
    labels = scores[sure].argmax(axis=1).astype(np.int64)
    planted = Planted(model, normal(3, 64, 24), x[sure], Recipe(activation="uint8", op_types=("MatMul",)), labels)
    suffer = accused(diagnosed(planted.make(tmp_path / "one")))["classes_suffer"]
    assert suffer.where == ("class 3",)
    (row,) = suffer.evidence["classes"]
    assert row["quantized_right"] < 0.9 * row["float_right"]
    assert row["chance"] < 0.05
    assert suffer.changes
