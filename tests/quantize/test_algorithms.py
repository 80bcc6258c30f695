"""What each method beyond ranges promises, on small layers and on whole models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, helper
from quantize_models import Array, model_of, weights, write

from harness.quantize.algorithms.align import aligned_ranges
from harness.quantize.algorithms.clip import clipped_rows
from harness.quantize.algorithms.equalize import HEADROOM, equalize
from harness.quantize.algorithms.gram import Moments, gather_moments
from harness.quantize.algorithms.layers import Layer, linear_layers
from harness.quantize.algorithms.regions import UnknownTensorError, nodes_after, nodes_before, nodes_between
from harness.quantize.algorithms.rounding import Grid, reconstruction_error, rounded, second_moments
from harness.quantize.algorithms.smooth import smooth
from harness.quantize.cache import Cache
from harness.quantize.observe import Observer, collect
from harness.quantize.ort_backend import OrtBackend, UnsupportedRecipeError
from harness.quantize.ranges import PERCENTILES, range_for
from harness.quantize.sessions import open_session, run_by_name
from harness.quantize.snr import snr_db
from harness.recipes.recipe import Calibration, Recipe


def uneven_net() -> ModelProto:
    """Conv → Relu → depthwise → LeakyRelu → Conv (2 groups) → MaxPool → Conv → GlobalAveragePool → Flatten → Gemm →
    Relu → Gemm, with channels that differ by orders of magnitude everywhere."""
    spread = np.logspace(-2, 1, 8, dtype=np.float32)
    rolled = [np.roll(spread, k) for k in range(4)]
    constants = {
        "w1": weights(1, 8, 3, 3, 3) * rolled[0][:, None, None, None],
        "b1": weights(2, 8),
        "w2": weights(3, 8, 1, 3, 3) * rolled[1][:, None, None, None],
        "w3": weights(4, 8, 4, 1, 1) * rolled[2][:, None, None, None],
        "b3": weights(5, 8),
        "w4": weights(6, 8, 8, 3, 3) * rolled[3][:, None, None, None],
        "b4": weights(7, 8),
        "w5": weights(8, 8, 6),
        "b5": weights(9, 6),
        "w6": weights(10, 5, 6),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", auto_pad="SAME_UPPER", group=8),
        helper.make_node("LeakyRelu", ["c2"], ["r2"], "relu2"),
        helper.make_node("Conv", ["r2", "w3", "b3"], ["c3"], "conv3", group=2),
        helper.make_node("MaxPool", ["c3"], ["m"], "pool", kernel_shape=[2, 2]),
        helper.make_node("Conv", ["m", "w4", "b4"], ["c4"], "conv4", dilations=[2, 2], pads=[2, 2, 2, 2]),
        helper.make_node("GlobalAveragePool", ["c4"], ["g"], "gap"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w5", "b5"], ["d"], "gemm1"),
        helper.make_node("Relu", ["d"], ["e"], "relu3"),
        helper.make_node("Gemm", ["e", "w6"], ["y"], "gemm2", transB=1),
    ]
    return onnx.shape_inference.infer_shapes(model_of(nodes, constants, {"x": [1, 3, 12, 12]}, {"y": [1, 5]}))


def attention_like(*, residual: bool) -> ModelProto:
    """LayerNormalization with outlying channels, read by a MatMul and a Gemm, and by a residual if asked."""
    scale = np.ones(16, np.float32)
    scale[[3, 9]] = 60.0
    constants = {
        "s": scale, "o": weights(1, 16), "q": weights(2, 16, 12) / scale[:, None], "k": weights(3, 12, 16) / scale,
        "kb": weights(4, 12), "back": weights(5, 12, 16),
    }  # fmt: skip
    nodes = [
        helper.make_node("LayerNormalization", ["x", "s", "o"], ["n"], "norm", axis=-1),
        helper.make_node("MatMul", ["n", "q"], ["mq"], "query"),
        helper.make_node("Gemm", ["n", "k", "kb"], ["mk"], "key", transB=1),
        helper.make_node("Add", ["mq", "mk"], ["sum"], "sum"),
        helper.make_node("MatMul", ["sum", "back"], ["z"], "back"),
        helper.make_node("Add", ["z", "n" if residual else "x"], ["y"], "residual"),
    ]
    return onnx.shape_inference.infer_shapes(model_of(nodes, constants, {"x": [6, 16]}, {"y": [6, 16]}))


def feeds_of(model: ModelProto, count: int, seed: int = 0) -> list[dict[str, Array]]:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def outputs(model: ModelProto, feeds: Sequence[dict[str, Array]]) -> list[Array]:
    session = open_session(model.SerializeToString())
    return [np.asarray(run_by_name(session, feed)["y"]) for feed in feeds]


def copied(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def layer(model: ModelProto, name: str) -> Layer:
    return next(found for found in linear_layers(model) if found.node.name == name)


# Cross-layer equalization.


def test_equalization_keeps_the_function_and_evens_ranges() -> None:
    model, feeds = uneven_net(), feeds_of(uneven_net(), 5)
    before, expected = copied(model), outputs(model, feeds)
    assert equalize(model) == 5
    for got, wanted in zip(outputs(model, feeds), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * float(np.abs(wanted).max()))
    for first, second in (
        ("conv1", "conv2"),
        ("conv2", "conv3"),
        ("conv3", "conv4"),
        ("conv4", "gemm1"),
        ("gemm1", "gemm2"),
    ):
        was = layer(before, first).output_magnitudes() / layer(before, second).input_magnitudes()
        now = layer(model, first).output_magnitudes() / layer(model, second).input_magnitudes()
        # Balanced: what a channel gives and what reads it have the same range.
        assert np.abs(np.log(now)).max() < 0.05 < np.abs(np.log(was)).max()


def test_equalization_leaves_alone_what_others_read() -> None:
    model = uneven_net()
    model.graph.output.append(helper.make_tensor_value_info("r1", onnx.TensorProto.FLOAT, [1, 8, 6, 6]))
    before = layer(model, "conv1").weights.copy()
    assert equalize(model) == 4
    np.testing.assert_array_equal(layer(model, "conv1").weights, before)


def test_equalization_stops_at_what_does_not_scale() -> None:
    constants = {"a": weights(1, 4, 3, 1, 1), "b": weights(2, 5, 4, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c"], "one"),
        helper.make_node("Sigmoid", ["c"], ["s"], "sigmoid"),
        helper.make_node("Conv", ["s", "b"], ["y"], "two"),
    ]
    assert equalize(model_of(nodes, constants, {"x": [1, 3, 4, 4]}, {"y": [1, 5, 4, 4]})) == 0


def test_equalization_under_a_bound_changes_nothing_on_the_samples_seen() -> None:
    spread = np.logspace(-2, 1, 8, dtype=np.float32)
    constants = {
        "a": weights(1, 8, 3, 1, 1) * spread[:, None, None, None], "b": weights(2, 5, 8, 1, 1),
        "zero": np.float32(0), "six": np.float32(6),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c"], "one"),
        helper.make_node("Clip", ["c", "zero", "six"], ["r"], "clip"),
        helper.make_node("Conv", ["r", "b"], ["y"], "two"),
    ]
    model = model_of(nodes, constants, {"x": [1, 3, 6, 6]}, {"y": [1, 5, 6, 6]})  # type: ignore[arg-type]
    model = onnx.shape_inference.infer_shapes(model)
    feeds = feeds_of(model, 10)
    expected, before = outputs(model, feeds), copied(model)
    statistics = collect(model, ["c"], feeds)
    channels = statistics["c"].channels
    assert channels is not None
    saturated = channels.highest * HEADROOM > 6.0
    assert 0 < saturated.sum() < 8
    assert equalize(model) == 0, "unknown what the bound cuts off"
    assert equalize(model, statistics) == 1
    for got, wanted in zip(outputs(model, feeds), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    was, now = layer(before, "one").output_magnitudes(), layer(model, "one").output_magnitudes()
    np.testing.assert_array_equal(was[saturated], now[saturated])
    assert np.ptp(np.log(now[~saturated])) < np.ptp(np.log(was[~saturated]))
    after = collect(model, ["c"], feeds)["c"].channels
    assert after is not None
    assert (after.highest[~saturated] <= 6.0).all()


# SmoothQuant.


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.9])
def test_smoothing_keeps_the_function_and_moves_outliers(residual: bool, alpha: float) -> None:
    model = attention_like(residual=residual)
    feeds = feeds_of(model, 8)
    expected = outputs(model, feeds)
    statistics = collect(model, ["n"], feeds)
    done = smooth(model, statistics, alpha)
    assert done.places == 1
    assert len(done.inserted) == (1 if residual else 0)
    for got, wanted in zip(outputs(model, feeds), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * float(np.abs(wanted).max()))
    read = layer(model, "query").input
    assert (read != "n") == residual
    channels = collect(model, [read], feeds)[read].channels
    raw = statistics["n"].channels
    assert channels is not None
    assert raw is not None
    spread = np.ptp(np.log(channels.magnitude))
    assert spread < 0.8 * np.ptp(np.log(raw.magnitude))


def test_smoothing_is_that_of_the_paper() -> None:
    model = attention_like(residual=False)
    feeds = feeds_of(model, 8)
    channels = collect(model, ["n"], feeds)["n"].channels
    assert channels is not None
    matrices = np.concatenate([layer(model, "query").weights, layer(model, "key").weights.T], axis=1)
    factors = np.sqrt(channels.magnitude / np.abs(matrices).max(axis=1))
    expected = layer(model, "query").weights * factors[:, None]
    smooth(model, collect(model, ["n"], feeds), 0.5)
    np.testing.assert_allclose(layer(model, "query").weights, expected, rtol=1e-5)


# Weights.


@given(st.integers(0, 1000), st.booleans(), st.sampled_from([4, 8]))
@settings(max_examples=20, deadline=None)
def test_clipped_weights_quantize_better(seed: int, symmetric: bool, bits: int) -> None:
    rows = np.random.default_rng(seed).standard_t(3, (6, 200)).astype(np.float32)
    clipped = clipped_rows(rows, bits, symmetric)

    def error(source: Array) -> Array:
        low, high = np.minimum(source.min(1), 0), np.maximum(source.max(1), 0)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        scale = ((high - low) / (2**bits - (2 if symmetric else 1)))[:, None]
        zero = np.round(-low[:, None] / scale)
        top = 2**bits - (2 if symmetric else 1)
        back = (np.clip(np.round(rows / scale) + zero, 0, top) - zero) * scale
        return np.asarray(np.square(back - rows).sum(1))

    assert (error(clipped) <= error(rows) * (1 + 1e-4)).all()
    assert error(clipped).sum() < error(rows).sum() or bits == 8


# Rounding.


def _problem(seed: int, outputs: int, inputs: int, bits: int = 4) -> tuple[Array, Grid, Moments]:
    random = np.random.default_rng(seed)
    matrix = random.standard_normal((outputs, inputs))
    mixing = random.standard_normal((inputs, inputs))
    x = (random.standard_normal((1, 500, inputs)) @ mixing + random.standard_normal(inputs)).astype(np.float32)
    q = np.round(x / 0.3) * 0.3
    moments = Moments.empty(1, inputs)
    moments.add(x, q.astype(np.float32))
    top = 2 ** (bits - 1) - 1
    grid = Grid(np.abs(matrix).max(1, keepdims=True) / top, np.zeros((outputs, 1)), -top, top)
    return matrix, grid, moments


@given(st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_rounding_lowers_the_error_of_the_layer(seed: int) -> None:
    matrix, grid, moments = _problem(seed, 5, 12)
    qq, xq = second_moments(moments, 0, centered=False)
    nearest = reconstruction_error(matrix, grid.values(grid.nearest(matrix)), qq, xq)
    up_or_down = rounded(matrix, grid, moments, either_way=True, centered=False)
    exact = matrix / grid.scale
    assert ((up_or_down == np.floor(exact)) | (up_or_down == np.ceil(exact))).all()
    free = rounded(matrix, grid, moments, either_way=False, centered=False)
    assert (np.abs(free) <= grid.highest).all()
    errors = [reconstruction_error(matrix, grid.values(integers), qq, xq) for integers in (up_or_down, free)]
    assert errors[0] < nearest
    assert errors[1] < nearest
    np.testing.assert_array_equal(free, rounded(matrix, grid, moments, either_way=False, centered=False))


@given(st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_no_other_integer_would_lower_the_error(seed: int) -> None:
    matrix, grid, moments = _problem(seed, 2, 7)
    qq, xq = second_moments(moments, 0, centered=False)
    floor = np.clip(np.floor(matrix / grid.scale), grid.lowest, grid.highest)
    ceiling = np.clip(np.ceil(matrix / grid.scale), grid.lowest, grid.highest)
    for either_way, choices in ((True, (floor, ceiling)), (False, range(grid.lowest, grid.highest + 1))):
        integers = rounded(matrix, grid, moments, either_way=either_way, centered=False)
        reached = reconstruction_error(matrix, grid.values(integers), qq, xq)
        for row, column, choice in product(range(2), range(7), choices):
            other = integers.copy()
            other[row, column] = choice[row, column] if either_way else choice
            assert reconstruction_error(matrix, grid.values(other), qq, xq) >= reached - 1e-9 * abs(reached)


def test_moments_are_those_of_the_windows_a_convolution_sees() -> None:
    model = uneven_net()
    feeds = feeds_of(model, 3)
    layers = linear_layers(model)
    moments = gather_moments(model, layers, feeds)
    names = [found.output for found in layers]
    shown = collect(model, names, feeds)
    for found in layers:
        value = moments[found.name]
        channels = shown[found.output].channels
        assert channels is not None
        # Every place is taken here (at most 36 a sample), so the mean of the output follows from that of the windows.
        matrix = found.matrix().reshape(found.groups, -1, value.x.shape[1])
        mean = np.einsum("goi,gi->go", matrix, value.x / value.count).ravel()
        bias = next((onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == found.bias), 0.0)
        np.testing.assert_allclose(mean + bias, channels.mean, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(value.qq, value.xq)
        assert np.linalg.eigvalsh(value.qq[0]).min() > -1e-3 * abs(np.trace(value.qq[0]))


# Ranges and regions.


def test_aligned_operators_share_one_range() -> None:
    nodes = [
        helper.make_node("Add", ["a", "b"], ["s"], "add"),
        helper.make_node("Concat", ["s", "c"], ["t"], "concat", axis=1),
        helper.make_node("Relu", ["t"], ["y"], "relu"),
    ]
    model = model_of(nodes, {}, {n: [1, 2] for n in "abc"}, {"y": [1, 4]})
    ranges = {"a": (-1.0, 2.0), "b": (-5.0, 1.0), "s": (-3.0, 3.0), "c": (0.0, 7.0), "t": (-3.0, 7.0), "y": (0.0, 7.0)}
    only = aligned_ranges(model, ranges, ["Concat"])
    assert only == {**ranges, "s": (-3.0, 7.0), "c": (-3.0, 7.0), "t": (-3.0, 7.0)}
    both = aligned_ranges(model, ranges, ["Concat", "Add"])
    assert {both[n] for n in "abcst"} == {(-5.0, 7.0)}
    assert both["y"] == (0.0, 7.0)
    assert aligned_ranges(model, ranges, ["Concat"], ["concat"]) == ranges


def test_regions() -> None:
    model = attention_like(residual=True)
    assert nodes_after(model, ["sum"]) == {"back", "residual"}
    assert nodes_after(model, ["n"]) == {"query", "key", "sum", "back", "residual"}
    assert nodes_before(model, ["mq"]) == {"norm", "query"}
    assert nodes_between(model, "n", "sum") == {"query", "key", "sum"}
    assert nodes_between(model, "mk", "mq") == set()
    with pytest.raises(UnknownTensorError, match=r"'summ'(.|\n)*did you mean 'sum'"):
        nodes_after(model, ["summ"])


# Whole recipes.


class Bench:
    def __init__(self, folder: Path, model: ModelProto, count: int = 48) -> None:
        self.folder = folder
        self.model = write(model, folder / "m.onnx")
        self.feeds = feeds_of(model, count)
        self.data = folder / "c.npz"
        stacked = np.stack([feed["x"] for feed in self.feeds])
        np.savez(self.data, x=stacked[:, 0] if stacked.shape[1] == 1 else stacked)
        self.expected = outputs(model, self.feeds)
        self.cache = Cache(folder / "cache")

    def make(self, recipe: Recipe) -> tuple[ModelProto, list[Array]]:
        out = self.folder / f"{recipe.digest[:8]}.onnx"
        OrtBackend(cache=self.cache).quantize(self.model, self.data, recipe, out)
        made = onnx.load(out)
        onnx.checker.check_model(made, full_check=True)
        again = self.folder / "again.onnx"
        OrtBackend().quantize(self.model, self.data, recipe, again)
        assert again.read_bytes() == out.read_bytes(), "neither the cache nor the time changes what is made"
        return made, outputs(made, self.feeds)

    def snr(self, recipe: Recipe) -> float:
        return snr_db(self.expected, self.make(recipe)[1])

    def mean_error(self, recipe: Recipe) -> float:
        return float(np.abs(np.mean(np.array(self.make(recipe)[1]) - np.array(self.expected), axis=0)).mean())


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("uneven"), uneven_net())


@pytest.fixture(scope="module")
def normed(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("normed"), attention_like(residual=True))


BASE = Recipe(activation="uint8", weight="int8")


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_equalized_models_keep_more(uneven: Bench, form: str) -> None:
    plain = BASE.with_changes(format=form)
    assert uneven.snr(plain.with_changes(equalize=True)) > uneven.snr(plain) + 6.0


def test_smoothed_models_keep_more(tmp_path: Path) -> None:
    normed = Bench(tmp_path, attention_like(residual=False))
    assert normed.snr(BASE.with_changes(smooth_alpha=0.5)) > normed.snr(BASE) + 3.0


@pytest.mark.parametrize("rounding", ["adaround", "adaquant"])
@pytest.mark.parametrize(
    "change", [{"weight": "int4", "granularity": "per_channel"}, {"weight": "int8"}, {"format": "QOperator"}], ids=str
)
def test_chosen_integers_keep_more(uneven: Bench, rounding: str, change: dict[str, object]) -> None:
    plain = BASE.with_changes(equalize=True, **change)
    assert uneven.snr(plain.with_changes(rounding=rounding)) > uneven.snr(plain)


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_corrected_biases_lower_the_mean_error(uneven: Bench, form: str) -> None:
    plain = BASE.with_changes(equalize=True, format=form, weight="int8", reduce_range=True)
    assert uneven.mean_error(plain.with_changes(bias_correction=True)) < uneven.mean_error(plain)


def test_everything_at_once_is_a_model(normed: Bench, uneven: Bench) -> None:
    every = BASE.with_changes(
        equalize=True, smooth_alpha=0.5, weight_clip="mse", rounding="adaquant", bias_correction=True,
        align_scales=("Add", "MaxPool"), granularity="per_channel",
    )  # fmt: skip
    assert normed.snr(every) > 15.0
    assert uneven.snr(every) > 15.0


def test_everything_after_a_tensor_stays_float(uneven: Bench) -> None:
    made, _ = uneven.make(BASE.with_changes(exclude_after=["c4"]))
    read = {name for node in made.graph.node if node.op_type == "Gemm" for name in node.input}
    # What the last convolution gives is quantized for it; its readers compute in float.
    assert {"w5", "w6"} <= read
    made, _ = uneven.make(BASE.with_changes(exclude_regions=[["r1", "c3"]]))
    weights_read = [node.input[1] for node in made.graph.node if node.op_type == "Conv"]
    assert [name for name in weights_read if name in ("w1", "w2", "w3", "w4")] == ["w2", "w3"]


def test_overridden_activations_have_their_type(uneven: Bench) -> None:
    made, got = uneven.make(BASE.with_changes(overrides={"c3": "uint16"}))
    kinds = {t.name: t.data_type for t in made.graph.initializer}
    assert kinds["c3_zero_point"] == onnx.TensorProto.UINT16
    assert kinds["c4_zero_point"] == onnx.TensorProto.UINT8
    assert all(np.isfinite(array).all() for array in got)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"exclude_after": ["c44"]}, r"'exclude_after' names 'c44'"),
        ({"exclude_regions": [["c4", "c1"]]}, "no path from 'c4' to 'c1'"),
        ({"exclude_regions": [["c1", "zz"]]}, r"'exclude_regions' names 'zz'"),
        ({"overrides": {"q": "int16"}}, r"'overrides' names 'q'"),
    ],
)
def test_tensors_the_model_does_not_have_are_refused(uneven: Bench, change: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedRecipeError, match=words):
        OrtBackend().quantize(uneven.model, uneven.data, BASE.with_changes(**change), uneven.folder / "no.onnx")


def test_layerwise_percentile_is_the_best_of_them_for_each_activation(uneven: Bench) -> None:
    model = onnx.load(uneven.model)
    statistics = collect(model, ["x", "r1", "r2", "c3"], uneven.feeds)
    for name, stats in statistics.items():
        values = np.concatenate([dict(Observer(model, [name]).observe(feed))[name].ravel() for feed in uneven.feeds])

        def error(low: float, high: float, values: Array = values) -> float:
            low, high = min(low, 0.0), max(high, 0.0)
            scale = (high - low) / 255
            zero = round(-low / scale)
            return float(np.square((np.clip(np.round(values / scale) + zero, 0, 255) - zero) * scale - values).sum())

        chosen = range_for(Recipe.from_dict({"calibration": {"method": "layerwise_percentile"}}), stats)
        for percentile in PERCENTILES:
            single = range_for(Recipe(calibration=Calibration("percentile", percentile)), stats)
            # To the width of a histogram's bin.
            assert error(*chosen) <= error(*single) * 1.05
