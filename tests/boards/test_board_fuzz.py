"""Whatever a board file holds, what comes out is a board or an error with a place."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.boards.fields import fields_at
from harness.boards.registry import load_board_file, load_registry
from harness.boards.schema import Board
from harness.errors import ConfigError

keys = st.sampled_from(
    sorted(
        set(Board.model_fields)
        | {name for key in Board.model_fields for name in fields_at(Board, (key,))}
        | {name for kind in ("local", "ssh") for name in fields_at(Board, ("transport", kind))}
        | {"extends", "typo"}
    )
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.sampled_from(["boardtune/v1", "Board", "BoardFamily", "ssh", "local", "emulated_ssh", "env:X", "8MB", "a"]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
)
documents = st.dictionaries(keys, values, max_size=6).map(
    lambda content: {"apiVersion": "boardtune/v1", "kind": "Board", "metadata": {"name": "a"}, **content}
)


def load(data: bytes) -> Board | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.yaml"
        path.write_bytes(data)
        (entry,) = load_registry([Path(folder)]).entries
        if entry.error is not None:
            assert entry.board is None
            assert entry.error.where.startswith(str(path))
            assert entry.error.message
            with pytest.raises(ConfigError):
                load_board_file(path)
        elif entry.board is not None:
            assert load_board_file(path) == entry.board
        return entry.board


@settings(max_examples=60, deadline=None)
@given(documents)
def test_any_structure(content: dict[str, Any]) -> None:
    load(yaml.safe_dump(content, allow_unicode=True).encode())


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_bytes(data: bytes) -> None:
    assert load(data) is None
    load(b"apiVersion: boardtune/v1\nkind: Board\nmetadata: {name: a}\ntransport: {kind: local}\n" + data)
