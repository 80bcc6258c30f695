"""Mixed precision as an axis of the search spaces."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from harness.recipes.facts import ModelFacts
from harness.recipes.mixed import MixedAxis, QuantizerGroup, mixed, steps
from harness.recipes.presets import preset
from harness.recipes.recipe import Recipe
from harness.recipes.space import grid

FACTS = ModelFacts(op_types={"Conv": 6, "Relu": 6}, parameters=100, opset=17)
GROUPS = tuple(
    QuantizerGroup(f"conv{i}", (f"conv{i}", f"relu{i}"), ("Conv", "Relu"), (f"t{i}", f"t{i + 1}")) for i in range(6)
)
RANKED = {"per_channel": GROUPS, "per_tensor": GROUPS[::-1]}
BOTH = MixedAxis(("float", "a16"), RANKED)
U8 = Recipe(activation="uint8", weight="int8", granularity="per_channel")


class Answers:
    """Draws choices; remembers them, as samplers do."""

    def __init__(self, seed: int, fixed: str = "") -> None:
        self.random, self.fixed, self.asked = random.Random(seed), fixed, {}  # type: ignore[var-annotated]

    def categorical(self, name: str, choices: Sequence[str]) -> str:
        self.asked[name] = tuple(choices)
        if self.fixed in choices:
            return self.fixed
        return self.random.choice(list(choices))

    def integer(self, name: str, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def floating(self, name: str, low: float, high: float, log: bool = False) -> float:
        return self.random.uniform(low, high)


@pytest.mark.parametrize(("groups", "expected"), [(0, ()), (1, ()), (2, (1,)), (6, (1, 2, 4)), (9, (1, 2, 4, 8))])
def test_steps_stay_below_all(groups: int, expected: tuple[int, ...]) -> None:
    assert steps(groups) == expected


def test_a_recipe_names_what_it_keeps_precise() -> None:
    made = BOTH.suggest(Answers(0, "float-2"), U8)
    assert made.exclude_nodes == ("conv0", "conv1", "relu0", "relu1")
    made = BOTH.suggest(Answers(0, "a16-2"), U8)
    assert dict(made.overrides) == {"t0": "uint16", "t1": "uint16", "t2": "uint16"}
    assert Recipe.from_dict(made.to_dict()) == made


def test_what_is_sensitive_depends_on_granularity() -> None:
    made = BOTH.suggest(Answers(0, "float-1"), U8.with_changes(granularity="per_tensor"))
    assert made.exclude_nodes == ("conv5", "relu5")


def test_a_recipes_own_choices_stay() -> None:
    own = U8.with_changes(exclude_nodes=("other",), overrides=(("t0", "int16"),))
    assert mixed(own, GROUPS[:1], "float").exclude_nodes == ("conv0", "other", "relu0")
    assert dict(mixed(own, GROUPS[:1], "a16").overrides) == {"t0": "int16", "t1": "uint16"}


def test_kinds_are_offered_where_they_fit() -> None:
    for recipe, kinds in (
        (U8, "float+a16"),
        (U8.with_changes(format="QOperator"), "float"),
        (U8.with_changes(activation="uint16"), "float"),
    ):
        answers = Answers(0)
        BOTH.suggest(answers, recipe)
        assert list(answers.asked) == [f"mixed_precision.per_channel.{kinds}"]
    answers = Answers(0)
    assert BOTH.suggest(answers, Recipe(scheme="float16")) == Recipe(scheme="float16")
    assert not answers.asked


def test_groups_may_have_a_precision_each() -> None:
    seen = set()
    for seed in range(40):
        made = BOTH.suggest(Answers(seed, "singly"), U8, singly=True)
        seen.add(made)
    ks = {mixed(U8, GROUPS[:k], kind) for k in (1, 2, 4, 6) for kind in ("float", "a16")}  # type: ignore[arg-type]
    assert len(seen - ks) > 20
    both = [recipe for recipe in seen if recipe.exclude_nodes and recipe.overrides]
    assert both


@pytest.mark.parametrize("name", ["quick", "standard", "full", "xint8-like"])
def test_presets_have_the_axis_only_if_asked(name: str) -> None:
    plain, more = preset(name, FACTS), preset(name, FACTS, BOTH)
    assert set(plain.seeds) < set(more.seeds)
    added = [recipe for recipe in more.seeds if recipe not in plain.seeds]
    assert all(recipe.exclude_nodes or recipe.overrides for recipe in added)
    assert not any(recipe.exclude_nodes or recipe.overrides for recipe in plain.seeds)
    drawn = [more.suggest(Answers(seed)) for seed in range(60)]
    assert any(recipe.exclude_nodes for recipe in drawn)
    assert any(recipe.overrides for recipe in drawn)


@pytest.mark.parametrize("name", ["standard", "full"])
def test_a_parameter_always_has_the_same_choices(name: str) -> None:
    space = preset(name, FACTS, BOTH)
    known: dict[str, tuple[str, ...]] = {}
    for seed in range(300):
        answers = Answers(seed)
        space.suggest(answers)
        for parameter, choices in answers.asked.items():
            assert known.setdefault(parameter, choices) == choices


def test_the_standard_space_can_be_counted() -> None:
    space = preset("standard", FACTS, MixedAxis(("float",), {k: v[:2] for k, v in RANKED.items()}))
    assert space.size == sum(1 for _ in grid(space))
    plain = preset("standard", FACTS)
    assert plain.size is not None
    # Each static recipe also with one group in float; one is float16.
    assert space.size == 2 * (plain.size - 1) + 1


def test_the_digest_covers_all_that_recipes_are_made_of() -> None:
    others = [
        MixedAxis(("float",), RANKED),
        MixedAxis(("float", "a16"), {"per_channel": GROUPS, "per_tensor": GROUPS}),
        MixedAxis(("float", "a16"), {**RANKED, "per_channel": (GROUPS[1], GROUPS[0], *GROUPS[2:])}),
    ]
    assert len({axis.digest for axis in (BOTH, *others)}) == 4
    assert MixedAxis(("float", "a16"), dict(RANKED)).digest == BOTH.digest
