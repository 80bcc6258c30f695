from __future__ import annotations

import hashlib
import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.recipes.recipe import FLOAT32, Calibration, Recipe


def _raw_recipes() -> st.SearchStrategy[dict[str, Any]]:
    """Dictionaries as a user may write them: any subset of fields, any combination of known values."""
    names = st.lists(st.sampled_from(["Conv", "MatMul", "Softmax", "Add"]), max_size=3)
    return st.fixed_dictionaries(
        {"scheme": st.sampled_from(["float32", "float16", "dynamic", "static", "weight_only"])},
        optional={
            "format": st.sampled_from(["QDQ", "QOperator"]),
            "activation": st.sampled_from(["uint8", "int8", "uint16", "int16"]),
            "weight": st.sampled_from(["int8", "uint8", "int16", "int4", "uint4"]),
            "block_size": st.sampled_from([None, 16, 32, 64, 128]),
            "activation_symmetric": st.sampled_from([None, True, False]),
            "weight_symmetric": st.sampled_from([None, True, False]),
            "granularity": st.sampled_from(["per_tensor", "per_channel"]),
            "reduce_range": st.booleans(),
            "scale": st.sampled_from(["float32", "power_of_two"]),
            "equalize": st.booleans(),
            "smooth_alpha": st.sampled_from([None, 0, 0.5, 1.0]),
            "weight_clip": st.sampled_from(["none", "mse"]),
            "rounding": st.sampled_from(["nearest", "adaround", "adaquant"]),
            "bias_correction": st.booleans(),
            "align_scales": st.lists(st.sampled_from(["Add", "Concat", "MaxPool"]), max_size=2),
            "overrides": st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["uint16", "int8"]), max_size=2),
            "exclude_after": names,
            "exclude_regions": st.lists(st.lists(st.sampled_from(["a", "b"]), min_size=2, max_size=2), max_size=2),
            "calibration": st.fixed_dictionaries(
                {
                    "method": st.sampled_from(
                        ["minmax", "percentile", "entropy", "mse", "distribution", "layerwise_percentile"]
                    )
                },
                optional={
                    "percentile": st.sampled_from([None, 99, 99.9]),
                    "samples": st.sampled_from([None, 1, 64]),
                },
            ),
            "exclude_op_types": names,
            "exclude_nodes": names,
            "op_types": names,
        },
    )


@given(_raw_recipes())
def test_every_buildable_recipe_survives_its_json(raw: dict[str, Any]) -> None:
    try:
        recipe = Recipe.from_dict(raw)
    except ConfigError:
        reject()
    again = Recipe.from_dict(json.loads(recipe.to_json()))
    assert again == recipe
    assert again.digest == recipe.digest == hashlib.sha256(recipe.to_json().encode()).hexdigest()
    assert again.to_json() == recipe.to_json()
    assert recipe.label
    assert recipe.precision.replace("-", "").isalnum()


@given(_raw_recipes())
def test_what_a_scheme_does_not_read_does_not_make_a_new_recipe(raw: dict[str, Any]) -> None:
    float32 = Recipe.from_dict({**raw, "scheme": "float32"})
    assert float32 == FLOAT32
    assert float32.digest == FLOAT32.digest


def test_json_is_canonical() -> None:
    recipe = Recipe(activation="uint8", exclude_nodes=("b", "a", "b"), calibration=Calibration("percentile", 99))
    text = recipe.to_json()
    value = json.loads(text)
    assert text == json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert value["exclude_nodes"] == ["a", "b"]
    assert value["calibration"] == {"method": "percentile", "percentile": 99.0, "samples": None}
    # Defaults are written out, also those that depend on other fields.
    assert value["weight_symmetric"] is True
    assert value["activation_symmetric"] is False


def test_equal_however_written() -> None:
    first = Recipe.from_dict({"scheme": "static", "calibration": {"method": "minmax", "percentile": 99.9}})
    second = Recipe.from_dict({"calibration": {"method": "minmax"}, "block_size": 64, "activation": "int8"})
    assert first == second
    assert hash(first) == hash(second)
    assert Recipe(calibration=Calibration("percentile", 99)).digest == (
        Recipe(calibration=Calibration("percentile", 99.0)).digest
    )


def test_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        FLOAT32.scheme = "static"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"wieght": "int8"}, ["wieght", "did you mean 'weight'"]),
        ({"weight": "int9"}, ["weight", "int9", "did you mean"]),
        ({"activation": 8}, ["activation", "8", "uint8"]),
        ({"granularity": "per-channel"}, ["granularity", "per-channel", "did you mean 'per_channel'"]),
        ({"scheme": "Static"}, ["scheme", "did you mean 'static'"]),
        ({"reduce_range": "yes"}, ["reduce_range", "bool", "yes"]),
        ({"calibration": {"percentil": 99}}, ["calibration.percentil", "did you mean 'percentile'"]),
        ({"calibration": "minmax"}, ["calibration", "mapping"]),
        ({"calibration": {"method": "percentile", "percentile": 0.999}}, ["calibration.percentile", "0.999"]),
        ({"calibration": {"samples": 0}}, ["calibration.samples", "0"]),
        ({"calibration": {"samples": True}}, ["calibration.samples", "bool"]),
        ({"exclude_nodes": "Conv_0"}, ["exclude_nodes", "list", "Conv_0"]),
        ({"op_types": [3]}, ["op_types", "3"]),
        ({"op_types": ["Conv"], "exclude_op_types": ["Conv"]}, ["op_types", "exclude_op_types", "Conv"]),
        ({"format": "QOperator", "activation": "int16"}, ["activation", "QOperator", "QDQ"]),
        ({"format": "QOperator", "weight": "int4"}, ["weight", "QOperator"]),
        ({"activation": "int8", "weight": "uint8"}, ["weight", "uint8", "int8"]),
        ({"scale": "power_of_two", "weight_symmetric": False}, ["scale", "weight_symmetric"]),
        ({"scale": "power_of_two", "format": "QOperator"}, ["scale", "QDQ"]),
        ({"reduce_range": True, "weight": "int4"}, ["reduce_range", "int4"]),
        ({"scheme": "dynamic", "weight": "int4"}, ["weight", "int4", "weight_only"]),
        ({"scheme": "weight_only", "weight": "int16"}, ["weight", "int16"]),
        ({"scheme": "weight_only", "block_size": 48}, ["block_size", "48"]),
        ({"scheme": "imported"}, ["source", "sha256"]),
        ({"smooth_alpha": 1.5}, ["smooth_alpha", "1.5", "0 to 1"]),
        ({"smooth_alpha": "half"}, ["smooth_alpha", "half"]),
        ({"rounding": "ada"}, ["rounding", "ada"]),
        ({"rounding": "adaround", "weight": "int16"}, ["rounding", "16-bit"]),
        ({"align_scales": ["Concatt"]}, ["align_scales", "did you mean 'Concat'"]),
        ({"overrides": {"a": "int4"}}, ["overrides", "a", "int4", "uint16"]),
        ({"overrides": {"a": "int16"}, "format": "QOperator"}, ["overrides", "QDQ"]),
        ({"overrides": [["a", "int16"], ["a", "uint16"]]}, ["overrides", "'a' twice"]),
        ({"exclude_regions": [["a"]]}, ["exclude_regions", "pairs"]),
        ({"exclude_regions": "a"}, ["exclude_regions", "pairs"]),
        ([], ["mapping"]),
    ],
)
def test_errors_name_field_value_and_way_out(value: Any, named: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Recipe.from_dict(value, where="r.yaml")
    text = str(caught.value)
    assert text.startswith("r.yaml: ")
    for word in named:
        assert word in text


def test_precision_and_label() -> None:
    recipe = Recipe(
        activation="uint8", granularity="per_channel", calibration=Calibration("percentile", 99.99, samples=64)
    )
    assert recipe.precision == "u8s8"
    assert recipe.label == "static QDQ u8/s8 per-channel percentile 99.99 (64 samples)"
    assert FLOAT32.precision == "f32"
    assert Recipe(scheme="weight_only", weight="int4").precision == "w-s4"
    assert Recipe(scheme="imported", source="ab" * 32).label == "imported abababab"
    assert FLOAT32.is_float32
    assert not recipe.is_float32


def test_labels_tell_recipes_apart() -> None:
    base = Recipe(activation="uint8")
    variants = [
        base,
        base.with_changes(format="QOperator"),
        base.with_changes(activation_symmetric=True),
        base.with_changes(weight_symmetric=False),
        base.with_changes(reduce_range=True),
        base.with_changes(scale="power_of_two"),
        base.with_changes(op_types=("Conv",)),
        base.with_changes(exclude_op_types=("Conv",)),
        base.with_changes(exclude_nodes=("a", "b", "c")),
        base.with_changes(calibration=Calibration("mse")),
        Recipe(scheme="weight_only", block_size=64),
        Recipe(scheme="weight_only", block_size=128),
        Recipe(scheme="float16", exclude_op_types=("Add",)),
    ]
    assert len({recipe.label for recipe in variants}) == len(variants)
    assert len({recipe.digest for recipe in variants}) == len(variants)
