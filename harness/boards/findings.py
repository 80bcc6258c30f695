"""What a check finds: values and the words for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from device_agents.contract import AgentError, BoardFacts, BoardState
from harness.errors import BoardtuneError, ExitCode

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    level: Level
    what: str
    hint: str = ""
    """What to do about it."""


@dataclass(frozen=True)
class CheckReport:
    board: str
    findings: tuple[Finding, ...]
    exit_code: ExitCode
    facts: BoardFacts | None = None
    state: BoardState | None = None
    canary_median_ms: float | None = None

    @property
    def level(self) -> Level:
        levels = {finding.level for finding in self.findings}
        return "error" if "error" in levels else "warning" if "warning" in levels else "ok"

    def to_json(self) -> dict[str, Any]:
        return {
            "board": self.board,
            "level": self.level,
            "findings": [asdict(finding) for finding in self.findings],
            "facts": _plain(self.facts),
            "state": _plain(self.state),
            "canary_median_ms": self.canary_median_ms,
        }


_HINTS: Mapping[str, str] = {
    "LinkError": "is it switched on and in the network, and are host, port, user and key in its file right? "
    "Try the same with ssh",
    "DeviceTimeout": "it did not answer in time: it may be overloaded, or its disk may hang; restart it",
    "Untrusted": "compare its host key once and enrol it: boardtune boards trust NAME",
    "LeaseLost": "wait until the other boardtune is done with it, or end that one",
    "BoardUnfit": "install Python 3.8 or later and onnxruntime 1.16 or later on it, and let transport.python name "
    "that Python",
    "ModelRejected": "its runtime cannot read the canary: update onnxruntime on the board",
    "OutOfMemory": "stop what else runs on it",
    "DeviceReboot": "it restarted during the check: power supply or temperature are the usual causes",
    "DeviceCrash": "its runtime died on a simple model: reinstall onnxruntime there",
}


def from_error(error: AgentError | BoardtuneError, board: str) -> Finding:
    """The error's own hint where it has one, else the usual way out of its kind."""
    if isinstance(error, BoardtuneError):
        where = f"{error.where}: " if error.where else ""
        return Finding("error", f"{where}{error.message}", error.hint)
    kinds = [cls.__name__ for cls in type(error).__mro__]
    usual = next((_HINTS[kind] for kind in kinds if kind in _HINTS), "")
    return Finding("error", error.message, (error.hint or usual).replace("boards trust NAME", f"boards trust {board}"))


def from_self_test(findings: Mapping[str, str], *, shared: bool) -> Sequence[Finding]:
    """The runner's words by name of the test, each beginning with ``ok`` or ``problem``.

    Noise is no fault of a board that says it is ``shared``; the temperature is told by ``check_state``.
    """
    found = []
    for name, words in findings.items():
        verdict, _, text = words.partition(": ")
        if name == "temperature" and verdict == "ok":
            continue
        if verdict == "ok":
            found.append(Finding("ok", f"self-test, {name}: {text or words}"))
        elif name == "noise":
            hint = "stop what else runs there, or write noise: shared into the board's file"
            found.append(Finding("ok" if shared else "warning", f"self-test, noise: {text}", "" if shared else hint))
        elif name in ("arithmetic", "runtime"):
            hint = "nothing measured there can be trusted: reinstall its runtime, then test its memory"
            found.append(Finding("error", f"self-test, {name}: {text or words}", hint))
        else:
            found.append(Finding("warning", f"self-test, {name}: {text or words}"))
    return found


def _plain(value: BoardFacts | BoardState | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {key: dict(item) if isinstance(item, Mapping) else item for key, item in asdict(value).items()}
