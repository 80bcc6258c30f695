/* The ESP-IDF glue: line, clock, slots. All that decides anything is in ../../core. */
#include <cstring>

extern "C" {
#include "bt_core.h"
}
#include "esp_chip_info.h"
#include "esp_flash.h"
#include "esp_heap_caps.h"
#include "esp_idf_version.h"
#include "esp_mac.h"
#include "esp_partition.h"
#include "esp_random.h"
#include "esp_system.h"
#include "esp_timer.h"
#include "espdl_engine.h"
#include "freertos/FreeRTOS.h"
#include "freertos/task.h"
#include "sdkconfig.h"
#if CONFIG_BOARDTUNE_LINE_USB_JTAG
#include "driver/usb_serial_jtag.h"
#else
#include "driver/uart.h"
#endif

namespace {

constexpr int RX_BUFFER = 32768, TX_BUFFER = 8192;
constexpr uint32_t SECTOR = 4096, STAGING = 256 * 1024, RESULTS = 256 * 1024, LABEL_MAGIC = 0x62746c31;
constexpr uint32_t FLASH_SLOT = 2;

bt_core core;
bt_platform platform;
const esp_partition_t *partition = nullptr;

struct label {
    uint32_t magic, size;
    uint8_t sha256[32];
};

#if CONFIG_BOARDTUNE_LINE_USB_JTAG
void line_begin() {
    usb_serial_jtag_driver_config_t config = {};
    config.rx_buffer_size = RX_BUFFER;
    config.tx_buffer_size = TX_BUFFER;
    ESP_ERROR_CHECK(usb_serial_jtag_driver_install(&config));
}
size_t line_read(void *, uint8_t *data, size_t size) {
    int came = usb_serial_jtag_read_bytes(data, size, pdMS_TO_TICKS(5));
    return came > 0 ? static_cast<size_t>(came) : 0;
}
/* The driver drops bytes when nobody reads (esp-idf#11192): what is left is tried again. */
void line_write(void *, const uint8_t *data, size_t size) {
    while (size > 0) {
        int wrote = usb_serial_jtag_write_bytes(data, size, pdMS_TO_TICKS(100));
        if (wrote <= 0) return;
        data += wrote;
        size -= static_cast<size_t>(wrote);
    }
}
void line_drain(void *) { usb_serial_jtag_wait_tx_done(pdMS_TO_TICKS(200)); }
bool line_baud(void *, uint32_t) { return false; }
constexpr uint32_t LINE_CAPS = 0;
#else
constexpr uart_port_t LINE = UART_NUM_0;
void line_begin() {
    ESP_ERROR_CHECK(uart_driver_install(LINE, RX_BUFFER, TX_BUFFER, 0, nullptr, 0));
    ESP_ERROR_CHECK(uart_set_baudrate(LINE, 115200));
}
size_t line_read(void *, uint8_t *data, size_t size) {
    size_t waiting = 0;
    uart_get_buffered_data_len(LINE, &waiting);
    if (waiting > size) waiting = size;
    int came = uart_read_bytes(LINE, data, waiting > 0 ? waiting : 1, pdMS_TO_TICKS(5));
    return came > 0 ? static_cast<size_t>(came) : 0;
}
void line_write(void *, const uint8_t *data, size_t size) { uart_write_bytes(LINE, data, size); }
void line_drain(void *) { uart_wait_tx_done(LINE, pdMS_TO_TICKS(200)); }
bool line_baud(void *, uint32_t baud) { return uart_set_baudrate(LINE, baud) == ESP_OK; }
constexpr uint32_t LINE_CAPS = BT_CAP_SET_BAUD;
#endif

uint64_t clock_ns(void *) { return static_cast<uint64_t>(esp_timer_get_time()) * 1000u; }

void reset(void *) { esp_restart(); }

void sensors(void *, bt_sensors *found) {
    found->temperature_centi_c = BT_NO_TEMPERATURE;
    found->cpu_hz = platform.facts.cpu_hz;
    found->free_bytes = static_cast<uint32_t>(heap_caps_get_free_size(MALLOC_CAP_INTERNAL));
    found->largest_block_bytes = static_cast<uint32_t>(heap_caps_get_largest_free_block(MALLOC_CAP_INTERNAL));
    found->free_psram_bytes = static_cast<uint32_t>(heap_caps_get_free_size(MALLOC_CAP_SPIRAM));
}

bool slot_erase(void *, uint32_t slot, uint32_t size) {
    if (slot != FLASH_SLOT) return true;
    return esp_partition_erase_range(partition, 0, (size + SECTOR - 1) / SECTOR * SECTOR) == ESP_OK;
}

bool slot_write(void *, uint32_t slot, uint32_t offset, const uint8_t *data, uint32_t size) {
    if (slot == FLASH_SLOT) return esp_partition_write(partition, offset, data, size) == ESP_OK;
    memcpy(const_cast<uint8_t *>(platform.slots[slot].data) + offset, data, size);
    return true;
}

/* In the partition's last sector. */
bool label_write(void *, uint32_t slot, uint32_t size, const uint8_t sha256[32]) {
    if (slot != FLASH_SLOT) return true;
    size_t at = partition->size - SECTOR;
    if (esp_partition_erase_range(partition, at, SECTOR) != ESP_OK) return false;
    if (size == 0) return true;
    label written = {LABEL_MAGIC, size, {}};
    memcpy(written.sha256, sha256, sizeof written.sha256);
    return esp_partition_write(partition, at, &written, sizeof written) == ESP_OK;
}

bool label_read(void *, uint32_t slot, uint32_t *size, uint8_t sha256[32]) {
    label found = {};
    if (slot != FLASH_SLOT || esp_partition_read(partition, partition->size - SECTOR, &found, sizeof found) != ESP_OK)
        return false;
    if (found.magic != LABEL_MAGIC || found.size > partition->size - SECTOR) return false;
    *size = found.size;
    memcpy(sha256, found.sha256, sizeof found.sha256);
    return true;
}

/* 16 bytes: from such a place esp-dl reads parameters without copying them. */
uint8_t *memory(size_t size) {
    void *found = heap_caps_aligned_alloc(16, size, MALLOC_CAP_SPIRAM);
    if (found == nullptr) found = heap_caps_aligned_alloc(16, size, MALLOC_CAP_8BIT);
    return static_cast<uint8_t *>(found);
}

void add_slot(uint8_t kind, uint32_t size) {
    uint8_t *area = size > 0 ? memory(size) : nullptr;
    bt_slot_area &slot = platform.slots[platform.slot_count++];
    slot.kind = kind;
    slot.capacity = area != nullptr ? size : 0;
    slot.data = area;
}

/* Two fifths of the PSRAM for models as they are sent, a tenth for samples; the rest is esp-dl's. */
void make_slots() {
    uint32_t psram = static_cast<uint32_t>(heap_caps_get_free_size(MALLOC_CAP_SPIRAM));
    uint32_t each = psram / 5 / SECTOR * SECTOR;
    add_slot(BT_SLOT_PSRAM, each);
    add_slot(BT_SLOT_PSRAM, each);
    add_slot(BT_SLOT_FLASH, 0);
    partition = esp_partition_find_first(ESP_PARTITION_TYPE_DATA, ESP_PARTITION_SUBTYPE_ANY, "model");
    const void *mapped = nullptr;
    esp_partition_mmap_handle_t handle = 0;
    if (partition != nullptr && partition->size > SECTOR &&
        esp_partition_mmap(partition, 0, partition->size, ESP_PARTITION_MMAP_DATA, &mapped, &handle) == ESP_OK) {
        platform.slots[FLASH_SLOT].data = static_cast<const uint8_t *>(mapped);
        platform.slots[FLASH_SLOT].capacity = partition->size - SECTOR;
        platform.label_write = label_write;
        platform.label_read = label_read;
    }
    add_slot(BT_SLOT_DATA, psram / 10 / SECTOR * SECTOR);
}

void learn_facts() {
    esp_chip_info_t chip = {};
    esp_chip_info(&chip);
    bt_facts &facts = platform.facts;
    facts.target = CONFIG_IDF_TARGET;
    facts.firmware = "1.0.0";
    facts.build = CONFIG_BOARDTUNE_BUILD;
    facts.system = esp_get_idf_version();
    facts.cpu = CONFIG_IDF_TARGET;
    facts.cores = chip.cores;
    facts.chip_revision = chip.revision;
    facts.reset_reason = static_cast<uint8_t>(esp_reset_reason());
    facts.caps = LINE_CAPS;
    facts.max_baud = 3000000;
    facts.cpu_hz = CONFIG_ESP_DEFAULT_CPU_FREQ_MHZ * 1000000u;
    facts.psram_bytes = static_cast<uint32_t>(heap_caps_get_total_size(MALLOC_CAP_SPIRAM));
    esp_flash_get_size(nullptr, &facts.flash_bytes);
    esp_efuse_mac_get_default(facts.mac);
    esp_fill_random(&platform.boot_id, sizeof platform.boot_id);
    platform.boot_id |= 1;
}

} // namespace

extern "C" void app_main(void) {
    line_begin();
    learn_facts();
    make_slots();
    platform.baud = 115200;
    platform.read = line_read;
    platform.write = line_write;
    platform.drain = line_drain;
    platform.clock_ns = clock_ns;
    platform.set_baud = line_baud;
    platform.reset = reset;
    platform.reading = sensors;
    platform.slot_erase = slot_erase;
    platform.slot_write = slot_write;
    platform.staging = memory(STAGING);
    platform.staging_bytes = platform.staging != nullptr ? STAGING : 0;
    platform.results = memory(RESULTS);
    platform.results_bytes = platform.results != nullptr ? RESULTS : 0;
    bt_engine engine = espdl_engine();
    bt_core_begin(&core, &platform, &engine);
    for (;;)
        if (bt_core_poll(&core) == 0) vTaskDelay(1);
}
