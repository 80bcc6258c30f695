"""Reads the documentation: code blocks, links, headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
)
_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")


@dataclass(frozen=True)
class Block:
    document: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    found = []
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            if match["language"] in languages:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Block(document, line, match["language"], match["text"]))
    return found


def typed_commands(block: Block) -> Iterator[tuple[str, ...]]:
    """What is typed after ``$``, or stands there as ``boardtune …``: continued lines joined, comments left out."""
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        if line.startswith(("$ ", "boardtune ")):
            yield tuple(shlex.split(re.sub(r"\s#.*", "", line.removeprefix("$ "))))


def prose(document: Path) -> str:
    return _FENCE.sub("", document.read_text(encoding="utf-8"))


def inline_commands(document: Path) -> Iterator[tuple[str, ...]]:
    """``boardtune …`` between backticks in the text; brackets around what may be left out are taken away."""
    for match in _INLINE.finditer(prose(document)):
        if match[1].startswith("boardtune ") and "COMMAND" not in match[1]:
            yield tuple(shlex.split(re.sub(r"\[|\]", "", match[1])))


def links(document: Path) -> Iterator[str]:
    for match in _LINK.finditer(prose(document)):
        yield match["target"]


def anchors(document: Path) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.*)$", prose(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def table_cells(text: str, column: int = 0) -> list[str]:
    """A column of all Markdown tables in ``text``, headers included."""
    rows = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [re.split(r"(?<!\\)\|", row)[column + 1].strip().replace("\\|", "|") for row in rows]
