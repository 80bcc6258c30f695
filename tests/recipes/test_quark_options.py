"""Options of AMD's Quark as recipe values."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import ConfigError
from harness.recipes.options import Option, OptionTable
from harness.recipes.quark import SPECS, TABLE
from harness.recipes.quark_presets import quark_recipe
from harness.recipes.recipe import Recipe


def completed(**options: Any) -> dict[str, Any]:
    return dict(quark_recipe(**options).options)


# ---- tables --------------------------------------------------------------------------------------------------------


DERIVED = OptionTable(
    "made_up",
    {
        "mode": Option("str", "a", ("a", "b")),
        "size": Option("int", lambda values: 1 if values["mode"] == "a" else 2),
        "only_b": Option("numbers", (1.0, 2.0), low=0, high=9, when=lambda values: values["mode"] == "b"),
    },
    check=lambda values: "size 3 is odd" if values["size"] == 3 else "",
)


def test_defaults_may_follow_from_what_stands_before() -> None:
    assert DERIVED.complete({}) == (("mode", "a"), ("size", 1))
    assert DERIVED.complete({"mode": "b"}) == (("mode", "b"), ("only_b", (1.0, 2.0)), ("size", 2))
    assert DERIVED.changed(DERIVED.complete({"mode": "b"})) == ["mode b"]
    assert DERIVED.changed(DERIVED.complete({"mode": "b", "size": 1, "only_b": [3]})) == [
        "mode b",
        "only_b 3",
        "size 1",
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 3}, "the made_up quantizer: size 3 is odd"),
        ({"mode": "b", "only_b": []}, r"'only_b' of the made_up quantizer must be a list of numbers, not \[\]"),
        ({"mode": "b", "only_b": [1, 10]}, "'only_b' of the made_up quantizer is 10; it must be from 0 to 9"),
        ({"mode": "b", "only_b": [1, "x"]}, "'only_b' of the made_up quantizer must be float, not str: 'x'"),
    ],
)
def test_what_a_table_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DERIVED.complete(given)


def test_numbers_keep_their_order_and_come_back_from_json() -> None:
    recipe = quark_recipe(activation__calibration_method="LayerwisePercentile", PercentileCandidates=[99.9, 99, 99.99])
    assert dict(recipe.options)["PercentileCandidates"] == (99.9, 99.0, 99.99)
    assert Recipe.from_dict(recipe.to_dict()) == recipe


# ---- Quark -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "symmetric", "scale", "method"),
    # Constructors of quark.onnx's specs, amd-quark 0.13.
    [
        ("Int8", True, "Float32", "Percentile"),
        ("UInt8", False, "Float32", "Percentile"),
        ("XInt8", True, "PowerOf2", "MinMSE"),
        ("Int16", True, "Float32", "Percentile"),
        ("UInt16", False, "Float32", "Percentile"),
    ],
)
def test_defaults_follow_from_the_spec(spec: str, symmetric: bool, scale: str, method: str) -> None:
    options = completed(activation=spec)
    assert options["activation.symmetric"] is symmetric
    assert options["activation.scale_type"] == scale
    assert options["activation.calibration_method"] == method


def test_power_of_two_on_both_sides_is_for_npus() -> None:
    assert completed(activation="XInt8", weight="XInt8")["EnableNPUCnn"] is True
    assert completed(activation="XInt8", weight="Int8")["EnableNPUCnn"] is False
    assert completed(activation="XInt8", weight="XInt8")["AlignConcat"] is True
    assert completed(activation="Int16")["AlignConcat"] is False
    assert "AlignConcat" not in completed(), "the quantizer of plain int8 reads no such option"


def test_what_a_method_does_not_read_makes_no_other_recipe() -> None:
    minmax = quark_recipe(activation__calibration_method="MinMax")
    assert minmax == quark_recipe(activation__calibration_method="MinMax", PercentileCandidates=[99], Percentile=98)
    assert quark_recipe(Percentile=98) != quark_recipe()
    assert quark_recipe(adaround__learning_rate=0.5) == quark_recipe()


@pytest.mark.parametrize("spec", SPECS)
def test_each_spec_is_a_recipe_with_a_label(spec: str) -> None:
    recipe = quark_recipe(activation=spec, weight=spec)
    assert recipe.precision == f"{spec}-{spec}"
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert recipe.label == ("quark" if spec == "Int8" else f"quark activation {spec} weight {spec}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adaround": True, "adaquant": True}, "AdaRound and AdaQuant exclude each other"),
        ({"gptq": True, "adaround": True}, "GPTQ leaves activations in float"),
        ({"auto_mixprecision": True, "adaquant": True}, "auto_mixprecision is not combined"),
        ({"activation": "BFP16"}, "BFP16 goes with itself only"),
        ({"activation": "XInt8", "weight": "XInt8", "activation__symmetric": False}, "EnableNPUCnn needs"),
        ({"activation": "Int4"}, "unknown value 'Int4'\n  possible: Int8, UInt8"),
        ({"cle": True, "cle__cle_steps": 0}, r"is 0; it must be from 1 to 1000 \(or -1\)"),
        ({"AlignConcats": True}, "unknown option 'AlignConcats' of the quark quantizer\n  did you mean 'AlignConcat'"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        quark_recipe(**options)


def test_switches_stand_before_what_belongs_to_them() -> None:
    seen: set[str] = set()
    for name, option in TABLE.options.items():
        assert not isinstance(option.when, str) or option.when in ("", *seen)
        seen.add(name)
