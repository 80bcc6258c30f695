"""Turns pydantic's errors into ones with a file, a line and a way out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.boards.fields import fields_at, paths_named, tags_at
from harness.boards.tree import Node, Place
from harness.errors import ConfigError
from harness.suggest import closest, did_you_mean

Location = tuple[str | int, ...]

_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping (indented KEY: VALUE lines)",
    "mapping_type": "a mapping (indented KEY: VALUE lines)",
    "model_type": "a mapping (indented KEY: VALUE lines)",
    "model_attributes_type": "a mapping (indented KEY: VALUE lines)",
    "path_type": "a path",
}
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
INCOMPLETE = ("missing", "union_tag_not_found", "emulated")
"""Error types a family may have: what it leaves open is said by the boards that extend it."""


@dataclass(frozen=True)
class Problem:
    place: Place
    message: str
    hint: str


def as_config_error(problems: Sequence[Problem]) -> ConfigError:
    """One error for all problems of a file; the first one is the headline."""
    first, *rest = problems
    more = [f"also {other.place}: {other.message}" + (f" ({other.hint})" if other.hint else "") for other in rest]
    return ConfigError(first.message, hint="\n  ".join(filter(None, [first.hint, *more])), where=str(first.place))


def find_problems(
    error: ValidationError, model: type[BaseModel], tree: Node, *, ignore: Sequence[str] = ()
) -> list[Problem]:
    """One problem per pydantic error, in the order of the file."""
    details = error.errors(include_url=False, include_input=True)
    unknown = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]
    # A mistyped key is reported once, not also as the absence of the right one.
    meant = {(*location[:-1], closest(str(location[-1]), fields_at(model, location[:-1]))) for location in unknown}
    problems = [
        _problem(detail, model, tree)
        for detail in details
        if detail["type"] not in ignore and not (detail["type"] == "missing" and detail["loc"] in meant)
    ]
    return sorted(problems, key=lambda problem: (str(problem.place.file), problem.place.line))


def _problem(detail: Any, model: type[BaseModel], tree: Node) -> Problem:
    location: Location = detail["loc"]
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(location, model, tree)
    if "at" in context:
        location = (*location, context["at"])
    path, place = _locate(location, tree)
    name = _dotted(path) or "the file"
    if kind == "missing":
        return _missing(location, tree)
    if kind == "union_tag_not_found":
        return Problem(place, f"{name} has no kind", "add kind: " + " or ".join(tags_at(model, location)))
    if kind in ("literal_error", "union_tag_invalid"):
        return _unknown_value(detail, path, tree)
    if kind in _TYPES:
        return Problem(place, f"{name} must be {_TYPES[kind]}, not {_described(detail['input'])}", _type_hint(detail))
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return Problem(place, f"{name} must be {words} {context[bound]:g}", f"it is {detail['input']!r}")
    if kind == "string_pattern_mismatch":
        return Problem(place, f"{name} is not of the form {context['pattern']}", "correct the value")
    hint = str(context.get("hint", ""))
    return Problem(place, f"{name}: {_plain_message(detail['msg'])}", hint)


def _plain_message(message: str) -> str:
    return message.removeprefix("Value error, ")


def _unknown_key(location: Location, model: type[BaseModel], tree: Node) -> Problem:
    path, place = _locate(location, tree)
    key = str(location[-1])
    section = _dotted(path[:-1])
    known = fields_at(model, location[:-1])
    siblings = known | ({"extends"} if len(location) == 1 else set())
    elsewhere = paths_named(model, key)
    if closest(key, siblings) is None and elsewhere:
        hint = f"did you mean {elsewhere[0]!r}?"
    else:
        hint = did_you_mean(key, sorted(siblings), what="known keys")
    return Problem(place, f"unknown key {key!r}" + (f" in {section}" if section else ""), hint)


def _missing(location: Location, tree: Node) -> Problem:
    key = location[-1]
    parent_path, place = _locate(location[:-1], tree)
    parent = tree.at(*parent_path)
    if parent is not None and parent.entries is not None and key in parent.entries:
        entry = parent.entries[str(key)]
        name = _dotted((*parent_path, key))
        return Problem(entry.place, f"{name} is empty", f"write a value after {key}:")
    section = _dotted(parent_path)
    where = f"{section}.{key}" if section else str(key)
    return Problem(
        place, f"{where} is missing", f"add {key}: … " + (f"under {section}:" if section else "at the top level")
    )


def _unknown_value(detail: Any, path: Location, tree: Node) -> Problem:
    context = detail.get("ctx", {})
    choices = _quoted_words(str(context.get("expected") or context.get("expected_tags") or ""))
    if detail["type"] == "union_tag_invalid":
        path = (*path, "kind")
    node = tree.at(*path)
    value = node.value if node is not None else context.get("tag")
    place = _locate(path, tree)[1]
    if isinstance(value, bool):
        words = "yes/true/on" if value else "no/false/off"
        return Problem(
            place,
            f"{_dotted(path)} is a yes/no value",
            f"YAML reads {words} without quotes so; one of: {', '.join(choices)}",
        )
    return Problem(
        place, f"{_dotted(path)} cannot be {value!r}", did_you_mean(str(value), choices, what="possible values")
    )


def _locate(location: Location, tree: Node) -> tuple[Location, Place]:
    """The part of a pydantic location that is in the file, and the place of its key or value.

    Union tags and names of validators in the location are no keys of the file and are passed over.
    """
    node, place = tree, tree.place
    path: list[str | int] = []
    for step in location:
        kind = node.child("kind")
        if isinstance(step, str) and kind is not None and step == kind.value and path:
            continue
        child = node.child(step)
        if child is None:
            continue
        entry = node.entries.get(str(step)) if node.entries is not None else None
        node, place = child, entry.place if entry is not None else child.place
        path.append(step)
    return tuple(path), place


def _dotted(path: Location) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _quoted_words(text: str) -> list[str]:
    return [word for word in re.findall(r"'([^']*)'", text) if word != "kind"]


def _described(value: Any) -> str:
    if isinstance(value, bool):
        return f"the yes/no value {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value!r}"
    names = {str: "text", list: "a list", dict: "a mapping", type(None): "empty"}
    return names.get(type(value), f"a {type(value).__name__}")


def _type_hint(detail: Any) -> str:
    value = detail["input"]
    if detail["type"] == "string_type" and isinstance(value, bool | int | float):
        return "put it in quotes"
    if detail["type"] in ("int_type", "float_type") and isinstance(value, str):
        return "write the bare number, without quotes or unit"
    if detail["type"] == "string_type" and not isinstance(value, list | dict):
        return "put it in quotes"
    if detail["type"] in ("tuple_type", "list_type"):
        return "write [ONE, TWO], or one '- ITEM' per line"
    return "correct the value"
