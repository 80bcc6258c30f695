"""What a search proposes from: a finite list of recipes or a conditional space of them.

A space is written define-by-run: :meth:`Space.suggest` asks a :class:`ParameterSource` for one parameter after
the other, and asks only for those that matter after the earlier answers. Any sampler that can answer can search
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.recipes.recipe import Recipe


class ParameterSource(Protocol):
    """Answers for one proposal. A parameter of the same name always has the same choices or bounds."""

    def categorical(self, name: str, choices: Sequence[str]) -> str: ...

    def integer(self, name: str, low: int, high: int) -> int:
        """Both ends included."""

    def floating(self, name: str, low: float, high: float, log: bool = False) -> float: ...


@dataclass(frozen=True)
class Space:
    """A set of recipes to search."""

    name: str
    enumerated: tuple[Recipe, ...] | None
    """All recipes in the order to try them, where the preset is a list; ``None`` for a sampled space."""
    builder: Callable[[ParameterSource], Recipe] = field(repr=False, compare=False)
    size: int | None = None
    """Number of different recipes; ``None`` with continuous parameters, or if too large to count."""
    seeds: tuple[Recipe, ...] = ()
    """Recipes worth trying before sampling, the float32 baseline first."""
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False, compare=False)
    """Digest of a seed -> the answers that make it, where the space knows them: samplers learn from such seeds."""

    def suggest(self, source: ParameterSource) -> Recipe:
        """One recipe from the answers of ``source``."""
        return self.builder(source)


def listed_space(name: str, recipes: Sequence[Recipe]) -> Space:
    """A finite space: the answer to the parameter ``recipe`` (its position and digest) picks one."""
    ordered = tuple(dict.fromkeys(recipes))
    if not ordered:
        raise ValueError(f"space {name!r} has no recipes")
    by_key = {f"{index:03d}-{recipe.digest[:8]}": recipe for index, recipe in enumerate(ordered)}

    def pick(source: ParameterSource) -> Recipe:
        return by_key[source.categorical("recipe", tuple(by_key))]

    return Space(name=name, enumerated=ordered, builder=pick, size=len(ordered), seeds=ordered)


class ContinuousSpaceError(ValueError):
    """A space with a floating parameter cannot be enumerated."""


class _Walker:
    """Answers from a fixed prefix of choice numbers, then with first choices; remembers the widths."""

    def __init__(self, prefix: Sequence[int]) -> None:
        self._prefix = prefix
        self._answers: dict[str, str | int] = {}
        self.path: list[int] = []
        self.widths: list[int] = []

    def _next(self, width: int) -> int:
        position = len(self.path)
        index = self._prefix[position] if position < len(self._prefix) else 0
        self.path.append(index)
        self.widths.append(width)
        return index

    def categorical(self, name: str, choices: Sequence[str]) -> str:
        if name not in self._answers:
            self._answers[name] = choices[self._next(len(choices))]
        return str(self._answers[name])

    def integer(self, name: str, low: int, high: int) -> int:
        if name not in self._answers:
            self._answers[name] = low + self._next(high - low + 1)
        return int(self._answers[name])

    def floating(self, name: str, low: float, high: float, log: bool = False) -> float:
        raise ContinuousSpaceError(
            f"parameter {name!r} is continuous ({low} to {high}); the space cannot be enumerated"
        )


def grid(space: Space) -> Iterator[Recipe]:
    """Every different recipe of a space, in a fixed order (last parameter fastest).

    Raises :class:`ContinuousSpaceError` if a parameter is continuous.
    """
    if space.enumerated is not None:
        yield from space.enumerated
        return
    seen: set[Recipe] = set()
    prefix: list[int] | None = []
    while prefix is not None:
        walker = _Walker(prefix)
        recipe = space.suggest(walker)
        if recipe not in seen:
            seen.add(recipe)
            yield recipe
        prefix = _advance(walker.path, walker.widths)


def _advance(path: Sequence[int], widths: Sequence[int]) -> list[int] | None:
    """The next path like an odometer whose later wheels depend on the earlier ones; ``None`` at the end."""
    for position in range(len(path) - 1, -1, -1):
        if path[position] + 1 < widths[position]:
            return [*path[:position], path[position] + 1]
    return None
