"""Each check on a model or a set in which the fault really is, and on one in which it is not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from harness.audit.activations import activation_findings, magnitude_quantile, ranges_of
from harness.audit.finding import Change, Finding, by_severity, changes_between
from harness.audit.graph import graph_findings
from harness.audit.placing import Asked, board_findings
from harness.audit.samples import near_duplicates, sample_findings
from harness.audit.structure import structure_of
from harness.audit.weights import weight_findings, weights_of
from harness.boards.registry import load_registry
from harness.boards.schema import Board
from harness.controller.inventory import Inventory
from harness.data.dataset import Dataset
from harness.quantize.observe import collect
from harness.quantize.statistics import Accumulator
from harness.recipes.recipe import Calibration, Recipe
from harness.tensors import TensorSpec

Array = npt.NDArray[np.float32]
rng = np.random.default_rng


def model_of(
    nodes: list[object], constants: dict[str, Array], x: list[int | str], y: list[int | str], **types: list[int]
) -> ModelProto:
    """x -> y; ``types`` are shapes of values between."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
        value_info=[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in types.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def normal(seed: int, *shape: int) -> Array:
    return rng(seed).standard_normal(shape).astype(np.float32)


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def one(findings: list[Finding], code: str) -> Finding:
    found = [finding for finding in findings if finding.code == code]
    assert len(found) == 1, codes(findings)
    return found[0]


def dataset(x: Array, labels: npt.NDArray[np.int64] | None = None, origin: str = "calib.npz") -> Dataset:
    return Dataset({"x": x}, None, labels, origin)


class TestStructure:
    def test_macs_are_the_closed_forms(self) -> None:
        nodes = [
            helper.make_node("Conv", ["x", "w1"], ["a"], "conv", pads=[1, 1, 1, 1], strides=[2, 2]),
            helper.make_node("Conv", ["a", "w2"], ["b"], "depthwise", pads=[1, 1, 1, 1], group=8),
            helper.make_node("ConvTranspose", ["b", "w3"], ["c"], "up", strides=[2, 2]),
            helper.make_node("Flatten", ["c"], ["d"], "flatten"),
            helper.make_node("Gemm", ["d", "w4"], ["y"], "gemm", transB=1),
        ]
        constants = {
            "w1": normal(1, 8, 3, 3, 3),
            "w2": normal(2, 8, 1, 3, 3),
            "w3": normal(3, 8, 2, 2, 2),
            "w4": normal(4, 5, 2 * 12 * 12),
        }
        model = model_of(nodes, constants, [1, 3, 12, 12], [1, 5])
        found = structure_of(model, model)
        # Outputs × inputs of each output: the textbook count.
        expected = {
            "conv": 8 * 6 * 6 * 3 * 9,
            "depthwise": 8 * 6 * 6 * 9,
            "up": 8 * 6 * 6 * 2 * 4,
            "gemm": 5 * 2 * 12 * 12,
        }
        assert found.node_macs == expected
        assert found.macs == sum(expected.values())
        assert found.parameters == sum(value.size for value in constants.values())
        assert found.weight_bytes == 4 * found.parameters
        assert found.shapes["c"] == (1, 2, 12, 12)
        assert found.activation_bytes == 4 * 3 * 12 * 12
        counts = {row.op_type: (row.nodes, row.macs, row.parameters) for row in found.operators}
        assert counts["Conv"] == (2, expected["conv"] + expected["depthwise"], 8 * 27 + 72)
        assert counts["Flatten"] == (1, 0, 0)
        assert found.operators[0].op_type == "Conv"
        assert found.opsets == {"": 17}

    def test_free_dimensions_leave_what_depends_on_them_open(self) -> None:
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "matmul")]
        model = model_of(nodes, {"w": normal(1, 4, 3)}, ["batch", "length", 4], ["batch", "length", 3])
        found = structure_of(model, model)
        assert found.macs is None
        assert found.node_macs is None
        assert found.parameters == 12
        findings = graph_findings(model, found, set_dims={}, prepared=False)
        inner = one(findings, "dynamic_shape")
        assert inner.severity == "warning"
        assert inner.where == ("x:1",)
        assert "--set-dim length=N" in inner.advice
        assert one(findings, "free_batch").where == ("x:0",)
        known = one(graph_findings(model, found, set_dims={"length": 8}, prepared=True), "dynamic_shape")
        assert known.severity == "info"

    def test_what_a_loop_leaves_open_is_not_counted_and_no_failure(self) -> None:
        body = helper.make_graph(
            [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Relu", ["v"], ["v_out"])],
            "body",
            [
                helper.make_tensor_value_info("i", TensorProto.INT64, []),
                helper.make_tensor_value_info("go", TensorProto.BOOL, []),
                helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
            ],
            [
                helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
                helper.make_tensor_value_info("v_out", TensorProto.FLOAT, None),
            ],
        )
        nodes = [
            helper.make_node("Loop", ["times", "", "x"], ["l"], "loop", body=body),
            helper.make_node("MatMul", ["l", "w"], ["y"], "after"),
        ]
        constants = {"w": normal(1, 4, 3), "times": np.array(2, np.int64)}
        model = model_of(nodes, constants, [2, 4], [2, 3])  # type: ignore[arg-type]
        found = structure_of(model, model)
        assert found.nested_nodes == 2
        assert found.parameters == 12
        asked = Asked(model, found, Inventory(frozenset({"MatMul"}), frozenset({"float32"})), 100)
        pi = load_registry().get("rpi5-emulated")
        assert {f.code for f in board_findings(pi, asked)} <= {"runs_in_float"}

    def test_operators_of_a_domain_no_runtime_knows(self) -> None:
        nodes = [helper.make_node("Magic", ["x"], ["y"], "trick", domain="org.example")]
        model = model_of(nodes, {}, [1, 4], [1, 4])
        model.opset_import.append(helper.make_opsetid("org.example", 3))
        structure = structure_of(model_of([], {}, ["n"], ["n"]), model)
        found = one(graph_findings(model, structure, set_dims={}, prepared=True), "custom_operator")
        assert found.where == ("trick",)
        assert found.changes == (Change("exclude_nodes", None, ["trick"]),)


class TestWeights:
    def test_depthwise_channels_of_different_size(self) -> None:
        weight = normal(1, 6, 1, 3, 3)
        weight /= np.abs(weight).reshape(6, -1).max(axis=1)[:, None, None, None]
        weight[2] *= 1e-3
        nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "dw", group=6)]
        model = model_of(nodes, {"w": weight}, [1, 6, 5, 5], [1, 6, 3, 3])
        found = one(weight_findings(model), "weight_spread")
        evidence = found.evidence["operators"]["dw"]
        assert evidence["largest_over_smallest"] == pytest.approx(1000.0, rel=1e-5)
        assert evidence["lost_channels"] == [2]
        assert evidence["depthwise"] is True
        assert Change("granularity", None, "per_channel") in found.changes

    def test_dead_channels_and_whether_they_have_a_bias(self) -> None:
        weight = normal(1, 4, 3, 1, 1)
        weight[1] = 0.0
        weight[3] = 1e-30  # what a normalization leaves of a pruned channel
        nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv")]
        biased = np.array([0, 1, 0, 0], np.float32)
        model = model_of(nodes, {"w": weight, "b": biased}, [1, 3, 2, 2], [1, 4, 2, 2])
        found = one(weight_findings(model), "dead_weights")
        assert found.evidence["operators"]["conv"]["channels"] == [1, 3]
        assert "bias" in found.what
        assert codes(weight_findings(model)) == ["dead_weights"], "as good as zero is not small"

    @pytest.mark.parametrize(("transposed", "shape"), [(0, (6, 4)), (1, (4, 6))])
    def test_output_channels_of_matrices(self, transposed: int, shape: tuple[int, int]) -> None:
        weight = normal(1, *shape)
        if transposed:
            weight[3] = 0.0
        else:
            weight[:, 3] = 0.0
        nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], "gemm", transB=transposed)]
        (found,) = weights_of(model_of(nodes, {"w": weight}, [1, 6], [1, 4]))
        assert found.dead.tolist() == [3]

    def test_output_channels_of_a_grouped_transposed_convolution(self) -> None:
        """[inputs 4, outputs of a group 3]: the second group's outputs are 3, 4, 5."""
        weight = normal(1, 4, 3, 2, 2)
        weight[2:, 1] = 0.0
        nodes = [helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up", group=2)]
        (found,) = weights_of(model_of(nodes, {"w": weight}, [1, 4, 2, 2], [1, 6, 3, 3]))
        assert found.dead.tolist() == [4]

    def test_good_weights_are_no_finding(self) -> None:
        nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv")]
        assert weight_findings(model_of(nodes, {"w": normal(1, 16, 8, 3, 3)}, [1, 8, 5, 5], [1, 16, 3, 3])) == []

    def test_weights_that_are_not_finite(self) -> None:
        weight = normal(1, 4, 3, 1, 1)
        weight[0, 0] = np.nan
        nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv")]
        found = one(weight_findings(model_of(nodes, {"w": weight}, [1, 3, 2, 2], [1, 4, 2, 2])), "weights_not_finite")
        assert found.severity == "error"


class TestActivations:
    def found(self, x: Array, weight: Array | None = None) -> list[Finding]:
        """Findings of x -> Relu -> Conv -> y over samples ``x``."""
        weight = normal(1, 4, x.shape[1], 1, 1) if weight is None else weight
        nodes = [
            helper.make_node("Relu", ["x"], ["r"], "relu"),
            helper.make_node("Conv", ["r", "w"], ["y"], "conv"),
        ]
        shape = [1, *x.shape[1:]]
        model = model_of(nodes, {"w": weight}, shape, [1, 4, *x.shape[2:]], r=shape)
        seen = collect(model, ["x", "r", "y"], [{"x": sample[None]} for sample in x])
        return activation_findings(model, seen)

    def test_a_quantile_of_magnitudes_is_numpys(self) -> None:
        values = rng(3).laplace(size=50_000).astype(np.float32)
        gathered = Accumulator(histogram=True)
        gathered.add(values)
        result = gathered.result()
        assert result is not None
        assert result.histogram is not None
        bin_width = 2.0 * result.histogram.half_width / len(result.histogram.counts)
        for share in (0.5, 0.99, 0.999):
            exact = np.quantile(np.abs(values), share)
            assert magnitude_quantile(result.histogram, share) == pytest.approx(exact, abs=2 * bin_width)
        assert magnitude_quantile(result.histogram, 1.0) == pytest.approx(np.abs(values).max(), abs=bin_width)

    def test_a_long_tail(self) -> None:
        x = normal(1, 8, 3, 16, 16)
        x[0, 0, 0, 0] = 200.0
        found = one(self.found(x), "long_tail")
        assert {"x", "r"} <= set(found.where)
        evidence = found.evidence["activations"]["x"]
        assert evidence["highest"] == 200.0
        share = np.quantile(np.abs(x), 0.999)
        assert evidence["largest_over_percentile"] == pytest.approx(200.0 / share, rel=0.05)
        assert Change("calibration.method", None, "percentile") in found.changes

    def test_ordinary_activations_are_no_finding(self) -> None:
        assert self.found(normal(1, 16, 3, 16, 16)) == []

    def test_channels_that_are_never_active(self) -> None:
        x = normal(1, 16, 3, 8, 8)
        x[:, 1] = -np.abs(x[:, 1])
        found = one(self.found(x), "dead_channels")
        assert found.evidence["activations"] == {"r": {"channels": [1], "dead": 1, "of": 3}}
        assert "'relu'" in found.what

    def test_an_activation_that_is_always_zero(self) -> None:
        found = self.found(-np.abs(normal(1, 4, 3, 4, 4)) - 0.1)
        assert one(found, "dead_activation").where == ("r", "y")

    def test_a_softmax_of_many_classes_has_no_outliers(self) -> None:
        nodes = [
            helper.make_node("Softmax", ["x"], ["s"], "softmax"),
            helper.make_node("Transpose", ["s"], ["y"], "turn", perm=[1, 0]),
        ]
        model = model_of(nodes, {}, [1, 4000], [4000, 1], s=[1, 4000])
        seen = collect(model, ["x", "s", "y"], [{"x": 10.0 * normal(i, 1, 4000)} for i in range(4)])
        assert next(found for found in ranges_of(seen) if found.tensor == "y").tail > 8  # type: ignore[operator]
        assert activation_findings(model, seen) == []

    def test_masks_are_told_and_broken_values_accused(self) -> None:
        nodes = [
            helper.make_node("Add", ["x", "mask"], ["s"], "add"),
            helper.make_node("Softmax", ["s"], ["y"], "softmax"),
        ]
        mask = np.array([[0, 0, -1e9, 0]], np.float32)
        model = model_of(nodes, {"mask": mask}, [1, 4], [1, 4], s=[1, 4])
        seen = collect(model, ["x", "s", "y"], [{"x": normal(i, 1, 4)} for i in range(4)])
        found = one(activation_findings(model, seen), "mask")
        assert found.severity == "info"
        assert {"mask", "s"} <= set(found.evidence["tensors"])
        nodes = [helper.make_node("Log", ["x"], ["l"], "log"), helper.make_node("Neg", ["l"], ["y"], "neg")]
        model = model_of(nodes, {}, [1, 4], [1, 4], l=[1, 4])
        seen = collect(model, ["x", "l", "y"], [{"x": np.array([[1, 2, -1, 3]], np.float32)}])
        findings = activation_findings(model, seen, broken={"l", "y"})
        assert codes(findings) == ["non_finite_activation", "non_finite_activation"]
        assert findings[0].evidence == {"non_finite": 1, "values": 4}

    def test_ranges_are_what_was_seen(self) -> None:
        gathered = Accumulator(histogram=True)
        gathered.add(np.array([-1.0, 3.0], np.float32))
        result = gathered.result()
        assert result is not None
        (found,) = ranges_of({"t": result})
        assert (found.lowest, found.highest, found.count) == (-1.0, 3.0, 2)
        assert found.tail is None, "two values have no 99.9 % quantile"


class TestSamples:
    inputs = (TensorSpec("x", "float32", (1, 3, 8, 8)),)

    def test_few(self) -> None:
        found = sample_findings(dataset(normal(1, 8, 3, 8, 8)), None, self.inputs)
        assert one(found, "few_samples").evidence["samples"] == 8

    def test_frames_of_one_video(self) -> None:
        scenes = normal(1, 4, 3, 8, 8)
        frames = np.repeat(scenes, 16, axis=0) + 0.005 * normal(2, 64, 3, 8, 8)
        found = one(sample_findings(dataset(frames), None, self.inputs), "samples_alike")
        assert found.evidence["share"] == 1.0
        first, second = found.evidence["pairs"][0]
        assert first // 16 == second // 16
        assert first != second

    def test_different_samples_are_no_finding(self) -> None:
        assert sample_findings(dataset(normal(1, 64, 3, 8, 8)), None, self.inputs) == []

    def test_distances_are_numpys(self) -> None:
        x = normal(1, 20, 3, 2, 2)
        rows, nearest, relative = near_duplicates(dataset(x))
        flat = x.reshape(20, -1) / x.std()
        apart = np.linalg.norm(flat[:, None] - flat[None], axis=2)
        typical = np.sqrt(np.mean(apart**2))
        np.fill_diagonal(apart, np.inf)
        assert rows.tolist() == list(range(20))
        assert nearest.tolist() == apart.argmin(axis=1).tolist()
        assert relative == pytest.approx(apart.min(axis=1) / typical, rel=1e-4)

    def test_all_the_same_sample(self) -> None:
        # The mean is far from zero, where differences drown in rounding.
        x = np.repeat(normal(1, 1, 3, 8, 8) + 100.0, 40, axis=0)
        assert one(sample_findings(dataset(x), None, self.inputs), "samples_alike").evidence["share"] == 1.0

    def test_missing_classes(self) -> None:
        labels = np.repeat(np.arange(4), 10)
        found = one(sample_findings(dataset(normal(1, 40, 3, 8, 8), labels), None, self.inputs, 5), "missing_classes")
        assert found.evidence["classes"] == [4]
        evaluation = dataset(normal(2, 60, 3, 8, 8), np.repeat(np.arange(6), 10), "eval.npz")
        found = one(
            sample_findings(dataset(normal(1, 40, 3, 8, 8), labels), evaluation, self.inputs), "missing_classes"
        )
        assert found.evidence["classes"] == [4, 5]

    def test_a_different_scale(self) -> None:
        calib = dataset(normal(1, 40, 3, 8, 8))
        found = sample_findings(calib, dataset(255.0 * normal(2, 40, 3, 8, 8), origin="eval.npz"), self.inputs)
        assert one(found, "calibration_unlike_evaluation").severity == "error"
        found = sample_findings(calib, dataset(2.5 * normal(2, 40, 3, 8, 8), origin="eval.npz"), self.inputs)
        unlike = one(found, "calibration_unlike_evaluation")
        assert unlike.severity == "warning"
        assert unlike.evidence["evaluation_range_of_x"][1] > 2 * unlike.evidence["calibration_range_of_x"][1]

    def test_the_same_samples_twice(self) -> None:
        calib = dataset(normal(1, 40, 3, 8, 8))
        found = sample_findings(calib, dataset(calib.inputs["x"].copy(), origin="eval.npz"), self.inputs)
        assert codes(found) == ["shared_samples"]


def board(**sections: object) -> Board:
    return Board.model_validate(
        {
            "apiVersion": "boardtune/v1",
            "kind": "Board",
            "metadata": {"name": "alpha"},
            "transport": {"kind": "ssh", "host": "192.0.2.1"},
            **sections,
        }
    )


class TestBoards:
    def asked(self) -> Asked:
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
            helper.make_node("Selu", ["c"], ["y"], "selu"),
        ]
        model = model_of(nodes, {"w": normal(1, 16, 8, 3, 3)}, [1, 8, 8, 8], [1, 16, 6, 6])
        return Asked(
            model, structure_of(model, model), Inventory(frozenset({"Conv", "Selu"}), frozenset({"float32"})), 5000
        )

    def test_without_limits_there_is_nothing_to_say(self) -> None:
        assert board_findings(board(), self.asked()) == []

    def test_operators_it_does_not_have(self) -> None:
        found = board_findings(
            board(limits={"operators": ["Conv", "QuantizeLinear", "DequantizeLinear"]}), self.asked()
        )
        unsupported = one(found, "unsupported_operator")
        assert unsupported.severity == "error"
        assert unsupported.where == ("alpha", "selu")
        assert unsupported.evidence["operators"] == {"Selu": 1}
        found = board_findings(board(limits={"operators": ["Conv", "Selu"]}), self.asked())
        assert one(found, "no_quantize_operators").changes == (Change("format", None, "QOperator"),)

    def test_types_sizes_and_memory(self) -> None:
        found = board_findings(board(limits={"data_types": ["int8", "int32"]}), self.asked())
        assert one(found, "unsupported_data_type").evidence["data_types"] == ["float32"]
        found = board_findings(board(limits={"max_model_bytes": 2000}), self.asked())
        # 5000 bytes, of which 1152 float32 weights take 4608: about 1544 with 8-bit ones.
        assert one(found, "model_too_large").evidence["quantized_bytes"] == 5000 - 3 * 1152
        assert one(found, "model_too_large").severity == "warning"
        found = board_findings(board(limits={"max_model_bytes": 1000}), self.asked())
        assert one(found, "model_too_large").severity == "error"
        found = board_findings(board(limits={"max_memory_bytes": 4000}), self.asked())
        memory = one(found, "memory")
        assert memory.evidence["float_bytes"] == 4608 + 4 * 16 * 6 * 6
        assert memory.severity == "warning"


def test_the_worst_comes_first() -> None:
    made = [Finding("a", "info", ""), Finding("b", "error", ""), Finding("c", "warning", ""), Finding("d", "error", "")]
    assert codes(list(by_severity(made))) == ["b", "d", "c", "a"]


def test_changes_between_recipes_name_fields_as_files_do() -> None:
    before = Recipe()
    after = before.with_changes(calibration=Calibration("percentile", 99.9), exclude_nodes=("head",))
    assert changes_between(before, after) == (
        Change("exclude_nodes", [], ["head"]),
        Change("calibration.method", "minmax", "percentile"),
        Change("calibration.percentile", None, 99.9),
    )
