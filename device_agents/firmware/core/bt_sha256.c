#include <string.h>

#include "bt_pack.h"

static const uint32_t K[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u,
    0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u,
    0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau,
    0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u,
    0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
    0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u,
    0x19a4c116u, 0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u};

static uint32_t rotated(uint32_t x, unsigned n) { return (x >> n) | (x << (32 - n)); }

static void add_block(bt_sha256 *sha, const uint8_t *block) {
    uint32_t w[64], s[8];
    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (unsigned i = 16; i < 64; i++) {
        uint32_t a = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t b = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, sha->state, sizeof s);
    for (unsigned i = 0; i < 64; i++) {
        uint32_t e = rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25);
        uint32_t t1 = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + K[i] + w[i];
        uint32_t a = rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22);
        uint32_t t2 = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (unsigned i = 0; i < 8; i++) sha->state[i] += s[i];
}

void bt_sha256_begin(bt_sha256 *sha) {
    static const uint32_t start[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                      0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    memcpy(sha->state, start, sizeof start);
    sha->length = 0;
}

void bt_sha256_add(bt_sha256 *sha, const uint8_t *data, size_t size) {
    size_t held = (size_t)(sha->length % 64);
    sha->length += size;
    if (held > 0) {
        size_t part = size < 64 - held ? size : 64 - held;
        memcpy(sha->block + held, data, part);
        data += part;
        size -= part;
        if (held + part < 64) return;
        add_block(sha, sha->block);
    }
    for (; size >= 64; data += 64, size -= 64) add_block(sha, data);
    if (size > 0) memcpy(sha->block, data, size);
}

void bt_sha256_end(bt_sha256 *sha, uint8_t digest[32]) {
    uint64_t bits = sha->length * 8;
    uint8_t pad[72] = {0x80};
    size_t padding = 64 - (size_t)((sha->length + 8) % 64);
    for (unsigned i = 0; i < 8; i++) pad[padding + i] = (uint8_t)(bits >> (56 - 8 * i));
    bt_sha256_add(sha, pad, padding + 8);
    for (unsigned i = 0; i < 32; i++) digest[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}
