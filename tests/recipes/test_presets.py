from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice

import pytest

from harness.errors import ConfigError
from harness.recipes.facts import ModelFacts
from harness.recipes.presets import PRESETS, preset, quick_recipes
from harness.recipes.recipe import FLOAT32, Calibration, Recipe
from harness.recipes.space import ContinuousSpaceError, Space, grid, listed_space

CONV = ModelFacts(op_types={"Clip": 9, "Conv": 9, "Gemm": 1}, parameters=18_000, opset=17)
ATTENTION = ModelFacts(op_types={"Add": 9, "MatMul": 6, "Softmax": 1}, parameters=9_000, opset=17, matmul_weights=4)


class RandomSource:
    """Answers at random; refuses a parameter asked for with other choices than before."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.asked: dict[str, object] = {}

    def _remember(self, name: str, bounds: object) -> None:
        assert self.asked.setdefault(name, bounds) == bounds, name

    def categorical(self, name: str, choices: Sequence[str]) -> str:
        self._remember(name, tuple(choices))
        return self._random.choice(list(choices))

    def integer(self, name: str, low: int, high: int) -> int:
        self._remember(name, (low, high))
        return self._random.randint(low, high)

    def floating(self, name: str, low: float, high: float, log: bool = False) -> float:
        self._remember(name, (low, high, log))
        return self._random.uniform(low, high)


def test_quick_has_what_tells_boards_apart() -> None:
    recipes = quick_recipes(CONV)
    assert recipes[0] == FLOAT32
    assert recipes[1] == Recipe(scheme="static", activation="int8", weight="int8")
    assert 11 <= len(recipes) <= 14
    assert len(set(recipes)) == len(recipes)
    precisions = [(r.precision, r.granularity) for r in recipes]
    for wanted in (("s8s8", "per_tensor"), ("s8s8", "per_channel"), ("u8s8", "per_channel"), ("u8u8", "per_channel")):
        assert wanted in precisions
    assert {"percentile", "entropy"} <= {r.calibration.method for r in recipes}
    assert {"float32", "float16", "dynamic", "static"} == {r.scheme for r in recipes}
    assert any(r.activation in ("uint16", "int16") for r in recipes)
    assert any(r.format == "QOperator" for r in recipes)
    assert any(r.op_types == ("Conv", "Gemm") for r in recipes)


def test_quick_adapts_to_the_model() -> None:
    assert quick_recipes(CONV)[-1].scheme == "dynamic"
    assert not any(r.scheme == "weight_only" for r in quick_recipes(CONV))
    attention = quick_recipes(ATTENTION)
    assert [r.scheme for r in attention].index("dynamic") < 6
    assert any(r.scheme == "weight_only" and r.weight == "int4" for r in attention)


@pytest.mark.parametrize(
    "op_types",
    [
        {"Conv": 38, "MatMul": 13, "Gemm": 1, "Softmax": 3, "Sigmoid": 7, "Mul": 100},
        {"MatMul": 48, "LayerNormalization": 13, "Softmax": 6, "Erf": 6},
    ],
)
def test_quick_leaves_attention_and_gates_in_float_early(op_types: dict[str, int]) -> None:
    """What was measured to keep text recognition and a text classifier: weighted operators only, tails cut off."""
    recipes = quick_recipes(ModelFacts(op_types=op_types, opset=17))
    weighted = tuple(sorted({"Conv", "Gemm", "MatMul"} & set(op_types)))
    only = [recipe for recipe in recipes[:10] if recipe.op_types == weighted]
    assert {(r.activation, r.calibration.method) for r in only} == {
        ("uint8", "percentile"), ("uint8", "minmax"), ("uint8", "mse"), ("int8", "minmax"), ("int8", "percentile"),
    }  # fmt: skip
    assert {r.granularity for r in only} == {"per_channel"}
    assert len(recipes) <= 18


@pytest.mark.parametrize("last", ["Softmax", "Sigmoid"])
def test_quick_takes_the_last_operator_of_a_classifier_for_no_attention(last: str) -> None:
    plain = ModelFacts(op_types={"Clip": 9, "Conv": 9, "Gemm": 1, last: 1}, opset=17)
    assert len([r for r in quick_recipes(plain) if r.op_types]) == 1


def test_xint8_like_is_shift_only() -> None:
    recipes = preset("xint8-like", CONV).enumerated
    assert recipes is not None
    assert recipes[0] == FLOAT32
    for recipe in recipes[1:]:
        assert (recipe.scale, recipe.activation, recipe.weight) == ("power_of_two", "int8", "int8")
        assert recipe.activation_symmetric
        assert recipe.weight_symmetric


@pytest.mark.parametrize("facts", [CONV, ATTENTION, ModelFacts()])
@pytest.mark.parametrize("name", PRESETS)
def test_spaces_only_hold_buildable_recipes(name: str, facts: ModelFacts) -> None:
    space = preset(name, facts)
    assert space.seeds[0] == FLOAT32
    shared: dict[str, object] = {}
    for seed in range(200):
        source = RandomSource(seed)
        source.asked = shared  # A parameter means the same in every proposal.
        recipe = space.suggest(source)
        assert Recipe.from_dict(recipe.to_dict()) == recipe
        if not facts.matmul_weights:
            assert recipe.scheme != "weight_only"


def test_conditional_parameters_are_asked_only_where_they_matter() -> None:
    space = preset("standard", CONV)
    for seed in range(100):
        source = RandomSource(seed)
        recipe = space.suggest(source)
        assert ("percentile" in source.asked) == (recipe.calibration.method == "percentile")
        if recipe.scheme == "float16":
            assert list(source.asked) == ["scheme"]
        if recipe.activation == "uint16":
            assert "format" not in source.asked


def test_grid_finds_all_of_standard() -> None:
    space = preset("standard", CONV)
    recipes = list(grid(space))
    assert len(recipes) == len(set(recipes)) == space.size
    sampled = {space.suggest(RandomSource(seed)) for seed in range(3000)}
    assert sampled <= set(recipes)
    # By hand: float16, and static: 3 eight-bit types × 2 formats + 1 sixteen-bit, × granularity × symmetry
    # × (3 methods + 3 percentiles) × operators × corrections; uint8 weights etc. are all different recipes.
    assert space.size == 1 + (3 * 2 + 1) * 2 * 2 * 6 * 2 * 5


@pytest.mark.parametrize(
    ("facts", "offered", "never"),
    [
        (CONV, {"rounding", "bias_correction", "equalize"}, {"smooth_alpha", "smooth"}),
        (ModelFacts(op_types={"Conv": 3, "Relu": 2}), {"equalize", "rounding"}, {"smooth_alpha", "align_scales"}),
        (
            ModelFacts(op_types={"Add": 2, "MatMul": 4, "LayerNormalization": 2}, matmul_weights=4),
            {"smooth", "smooth_alpha", "align_scales"},
            {"equalize"},
        ),
        (ModelFacts(op_types={"Relu": 1}), set(), {"rounding", "equalize", "smooth", "bias_correction"}),
    ],
)
def test_methods_are_offered_where_they_have_something_to_do(
    facts: ModelFacts, offered: set[str], never: set[str]
) -> None:
    space = preset("full", facts)
    asked: set[str] = set()
    for seed in range(300):
        source = RandomSource(seed)
        recipe = space.suggest(source)
        asked |= set(source.asked)
        if recipe.rounding == "adaquant":
            assert "bias_correction" not in source.asked, "it corrects biases anyway"
    assert offered <= asked
    assert not never & asked


def test_grid_refuses_a_continuous_space() -> None:
    with pytest.raises(ContinuousSpaceError, match="percentile_tail"):
        list(islice(grid(preset("full", CONV)), 5000))


def test_integers_are_enumerated_too() -> None:
    space = Space(
        "n",
        None,
        lambda s: Recipe(calibration=Calibration("minmax", samples=s.integer("samples", 3, 5) if s else None)),
    )
    assert [r.calibration.samples for r in grid(space)] == [3, 4, 5]


def test_listed_space_gives_each_recipe() -> None:
    space = listed_space("two", [FLOAT32, Recipe(scheme="float16"), FLOAT32])
    assert space.size == 2
    assert {space.suggest(RandomSource(seed)) for seed in range(50)} == {FLOAT32, Recipe(scheme="float16")}


def test_unknown_preset() -> None:
    with pytest.raises(ConfigError, match=r"quik(.|\n)*did you mean 'quick'"):
        preset("quik", CONV)
