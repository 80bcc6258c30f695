/* Raw deflate, RFC 1951, written from its text: one symbol at a time by canonical code lengths, no tables beyond
 * counts and symbols. About as fast as a serial line needs. */
#include "bt_pack.h"

#define MAX_BITS 15

typedef struct input {
    const uint8_t *data;
    size_t size, at;
    uint32_t held;
    unsigned held_bits;
    bool bad;
} input;

typedef struct output {
    const uint8_t *dictionary;
    size_t dictionary_size;
    uint8_t *data;
    size_t size, at;
} output;

typedef struct code {
    uint16_t count[MAX_BITS + 1];
    uint16_t symbol[288];
} code;

static uint32_t bits(input *in, unsigned wanted) {
    while (in->held_bits < wanted) {
        if (in->at >= in->size) {
            in->bad = true;
            return 0;
        }
        in->held |= (uint32_t)in->data[in->at++] << in->held_bits;
        in->held_bits += 8;
    }
    uint32_t value = in->held & ((1u << wanted) - 1u);
    in->held >>= wanted;
    in->held_bits -= wanted;
    return value;
}

/* Canonical code from lengths (section 3.2.2). False if it is over-subscribed. */
static bool make_code(code *c, const uint8_t *lengths, unsigned symbols) {
    uint16_t offset[MAX_BITS + 2];
    for (unsigned i = 0; i <= MAX_BITS; i++) c->count[i] = 0;
    for (unsigned i = 0; i < symbols; i++) c->count[lengths[i]]++;
    c->count[0] = 0;
    int32_t left = 1;
    offset[1] = 0;
    for (unsigned i = 1; i <= MAX_BITS; i++) {
        left = 2 * left - c->count[i];
        if (left < 0) return false;
        offset[i + 1] = (uint16_t)(offset[i] + c->count[i]);
    }
    for (unsigned i = 0; i < symbols; i++)
        if (lengths[i] != 0) c->symbol[offset[lengths[i]]++] = (uint16_t)i;
    return true;
}

/* Next symbol, or -1 where the bits are no code. */
static int symbol(input *in, const code *c) {
    int32_t value = 0, first = 0, index = 0;
    for (unsigned length = 1; length <= MAX_BITS; length++) {
        value |= (int32_t)bits(in, 1);
        if (in->bad) return -1;
        int32_t count = c->count[length];
        if (value - first < count) return c->symbol[index + (value - first)];
        index += count;
        first = (first + count) << 1;
        value <<= 1;
    }
    return -1;
}

static bool copy(output *out, size_t distance, size_t length) {
    if (distance > out->at + out->dictionary_size || length > out->size - out->at) return false;
    for (; length > 0; length--, out->at++)
        out->data[out->at] = distance <= out->at ? out->data[out->at - distance]
                                                 : out->dictionary[out->dictionary_size - (distance - out->at)];
    return true;
}

static bool compressed(input *in, output *out, const code *literals, const code *distances) {
    static const uint16_t length_base[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                             31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    static const uint8_t length_bits[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                            2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static const uint16_t distance_base[30] = {1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
                                               193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    static const uint8_t distance_bits[30] = {0, 0, 0, 0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  6,
                                              6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};
    for (;;) {
        int next = symbol(in, literals);
        if (next < 0) return false;
        if (next == 256) return true;
        if (next < 256) {
            if (out->at >= out->size) return false;
            out->data[out->at++] = (uint8_t)next;
            continue;
        }
        if (next > 285) return false;
        size_t length = length_base[next - 257] + bits(in, length_bits[next - 257]);
        int far = symbol(in, distances);
        if (far < 0 || far > 29) return false;
        size_t distance = distance_base[far] + bits(in, distance_bits[far]);
        if (in->bad || !copy(out, distance, length)) return false;
    }
}

static bool stored(input *in, output *out) {
    in->held = 0;
    in->held_bits = 0;
    if (in->size - in->at < 4) return false;
    const uint8_t *head = in->data + in->at;
    size_t length = (size_t)head[0] | (size_t)head[1] << 8;
    if ((head[0] ^ head[2]) != 0xFF || (head[1] ^ head[3]) != 0xFF) return false;
    in->at += 4;
    if (length > in->size - in->at || length > out->size - out->at) return false;
    for (size_t i = 0; i < length; i++) out->data[out->at++] = in->data[in->at++];
    return true;
}

static bool fixed(input *in, output *out) {
    uint8_t lengths[288];
    code literals, distances;
    for (unsigned i = 0; i < 288; i++) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    if (!make_code(&literals, lengths, 288)) return false;
    for (unsigned i = 0; i < 30; i++) lengths[i] = 5;
    return make_code(&distances, lengths, 30) && compressed(in, out, &literals, &distances);
}

static bool dynamic(input *in, output *out) {
    static const uint8_t order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[288 + 32] = {0};
    code literals, distances;
    unsigned literal_count = bits(in, 5) + 257, distance_count = bits(in, 5) + 1, length_count = bits(in, 4) + 4;
    if (in->bad || literal_count > 286 || distance_count > 30) return false;
    for (unsigned i = 0; i < length_count; i++) lengths[order[i]] = (uint8_t)bits(in, 3);
    if (in->bad || !make_code(&literals, lengths, 19)) return false;
    for (unsigned i = 0; i < 19; i++) lengths[i] = 0;
    for (unsigned at = 0; at < literal_count + distance_count;) {
        int next = symbol(in, &literals);
        if (next < 0) return false;
        if (next < 16) {
            lengths[at++] = (uint8_t)next;
            continue;
        }
        uint8_t value = 0;
        unsigned times;
        if (next == 16) {
            if (at == 0) return false;
            value = lengths[at - 1];
            times = 3 + bits(in, 2);
        } else if (next == 17) {
            times = 3 + bits(in, 3);
        } else {
            times = 11 + bits(in, 7);
        }
        if (in->bad || times > literal_count + distance_count - at) return false;
        while (times-- > 0) lengths[at++] = value;
    }
    if (lengths[256] == 0) return false;
    return make_code(&literals, lengths, literal_count) &&
           make_code(&distances, lengths + literal_count, distance_count) && compressed(in, out, &literals, &distances);
}

bool bt_inflate(const uint8_t *data, size_t size, const uint8_t *dictionary, size_t dictionary_size, uint8_t *data_out,
                size_t out_size) {
    input in = {data, size, 0, 0, 0, false};
    output out = {dictionary, dictionary_size, data_out, out_size, 0};
    bool last;
    do {
        last = bits(&in, 1) != 0;
        uint32_t type = bits(&in, 2);
        if (in.bad) return false;
        bool good = type == 0 ? stored(&in, &out) : type == 1 ? fixed(&in, &out) : type == 2 && dynamic(&in, &out);
        if (!good) return false;
    } while (!last);
    return out.at == out_size;
}
