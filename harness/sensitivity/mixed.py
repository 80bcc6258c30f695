"""Mixed precision from a ranking of groups: the k most sensitive ones kept in float, or their activations in 16 bit.

A recipe names the nodes and tensors concerned, never only k: it means the same without the ranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from harness.recipes.recipe import Recipe
from harness.sensitivity.groups import QuantizerGroup

Kind = Literal["float", "a16"]
"""``float``: the group's operators are not quantized; ``a16``: what they read and write has 16 bits."""
KINDS: tuple[Kind, ...] = get_args(Kind)
_WIDE = {"int8": "int16", "uint8": "uint16"}


def steps(groups: int) -> tuple[int, ...]:
    """1, 2, 4, 8 and so on, below ``groups``: with all groups it would be another recipe altogether."""
    found = []
    count = 1
    while count < groups:
        found.append(count)
        count *= 2
    return tuple(found)


def can_mix(recipe: Recipe, kind: Kind) -> bool:
    """Whether single groups of the recipe can have this precision: 16 bits need QDQ and activations of 8 bits."""
    if recipe.scheme != "static":
        return False
    return kind == "float" or (recipe.format == "QDQ" and recipe.activation in _WIDE)


def mixed(recipe: Recipe, groups: Sequence[QuantizerGroup], kind: Kind) -> Recipe:
    """``recipe`` with ``groups`` in float or with 16-bit activations.

    Raises ValueError where :func:`can_mix` says no.
    """
    if not can_mix(recipe, kind):
        raise ValueError(f"{recipe.label!r} cannot have single groups in {kind}")
    if kind == "float":
        nodes = {name for group in groups for name in group.nodes}
        return recipe.with_changes(exclude_nodes=tuple({*recipe.exclude_nodes, *nodes}))
    wide = {name: _WIDE[recipe.activation] for group in groups for name in group.activations}
    return recipe.with_changes(overrides=tuple({**wide, **dict(recipe.overrides)}.items()))
