"""Mixed precision from a ranking of groups: the k most sensitive ones kept in float, or their activations in 16 bit.

A recipe names the nodes and tensors concerned, never only k: it means the same without the ranking.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from harness.recipes.recipe import Recipe
from harness.recipes.space import ParameterSource

Kind = Literal["float", "a16"]
"""``float``: the group's operators are not quantized; ``a16``: what they read and write has 16 bits."""
KINDS: tuple[Kind, ...] = get_args(Kind)
NONE = "none"
SINGLE_GROUPS = 8
"""The most sensitive groups that can have a precision each."""
_WIDE = {"int8": "int16", "uint8": "uint16"}
_SEEDS: tuple[tuple[Kind, int], ...] = (("float", 1), ("float", 2), ("float", 4), ("a16", 2))


@dataclass(frozen=True)
class QuantizerGroup:
    """Operators that are quantized, or left in float, together."""

    name: str
    """Of the first node with weights, else of the first."""
    nodes: tuple[str, ...]
    """Names in the prepared model, in its order."""
    op_types: tuple[str, ...]
    """Of the nodes, in the same order."""
    activations: tuple[str, ...]
    """Activations with a range that its nodes read or write."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> QuantizerGroup:
        """From the fields in plain JSON types."""
        parts = {name: tuple(value[name]) for name in ("nodes", "op_types", "activations")}
        return cls(name=value["name"], **parts)


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


@dataclass(frozen=True)
class MixedAxis:
    """Mixed precision as an axis of a search space."""

    kinds: tuple[Kind, ...]
    ranked: Mapping[str, tuple[QuantizerGroup, ...]]
    """By granularity of weights, which changes what is sensitive: groups, the most sensitive first."""

    @property
    def digest(self) -> str:
        """sha256 of all that the axis makes of a recipe, hexadecimal."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        ranked = {name: [asdict(group) for group in groups] for name, groups in self.ranked.items()}
        return {"kinds": list(self.kinds), "ranked": ranked}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MixedAxis:
        """What :meth:`to_json` gave."""
        ranked = {
            name: tuple(QuantizerGroup.from_json(group) for group in groups) for name, groups in value["ranked"].items()
        }
        return cls(tuple(kind for kind in KINDS if kind in value["kinds"]), ranked)

    def suggest(self, source: ParameterSource, recipe: Recipe, *, singly: bool = False) -> Recipe:
        """``recipe`` with the k most sensitive groups precise; ``singly`` also offers a precision for each of the
        :data:`SINGLE_GROUPS` most sensitive ones."""
        kinds = self._kinds(recipe)
        groups = self.ranked[recipe.granularity]
        if not kinds or len(groups) < 2:
            return recipe
        # The parameter's name says which choices it has: they depend on the recipe.
        name = f"mixed_precision.{recipe.granularity}.{'+'.join(kinds)}"
        choices = [NONE, *(f"{kind}-{count}" for kind in kinds for count in steps(len(groups)))]
        choice = source.categorical(name, (*choices, "singly") if singly else tuple(choices))
        if choice == NONE:
            return recipe
        if choice == "singly":
            for place, group in enumerate(groups[:SINGLE_GROUPS]):
                kind = source.categorical(f"{name}.{place}", (NONE, *kinds))
                for known in kinds:
                    recipe = mixed(recipe, [group], known) if kind == known else recipe
            return recipe
        for kind in kinds:
            if choice.startswith(f"{kind}-"):
                return mixed(recipe, groups[: int(choice.removeprefix(f"{kind}-"))], kind)
        return recipe

    def seeds(self, recipe: Recipe) -> tuple[Recipe, ...]:
        """A few mixtures worth trying before sampling."""
        groups, kinds = self.ranked[recipe.granularity], self._kinds(recipe)
        return tuple(
            mixed(recipe, groups[:count], kind) for kind, count in _SEEDS if kind in kinds and count < len(groups)
        )

    def _kinds(self, recipe: Recipe) -> tuple[Kind, ...]:
        return tuple(kind for kind in self.kinds if can_mix(recipe, kind))
