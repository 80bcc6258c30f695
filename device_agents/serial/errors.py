"""From a board's refusals and crashes to the contract's errors."""

from __future__ import annotations

from device_agents.contract import (
    AgentError,
    BadData,
    BoardUnfit,
    DeviceCrash,
    DeviceReboot,
    LinkError,
    ModelRejected,
    OutOfMemory,
    UnsupportedOperator,
)

from .codes import VERSION, Status
from .linelog import HINTS, Crash

_KINDS: dict[Status, tuple[type[AgentError], str, str]] = {
    Status.BAD_REQUEST: (BadData, "the board does not understand the request", "firmware and boardtune must fit"),
    Status.UNKNOWN_TYPE: (BoardUnfit, "the board's firmware lacks a command", "flash it anew: boardtune boards flash"),
    Status.TOO_LARGE: (BoardUnfit, "it does not fit on the board", "make it smaller, or use a board with more memory"),
    Status.BAD_STATE: (LinkError, "the board is not where it was thought to be", "load the model again"),
    Status.DIGEST_MISMATCH: (BadData, "what arrived is not what was sent", "look at the line and the board's memory"),
    Status.BAD_MODEL: (ModelRejected, "the board refuses the model", ""),
    Status.UNSUPPORTED_OPERATOR: (UnsupportedOperator, "the board's runtime lacks an operator", ""),
    Status.NO_MEMORY: (OutOfMemory, "the board has not enough memory", "a smaller model, or fewer 16-bit layers"),
    Status.BAD_DATA: (BadData, "the board refuses the data", ""),
    Status.FLASH_FAILED: (BoardUnfit, "the board's flash cannot be written", "erase it, or it is worn out"),
    Status.ENGINE_FAILED: (DeviceCrash, "the board's runtime failed", ""),
    Status.WRONG_TARGET: (ModelRejected, "the model is for another chip", "quantize it for this board's target"),
    Status.ENCRYPTED: (ModelRejected, "the model is encrypted, and the board has no key", "export it unencrypted"),
    Status.BAD_CODEC: (BadData, "a packed chunk does not unpack", ""),
    Status.NOT_FOUND: (BadData, "the board has no such thing", "deploy it first"),
}


def refusal(status: int, text: str) -> AgentError:
    """The typed error of a reply whose status is not OK."""
    if status == Status.REBOOTED:
        return DeviceReboot("the board has rebooted; what was measured before is void", hint="load the model again")
    if status == Status.BAD_VERSION:
        return BoardUnfit(
            f"the board's firmware speaks protocol version {text or 'unknown'}, boardtune speaks {VERSION}",
            hint="flash the firmware that came with this boardtune: boardtune boards flash NAME",
        )
    known = status in set(Status)
    kind, message, hint = _KINDS.get(Status(status), (AgentError, "the board refuses", "")) if known else (
        AgentError, f"the board refuses with status {status}", "its firmware may be newer",
    )  # fmt: skip
    return kind(f"{message}: {text}" if text else message, hint=hint)


def crashed(crash: Crash | None, during: str, log: str, loop: str | None = None) -> AgentError:
    """The error of a board that went down: :class:`DeviceCrash` for what the model or firmware did, and
    :class:`DeviceReboot` for what happened to the board (supply, reset button, unknown)."""
    if loop is not None and crash is None:
        return DeviceReboot(
            f"the board resets again and again (reset reason {loop})",
            hint="look at its supply and its firmware: boardtune boards console NAME",
            detail=log,
        )
    if crash is None:
        return DeviceReboot(
            f"the board rebooted during {during}; what was measured before is void",
            hint="load the model and measure again",
            detail=log,
        )
    again = f", again and again (reset reason {loop})" if loop is not None else ""
    where = f"; backtrace {crash.backtrace}" if crash.backtrace else ""
    kind = DeviceReboot if crash.kind == "brownout" else DeviceCrash
    return kind(f"{crash.text} during {during}{again}{where}", hint=HINTS.get(crash.kind, ""), detail=log)
