"""Slots of the emulated chip, and the transfer into one of them."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from device_agents.serial.codes import (
    CANARY_SLOT,
    CHUNK_BYTES,
    NO_SLOT,
    Codec,
    Kind,
    SlotKind,
    SlotState,
    Status,
    chunk_count,
    dictionary_span,
)
from device_agents.serial.messages import Acknowledged, Begun, Chunk, PutBegin, Slot

from . import canary
from .executor import Refused
from .spec import Chip

_FLASH = 2


@dataclass
class _Area:
    kind: SlotKind
    capacity: int
    state: SlotState = SlotState.EMPTY
    size: int = 0
    sha256: bytes = bytes(32)
    data: bytearray = field(default_factory=bytearray)


@dataclass
class _Transfer:
    id: int
    slot: int
    base: int
    received: list[bool]


class Slots:
    """Two of PSRAM, one of flash, one for data. Flash is a file of ``folder`` and outlives resets."""

    def __init__(self, chip: Chip, folder: Path) -> None:
        share = chip.psram_kb * 1024 // 8
        self._areas = [
            _Area(SlotKind.PSRAM, 3 * share // 4096 * 4096),
            _Area(SlotKind.PSRAM, 3 * share // 4096 * 4096),
            _Area(SlotKind.FLASH, chip.flash_kb * 1024),
            _Area(SlotKind.DATA, 2 * share // 4096 * 4096),
        ]
        self._flash = folder / "flash.bin"
        self._transfer: _Transfer | None = None
        self._ids = 0
        self.full = False
        """Planted: nothing fits any more."""
        self.flash_fails = False
        self._start_flash()

    def _start_flash(self) -> None:
        area = self._areas[_FLASH]
        if not self._flash.exists():
            return
        head, _, data = self._flash.read_bytes().partition(b"\n")
        try:
            told = json.loads(head)["sha256"]
        except (ValueError, KeyError, TypeError):
            return
        digest = hashlib.sha256(data).digest()
        if digest.hex() == told and 0 < len(data) <= area.capacity:
            area.state, area.size, area.sha256, area.data = SlotState.COMMITTED, len(data), digest, bytearray(data)

    # ---- what is there -------------------------------------------------------------------------------------------

    def describe(self) -> tuple[Slot, ...]:
        return tuple(
            Slot(index, area.kind, area.state, 0 if self.full else area.capacity, area.size, area.sha256)
            for index, area in enumerate(self._areas)
        )

    def find(self, sha256: bytes) -> tuple[int, int] | None:
        """(slot, size) of a committed object."""
        if sha256 == canary.SHA256:
            return CANARY_SLOT, 0
        for index in range(len(self._areas)):
            if self._committed(index, sha256):
                return index, self._areas[index].size
        return None

    def content(self, slot: int, *, data: bool) -> tuple[bytes, SlotKind]:
        """The bytes of a committed model (or data) slot, and where they are."""
        if slot >= len(self._areas) or self._areas[slot].state != SlotState.COMMITTED:
            raise Refused(Status.NOT_FOUND, "the slot holds nothing")
        area = self._areas[slot]
        if (area.kind == SlotKind.DATA) != data:
            raise Refused(Status.NOT_FOUND, "the slot holds another kind of object")
        return bytes(area.data), area.kind

    def _committed(self, slot: int, sha256: bytes) -> bool:
        area = self._areas[slot] if slot < len(self._areas) else None
        return area is not None and area.state == SlotState.COMMITTED and area.sha256 == sha256

    def erase(self, slot: int) -> None:
        if slot != NO_SLOT and slot >= len(self._areas):
            raise Refused(Status.BAD_DATA, "no such slot")
        for index in range(len(self._areas)) if slot == NO_SLOT else (slot,):
            self._clear(index)

    def _clear(self, slot: int) -> None:
        if self._transfer is not None and self._transfer.slot == slot:
            self._transfer = None
        area = self._areas[slot]
        self._areas[slot] = _Area(area.kind, area.capacity)
        if slot == _FLASH:
            self._flash.unlink(missing_ok=True)

    # ---- what comes ----------------------------------------------------------------------------------------------

    def begin(self, request: PutBegin, loaded_slot: int | None) -> Begun:
        if request.slot >= len(self._areas):
            raise Refused(Status.BAD_DATA, "no such slot")
        area = self._areas[request.slot]
        if (area.kind == SlotKind.DATA) != (request.kind == Kind.DATA):
            raise Refused(Status.BAD_DATA, "the slot is for another kind of object")
        if not 0 < request.size <= area.capacity or self.full:
            raise Refused(Status.TOO_LARGE, "the object does not fit into the slot")
        if loaded_slot == request.slot:
            raise Refused(Status.BAD_STATE, "the slot holds the loaded model")
        base = request.base_slot
        if base != NO_SLOT and (base == request.slot or not self._committed(base, request.base_sha256)):
            raise Refused(Status.NOT_FOUND, "the dictionary's object is not on the board")
        same = (
            self._transfer is not None
            and self._transfer.slot == request.slot
            and (area.size, area.sha256) == (request.size, request.sha256)
        )
        if self._transfer is None or not same:
            if self._transfer is not None:
                self._clear(self._transfer.slot)
            self._clear(request.slot)
            if self.flash_fails and area.kind == SlotKind.FLASH:
                raise Refused(Status.FLASH_FAILED, "the slot cannot be erased")
            self._ids += 1
            self._transfer = _Transfer(self._ids, request.slot, base, [False] * chunk_count(request.size))
            area = self._areas[request.slot]
            area.state, area.size, area.sha256 = SlotState.RECEIVING, request.size, request.sha256
            area.data = bytearray(request.size)
        self._transfer.base = base
        return Begun(self._transfer.id, tuple(self._transfer.received))

    def chunk(self, chunk: Chunk) -> Acknowledged:
        transfer = self._known(chunk.transfer)
        area = self._areas[transfer.slot]
        offset = chunk.index * CHUNK_BYTES
        if chunk.index >= len(transfer.received) or chunk.length != min(CHUNK_BYTES, area.size - offset):
            raise Refused(Status.BAD_DATA, "no such chunk, or of another length")
        if not transfer.received[chunk.index]:
            area.data[offset : offset + chunk.length] = self._unpacked(chunk, transfer, offset)
            transfer.received[chunk.index] = True
        first = next((i for i, there in enumerate(transfer.received) if not there), len(transfer.received))
        later = sum(1 << k for k, there in enumerate(transfer.received[first + 1 : first + 33]) if there)
        return Acknowledged(transfer.id, first, later)

    def end(self, transfer_id: int) -> int:
        transfer = self._known(transfer_id)
        area = self._areas[transfer.slot]
        if not all(transfer.received):
            raise Refused(Status.BAD_STATE, "chunks are missing")
        if hashlib.sha256(area.data).digest() != area.sha256:
            self._clear(transfer.slot)
            raise Refused(Status.DIGEST_MISMATCH, "what arrived has another sha256; it was thrown away")
        area.state = SlotState.COMMITTED
        self._transfer = None
        if transfer.slot == _FLASH:
            self._flash.write_bytes(json.dumps({"sha256": area.sha256.hex()}).encode() + b"\n" + area.data)
        return transfer.slot

    def _known(self, transfer_id: int) -> _Transfer:
        if self._transfer is None or self._transfer.id != transfer_id:
            raise Refused(Status.BAD_STATE, "no such transfer")
        return self._transfer

    def _unpacked(self, chunk: Chunk, transfer: _Transfer, offset: int) -> bytes:
        if chunk.codec == Codec.RAW:
            data = chunk.data
        else:
            dictionary = b""
            if chunk.codec == Codec.DEFLATE_BASE:
                base = self._areas[transfer.base] if transfer.base < len(self._areas) else None
                if base is None or base.state != SlotState.COMMITTED:
                    raise Refused(Status.BAD_CODEC, "a dictionary is used, and none was agreed on")
                begin, end = dictionary_span(offset, chunk.length, base.size)
                dictionary = bytes(base.data[begin:end])
            unpacker = zlib.decompressobj(-15, dictionary)
            try:
                data = unpacker.decompress(chunk.data, chunk.length + 1)
            except zlib.error as error:
                raise Refused(Status.BAD_CODEC, f"the chunk does not inflate: {error}") from error
            if not unpacker.eof:
                data = b""
        if len(data) != chunk.length:
            raise Refused(Status.BAD_CODEC, "the chunk unpacks to another length")
        return data
