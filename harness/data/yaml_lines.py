"""YAML read with the line of every key, so that errors can point at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from harness.errors import ConfigError
from harness.suggest import did_you_mean

Location = tuple[str | int, ...]


class Lines:
    """Line numbers (from 1) of the keys and items of one YAML document, and its scalars as they are written."""

    def __init__(self, path: Path, lines: Mapping[Location, int], texts: Mapping[Location, str]) -> None:
        self._path = path
        self._lines = lines
        self._texts = texts

    def where(self, location: Iterable[str | int]) -> str:
        """``file:line`` of a key, or of its nearest enclosing key that is in the file."""
        place = tuple(location)
        while place and place not in self._lines:
            place = place[:-1]
        line = self._lines.get(place)
        return f"{self._path}:{line}" if line is not None else str(self._path)

    def text(self, location: Location) -> str | None:
        """A scalar as the file has it, before YAML makes a number or a date of it; ``None`` where there is none."""
        return self._texts.get(location)


def read_mapping(path: Path, what: str) -> tuple[dict[str, Any], Lines]:
    """Reads a YAML mapping; raises :class:`ConfigError` with ``file:line`` (not readable, not YAML, not a mapping,
    a key given twice). ``what`` names the file's purpose in messages."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {what}: {error}", where=path) from None
    lines: dict[Location, int] = {}
    texts: dict[Location, str] = {}
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is not None:
            _collect(node, (), lines, texts, path)
        value = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"not YAML: {error.problem or error.context}", where=f"{path}{line}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"not YAML: {error}", where=path) from None
    finally:
        loader.dispose()
    if not isinstance(value, dict):
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise ConfigError(f"the {what} must be a mapping of keys, found {found}", where=path)
    return value, Lines(path, lines, texts)


def explain(error: ValidationError, known: Sequence[str], lines: Lines | None, what: str) -> ConfigError:
    """A pydantic error as one :class:`ConfigError` about the first problem, with its line and a close spelling."""
    first = error.errors()[0]
    location = tuple(first["loc"])
    name = ".".join(str(part) for part in location)
    hint = ""
    if first["type"] == "extra_forbidden":
        message = f"unknown key {name!r} in the {what}"
        hint = did_you_mean(str(location[-1]), known)
    elif first["type"] == "missing":
        message = f"the {what} lacks {name!r}"
    else:
        text = first["msg"].removeprefix("Value error, ")
        message = f"{name}: {text} (found {first['input']!r})" if name else f"{what}: {text}"
    more = error.error_count() - 1
    if more:
        message += f"; and {more} more"
    return ConfigError(message, hint=hint, where=lines.where(location) if lines else "")


def _collect(
    node: yaml.Node, location: Location, lines: dict[Location, int], texts: dict[Location, str], path: Path
) -> None:
    lines.setdefault(location, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        texts[location] = str(node.value)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                raise ConfigError(f"the key {name!r} is given twice", where=f"{path}:{key.start_mark.line + 1}")
            seen.add(name)
            lines[(*location, name)] = key.start_mark.line + 1
            _collect(value, (*location, name), lines, texts, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect(item, (*location, index), lines, texts, path)
