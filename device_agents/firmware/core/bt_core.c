/* Frames in, frames out, and which function answers which request. */
#include "bt_core.h"

#include "bt_pack.h"

bt_status bt_fail(bt_core *core, bt_status status, const char *why) {
    size_t length = strlen(why);
    if (length >= sizeof core->detail) length = sizeof core->detail - 1;
    memcpy(core->detail, why, length);
    core->detail[length] = '\0';
    return status;
}

static void send(bt_core *core, uint8_t type, uint32_t request, const uint8_t *payload, size_t size) {
    bt_writer out = bt_write_to(core->body, sizeof core->body);
    bt_put8(&out, BT_VERSION);
    bt_put8(&out, type);
    bt_put16(&out, core->seq++);
    bt_put32(&out, request);
    bt_put64(&out, core->platform->boot_id);
    bt_put_bytes(&out, payload, size);
    bt_put32(&out, bt_crc32(0, core->body, out.at));
    if (out.bad) return;
    core->tx[0] = 0;
    size_t length = bt_cobs_encode(core->body, out.at, core->tx + 1);
    core->tx[1 + length] = 0;
    core->platform->write(core->platform->ctx, core->tx, length + 2);
}

void bt_core_log(bt_core *core, uint8_t level, const char *text) {
    uint8_t payload[1 + 1 + 255];
    bt_writer out = bt_write_to(payload, sizeof payload);
    bt_put8(&out, level);
    bt_put_text(&out, text);
    send(core, BT_EVENT_LOG, 0, payload, out.at);
}

void bt_progress(bt_core *core, uint32_t done) {
    uint64_t now = core->platform->clock_ns(core->platform->ctx);
    if (now - core->progress_at < 1000000000ull) return;
    core->progress_at = now;
    uint8_t payload[12];
    bt_writer out = bt_write_to(payload, sizeof payload);
    bt_put32(&out, done);
    bt_put64(&out, now);
    send(core, BT_EVENT_PROGRESS, core->request, payload, out.at);
}

static bt_status hello(bt_core *core, bt_writer *out) {
    const bt_platform *platform = core->platform;
    const bt_facts *facts = &platform->facts;
    bt_sensors reading;
    memset(&reading, 0, sizeof reading);
    platform->reading(platform->ctx, &reading);
    bt_put8(out, BT_VERSION);
    bt_put8(out, (uint8_t)platform->slot_count);
    bt_put8(out, BT_WINDOW);
    bt_put8(out, facts->reset_reason);
    bt_put16(out, BT_CHUNK_BYTES);
    bt_put16(out, (uint16_t)(BT_CAP_DEFLATE | BT_CAP_DEFLATE_BASE | facts->caps | core->engine.caps));
    const uint32_t numbers[] = {facts->psram_bytes,     facts->flash_bytes,     reading.free_bytes,
                                reading.largest_block_bytes, core->baud,        facts->max_baud,
                                platform->staging_bytes, platform->results_bytes, facts->cpu_hz};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) bt_put32(out, numbers[i]);
    bt_put16(out, facts->chip_revision);
    bt_put8(out, facts->cores);
    bt_put8(out, 0);
    bt_put_bytes(out, facts->mac, sizeof facts->mac);
    bt_put_bytes(out, bt_canary_sha256, BT_SHA256_BYTES);
    bt_put64(out, platform->clock_ns(platform->ctx));
    const char *const texts[] = {facts->target,       facts->firmware, facts->build, core->engine.name,
                                 core->engine.version, facts->system,   facts->cpu};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) bt_put_text(out, texts[i]);
    for (uint32_t i = 0; i < platform->slot_count; i++) {
        bt_put8(out, (uint8_t)i);
        bt_put8(out, platform->slots[i].kind);
        bt_put8(out, core->slots[i].state);
        bt_put8(out, 0);
        bt_put32(out, platform->slots[i].capacity);
        bt_put32(out, core->slots[i].size);
        bt_put_bytes(out, core->slots[i].sha256, BT_SHA256_BYTES);
    }
    return BT_OK;
}

static bt_status state(bt_core *core, bt_writer *out) {
    bt_sensors reading;
    memset(&reading, 0, sizeof reading);
    reading.temperature_centi_c = BT_NO_TEMPERATURE;
    core->platform->reading(core->platform->ctx, &reading);
    bt_put64(out, core->platform->clock_ns(core->platform->ctx));
    bt_put16(out, (uint16_t)reading.temperature_centi_c);
    bt_put8(out, reading.throttled);
    bt_put8(out, 0);
    bt_put32(out, reading.cpu_hz);
    bt_put32(out, reading.free_bytes);
    bt_put32(out, reading.largest_block_bytes);
    bt_put32(out, reading.free_psram_bytes);
    bt_put32(out, core->damaged_frames);
    return BT_OK;
}

static bt_status dispatch(bt_core *core, uint8_t type, bt_reader *in, bt_writer *out) {
    switch (type) {
    case BT_HELLO: return hello(core, out);
    case BT_HAVE: return bt_have(core, in, out);
    case BT_PUT_BEGIN: return bt_put_begin(core, in, out);
    case BT_PUT_CHUNK: return bt_put_chunk(core, in, out);
    case BT_PUT_END: return bt_put_end(core, in, out);
    case BT_LOAD: return bt_load(core, in, out);
    case BT_SET_INPUT: return bt_set_input(core, in, out);
    case BT_RUN: return bt_run(core, in, out);
    case BT_PROFILE: return bt_profile(core, out);
    case BT_SELFTEST: return bt_self_test(core, in, out);
    case BT_UNLOAD: return bt_unload(core);
    case BT_READ: return bt_read_results(core, in, out);
    case BT_STATE: return state(core, out);
    case BT_ERASE: return bt_erase(core, in, out);
    case BT_RESET:
    case BT_SET_BAUD: return BT_OK; /* done after the reply */
    default: return bt_fail(core, BT_UNKNOWN_TYPE, "this firmware does not know the request");
    }
}

/* Requests that change something and whose second execution would differ from the first. */
static bool kept_type(uint8_t type) {
    return (type >= BT_PUT_BEGIN && type != BT_PUT_CHUNK && type <= BT_SET_BAUD && type != BT_SET_INPUT) || type == BT_ERASE;
}

/* Two phases: the first request changes the rate, a second one for the same rate, sent at it, makes it stay. */
static void change_baud(bt_core *core, uint32_t baud) {
    if (baud == core->baud) {
        core->baud_on_trial = false;
        return;
    }
    core->platform->drain(core->platform->ctx);
    if (!core->platform->set_baud(core->platform->ctx, baud)) return;
    core->old_baud = core->baud;
    core->baud = baud;
    core->baud_since = core->platform->clock_ns(core->platform->ctx);
    core->baud_on_trial = true;
}

static void answer(bt_core *core, uint8_t type, uint32_t request, uint64_t boot, bt_reader *in) {
    if (core->kept && core->kept_request == request && core->kept_type == type) {
        send(core, type | BT_REPLY, request, core->kept_payload, core->kept_size);
        return;
    }
    bool keep = kept_type(type);
    uint8_t *payload = keep ? core->kept_payload : core->payload;
    if (keep) core->kept = false;
    core->request = request;
    core->progress_at = core->platform->clock_ns(core->platform->ctx);
    core->detail[0] = '\0';
    uint32_t baud = type == BT_SET_BAUD ? bt_get32(in) : 0;
    bt_writer out = bt_write_to(payload, BT_MAX_PAYLOAD);
    bt_put32(&out, BT_OK);
    bt_status status;
    if (boot != 0 && boot != core->platform->boot_id)
        status = bt_fail(core, BT_REBOOTED, "the board has rebooted since");
    else if (type == BT_SET_BAUD && (baud < 9600 || baud > core->platform->facts.max_baud))
        status = bt_fail(core, BT_BAD_DATA, "a baud rate that this board does not have");
    else
        status = dispatch(core, type, in, &out);
    if (status == BT_OK && in->bad) status = bt_fail(core, BT_BAD_REQUEST, "the request ends within a field");
    if (status == BT_OK && out.bad) status = bt_fail(core, BT_TOO_LARGE, "the reply is too long for a frame");
    if (status != BT_OK) {
        out = bt_write_to(payload, BT_MAX_PAYLOAD);
        bt_put32(&out, (uint32_t)status);
        bt_put_text(&out, core->detail);
    }
    if (keep) {
        core->kept = true;
        core->kept_request = request;
        core->kept_type = type;
        core->kept_size = out.at;
    }
    send(core, type | BT_REPLY, request, payload, out.at);
    if (status != BT_OK) return;
    if (type == BT_SET_BAUD) change_baud(core, baud);
    if (type == BT_RESET) {
        core->platform->drain(core->platform->ctx);
        core->platform->reset(core->platform->ctx);
    }
}

/* So that the host need not wait for a timeout. Shorter pieces are noise. */
static void damaged(bt_core *core) {
    core->damaged_frames++;
    if (core->rx_size >= BT_HEADER_BYTES + 4 || core->rx_overflow) send(core, BT_EVENT_DAMAGED, 0, NULL, 0);
}

/* What is between two delimiters: a frame, or noise. */
static void take(bt_core *core) {
    size_t size = core->rx_overflow ? SIZE_MAX : bt_cobs_decode(core->rx, core->rx_size);
    if (size == SIZE_MAX || size < BT_HEADER_BYTES + 4 || size > BT_MAX_BODY) {
        damaged(core);
        return;
    }
    bt_reader in = bt_read_from(core->rx, size - 4);
    bt_reader crc = bt_read_from(core->rx + size - 4, 4);
    if (bt_get32(&crc) != bt_crc32(0, core->rx, size - 4)) {
        damaged(core);
        return;
    }
    uint8_t version = bt_get8(&in), type = bt_get8(&in);
    bt_get16(&in);
    uint32_t request = bt_get32(&in);
    uint64_t boot = bt_get64(&in);
    if (version != BT_VERSION) {
        uint8_t payload[8];
        bt_writer out = bt_write_to(payload, sizeof payload);
        bt_put32(&out, BT_BAD_VERSION);
        bt_put8(&out, 1);
        bt_put8(&out, '0' + BT_VERSION);
        send(core, type | BT_REPLY, request, payload, out.at);
        return;
    }
    if ((type & BT_REPLY) != 0 || type >= BT_EVENT_LOG) return; /* an echo of our own */
    answer(core, type, request, boot, &in);
}

void bt_core_begin(bt_core *core, const bt_platform *platform, const bt_engine *engine) {
    memset(core, 0, sizeof *core);
    core->platform = platform;
    core->engine = *engine;
    core->baud = platform->baud;
    bt_slots_begin(core);
    send(core, BT_EVENT_READY, 0, &platform->facts.reset_reason, 1);
}

size_t bt_core_poll(bt_core *core) {
    const bt_platform *platform = core->platform;
    uint8_t came[256];
    size_t size = platform->read(platform->ctx, came, sizeof came);
    for (size_t i = 0; i < size; i++) {
        if (came[i] == 0) {
            if (core->rx_size > 0 || core->rx_overflow) take(core);
            core->rx_size = 0;
            core->rx_overflow = false;
        } else if (core->rx_size < sizeof core->rx) {
            core->rx[core->rx_size++] = came[i];
        } else {
            core->rx_overflow = true;
        }
    }
    if (core->baud_on_trial && platform->clock_ns(platform->ctx) - core->baud_since > BT_BAUD_REVERT_NS) {
        core->baud_on_trial = false;
        if (platform->set_baud(platform->ctx, core->old_baud)) core->baud = core->old_baud;
    }
    return size;
}
