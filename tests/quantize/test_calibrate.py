"""Calibrating once: statistics that are found again, continued, bounded in memory, and never wrong."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from quantize_models import Array, conv_net, matmul_net, samples, write

from harness.quantize import calibrate
from harness.quantize.cache import Cache
from harness.quantize.calibrate import Subject, calibrated
from harness.quantize.observe import Observer, collect
from harness.quantize.statistics import Accumulator, ActivationStatistics, observed_tensors


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    model = write(onnx.shape_inference.infer_shapes(conv_net()), tmp_path / "m.onnx")
    return model, samples(tmp_path / "c.npz", n=50, x=(3, 12, 12))


def assert_same(one: dict[str, ActivationStatistics], other: dict[str, ActivationStatistics]) -> None:
    assert set(one) == set(other)
    for name, a in one.items():
        b = other[name]
        assert (a.lowest, a.highest, a.count, a.non_finite, a.dtype) == (
            b.lowest, b.highest, b.count, b.non_finite, b.dtype,
        )  # fmt: skip
        assert (a.histogram is None) == (b.histogram is None)
        if a.histogram and b.histogram:
            assert a.histogram.half_width == b.histogram.half_width
            np.testing.assert_array_equal(a.histogram.counts, b.histogram.counts)
        assert (a.channels is None) == (b.channels is None)
        if a.channels and b.channels:
            assert (a.channels.axis, a.channels.count) == (b.channels.axis, b.channels.count)
            for field in ("lowest", "highest", "total"):
                np.testing.assert_array_equal(getattr(a.channels, field), getattr(b.channels, field))


def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batches run by each observer made from now on."""
    counts: list[int] = []

    class Counting(Observer):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]
            counts.append(0)

        def observe(self, feed: object) -> object:  # type: ignore[override]
            counts[-1] += 1
            return super().observe(feed)  # type: ignore[arg-type]

    monkeypatch.setattr(calibrate, "Observer", Counting)
    return counts


def test_statistics_are_those_of_the_samples(files: tuple[Path, Path]) -> None:
    subject = Subject.read(*files, Cache(None))
    kept = calibrated(subject)
    array = np.load(files[1])["x"]
    assert kept["x"].count == array.size
    assert (kept["x"].lowest, kept["x"].highest) == (array.min(), array.max())
    channels = kept["x"].channels
    assert channels is not None
    np.testing.assert_array_equal(channels.lowest, array.min(axis=(0, 2, 3)))
    np.testing.assert_array_equal(channels.highest, array.max(axis=(0, 2, 3)))
    np.testing.assert_allclose(channels.mean, array.mean(axis=(0, 2, 3), dtype=np.float64), atol=1e-6)


@pytest.mark.parametrize("build", [conv_net, matmul_net])
def test_found_again_and_continued_equal_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[[], onnx.ModelProto]
) -> None:
    model = write(onnx.shape_inference.infer_shapes(build()), tmp_path / "m.onnx")
    shape = (3, 12, 12) if build is conv_net else (7, 64)
    data = samples(tmp_path / "c.npz", n=50, x=shape)
    counts = passes(monkeypatch)

    def ask(cache: Cache, wanted: int | None) -> dict[str, ActivationStatistics]:
        return calibrated(Subject.read(model, data, cache), wanted)

    straight = {n: ask(Cache(None), n) for n in (20, 40, None)}
    counts.clear()
    cache = Cache(tmp_path / "cache")
    assert_same(ask(cache, 20), straight[20])
    assert_same(ask(cache, 40), straight[40])
    assert_same(ask(cache, None), straight[None])
    # Each goes on from the snapshot below: 16 samples are left at 16, 32 at 32.
    assert counts == [20, 40 - 16, 50 - 32]
    for wanted in (20, 40, None):
        assert_same(ask(cache, wanted), straight[wanted])
    assert len(counts) == 3


def test_other_data_or_another_model_is_not_taken_for_it(files: tuple[Path, Path], tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    first = calibrated(Subject.read(*files, cache))
    other_data = samples(tmp_path / "other.npz", seed=1, n=50, x=(3, 12, 12))
    second = calibrated(Subject.read(files[0], other_data, cache))
    assert first["x"].highest != second["x"].highest
    subject = Subject.read(*files, cache)
    changed = subject.changed("scaled")
    assert changed.key("x") != subject.key("x")
    assert calibrated(Subject.read(*files, cache))["x"].highest == first["x"].highest


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 but no more", None])
def test_damaged_entries_are_made_again(
    files: tuple[Path, Path], tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path / "cache")
    first = calibrated(Subject.read(*files, cache))
    for path in (tmp_path / "cache").glob("*.npz"):
        content = path.read_bytes()
        # None: one byte of the histograms flipped, which only a checksum can show.
        middle = len(content) // 2
        path.write_bytes(
            content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :] if damage is None else damage
        )
    with caplog.at_level(logging.WARNING):
        assert_same(calibrated(Subject.read(*files, cache)), first)
    assert "damaged" in caplog.text
    caplog.clear()
    assert_same(calibrated(Subject.read(*files, cache)), first)
    assert not caplog.text


def test_a_folder_that_cannot_be_written_costs_only_time(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert_same(
        calibrated(Subject.read(*files, Cache(tmp_path / "file" / "cache"))),
        calibrated(Subject.read(*files, Cache(None))),
    )


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=10_000)
    for index, key in enumerate(("a", "b")):
        cache.write(key, {"key": key}, {"x": np.zeros(4000, np.uint8)})
        os.utime(tmp_path / f"{key}.npz", (index, index))
    assert cache.read("a") is not None
    cache.write("c", {}, {"x": np.zeros(4000, np.uint8)})
    assert cache.read("a") is not None
    assert cache.read("b") is None
    assert cache.read("c") is not None
    cache.write("d", {}, {"x": np.zeros(20_000, np.uint8)})
    assert cache.read("d") is None


def _calibrate(model: Path, data: Path, folder: Path, log: Path) -> None:
    """In a process of its own: says when it runs the model."""

    class Telling(Observer):
        def observe(self, feed: object) -> object:  # type: ignore[override]
            with log.open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(0.005)
            return super().observe(feed)  # type: ignore[arg-type]

    calibrate.Observer = Telling  # type: ignore[misc]
    calibrated(Subject.read(model, data, Cache(folder)))


def test_two_processes_do_not_compute_it_twice(files: tuple[Path, Path], tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    log = tmp_path / "log"
    arguments = (*files, tmp_path / "cache", log)
    processes = [context.Process(target=_calibrate, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    ran = log.read_text().split()
    assert len(ran) == 50
    assert len(set(ran)) == 1


def test_breathes_while_another_process_computes(tmp_path: Path) -> None:
    cache, breaths = Cache(tmp_path), []

    class Enough(Exception):
        pass

    def breathe() -> None:
        breaths.append(1)
        if len(breaths) == 3:
            raise Enough

    with cache.lock("k"), pytest.raises(Enough), Cache(tmp_path).lock("k", breathe):
        pass
    with cache.lock("k", breathe):
        assert len(breaths) == 3


def test_a_killed_pass_is_continued(files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = passes(monkeypatch)
    cache = Cache(tmp_path / "cache")

    def killed() -> None:
        if counts[-1] == 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrated(Subject.read(*files, cache), breathe=killed)
    resumed = calibrated(Subject.read(*files, cache))
    assert counts == [40, 50 - 32]
    assert_same(resumed, calibrated(Subject.read(*files, Cache(None))))


def test_large_activations_are_taken_out_in_parts(files: tuple[Path, Path]) -> None:
    model = onnx.load(files[0])
    tensors = observed_tensors(model, {node.op_type for node in model.graph.node})
    feed: dict[str, Array] = {"x": np.load(files[1])["x"][:1]}
    whole = dict(Observer(model, tensors).observe(feed))
    parts = Observer(model, tensors, shown_bytes=5000)
    shown = dict(parts.observe(feed))
    assert set(shown) == set(whole) == set(tensors)
    for name, array in whole.items():
        np.testing.assert_array_equal(shown[name], array)


def test_memory_does_not_grow_with_samples() -> None:
    accumulator = Accumulator(histogram=True, axis=1)
    held = set()
    for seed in range(5):
        accumulator.add(np.random.default_rng(seed).standard_normal((1, 4, 100)).astype(np.float32))
        channels = accumulator.channels
        assert channels is not None
        held.add((accumulator.counts.nbytes, channels.lowest.nbytes, channels.total.nbytes))
    assert len(held) == 1


def test_values_that_are_not_numbers(tmp_path: Path) -> None:
    model = onnx.shape_inference.infer_shapes(conv_net())
    array = np.ones((2, 3, 12, 12), np.float32)
    array[0, 1, 2, 3] = np.nan
    array[1, 2, 0, 0] = np.inf
    array[1, 0] = -2.0
    statistics = collect(model, ["x"], [{"x": array[:1]}, {"x": array[1:]}])["x"]
    assert (statistics.lowest, statistics.highest, statistics.non_finite) == (-2.0, 1.0, 2)
    assert statistics.count == array.size - 2
