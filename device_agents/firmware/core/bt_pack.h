/* What bytes are packed, checked and signed with. No state outside the arguments, no heap. */
#ifndef BT_PACK_H
#define BT_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CRC-32 of ISO 3309 (zlib's); `crc` is 0 or that of what comes before. */
uint32_t bt_crc32(uint32_t crc, const uint8_t *data, size_t size);

/* COBS without delimiters. `out` holds size + size / 254 + 1 bytes. Returns the length. */
size_t bt_cobs_encode(const uint8_t *data, size_t size, uint8_t *out);

/* In place. Returns the length, or SIZE_MAX if `data` is no COBS. */
size_t bt_cobs_decode(uint8_t *data, size_t size);

/* SHA-256, FIPS 180-4. */
typedef struct bt_sha256 {
    uint32_t state[8];
    uint64_t length;
    uint8_t block[64];
} bt_sha256;

void bt_sha256_begin(bt_sha256 *sha);
void bt_sha256_add(bt_sha256 *sha, const uint8_t *data, size_t size);
void bt_sha256_end(bt_sha256 *sha, uint8_t digest[32]);

/* Raw deflate (RFC 1951) into exactly `out_size` bytes, with the `dictionary` as what came before them.
 * False if the data is damaged, ends early, or makes another number of bytes. */
bool bt_inflate(const uint8_t *data, size_t size, const uint8_t *dictionary, size_t dictionary_size, uint8_t *out,
                size_t out_size);

#endif
