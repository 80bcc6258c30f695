"""The parts of a diagnosis, each against another implementation, a closed form, or a graph made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper
from planted_run import model_of, normal
from scipy import stats

from harness.audit.finding import Change
from harness.diagnose.accuracy import accuracy_findings
from harness.diagnose.agreement import board_differences, kernel_findings
from harness.diagnose.artifact import artifact_nodes
from harness.diagnose.changes import apply, equalized, leave_in_float, per_channel, seven_bits, sixteen_bits
from harness.diagnose.compare import compare
from harness.diagnose.facts import AccuracyFacts, ArtifactNode, BoardFacts, MetricFacts, Output, TimeFacts
from harness.diagnose.samples import collapsed, sign_test, worst_samples
from harness.diagnose.tensors import Grid, layers_of, readings_of
from harness.diagnose.timing import executed_switches, time_findings
from harness.quantize.ort_backend import OrtBackend
from harness.recipes.recipe import Recipe

Array = npt.NDArray[Any]


def net() -> ModelProto:
    """Everything ONNX Runtime's two tools treat in their own way: removed activations, integers passed on, a join."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("MaxPool", ["r1"], ["m"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["m", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "m"], ["s"], "add"),
        helper.make_node("Concat", ["s", "m"], ["j"], "join", axis=1),
        helper.make_node("GlobalAveragePool", ["j"], ["p"], "mean"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["g"], "gemm"),
        helper.make_node("Sigmoid", ["g"], ["y"], "sigmoid"),
    ]
    constants = {
        "w1": 0.3 * normal(1, 8, 3, 3, 3),
        "b1": 0.1 * normal(2, 8),
        "w2": 0.2 * normal(3, 8, 8, 3, 3),
        "w3": normal(4, 16, 5),
        "b3": normal(5, 5),
    }
    return model_of(nodes, constants, [1, 3, 8, 8], {"y": [1, 5]})


def made(model: ModelProto, recipe: Recipe, folder: Path) -> tuple[ModelProto, ModelProto]:
    """(float model as prepared, artifact)."""
    from harness.quantize.prepare import prepare_model

    onnx.save(model, str(folder / "given.onnx"))
    prepared = prepare_model(folder / "given.onnx", folder / "float.onnx")
    np.savez(folder / "calib.npz", x=normal(7, 64, 3, 8, 8))
    OrtBackend().quantize(prepared.path, folder / "calib.npz", recipe, folder / "made.onnx")
    return onnx.load(prepared.path), onnx.load(folder / "made.onnx")


class TestReadings:
    @pytest.mark.parametrize("format", ["QDQ", "QOperator"])
    def test_what_is_matched_is_the_same_thing(self, tmp_path: Path, format: str) -> None:
        """A wrong match has about 0 dB: everything that is read must be close to float."""
        recipe = Recipe(activation="uint8", granularity="per_channel", format=format)  # type: ignore[arg-type]
        model, artifact = made(net(), recipe, tmp_path)
        readings = readings_of(model, artifact)
        feeds = [{"x": sample[None]} for sample in normal(8, 12, 3, 8, 8)]
        losses = compare(model, artifact, readings, feeds, tmp_path)
        assert {"x", "r1", "m", "c2", "s", "j", "y"} <= set(losses)
        assert "c1" not in losses, "the Relu was taken out: nothing holds what came into it"
        for name, loss in losses.items():
            assert loss.snr_db > 25.0, name
        assert losses["r1"].grid is not None
        assert losses["m"].grid is not None

    def test_a_removed_activation_before_what_stays_in_float(self, tmp_path: Path) -> None:
        """QOperator: the integers called after the convolution are what comes out of the Relu, in either way out."""
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
            helper.make_node("Relu", ["c"], ["r"], "relu"),
            helper.make_node("Selu", ["r"], ["y"], "selu"),
        ]
        model = model_of(nodes, {"w": normal(1, 4, 3, 1, 1)}, [1, 3, 8, 8], {"y": [1, 4, 8, 8]})
        model, artifact = made(model, Recipe(activation="uint8", format="QOperator"), tmp_path)
        assert any(node.op_type == "QLinearConv" for node in artifact.graph.node)
        readings = readings_of(model, artifact)
        assert list(readings) == ["x", "r", "y"]
        losses = compare(model, artifact, readings, [{"x": s[None]} for s in normal(8, 4, 3, 8, 8)], tmp_path)
        assert min(loss.snr_db for loss in losses.values()) > 25.0

    def test_losses_are_what_numpy_says(self, tmp_path: Path) -> None:
        model, artifact = made(net(), Recipe(activation="uint8"), tmp_path)
        x = normal(8, 5, 3, 8, 8)
        x[2] *= 3.0  # beyond the calibrated range
        readings = readings_of(model, artifact)
        loss = compare(model, artifact, readings, [{"x": s[None]} for s in x], tmp_path)["x"]
        grid = readings["x"].grid
        assert grid is not None
        low, high = grid.bounds
        rounded = np.clip(np.round(x / grid.scale) + grid.zero_point, grid.lowest, grid.highest)
        expected = (rounded - grid.zero_point) * grid.scale
        assert loss.noise == pytest.approx(np.square(expected - x).sum(axis=(1, 2, 3)), rel=1e-3)
        assert loss.signal == pytest.approx(np.square(x.astype(float)).sum(axis=(1, 2, 3)))
        outside = np.maximum(x - high, low - x) > 0.5 * grid.scale
        assert loss.clipped == pytest.approx(outside.mean(axis=(1, 2, 3)))
        assert loss.clipped[2] > 10 * loss.clipped[0]
        channel = loss.slices[1]
        assert channel.peak == pytest.approx(np.abs(x).max(axis=(0, 2, 3)))
        assert channel.signal.sum() == pytest.approx(loss.signal.sum())

    def test_layers_know_what_they_read(self) -> None:
        layers = {layer.node: layer for layer in layers_of(net())}
        assert layers["add"].inputs == ("c2", "m")
        assert layers["conv1"].inputs == ("x",)
        assert layers["conv1"].output == "c1"

    def test_a_grid(self) -> None:
        grid = Grid(0.5, -28, -128, 127)
        assert grid.bounds == (-50.0, 77.5)
        assert grid.bits == 8
        assert grid.values(np.array([-28, 0, 127], np.int8)).tolist() == [0.0, 14.0, 77.5]


class TestChanges:
    def test_what_a_change_says_is_what_it_does(self) -> None:
        recipe = Recipe(activation="uint8", exclude_nodes=("a",))
        for changes in (per_channel(recipe), sixteen_bits(recipe), sixteen_bits(recipe, ["t"]), seven_bits(recipe),
                        leave_in_float(recipe, ["b"]), equalized(recipe)):  # fmt: skip
            assert changes
            after = apply(recipe, changes)
            assert after != recipe
            for change in changes:
                section, _, name = change.field.partition(".")
                value = after.to_dict()[section]
                assert (value[name] if name else value) == change.after
        assert apply(recipe, leave_in_float(recipe, ["b"])).exclude_nodes == ("a", "b")

    def test_what_is_so_already_or_cannot_be_is_no_change(self) -> None:
        assert per_channel(Recipe(granularity="per_channel")) == ()
        assert sixteen_bits(Recipe(activation="uint16")) == ()
        assert sixteen_bits(Recipe(scheme="dynamic")) == ()
        assert sixteen_bits(Recipe(activation="uint8", format="QOperator"), ["t"]) == ()
        assert leave_in_float(Recipe(scheme="imported", source="0" * 64), ["a"]) == ()


def output(expected: Array, got: Array, name: str = "y") -> Output:
    return Output(name, "head", expected.astype(np.float64), got.astype(np.float64), expected.shape[1:])


class TestSamples:
    def test_the_sign_test_is_scipys(self) -> None:
        for lost, won in ((3, 0), (9, 2), (5, 5), (0, 4)):
            exact = stats.binomtest(lost, lost + won, 0.5, alternative="greater").pvalue
            assert sign_test(lost, won) == pytest.approx(exact)

    def test_few_bad_samples_and_noise_everywhere(self) -> None:
        expected = normal(1, 100, 8)
        got = expected + 0.01 * normal(2, 100, 8)
        assert not collapsed(output(expected, got)).size
        got[[7, 70]] = 0.0
        assert sorted(collapsed(output(expected, got)).tolist()) == [7, 70]
        assert {row for row, _ in worst_samples(output(expected, got))[:2]} == {7, 70}
        got[:40] = 0.0
        assert not collapsed(output(expected, got)).size, "forty of a hundred are no single cases"


class TestSuffering:
    def facts(self, metric: MetricFacts | None, snr: float = 40.0) -> AccuracyFacts:
        expected = normal(1, 20, 6)
        got = expected + 10 ** (-snr / 20) * normal(2, 20, 6)
        return AccuracyFacts(Recipe(), metric, [output(expected, got)], (), {}, np.arange(20))

    def test_the_metric_decides_where_there_is_one(self) -> None:
        assert not self.facts(MetricFacts("top1", "fraction", True, False, 0.9, 0.89), snr=5.0).suffers
        assert self.facts(MetricFacts("top1", "fraction", True, False, 0.9, 0.87)).suffers
        # A share of float's value where it is no fraction, and down is up for errors.
        assert self.facts(MetricFacts("mae", "", False, False, 4.0, 4.1)).suffers
        assert not self.facts(MetricFacts("mae", "", False, False, 4.0, 3.0)).suffers

    def test_else_the_worst_output(self) -> None:
        assert self.facts(None, snr=15.0).suffers
        assert not self.facts(None, snr=25.0).suffers

    def test_what_may_be_chance_accuses_nobody(self) -> None:
        facts = self.facts(MetricFacts("top1", "fraction", True, False, 0.9, 0.85, certain=False))
        (found,) = accuracy_findings(facts)
        assert (found.code, found.severity) == ("overall_drop", "info")
        assert "chance" in found.what


class TestAgreement:
    def board(self, name: str, value: float, unit: str = "fraction", samples: int = 1000) -> BoardFacts:
        return BoardFacts(name, "x86_64", False, None, None, None, None, {"top1": value}, {"top1": samples},
                          {"top1": unit}, {})  # fmt: skip

    def test_boards_are_compared_with_each_other_and_with_this_host(self) -> None:
        here = MetricFacts("top1", "fraction", True, False, 0.9, 0.9)
        agree = [self.board("a", 0.9), self.board("b", 0.902)]
        assert board_differences(Recipe(), agree, here, 1000) == []
        (found,) = board_differences(Recipe(), [self.board("a", 0.9), self.board("b", 0.85)], None, 1000)
        assert found.evidence["difference"] == pytest.approx(0.05)
        (found,) = board_differences(Recipe(), [self.board("b", 0.85)], here, 1000)
        assert found.where == ("b", "this host")
        # Another number of samples is another question.
        assert board_differences(Recipe(), [self.board("b", 0.85, samples=500)], here, 1000) == []

    def test_a_kernel_that_saturates(self) -> None:
        expected = 10.0 * normal(1, 20, 6)
        plain = expected + 0.05 * normal(2, 20, 6)
        facts = AccuracyFacts(
            recipe=Recipe(activation="uint8"), metric=None, outputs=[output(expected, np.clip(plain, -8, 8))],
            layers=(), losses={}, rows=np.arange(20), unfused={"y": plain.astype(np.float64)},
        )  # fmt: skip
        (found,) = kernel_findings(facts)
        assert found.changes == (Change("reduce_range", False, True),)
        assert found.evidence["snr_as_the_graph_says_db"] > 40
        assert found.evidence["snr_fused_db"] < 25


class TestTime:
    def board(self, placement: dict[str, Any], **values: Any) -> BoardFacts:
        facts: dict[str, Any] = {
            "name": "alpha", "machine": "aarch64", "accelerated": False, "latency_ns": 2e6,
            "latency_ci95": (1.9e6, 2.1e6), "float_latency_ns": 1e6, "float_latency_ci95": (0.9e6, 1.1e6),
            "metrics": {}, "samples": {}, "units": {}, "placement": placement, **values,
        }  # fmt: skip
        return BoardFacts(**facts)

    def qdq(self) -> ModelProto:
        """x -> Q -> DQ -> Conv -> Q -> DQ -> Selu -> Q -> DQ -> Conv -> Q -> DQ -> y; Selu stays in float."""
        scale = {"s": np.float32(0.1), "z": np.uint8(128)}

        def pair(name: str, after: str) -> list[onnx.NodeProto]:
            return [
                helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{name}_q"], f"{name}_Q"),
                helper.make_node("DequantizeLinear", [f"{name}_q", "s", "z"], [after], f"{name}_DQ"),
            ]

        nodes = [
            *pair("x", "xd"),
            helper.make_node("Conv", ["xd", "w"], ["c"], "conv1"),
            *pair("c", "cd"),
            helper.make_node("Selu", ["cd"], ["e"], "selu"),
            *pair("e", "ed"),
            helper.make_node("Conv", ["ed", "w"], ["d"], "conv2"),
            *pair("d", "y"),
        ]
        constants = {**scale, "w": normal(1, 4, 4, 1, 1)}
        return model_of(nodes, constants, [1, 4, 5, 5], {"y": [1, 4, 5, 5]})

    def test_what_computes_in_which_precision(self) -> None:
        nodes = {node.name: node for node in artifact_nodes(self.qdq())}
        assert {n.name for n in nodes.values() if n.kind == "quantized"} == {"conv1", "conv2", "selu"}
        model = self.qdq()
        # Without the quantizer behind it, Selu is no integer operator.
        kept = [node for node in model.graph.node if not node.name.startswith("e_")]
        next(node for node in kept if node.name == "conv2").input[0] = "e"
        del model.graph.node[:]
        model.graph.node.extend(kept)
        nodes = {node.name: node for node in artifact_nodes(model)}
        assert nodes["selu"].kind == "float"
        assert nodes["conv2"].kind == "float"
        assert nodes["conv1"].kind == "quantized"
        assert nodes["x_Q"].kind == "switch"
        assert nodes["c_DQ"].kind == "switch"
        assert nodes["c_Q"].kind == "folded"
        # 100 floats in, 100 bytes out.
        assert nodes["x_Q"].moved_bytes == 400 + 100

    def test_the_receipt_says_what_ran(self) -> None:
        nodes = [ArtifactNode("q", "QuantizeLinear", "switch", 10), ArtifactNode("r", "QuantizeLinear", "folded", 10)]
        receipt = {"nodes": {"CPUExecutionProvider": ["r"]}, "evidence": ["ort-profile"]}
        assert [n.name for n in executed_switches(nodes, receipt)] == ["r"]
        assert [n.name for n in executed_switches(nodes, {"nodes": {}, "evidence": ["cpu-only"]})] == ["q"]

    def test_conversions_between_float_operators(self) -> None:
        nodes = [
            ArtifactNode("conv", "Conv", "quantized", 1000),
            ArtifactNode("selu", "Selu", "float", 1000),
            *(ArtifactNode(f"q{i}", "QuantizeLinear", "switch", 500) for i in range(6)),
        ]
        facts = TimeFacts(Recipe(), 300, 1000, nodes, [self.board({})])
        found = {finding.code: finding for finding in time_findings(facts)}
        assert set(found) == {"small_but_slow", "left_in_float", "precision_switches"}
        assert found["small_but_slow"].changes == (Change("op_types", [], ["Conv"]),)
        assert found["small_but_slow"].evidence["converted_bytes"] == 3000
        assert found["precision_switches"].severity == "warning"
        assert found["left_in_float"].evidence["operators"] == {"Selu": 1}
        # The same where it is fast accuses nobody.
        fast = self.board({}, latency_ns=5e5, latency_ci95=(4.9e5, 5.1e5))
        assert {f.severity for f in time_findings(TimeFacts(Recipe(), 300, 1000, nodes, [fast]))} == {"info"}
        # Intervals that touch decide nothing.
        close = self.board({}, latency_ci95=(1.05e6, 2.1e6))
        assert "small_but_slow" not in {f.code for f in time_findings(TimeFacts(Recipe(), 300, 1000, nodes, [close]))}

    def test_fallbacks_of_an_accelerator(self) -> None:
        nodes = [ArtifactNode("conv", "Conv", "quantized", 10), ArtifactNode("soft", "Softmax", "quantized", 10)]
        receipt = {
            "nodes": {"VitisAIExecutionProvider": ["conv"], "CPUExecutionProvider": ["soft"]},
            "evidence": ["emulated-cost-model"],
            "offload_ratio": 0.5,
            "time_share": {"CPUExecutionProvider": 0.4, "VitisAIExecutionProvider": 0.6},
            "fallback_reasons": {"soft": "Softmax is not supported"},
        }
        board = self.board(receipt, accelerated=True, min_offload=0.9)
        (slow, fallen) = time_findings(TimeFacts(Recipe(), 300, 1000, nodes, [board]))
        assert slow.code == "small_but_slow"
        assert fallen.severity == "error"
        assert fallen.evidence["operators"] == {"Softmax": 1}
        assert fallen.evidence["reasons"] == {"soft": "Softmax is not supported"}
        assert "50%" in fallen.what


def test_one_thing_is_run_as_the_graph_says_and_another_fused(tmp_path: Path) -> None:
    """What is compared layer by layer is ONNX Runtime's own unoptimised execution."""
    model, artifact = made(net(), Recipe(activation="uint8"), tmp_path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(artifact.SerializeToString(), options)
    x = normal(9, 4, 3, 8, 8)
    expected = np.concatenate([session.run(["y"], {"x": s[None]})[0] for s in x])
    floats = onnxruntime.InferenceSession(model.SerializeToString())
    reference = np.concatenate([floats.run(["y"], {"x": s[None]})[0] for s in x])
    loss = compare(model, artifact, readings_of(model, artifact), [{"x": s[None]} for s in x], tmp_path)["y"]
    assert loss.noise.sum() == pytest.approx(float(np.square(expected.astype(float) - reference).sum()), rel=1e-3)
