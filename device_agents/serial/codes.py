"""Numbers of the wire protocol; docs/wire-protocol.md says what each means. The C core has them in ``bt_wire.h``."""

from __future__ import annotations

from enum import IntEnum

VERSION = 1
CHUNK_BYTES = 4096
"""Bytes of a file that one PUT_CHUNK carries, before compression."""
MAX_PAYLOAD = CHUNK_BYTES + 64
"""Longest payload of a frame in bytes."""
WINDOW = 4
"""Chunks in flight."""
CANARY_SLOT = 0xFE
"""LOAD of it gives the canary model that is part of the firmware."""
NO_SLOT = 0xFF
DICTIONARY_BYTES = 32768
"""Window of deflate (RFC 1951, section 2), so the most a dictionary can hold."""
MAX_WARMUP = 1000
"""Inferences before the timed ones, in one RUN."""
SHORTEST_FRAME = 20
"""Bytes of header and CRC; a board tells of damaged pieces of at least this length."""
BAUD_REVERT_S = 0.5
"""A board that hears no frame at a new rate for this long goes back to the old one."""


class Type(IntEnum):
    """Kind of a frame. A reply has that of its request with the highest bit set."""

    HELLO = 0x01
    HAVE = 0x02
    PUT_BEGIN = 0x03
    PUT_CHUNK = 0x04
    PUT_END = 0x05
    LOAD = 0x06
    SET_INPUT = 0x07
    RUN = 0x08
    PROFILE = 0x09
    SELFTEST = 0x0A
    UNLOAD = 0x0B
    RESET = 0x0C
    SET_BAUD = 0x0D
    READ = 0x0E
    STATE = 0x0F
    ERASE = 0x10
    EVENT_LOG = 0x70
    EVENT_PROGRESS = 0x71
    EVENT_READY = 0x72
    EVENT_DAMAGED = 0x73


REPLY = 0x80


class Status(IntEnum):
    """First field of every reply."""

    OK = 0
    BAD_REQUEST = 1
    UNKNOWN_TYPE = 2
    BAD_VERSION = 3
    REBOOTED = 4
    TOO_LARGE = 5
    BAD_STATE = 6
    DIGEST_MISMATCH = 7
    BAD_MODEL = 8
    UNSUPPORTED_OPERATOR = 9
    NO_MEMORY = 10
    BAD_DATA = 11
    FLASH_FAILED = 12
    ENGINE_FAILED = 13
    WRONG_TARGET = 14
    ENCRYPTED = 15
    BAD_CODEC = 16
    NOT_FOUND = 17


class Codec(IntEnum):
    """How the bytes of a chunk are packed."""

    RAW = 0
    DEFLATE = 1
    DEFLATE_BASE = 2
    """Raw deflate whose dictionary is the surroundings of the same offset in the base object."""


class SlotKind(IntEnum):
    PSRAM = 1
    FLASH = 2
    DATA = 3


class SlotState(IntEnum):
    EMPTY = 0
    RECEIVING = 1
    COMMITTED = 2


class Kind(IntEnum):
    """What an object is for."""

    MODEL = 0
    DATA = 1


class Result(IntEnum):
    """What READ reads."""

    TIMES = 1
    OUTPUTS = 2
    PROFILE = 3


class SelfTest(IntEnum):
    CORE = 0
    MODEL = 1


class Caps(IntEnum):
    """Bits of ``Hello.caps``."""

    DEFLATE = 1
    DEFLATE_BASE = 2
    MULTI_CORE = 4
    PROFILE = 8
    SET_BAUD = 16
    EMULATED = 32
    MODEL_TEST = 64


class RunFlag(IntEnum):
    COLLECT = 1
    """Keep the outputs of every inference, for READ."""
    FROM_SLOT = 2
    """Inputs are rows of a data slot instead of the staging area."""


class ResetReason(IntEnum):
    """As ``esp_reset_reason_t`` of ESP-IDF 5 numbers them."""

    UNKNOWN = 0
    POWER_ON = 1
    EXTERNAL = 2
    SOFTWARE = 3
    PANIC = 4
    INTERRUPT_WATCHDOG = 5
    TASK_WATCHDOG = 6
    OTHER_WATCHDOG = 7
    DEEP_SLEEP = 8
    BROWNOUT = 9
    SDIO = 10
    USB = 11
    JTAG = 12


DTYPES = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64"}
"""``onnx.TensorProto.DataType`` -> numpy's name."""


def chunk_count(size: int) -> int:
    """Chunks of an object of ``size`` bytes."""
    return -(-size // CHUNK_BYTES)


def dictionary_span(offset: int, length: int, base_size: int) -> tuple[int, int]:
    """(begin, end) of the dictionary for the chunk at ``offset``: around the same place in the base, at most 32 kB.

    As much before the chunk as after it, shifted inside the base.
    """
    end = min(base_size, offset + length + (DICTIONARY_BYTES - length) // 2)
    begin = max(0, end - DICTIONARY_BYTES)
    return begin, max(begin, end)
