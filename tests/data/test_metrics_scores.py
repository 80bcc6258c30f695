"""Metrics against closed forms and plain loops; what does not fit is refused before anything runs."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.spatial.distance
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from harness.data.dataset import Dataset
from harness.data.fidelity import SNR_LIMIT_DB, pooled_snr_db
from harness.data.metric import Metric, MetricFailed
from harness.data.metrics import resolve_metrics
from harness.data.score import Score
from harness.errors import DataError, ExitCode
from harness.measure.paired import AccuracyBound, compare, default_bound
from harness.tensors import TensorSpec

LOGITS = TensorSpec("logits", "float32", (1, 10))
BOXES = TensorSpec("boxes", "float32", (1, 50, 4))
VALUE = TensorSpec("value", "float32", (1, 1))


def data(labels: Any = None, n: int = 20) -> Dataset:
    return Dataset({"x": np.zeros((n, 2))}, None, None if labels is None else np.asarray(labels), "eval.npz")


CLASSES = data(np.arange(20) % 10)


def resolve(name: str, dataset: Dataset = CLASSES, outputs: Any = (LOGITS,)) -> Metric:
    (metric,) = resolve_metrics([name], dataset, outputs)
    return metric


def score(name: str, ours: Any, theirs: Any = None, labels: Any = None) -> Score:
    ours = np.asarray(ours)
    theirs = ours if theirs is None else np.asarray(theirs)
    spec = TensorSpec("y", str(ours.dtype), (1, *ours.shape[1:]))
    metric = resolve(name, data(labels, len(ours)), [spec])
    return metric.score({"y": ours}, None if labels is None else np.asarray(labels), {"y": theirs})


# Top-k -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([("top1", 1), ("top5", 5)]))
def test_top_k_is_what_sorting_gives(draw: st.DataObject, metric: tuple[str, int]) -> None:
    name, k = metric
    n, classes = draw.draw(st.integers(1, 8)), draw.draw(st.integers(6, 9))
    # Small integers, so that ties are common.
    logits = draw.draw(hnp.arrays(np.float32, (n, classes), elements=st.integers(-2, 2)))
    labels = draw.draw(hnp.arrays(np.int64, (n,), elements=st.integers(0, classes - 1)))
    expected = [
        float(label in sorted(range(classes), key=lambda c: (-row[c], c))[:k])
        for row, label in zip(logits.tolist(), labels.tolist(), strict=True)
    ]
    result = score(name, logits, labels=labels)
    assert result.per_sample is not None
    assert result.per_sample.tolist() == expected
    assert result.value == pytest.approx(np.mean(expected))


def test_a_model_that_gives_equal_scores_is_as_good_as_argmax_says() -> None:
    flat = np.zeros((10, 10), np.float32)
    assert score("top1", flat, labels=np.arange(10)).value == 0.1


@pytest.mark.parametrize("shape", [(3, 10, 1, 1), (3, 1, 1, 10), (3, 1, 10)])
def test_axes_of_one_do_not_matter(shape: tuple[int, ...]) -> None:
    logits = np.zeros((3, 10), np.float32)
    logits[np.arange(3), [4, 5, 6]] = 1
    assert score("top1", logits.reshape(shape), labels=[4, 5, 0]).value == pytest.approx(2 / 3)


def test_an_output_of_class_numbers_is_compared_directly() -> None:
    assert score("top1", np.int64([1, 2, 3, 4]), labels=[1, 2, 0, 0]).value == 0.5
    with pytest.raises(DataError, match="class numbers"):
        score("top5", np.int64([1, 2, 3, 4]), labels=[1, 2, 0, 0])


def test_float_labels_that_are_whole_numbers_are_class_numbers() -> None:
    assert score("top1", np.eye(4, dtype=np.float32), labels=np.float64([0, 1, 2, 0])).value == 0.75


# Errors against labels or float ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "expected"), [("mae", (1.5 + 0.5) / 2), ("mse", (2.5 + 0.25) / 2)])
def test_errors_are_against_labels_of_the_outputs_shape(name: str, expected: float) -> None:
    ours, labels = np.float32([[1, 2], [0.5, 0.5]]), np.float32([[0, 4], [0, 1]])
    result = score(name, ours, ours, labels)
    assert result.value == pytest.approx(expected)
    metric = resolve(name, data(labels, 2), [TensorSpec("y", "float32", (1, 2))])
    assert (metric.facts.versus_float, metric.higher_is_better) == (False, False)


def test_regression_labels_may_leave_out_the_axis_of_one() -> None:
    assert score("mae", np.float32([[1.0], [3.0]]), labels=np.int64([1, 1])).value == 1.0


@pytest.mark.parametrize("name", ["mae", "mse"])
def test_errors_are_against_float_where_labels_are_classes(name: str) -> None:
    ours, theirs = np.float32([[1, 2, 3], [0, 0, 0]]), np.float32([[1, 2, 5], [3, 0, 0]])
    result = score(name, ours, theirs, labels=[0, 1])
    assert result.per_sample is not None
    assert result.per_sample.tolist() == pytest.approx([2 / 3, 1.0] if name == "mae" else [4 / 3, 3.0])
    assert resolve(name).facts.versus_float


# Fidelity --------------------------------------------------------------------------------------------------------


def test_snr_of_a_known_noise() -> None:
    theirs = np.full((4, 3), 10.0, np.float32)
    assert score("snr", theirs + 1, theirs).value == pytest.approx(20.0)
    assert score("snr", theirs + 0.1, theirs).value == pytest.approx(40.0, abs=1e-3)


def test_snr_is_pooled_not_a_mean_of_ratios() -> None:
    theirs, noise = np.float32([[10], [1]]), np.float32([[0.1], [1.0]])
    assert score("snr", theirs + noise, theirs).value == pytest.approx(10 * math.log10(101 / 1.01))


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"), [(1.0, 1.0, SNR_LIMIT_DB), (1.0, 0.0, -SNR_LIMIT_DB), (0.0, 0.0, SNR_LIMIT_DB)]
)
def test_snr_without_noise_or_signal_is_finite(ours: float, theirs: float, expected: float) -> None:
    result = score("snr", np.full((3, 2), ours), np.full((3, 2), theirs))
    assert result.value == expected
    assert result.per_sample is not None
    assert result.per_sample.tolist() == [expected] * 3


def test_snr_contributions_average_to_the_value_and_cover_the_true_ratio() -> None:
    # Signal power is chi-squared with mean 4, noise power exponential with mean 0.02: the true ratio is 4 / 0.02. The
    # mean of the samples' own ratios would be off by several dB.
    rng, truth, inside, replicates = np.random.default_rng(0), 10 * math.log10(4 / 0.02), 0, 400
    for _ in range(replicates):
        signal = np.sqrt(rng.chisquare(4, (150, 1)))
        noise = np.sqrt(rng.exponential(0.02, (150, 1))) * rng.choice([-1, 1], (150, 1))
        value, per_sample = pooled_snr_db(signal, signal + noise)
        assert per_sample.mean() == pytest.approx(value)
        result = compare(resolve("snr").facts, Score(value, 150, per_sample), None, None)
        assert result.ci95 is not None
        inside += result.ci95[0] <= truth <= result.ci95[1]
    assert 0.92 < inside / replicates < 0.98


@given(
    hnp.arrays(np.float64, (3, 5), elements=st.floats(-9, 9)), hnp.arrays(np.float64, (3, 5), elements=st.floats(-9, 9))
)
def test_cosine_is_scipys(ours: np.ndarray, theirs: np.ndarray) -> None:
    result = score("cosine", ours, theirs)
    assert result.per_sample is not None
    for a, b, have in zip(ours, theirs, result.per_sample, strict=True):
        norms = np.linalg.norm(a), np.linalg.norm(b)
        if min(norms) > 1e-3:
            assert have == pytest.approx(1 - scipy.spatial.distance.cosine(a, b), abs=1e-9)
        elif max(norms) == 0:
            assert have == 1.0
        elif min(norms) == 0:
            assert have == 0.0


def test_cosine_of_tiny_outputs_does_not_vanish() -> None:
    tiny = np.full((2, 3), 1e-200)
    assert score("cosine", tiny, tiny).value == pytest.approx(1.0)


def test_fidelity_is_of_the_worst_output() -> None:
    outputs = (LOGITS, BOXES, TensorSpec("index", "int64", (1, 50)))
    metric = resolve("snr", CLASSES, outputs)
    theirs = {"logits": np.ones((20, 10)), "boxes": np.ones((20, 50, 4)), "index": np.zeros((20, 50), np.int64)}
    ours = {**theirs, "boxes": theirs["boxes"] * 1.1, "logits": theirs["logits"] * 1.01}
    result = metric.score(ours, None, theirs)
    assert result.value == pytest.approx(20.0)
    assert result.extras == {"output": "boxes"}
    assert resolve("snr@logits", CLASSES, outputs).score(ours, None, theirs).value == pytest.approx(40.0)


# Resolution ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "outputs", "expected"),
    [
        (None, [LOGITS], ["snr"]),
        (np.arange(20) % 10, [LOGITS], ["top1", "snr"]),
        (np.arange(20) % 10, [BOXES, LOGITS], ["top1@logits", "snr"]),
        (np.zeros((20, 50, 4)), [BOXES, LOGITS], ["mae@boxes", "snr"]),
        (np.linspace(0, 1, 20), [VALUE], ["mae", "snr"]),
        (np.arange(20), [VALUE], ["mae", "snr"]),
        (np.arange(20), [TensorSpec("label", "int64", (1,))], ["top1", "snr"]),
    ],
)
def test_defaults_fit_the_data(labels: Any, outputs: Any, expected: list[str]) -> None:
    metrics = resolve_metrics([], data(labels), outputs)
    assert [m.name for m in metrics] == expected


@pytest.mark.parametrize(
    ("name", "labels", "outputs", "message", "hint"),
    [
        ("top1", None, [LOGITS], "needs labels", "snr"),
        ("top5", np.arange(20) % 5, [TensorSpec("y", "float32", (1, 5))], "always 1", "top1"),
        ("top1", np.arange(20) % 4, [BOXES], "needs scores", "METRIC@OUTPUT"),
        ("top1", np.arange(20) % 10, [LOGITS, BOXES], "which output", "top1@logits"),
        ("top1@logit", np.arange(20) % 10, [LOGITS, BOXES], "no output", "'logits'"),
        ("mae", np.arange(20) % 10, [LOGITS, BOXES], "which output", "mae@logits"),
        ("top1", np.arange(20), [LOGITS], "label 10 of sample 10 is outside 0..9", "for this model"),
        ("top1", np.arange(20) % 10 + 1, [LOGITS], "label 10 of sample 9", "subtract 1"),
        ("top1", np.arange(20) - 1, [TensorSpec("y", "float32", (1, "c"))], "label -1 of sample 0", "from 0"),
        ("top1", np.eye(10)[np.arange(20) % 10], [LOGITS], "one class number per sample", "argmax"),
        ("top1", np.linspace(0, 1, 20), [LOGITS], "one class number per sample", "integers"),
        ("top1", np.array(["cat"] * 20), [LOGITS], "one class number per sample", "integers"),
        ("top2", np.arange(20) % 10, [LOGITS], "unknown metric 'top2'", "'top"),
        ("Top1", np.arange(20) % 10, [LOGITS], "unknown metric", "'top1'"),
        ("my.metric", np.arange(20) % 10, [LOGITS], "unknown metric", "module:function:max"),
        ("no_such_module:f:max", None, [LOGITS], "no module 'no_such_module'", ""),
    ],
)
def test_metrics_that_do_not_fit_are_refused(name: str, labels: Any, outputs: Any, message: str, hint: str) -> None:
    with pytest.raises(DataError) as caught:
        resolve(name, data(labels), outputs)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == ExitCode.USAGE


def test_defaults_that_cannot_be_chosen_are_explained() -> None:
    with pytest.raises(DataError, match="fit none"):
        resolve_metrics([], data(np.zeros((20, 7))), [LOGITS])
    two = [LOGITS, TensorSpec("aux", "float32", (1, 10))]
    with pytest.raises(DataError, match="top1@logits, top1@aux"):
        resolve_metrics([], CLASSES, two)
    with pytest.raises(DataError, match="given twice"):
        resolve_metrics(["snr", "snr"], CLASSES, [LOGITS])
    with pytest.raises(DataError, match="no outputs"):
        resolve_metrics([], CLASSES, [])


@pytest.mark.parametrize("name", ["top1", "mae", "snr", "cosine"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_candidate_with_outputs_that_are_not_finite_fails(name: str, bad: float) -> None:
    theirs = np.random.default_rng(0).normal(size=(20, 10)).astype(np.float32)
    ours = theirs.copy()
    ours[7, 3] = bad
    with pytest.raises(MetricFailed, match=r"not finite in 1 of 20 samples, first in sample 7"):
        resolve(name).score({"logits": ours}, CLASSES.labels, {"logits": theirs})


def test_outputs_that_are_missing_or_short_fail() -> None:
    theirs = np.zeros((20, 10), np.float32)
    for ours, message in (
        ({"other": theirs}, "no output 'logits'"),
        ({"logits": theirs[:19]}, "19 samples, expected 20"),
        ({"logits": theirs[:, :5]}, "5 values a sample, float's 10"),
    ):
        with pytest.raises(MetricFailed, match=message):
            resolve("snr").score(ours, None, {"logits": theirs})
    with pytest.raises(MetricFailed, match="label 9 and output 'logits' of 5 classes"):
        resolve("top1", outputs=[TensorSpec("logits", "float32", (1, "c"))]).score(
            {"logits": theirs[:, :5]}, CLASSES.labels, {}
        )


# module:function -------------------------------------------------------------------------------------------------

MODULE = """
import numpy as np
def accuracy(outputs, labels):
    return (outputs["logits"].argmax(1) == labels).mean()
def with_extras(outputs, labels):
    return 0.5, {"confusion": [[1, 2], [3, 4]], "note": "ok"}
def error(outputs, labels):
    return float(np.abs(outputs["logits"]).mean())
error.higher_is_better = False
def plain(outputs, labels):
    return 1
plain.jackknife = 0
def odd(outputs, labels):
    return 1
odd.jackknife = 1
def hits(outputs, labels):
    return outputs["logits"].argmax(1) == labels
hits.higher_is_better = True
hits.proportion = True
def share(outputs, labels):
    return (outputs["logits"].argmax(1) == labels).mean()
share.proportion = True
def scores(outputs, labels):
    return outputs["logits"].max(1)
scores.proportion = True
def undecided(outputs, labels):
    return 1
undecided.proportion = "yes"
def wants_all(outputs, labels):
    if len(labels) < 200:
        raise ValueError("a class is missing")
    return 0.7
def nan(outputs, labels): return float("nan")
def text(outputs, labels): return "good"
def nothing(outputs, labels): return None
def raises(outputs, labels): raise KeyError("logit")
def changes(outputs, labels): outputs["logits"] *= 2; return 1.0
def reserved(outputs, labels): return 1.0, {"ci95": 3}
def not_json(outputs, labels): return 1.0, {"a": np.float32(1)}
def infinite(outputs, labels): return 1.0, {"a": float("inf")}
def not_dict(outputs, labels): return 1.0, [1]
def large(outputs, labels): return 1.0, {"a": "x" * 100_000}
CONSTANT = 3
def f1(outputs, labels):
    said = outputs["logits"][:, 0] > 0
    return 2 * (said & labels).sum() / (said.sum() + labels.sum())
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "user_scores.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "user_scores", raising=False)
    return "user_scores"


def random_outputs(n: int, seed: int, right: float) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, n)
    logits = rng.normal(0, 0.1, (n, 10)).astype(np.float32)
    chosen = np.where(rng.random(n) < right, labels, (labels + 1) % 10)
    logits[np.arange(n), chosen] += 5
    return {"logits": logits}, labels


def test_a_function_gives_score_direction_and_extras(module: str) -> None:
    outputs, labels = random_outputs(200, 0, 0.8)
    metric = resolve(f"{module}:accuracy:max")
    assert (metric.name, metric.higher_is_better) == (f"{module}:accuracy", True)
    assert metric.score(outputs, labels, {}).value == (outputs["logits"].argmax(1) == labels).mean()
    assert resolve(f"{module}:with_extras:max").score(outputs, labels, {}).extras == {
        "confusion": [[1, 2], [3, 4]], "note": "ok",
    }  # fmt: skip
    assert not resolve(f"{module}:error").higher_is_better
    assert not resolve(f"{module}:error:min").higher_is_better


def test_the_jackknife_of_a_mean_is_nearly_the_paired_t(module: str) -> None:
    outputs, labels = random_outputs(2000, 1, 0.8)
    worse, _ = random_outputs(2000, 1, 0.75)
    metric = resolve(f"{module}:accuracy:max")
    ours, theirs = metric.score(worse, labels, {}), metric.score(outputs, labels, {})
    result = compare(metric.facts, ours, theirs, AccuracyBound.parse("-0.2"))
    exact = resolve("top1", data(labels, 2000))
    reference = compare(exact.facts, exact.score(worse, labels, {}), exact.score(outputs, labels, {}), None)
    assert result.outcome == "met"
    assert result.ci95 is not None
    assert reference.ci95 is not None
    assert result.extras["method"] == "paired-jackknife"
    assert result.difference == pytest.approx(reference.difference)
    widths = [high - low for low, high in (result.ci95, reference.ci95)]
    assert 0.6 < widths[0] / widths[1] < 1.6


def test_the_jackknife_covers_the_true_difference_of_a_ratio(module: str) -> None:
    # Positives at rate p, found at rate s, false alarms at rate f: F1 = 2ps / (ps + (1 - p) f + p). The candidate loses
    # one in ten of the positives float finds; over 6,000 replicates the coverage is 94.0 %.
    p, s, f, missed = 0.3, 0.8, 0.1, 0.1
    truth = [2 * p * q / (p * q + (1 - p) * f + p) for q in (s * (1 - missed), s)]
    metric, rng, inside, replicates = resolve(f"{module}:f1:max"), np.random.default_rng(4), 0, 400
    for _ in range(replicates):
        labels = rng.random(1000) < p
        said = np.where(labels, rng.random(1000) < s, rng.random(1000) < f)
        lost = said & labels & (rng.random(1000) < missed)
        ours, theirs = (
            metric.score({"logits": np.where(x, 1.0, -1.0)[:, np.newaxis]}, labels, {}) for x in (said & ~lost, said)
        )
        interval = compare(metric.facts, ours, theirs, None).ci95
        assert interval is not None
        inside += interval[0] <= truth[0] - truth[1] <= interval[1]
    assert 0.91 < inside / replicates < 0.98


def test_without_enough_samples_or_where_a_part_fails_there_is_no_interval(module: str) -> None:
    for name, n in (("accuracy", 39), ("wants_all", 200), ("plain", 200)):
        outputs, labels = random_outputs(n, 2, 0.8)
        metric = resolve(f"{module}:{name}:max")
        scored = metric.score(outputs, labels, {})
        assert scored.per_sample is None
        assert compare(metric.facts, scored, scored, AccuracyBound.parse("-0.1")).outcome == "undecided"
    outputs, labels = random_outputs(40, 2, 0.8)
    assert resolve(f"{module}:accuracy:max").score(outputs, labels, {}).per_sample is not None


def test_a_function_of_right_and_wrong_is_a_proportion_like_top1(module: str) -> None:
    outputs, labels = random_outputs(500, 5, 0.8)
    worse, _ = random_outputs(500, 5, 0.75)
    metric, reference = resolve(f"{module}:hits"), resolve("top1", data(labels, 500))
    bound = AccuracyBound.parse("-2pp")
    bound.check(metric.facts)
    assert metric.facts.unit == "fraction"
    found, expected = (
        compare(each.facts, each.score(worse, labels, {}), each.score(outputs, labels, {}), bound)
        for each in (metric, reference)
    )
    assert (found.value, found.difference, found.ci95, found.outcome) == (
        expected.value, expected.difference, expected.ci95, expected.outcome,
    )  # fmt: skip
    assert found.extras["method"] == "tango"
    assert default_bound(metric.facts) == AccuracyBound.parse("-1pp")


@pytest.mark.parametrize("name", ["share", "scores"])
def test_a_proportion_must_say_right_or_wrong_of_every_sample(module: str, name: str) -> None:
    outputs, labels = random_outputs(200, 6, 0.8)
    with pytest.raises(MetricFailed, match="is a proportion, and returned") as raised:
        resolve(f"{module}:{name}:max").score(outputs, labels, {})
    assert "200 truth values" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nan", "returned nan"),
        ("text", "returned 'good'"),
        ("nothing", "returned None"),
        ("raises", "KeyError"),
        ("changes", "read-only"),
        ("reserved", "'ci95' is reserved"),
        ("not_json", "not JSON"),
        ("infinite", "not JSON"),
        ("not_dict", "not a dict"),
        ("large", "bytes"),
    ],
)
def test_functions_that_misbehave_fail_the_candidate(module: str, name: str, message: str) -> None:
    outputs, labels = random_outputs(200, 3, 0.8)
    with pytest.raises(MetricFailed, match=message):
        resolve(f"{module}:{name}:max").score(outputs, labels, {})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("user_scores:accuracy", "higher better or worse"),
        ("user_scores:accuracy:best", "not of the form"),
        ("user_scores:error:max", "higher_is_better is False"),
        ("user_scores:acuracy:max", "has no 'acuracy'"),
        ("user_scores:CONSTANT:max", "not a function"),
        ("user_scores:odd:max", "jackknife is 1"),
        ("user_scores:undecided:max", "proportion is 'yes'"),
    ],
)
def test_functions_that_cannot_be_metrics_are_refused(module: str, spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        resolve(spec)


def test_metric_code_runs_only_where_it_is_allowed(module: str) -> None:
    with pytest.raises(DataError, match="not run from here"):
        resolve_metrics([f"{module}:accuracy:max"], CLASSES, [LOGITS], allow_code=False)
    assert "user_scores" not in sys.modules
