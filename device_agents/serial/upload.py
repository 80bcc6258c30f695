"""Puts an object into a slot: windowed, packed chunk by chunk, resumed, verified on the board before it counts."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from device_agents.contract import BadData, DeviceTimeout, LinkError
from device_agents.transport import Deadline

from .codes import CHUNK_BYTES, NO_SLOT, Codec, Kind, Status, Type, chunk_count, dictionary_span
from .errors import refusal
from .fields import Fields
from .link import Reply, SerialLink
from .messages import Acknowledged, Begun, Chunk, PutBegin
from .pipeline import Pipeline

logger = logging.getLogger(__name__)

_LEVEL = 6
_STALLS = 5
"""Dropped lines in a row without a chunk of progress, after which an upload gives up."""
_DIGEST_S_PER_MB = 5.0
"""Upper bound of SHA-256 in plain C on the slowest chip, for the deadline."""


@dataclass(frozen=True)
class Base:
    """An object that is on the board, and known here: the dictionary of what resembles it."""

    slot: int
    sha256: bytes
    data: bytes


@dataclass(frozen=True)
class Uploaded:
    sent_bytes: int
    """Bytes of chunks as packed, those sent again included."""
    resumed: bool


class _Again(Exception):
    """The transfer must begin anew."""


class Upload:
    """One object on its way into one slot."""

    def __init__(
        self, link: SerialLink, data: bytes, sha256: bytes, slot: int, kind: Kind, base: Base | None, *, pack: bool
    ) -> None:
        self._link = link
        self._data = data
        self._sha256 = sha256
        self._slot = slot
        self._kind = kind
        self._base = base
        self._pack = pack
        self._missing: set[int] = set()
        self._transfer = 0
        self._raw: set[int] = set()
        """Chunks that the board could not unpack."""
        self._sent = 0
        self._found: int | None = None

    def run(self, deadline: Deadline) -> Uploaded:
        """Goes on after a dropped line.

        Raises:
            BadData: what arrived twice did not verify.
            BoardUnfit: it does not fit, or the slot cannot be written.
            LinkError, DeviceTimeout: the line dropped too often, or the deadline passed.
            DeviceCrash, DeviceReboot: the board went down.
        """
        stalls = wrong = again = 0
        while True:
            before = len(self._missing)
            try:
                self._begin(deadline)
                self._send(deadline)
                self._end(deadline)
            except LinkError as error:
                stalls = 0 if len(self._missing) < before else stalls + 1
                if stalls >= _STALLS:
                    raise
                self._link.lost(error, deadline)
                self._link.live(deadline)
            except _Again:
                again += 1
                if deadline.passed or again > len(self._data) // CHUNK_BYTES + _STALLS:
                    raise DeviceTimeout("the board kept losing the upload") from None
            except BadData:
                # Frames are checked one by one, so this is memory or a dictionary that changed: once more, all raw.
                wrong += 1
                if wrong > 1:
                    raise
                self._base, self._pack = None, False
            else:
                found = self._found or 0
                return Uploaded(self._sent, found > 0 and not wrong)

    def _begin(self, deadline: Deadline) -> None:
        base = self._base
        request = PutBegin(
            self._sha256,
            len(self._data),
            self._slot,
            self._kind,
            base.slot if base else NO_SLOT,
            base.sha256 if base else bytes(32),
        )
        try:
            begun = Begun.unpack(self._link.ask(Type.PUT_BEGIN, request.pack(), deadline))
        except BadData:
            if base is None:
                raise
            self._base = None  # it is not there any more
            raise _Again from None
        if len(begun.received) != chunk_count(len(self._data)):
            raise BadData(f"the board wants {len(begun.received)} chunks for {len(self._data)} bytes")
        self._transfer = begun.transfer
        self._missing = {index for index, there in enumerate(begun.received) if not there}
        if self._found is None:
            self._found = len(begun.received) - len(self._missing)

    def _send(self, deadline: Deadline) -> None:
        pipeline: Pipeline[int] = Pipeline(self._link, Type.PUT_CHUNK, self._chunk, self._acknowledged)
        try:
            pipeline.run(sorted(self._missing), deadline)
        finally:
            self._sent += pipeline.sent_bytes - _CHUNK_HEAD * pipeline.frames

    def _chunk(self, index: int, attempt: int) -> bytes:
        offset = index * CHUNK_BYTES
        data = self._data[offset : offset + CHUNK_BYTES]
        codec, packed = Codec.RAW, data
        if self._pack and index not in self._raw:
            codec, packed = self._packed(offset, data)
        return Chunk(self._transfer, index, codec, len(data), packed).pack()

    def _packed(self, offset: int, data: bytes) -> tuple[Codec, bytes]:
        """The shortest of raw, deflate, and deflate with the base's surroundings as dictionary."""
        best = (Codec.RAW, data)
        if self._base is not None:
            begin, end = dictionary_span(offset, len(data), len(self._base.data))
            packed = _deflate(data, self._base.data[begin:end])
            if len(packed) < len(data) // 2:
                return Codec.DEFLATE_BASE, packed
            best = min(best, (Codec.DEFLATE_BASE, packed), key=lambda choice: len(choice[1]))
        packed = _deflate(data, b"")
        return min(best, (Codec.DEFLATE, packed), key=lambda choice: len(choice[1]))

    def _acknowledged(self, index: int, reply: Reply) -> Iterable[int]:
        if reply.status == Status.BAD_STATE:
            raise _Again
        if reply.status == Status.BAD_CODEC and index not in self._raw:
            self._raw.add(index)
            raise _Again
        if reply.status != Status.OK:
            raise refusal(reply.status, Fields(reply.body).text())
        acknowledged = Acknowledged.unpack(reply.body)
        if acknowledged.transfer != self._transfer:
            raise _Again
        if not acknowledged.has(index):
            raise _Again
        settled = [other for other in self._missing if acknowledged.has(other)]
        self._missing.difference_update(settled)
        return settled

    def _end(self, deadline: Deadline) -> None:
        request = self._transfer.to_bytes(4, "little")
        quiet = 10.0 + _DIGEST_S_PER_MB * len(self._data) / 1e6
        try:
            self._link.ask(Type.PUT_END, request, deadline, quiet_s=quiet)
        except LinkError as error:
            # BAD_STATE: chunks are missing after all, or the end was worked out before the line dropped.
            if self._is_there(deadline):
                return
            raise _Again from error

    def _is_there(self, deadline: Deadline) -> bool:
        return has(self._link, self._sha256, deadline) is not None


def has(link: SerialLink, sha256: bytes, deadline: Deadline) -> int | None:
    """The slot that holds the object."""
    there, slot = Fields(link.ask(Type.HAVE, sha256, deadline)).unpack("BB")
    return slot if there else None


_CHUNK_HEAD = 12


def _deflate(data: bytes, dictionary: bytes) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, dictionary)
    return packer.compress(data) + packer.flush()
