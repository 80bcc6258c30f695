"""Whole searches of the examples that are built here, from their plans: model, data and nothing that helps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from built import EXAMPLES

from harness.ledger.run_directory import RunDirectory
from harness.plan import load_plan

NAMES = ("efficientnet_lite0", "fashion_mnist", "minilm_spam", "ppocr_cls", "ppocr_rec")


@pytest.mark.parametrize("name", NAMES)
def test_plans_give_no_hints(name: str) -> None:
    plan = load_plan(EXAMPLES / name / "plan.yaml", {})
    assert (plan.min_snr, plan.min_accuracy, plan.recipes, plan.candidates) == (None, None, (), ())
    assert (plan.objective, plan.filter, plan.preset) == ("pareto", "pareto", "quick")


@pytest.mark.slow
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("name", NAMES)
def test_the_pick_is_no_slower_than_float_and_nothing_speaks_against_its_accuracy(name: str, tmp_path: Path) -> None:
    plan = EXAMPLES / name / "plan.yaml"
    if not load_plan(plan, {}).model.is_file():
        pytest.skip(f"examples/{name} is not built: python examples/{name}/build.py")
    run = tmp_path / "run"
    words = ["search", "--plan", str(plan), "--boards", "local", "--max-time", "20m", "--run-dir", str(run)]
    # Where the plan's metric is found from.
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words],
        cwd=EXAMPLES.parent,
        # The board works in its user's folder, where only one may.
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=2400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    state = RunDirectory.open(run).state
    results = {candidate.trial: candidate.boards["local"] for candidate in state.candidates()}
    pick = state.picks["local"][0]
    (accuracy,) = [metric for metric in results[pick].metrics.values() if metric.limit is not None]
    assert accuracy.limit is not None
    assert accuracy.limit.estimate == "met"
    assert accuracy.outcome in ("met", "undecided")
    chosen, baseline = results[pick].latency_ns, results[0].latency_ns
    assert chosen is not None
    assert baseline is not None
    # Within the intervals: where int8 only costs time, float itself or what is as fast is the answer.
    assert chosen.ci95[0] <= baseline.ci95[1]
