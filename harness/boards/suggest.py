"""“Did you mean …?”"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word nearest to ``word``, or ``None`` if none is near."""
    candidates = {item.lower(): item for item in known}
    found = difflib.get_close_matches(word.lower()[:200], candidates, n=1, cutoff=0.6)
    return candidates[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], *, what: str) -> str:
    """A hint: the nearest known word, or all of them where they are few."""
    choices = list(dict.fromkeys(known))
    near = closest(word, choices)
    if near is not None:
        return f"did you mean {near!r}?"
    if not choices:
        return f"there are no {what}"
    shown = ", ".join(choices[:20]) + (", …" if len(choices) > 20 else "")
    return f"{what}: {shown}"
