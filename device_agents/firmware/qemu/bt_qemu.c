/* The firmware on QEMU's bare riscv32 "virt" machine: its UART is the serial line, and with `-icount shift=0` its cycle
 * counter counts instructions, so that a latency is a deterministic number of them: one is told as one nanosecond.
 *
 *   qemu-system-riscv32 -M virt -m 128M -bios none -nographic -monitor none -icount shift=0 -serial pty -kernel bt_qemu.elf
 */
#include <stdio.h>
#include <string.h>

#include "../core/bt_core.h"
#ifdef BT_WITH_ENGINE
#include "../core/bt_portable.h"
#endif

#define REGISTER8(address) (*(volatile uint8_t *)(address))
#define REGISTER32(address) (*(volatile uint32_t *)(address))
#define UART 0x10000000u /* ns16550a */
#define RTC 0x101000u    /* goldfish */
#define TEST 0x100000u   /* sifive_test: power off and reset */
#define NOINIT __attribute__((section(".noinit"), aligned(16)))

enum { PSRAM_SLOT = 3 << 20, FLASH_SLOT = 4 << 20, DATA_SLOT = 2 << 20, ARENA = 24 << 20, AREA = 1 << 20, SPINS = 20000 };

static uint8_t slot_0[PSRAM_SLOT] NOINIT, slot_1[PSRAM_SLOT] NOINIT, slot_2[FLASH_SLOT] NOINIT, slot_3[DATA_SLOT] NOINIT;
static uint8_t staging[AREA] NOINIT, results[AREA] NOINIT;
static uint8_t label[64] NOINIT; /* the machine's RAM outlives its reset, as flash does */
static uint32_t label_magic NOINIT, reset_reason NOINIT, reset_magic NOINIT;
static bt_core core;
static bt_platform platform;

enum { MAGIC = 0x62746c31 };

static void put(uint8_t byte) {
    while ((REGISTER8(UART + 5) & 0x20) == 0) {
    }
    REGISTER8(UART) = byte;
}

static void say(const char *text) {
    while (*text != '\0') put((uint8_t)*text++);
}

static void restart(uint32_t reason) {
    reset_reason = reason;
    reset_magic = MAGIC;
    REGISTER32(TEST) = 0x7777;
    for (;;) {
    }
}

void bt_qemu_panic(uint32_t cause, uint32_t pc, uint32_t address);

void bt_qemu_panic(uint32_t cause, uint32_t pc, uint32_t address) {
    static const char *const names[] = {"Instruction address misaligned", "Instruction access fault",
                                        "Illegal instruction",            "Breakpoint",
                                        "Load address misaligned",        "Load access fault",
                                        "Store address misaligned",       "Store access fault"};
    char text[160];
    snprintf(text, sizeof text,
             "\r\nGuru Meditation Error: Core  0 panic'ed (%s). \r\nMEPC    : 0x%08lx  MTVAL   : 0x%08lx\r\nRebooting...\r\n",
             cause < 8 ? names[cause] : "Unknown", (unsigned long)pc, (unsigned long)address);
    say(text);
    restart(4);
}

static size_t uart_read(void *ctx, uint8_t *data, size_t size) {
    (void)ctx;
    size_t came = 0;
    for (unsigned spin = 0; spin < SPINS && came < size; spin++) {
        if ((REGISTER8(UART + 5) & 1) != 0) {
            data[came++] = REGISTER8(UART);
            spin = SPINS - 200; /* a little longer for what follows at once */
        }
    }
    return came;
}

static void uart_write(void *ctx, const uint8_t *data, size_t size) {
    (void)ctx;
    for (size_t i = 0; i < size; i++) put(data[i]);
}

static void uart_drain(void *ctx) {
    (void)ctx;
    while ((REGISTER8(UART + 5) & 0x40) == 0) {
    }
}

static uint64_t cycles(void *ctx) {
    (void)ctx;
    uint32_t high, low, again;
    do {
        __asm__ volatile("csrr %0, mcycleh" : "=r"(high));
        __asm__ volatile("csrr %0, mcycle" : "=r"(low));
        __asm__ volatile("csrr %0, mcycleh" : "=r"(again));
    } while (high != again);
    return (uint64_t)high << 32 | low;
}

static bool set_baud(void *ctx, uint32_t baud) {
    (void)ctx, (void)baud;
    return false;
}

static void reset(void *ctx) {
    (void)ctx;
    restart(3);
}

static void sensors(void *ctx, bt_sensors *found) {
    (void)ctx;
    found->cpu_hz = platform.facts.cpu_hz;
    found->free_bytes = found->largest_block_bytes = ARENA;
    found->free_psram_bytes = 2 * PSRAM_SLOT;
}

static bool slot_erase(void *ctx, uint32_t slot, uint32_t size) {
    (void)ctx;
    memset((uint8_t *)platform.slots[slot].data, 0xFF, size);
    return true;
}

static bool slot_write(void *ctx, uint32_t slot, uint32_t offset, const uint8_t *data, uint32_t size) {
    (void)ctx;
    memcpy((uint8_t *)platform.slots[slot].data + offset, data, size);
    return true;
}

static bool label_write(void *ctx, uint32_t slot, uint32_t size, const uint8_t sha256[32]) {
    (void)ctx;
    if (slot != 2) return true;
    memcpy(label, &size, sizeof size);
    memcpy(label + 8, sha256, 32);
    label_magic = size > 0 ? MAGIC : 0;
    return true;
}

static bool label_read(void *ctx, uint32_t slot, uint32_t *size, uint8_t sha256[32]) {
    (void)ctx;
    if (slot != 2 || label_magic != MAGIC) return false;
    memcpy(size, label, sizeof *size);
    memcpy(sha256, label + 8, 32);
    return *size <= FLASH_SLOT;
}

int main(void) {
    platform.facts = (bt_facts){.target = "esp32p4",
                                .firmware = "1.0.0",
                                .build = "qemu",
                                .system = "bare metal",
                                .cpu = "riscv32 (QEMU)",
                                .mac = {2, 0, 0, 0, 0x51, 1},
                                .reset_reason = reset_magic == MAGIC ? (uint8_t)reset_reason : 1,
                                .cores = 1,
                                .caps = BT_CAP_EMULATED,
                                .psram_bytes = 2 * PSRAM_SLOT + DATA_SLOT,
                                .flash_bytes = FLASH_SLOT,
                                .max_baud = 115200,
                                .cpu_hz = 1000000000};
    reset_magic = 0;
    /* Wall time: the cycle counter starts the same every time. */
    uint32_t low = REGISTER32(RTC), high = REGISTER32(RTC + 4);
    platform.boot_id = ((uint64_t)high << 32 | low) | 1;
    platform.baud = 115200;
    platform.read = uart_read;
    platform.write = uart_write;
    platform.drain = uart_drain;
    platform.clock_ns = cycles;
    platform.set_baud = set_baud;
    platform.reset = reset;
    platform.reading = sensors;
    platform.slot_erase = slot_erase;
    platform.slot_write = slot_write;
    platform.label_write = label_write;
    platform.label_read = label_read;
    platform.slot_count = 4;
    platform.slots[0] = (bt_slot_area){BT_SLOT_PSRAM, PSRAM_SLOT, slot_0};
    platform.slots[1] = (bt_slot_area){BT_SLOT_PSRAM, PSRAM_SLOT, slot_1};
    platform.slots[2] = (bt_slot_area){BT_SLOT_FLASH, FLASH_SLOT, slot_2};
    platform.slots[3] = (bt_slot_area){BT_SLOT_DATA, DATA_SLOT, slot_3};
    platform.staging = staging;
    platform.staging_bytes = AREA;
    platform.results = results;
    platform.results_bytes = AREA;
    say("ESP-ROM:qemu-riscv32\r\nrst:0x1 (POWERON),boot:0x8 (SPI_FAST_FLASH_BOOT)\r\n");
#ifdef BT_WITH_ENGINE
    static uint8_t arena[ARENA] NOINIT;
    static bt_portable portable = {.target = ENGINE_TARGET_P4, .arena = arena, .arena_bytes = ARENA};
    bt_engine runs = bt_portable_engine(&portable);
#else
    bt_engine runs = bt_canary_engine();
#endif
    bt_core_begin(&core, &platform, &runs);
    for (;;) bt_core_poll(&core);
}
