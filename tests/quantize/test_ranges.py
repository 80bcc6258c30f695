"""Statistics and ranges against numpy and against ONNX Runtime's own calibrators."""

from __future__ import annotations

import contextlib
import io
import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime.quantization.calibrate as ort_calibrate
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnxruntime.quantization.quant_utils import smooth_distribution
from quantize_models import Array, conv_net, samples, write
from scipy.special import lambertw

from harness.errors import DataError
from harness.quantize.calibration_data import CalibrationSet, nested_order
from harness.quantize.npz_map import read_npz
from harness.quantize.observe import collect
from harness.quantize.ranges import (
    entropy_threshold,
    kl_bins,
    lambert_w,
    laplace_range,
    mse_range,
    percentile_range,
    power_of_two_mse_range,
    range_for,
    rebinned,
)
from harness.quantize.shapes import tensor_specs
from harness.quantize.statistics import Accumulator, ActivationStatistics, Histogram, observed_tensors
from harness.recipes.recipe import Calibration, Recipe
from harness.tensors import TensorSpec


def accumulated(*arrays: Array, bins: int = 8192) -> ActivationStatistics:
    accumulator = Accumulator(histogram=True, bins=bins)
    for array in arrays:
        accumulator.add(array)
    result = accumulator.result()
    assert result is not None
    return result


_FINITE = hnp.arrays(
    np.float32, st.integers(1, 40), elements=st.floats(-(2.0**20), 2.0**20, width=32, allow_subnormal=False)
)


@given(st.lists(_FINITE, min_size=1, max_size=5))
def test_streaming_equals_all_at_once(parts: list[Array]) -> None:
    whole = np.concatenate(parts)
    stats = accumulated(*parts, bins=64)
    assert (stats.lowest, stats.highest, stats.count) == (whole.min(), whole.max(), whole.size)
    if not whole.any():
        assert stats.histogram is None
        return
    assert stats.histogram is not None
    half = stats.histogram.half_width
    # The smallest power of two above the largest magnitude, whatever the order of the parts.
    assert half / 2 <= np.abs(whole).max() < half
    assert math.log2(half).is_integer()
    expected, _ = np.histogram(whole.astype(np.float64), bins=64, range=(-half, half))
    np.testing.assert_array_equal(stats.histogram.counts, expected)


def test_non_finite_values_are_counted_and_left_out() -> None:
    stats = accumulated(np.array([1.0, np.nan, -np.inf, 2.0, np.inf], np.float32))
    assert (stats.lowest, stats.highest, stats.count, stats.non_finite) == (1.0, 2.0, 2, 3)
    nothing = Accumulator(histogram=True)
    nothing.add(np.array([np.nan], np.float32))
    nothing.add(np.zeros((0, 3), np.float32))
    assert nothing.result() is None


# Against ONNX Runtime.


def _ort_ranges(model: Path, feeds: list[dict[str, Array]], method: str, **options: object) -> dict[str, tuple]:
    class Reader(ort_calibrate.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(feeds)

        def get_next(self) -> dict[str, Array] | None:
            return next(self._left, None)

    calibrator = ort_calibrate.create_calibrator(
        model,
        augmented_model_path=str(model.with_suffix(".augmented.onnx")),
        calibrate_method=ort_calibrate.CalibrationMethod[method],
        extra_options=options,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        calibrator.collect_data(Reader())
        data = calibrator.compute_data()
    return {name: tuple(float(np.squeeze(v)) for v in t.range_value) for name, t in data.items()}


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict], dict[str, ActivationStatistics]]:
    folder = tmp_path_factory.mktemp("calibration")
    model = onnx.shape_inference.infer_shapes(conv_net())
    path = write(model, folder / "m.onnx")
    data = CalibrationSet.read(samples(folder / "c.npz", x=(3, 12, 12)), tensor_specs(list(model.graph.input)))
    feeds = list(data.feeds())
    types = {node.op_type for node in model.graph.node}
    return path, feeds, collect(model, observed_tensors(model, types), feeds)


def test_minmax_is_onnxruntimes(observed: tuple) -> None:
    path, feeds, statistics = observed
    theirs = _ort_ranges(path, feeds, "MinMax")
    assert set(statistics) == set(theirs)
    for name, stats in statistics.items():
        ours = range_for(Recipe(), stats)
        np.testing.assert_allclose(ours, theirs[name], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("percentile", [99.0, 99.99])
def test_percentile_is_onnxruntimes_to_a_bin(observed: tuple, symmetric: bool, percentile: float) -> None:
    path, feeds, statistics = observed
    theirs = _ort_ranges(path, feeds, "Percentile", percentile=percentile, symmetric=symmetric, num_bins=8192)
    recipe = Recipe(activation_symmetric=symmetric, calibration=Calibration("percentile", percentile))
    for name, stats in statistics.items():
        assert stats.histogram is not None
        width = 2 * stats.histogram.half_width / 8192
        np.testing.assert_allclose(range_for(recipe, stats), theirs[name], atol=2.01 * width, err_msg=name)


@given(st.integers(0, 10_000), st.sampled_from(["normal", "laplace", "relu", "outlier"]))
@settings(max_examples=6, deadline=None)
def test_entropy_is_onnxruntimes_algorithm(seed: int, shape: str) -> None:
    generator = np.random.default_rng(seed)
    values = generator.laplace(size=4000) if shape == "laplace" else generator.standard_normal(4000)
    if shape == "relu":
        values = np.maximum(values, 0)
    if shape == "outlier":
        values[:3] = 20.0
    values = values.astype(np.float32)
    threshold = float(np.abs(values).max())
    bins, levels = 512, 64
    counts, edges = np.histogram(values, bins, range=(-threshold, threshold))
    collector = ort_calibrate.HistogramCollector("entropy", False, bins, levels, 99.9, "same")
    edges32 = edges.astype(np.float32)
    theirs = collector.get_entropy_threshold(
        (counts, edges32, np.float32(-threshold), np.float32(threshold), threshold), levels
    )
    ours = entropy_threshold(Histogram(counts, threshold), levels)
    assert abs(ours - float(theirs[1])) <= 1e-6 * threshold or _nearly_tied(
        counts, edges, ours, float(theirs[1]), levels
    )


def test_entropy_of_few_values_is_onnxruntimes_default(observed: tuple) -> None:
    """128 bins for 128 levels leave the whole range. In 2048 bins such counts are noise, and nearly all is cut."""
    path, feeds, _ = observed
    model = onnx.load(path)
    few = collect(model, observed_tensors(model, {n.op_type for n in model.graph.node}), feeds[:1])
    theirs = _ort_ranges(path, feeds[:1], "Entropy")
    small = {name: stats for name, stats in few.items() if stats.histogram and stats.histogram.counts.sum() < 16384}
    assert small
    for name, stats in small.items():
        ours = range_for(Recipe(activation="uint8", calibration=Calibration("entropy")), stats)
        np.testing.assert_allclose(ours, theirs[name], rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize(("values", "bins"), [(10, 128), (16_000, 128), (16_384, 256), (70_000, 1024), (10**6, 2048)])
def test_bins_of_the_entropy_search_grow_with_the_values(values: int, bins: int) -> None:
    counts = np.zeros(8192, dtype=np.int64)
    counts[4000] = values
    assert kl_bins(Histogram(counts, 1.0)) == bins


def _nearly_tied(counts: Array, edges: Array, ours: float, theirs: float, levels: int) -> bool:
    """Theirs is computed in float32; two thresholds may then change places. Written with their own helpers."""
    zero = len(counts) // 2

    def divergence(threshold: float) -> float:
        end = int(np.argmin(np.abs(edges - threshold)))
        half = min(end - zero - 1, zero) if end < len(counts) else zero
        kept = counts[zero - half : end]
        p = kept.copy()
        p[0] += counts[: zero - half].sum()
        p[-1] += counts[end:].sum()
        width = len(kept) // levels
        q = np.zeros(len(kept), np.int64)
        for level in range(levels):
            part = slice(level * width, (level + 1) * width)
            total = kept[part].sum() + (kept[levels * width :].sum() if level == levels - 1 else 0)
            if filled := int((p[part] != 0).sum()):
                q[part] = total / filled
        return float(ort_calibrate.entropy(smooth_distribution(p), smooth_distribution(q)))

    return math.isclose(divergence(ours), divergence(theirs), rel_tol=2e-3)


# Against closed forms and brute force.


def test_percentile_of_a_known_distribution() -> None:
    values = np.linspace(-1.0, 3.0, 400_001, dtype=np.float32)
    stats = accumulated(values)
    assert stats.histogram is not None
    low, high = percentile_range(stats.histogram, 90.0, symmetric=False)
    np.testing.assert_allclose((low, high), (-0.8, 2.8), atol=0.002)
    # Magnitudes: uniform density 2/4 up to 1, 1/4 up to 3; 90 % lie below 2.6.
    np.testing.assert_allclose(percentile_range(stats.histogram, 90.0, symmetric=True), (-2.6, 2.6), atol=0.002)


def _true_error(values: Array, low: float, high: float, bits: int) -> float:
    steps = 2**bits - 1
    scale = (high - low) / steps
    zero = np.round(-low / scale)
    back = (np.clip(np.round(values / scale) + zero, 0, steps) - zero) * scale
    return float(np.mean((back - values) ** 2))


@pytest.mark.parametrize("symmetric", [False, True])
def test_mse_range_beats_every_other(symmetric: bool) -> None:
    values = np.random.default_rng(5).laplace(size=50_000).astype(np.float32)
    if not symmetric:
        values = np.maximum(values + 1.0, -0.5)
    stats = accumulated(values)
    assert stats.histogram is not None
    low, high = mse_range(stats.histogram, (stats.lowest, stats.highest), 4, symmetric)
    best = _true_error(values, low, high, 4)
    assert best < 0.8 * _true_error(values, stats.lowest, stats.highest, 4)
    generator = np.random.default_rng(6)
    for factor_low, factor_high in generator.uniform(0.05, 1.0, (200, 2)):
        if symmetric:
            factor_low = factor_high
        edge = max(-stats.lowest, stats.highest)
        other = (-factor_low * edge, factor_high * edge) if symmetric else (stats.lowest, factor_high * stats.highest)
        assert best <= _true_error(values, *other, 4) * 1.02


def test_power_of_two_mse_picks_the_best_power() -> None:
    values = np.random.default_rng(7).standard_normal(20_000).astype(np.float32)
    values[0] = 40.0
    stats = accumulated(values)
    assert stats.histogram is not None
    low, high = power_of_two_mse_range(stats.histogram, (stats.lowest, stats.highest), 8, symmetric=True)
    scale = high / 127
    assert math.log2(scale).is_integer()

    def error(s: float) -> float:
        return float(np.mean((np.clip(np.round(values / s), -127, 127) * s - values) ** 2))

    powers = [2.0**k for k in range(-8, 3)]
    assert scale == min(powers, key=error)
    assert low == -high


def test_laplace_clipping_is_the_published_optimum() -> None:
    for bits, published in ((2, 2.83), (3, 3.89), (4, 5.03)):
        # Banner et al. 2019, table of optimal clipping of Laplace(0, 1).
        assert lambert_w(3 * 4.0**bits) == pytest.approx(published, abs=0.01)
    for x in (3.0, 48.0, 1e5, 1e9):
        assert lambert_w(x) == pytest.approx(float(lambertw(x).real), rel=1e-12)
    values = np.random.default_rng(1).laplace(2.0, 0.5, 200_000).astype(np.float32)
    stats = accumulated(values)
    assert stats.histogram is not None
    low, high = laplace_range(stats.histogram, 4)
    np.testing.assert_allclose((low, high), (2.0 - 0.5 * 5.03, 2.0 + 0.5 * 5.03), atol=0.02)


@given(
    hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-100, 100, width=32, allow_subnormal=False)),
    st.sampled_from(["minmax", "percentile", "entropy", "mse", "distribution"]),
    st.booleans(),
    st.sampled_from(["uint8", "int16"]),
    st.sampled_from(["float32", "power_of_two"]),
)
@settings(max_examples=60, deadline=None)
def test_every_method_gives_a_usable_range_within_what_was_seen(
    values: Array, method: str, symmetric: bool, activation: str, scale: str
) -> None:
    stats = accumulated(values)
    recipe = Recipe.from_dict(
        {
            "activation": activation,
            "activation_symmetric": symmetric,
            "scale": scale,
            "calibration": {"method": method, "percentile": 90.0},
        }
    )
    low, high = range_for(recipe, stats)
    assert stats.lowest <= low <= high <= stats.highest
    assert low < high or stats.lowest == stats.highest or low == high == 0


def test_rebinning_keeps_the_counts() -> None:
    counts = np.arange(64, dtype=np.int64)
    merged = rebinned(Histogram(counts, 2.0), 16)
    np.testing.assert_array_equal(merged.counts, counts.reshape(16, 4).sum(axis=1))
    assert merged.half_width == 2.0


# Samples.


@given(st.integers(1, 500), st.integers(1, 500))
def test_every_beginning_covers_the_set_evenly(count: int, wanted: int) -> None:
    order = nested_order(count)
    np.testing.assert_array_equal(np.sort(order), np.arange(count))
    beginning = np.sort(order[:wanted])
    # The gaps between golden-ratio points are at most φ²/n, the edges of the set included.
    gaps = np.diff([-1, *beginning.tolist(), count]) / count
    assert gaps.max() <= 2.62 / len(beginning) + 2.0 / count


def test_more_samples_contain_fewer() -> None:
    data = CalibrationSet({"x": np.arange(40.0).reshape(20, 2)}, (TensorSpec("x", "float32", (2, 2)),))
    whole = [feed["x"] for feed in data.feeds()]
    for wanted in (1, 2, 7, 20):
        part = [feed["x"] for feed in data.feeds(wanted)]
        assert len(part) == data.taken(wanted) // data.batch
        np.testing.assert_array_equal(part, whole[: len(part)])
        rest = [feed["x"] for feed in data.feeds(skip=data.taken(wanted))]
        np.testing.assert_array_equal([*part, *rest], whole)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_compressed_or_not_the_samples_are_the_same(tmp_path: Path, save: object) -> None:
    array = np.random.default_rng(0).standard_normal((5, 3, 2)).astype(np.float32)
    save(tmp_path / "c.npz", x=array, y=np.asfortranarray(array), z=np.zeros((5, 0)))  # type: ignore[operator]
    read = read_npz(tmp_path / "c.npz")
    for name in ("x", "y"):
        np.testing.assert_array_equal(read[name], array)
    assert read["z"].shape == (5, 0)


def test_batches_and_whole_inputs() -> None:
    spec = TensorSpec("x", "float32", (4, 2))
    data = CalibrationSet({"x": np.arange(20.0).reshape(10, 2)}, (spec,))
    shapes = [feed["x"].shape for feed in data.feeds()]
    assert shapes == [(4, 2), (4, 2)]
    assert len(data) == 8
    assert [len(list(data.feeds(n))) for n in (1, 4, 7)] == [1, 1, 1]
    whole = CalibrationSet({"x": np.zeros((3, 4, 2))}, (spec,))
    assert [feed["x"].shape for feed in whole.feeds()] == [(4, 2)] * 3


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros((3, 2))}, r"no array for input 'x'(.|\n)*'z'"),
        ({"x": np.zeros((3, 5))}, r"'x' has samples of shape \[5\](.|\n)*\[2\]"),
        ({"x": np.zeros((3, 2, 2, 2))}, "shape"),
    ],
)
def test_data_that_does_not_fit(arrays: dict[str, Array], message: str) -> None:
    with pytest.raises(DataError, match=message):
        CalibrationSet(arrays, (TensorSpec("x", "float32", (1, 2)),))


def test_unreadable_data(tmp_path: Path) -> None:
    (tmp_path / "c.npz").write_bytes(b"not a zip")
    with pytest.raises(DataError, match=r"c\.npz"):
        CalibrationSet.read(tmp_path / "c.npz", ())
    np.savez(tmp_path / "o.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="cannot read"):
        CalibrationSet.read(tmp_path / "o.npz", (TensorSpec("x", "float32", (1, 2)),))
