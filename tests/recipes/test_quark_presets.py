"""Presets equal to the spaces of Quark's Auto-Search."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from harness.errors import ConfigError
from harness.recipes.facts import ModelFacts
from harness.recipes.mixed import MixedAxis
from harness.recipes.presets import preset
from harness.recipes.quark_presets import AUTO_SEARCH, QUARK_PRESETS, quark_recipe
from harness.search.make import make_proposer
from harness.search.proposer import Outcome, Proposal, SamplerName
from harness.search.sources import FixedSource


class Answers:
    """Picks at random from what it is asked, and remembers it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.asked: dict[str, tuple[object, ...]] = {}

    def categorical(self, name: str, choices: Sequence[str]) -> str:
        self.asked[name] = tuple(choices)
        return self._random.choice(choices)

    def integer(self, name: str, low: int, high: int) -> int:
        self.asked[name] = (low, high)
        return self._random.randint(low, high)

    def floating(self, name: str, low: float, high: float, log: bool = False) -> float:
        self.asked[name] = (low, high, log)
        return self._random.uniform(low, high)


@pytest.mark.parametrize(
    ("name", "first", "recipes", "discrete"),
    # Counted by running the spaces of amd-quark 0.13 through its own generate_all_configs and validate_search_space.
    # “recipes”: those that differ, as only one method of A8W8 reads the candidates of percentiles.
    [
        ("XINT8_SEARCH", 3, 3, 8),
        ("A8W8_SEARCH", 36, 24, 96),
        ("A16W8_SEARCH", 12, 12, 32),
        ("ADVANCED_SEARCH", 36, 36, 96),
    ],
)
def test_spaces_are_as_large_as_quarks(name: str, first: int, recipes: int, discrete: int) -> None:
    space = AUTO_SEARCH[name]
    configurations = list(space.first_stage())
    assert len(configurations) == first
    assert len({quark_recipe(**options) for options in configurations}) == recipes
    assert space.discrete == discrete


@pytest.mark.parametrize("name", QUARK_PRESETS)
def test_stage_one_comes_first_and_trains_nothing(name: str) -> None:
    space = preset(name, ModelFacts())
    assert space.seeds[0].is_float32
    for recipe in space.seeds[1:]:
        options = dict(recipe.options)
        assert recipe.backend == "quark"
        assert not options["adaround"]
        assert not options["adaquant"]


@pytest.mark.parametrize("name", QUARK_PRESETS)
def test_stage_two_trains_and_asks_only_for_what_matters(name: str) -> None:
    space = preset(name, ModelFacts())
    asked: dict[str, tuple[object, ...]] = {}
    for seed in range(60):
        answers = Answers(seed)
        recipe = space.suggest(answers)
        options = dict(recipe.options)
        if not (options["adaround"] or options["adaquant"]):
            assert recipe in space.seeds, "without training it is of stage 1"
            continue
        algorithm = "adaround" if options["adaround"] else "adaquant"
        assert options[algorithm] is True
        other = "adaquant" if options["adaround"] else "adaround"
        assert not any(question.startswith(other) for question in answers.asked)
        assert ("cle.cle_steps" in answers.asked) == options["cle"]
        if name == "quark-a8w8":
            wanted = options["activation.calibration_method"] == "LayerwisePercentile"
            assert ("PercentileCandidates" in answers.asked) == wanted
        most = 30_000 if name == "quark-advanced" else 18_000
        assert options[f"{algorithm}.num_iterations"] in range(3000, most + 1, 3000)
        for question, choices in answers.asked.items():
            assert asked.setdefault(question, choices) == choices
    assert asked["adaround.learning_rate"] == (1e-2, 1e-1, True)
    assert asked["adaquant.learning_rate"] == (1e-6, 1e-3 if name == "quark-advanced" else 1e-4, True)


@pytest.mark.parametrize("name", QUARK_PRESETS)
def test_the_sampler_knows_stage_one(name: str) -> None:
    space = preset(name, ModelFacts())
    assert [space.suggest(FixedSource(space.answers[recipe.digest])) for recipe in space.seeds[1:]] == list(
        space.seeds[1:]
    )


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2", "qmc"])
def test_samplers_go_on_from_stage_one(sampler: SamplerName) -> None:
    def proposed() -> list[Proposal]:
        proposer = make_proposer(preset("quark-a16w8", ModelFacts()), sampler, seed=3, objectives=2)
        made = []
        for number in range(33):
            proposal = proposer.ask(number)
            assert proposal is not None
            made.append(proposal)
            proposer.tell(number, Outcome("done", (float(int(proposal.recipe.digest[:6], 16)), 1.0)))
        return made

    made = proposed()
    assert len({proposal.recipe.digest for proposal in made}) == 33
    assert [proposal.origin for proposal in made[:14]] == ["baseline", *["enumerated"] * 12, "sampler"]
    assert all(proposal.params for proposal in made[1:]), "told to the sampler with its parameters"
    assert proposed() == made, "the same seed proposes the same"


def test_a_range_has_no_grid() -> None:
    with pytest.raises(ConfigError, match=r"'quark-xint8' has no grid: .*learning_rate' is continuous"):
        make_proposer(preset("quark-xint8", ModelFacts()), "grid")


def test_adaquant_has_quarks_other_values() -> None:
    for seed in range(20):
        options = dict(preset("quark-xint8", ModelFacts()).suggest(Answers(seed)).options)
        if options["adaquant"]:
            assert (options["adaquant.data_size"], options["adaquant.batch_size"]) == (1000, 2)
            assert options["adaquant.early_stop"] is True
            return
    raise AssertionError("AdaQuant is never tried")


def test_boards_that_run_espdl_models_have_no_such_preset() -> None:
    with pytest.raises(ConfigError, match=r"'quark-a8w8' is not for boards that run .espdl models"):
        preset("quark-a8w8", ModelFacts(), esp_targets=("esp32s3",))


def test_a_mixed_precision_axis_is_refused() -> None:
    with pytest.raises(ConfigError, match="'quark-a8w8' has no mixed-precision axis of ours"):
        preset("quark-a8w8", ModelFacts(), MixedAxis((), {}))


def test_a_name_is_guessed() -> None:
    with pytest.raises(ConfigError, match=r"unknown preset 'quark-x8'\n.*quark-xint8"):
        preset("quark-x8", ModelFacts())
