"""What crosses the pipes of a quantize worker: length-prefixed JSON objects."""

from __future__ import annotations

import json
import os
import select
import struct
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from harness.quantize.contract import Artifact, QuantizeJob, QuantizeLimits, Refusal
from harness.recipes.recipe import Recipe

_LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 64 << 20
_ARTIFACT: TypeAdapter[Artifact] = TypeAdapter(Artifact)
_REFUSAL: TypeAdapter[Refusal] = TypeAdapter(Refusal)
_LIMITS: TypeAdapter[QuantizeLimits] = TypeAdapter(QuantizeLimits)


class PipeClosedError(EOFError):
    """The other end is gone."""


def write_message(descriptor: int, message: dict[str, Any]) -> None:
    """Writes one message whole. Raises PipeClosedError."""
    body = json.dumps(message).encode()
    data = memoryview(_LENGTH.pack(len(body)) + body)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError as error:
        raise PipeClosedError(str(error)) from error


class MessageReader:
    """Reads messages from a pipe as they come; never blocks beyond the time given."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._buffer = bytearray()

    def read(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message, or ``None`` if it is not whole in time. Raises PipeClosedError."""
        until = time.monotonic() + timeout_s
        while (message := self._take()) is None:
            left = until - time.monotonic()
            if not wait_readable([self.descriptor], max(left, 0.0)):
                return None
            data = os.read(self.descriptor, 1 << 16)
            if not data:
                raise PipeClosedError("end of file")
            self._buffer += data
        return message

    def _take(self) -> dict[str, Any] | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_MESSAGE_BYTES:
            raise PipeClosedError(f"a message of {length} bytes is not one of ours")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        message: dict[str, Any] = json.loads(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return message


def wait_readable(descriptors: list[int], timeout_s: float) -> list[int]:
    """Those that can be read, or are closed, within the time."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(timeout_s, 0.0) * 1000.0)]


def job_to_json(job: QuantizeJob) -> dict[str, Any]:
    """Paths made absolute: the other process may have another working folder."""
    return {
        "model": str(job.model.absolute()),
        "calibration": str(job.calibration.absolute()),
        "recipe": job.recipe.to_dict(),
        "out": str(job.out.absolute()),
        "limits": asdict(job.limits),
        "extra": {key: str(value) if isinstance(value, Path) else value for key, value in job.extra.items()},
    }


def job_from_json(value: dict[str, Any]) -> QuantizeJob:
    return QuantizeJob(
        model=Path(value["model"]),
        calibration=Path(value["calibration"]),
        recipe=Recipe.from_dict(value["recipe"]),
        out=Path(value["out"]),
        limits=_LIMITS.validate_python(value["limits"]),
        extra=value["extra"],
    )


def result_to_json(result: Artifact | Refusal) -> dict[str, Any]:
    kind = "artifact" if isinstance(result, Artifact) else "refusal"
    value = asdict(result)
    if isinstance(result, Artifact):
        value["path"] = str(result.path)
    return {kind: value}


def result_from_json(message: dict[str, Any], out: Path) -> Artifact | Refusal:
    """``out`` is the path the caller gave, which may be relative."""
    if "artifact" in message:
        return replace(_ARTIFACT.validate_python(message["artifact"]), path=out)
    return _REFUSAL.validate_python(message["refusal"])
