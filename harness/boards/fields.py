"""Which keys the schema knows, and where: for suggestions about unknown ones."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel


def fields_at(model: type[BaseModel], path: Sequence[str | int]) -> set[str]:
    """Keys allowed in the mapping at a pydantic error location (tags of unions included); empty if it is free."""
    return set().union(*(set(current.model_fields) for current in _models_at(model, path)))


def tags_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """What ``kind`` may be in the mapping at a pydantic error location."""
    return sorted(tag for current in _models_at(model, path) if (tag := _tag(current)) is not None)


def _models_at(model: type[BaseModel], path: Sequence[str | int]) -> set[type[BaseModel]]:
    models = {model}
    for step in path:
        found: set[type[BaseModel]] = set()
        for current in models:
            if step in current.model_fields:
                found.update(_models_in(current.model_fields[str(step)].annotation))
        if found:
            models = found
        elif isinstance(step, str):
            # A union's tag: keep the member it names.
            models = {current for current in models if _tag(current) == step} or models
    return models


def paths_named(model: type[BaseModel], key: str) -> list[str]:
    """Dotted paths of the fields called ``key`` anywhere in the schema, the least nested first."""
    found = {path for path in _paths(model, "", frozenset()) if path.rpartition(".")[2] == key}
    return sorted(found, key=lambda path: (path.count("."), path))


def _paths(model: type[BaseModel], prefix: str, above: frozenset[type[BaseModel]]) -> Iterator[str]:
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        yield path
        for inner in _models_in(info.annotation):
            if inner not in above:
                yield from _paths(inner, f"{path}.", above | {model})


def _models_in(annotation: Any) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    if get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated, tuple, list):
        return set().union(*(_models_in(argument) for argument in get_args(annotation)))
    arguments = get_args(annotation)
    return set().union(*(_models_in(argument) for argument in arguments)) if arguments else set()


def _tag(model: type[BaseModel]) -> str | None:
    kind = model.model_fields.get("kind")
    choices = get_args(kind.annotation) if kind else ()
    return choices[0] if len(choices) == 1 else None
