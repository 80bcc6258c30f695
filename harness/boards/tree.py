"""Board files as trees in which every value knows the file and line it came from.

PyYAML's composer gives nodes with marks; they are turned into :class:`Node` here with the limits that keep a
hostile or broken file from hurting: size, number of nodes (alias bombs), depth, duplicate keys, merge keys.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harness.errors import ConfigError

MAX_FILE_BYTES = 64 * 1024
MAX_NODES = 20_000
MAX_DEPTH = 32


@dataclass(frozen=True)
class Place:
    file: Path
    line: int
    """From 1."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Entry:
    """One key of a mapping."""

    key: str
    place: Place
    """Of the key."""
    node: Node


@dataclass(frozen=True)
class Node:
    """A mapping (``entries``), a sequence (``items``) or, with neither, a scalar (``value``)."""

    place: Place
    value: Any = field(default=None, repr=False)
    entries: Mapping[str, Entry] | None = None
    items: tuple[Node, ...] | None = None

    @property
    def is_null(self) -> bool:
        return self.entries is None and self.items is None and self.value is None

    def child(self, key: str | int) -> Node | None:
        if self.entries is not None and key in self.entries:
            return self.entries[str(key)].node
        if self.items is not None and isinstance(key, int) and 0 <= key < len(self.items):
            return self.items[key]
        return None

    def at(self, *path: str | int) -> Node | None:
        node: Node | None = self
        for key in path:
            node = node.child(key) if node is not None else None
        return node

    def plain(self) -> Any:
        """Dicts, lists and scalars. An empty value in a mapping means its default, so it is left out."""
        if self.entries is not None:
            return {key: entry.node.plain() for key, entry in self.entries.items() if not entry.node.is_null}
        if self.items is not None:
            return [item.plain() for item in self.items]
        return self.value


def read_text(path: Path) -> str:
    """The text of a small regular UTF-8 file (a symbolic link to one is fine).

    Raises:
        ConfigError: anything else, said in words.
    """
    try:
        # Opened without blocking and checked on the descriptor: a FIFO or a device must not hang the command.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError("not a regular file", where=path, hint="a board is described by a plain YAML file")
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        hint = "the symbolic link leads nowhere; mend or remove it" if path.is_symlink() else "check the file"
        raise ConfigError(f"cannot be read: {error.strerror or error}", where=path, hint=hint) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(
            f"larger than {MAX_FILE_BYTES // 1024} KiB", where=path, hint="this does not look like a board file"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"not UTF-8 text (byte 0x{data[error.start]:02x})", where=f"{path}:{line}", hint="save the file as UTF-8"
        ) from None


def parse(text: str, path: Path) -> Node:
    """The tree of a YAML document.

    Raises:
        ConfigError: with ``file:line``; never quotes the line, which may hold a secret.
    """
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            raise ConfigError("the file is empty", where=path, hint="`boardtune boards init NAME` writes one")
        return _Builder(loader, path).build(root, 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else path
        problem = _without_values(error.problem or error.context or "cannot be parsed")
        raise ConfigError(f"not valid YAML: {problem}", where=where, hint=_syntax_hint(problem)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            "not valid YAML: a control character", where=f"{path}:{line}", hint="remove what is not text"
        ) from None
    except RecursionError:
        raise ConfigError("nested too deeply", where=path, hint="this does not look like a board file") from None


class _Builder:
    def __init__(self, loader: yaml.SafeLoader, path: Path) -> None:
        self._loader = loader
        self._path = path
        self._count = 0

    def build(self, node: yaml.Node, depth: int) -> Node:
        place = self._place(node)
        self._count += 1
        if self._count > MAX_NODES:
            raise ConfigError(
                f"more than {MAX_NODES} values once its anchors are expanded",
                where=str(place),
                hint="this does not look like a board file",
            )
        if depth > MAX_DEPTH:
            raise ConfigError("nested too deeply", where=str(place), hint="this does not look like a board file")
        if isinstance(node, yaml.MappingNode):
            return Node(place, entries=dict(self._entries(node, depth)))
        if isinstance(node, yaml.SequenceNode):
            return Node(place, items=tuple(self.build(item, depth + 1) for item in node.value))
        return Node(place, value=self._scalar(node, place))

    def _entries(self, node: yaml.MappingNode, depth: int) -> Iterator[tuple[str, Entry]]:
        seen: dict[str, Place] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError("a key must be plain text", where=str(place), hint="write KEY: VALUE")
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise ConfigError("merge keys (<<) are not read", where=str(place), hint="use extends: FAMILY instead")
            key = str(key_node.value)
            if key in seen:
                raise ConfigError(
                    f"the key {key!r} is written twice; the first is on line {seen[key].line}",
                    where=str(place),
                    hint="keep one of them",
                )
            seen[key] = place
            yield key, Entry(key, place, self.build(value_node, depth + 1))

    def _scalar(self, node: yaml.Node, place: Place) -> Any:
        try:
            return self._loader.construct_object(node, deep=True)
        except (ValueError, OverflowError):
            raise ConfigError("a value that cannot be read", where=str(place), hint="put it in quotes") from None

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._path, node.start_mark.line + 1)


def _without_values(problem: str) -> str:
    """PyYAML quotes alias and tag names, and an unquoted secret may look like one."""
    for start in (
        "found undefined alias",
        "could not determine a constructor for the tag",
        "found undefined tag handle",
    ):
        if problem.startswith(start):
            return start
    return problem


def _syntax_hint(problem: str) -> str:
    if "\\t" in problem:
        return "indent with spaces, not with tabs"
    if "constructor for the tag" in problem:
        return "YAML tags (!something) are not read; write the plain value"
    if "single document" in problem or "another document" in problem:
        return "one board per file"
    if "undefined alias" in problem:
        return "a value that begins with * must be in quotes"
    return "check the indentation and the colon after each key; quote values that hold : # * & ! or begin with @"


def merge(base: Node, over: Node) -> Node:
    """``over`` on top of ``base``: mappings are merged key by key, everything else is replaced.

    A mapping whose ``kind`` differs from the base's replaces it whole (another transport has other keys), and an
    empty value takes the base's entry away, back to the default.
    """
    if base.entries is None or over.entries is None:
        return over
    if None not in (_kind(over), _kind(base)) and _kind(over) != _kind(base):
        return over
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        below = entries.get(key)
        entries[key] = entry if below is None else Entry(key, entry.place, merge(below.node, entry.node))
    return Node(over.place, entries=entries)


def _kind(node: Node) -> Any:
    kind = node.child("kind")
    return None if kind is None else kind.value
