/* The firmware's core: one object, no heap. Give it a platform and an engine, then poll it for ever. */
#ifndef BT_CORE_H
#define BT_CORE_H

#include "bt_buf.h"
#include "bt_engine.h"
#include "bt_pack.h"
#include "bt_platform.h"

#define BT_MAX_CHUNKS 4096u /* 16 MiB */

typedef struct bt_slot {
    uint8_t state; /* bt_slot_state */
    uint32_t size;
    uint8_t sha256[BT_SHA256_BYTES];
} bt_slot;

typedef struct bt_transfer {
    bool active;
    uint32_t id;
    uint8_t slot, base_slot;
    uint32_t size, chunks, first_missing;
    uint8_t sha256[BT_SHA256_BYTES];
    bt_sha256 sha; /* of the slot's bytes before first_missing, as they were written */
    uint8_t received[BT_MAX_CHUNKS / 8];
} bt_transfer;

typedef struct bt_model {
    bool loaded, ran;
    uint8_t slot;
    bt_engine engine;
    uint32_t inputs, outputs, row_bytes, output_bytes;
    uint32_t times, outputs_at, outputs_size, profile_size; /* what `results` holds */
} bt_model;

typedef struct bt_core {
    const bt_platform *platform;
    bt_engine engine;
    uint16_t seq;
    uint32_t baud, old_baud;
    uint64_t baud_since;
    bool baud_on_trial;
    uint32_t damaged_frames;
    uint64_t progress_at;
    uint32_t request; /* the one being worked on */
    bt_slot slots[BT_MAX_SLOTS];
    bt_transfer transfer;
    bt_model model;
    uint8_t rx[BT_MAX_ENCODED];
    size_t rx_size;
    bool rx_overflow;
    uint8_t body[BT_MAX_BODY];
    uint8_t tx[BT_MAX_ENCODED + 2];
    uint8_t scratch[BT_CHUNK_BYTES];
    char detail[BT_DETAIL_BYTES];
    /* The last reply that must not be worked out twice. */
    bool kept;
    uint32_t kept_request;
    uint8_t kept_type;
    size_t kept_size;
    uint8_t kept_payload[BT_MAX_PAYLOAD];
    uint8_t payload[BT_MAX_PAYLOAD]; /* of all other replies */
} bt_core;

/* `platform` must outlive the core; the engine is copied. Sends EVENT_READY. */
void bt_core_begin(bt_core *core, const bt_platform *platform, const bt_engine *engine);

/* Reads what has come and answers it. Returns how many bytes came. */
size_t bt_core_poll(bt_core *core);

/* For what the platform has to say: a log line to the host. */
void bt_core_log(bt_core *core, uint8_t level, const char *text);

/* ---- between the core's files -------------------------------------------------------------------------------- */

/* Writes the reply's body after the status, or returns a status and says why in core->detail. */
bt_status bt_put_begin(bt_core *core, bt_reader *in, bt_writer *out);
bt_status bt_put_chunk(bt_core *core, bt_reader *in, bt_writer *out);
bt_status bt_put_end(bt_core *core, bt_reader *in, bt_writer *out);
bt_status bt_have(bt_core *core, bt_reader *in, bt_writer *out);
bt_status bt_erase(bt_core *core, bt_reader *in, bt_writer *out);
bt_status bt_load(bt_core *core, bt_reader *in, bt_writer *out);
bt_status bt_unload(bt_core *core);
bt_status bt_set_input(bt_core *core, bt_reader *in, bt_writer *out);
bt_status bt_run(bt_core *core, bt_reader *in, bt_writer *out);
bt_status bt_profile(bt_core *core, bt_writer *out);
bt_status bt_self_test(bt_core *core, bt_reader *in, bt_writer *out);
bt_status bt_read_results(bt_core *core, bt_reader *in, bt_writer *out);
void bt_slots_begin(bt_core *core);
void bt_progress(bt_core *core, uint32_t done);
bt_status bt_fail(bt_core *core, bt_status status, const char *why);

#endif
