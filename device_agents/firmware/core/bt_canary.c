/* The canary: a fixed 3x3 int8 convolution, 16x16x8 -> 16x16x16, half up, and the sum of its outputs over the picture.
 *
 * Its digest is the sha256 of harness/boards/canaries/firmware-1.txt, so that the host finds it resident. A change here
 * is another canary: it needs another file and digest. */
#include "bt_engine.h"
#include "bt_pack.h"

#include <string.h>

enum { SIDE = 16, IN = 8, OUT = 16, SHIFT = 8 };

const uint8_t bt_canary_sha256[BT_SHA256_BYTES] = {
    0x9d, 0x1b, 0x96, 0x48, 0x09, 0xc4, 0x63, 0xa2, 0xf8, 0xe5, 0x2f, 0xa3, 0xce, 0x07, 0x11, 0x8a,
    0x02, 0x6b, 0xc9, 0x4e, 0x0b, 0x46, 0x61, 0x4c, 0xfd, 0xda, 0x13, 0xf9, 0x6e, 0x79, 0xe8, 0x42,
};

static int8_t input[SIDE * SIDE * IN], weights[OUT * 9 * IN], output[OUT];
static int32_t sums[OUT];

static void make_weights(void) {
    uint32_t state = 1;
    for (size_t i = 0; i < sizeof weights; i++) {
        state = state * 1664525u + 1013904223u; /* Numerical Recipes' generator */
        weights[i] = (int8_t)(state >> 24);
    }
}

static int8_t clipped(int32_t value) { return (int8_t)(value > 127 ? 127 : value < -128 ? -128 : value); }

static int32_t pixel(int y, int x, int channel) {
    int32_t sum = 0;
    for (int dy = -1; dy <= 1; dy++) {
        for (int dx = -1; dx <= 1; dx++) {
            if (y + dy < 0 || y + dy >= SIDE || x + dx < 0 || x + dx >= SIDE) continue;
            const int8_t *from = input + ((y + dy) * SIDE + x + dx) * IN;
            const int8_t *with = weights + (channel * 9 + (dy + 1) * 3 + dx + 1) * IN;
            for (int i = 0; i < IN; i++) sum += from[i] * with[i];
        }
    }
    return sum;
}

static void compute(void) {
    memset(sums, 0, sizeof sums);
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            for (int channel = 0; channel < OUT; channel++)
                sums[channel] += clipped((pixel(y, x, channel) + (1 << (SHIFT - 1))) >> SHIFT);
    for (int channel = 0; channel < OUT; channel++) output[channel] = clipped((sums[channel] + 128) >> SHIFT);
}

static bt_status canary_open(void *ctx, const uint8_t *model, uint32_t size, const bt_open_options *options,
                             bt_memory *used, char *detail) {
    (void)ctx, (void)model, (void)size, (void)options, (void)detail;
    memset(input, 0, sizeof input);
    make_weights();
    used->internal_bytes = sizeof input + sizeof weights + sizeof output + sizeof sums;
    return BT_OK;
}

static void canary_close(void *ctx) { (void)ctx; }

static uint32_t canary_count(void *ctx, bool is_output) {
    (void)ctx, (void)is_output;
    return 1;
}

static bool canary_tensor(void *ctx, bool is_output, uint32_t index, bt_tensor *tensor) {
    (void)ctx;
    if (index != 0) return false;
    const int32_t in_dims[] = {1, SIDE, SIDE, IN}, out_dims[] = {1, OUT};
    tensor->name = is_output ? "sums" : "picture";
    tensor->dtype = 3;
    tensor->exponent = is_output ? 0 : -5;
    tensor->rank = is_output ? 2 : 4;
    memcpy(tensor->dims, is_output ? out_dims : in_dims, is_output ? sizeof out_dims : sizeof in_dims);
    tensor->bytes = is_output ? sizeof output : sizeof input;
    return true;
}

static bt_status canary_set_input(void *ctx, uint32_t index, const uint8_t *data, uint32_t bytes) {
    (void)ctx;
    if (index != 0 || bytes != sizeof input) return BT_BAD_DATA;
    memcpy(input, data, bytes);
    return BT_OK;
}

static bt_status canary_run(void *ctx, bt_node_callback on_node, void *context, char *detail) {
    (void)ctx, (void)detail;
    compute();
    if (on_node != NULL) on_node(context, "Conv", "canary");
    return BT_OK;
}

static const uint8_t *canary_output(void *ctx, uint32_t index) {
    (void)ctx;
    return index == 0 ? (const uint8_t *)output : NULL;
}

bool bt_canary_is_right(void) {
    static int8_t kept[sizeof input]; /* the canary may be loaded */
    memcpy(kept, input, sizeof input);
    make_weights();
    for (size_t i = 0; i < sizeof input; i++) input[i] = (int8_t)(uint8_t)(i * 7u % 251u);
    compute();
    uint32_t crc = bt_crc32(0, (const uint8_t *)sums, sizeof sums);
    memcpy(input, kept, sizeof input);
    return crc == 0x72e28eabu;
}

static bt_status canary_self_test(void *ctx, bt_tested *tested, char *detail) {
    (void)ctx, (void)detail;
    tested->passed = bt_canary_is_right();
    tested->checked = 1;
    tested->where = "sums";
    return BT_OK;
}

bt_engine bt_canary_engine(void) {
    bt_engine engine = {NULL,           "canary",         "1",        BT_CAP_PROFILE | BT_CAP_MODEL_TEST,
                        canary_open,    canary_close,     canary_count, canary_tensor,
                        canary_set_input, canary_run,     canary_output, canary_self_test, NULL};
    return engine;
}
