"""Options of quantizers that live in environments of their own, as recipe values.

A vendor's quantizer has a vocabulary of its own, which boardtune keeps (a user reads the vendor's guide). Each backend
declares it once in a table; a recipe holds the completed options: checked, defaults explicit, and without those that
mean nothing because what they belong to is off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.errors import ConfigError
from harness.suggest import did_you_mean

Value = bool | int | float | str | tuple[str, ...] | tuple[float, ...]
Before = Mapping[str, Value]
"""Values of the options that stand before one in its table, for what follows from them."""
Options = tuple[tuple[str, Value], ...]
"""(name, value), sorted by name."""
Kind = Literal["bool", "int", "float", "str", "names", "numbers"]


@dataclass(frozen=True)
class Option:
    """One option of a vendor's quantizer."""

    kind: Kind
    default: Value | Callable[[Before], Value]
    choices: tuple[str, ...] = ()
    """For ``str``; empty means any."""
    low: float = -math.inf
    high: float = math.inf
    """Both included; for ``int``, ``float`` and ``numbers``."""
    extra: tuple[float, ...] = ()
    """Numbers allowed beside the range, such as -1 for “all”."""
    when: str | Callable[[Before], bool] = ""
    """Name of the switch this belongs to, or whether it matters; where it does not, the option is left out."""

    def belongs(self, before: Before) -> bool:
        if callable(self.when):
            return self.when(before)
        return not self.when or before.get(self.when) is True

    def usual(self, before: Before) -> Value:
        """The default."""
        return self.default(before) if callable(self.default) else self.default


@dataclass(frozen=True)
class OptionTable:
    """The vocabulary of one backend."""

    backend: str
    options: Mapping[str, Option]
    suffix: str = ".onnx"
    """Of the files it makes."""
    precision: tuple[str, ...] = ()
    """Options that go into the files' names."""
    check: Callable[[Before], str] | None = None
    """What is wrong with the options together, in a sentence; empty where nothing is."""

    def complete(self, given: Mapping[str, Any]) -> Options:
        """Checked and complete. Raises :class:`ConfigError` naming the option, the value and what is possible."""
        for name in given:
            if name not in self.options:
                hint = did_you_mean(str(name), self.options, what="options")
                raise ConfigError(f"unknown option {str(name)!r} of the {self.backend} quantizer", hint=hint)
        values: dict[str, Value] = {}
        # A switch stands before what belongs to it.
        for name, option in self.options.items():
            if option.belongs(values):
                values[name] = self._checked(name, option, given[name]) if name in given else option.usual(values)
        problem = self.check(values) if self.check is not None else ""
        if problem:
            raise ConfigError(f"the {self.backend} quantizer: {problem}")
        return tuple(sorted(values.items()))

    def _checked(self, name: str, option: Option, value: Any) -> Value:
        where = f"option {name!r} of the {self.backend} quantizer"
        if option.kind == "names":
            if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
                raise ConfigError(f"{where} must be a list of names, not {value!r}")
            return tuple(sorted(set(value)))
        if option.kind == "numbers":
            if not isinstance(value, list | tuple) or not value:
                raise ConfigError(f"{where} must be a list of numbers, not {value!r}")
            single = Option("float", 0.0, low=option.low, high=option.high, extra=option.extra)
            return tuple(float(self._checked(name, single, item)) for item in value)  # type: ignore[arg-type]
        # bool is an int to Python, but ``steps: true`` is a mistake.
        kinds: Mapping[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,)}
        if not isinstance(value, kinds[option.kind]) or (isinstance(value, bool) and option.kind != "bool"):
            raise ConfigError(f"{where} must be {option.kind}, not {type(value).__name__}: {value!r}")
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            if option.choices and value not in option.choices:
                hint = f"possible: {', '.join(option.choices)}"
                raise ConfigError(f"{where} has the unknown value {value!r}", hint=hint)
            return value
        number: float = value  # type: ignore[assignment]
        if not (option.low <= number <= option.high or number in option.extra) or not math.isfinite(number):
            beside = f" (or {', '.join(f'{e:g}' for e in option.extra)})" if option.extra else ""
            raise ConfigError(f"{where} is {value}; it must be {_range(option)}{beside}")
        return float(number) if option.kind == "float" else int(number)

    def changed(self, options: Options) -> list[str]:
        """What differs from the defaults, for a label: ``name`` of a switch that is on, ``name value`` else."""
        words, values = [], dict(options)
        for name, value in options:
            if value == self.options[name].usual(values):
                continue
            shown = _shown(value)
            words.append(f"{'' if value else 'no '}{name}" if isinstance(value, bool) else f"{name} {shown}")
        return words


def _shown(value: Value) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _range(option: Option) -> str:
    if option.high == math.inf:
        return f"at least {option.low:g}"
    return f"from {option.low:g} to {option.high:g}"
