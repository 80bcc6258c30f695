"""Text that came from a board, made safe to show: a terminal obeys control characters."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with every character that is neither printable nor a line break or tab replaced by U+FFFD."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text.replace("\r\n", "\n"))
