"""What an audit or a diagnosis says: what was found, where, by which numbers, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.recipes.recipe import Recipe

Severity = Literal["error", "warning", "info"]
"""``error``: it will fail, or has failed; ``warning``: it costs accuracy or time; ``info``: good to know, nobody's
fault."""
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Change:
    """One field of a recipe, in plain JSON types."""

    field: str
    """Dotted, as in a recipe file: ``calibration.method``."""
    before: Any
    """``None`` where there is no recipe yet."""
    after: Any


@dataclass(frozen=True)
class Finding:
    code: str
    """A stable word, for ``--json``."""
    severity: Severity
    what: str
    """One sentence."""
    where: tuple[str, ...] = ()
    """Names of nodes, tensors, inputs, samples or boards."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Numbers (plain JSON), units in the names."""
    advice: str = ""
    """What to do, in boardtune's terms."""
    changes: tuple[Change, ...] = ()
    """To a recipe; made together."""

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "what": self.what,
            "where": list(self.where),
            "evidence": dict(self.evidence),
            "advice": self.advice,
            "changes": [{"field": c.field, "from": c.before, "to": c.after} for c in self.changes],
        }


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first, otherwise in their order."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def shown(names: Sequence[str], most: int = 3) -> str:
    """``'a', 'b', 'c' and 4 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more


def set_to(**after: Any) -> tuple[Change, ...]:
    """Changes where there is no recipe yet; ``__`` in a name stands for a dot."""
    return tuple(Change(name.replace("__", "."), None, value) for name, value in after.items())


def changes_between(before: Recipe, after: Recipe) -> tuple[Change, ...]:
    """Field by field, ``calibration`` by its own fields."""
    old, new = _flat(before.to_dict()), _flat(after.to_dict())
    return tuple(Change(name, old[name], new[name]) for name in old if old[name] != new[name])


def _flat(recipe: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in recipe.items() if name != "calibration"}
    values.update({f"calibration.{name}": value for name, value in recipe["calibration"].items()})
    return values
