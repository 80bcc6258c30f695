"""The examples of docs/boards.md are board files, and the long one shows every key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from harness.boards.fields import fields_at
from harness.boards.registry import load_registry
from harness.boards.schema import Board

DOCS = Path(__file__).parents[2] / "docs" / "boards.md"


def examples() -> list[str]:
    blocks = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [block for block in blocks if block.startswith("apiVersion")]


def test_examples_are_board_files(tmp_path: Path) -> None:
    for number, text in enumerate(examples()):
        # The fingerprint in the text is shortened.
        whole = text.replace("SHA256:…", "SHA256:" + "A" * 43)
        (tmp_path / f"{number}.yaml").write_text(whole, encoding="utf-8")
    registry = load_registry([tmp_path])
    assert [str(entry.error) for entry in registry.entries if entry.error is not None] == []
    assert set(registry.names()) == {"my-pi", "pi-3"}
    assert registry.get("pi-3").transport.model_dump()["user"] == "pi"


def test_long_example_shows_every_key() -> None:
    content: dict[str, Any] = yaml.safe_load(examples()[0])
    assert set(Board.model_fields) - set(content) == {"emulated"}
    assert fields_at(Board, ("transport", "ssh")) == set(content["transport"])
    for section in ("metadata", "runtime", "state", "limits", "recovery"):
        assert fields_at(Board, (section,)) == set(content[section]), section
    assert fields_at(Board, ("canary",)) - set(content["canary"]) == {"sha256"}
