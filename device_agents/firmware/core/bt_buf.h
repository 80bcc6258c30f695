/* Little-endian reading and writing with bounds. Once a bound is passed, `bad` stays set and nothing is touched. */
#ifndef BT_BUF_H
#define BT_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct bt_reader {
    const uint8_t *data;
    size_t size, at;
    bool bad;
} bt_reader;

typedef struct bt_writer {
    uint8_t *data;
    size_t size, at;
    bool bad;
} bt_writer;

static inline bt_reader bt_read_from(const uint8_t *data, size_t size) {
    bt_reader reader = {data, size, 0, false};
    return reader;
}

static inline size_t bt_left(const bt_reader *reader) { return reader->size - reader->at; }

/* `size` bytes in place, or NULL. */
static inline const uint8_t *bt_take(bt_reader *reader, size_t size) {
    if (reader->bad || size > reader->size - reader->at) {
        reader->bad = true;
        return NULL;
    }
    const uint8_t *piece = reader->data + reader->at;
    reader->at += size;
    return piece;
}

static inline uint64_t bt_get(bt_reader *reader, size_t bytes) {
    const uint8_t *piece = bt_take(reader, bytes);
    uint64_t value = 0;
    for (size_t i = 0; piece != NULL && i < bytes; i++) value |= (uint64_t)piece[i] << (8 * i);
    return value;
}

static inline uint8_t bt_get8(bt_reader *reader) { return (uint8_t)bt_get(reader, 1); }
static inline uint16_t bt_get16(bt_reader *reader) { return (uint16_t)bt_get(reader, 2); }
static inline uint32_t bt_get32(bt_reader *reader) { return (uint32_t)bt_get(reader, 4); }
static inline uint64_t bt_get64(bt_reader *reader) { return bt_get(reader, 8); }

static inline bt_writer bt_write_to(uint8_t *data, size_t size) {
    bt_writer writer = {data, size, 0, false};
    return writer;
}

static inline void bt_put_bytes(bt_writer *writer, const void *bytes, size_t size) {
    if (writer->bad || size > writer->size - writer->at) {
        writer->bad = true;
        return;
    }
    if (size > 0) memcpy(writer->data + writer->at, bytes, size);
    writer->at += size;
}

static inline void bt_put(bt_writer *writer, uint64_t value, size_t bytes) {
    uint8_t packed[8];
    for (size_t i = 0; i < bytes && i < sizeof packed; i++) packed[i] = (uint8_t)(value >> (8 * i));
    bt_put_bytes(writer, packed, bytes);
}

static inline void bt_put8(bt_writer *writer, uint8_t value) { bt_put(writer, value, 1); }
static inline void bt_put16(bt_writer *writer, uint16_t value) { bt_put(writer, value, 2); }
static inline void bt_put32(bt_writer *writer, uint32_t value) { bt_put(writer, value, 4); }
static inline void bt_put64(bt_writer *writer, uint64_t value) { bt_put(writer, value, 8); }

/* A byte with the length, then the text, cut to 255 bytes; NULL is empty. */
static inline void bt_put_text(bt_writer *writer, const char *text) {
    size_t length = 0;
    while (text != NULL && length < 255 && text[length] != '\0') length++;
    bt_put8(writer, (uint8_t)length);
    bt_put_bytes(writer, text, length);
}

#endif
