"""Proposers: the baseline first, nothing twice, reproducible whatever order trials end in."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_values import STATIC, open_recipe, open_space, small_recipe, small_space

from harness.errors import ConfigError
from harness.recipes.facts import ModelFacts
from harness.recipes.presets import preset
from harness.recipes.recipe import FLOAT32, Calibration, Recipe
from harness.recipes.space import Space, grid, listed_space
from harness.search.make import make_proposer
from harness.search.optuna_proposer import OptunaProposer, constraints_of
from harness.search.ordering import OrderedProposer, OrderedTells
from harness.search.proposer import Outcome, PastTrial, Proposal
from harness.search.sources import FixedSource, MissingParameter, NearSource, walk

SAMPLERS = ["tpe", "random", "nsga2", "qmc"]
Judge = Callable[[Recipe], Outcome]


def good(recipe: Recipe) -> Outcome:
    """Latency grows with the operator types left in float; entropy calibration costs accuracy."""
    latency = 1.0 + len(recipe.exclude_op_types) + (recipe.scheme == "dynamic") + (recipe.activation == "uint16")
    loss = 0.5 - 0.1 * len(recipe.exclude_op_types)
    return Outcome("done", (latency, loss), (loss - 0.35,))


def first_objective(recipe: Recipe) -> Outcome:
    found = good(recipe)
    return Outcome("done", found.values[:1] if found.values else None, found.violations)


def search(proposer: OrderedProposer, count: int, judge: Judge) -> list[Proposal]:
    """Sequentially, as far as the window allows nothing else."""
    proposals = []
    for number in range(count):
        proposal = proposer.ask(number)
        if proposal is None:
            break
        proposals.append(proposal)
        proposer.tell(number, judge(proposal.recipe))
    return proposals


class TestListed:
    def test_in_order_then_exhausted(self) -> None:
        recipes = [Recipe(scheme="float16"), FLOAT32, STATIC, Recipe(scheme="float16")]
        found = search(make_proposer(listed_space("quick", recipes)), 10, good)
        assert [p.recipe for p in found] == [FLOAT32, Recipe(scheme="float16"), STATIC]
        assert [p.origin for p in found] == ["baseline", "enumerated", "enumerated"]

    def test_the_baseline_comes_first_even_if_the_list_lacks_it(self) -> None:
        found = search(make_proposer(listed_space("mine", [STATIC])), 10, good)
        assert [p.recipe for p in found] == [FLOAT32, STATIC]


class TestGrid:
    def test_every_recipe_once_seeds_first(self) -> None:
        space = small_space(seeds=(FLOAT32, STATIC))
        found = search(make_proposer(space, "grid", seed=3), 100, good)
        assert found[0].recipe == FLOAT32
        assert found[1].recipe == STATIC
        assert {p.recipe for p in found} == {FLOAT32, *grid(space)}
        assert len(found) == len({p.recipe for p in found})

    def test_the_seed_orders_it(self) -> None:
        orders = {
            tuple(p.recipe.digest for p in search(make_proposer(small_space(), "grid", seed=s), 99, good))
            for s in (0, 0, 1)
        }
        assert len(orders) == 2

    def test_a_continuous_space_has_none(self) -> None:
        with pytest.raises(ConfigError, match="continuous"):
            make_proposer(open_space(), "grid")

    def test_walk_agrees_with_the_space_and_its_parameters_make_the_recipe(self) -> None:
        space = small_space()
        walked = list(walk(space))
        assert [recipe for recipe, _ in walked] == list(grid(space))
        assert all(small_recipe(FixedSource(params)) == recipe for recipe, params in walked)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("objectives", [1, 2])
class TestSamplers:
    def test_nothing_twice_baseline_first_parameters_recorded(self, sampler: str, objectives: int) -> None:
        judge = good if objectives == 2 else first_objective
        proposer = make_proposer(open_space(), sampler, seed=1, objectives=objectives)  # type: ignore[arg-type]
        found = search(proposer, 40, judge)
        assert len(found) == 40
        assert found[0].recipe == FLOAT32
        assert len({p.recipe.digest for p in found}) == 40
        assert all(open_recipe(FixedSource(p.params)) == p.recipe for p in found[1:])

    def test_a_finite_space_is_exhausted_exactly(self, sampler: str, objectives: int) -> None:
        judge = good if objectives == 2 else first_objective
        proposer = make_proposer(small_space((FLOAT32, STATIC)), sampler, seed=2, objectives=objectives)  # type: ignore[arg-type]
        found = search(proposer, 100, judge)
        assert {p.recipe for p in found} == {FLOAT32, *grid(small_space())}
        assert len(found) == 1 + sum(1 for _ in grid(small_space()))
        assert proposer.ask(len(found)) is None

    def test_the_same_seed_proposes_the_same(self, sampler: str, objectives: int) -> None:
        judge = good if objectives == 2 else first_objective

        def digests(seed: int) -> list[str]:
            made = make_proposer(open_space(), sampler, seed=seed, objectives=objectives)  # type: ignore[arg-type]
            return [p.recipe.digest for p in search(made, 20, judge)]

        assert digests(5) == digests(5)
        assert digests(5) != digests(6)

    def test_any_outcome_is_taken(self, sampler: str, objectives: int) -> None:
        outcomes = [
            Outcome("failed"),
            Outcome("pruned", None, (1.0, 2.0)),
            Outcome("done", None),
            Outcome("done", (float("nan"),) * objectives),
            Outcome("done", (float("inf"),) * objectives, (float("nan"),)),
            Outcome("done", (1.0,) * (objectives + 1)),
            Outcome("duplicate", (1.0,) * objectives, (0.5,)),
            Outcome("duplicate"),
            Outcome("done", (1.0,) * objectives, (-1.0, 3.0)),
        ]
        rng = random.Random(0)
        proposer = make_proposer(open_space(), sampler, seed=1, objectives=objectives)  # type: ignore[arg-type]
        found = search(proposer, 30, lambda recipe: rng.choice(outcomes))
        assert len({p.recipe.digest for p in found}) == 30


class TestNearSource:
    """Recipes near one on record."""

    RECORD = search(make_proposer(open_space(), "random", seed=4), 30, good)[-1].params

    def test_nothing_redrawn_is_the_record(self) -> None:
        source = NearSource(self.RECORD, np.random.default_rng(0), redraw=0.0)
        assert open_recipe(source) == open_recipe(FixedSource(self.RECORD))
        assert source.params == self.RECORD

    def test_what_it_answered_makes_the_same_recipe_again(self) -> None:
        for seed in range(50):
            source = NearSource(self.RECORD, np.random.default_rng(seed), redraw=0.4)
            assert open_recipe(source) == open_recipe(FixedSource(source.params))

    def test_it_stays_nearer_than_chance(self) -> None:
        def changed(redraw: float) -> int:
            total = 0
            for seed in range(50):
                source = NearSource(self.RECORD, np.random.default_rng(seed), redraw)
                open_recipe(source)
                total += sum(source.params.get(name) != value for name, value in self.RECORD.items())
            return total

        assert 0 < changed(0.2) < 0.6 * changed(1.0)


def test_the_sampler_is_asked_once_for_each_proposal() -> None:
    """Its answers stay in its study, and each costs it its whole model."""
    proposer = make_proposer(small_space((FLOAT32, STATIC)), "tpe", seed=0)
    found = search(proposer, 100, first_objective)
    # Beside each proposal at most one that was known already.
    assert len(study_of(proposer).get_trials(deepcopy=False)) <= 2 * len(found)


def study_of(proposer: OrderedProposer) -> optuna.Study:
    inner = proposer._inner
    assert isinstance(inner, OptunaProposer)
    return inner._study


def test_no_trial_is_left_running() -> None:
    proposer = make_proposer(small_space((FLOAT32, STATIC)), "tpe", seed=0)
    rng = random.Random(1)
    search(proposer, 100, lambda r: rng.choice([Outcome("failed"), Outcome("pruned"), first_objective(r)]))
    # The search asked until nothing was left, so every outcome was handed on and every duplicate settled.
    states = [t.state for t in study_of(proposer).get_trials(deepcopy=False)]
    assert len(states) >= 15
    assert all(state.is_finished() for state in states)


def test_constraints_reach_the_sampler() -> None:
    proposer = make_proposer(open_space(), "tpe", seed=0)
    search(proposer, 15, first_objective)
    told = [t for t in study_of(proposer).get_trials(deepcopy=False) if t.state.is_finished() and t.values]
    assert told
    for trial in told:
        recipe = open_recipe(FixedSource(trial.params))
        assert constraints_of(trial) == pytest.approx(good(recipe).violations)


def test_tpe_learns_a_constrained_optimum_faster_than_chance() -> None:
    """Best: no operator excluded, were it not for the constraint, which wants two."""

    def hits(sampler: str) -> int:
        total = 0
        for seed in range(2):
            found = search(make_proposer(open_space(), sampler, seed=seed), 45, first_objective)  # type: ignore[arg-type]
            late = [good(p.recipe) for p in found[20:]]
            total += sum(o.values is not None and o.values[0] <= 3.0 and o.violations[0] <= 0 for o in late)
        return total

    assert hits("tpe") > 1.3 * hits("random")


def test_seeds_come_before_the_sampler() -> None:
    seeds = (FLOAT32, STATIC, Recipe(scheme="float16"))
    found = search(make_proposer(small_space(seeds), "tpe", seed=0), 6, first_objective)
    assert [p.recipe for p in found[:3]] == list(seeds)
    assert [p.origin for p in found] == ["baseline", "enumerated", "enumerated", "sampler", "sampler", "sampler"]
    assert found[1].params  # found in the space, so that the sampler learns from it


def test_history_starts_it_warm() -> None:
    history = [
        PastTrial(p.params, first_objective(p.recipe))
        for p in search(make_proposer(open_space(), "random", seed=9), 40, first_objective)
    ]
    proposer = make_proposer(
        open_space(), "tpe", seed=0, history=[*history, PastTrial({"other": 1}, Outcome("failed"))]
    )
    assert len(study_of(proposer).get_trials(deepcopy=False)) == 39  # without the baseline and the misfit
    cold = [p.recipe.digest for p in search(make_proposer(open_space(), "tpe", seed=0), 10, first_objective)]
    warm = [p.recipe.digest for p in search(proposer, 10, first_objective)]
    assert cold != warm
    assert warm[0] == FLOAT32.digest


def test_recipes_that_refuse_themselves_are_left_out() -> None:
    def build(source: object) -> Recipe:
        activation = source.categorical("activation", ("int8", "uint8", "uint16"))  # type: ignore[attr-defined]
        form = source.categorical("format", ("QDQ", "QOperator"))  # type: ignore[attr-defined]
        return Recipe.from_dict({"activation": activation, "format": form})

    found = search(make_proposer(Space("some", None, build), "random", seed=0), 50, first_objective)
    assert all((p.recipe.activation, p.recipe.format) != ("uint16", "QOperator") for p in found)
    assert len(found) == 1 + 5


class TestErrors:
    @pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
    def test_gp_without_torch(self) -> None:
        with pytest.raises(ConfigError, match="torch"):
            make_proposer(open_space(), "gp")

    @pytest.mark.skipif(importlib.util.find_spec("cmaes") is not None, reason="cmaes is installed")
    def test_cmaes_without_its_package(self) -> None:
        with pytest.raises(ConfigError, match="cmaes"):
            make_proposer(open_space(), "cmaes")

    def test_unknown_sampler(self) -> None:
        with pytest.raises(ConfigError, match="unknown sampler"):
            make_proposer(open_space(), "annealing")  # type: ignore[arg-type]

    def test_numbers_out_of_turn(self) -> None:
        proposer = make_proposer(open_space(), "random")
        with pytest.raises(ValueError, match="next is 0"):
            proposer.ask(1)
        with pytest.raises(ValueError, match="only 0"):
            proposer.tell(0, Outcome("failed"))
        proposer.ask(0)
        assert not proposer.ready(1)
        with pytest.raises(ValueError, match="not all finished"):
            proposer.ask(1)
        proposer.tell(0, Outcome("failed"))
        with pytest.raises(ValueError, match="told before"):
            proposer.tell(0, Outcome("failed"))


class TestFixedSource:
    def test_refuses_what_does_not_fit(self) -> None:
        source = FixedSource({"a": "x", "n": 3, "f": 0.5, "b": True})
        assert (source.categorical("a", ("x", "y")), source.integer("n", 1, 3), source.floating("f", 0, 1)) == (
            "x",
            3,
            0.5,
        )
        for ask in (
            lambda: source.categorical("a", ("y",)),
            lambda: source.categorical("missing", ("y",)),
            lambda: source.integer("n", 4, 9),
            lambda: source.integer("b", 0, 9),
        ):
            with pytest.raises(MissingParameter):
                ask()


class TestOrder:
    @given(st.integers(1, 6), st.randoms(use_true_random=False))
    def test_each_proposal_sees_the_same_whatever_order_trials_end_in(self, window: int, rng: random.Random) -> None:
        order: OrderedTells[int] = OrderedTells(window)
        running: list[int] = []
        seen: list[int] = []
        next_number = 0
        while next_number < 30:
            if order.ready(next_number):
                seen += [n for n, _ in order.release(next_number)]
                assert seen == list(range(max(0, next_number - window + 1)))
                running.append(next_number)
                next_number += 1
                assert len(running) <= window
            if running and rng.random() < 0.5:
                done = running.pop(rng.randrange(len(running)))
                order.finish(done, done * 10)

    @settings(max_examples=15, deadline=None)
    @given(st.randoms(use_true_random=False))
    def test_a_search_proposes_the_same_whatever_order_trials_end_in(self, rng: random.Random) -> None:
        def run(shuffle: bool) -> list[str]:
            proposer = make_proposer(open_space(), "tpe", seed=4, window=3)
            running: list[Proposal] = []
            found: list[str] = []
            while len(found) < 18:
                if proposer.ready(len(found)):
                    proposal = proposer.ask(len(found))
                    assert proposal is not None
                    found.append(proposal.recipe.digest)
                    running.append(proposal)
                else:
                    done = running.pop(rng.randrange(len(running)) if shuffle else 0)
                    proposer.tell(done.number, first_objective(done.recipe))
            return found

        assert run(shuffle=True) == run(shuffle=False)

    def test_continuing_by_asking_again_gives_the_same_proposals(self) -> None:
        whole = search(make_proposer(open_space(), "tpe", seed=4, window=2), 25, first_objective)
        again = make_proposer(open_space(), "tpe", seed=4, window=2)
        for recorded in whole[:12]:
            proposal = again.ask(recorded.number)
            assert proposal == recorded
            again.tell(recorded.number, first_objective(recorded.recipe))
        rest = []
        for number in range(12, 25):
            proposal = again.ask(number)
            assert proposal is not None
            rest.append(proposal)
            again.tell(number, first_objective(proposal.recipe))
        assert rest == whole[12:]

    def test_a_window_below_one_is_refused(self) -> None:
        with pytest.raises(ValueError, match="window"):
            OrderedTells(0)


def test_suggestions_come_where_they_were_put_and_move_the_others_up() -> None:
    own = [Recipe(activation=kind) for kind in ("int8", "uint8", "uint16", "int16")]
    suggested = Recipe(calibration=Calibration("percentile", 99.9))
    space = listed_space("own", [FLOAT32, *own])

    def recipes(proposer: OrderedProposer) -> list[Recipe]:
        made: list[Recipe] = []
        while (proposal := proposer.ask(len(made))) is not None:
            assert proposal.number == len(made)
            made.append(proposal.recipe)
            proposer.tell(proposal.number, Outcome("done", (1.0,)))
        return made

    assert recipes(make_proposer(space).with_suggestions({})) == [FLOAT32, *own]
    assert recipes(make_proposer(space).with_suggestions({3: suggested})) == [FLOAT32, *own[:2], suggested, *own[2:]]
    assert recipes(make_proposer(space).with_suggestions({5: suggested})) == [FLOAT32, *own, suggested]


def test_a_sampler_proposes_what_it_would_have_without_the_suggestion() -> None:
    space = preset("standard", ModelFacts(op_types={"Conv": 3, "Relu": 2}))

    def proposals(suggestions: dict[int, Recipe], count: int) -> list[str]:
        proposer = make_proposer(space, "tpe", seed=3).with_suggestions(suggestions)
        made = []
        for number in range(count):
            proposal = proposer.ask(number)
            assert proposal is not None
            made.append(proposal.recipe.digest)
            # What the sampler learns depends on the recipe, not on the number.
            proposer.tell(number, Outcome("done", (float(int(proposal.recipe.digest[:6], 16)),)))
        return made

    extra = Recipe(exclude_nodes=("somewhere",))
    plain, more = proposals({}, 24), proposals({18: extra}, 25)
    assert more[18] == extra.digest
    assert [*more[:18], *more[19:]] == plain


def test_suggestions_neither_replace_the_baseline_nor_come_late() -> None:
    proposer = make_proposer(listed_space("own", [FLOAT32, Recipe()]))
    with pytest.raises(ValueError, match="trial 0"):
        proposer.with_suggestions({0: Recipe()})
    proposer.ask(0)
    with pytest.raises(ValueError, match="before suggestions"):
        proposer.with_suggestions({1: Recipe()})
