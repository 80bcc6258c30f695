/* What the core needs of the machine it runs on. All of it is used from one thread. */
#ifndef BT_PLATFORM_H
#define BT_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bt_wire.h"

#define BT_MAX_SLOTS 6u

typedef struct bt_slot_area {
    uint8_t kind; /* bt_slot_kind */
    uint32_t capacity;
    /* The slot's bytes in the address space, `capacity` of them (flash: memory-mapped). */
    const uint8_t *data;
} bt_slot_area;

typedef struct bt_facts {
    const char *target, *firmware, *build, *system, *cpu;
    uint8_t mac[6];
    uint8_t reset_reason, cores;
    uint16_t chip_revision, caps;
    uint32_t psram_bytes, flash_bytes, max_baud, cpu_hz;
} bt_facts;

typedef struct bt_sensors {
    int16_t temperature_centi_c; /* BT_NO_TEMPERATURE where there is no sensor */
    bool throttled;
    uint32_t cpu_hz, free_bytes, largest_block_bytes, free_psram_bytes;
} bt_sensors;

typedef struct bt_platform {
    void *ctx;
    bt_facts facts;
    uint64_t boot_id; /* random, new at every boot, never 0 */
    uint32_t baud;

    /* Up to `size` bytes that have come; waits a few milliseconds for the first; 0 if none came. */
    size_t (*read)(void *ctx, uint8_t *data, size_t size);
    /* All of it, whatever time it takes. */
    void (*write)(void *ctx, const uint8_t *data, size_t size);
    /* Waits until what was written is on the line. */
    void (*drain)(void *ctx);
    uint64_t (*clock_ns)(void *ctx);
    bool (*set_baud)(void *ctx, uint32_t baud);
    void (*reset)(void *ctx);
    void (*reading)(void *ctx, bt_sensors *reading);

    uint32_t slot_count;
    bt_slot_area slots[BT_MAX_SLOTS];
    /* Makes `size` bytes of the slot writable. */
    bool (*slot_erase)(void *ctx, uint32_t slot, uint32_t size);
    bool (*slot_write)(void *ctx, uint32_t slot, uint32_t offset, const uint8_t *data, uint32_t size);
    /* Remembers what a flash slot holds over a reset; size 0 forgets. NULL where nothing is kept. */
    bool (*label_write)(void *ctx, uint32_t slot, uint32_t size, const uint8_t sha256[32]);
    bool (*label_read)(void *ctx, uint32_t slot, uint32_t *size, uint8_t sha256[32]);

    /* Rows of inputs, and times and outputs. */
    uint8_t *staging;
    uint32_t staging_bytes;
    uint8_t *results; /* aligned for uint64_t */
    uint32_t results_bytes;
} bt_platform;

#endif
