/* The firmware as a program of this computer: its serial line is a pty, its flash a file, its reset an exec of itself.
 *
 *   bt_host [--target esp32s3] [--mac 02:00:00:00:00:01] [--flash FILE] [--psram BYTES] [--arena BYTES]
 *           [--clean-baud N]
 *
 * The first line on stdout is the path of the line's other end. It ends with its stdin. Rates do nothing on a pty, but
 * both ends can see them: where they differ, or above --clean-baud, bytes are garbled as on a real line. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "../core/bt_core.h"
#ifdef BT_WITH_ENGINE
#include "../core/bt_portable.h"
#endif

#define LABEL_BYTES 64u
#define FLASH_SLOT 2u

typedef struct host {
    int master, slave;
    uint32_t baud, clean_baud, flash_bytes;
    uint64_t booted_ns;
    uint8_t *flash;
} host;

static host self;
static bt_core core;
static bt_platform platform;
static char **arguments;
static int argument_count;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void say(const char *text) {
    size_t left = strlen(text);
    while (left > 0) {
        ssize_t wrote = write(self.master, text, left);
        if (wrote <= 0) return;
        text += wrote;
        left -= (size_t)wrote;
    }
}

/* As after a reset: a new image, new memory, the same line. */
static void restart(const char *reason) {
    char master[16], slave[16], *again[64];
    int count = 0;
    snprintf(master, sizeof master, "%d", self.master);
    snprintf(slave, sizeof slave, "%d", self.slave);
    for (int i = 0; i < argument_count && count < 56; i++) again[count++] = arguments[i];
    again[count++] = "--line";
    again[count++] = master;
    again[count++] = slave;
    again[count++] = "--reason";
    again[count++] = (char *)reason;
    again[count] = NULL;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv("/proc/self/exe", again);
    _exit(1);
}

static void panic(int number) {
    say(number == SIGABRT ? "\r\nabort() was called at PC 0x42000000 on core 0\r\n"
                          : "\r\nGuru Meditation Error: Core  0 panic'ed (LoadProhibited). Exception was unhandled.\r\n");
    say("\r\nBacktrace: 0x42001000:0x3fc90000\r\n\r\nRebooting...\r\n");
    restart("4");
}

static uint32_t line_baud(void) {
    static const struct { speed_t speed; uint32_t baud; } rates[] = {
        {B9600, 9600},     {B19200, 19200},   {B38400, 38400},   {B57600, 57600},     {B115200, 115200},
        {B230400, 230400}, {B460800, 460800}, {B921600, 921600}, {B1000000, 1000000}, {B1500000, 1500000},
        {B2000000, 2000000}, {B3000000, 3000000}};
    struct termios line;
    if (tcgetattr(self.master, &line) != 0) return self.baud;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (rates[i].speed == cfgetospeed(&line)) return rates[i].baud;
    return self.baud;
}

static bool garbled(void) {
    uint32_t theirs = line_baud();
    return theirs != self.baud || (self.clean_baud != 0 && self.baud > self.clean_baud);
}

static size_t host_read(void *ctx, uint8_t *data, size_t size) {
    (void)ctx;
    struct pollfd waits[2] = {{self.master, POLLIN, 0}, {0, POLLIN, 0}};
    if (poll(waits, 2, 50) <= 0) return 0;
    if ((waits[1].revents & (POLLIN | POLLHUP)) != 0) {
        char byte;
        if (read(0, &byte, 1) <= 0) exit(0);
    }
    if ((waits[0].revents & POLLIN) == 0) return 0;
    ssize_t came = read(self.master, data, size);
    if (came <= 0) return 0;
    if (garbled())
        for (ssize_t i = 0; i < came; i++) data[i] ^= 0xA5;
    return (size_t)came;
}

static void host_write(void *ctx, const uint8_t *data, size_t size) {
    (void)ctx;
    bool garble = garbled();
    uint8_t piece[512];
    while (size > 0) {
        size_t part = size < sizeof piece ? size : sizeof piece;
        memcpy(piece, data, part);
        for (size_t i = 0; garble && i < part; i++) piece[i] ^= 0xA5;
        ssize_t wrote = write(self.master, piece, part);
        if (wrote <= 0) {
            if (errno == EINTR || errno == EAGAIN) continue;
            return;
        }
        data += wrote;
        size -= (size_t)wrote;
    }
}

/* Nothing is between write and the other end but the kernel's buffer; its reader may still look at the old rate. */
static void host_drain(void *ctx) {
    (void)ctx;
    struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
}

static uint64_t host_clock(void *ctx) {
    (void)ctx;
    return now_ns() - self.booted_ns;
}

static bool host_set_baud(void *ctx, uint32_t baud) {
    (void)ctx;
    self.baud = baud;
    return true;
}

static void host_reset(void *ctx) {
    (void)ctx;
    restart("3");
}

static void host_reading(void *ctx, bt_sensors *sensors) {
    (void)ctx;
    sensors->cpu_hz = platform.facts.cpu_hz;
    sensors->free_bytes = sensors->largest_block_bytes = 256u * 1024u;
    sensors->free_psram_bytes = platform.facts.psram_bytes;
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
    if (slot != FLASH_SLOT) return true;
    uint8_t *label = self.flash + self.flash_bytes;
    memcpy(label, &size, sizeof size);
    memcpy(label + 8, sha256, 32);
    return true;
}

static bool label_read(void *ctx, uint32_t slot, uint32_t *size, uint8_t sha256[32]) {
    (void)ctx;
    if (slot != FLASH_SLOT) return false;
    const uint8_t *label = self.flash + self.flash_bytes;
    memcpy(size, label, sizeof *size);
    memcpy(sha256, label + 8, 32);
    return *size <= self.flash_bytes;
}

static void *memory(size_t size) {
    void *found = mmap(NULL, size > 0 ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) exit(1);
    return found;
}

static void open_flash(const char *path) {
    if (path == NULL) {
        self.flash = memory(self.flash_bytes + LABEL_BYTES);
        return;
    }
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)(self.flash_bytes + LABEL_BYTES)) != 0) exit(1);
    self.flash = mmap(NULL, self.flash_bytes + LABEL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (self.flash == MAP_FAILED) exit(1);
    close(file);
}

static void open_line(void) {
    self.master = posix_openpt(O_RDWR | O_NOCTTY);
    if (self.master < 0 || grantpt(self.master) != 0 || unlockpt(self.master) != 0) exit(1);
    /* Kept open: a line without a reader is quiet, not broken. */
    self.slave = open(ptsname(self.master), O_RDWR | O_NOCTTY);
    if (self.slave < 0) exit(1);
    struct termios line;
    tcgetattr(self.slave, &line);
    cfmakeraw(&line);
    cfsetspeed(&line, B115200);
    tcsetattr(self.slave, TCSANOW, &line);
    printf("%s\n", ptsname(self.master));
    fflush(stdout);
}

#ifndef BT_WITH_ENGINE
static bt_status no_engine(void *ctx, const uint8_t *model, uint32_t size, const bt_open_options *options,
                           bt_memory *used, char *detail) {
    (void)ctx, (void)model, (void)size, (void)options, (void)used;
    strcpy(detail, "this build has no engine");
    return BT_BAD_MODEL;
}
#endif

static void catch_panics(void) {
    static uint8_t stack[65536];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = panic;
    action.sa_flags = SA_ONSTACK;
    const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &action, NULL);
}

int main(int argc, char **argv) {
    uint32_t psram = 8u << 20;
    size_t arena = 32u << 20;
    const char *flash = NULL, *target = "esp32s3", *mac = "02:00:00:00:00:01";
    int reason = 1;
    bool old_line = false;
    arguments = argv;
    self.baud = 115200;
    self.flash_bytes = 4u << 20;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!old_line) argument_count = i;
        if (strcmp(argv[i], "--target") == 0) target = value;
        else if (strcmp(argv[i], "--mac") == 0) mac = value;
        else if (strcmp(argv[i], "--flash") == 0) flash = value;
        else if (strcmp(argv[i], "--psram") == 0) psram = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--arena") == 0) arena = strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--clean-baud") == 0) self.clean_baud = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--reason") == 0) reason = atoi(value);
        else if (strcmp(argv[i], "--line") == 0 && i + 2 < argc) {
            self.master = atoi(argv[i + 1]);
            self.slave = atoi(argv[i + 2]);
            old_line = true;
            i++;
        } else {
            fprintf(stderr, "bt_host: unknown argument %s\n", argv[i]);
            return 2;
        }
        i++;
    }
    if (!old_line) argument_count = argc;
    if (!old_line) open_line();
    self.booted_ns = now_ns();
    open_flash(flash);
    catch_panics();

    platform.facts = (bt_facts){.target = target,
                                .firmware = "1.0.0",
                                .build = "host",
                                .system = "host",
                                .cpu = "this computer's",
                                .reset_reason = (uint8_t)reason,
                                .cores = 1,
                                .caps = BT_CAP_SET_BAUD | BT_CAP_EMULATED,
                                .psram_bytes = psram,
                                .flash_bytes = self.flash_bytes,
                                .max_baud = 3000000,
                                .cpu_hz = 240000000};
    unsigned parts[6];
    if (sscanf(mac, "%x:%x:%x:%x:%x:%x", parts, parts + 1, parts + 2, parts + 3, parts + 4, parts + 5) != 6) return 2;
    for (int i = 0; i < 6; i++) platform.facts.mac[i] = (uint8_t)parts[i];
    if (getrandom(&platform.boot_id, sizeof platform.boot_id, 0) != (ssize_t)sizeof platform.boot_id) return 1;
    platform.boot_id |= 1;
    platform.baud = self.baud;
    platform.read = host_read;
    platform.write = host_write;
    platform.drain = host_drain;
    platform.clock_ns = host_clock;
    platform.set_baud = host_set_baud;
    platform.reset = host_reset;
    platform.reading = host_reading;
    platform.slot_erase = slot_erase;
    platform.slot_write = slot_write;
    platform.label_write = label_write;
    platform.label_read = label_read;
    platform.slot_count = 4;
    uint32_t share = psram / 8 * 3 & ~4095u;
    platform.slots[0] = (bt_slot_area){BT_SLOT_PSRAM, share, memory(share)};
    platform.slots[1] = (bt_slot_area){BT_SLOT_PSRAM, share, memory(share)};
    platform.slots[FLASH_SLOT] = (bt_slot_area){BT_SLOT_FLASH, self.flash_bytes, self.flash};
    platform.slots[3] = (bt_slot_area){BT_SLOT_DATA, psram / 4, memory(psram / 4)};
    platform.staging_bytes = 1u << 20;
    platform.staging = memory(platform.staging_bytes);
    platform.results_bytes = 1u << 20;
    platform.results = memory(platform.results_bytes);

    say("ESP-ROM:esp32s3-20210327\r\nBuild:Mar 27 2021\r\n");
    say(reason == 1 ? "rst:0x1 (POWERON),boot:0x8 (SPI_FAST_FLASH_BOOT)\r\n"
                    : "rst:0xc (RTC_SW_CPU_RST),boot:0x8 (SPI_FAST_FLASH_BOOT)\r\n");
#ifdef BT_WITH_ENGINE
    static bt_portable portable;
    portable.target = strcmp(target, "esp32p4") == 0 || strcmp(target, "esp32s31") == 0 ? ENGINE_TARGET_P4
                      : strcmp(target, "esp32s3") == 0                                  ? ENGINE_TARGET_S3
                                                                                        : ENGINE_TARGET_C;
    portable.arena = memory(arena);
    portable.arena_bytes = arena;
    bt_engine runs = bt_portable_engine(&portable);
#else
    (void)arena;
    bt_engine runs = bt_canary_engine();
    runs.open = no_engine;
#endif
    bt_core_begin(&core, &platform, &runs);
    for (;;) bt_core_poll(&core);
}
