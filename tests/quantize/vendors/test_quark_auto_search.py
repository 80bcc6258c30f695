"""Our presets beside the spaces of Quark's Auto-Search itself, where its environment is installed."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from harness.quantize.vendors.environments import find_environment, is_installed
from harness.recipes.quark_presets import AUTO_SEARCH, quark_recipe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed("quark"), reason="Quark is not installed: boardtune backends install quark"),
]

THEIRS = """
import copy, json
from quark.onnx import generate_all_configs, get_auto_search_config
from quark.onnx.quantization.auto_search.utils import validate_search_space
found = {}
for name in ("XINT8_SEARCH", "A8W8_SEARCH", "A16W8_SEARCH", "ADVANCED_SEARCH"):
    space = copy.deepcopy(get_auto_search_config(name)["search_space"])
    size = validate_search_space(space)["discrete_space_size"]
    training = {key: space.pop(key) for key in ("algorithms", "adaround_params", "adaquant_params")}
    found[name] = {"size": size, "first": generate_all_configs(space), "training": training}
print("\\n" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    ran = subprocess.run(
        [find_environment("quark").python, "-c", THEIRS], capture_output=True, text=True, check=True, timeout=300
    )
    return dict(json.loads(ran.stdout.strip().splitlines()[-1]))


def as_options(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration of Quark's grid in the words of our table."""
    options: dict[str, Any] = {}
    for side in ("activation", "weight"):
        options[side] = config.pop(side).removesuffix("Spec")
        options |= {f"{side}.{name}": value for name, value in config.pop(f"{side}_params").items()}
    # A value of the spec that says what is so anyway.
    options.pop("activation.quant_granularity", None)
    options["cle"] = config.pop("cle_algo") == "cle"
    options |= {f"cle.{name}": value for name, value in config.pop("cle_params", {}).items()}
    for name in ("specific_layer_config", "layer_type_config", "exclude"):
        assert config.pop(name) is None
    assert config.pop("use_external_data_format") is False
    return options | {name: tuple(value) if isinstance(value, list) else value for name, value in config.items()}


@pytest.mark.parametrize("name", AUTO_SEARCH)
def test_stage_one_is_theirs_in_their_order(theirs: dict[str, Any], name: str) -> None:
    ours = [quark_recipe(**options) for options in AUTO_SEARCH[name].first_stage()]
    assert ours == [quark_recipe(**as_options(dict(config))) for config in theirs[name]["first"]]
    assert AUTO_SEARCH[name].discrete == theirs[name]["size"]


@pytest.mark.parametrize("name", AUTO_SEARCH)
def test_stage_two_is_theirs(theirs: dict[str, Any], name: str) -> None:
    space, training = AUTO_SEARCH[name], theirs[name]["training"]
    assert list(space.training) == training["algorithms"]
    for algorithm, ours in space.training.items():
        params = training[f"{algorithm}_params"]
        assert params.pop("only_if") == {"algorithms": algorithm}
        iterations, rate = params.pop("num_iterations"), params.pop("learning_rate")
        assert (iterations["low"], iterations["high"], iterations["step"]) == (3000, space.iterations, 3000)
        assert ((rate["low"], rate["high"]), rate["log"]) == (ours.learning_rate, True)
        devices = {params.pop(key, ["cpu"])[0] for key in ("optim_device", "infer_device")}
        assert devices <= {"cpu", "cuda:0"}
        assert params == {k: [v] for k, v in ours.fixed.items()}
