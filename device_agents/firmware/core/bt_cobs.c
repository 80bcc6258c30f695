#include "bt_pack.h"

uint32_t bt_crc32(uint32_t crc, const uint8_t *data, size_t size) {
    /* A table of 16 entries: two steps a byte, 64 bytes of flash. */
    static const uint32_t table[16] = {
        0x00000000u, 0x1db71064u, 0x3b6e20c8u, 0x26d930acu, 0x76dc4190u, 0x6b6b51f4u, 0x4db26158u, 0x5005713cu,
        0xedb88320u, 0xf00f9344u, 0xd6d6a3e8u, 0xcb61b38cu, 0x9b64c2b0u, 0x86d3d2d4u, 0xa00ae278u, 0xbdbdf21cu};
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc = table[(crc ^ data[i]) & 15u] ^ (crc >> 4);
        crc = table[(crc ^ (uint32_t)(data[i] >> 4)) & 15u] ^ (crc >> 4);
    }
    return ~crc;
}

size_t bt_cobs_encode(const uint8_t *data, size_t size, uint8_t *out) {
    size_t written = 1, code_at = 0;
    uint8_t code = 1;
    for (size_t i = 0; i < size; i++) {
        if (data[i] != 0) {
            out[written++] = data[i];
            code++;
        }
        if (data[i] == 0 || code == 0xFF) {
            /* A full block at the very end needs no empty one after it. */
            if (data[i] != 0 && i + 1 == size) break;
            out[code_at] = code;
            code_at = written++;
            code = 1;
        }
    }
    out[code_at] = code;
    return written;
}

size_t bt_cobs_decode(uint8_t *data, size_t size) {
    size_t from = 0, to = 0;
    while (from < size) {
        uint8_t code = data[from];
        if (code == 0 || code > size - from) return SIZE_MAX;
        for (uint8_t i = 1; i < code; i++) data[to++] = data[from + i];
        from += code;
        if (code != 0xFF && from < size) data[to++] = 0;
    }
    return to;
}
