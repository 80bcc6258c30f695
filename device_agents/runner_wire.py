"""Between the agent contract's values and the runner's JSON headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from device_agents.contract import (
    ERRORS,
    AgentError,
    BadData,
    Block,
    BlockRequest,
    BoardFacts,
    BoardState,
    DataRef,
    Inference,
    LoadReport,
    Pipeline,
    Placement,
    RuntimeOptions,
    Tensors,
)
from device_agents.runner import arrays
from device_agents.runner.frames import Buffer

_T = TypeVar("_T")
_FACTS: TypeAdapter[BoardFacts] = TypeAdapter(BoardFacts)
_STATE: TypeAdapter[BoardState] = TypeAdapter(BoardState)
_LOAD: TypeAdapter[LoadReport] = TypeAdapter(LoadReport)
_PLACEMENT: TypeAdapter[Placement] = TypeAdapter(Placement)


def error_from_wire(value: Mapping[str, Any], board: str) -> AgentError:
    """The typed error a reply carries; an unknown kind (a newer runner's) is a plain :class:`AgentError`."""
    kind = ERRORS.get(str(value.get("kind")), AgentError)
    return kind(
        str(value.get("message") or "the board reports an error without a text"),
        board=board,
        hint=str(value.get("hint") or ""),
        detail=str(value.get("detail") or ""),
    )


def options_to_wire(options: RuntimeOptions) -> dict[str, Any]:
    return asdict(options)


def block_to_wire(request: BlockRequest) -> dict[str, Any]:
    return asdict(request)


def pipeline_to_wire(pipeline: Pipeline | None) -> dict[str, Any] | None:
    return None if pipeline is None else asdict(pipeline)


def samples_to_wire(samples: Tensors | DataRef) -> tuple[dict[str, Any], list[Buffer]]:
    """(header fields, blobs). Raises :class:`BadData` for arrays of objects."""
    if isinstance(samples, DataRef):
        rows = None if samples.rows is None else [int(row) for row in samples.rows]
        return {"data_sha256": samples.sha256, "row_indices": rows}, []
    try:
        described, blobs = arrays.to_wire({name: np.asarray(array) for name, array in samples.items()})
    except ValueError as error:
        raise BadData(f"the samples cannot be sent: {error}") from error
    return {"arrays": described}, blobs


def facts_from_wire(facts: Mapping[str, Any], boot_id: str, runner_sha256: str) -> BoardFacts:
    return _checked(_FACTS, {**facts, "boot_id": boot_id, "runner_sha256": runner_sha256})


def state_from_wire(state: Mapping[str, Any], boot_id: str) -> BoardState:
    return _checked(_STATE, {**state, "boot_id": boot_id})


def load_from_wire(reply: Mapping[str, Any], session: str) -> LoadReport:
    """``session`` is the agent's handle. Outputs are names only."""
    return _checked(
        _LOAD,
        {
            "session": session,
            "boot_id": reply.get("boot_id"),
            "load_ns": reply.get("load_ns"),
            "placement": _checked(_PLACEMENT, reply.get("placement") or {}),
            "inputs": reply.get("inputs"),
            "outputs": [entry[0] for entry in reply.get("outputs") or ()],
            "peak_memory_bytes": reply.get("peak_memory_bytes"),
            "compiled_sha256": reply.get("compiled_sha256"),
        },
    )


def block_from_wire(reply: Mapping[str, Any], blobs: Sequence[Buffer]) -> Block:
    """Samples are little-endian int64 in the only blob."""
    boot_id = str(reply.get("boot_id"))
    if len(blobs) != 1 or memoryview(blobs[0]).nbytes % 8 or not memoryview(blobs[0]).nbytes:
        raise BadData("the board's block holds no samples")
    first_ns = reply.get("first_ns")
    return Block(
        boot_id=boot_id,
        samples_ns=np.frombuffer(blobs[0], dtype="<i8").astype(np.int64),
        first_ns=None if first_ns is None else int(first_ns),
        before=state_from_wire(reply.get("before") or {}, boot_id),
        after=state_from_wire(reply.get("after") or {}, boot_id),
        peak_memory_bytes=reply.get("peak_memory_bytes"),
    )


def inference_from_wire(reply: Mapping[str, Any], blobs: Sequence[Buffer]) -> Inference:
    try:
        outputs = arrays.from_wire(reply.get("arrays") or [], blobs)
    except (ValueError, KeyError, TypeError) as error:
        raise BadData(f"the board's outputs do not decode: {error}") from error
    return Inference(
        boot_id=str(reply.get("boot_id")), outputs=outputs, peak_memory_bytes=reply.get("peak_memory_bytes")
    )


def _checked(adapter: TypeAdapter[_T], value: object) -> _T:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise BadData(f"the board's reply does not fit the protocol: {error}") from error
