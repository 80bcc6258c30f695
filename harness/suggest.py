"""“Did you mean …?”"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word nearest to ``word``, whatever the case, or ``None`` if none is near."""
    candidates = {item.lower(): item for item in known}
    found = difflib.get_close_matches(word.lower()[:200], candidates, n=1, cutoff=cutoff)
    return candidates[found[0]] if found else None


def near_hint(word: str, known: Iterable[str]) -> str:
    """``did you mean 'int8'?``, empty if nothing is near."""
    near = closest(word, known)
    return "" if near is None else f"did you mean {near!r}?"


def did_you_mean(word: str, known: Iterable[str], *, what: str = "known") -> str:
    """A hint: the nearest known word, or all of them where they are few."""
    choices = list(dict.fromkeys(known))
    near = near_hint(word, choices)
    if near:
        return near
    if not choices:
        return f"there are no {what}"
    shown = ", ".join(choices[:20]) + (", …" if len(choices) > 20 else "")
    return f"{what}: {shown}"
