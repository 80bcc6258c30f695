/* Numbers of the wire protocol, version 1: docs/wire-protocol.md. The host has the same in device_agents/serial/codes.py. */
#ifndef BT_WIRE_H
#define BT_WIRE_H

#include <stdint.h>

#define BT_VERSION 1u
#define BT_HEADER_BYTES 16u
#define BT_CHUNK_BYTES 4096u
#define BT_MAX_PAYLOAD (BT_CHUNK_BYTES + 64u)
#define BT_MAX_BODY (BT_HEADER_BYTES + BT_MAX_PAYLOAD + 4u)
#define BT_MAX_ENCODED (BT_MAX_BODY + BT_MAX_BODY / 254u + 1u)
#define BT_WINDOW 4u
#define BT_CANARY_SLOT 0xFEu
#define BT_NO_SLOT 0xFFu
#define BT_DICTIONARY_BYTES 32768u
#define BT_BAUD_REVERT_NS 500000000ull
#define BT_SHA256_BYTES 32u
#define BT_MAX_WARMUP 1000u
#define BT_NO_TEMPERATURE (-32768)

enum bt_type {
    BT_HELLO = 0x01,
    BT_HAVE = 0x02,
    BT_PUT_BEGIN = 0x03,
    BT_PUT_CHUNK = 0x04,
    BT_PUT_END = 0x05,
    BT_LOAD = 0x06,
    BT_SET_INPUT = 0x07,
    BT_RUN = 0x08,
    BT_PROFILE = 0x09,
    BT_SELFTEST = 0x0A,
    BT_UNLOAD = 0x0B,
    BT_RESET = 0x0C,
    BT_SET_BAUD = 0x0D,
    BT_READ = 0x0E,
    BT_STATE = 0x0F,
    BT_ERASE = 0x10,
    BT_EVENT_LOG = 0x70,
    BT_EVENT_PROGRESS = 0x71,
    BT_EVENT_READY = 0x72,
    BT_EVENT_DAMAGED = 0x73,
    BT_REPLY = 0x80
};

typedef enum bt_status {
    BT_OK = 0,
    BT_BAD_REQUEST = 1,
    BT_UNKNOWN_TYPE = 2,
    BT_BAD_VERSION = 3,
    BT_REBOOTED = 4,
    BT_TOO_LARGE = 5,
    BT_BAD_STATE = 6,
    BT_DIGEST_MISMATCH = 7,
    BT_BAD_MODEL = 8,
    BT_UNSUPPORTED_OPERATOR = 9,
    BT_NO_MEMORY = 10,
    BT_BAD_DATA = 11,
    BT_FLASH_FAILED = 12,
    BT_ENGINE_FAILED = 13,
    BT_WRONG_TARGET = 14,
    BT_ENCRYPTED = 15,
    BT_BAD_CODEC = 16,
    BT_NOT_FOUND = 17
} bt_status;

enum bt_codec { BT_CODEC_RAW = 0, BT_CODEC_DEFLATE = 1, BT_CODEC_DEFLATE_BASE = 2 };
enum bt_slot_kind { BT_SLOT_PSRAM = 1, BT_SLOT_FLASH = 2, BT_SLOT_DATA = 3 };
enum bt_slot_state { BT_SLOT_EMPTY = 0, BT_SLOT_RECEIVING = 1, BT_SLOT_COMMITTED = 2 };
enum bt_kind { BT_KIND_MODEL = 0, BT_KIND_DATA = 1 };
enum bt_result { BT_RESULT_TIMES = 1, BT_RESULT_OUTPUTS = 2, BT_RESULT_PROFILE = 3 };
enum bt_run_flag { BT_RUN_COLLECT = 1, BT_RUN_FROM_SLOT = 2 };
enum bt_caps {
    BT_CAP_DEFLATE = 1,
    BT_CAP_DEFLATE_BASE = 2,
    BT_CAP_MULTI_CORE = 4,
    BT_CAP_PROFILE = 8,
    BT_CAP_SET_BAUD = 16,
    BT_CAP_EMULATED = 32,
    BT_CAP_MODEL_TEST = 64
};

#endif
