"""Which slot takes an object, and which resident object is its dictionary. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from device_agents.contract import BoardUnfit

from .codes import Kind, SlotKind, SlotState
from .messages import Slot
from .upload import Base


def choose_slot(
    slots: Sequence[Slot], size: int, kind: Kind, keep: Collection[bytes], last_used: Mapping[bytes, int]
) -> Slot:
    """PSRAM before flash (which is slow to write and wears), empty before full, then the least recently used.

    ``keep``: digests that must stay. ``last_used``: digest -> a number that grows with every use.

    Raises:
        BoardUnfit: nothing fits, or all that does must stay.
    """
    ours = [slot for slot in slots if (slot.kind == SlotKind.DATA) == (kind == Kind.DATA)]
    fitting = [slot for slot in ours if slot.capacity >= size]
    if not fitting:
        most = max((slot.capacity for slot in ours), default=0)
        raise BoardUnfit(
            f"{size} bytes do not fit on the board: its largest slot holds {most}",
            hint="a smaller model, or a board with more PSRAM or a larger model partition",
        )
    free = [slot for slot in fitting if slot.state != SlotState.COMMITTED or slot.sha256 not in keep]
    if not free:
        raise BoardUnfit(
            f"every slot that could take {size} bytes holds a model in use", hint="unload a model that is not needed"
        )
    return min(
        free,
        key=lambda slot: (
            slot.kind == SlotKind.FLASH,
            slot.state == SlotState.COMMITTED,
            last_used.get(slot.sha256, 0),
            slot.capacity,
        ),
    )


def choose_base(
    slots: Sequence[Slot], chosen: Slot, known: Mapping[bytes, bytes], last_used: Mapping[bytes, int]
) -> Base | None:
    """The most recently used other model on the board whose bytes are known here."""
    others = [
        slot
        for slot in slots
        if slot.id != chosen.id and slot.state == SlotState.COMMITTED and slot.sha256 in known
        and slot.kind != SlotKind.DATA
    ]  # fmt: skip
    if not others:
        return None
    best = max(others, key=lambda slot: last_used.get(slot.sha256, 0))
    return Base(best.id, best.sha256, known[best.sha256])
