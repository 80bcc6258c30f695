"""What was noticed about a measurement, and how much it weighs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from harness.results import Verdict

Level = Literal["notice", "suspect", "invalid"]


@dataclass(frozen=True)
class Finding:
    """``code`` is stable (ledger, tests); ``text`` is for people and names the value and the limit."""

    level: Level
    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


def judge(findings: Iterable[Finding]) -> tuple[Verdict, tuple[str, ...]]:
    """Verdict and its reasons; the reasons are empty when it is ``valid``. Reasons repeat nothing, gravest first."""
    found = tuple(dict.fromkeys(findings))
    invalid = tuple(str(f) for f in found if f.level == "invalid")
    suspect = tuple(str(f) for f in found if f.level == "suspect")
    verdict: Verdict = "invalid" if invalid else "suspect" if suspect else "valid"
    return verdict, invalid + suspect


def notices(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The findings that do not weigh on the verdict."""
    return tuple(str(f) for f in dict.fromkeys(findings) if f.level == "notice")
