/* Fuzzing of the core with libFuzzer: `make BUILD=… …/fuzz_core`, or with `-DBT_STANDALONE` for files given as arguments.
 *
 * The first byte of an input chooses: raw bytes on the line, or a list of requests that get a correct header, CRC and
 * framing (else nothing would come past the CRC). Requests: u8 type, u8 flags (1: the right boot id, 2: the last request
 * id again), u16 length, payload. The engine is made up: tensors whose number and sizes come from the model's bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../core/bt_core.h"
#include "../core/bt_pack.h"

enum { SLOT_BYTES = 12288, AREA_BYTES = 4096, LINE_BYTES = 1 << 17 };

static uint8_t slots[3][SLOT_BYTES], staging[AREA_BYTES], line[LINE_BYTES];
static uint64_t results[AREA_BYTES / 8], now;
static size_t line_size, line_at, written;
static uint8_t label[40];
static bt_core core;
static bt_platform platform;

static size_t fuzz_read(void *ctx, uint8_t *data, size_t size) {
    (void)ctx;
    if (size > line_size - line_at) size = line_size - line_at;
    memcpy(data, line + line_at, size);
    line_at += size;
    return size;
}

static void fuzz_write(void *ctx, const uint8_t *data, size_t size) {
    (void)ctx;
    /* What is sent is a frame. */
    if (size < 3 || data[0] != 0 || data[size - 1] != 0) abort();
    for (size_t i = 1; i + 1 < size; i++)
        if (data[i] == 0) abort();
    written += size;
}

static void nothing(void *ctx) { (void)ctx; }
static uint64_t fuzz_clock(void *ctx) {
    (void)ctx;
    return now += 50000;
}
static bool fuzz_baud(void *ctx, uint32_t baud) {
    (void)ctx;
    return baud != 19200;
}
static void sensors(void *ctx, bt_sensors *found) {
    (void)ctx;
    found->free_bytes = 1000;
}
static bool slot_erase(void *ctx, uint32_t slot, uint32_t size) {
    (void)ctx;
    if (slot >= 3 || size > SLOT_BYTES) abort();
    memset(slots[slot], 0xFF, size);
    return true;
}
static bool slot_write(void *ctx, uint32_t slot, uint32_t offset, const uint8_t *data, uint32_t size) {
    (void)ctx;
    if (slot >= 3 || offset > SLOT_BYTES || size > SLOT_BYTES - offset) abort();
    memcpy(slots[slot] + offset, data, size);
    return true;
}
static bool label_write(void *ctx, uint32_t slot, uint32_t size, const uint8_t sha256[32]) {
    (void)ctx;
    if (slot != 1) abort();
    memcpy(label, &size, 4);
    memcpy(label + 4, sha256, 32);
    return true;
}
static bool label_read(void *ctx, uint32_t slot, uint32_t *size, uint8_t sha256[32]) {
    (void)ctx, (void)slot;
    memcpy(size, label, 4);
    memcpy(sha256, label + 4, 32);
    return true;
}

/* ---- an engine whose tensors come from the model -------------------------------------------------------------- */

static const uint8_t *model;
static uint32_t model_size;
static uint8_t input[2048], output[2048];

static uint8_t model_byte(uint32_t index) { return index < model_size ? model[index] : 0; }

static bt_status made_open(void *ctx, const uint8_t *data, uint32_t size, const bt_open_options *options,
                           bt_memory *used, char *detail) {
    (void)ctx, (void)options;
    model = data;
    model_size = size;
    used->psram_bytes = size;
    if (model_byte(0) == 0xEE) {
        strcpy(detail, "refused");
        return (bt_status)(model_byte(1) % 18 == 0 ? BT_BAD_MODEL : model_byte(1) % 18);
    }
    return BT_OK;
}
static uint32_t made_count(void *ctx, bool is_output) {
    (void)ctx;
    return model_byte(is_output ? 3 : 2);
}
static bool made_tensor(void *ctx, bool is_output, uint32_t index, bt_tensor *tensor) {
    (void)ctx;
    tensor->name = is_output ? "out" : "in";
    tensor->dtype = model_byte(4);
    tensor->exponent = (int8_t)model_byte(5);
    tensor->rank = model_byte(6) % 10;
    tensor->bytes = (uint32_t)model_byte(7 + (is_output ? 1u : 0u)) * (1u + index);
    return model_byte(9) != 0xEE;
}
static bt_status made_set(void *ctx, uint32_t index, const uint8_t *data, uint32_t bytes) {
    (void)ctx, (void)index;
    memcpy(input, data, bytes < sizeof input ? bytes : sizeof input);
    return BT_OK;
}
static bt_status made_run(void *ctx, bt_node_callback on_node, void *context, char *detail) {
    (void)ctx;
    memcpy(output, input, sizeof output);
    for (uint32_t i = 0; on_node != NULL && i < model_byte(10); i++) on_node(context, "Op", "node");
    if (model_byte(11) == 0xEE) {
        strcpy(detail, "failed");
        return BT_ENGINE_FAILED;
    }
    return BT_OK;
}
static const uint8_t *made_output(void *ctx, uint32_t index) {
    (void)ctx;
    return index > 6 ? NULL : output;
}
static bt_status made_test(void *ctx, bt_tested *tested, char *detail) {
    (void)ctx, (void)detail;
    tested->where = "tensor";
    return BT_OK;
}

static bt_engine made_engine(void) {
    bt_engine engine = {NULL,       "made",     "1",         BT_CAP_PROFILE, made_open, nothing,   made_count,
                        made_tensor, made_set, made_run, made_output,    made_test, NULL};
    return engine;
}

/* ---- lines ------------------------------------------------------------------------------------------------------ */

static void add_frame(uint8_t type, uint8_t flags, uint32_t request, const uint8_t *payload, size_t size) {
    static uint8_t body[BT_MAX_BODY];
    if (size > BT_MAX_PAYLOAD || LINE_BYTES - line_size < BT_MAX_ENCODED + 2) return;
    bt_writer out = bt_write_to(body, sizeof body);
    bt_put8(&out, (flags & 0x80) != 0 ? 2 : BT_VERSION);
    bt_put8(&out, type);
    bt_put16(&out, 0);
    bt_put32(&out, request);
    bt_put64(&out, (flags & 1) != 0 ? platform.boot_id : 0);
    bt_put_bytes(&out, payload, size);
    bt_put32(&out, bt_crc32(0, body, out.at));
    line[line_size++] = 0;
    line_size += bt_cobs_encode(body, out.at, line + line_size);
    line[line_size++] = 0;
}

static void add_requests(const uint8_t *data, size_t size) {
    bt_reader in = bt_read_from(data, size);
    uint32_t request = 1;
    while (bt_left(&in) >= 4 && !in.bad) {
        uint8_t type = bt_get8(&in), flags = bt_get8(&in);
        size_t length = bt_get16(&in);
        if (length > bt_left(&in)) length = bt_left(&in);
        const uint8_t *payload = bt_take(&in, length);
        if ((flags & 2) == 0) request++;
        /* A whole upload in one request: begin, one chunk, end, with the right digest. */
        if (type == 0xC0 && length > 0 && length <= BT_CHUNK_BYTES) {
            uint8_t begin[72] = {0}, chunk[12 + BT_CHUNK_BYTES] = {0}, end[4] = {0};
            bt_sha256 sha;
            bt_sha256_begin(&sha);
            bt_sha256_add(&sha, payload, length);
            bt_sha256_end(&sha, begin);
            begin[32] = (uint8_t)length;
            begin[33] = (uint8_t)(length >> 8);
            begin[36] = (flags >> 2) % 3;
            begin[37] = begin[36] == 2;
            begin[38] = 0xFF;
            chunk[0] = end[0] = (uint8_t)(core.transfer.id + 1);
            chunk[10] = (uint8_t)length;
            chunk[11] = (uint8_t)(length >> 8);
            memcpy(chunk + 12, payload, length);
            add_frame(BT_PUT_BEGIN, 0, request++, begin, sizeof begin);
            add_frame(BT_PUT_CHUNK, 0, request++, chunk, 12 + length);
            add_frame(BT_PUT_END, 0, request++, end, sizeof end);
        } else {
            add_frame(type, flags, request, payload, length);
        }
        while (line_at < line_size) bt_core_poll(&core);
        line_at = line_size = 0;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    line_size = line_at = written = 0;
    now = 0;
    memset(label, 0, sizeof label);
    memset(&platform, 0, sizeof platform);
    platform.facts.target = platform.facts.firmware = platform.facts.build = "fuzz";
    platform.facts.system = platform.facts.cpu = "fuzz";
    platform.facts.max_baud = 921600;
    platform.boot_id = 0x1122334455667788ull;
    platform.baud = 115200;
    platform.read = fuzz_read;
    platform.write = fuzz_write;
    platform.drain = nothing;
    platform.clock_ns = fuzz_clock;
    platform.set_baud = fuzz_baud;
    platform.reset = nothing;
    platform.reading = sensors;
    platform.slot_count = 3;
    const uint8_t kinds[3] = {BT_SLOT_PSRAM, BT_SLOT_FLASH, BT_SLOT_DATA};
    for (unsigned i = 0; i < 3; i++) platform.slots[i] = (bt_slot_area){kinds[i], SLOT_BYTES, slots[i]};
    platform.slot_erase = slot_erase;
    platform.slot_write = slot_write;
    platform.label_write = label_write;
    platform.label_read = label_read;
    platform.staging = staging;
    platform.staging_bytes = sizeof staging;
    platform.results = (uint8_t *)results;
    platform.results_bytes = sizeof results;
    bt_engine engine = made_engine();
    bt_core_begin(&core, &platform, &engine);
    if (data[0] % 4 == 0) {
        line_size = size - 1 < LINE_BYTES ? size - 1 : LINE_BYTES;
        memcpy(line, data + 1, line_size);
        while (line_at < line_size) bt_core_poll(&core);
    } else if (data[0] % 4 == 1) {
        /* Inflate by itself: its input is the rest, its dictionary the first half of it. */
        static uint8_t out[BT_CHUNK_BYTES];
        bt_inflate(data + 1, size - 1, data, size / 2, out, size > 3 ? (data[1] * 16u) : 1);
    } else {
        add_requests(data + 1, size - 1);
    }
    return 0;
}

#ifdef BT_STANDALONE
int main(int argc, char **argv) {
    static uint8_t data[1 << 16];
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL) return 2;
        size_t size = fread(data, 1, sizeof data, file);
        fclose(file);
        LLVMFuzzerTestOneInput(data, size);
    }
    return 0;
}
#endif
