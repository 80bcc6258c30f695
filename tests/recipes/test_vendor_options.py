"""Options of vendors' quantizers as recipe values."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.recipes import esp_ppq
from harness.recipes.facts import ModelFacts
from harness.recipes.options import Option, OptionTable
from harness.recipes.presets import preset
from harness.recipes.recipe import Recipe

TABLE = OptionTable(
    "made_up",
    {
        "mode": Option("str", "a", ("a", "b")),
        "deep": Option("bool", False),
        "deep.steps": Option("int", 10, low=1, high=100, extra=(-1.0,), when="deep"),
        "deep.rate": Option("float", 0.5, low=0, high=1, when="deep"),
        "deep.layers": Option("names", (), when="deep"),
    },
)


def vendor(**options: Any) -> Recipe:
    return Recipe(
        scheme="vendor",
        backend="esp_ppq",
        options=tuple((name.replace("__", "."), value) for name, value in options.items()),
    )


def test_defaults_are_explicit_and_what_is_off_is_left_out() -> None:
    assert TABLE.complete({}) == (("deep", False), ("mode", "a"))
    assert TABLE.complete({"deep.steps": 50}) == TABLE.complete({})
    assert dict(TABLE.complete({"deep": True, "deep.rate": 1}))["deep.rate"] == 1.0


def test_names_are_a_set() -> None:
    first = TABLE.complete({"deep": True, "deep.layers": ["b", "a", "b"]})
    assert dict(first)["deep.layers"] == ("a", "b")


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({"dep": True}, "unknown option 'dep' of the made_up quantizer\n  did you mean 'deep'"),
        ({"mode": "c"}, "option 'mode' of the made_up quantizer has the unknown value 'c'\n  possible: a, b"),
        ({"deep": 1}, "must be bool, not int: 1"),
        ({"deep": True, "deep.steps": True}, "must be int, not bool: True"),
        ({"deep": True, "deep.steps": 0}, r"is 0; it must be from 1 to 100 \(or -1\)"),
        ({"deep": True, "deep.steps": 1.5}, "must be int, not float: 1.5"),
        ({"deep": True, "deep.rate": math.nan}, "is nan; it must be from 0 to 1"),
        ({"deep": True, "deep.layers": "conv"}, "must be a list of names, not 'conv'"),
    ],
)
def test_a_bad_option_is_named(given_options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TABLE.complete(given_options)


def test_an_option_beside_the_range_is_taken() -> None:
    assert dict(TABLE.complete({"deep": True, "deep.steps": -1}))["deep.steps"] == -1


# ---- recipes ---------------------------------------------------------------------------------------------------------


def test_equal_wishes_are_one_recipe() -> None:
    assert vendor() == vendor(tqt=False) == vendor(tqt__steps=7)
    assert vendor().digest == vendor(tqt__steps=7).digest
    assert vendor(tqt=True).digest != vendor().digest


def test_a_recipe_comes_back_from_json() -> None:
    recipe = vendor(mixed_precision=True, mixed_precision__layers=["b", "a"], target="esp32p4")
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert recipe.suffix == ".espdl"
    assert recipe.label == "esp_ppq mixed_precision mixed_precision.layers a,b target esp32p4"


def test_other_recipes_digests_know_nothing_of_options() -> None:
    assert "options" not in Recipe().to_dict()


def test_a_backend_that_is_no_vendors() -> None:
    with pytest.raises(ConfigError, match=r"'backend' is 'esp-ppq', which is no vendor's quantizer\n.*'esp_ppq'"):
        Recipe(scheme="vendor", backend="esp-ppq")


def test_options_in_files_are_a_mapping() -> None:
    with pytest.raises(ConfigError, match="'options' must be a mapping"):
        Recipe.from_dict({"scheme": "vendor", "backend": "esp_ppq", "options": [["tqt", True]]})


# ---- ESP-PPQ ---------------------------------------------------------------------------------------------------------


def test_the_exhaustive_space_is_as_large_as_autoquants() -> None:
    # Counted by running esp-ppq 1.3.12's StrategyCompiler on its default spaces.
    assert esp_ppq.count() == 1_067_040


def test_stage_one_has_every_strategy_with_every_calibration() -> None:
    recipes = {Recipe(scheme="vendor", backend="esp_ppq", options=tuple(o.items())) for o in esp_ppq.first_stage()}
    assert len(recipes) == 48
    switches = {
        tuple(dict(recipe.options)[name] for name in ("weight_equalization", "bias_correction", "tqt"))
        for recipe in recipes
    }
    assert switches == set(itertools.product((True, False), repeat=3))


@given(st.data())
def test_any_value_of_autoquants_spaces_is_taken(data: st.DataObject) -> None:
    switches = {name: data.draw(st.sampled_from((True, False))) for name in esp_ppq.SWITCHES}
    options = dict(switches)
    for name, values in esp_ppq.PARAMETERS.items():
        options[name] = data.draw(st.sampled_from(values))
    completed = dict(esp_ppq.TABLE.complete(options))
    for name, value in completed.items():
        if name in options:
            assert value == options[name]
    assert all(switches.get(name.partition(".")[0], True) for name in completed if "." in name)


# ---- presets ---------------------------------------------------------------------------------------------------------


class Answers:
    """Picks at random from what it is asked, and remembers it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.asked: dict[str, tuple[str, ...]] = {}

    def categorical(self, name: str, choices: Sequence[str]) -> str:
        assert self.asked.setdefault(name, tuple(choices)) == tuple(choices)
        return self._random.choice(choices)

    def integer(self, name: str, low: int, high: int) -> int:
        raise AssertionError(name)

    def floating(self, name: str, low: float, high: float, log: bool = False) -> float:
        raise AssertionError(name)


class Repeating(Answers):
    def __init__(self, given_answers: Mapping[str, Any]) -> None:
        super().__init__(0)
        self._given = given_answers

    def categorical(self, name: str, choices: Sequence[str]) -> str:
        assert self._given[name] in choices
        return str(self._given[name])


@pytest.mark.parametrize("name", ["quick", "standard", "full", "esp-ppq-fast", "esp-ppq-exhaustive"])
def test_presets_make_recipes_for_the_chips_there_are(name: str) -> None:
    space = preset(name, ModelFacts(), esp_targets=("esp32s3", "esp32p4"))
    assert space.seeds[0].is_float32
    targets = {dict(recipe.options)["target"] for recipe in space.seeds[1:]}
    targets |= {dict(space.suggest(Answers(seed)).options).get("target", "") for seed in range(40)} - {""}
    assert targets == {"esp32s3", "esp32p4"}


def test_fast_begins_with_stage_one() -> None:
    space = preset("esp-ppq-fast", ModelFacts(), esp_targets=("esp32s3",))
    assert len(space.seeds) == 49
    assert dict(space.seeds[1].options)["calib_algorithm"] == "kl"
    assert dict(space.seeds[1].options)["tqt.steps"] == 500


@pytest.mark.parametrize("targets", [("esp32s3",), ("esp32s3", "esp32p4")])
def test_samplers_learn_from_the_first_stage(targets: tuple[str, ...]) -> None:
    space = preset("esp-ppq-fast", ModelFacts(), esp_targets=targets)
    assert len(space.answers) == 48 * len(targets)
    by_digest = {recipe.digest: recipe for recipe in space.seeds}
    for digest, given_answers in space.answers.items():
        assert space.suggest(Repeating(given_answers)) == by_digest[digest]
    assert preset("full", ModelFacts(), esp_targets=targets).answers


def test_the_sampled_space_is_autoquants() -> None:
    """Every combination that its grid has, and no other: counted by the questions that a full walk would ask."""
    space = preset("esp-ppq-exhaustive", ModelFacts(), esp_targets=("esp32s3",))
    for seed in range(200):
        answers = Answers(seed)
        options = dict(space.suggest(answers).options)
        for name, choices in esp_ppq.PARAMETERS.items():
            if esp_ppq.belongs(name, options):
                assert options[name] in choices
                assert (name in answers.asked) == (len(choices) > 1)
            else:
                assert name not in answers.asked


def test_chips_with_scales_per_channel_are_not_equalized() -> None:
    for name in ("quick", "standard"):
        space = preset(name, ModelFacts(), esp_targets=("esp32p4",))
        recipes = [*space.seeds[1:], *(space.suggest(Answers(seed)) for seed in range(60))]
        assert not any(dict(recipe.options).get("weight_equalization") for recipe in recipes)


def test_presets_of_other_boards() -> None:
    with pytest.raises(ConfigError, match=r"'xint8-like' is not for boards that run .espdl models"):
        preset("xint8-like", ModelFacts(), esp_targets=("esp32s3",))
    with pytest.raises(ConfigError, match=r"'esp-ppq-fast' is for boards that run .espdl models"):
        preset("esp-ppq-fast", ModelFacts())
    with pytest.raises(ConfigError, match=r"no target 'esp32s9'\n  did you mean 'esp32s"):
        preset("quick", ModelFacts(), esp_targets=("esp32s9",))
