from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.recipes.facts import ModelFacts
from harness.recipes.files import read_recipe, resolve_recipe
from harness.recipes.presets import quick_recipes
from harness.recipes.recipe import Calibration, Recipe

FACTS = ModelFacts(op_types={"Conv": 2, "Relu": 2})


def test_yaml_and_json_are_alike(tmp_path: Path) -> None:
    wanted = Recipe(activation="uint8", calibration=Calibration("percentile", 99.9), exclude_nodes=("c1",))
    (tmp_path / "r.json").write_text(json.dumps(wanted.to_dict(), indent=2))
    (tmp_path / "r.yaml").write_text(
        "scheme: static\nactivation: uint8\nexclude_nodes: [c1]\ncalibration: {method: percentile, percentile: 99.9}\n"
    )
    assert read_recipe(tmp_path / "r.json") == read_recipe(tmp_path / "r.yaml") == wanted


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("scheme: static\n  weight: int8\n", r"r\.yaml:2: not valid"),
        ("weigth: int8\n", r"weigth(.|\n)*did you mean 'weight'"),
        ("- a\n- b\n", "mapping"),
        ("calibration: {method: minmx}\n", r"calibration\.method(.|\n)*minmx(.|\n)*did you mean 'minmax'"),
        ("weight: !!python/object/apply:os.system ['true']\n", "not valid"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_recipe(path)
    assert str(path) in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such recipe file"):
        read_recipe(tmp_path / "nothing.yaml")


def test_presets_by_name_and_number() -> None:
    recipes = quick_recipes(FACTS)
    assert resolve_recipe("preset:quick#0", FACTS) == recipes[0]
    assert resolve_recipe("preset:quick#3", FACTS) == recipes[3]
    assert resolve_recipe("preset:quick", FACTS) == recipes[1]
    for wrong in ("preset:quick#99", "preset:quick#-1", "preset:quick#x"):
        with pytest.raises(ConfigError, match=f"not #{wrong.split('#')[1]}"):
            resolve_recipe(wrong, FACTS)
    with pytest.raises(ConfigError, match="unknown preset 'slow'"):
        resolve_recipe("preset:slow", FACTS)
