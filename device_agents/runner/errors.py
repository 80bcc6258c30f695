"""Failures the runner reports; ``kind`` is the name of a class in ``contract.ERRORS``."""

from __future__ import annotations

from typing import Any, Dict


class RunnerError(Exception):
    """``message`` says what failed, with values; ``hint`` what to do; ``detail`` is raw evidence."""

    def __init__(self, kind: str, message: str, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint
        self.detail = detail

    def to_wire(self) -> Dict[str, Any]:
        return {"kind": self.kind, "message": self.message, "hint": self.hint, "detail": self.detail[-8192:]}

    @classmethod
    def from_wire(cls, value: Dict[str, Any]) -> RunnerError:
        return cls(
            str(value.get("kind", "DeviceCrash")),
            str(value.get("message", "")),
            str(value.get("hint", "")),
            str(value.get("detail", "")),
        )
