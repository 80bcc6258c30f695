"""``extends:``: a board on top of its families, validated as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import ValidationError

from harness.boards.problems import INCOMPLETE, as_config_error, find_problems
from harness.boards.schema import Board
from harness.boards.source import BoardSource, layer
from harness.boards.tree import Node
from harness.errors import ConfigError
from harness.suggest import did_you_mean


def resolve(source: BoardSource, sources: Mapping[str, BoardSource], errors: Mapping[str, ConfigError]) -> Board | None:
    """The board a file describes; ``None`` for a family, which is checked as far as it goes.

    Args:
        source: the file.
        sources: everything that may be extended, by name.
        errors: files that cannot be, by name.

    Raises:
        ConfigError: with the ``file:line`` of the board or of the family that is wrong.
    """
    tree = _layered(source, sources, errors)
    if source.kind == "BoardFamily":
        _check_family(tree)
        return None
    try:
        return Board.model_validate(tree.plain())
    except ValidationError as error:
        raise as_config_error(find_problems(error, Board, tree)) from None


def _layered(source: BoardSource, sources: Mapping[str, BoardSource], errors: Mapping[str, ConfigError]) -> Node:
    chain = [source]
    while (extends := chain[-1].extends) is not None:
        name = str(extends.node.value)
        names = [link.name for link in chain]
        if name in names:
            raise ConfigError(
                f"extends goes round in a circle: {' -> '.join([*names, name])}",
                where=str(extends.place),
                hint="let one of them extend nothing",
            )
        if name in errors:
            broken = errors[name]
            raise ConfigError(
                f"extends {name!r}, whose file is broken", where=str(extends.place), hint=f"mend it first: {broken}"
            )
        if name not in sources:
            known = [other for other in sorted(sources) if other != source.name]
            raise ConfigError(
                f"extends {name!r}, which is unknown",
                where=str(extends.place),
                hint=did_you_mean(name, known, what="boards and families that can be extended"),
            )
        chain.append(sources[name])
    tree = chain[-1].tree
    for over in reversed(chain[:-1]):
        tree = layer(tree, over)
    return tree


def _check_family(tree: Node) -> None:
    entries = dict(tree.entries or {})
    entries["kind"] = replace(entries["kind"], node=Node(entries["kind"].place, value="Board"))
    whole = replace(tree, entries=entries)
    try:
        Board.model_validate(whole.plain())
    except ValidationError as error:
        problems = find_problems(error, Board, whole, ignore=INCOMPLETE)
        if problems:
            raise as_config_error(problems) from None
