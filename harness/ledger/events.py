"""Constructors of the ledger's events: one function per line kind, plain JSON values out.

A file an event speaks of (``model.onnx``, ``measurement.json``, ``samples.parquet``) is written *before* the
event: the event is the statement that the file is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.results import ArtifactInfo, BoardResult, to_json

Event = dict[str, Any]
"""Always has ``event`` (the kind); :class:`harness.ledger.ledger.Ledger` adds ``seq``, ``time`` and ``crc``."""


def run(header: Mapping[str, Any]) -> Event:
    """First line of a run; ``header`` as :func:`harness.ledger.header.run_header` makes it."""
    return {"event": "run", "header": dict(header)}


def resumed(changes: Sequence[str] = ()) -> Event:
    """The run goes on in a new process; ``changes`` says what differs from the header, where that is allowed."""
    return {"event": "resumed", "changes": list(changes)}


def board(name: str, facts: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> Event:
    """A board was connected. ``facts``: JSON of ``BoardFacts``; ``options``: JSON of ``RuntimeOptions``."""
    return {"event": "board", "board": name, "facts": dict(facts), "options": dict(options or {})}


def notice(message: str, *, board: str | None = None, device_seconds: float = 0.0) -> Event:
    """Something the user should know, or device time that belongs to no trial."""
    return {"event": "notice", "message": message, "board": board, "device_seconds": device_seconds}


def proposed(
    trial: int, recipe: Mapping[str, Any], label: str, params: Mapping[str, Any] | None = None, digest: str = ""
) -> Event:
    """``params``: the sampler's own parameters (empty for enumerated spaces); ``digest``: of the recipe."""
    return {
        "event": "proposed",
        "trial": trial,
        "recipe": dict(recipe),
        "label": label,
        "params": dict(params or {}),
        "digest": digest,
    }


def quantized(
    trial: int,
    artifact: ArtifactInfo,
    *,
    snr_db: float | None = None,
    quantized_operators: int = 0,
    notices: Sequence[str] = (),
    backend: str = "",
    seconds: float = 0.0,
) -> Event:
    """``NNNN/model.onnx`` is there and accepted. ``backend``: name and version; ``seconds``: host wall time."""
    return {
        "event": "quantized",
        "trial": trial,
        "artifact": to_json(artifact),
        "snr_db": snr_db,
        "quantized_operators": quantized_operators,
        "notices": list(notices),
        "backend": backend,
        "seconds": seconds,
    }


def gated(trial: int, facts: Mapping[str, Any] | None = None) -> Event:
    """The cheap tests let it through. Boards they exclude get a :func:`pruned` of their own."""
    return {"event": "gated", "trial": trial, "facts": dict(facts or {})}


def deployed(trial: int, board: str, *, sent_bytes: int = 0, device_seconds: float = 0.0) -> Event:
    """Model and samples are on the board. ``sent_bytes``: what was sent since the board's last such event; what was
    there already is not sent."""
    return {
        "event": "deployed",
        "trial": trial,
        "board": board,
        "sent_bytes": sent_bytes,
        "device_seconds": device_seconds,
    }


def measured(trial: int, board: str, result: BoardResult, *, device_seconds: float = 0.0) -> Event:
    """``device_seconds`` here and below: what this step added on that board."""
    return _with_result("measured", trial, board, result, device_seconds)


def evaluated(trial: int, board: str, result: BoardResult, *, device_seconds: float = 0.0) -> Event:
    """``result`` is whole: latency and metrics."""
    return _with_result("evaluated", trial, board, result, device_seconds)


def done(trial: int) -> Event:
    return {"event": "done", "trial": trial}


def failed(
    trial: int, cause: str, message: str, *, board: str | None = None, detail: str = "", device_seconds: float = 0.0
) -> Event:
    """With ``board``: only there, the trial goes on elsewhere. ``cause``: a stable word (``low_snr``)."""
    return {
        "event": "failed",
        "trial": trial,
        "board": board,
        "cause": cause,
        "message": message,
        "detail": detail,
        "device_seconds": device_seconds,
    }


def pruned(
    trial: int,
    cause: str,
    message: str,
    *,
    board: str | None = None,
    result: BoardResult | None = None,
    device_seconds: float = 0.0,
) -> Event:
    """Given up because it cannot win; ``result``: what had been measured by then."""
    return {
        "event": "pruned",
        "trial": trial,
        "board": board,
        "cause": cause,
        "message": message,
        "result": None if result is None else to_json(result),
        "device_seconds": device_seconds,
    }


def duplicate(trial: int, of: int) -> Event:
    """Same artifact identity (or recipe) as trial ``of``, which is not a duplicate itself."""
    return {"event": "duplicate", "trial": trial, "duplicate_of": of}


def retried(trial: int, reason: str) -> Event:
    """Back to ``proposed``: an unfinished or failed trial starts over (artifact damaged, board back again)."""
    return {"event": "retried", "trial": trial, "reason": reason}


def final(
    trial: int,
    board: str,
    result: BoardResult | None,
    *,
    cause: str = "",
    message: str = "",
    sent_bytes: int = 0,
    device_seconds: float = 0.0,
) -> Event:
    """A finalist was measured and evaluated afresh; ``result`` is ``None`` (with cause) where that failed."""
    return {
        "event": "final",
        "trial": trial,
        "board": board,
        "result": None if result is None else to_json(result),
        "cause": cause,
        "message": message,
        "sent_bytes": sent_bytes,
        "device_seconds": device_seconds,
    }


def suggested(recipe: Mapping[str, Any], label: str, digest: str, reason: str) -> Event:
    """A recipe to be tried as the next trial that is not proposed or promised yet; ``digest``: of the recipe."""
    return {"event": "suggested", "recipe": dict(recipe), "label": label, "digest": digest, "reason": reason}


def stopped(reason: str, *, kind: str = "") -> Event:
    """No more proposals. ``kind``: ``trials``, ``budget``, ``max_time``, ``converged``, ``interrupted``, ``error``."""
    return {"event": "stopped", "reason": reason, "kind": kind}


def finished(picks: Mapping[str, Sequence[int]] | None = None) -> Event:
    """The run is complete: candidates, summary and report are written."""
    return {"event": "finished", "picks": {name: list(trials) for name, trials in (picks or {}).items()}}


def _with_result(kind: str, trial: int, board: str, result: BoardResult, device_seconds: float) -> Event:
    return {
        "event": kind,
        "trial": trial,
        "board": board,
        "result": to_json(result),
        "device_seconds": device_seconds,
    }
