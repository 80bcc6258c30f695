"""Seeded noise that depends on what is measured, not on what was measured before.

The samples of a block are a function of (seed, model, the request's label, ordinal of the model's session, ordinal of
the block in it). The label says what the block is for, so a finalist's second measurement is a draw of its own. The
ordinals count within a *context*, which begins when the board's health is read from outside a session: what every
measurement of a search starts with. So a search that is resumed with a new runner sees the numbers that an
uninterrupted one sees; and measuring a model anew gives its first numbers again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .machine import Machine
from .spec import Noise

_CHUNK = 1024


def factors(noise: Noise, *key: object) -> Iterator[float]:
    """Endless factors on the latency for one block; the same key gives the same factors."""
    if noise.kind == "none":
        while True:
            yield 1.0
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    block = float(np.exp(noise.block_sigma * generator.standard_normal()))
    while True:
        values = block * np.exp(noise.sigma * generator.standard_normal(_CHUNK))
        values[generator.random(_CHUNK) < noise.spike_probability] *= noise.spike_factor
        yield from values.tolist()


@dataclass(frozen=True)
class Turn:
    """Which session of a model this is, within a context."""

    context: int
    ordinal: int


class Contexts:
    """The book-keeping of contexts for one runner, shared by its children through a file."""

    def __init__(self, machine: Machine, life: str) -> None:
        self._machine = machine
        self._name = f"life-{life}.json"

    def begin(self) -> None:
        """A new context: the ordinals of all models start at zero."""
        with self._machine.shared(self._name) as book:
            book["context"] = book.get("context", 0) + 1
            book["ordinals"] = {}

    def load(self, model: str) -> Turn:
        """A model is loaded."""
        with self._machine.shared(self._name) as book:
            return _next_turn(book, model)

    def renew(self, model: str, turn: Turn) -> Turn:
        """A loaded model goes on; in a new context its session counts as a new one."""
        with self._machine.shared(self._name) as book:
            return turn if book.get("context", 0) == turn.context else _next_turn(book, model)


def _next_turn(book: dict[str, object], model: str) -> Turn:
    ordinals = book.setdefault("ordinals", {})
    if not isinstance(ordinals, dict):
        raise TypeError("the contexts' file is damaged")
    ordinal = int(ordinals.get(model, 0))
    book["ordinals"] = {**ordinals, model: ordinal + 1}
    context = book.get("context", 0)
    return Turn(context if isinstance(context, int) else 0, ordinal)
