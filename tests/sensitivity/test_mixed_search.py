"""A search with the mixed-precision axis: what it is made of is in its header, and comes out the same again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sensitivity_models import residual_net, save, save_samples

from harness.boards.folders import CACHE_VARIABLE
from harness.controller import mixed_precision
from harness.controller.setup import SearchSetup, header_of, set_up
from harness.errors import ConfigError
from harness.ledger.header import differences
from harness.plan import Plan, make_plan
from harness.sensitivity import rank


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model = residual_net()
    save(model, path / "m.onnx")
    save_samples(path / "c.npz", model, n=24, seed=1)
    return path


def plan(folder: Path, **changes: Any) -> Plan:
    values = {"model": folder / "m.onnx", "calib": str(folder / "c.npz"), "boards": "rpi5-emulated"}
    return make_plan({**values, **changes})


def made(folder: Path, work: Path, **changes: Any) -> SearchSetup:
    work.mkdir(parents=True)
    return set_up(plan(folder, **changes), work)


def test_recipes_keep_what_is_sensitive_precise(folder: Path, tmp_path: Path) -> None:
    setup = made(folder, tmp_path / "a", mixed_precision="both")
    mixtures = [recipe for recipe in setup.space.seeds if recipe.exclude_nodes]
    per_tensor = [recipe for recipe in mixtures if recipe.granularity == "per_tensor"]
    assert per_tensor[0].exclude_nodes == ("depthwise",)
    assert any(recipe.overrides for recipe in setup.space.seeds)
    assert setup.trials == len(setup.space.seeds)
    only = made(folder, tmp_path / "b", mixed_precision="float")
    assert not any(recipe.overrides for recipe in only.space.seeds)


def test_the_same_axis_again_with_and_without_the_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = made(folder, tmp_path / "a", mixed_precision="both", preset="full")
    again = made(folder, tmp_path / "b", mixed_precision="both", preset="full")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    anew = made(folder, tmp_path / "c", mixed_precision="both", preset="full")
    assert first.mixed is not None
    for other in (again, anew):
        assert other.mixed == first.mixed
        assert other.space.seeds == first.space.seeds
        assert not differences(header_of(first), header_of(other))


def test_another_ranking_is_another_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = header_of(made(folder, tmp_path / "a", mixed_precision="both"))
    monkeypatch.setattr(mixed_precision, "ranked_groups", lambda *a, **k: rank.ranked_groups(*a, **k)[::-1])
    other = header_of(made(folder, tmp_path / "b", mixed_precision="both"))
    assert [difference.field for difference in differences(first, other)] == ["mixed_precision"]
    without = header_of(made(folder, tmp_path / "c"))
    assert {difference.field for difference in differences(first, without)} == {
        "mixed_precision",
        "plan.mixed_precision",
    }
    assert "mixed_precision" not in without["key"]


def test_a_run_goes_on_with_the_ranking_it_began_with(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = made(folder, tmp_path / "a", mixed_precision="a16")
    recorded = json.loads(json.dumps(header_of(first)))
    monkeypatch.setattr(mixed_precision, "ranked_groups", lambda *a, **k: pytest.fail("it was ranked again"))
    (tmp_path / "b").mkdir()
    again = set_up(plan(folder, mixed_precision="a16"), tmp_path / "b", recorded)
    assert again.mixed == first.mixed
    assert again.space.seeds == first.space.seeds
    assert not differences(recorded, header_of(again))
    # A run whose groups could not be ranked goes on without them.
    bare = {name: value for name, value in recorded.items() if name != "mixed_precision"}
    (tmp_path / "c").mkdir()
    assert set_up(plan(folder, mixed_precision="a16"), tmp_path / "c", bare).mixed is None


def test_a_ranking_that_dies_costs_the_axis_and_not_the_search(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank, "ask_child", lambda *a: {"died": "SIGSEGV", "phase": "ranking group 3"})
    setup = made(folder, tmp_path / "a", mixed_precision="both")
    assert setup.mixed is None
    assert any("ranking group 3 died (SIGSEGV)" in notice for notice in setup.prepared.notices)
    assert not any(recipe.exclude_nodes for recipe in setup.space.seeds)


def test_a_plan_says_which_kinds_there_are(folder: Path) -> None:
    with pytest.raises(ConfigError, match="mixed_precision"):
        plan(folder, mixed_precision="int4")
