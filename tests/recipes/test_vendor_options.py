"""Options of vendors' quantizers as recipe values."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.recipes import esp_ppq
from harness.recipes.options import Option, OptionTable
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
