"""Answers for a define-by-run space: from a record, at random, or all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.errors import ConfigError
from harness.recipes.recipe import Recipe
from harness.recipes.space import ContinuousSpaceError, ParameterSource, Space


class MissingParameter(KeyError):
    """A recorded set of parameters lacks one the space asks for, or has a value the space does not know."""


class FixedSource:
    """Answers from recorded parameters. Raises :class:`MissingParameter` where the record does not fit."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params

    def categorical(self, name: str, choices: Sequence[str]) -> str:
        value = self._params.get(name)
        if value not in choices:
            raise MissingParameter(f"{name} is {value!r}, not one of {', '.join(choices)}")
        return str(value)

    def integer(self, name: str, low: int, high: int) -> int:
        return int(self._number(name, low, high))

    def floating(self, name: str, low: float, high: float, log: bool = False) -> float:
        return float(self._number(name, low, high))

    def _number(self, name: str, low: float, high: float) -> float:
        value = self._params.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise MissingParameter(f"{name} is {value!r}, not a number from {low} to {high}")
        return value


class RandomSource:
    """Independent uniform answers; ``params`` holds them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self.params: dict[str, Any] = {}

    def categorical(self, name: str, choices: Sequence[str]) -> str:
        if name not in self.params:
            self.params[name] = choices[int(self._rng.integers(len(choices)))]
        return str(self.params[name])

    def integer(self, name: str, low: int, high: int) -> int:
        if name not in self.params:
            self.params[name] = int(self._rng.integers(low, high + 1))
        return int(self.params[name])

    def floating(self, name: str, low: float, high: float, log: bool = False) -> float:
        if name not in self.params:
            bounds = (np.log(low), np.log(high)) if log else (low, high)
            value = float(self._rng.uniform(*bounds))
            # exp(log(high)) may come out a rounding error above high.
            self.params[name] = min(high, max(low, float(np.exp(value)))) if log else value
        return float(self.params[name])


class NearSource:
    """Answers from recorded parameters, some of them drawn anew at random; ``params`` holds what was answered.

    ``redraw`` is the probability that an answer on record is drawn anew. What the record lacks is drawn too.
    """

    def __init__(self, record: Mapping[str, Any], rng: np.random.Generator, redraw: float) -> None:
        self._record = FixedSource(record)
        self._random = RandomSource(rng)
        self._rng = rng
        self._redraw = redraw

    @property
    def params(self) -> Mapping[str, Any]:
        return self._random.params

    def categorical(self, name: str, choices: Sequence[str]) -> str:
        return str(self._answer(name, lambda source: source.categorical(name, choices)))

    def integer(self, name: str, low: int, high: int) -> int:
        return int(self._answer(name, lambda source: source.integer(name, low, high)))

    def floating(self, name: str, low: float, high: float, log: bool = False) -> float:
        return float(self._answer(name, lambda source: source.floating(name, low, high, log)))

    def _answer(self, name: str, ask: Callable[[ParameterSource], str | float]) -> str | float:
        if name not in self._random.params and self._rng.random() >= self._redraw:
            with contextlib.suppress(MissingParameter):
                self._random.params[name] = ask(self._record)
        return ask(self._random)


class _PathSource:
    """Answers along a path of choice numbers, first choices beyond its end."""

    def __init__(self, prefix: Sequence[int]) -> None:
        self._prefix = prefix
        self.path: list[int] = []
        self.widths: list[int] = []
        self.params: dict[str, Any] = {}

    def _next(self, width: int) -> int:
        at = len(self.path)
        index = self._prefix[at] if at < len(self._prefix) else 0
        self.path.append(index)
        self.widths.append(width)
        return index

    def categorical(self, name: str, choices: Sequence[str]) -> str:
        if name not in self.params:
            self.params[name] = choices[self._next(len(choices))]
        return str(self.params[name])

    def integer(self, name: str, low: int, high: int) -> int:
        if name not in self.params:
            self.params[name] = low + self._next(high - low + 1)
        return int(self.params[name])

    def floating(self, name: str, low: float, high: float, log: bool = False) -> float:
        raise ContinuousSpaceError(f"parameter {name!r} is continuous ({low} to {high}): it cannot be enumerated")


def walk(space: Space) -> Iterator[tuple[Recipe, dict[str, Any]]]:
    """Every different recipe with parameters that make it, in a fixed order.

    Raises :class:`~harness.recipes.space.ContinuousSpaceError` where a parameter is continuous.
    """
    seen: set[str] = set()
    prefix: list[int] | None = []
    while prefix is not None:
        source = _PathSource(prefix)
        recipe: Recipe | None
        try:
            recipe = space.suggest(source)
        except ConfigError:
            recipe = None  # a combination the recipe itself refuses
        if recipe is not None and recipe.digest not in seen:
            seen.add(recipe.digest)
            yield recipe, source.params
        prefix = next(
            (
                [*source.path[:at], source.path[at] + 1]
                for at in range(len(source.path) - 1, -1, -1)
                if source.path[at] + 1 < source.widths[at]
            ),
            None,
        )
