"""The JSON Schema of board files, for editors."""

from __future__ import annotations

import copy
from typing import Any

from harness.boards.schema import Board


def board_file_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of ``boards/*.yaml``.

    A file that extends another, and a family, may leave out what the other says, so they are held to a copy of the
    schema in which nothing below ``metadata.name`` is required.
    """
    whole = Board.model_json_schema(mode="validation", ref_template="#/$defs/{model}")
    definitions: dict[str, Any] = whole.pop("$defs", {})
    partial = _partial(whole)
    partial["required"] = ["apiVersion", "kind", "metadata"]
    partial["properties"]["kind"] = {"enum": ["Board", "BoardFamily"]}
    partial["properties"]["extends"] = {
        "type": "string",
        "description": "Name of a family or board this one builds on.",
    }
    partial["properties"]["transport"] = _any_transport(definitions)
    partial_definitions = {f"Partial{name}": _partial(body) for name, body in definitions.items()}
    # Names are never inherited.
    partial_definitions["PartialMetadata"]["required"] = ["name"]
    whole = _with_empty_values(whole)
    partial = _with_empty_values(partial)
    definitions = {name: _with_empty_values(body) for name, body in (definitions | partial_definitions).items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "boardtune board file",
        "description": "One board (kind: Board) or what several have in common (kind: BoardFamily).",
        "if": {
            "anyOf": [
                {"required": ["extends"]},
                {"properties": {"kind": {"const": "BoardFamily"}}, "required": ["kind"]},
            ]
        },
        "then": partial,
        "else": whole,
        "$defs": definitions,
    }


def _partial(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy that refers to partial definitions and requires nothing."""
    changed: dict[str, Any] = _with_partial_references(copy.deepcopy(schema))
    changed.pop("required", None)
    return changed


def _with_empty_values(schema: dict[str, Any]) -> dict[str, Any]:
    """An empty value (``state:`` with every key commented out) means the default, for everything that has one."""
    if isinstance(schema.get("anyOf"), list):
        return {**schema, "anyOf": [_with_empty_values(option) for option in schema["anyOf"]]}
    required = schema.get("required", [])
    properties = {
        name: body if name in required else _or_empty(body) for name, body in schema.get("properties", {}).items()
    }
    return {**schema, "properties": properties} if properties else schema


def _or_empty(body: dict[str, Any]) -> dict[str, Any]:
    options = body.get("anyOf", [])
    if {"type": "null"} in options:
        return body
    kept: dict[str, Any] = {key: body[key] for key in ("description", "default", "title") if key in body}
    constraint = {key: value for key, value in body.items() if key not in kept}
    return {**kept, "anyOf": [constraint, {"type": "null"}]}


def _with_partial_references(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: item.replace("#/$defs/", "#/$defs/Partial") if key == "$ref" else _with_partial_references(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_with_partial_references(item) for item in value]
    return value


def _any_transport(definitions: dict[str, Any]) -> dict[str, Any]:
    """The keys of every transport in one object: without ``kind`` no editor can tell which one is extended."""
    transports = [body for name, body in definitions.items() if name.endswith("Transport")]
    properties: dict[str, Any] = {}
    for body in transports:
        properties.update(_with_partial_references(copy.deepcopy(body["properties"])))
    kinds = [body["properties"]["kind"]["const"] for body in transports]
    properties["kind"] = {"enum": sorted(kinds)}
    return {"type": "object", "properties": properties, "additionalProperties": False}
