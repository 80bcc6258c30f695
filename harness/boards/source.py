"""One board file: read, parsed, its header checked, its paths made independent of the working folder."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.boards.schema import API_VERSION, names_a_file
from harness.boards.tree import Entry, Node, merge, parse, read_text
from harness.errors import ConfigError
from harness.suggest import did_you_mean

KINDS = ("Board", "BoardFamily")
_RELATIVE_PATHS = (("transport", "key"), ("transport", "config"), ("transport", "workdir"), ("canary", "model"))
_SECRETS = (("transport", "password"), ("transport", "passphrase"))


@dataclass(frozen=True)
class BoardSource:
    """A board file (``kind: Board``) or a family (``kind: BoardFamily``), before ``extends:`` is resolved."""

    path: Path
    name: str
    kind: Literal["Board", "BoardFamily"]
    extends: Entry | None
    tree: Node
    """Without ``extends``; paths absolute."""

    @property
    def name_line(self) -> int:
        node = self.tree.at("metadata", "name")
        return node.place.line if node is not None else self.tree.place.line


def read_source(path: Path) -> BoardSource:
    """Reads one file.

    Raises:
        ConfigError: with ``file:line``, for everything that keeps the file from being a board or a family.
    """
    return read_source_text(read_text(path), path)


def read_source_text(text: str, path: Path) -> BoardSource:
    """The same from text that is, or will be, the file's."""
    tree = parse(text, path)
    if tree.entries is None:
        raise ConfigError(
            "a board file is a mapping", where=str(tree.place), hint=f"it begins with apiVersion: {API_VERSION}"
        )
    _check_header(tree, "apiVersion", (API_VERSION,))
    kind = _check_header(tree, "kind", KINDS)
    name = tree.at("metadata", "name")
    if name is None or not isinstance(name.value, str):
        place = (name or tree.child("metadata") or tree).place
        raise ConfigError(
            "metadata.name is missing" if name is None or name.is_null else "metadata.name must be text",
            where=str(place),
            hint=f"add metadata: {{name: {_suggested_name(path)}}}",
        )
    extends = tree.entries.get("extends")
    if extends is not None and not isinstance(extends.node.value, str):
        raise ConfigError("extends must be the name of one family", where=str(extends.place), hint="extends: NAME")
    own = Node(tree.place, entries={key: entry for key, entry in tree.entries.items() if key != "extends"})
    own = _with_absolute_paths(own, path.parent.absolute())
    return BoardSource(path, name.value, "Board" if kind == "Board" else "BoardFamily", extends, own)


def layer(base: Node, over: BoardSource) -> Node:
    """The tree of ``over`` on top of what it extends; a board's name is never inherited."""
    entries = dict(base.entries or {})
    entries.pop("kind", None)
    metadata = entries.get("metadata")
    if metadata is not None and metadata.node.entries is not None:
        without_name = {key: entry for key, entry in metadata.node.entries.items() if key != "name"}
        entries["metadata"] = replace(metadata, node=replace(metadata.node, entries=without_name))
    return merge(Node(base.place, entries=entries), over.tree)


def _check_header(tree: Node, key: str, known: tuple[str, ...]) -> str:
    node = tree.child(key)
    if node is None or node.is_null:
        near = next((entry for name, entry in (tree.entries or {}).items() if name.lower() == key.lower()), None)
        hint = (
            f"did you mean {key!r} instead of {near.key!r}?" if near and near.key != key else f"add {key}: {known[0]}"
        )
        raise ConfigError(f"{key} is missing", where=str((near or tree).place), hint=hint)
    if node.value not in known:
        raise ConfigError(
            f"{key} cannot be {node.value!r}",
            where=str(node.place),
            hint=did_you_mean(str(node.value), known, what="possible values"),
        )
    return str(node.value)


def _with_absolute_paths(tree: Node, folder: Path) -> Node:
    """Paths are relative to the file that says them, which may be another than the board's (a family)."""
    for section, key in (*_RELATIVE_PATHS, *_SECRETS):
        node = tree.at(section, key)
        if node is None or not _applies(tree, section, key):
            continue
        tree = _with_value(tree, (section, key), _absolute(node, folder, secret=(section, key) in _SECRETS))
    return tree


def _applies(tree: Node, section: str, key: str) -> bool:
    if key == "workdir":
        # An SSH board's workdir is a path on the board.
        kind = tree.at(section, "kind")
        return kind is not None and kind.value == "local"
    if key == "model":
        model = tree.at(section, key)
        return model is not None and isinstance(model.value, str) and names_a_file(model.value)
    return True


def _absolute(node: Node, folder: Path, *, secret: bool) -> Node:
    file = node.entries.get("file") if node.entries is not None else None
    if file is not None:
        return Node(node.place, entries={"file": replace(file, node=_absolute(file.node, folder, secret=False))})
    if not isinstance(node.value, str):
        return node
    prefix, text = ("file:", node.value.removeprefix("file:")) if node.value.startswith("file:") else ("", node.value)
    if (secret and not prefix) or not _is_path(text):
        return node
    return replace(node, value=f"{prefix}{_join(folder, text)}")


def _is_path(text: str) -> bool:
    """Whether it is a relative path; names of canaries, references and inline keys are not."""
    return bool(text.strip()) and "\n" not in text and not text.startswith(("env:", "-----"))


def _join(folder: Path, text: str) -> str:
    path = Path(text).expanduser()
    return str(path if path.is_absolute() else folder / path)


def _with_value(tree: Node, path: tuple[str, ...], value: Node) -> Node:
    head, *rest = path
    entries = dict(tree.entries or {})
    entry = entries[head]
    entries[head] = replace(entry, node=_with_value(entry.node, tuple(rest), value) if rest else value)
    return replace(tree, entries=entries)


def _suggested_name(path: Path) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", path.stem.lower()).strip("-") or "my-board"
