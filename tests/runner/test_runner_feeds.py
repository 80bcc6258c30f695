"""Samples in, outputs out, against numpy's own slicing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agents.runner.errors import RunnerError
from device_agents.runner.feeds import Collector, Feeder, Samples
from device_agents.runner.npz import NpzRows
from device_agents.runner.pipeline import Pipeline
from device_agents.runner.platform import Spec


def passed_through(inputs, source, rows, batch, function):
    """All rows through ``function`` of the feeds, batch by batch, as the child does it."""
    feeder = Feeder(inputs, source, rows, None, exact=True)
    collector = Collector([Spec("y", "float32", ())])
    for real, raw in feeder.batches(batch):
        collector.add([function(feeder.feed(raw))], real, feeder.group or real)
    return collector.result()["y"]


@given(
    count=st.integers(1, 9),
    batch=st.integers(1, 10),
    fixed=st.none() | st.integers(1, 4),
    data=st.data(),
)
def test_batching_changes_nothing(count: int, batch: int, fixed: int | None, data) -> None:
    x = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    rows = data.draw(st.none() | st.lists(st.integers(0, count - 1), min_size=1, max_size=12))
    spec = Spec("x", "float32", (fixed if fixed else "n", 3))
    sizes: list[int] = []

    def double(feeds):
        sizes.append(len(feeds["x"]))
        return feeds["x"] * 2

    got = passed_through([spec], Samples({"x": x}), rows, batch, double)
    np.testing.assert_array_equal(got, 2 * (x if rows is None else x[rows]))
    if fixed:
        assert set(sizes) == {fixed}
    else:
        assert max(sizes) <= batch


@given(count=st.integers(1, 9), batch=st.integers(1, 12), fixed=st.booleans())
def test_timed_inferences_are_whole_and_go_round_the_rows(count: int, batch: int, fixed: bool) -> None:
    x = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    feeder = Feeder([Spec("x", "float32", (batch if fixed else "n", 3))], Samples({"x": x}), None, None, exact=True)
    fed = [feeder.feed(raw)["x"] for raw in feeder.timed(batch)]
    assert {len(each) for each in fed} == {batch}
    assert len(fed) == -(-count // batch)
    np.testing.assert_array_equal(np.concatenate(fed), np.resize(x, (len(fed) * batch, 3)))


@pytest.mark.parametrize(("shape", "batch"), [((2, 3), 4), ((3,), 2)])
def test_another_batch_than_the_model_fixes_is_not_timed(shape: tuple[int, ...], batch: int) -> None:
    feeder = Feeder([Spec("x", "float32", shape)], Samples({"x": np.zeros((4, 3), np.float32)}), None, None, exact=True)
    with pytest.raises(RunnerError, match=f"{batch} samples per inference are asked for; the model takes") as caught:
        list(feeder.timed(batch))
    assert caught.value.kind == "BadData"
    assert len(list(feeder.timed(1))) >= 2


def test_a_model_without_batch_axis_gets_whole_samples() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    shapes = []

    def norm(feeds):
        shapes.append(feeds["x"].shape)
        return feeds["x"].sum()

    got = passed_through([Spec("x", "float32", (3,))], Samples({"x": x}), None, 2, norm)
    assert shapes == [(3,)] * 4
    np.testing.assert_array_equal(got, x.sum(axis=1))


def test_outputs_without_batch_axis_need_single_samples() -> None:
    x = np.zeros((4, 3), np.float32)
    spec = Spec("x", "float32", ("n", 3))
    with pytest.raises(RunnerError, match="not the batch"):
        passed_through([spec], Samples({"x": x}), None, 2, lambda feeds: np.float32(feeds["x"].sum()))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@given(data=st.data())
def test_rows_of_a_file_are_the_rows_of_the_array(tmp_path_factory, save, data) -> None:
    dtype = data.draw(st.sampled_from(["f4", "u1", "i8", "?"]))
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    array = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    path = tmp_path_factory.mktemp("npz") / "d.npz"
    save(path, other=np.zeros(3), a=array)
    rows = data.draw(st.lists(st.integers(0, shape[0] - 1), min_size=0, max_size=9))
    with NpzRows(str(path)) as source:
        assert source.shape("a") == array.shape
        got = source.rows("a", rows)
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array[np.array(rows, dtype=int)])


def test_fortran_order_is_read_right(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(12).reshape(4, 3))
    np.savez(tmp_path / "d.npz", a=array)
    with NpzRows(str(tmp_path / "d.npz")) as source:
        np.testing.assert_array_equal(source.rows("a", [3, 0]), array[[3, 0]])


def test_pickles_in_a_file_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", a=np.array([{"x": 1}], dtype=object))
    with pytest.raises(RunnerError, match="Python objects") as caught:
        NpzRows(str(tmp_path / "d.npz"))
    assert caught.value.kind == "BadData"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + bytes(100), b"not a zip at all"])
def test_what_is_no_npz_is_bad_data(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "d.npz"
    path.write_bytes(content)
    with pytest.raises(RunnerError) as caught:
        NpzRows(str(path))
    assert caught.value.kind == "BadData"


def test_pipeline_is_the_declared_arithmetic() -> None:
    raw = np.random.default_rng(0).integers(0, 256, (5, 6, 4, 3), dtype=np.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    pipeline = Pipeline({"scale": 1 / 255, "mean": mean, "std": std, "transpose": (2, 0, 1), "reverse_channels": True})
    expected = ((raw[..., ::-1] / 255 - np.array(mean)) / np.array(std)).transpose(0, 3, 1, 2)
    got = pipeline.before(raw)
    assert got.dtype == np.float32
    assert got.flags.c_contiguous
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_pipeline_inserts_a_channel_axis_and_converts() -> None:
    raw = np.full((2, 4, 5), 7, np.uint8)
    assert Pipeline({"expand_axis": 0}).before(raw).shape == (2, 1, 4, 5)
    assert Pipeline({"expand_axis": -1, "dtype": "uint8"}).before(raw).shape == (2, 4, 5, 1)
    assert Pipeline({"dtype": "uint8"}).before(raw).dtype == np.uint8


def test_pipeline_post() -> None:
    logits = np.array([[1.0, 3.0, 2.0], [1000.0, 0.0, 0.0]], np.float32)
    soft = Pipeline({"post": "softmax"}).after(logits)
    np.testing.assert_allclose(soft.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(soft[0], np.exp([1, 3, 2]) / np.exp([1, 3, 2]).sum(), rtol=1e-5)
    np.testing.assert_array_equal(Pipeline({"post": "argmax"}).after(logits), [1, 0])
    with pytest.raises(RunnerError, match="softmax"):
        Pipeline({"post": "sort"})


def test_pipeline_tells_its_passes_over_the_elements() -> None:
    raw = np.zeros((5, 6, 4, 3), np.uint8)
    full = {"scale": 1 / 255, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "transpose": (2, 0, 1)}
    assert Pipeline(full).work_before(raw) == [(name, 360) for name in ("Mul", "Sub", "Div", "Cast")]
    assert Pipeline({"scale": 1 / 255}).work_before(raw) == [("Mul", 360)]
    assert Pipeline({"dtype": "uint8", "expand_axis": 0}).work_before(raw) == []
    assert Pipeline({}).work_before(raw) == [("Cast", 360)]
    logits = np.zeros((5, 10), np.float32)
    assert Pipeline({"post": "softmax"}).work_after(logits) == [("Softmax", 50)]
    assert Pipeline({"post": "argmax"}).work_after(logits) == [("ArgMax", 50)]
    assert Pipeline({}).work_after(logits) == []


@pytest.mark.parametrize(
    ("spec", "match"), [({"mean": (1.0, 2.0)}, "2 values"), ({"transpose": (0, 1, 2)}, "transpose")]
)
def test_pipeline_that_does_not_fit_the_samples(spec, match: str) -> None:
    with pytest.raises(RunnerError, match=match):
        Pipeline(spec).before(np.zeros((2, 4, 5), np.uint8))
