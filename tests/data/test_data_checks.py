"""What is said about calibration and evaluation data, and the split of the latter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data.checks import check_data
from harness.data.dataset import Dataset
from harness.data.metrics import resolve_metrics
from harness.data.split import split_rows
from harness.errors import DataError
from harness.tensors import TensorSpec

IMAGE = TensorSpec("image", "float32", (1, 3, 8, 8))
LOGITS = TensorSpec("logits", "float32", (1, 10))


def images(seed: int, n: int = 200, low: float = 0.0, high: float = 1.0, labels: Any = None) -> Dataset:
    values = np.random.default_rng(seed).uniform(low, high, (n, 3, 8, 8)).astype(np.float32)
    return Dataset({"image": values}, None, None if labels is None else np.asarray(labels), f"set {seed}")


def told(calib: Dataset, evaluation: Dataset) -> str:
    return "\n".join(check_data(calib, evaluation, [IMAGE], []))


def test_data_of_one_kind_pass_in_silence() -> None:
    assert told(images(0), images(1)) == ""


@pytest.mark.parametrize(
    ("calib", "evaluation", "hint"),
    [
        ((0, 255), (0, 1), "1/255"),
        ((0, 1), (0, 255), "1/255"),
        ((0, 1), (5, 6), "same preprocessing"),
        ((-3, -2), (0, 1), "same preprocessing"),
        ((0.5, 0.5), (0, 1), "real samples"),
        ((0, 0), (0, 1), "real samples"),
    ],
)
def test_ranges_that_cannot_be_the_same_data_are_refused(
    calib: tuple[float, float], evaluation: tuple[float, float], hint: str
) -> None:
    with pytest.raises(DataError, match=r"'image' is .* in the calibration set and") as caught:
        told(images(0, 200, *calib), images(1, 200, *evaluation))
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("calib", "evaluation", "message"),
    [
        ((-2.1, 2.6), (0, 1), "amplitudes differ 2.6 times"),
        ((0, 1), (-2.1, 2.6), "lie outside what calibration sees"),
        ((0, 0.9), (0, 1), "% of the evaluation values lie outside"),
    ],
)
def test_ranges_that_differ_are_told(calib: tuple[float, float], evaluation: tuple[float, float], message: str) -> None:
    text = told(images(0, 2000, *calib), images(1, 2000, *evaluation))
    assert message in text
    assert "calibration set" in text


def test_a_single_outlier_decides_nothing() -> None:
    values = np.array(images(0).inputs["image"])
    values[0, 0, 0, 0] = 1e6
    assert told(Dataset({"image": values}, None, None, "c"), images(1)) == ""


def test_token_ids_have_no_range() -> None:
    spec = TensorSpec("ids", "int64", (1, 4))
    low = Dataset({"ids": np.zeros((100, 4), np.int64)}, None, None, "c")
    high = Dataset({"ids": np.arange(400).reshape(100, 4) + 10_000}, None, None, "e")
    assert check_data(low, high, [spec], []) == ()


def test_few_samples_missing_classes_and_shared_samples_are_told() -> None:
    assert "only 5 calibration samples" in told(images(0, 5), images(1))
    text = told(images(0, 100, labels=np.arange(100) % 8), images(1, 100, labels=np.arange(100) % 10))
    assert "no sample of 2 of the evaluation set's classes (8, 9)" in text
    whole = images(0)
    assert told(whole, whole) == ""  # one set for both is what the caller decided
    assert "also the evaluation set" in told(whole, images(0))
    joined = np.concatenate([images(1).inputs["image"], whole.inputs["image"][:7]])
    assert "7 sample(s)" in told(whole, Dataset({"image": joined}, None, None, "e"))


def test_labels_nothing_uses_and_the_sets_own_notices_are_told_once() -> None:
    calib, evaluation = images(0, 200), images(1, 200, labels=np.arange(200) % 10)
    calib = Dataset(calib.inputs, None, None, "c", ("seen",))
    evaluation = Dataset(evaluation.inputs, None, evaluation.labels, "e", ("seen",))
    notices = check_data(calib, evaluation, [IMAGE], resolve_metrics(["snr"], evaluation, [LOGITS]))
    assert notices[0] == "seen"
    assert notices.count("seen") == 1
    assert "no metric asked for uses them" in notices[-1]
    assert len(check_data(calib, evaluation, [IMAGE], resolve_metrics([], evaluation, [LOGITS]))) == 1


# Split -----------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=120), st.integers(0, 2**32), st.floats(0.05, 0.95))
def test_split_is_a_stratified_partition(classes: list[int], seed: int, fraction: float) -> None:
    labels, n = np.array(classes), len(classes)
    search, report = split_rows(labels, n, seed, fraction)
    assert sorted([*search, *report]) == list(range(n))
    assert list(search) == sorted(search)
    assert list(report) == sorted(report)
    assert min(len(search), len(report)) >= 1
    for value in set(classes):
        size, ours = classes.count(value), int((labels[search] == value).sum())
        if size > 1:
            assert 1 <= ours <= size - 1
        assert abs(ours - size * fraction) <= max(1.0, abs(1 - size * fraction), abs(size - 1 - size * fraction))
    sizes = [classes.count(value) for value in set(classes)]
    if all(size * fraction >= 1 and size * (1 - fraction) >= 1 for size in sizes):
        assert abs(len(search) - n * fraction) <= 0.5


def test_split_is_seeded() -> None:
    labels = np.arange(200) % 10
    first, again, other = (split_rows(labels, 200, seed)[0].tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_balanced_classes_are_halved_exactly() -> None:
    labels = np.repeat(np.arange(10), 200)
    search, report = split_rows(labels, 2000, 0)
    assert np.bincount(labels[search]).tolist() == np.bincount(labels[report]).tolist() == [100] * 10


def test_what_is_left_goes_to_the_class_furthest_below_its_share() -> None:
    labels = np.array([0] * 3 + [1] * 9)  # shares of 0.9 and 2.7; four rows in all
    search, _ = split_rows(labels, 12, 0, 0.3)
    assert np.bincount(labels[search]).tolist() == [1, 3]


@pytest.mark.parametrize("labels", [None, np.linspace(0, 1, 9), np.zeros((9, 4))])
def test_without_classes_the_split_is_plain(labels: Any) -> None:
    search, report = split_rows(labels, 9, 3)
    assert sorted([*search, *report]) == list(range(9))
    assert len(search) == 4


def test_one_sample_cannot_be_split() -> None:
    with pytest.raises(DataError, match="1 evaluation sample"):
        split_rows(None, 1, 0)
    with pytest.raises(ValueError, match="fraction"):
        split_rows(None, 10, 0, 1.0)
