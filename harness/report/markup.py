"""HTML that is safe by construction: text is escaped where it enters, only :class:`Markup` passes as it is."""

from __future__ import annotations

from html import escape

_VOID = frozenset({"meta", "br", "hr", "link", "img"})


class Markup(str):
    """Finished HTML."""

    __slots__ = ()


Child = str | int | None | Markup
"""Plain text is escaped, ``None`` leaves nothing."""


def text(value: Child) -> Markup:
    if value is None:
        return Markup("")
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def join(*children: Child) -> Markup:
    return Markup("".join(text(child) for child in children))


def el(tag: str, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """An element. ``class_`` and ``for_`` lose their underscore, other underscores become hyphens; ``None`` and
    ``False`` leave an attribute out, ``True`` writes its bare name."""
    parts = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        parts.append(key if value is True else f'{key}="{escape(str(value))}"')
    opening = f"<{' '.join(parts)}>"
    return Markup(opening if tag in _VOID else f"{opening}{join(*children)}</{tag}>")
