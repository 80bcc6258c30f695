"""How ``boardtune boards`` shows things."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from harness.boards.findings import CheckReport
from harness.boards.registry import BoardEntry, Registry
from harness.boards.schema import Board
from harness.boards.transports import MlperfTinyTransport, SerialTransport, SshTransport
from harness.boards.trust import TrustQuestion

_MARKS = {"ok": "ok     ", "warning": "warning", "error": "error  "}
_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}
_TRUST = {
    "new": "nothing is known about this board yet",
    "known": "this key is enrolled already",
    "changed": "ANOTHER key is enrolled for this board",
    "pinned": "this is the key that the board's file pins",
    "mismatch": "the board's file pins ANOTHER key",
}


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def list_json(registry: Registry) -> dict[str, Any]:
    return {
        "boards": [_board_json(entry, entry.board) for entry in registry.entries if entry.board is not None],
        "broken": [
            {"name": entry.name, "file": str(entry.path), "from": entry.origin, "error": str(entry.error)}
            for entry in registry.entries
            if entry.error is not None
        ],
        "notices": list(registry.notices),
    }


def _board_json(entry: BoardEntry, board: Board) -> dict[str, Any]:
    return {
        "name": board.name,
        "sku": board.metadata.sku,
        "labels": dict(board.metadata.labels),
        "transport": board.transport.kind,
        "address": _address(board),
        "providers": [provider.name for provider in board.runtime.providers],
        "emulated": board.emulated is not None,
        "noise": board.noise,
        "from": entry.origin,
        "file": str(entry.path),
    }


def list_lines(registry: Registry) -> Iterator[str]:
    """A table of the boards, then the broken files with their errors."""
    rows = [("NAME", "TRANSPORT", "SKU", "EMULATED", "LABELS", "FROM")]
    for entry in registry.entries:
        board = entry.board
        if board is None:
            continue
        labels = ",".join(f"{key}={value}" for key, value in board.metadata.labels.items())
        emulated = "emulated" if board.emulated is not None else "-"
        where = _address(board) or board.transport.kind
        rows.append((board.name, where, board.metadata.sku or "-", emulated, labels or "-", entry.origin))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    broken = [entry for entry in registry.entries if entry.error is not None]
    if broken:
        yield ""
        yield f"broken ({len(broken)}):"
    for entry in broken:
        for number, line in enumerate(str(entry.error).splitlines()):
            yield ("  " if number == 0 else "    ") + line.strip()


def heading(board: Board) -> str:
    stamp = " [emulated]" if board.emulated is not None else ""
    return click.style(f"{board.name}{stamp}", bold=True) + f" over {_address(board) or board.transport.kind}"


def report_lines(report: CheckReport) -> Iterator[str]:
    for finding in report.findings:
        yield f"  {click.style(_MARKS[finding.level], fg=_COLOURS[finding.level])}  {finding.what}"
        if finding.hint:
            yield f"           {finding.hint}"
    count = sum(finding.level != "ok" for finding in report.findings)
    verdict = {"ok": "ready", "warning": "usable", "error": "not usable"}[report.level]
    yield f"  {report.board} is {verdict}" + (f": {count} thing{'s' if count > 1 else ''} to look at" if count else "")


def trust_lines(question: TrustQuestion) -> Iterator[str]:
    yield f"{question.board} presents {question.key.algorithm} {question.key.fingerprint}"
    yield f"  {_TRUST[question.state]}"
    if question.state in ("changed", "mismatch"):
        for known in question.known:
            yield f"  {known.fingerprint} in {known.where}"
    if question.state == "new":
        yield "  compare it on the board: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"


def trust_json(question: TrustQuestion, path: Path | None) -> dict[str, Any]:
    return {
        "board": question.board,
        "algorithm": question.key.algorithm,
        "fingerprint": question.key.fingerprint,
        "line": question.key.line,
        "state": question.state,
        "enrolled_in": str(path) if path else None,
    }


def _address(board: Board) -> str | None:
    transport = board.transport
    if isinstance(transport, SerialTransport):
        return transport.port or transport.mac or transport.usb_serial
    if isinstance(transport, MlperfTinyTransport):
        return transport.port or transport.usb_serial
    if not isinstance(transport, SshTransport):
        return None
    user = f"{transport.user}@" if transport.user else ""
    port = f":{transport.port}" if transport.port not in (None, 22) else ""
    return f"{user}{transport.host}{port}"
