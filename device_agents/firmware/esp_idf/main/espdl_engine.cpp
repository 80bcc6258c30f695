#include "espdl_engine.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "dl_model_base.hpp"
#include "esp_heap_caps.h"
#include "esp_log.h"

namespace {

dl::Model *model = nullptr;
bool multi_core = false;
std::vector<std::pair<std::string, dl::TensorBase *>> inputs, outputs;

/* esp-dl tells of unsupported operators in its log only ("Do not support X"). */
char unsupported[BT_DETAIL_BYTES];
vprintf_like_t log_before = nullptr;

int listen(const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    char line[BT_DETAIL_BYTES];
    vsnprintf(line, sizeof line, format, again);
    va_end(again);
    if (const char *found = strstr(line, "Do not support")) {
        snprintf(unsupported, sizeof unsupported, "%s", found);
        unsupported[strcspn(unsupported, "\r\n\033")] = '\0';
    }
    return log_before != nullptr ? log_before(format, arguments) : 0;
}

void close_model(void *) {
    delete model;
    model = nullptr;
    inputs.clear();
    outputs.clear();
}

/* create_fbs_model() asserts on what is no model, so the header is looked at first. */
bt_status check_header(const uint8_t *data, uint32_t size, char *detail) {
    uint32_t encrypted = 0, length = 0;
    if (size < 16 || memcmp(data, "EDL2", 4) != 0) {
        snprintf(detail, BT_DETAIL_BYTES, "not an .espdl file (EDL2)");
        return BT_BAD_MODEL;
    }
    memcpy(&encrypted, data + 4, sizeof encrypted);
    memcpy(&length, data + 8, sizeof length);
    if (encrypted != 0) return BT_ENCRYPTED;
    if (length > size - 16) {
        snprintf(detail, BT_DETAIL_BYTES, "the model is cut short: %lu of %lu bytes",
                 static_cast<unsigned long>(size - 16), static_cast<unsigned long>(length));
        return BT_BAD_MODEL;
    }
    return BT_OK;
}

bt_status open_model(void *, const uint8_t *data, uint32_t size, const bt_open_options *options, bt_memory *used,
                     char *detail) {
    if (bt_status status = check_header(data, size, detail); status != BT_OK) return status;
    unsupported[0] = '\0';
    log_before = esp_log_set_vprintf(listen);
    model = new dl::Model(reinterpret_cast<const char *>(data), fbs::MODEL_LOCATION_IN_FLASH_RODATA,
                          static_cast<int>(options->max_internal_bytes), dl::MEMORY_MANAGER_GREEDY, nullptr,
                          options->param_copy);
    esp_log_set_vprintf(log_before);
    if (model->get_fbs_model() == nullptr || model->get_inputs().empty() || model->get_outputs().empty()) {
        close_model(nullptr);
        if (unsupported[0] != '\0') {
            snprintf(detail, BT_DETAIL_BYTES, "%s", unsupported);
            return BT_UNSUPPORTED_OPERATOR;
        }
        size_t largest = heap_caps_get_largest_free_block(MALLOC_CAP_SPIRAM);
        snprintf(detail, BT_DETAIL_BYTES, "esp-dl could not build it; the largest free block has %lu bytes",
                 static_cast<unsigned long>(largest));
        return largest < size ? BT_NO_MEMORY : BT_BAD_MODEL;
    }
    multi_core = options->multi_core;
    for (auto &[name, tensor] : model->get_inputs()) inputs.emplace_back(name, tensor);
    for (auto &[name, tensor] : model->get_outputs()) outputs.emplace_back(name, tensor);
    auto memory = model->get_memory_info();
    used->internal_bytes = static_cast<uint32_t>(memory["total"].internal);
    used->psram_bytes = static_cast<uint32_t>(memory["total"].psram);
    used->flash_bytes = static_cast<uint32_t>(memory["total"].flash);
    return BT_OK;
}

auto &tensors(bool output) { return output ? outputs : inputs; }

uint32_t count(void *, bool output) { return static_cast<uint32_t>(tensors(output).size()); }

bool describe(void *, bool output, uint32_t index, bt_tensor *found) {
    if (index >= tensors(output).size()) return false;
    auto &[name, tensor] = tensors(output)[index];
    std::vector<int> shape = tensor->get_shape();
    if (shape.size() > BT_MAX_RANK) return false;
    found->name = name.c_str();
    found->dtype = static_cast<uint8_t>(tensor->get_dtype());
    found->exponent = static_cast<int8_t>(tensor->get_exponent());
    found->rank = static_cast<uint8_t>(shape.size());
    for (size_t axis = 0; axis < shape.size(); axis++) found->dims[axis] = shape[axis];
    found->bytes = static_cast<uint32_t>(tensor->get_bytes());
    return true;
}

bt_status set_input(void *, uint32_t index, const uint8_t *data, uint32_t bytes) {
    if (index >= inputs.size() || bytes != static_cast<uint32_t>(inputs[index].second->get_bytes())) return BT_BAD_DATA;
    memcpy(inputs[index].second->get_element_ptr(), data, bytes);
    return BT_OK;
}

bt_status run(void *, bt_node_callback, void *, char *) {
    model->run(multi_core ? dl::RUNTIME_MODE_MULTI_CORE : dl::RUNTIME_MODE_SINGLE_CORE);
    return BT_OK;
}

const uint8_t *output(void *, uint32_t index) {
    return index < outputs.size() ? static_cast<const uint8_t *>(outputs[index].second->get_element_ptr()) : nullptr;
}

bt_status self_test(void *, bt_tested *tested, char *) {
    tested->passed = model->test() == ESP_OK;
    tested->checked = 1;
    tested->where = tested->passed ? "" : "see the log: esp-dl names the tensor there";
    return BT_OK;
}

/* One run on one core, in no particular order: what esp-dl offers. */
bt_status profile(void *, void (*node)(void *, uint64_t, const char *, const char *), void *context, char *) {
    for (auto &[name, info] : model->get_module_info())
        if (name != "total") node(context, static_cast<uint64_t>(info.latency) * 1000u, info.type.c_str(), name.c_str());
    return BT_OK;
}

} // namespace

bt_engine espdl_engine() {
    bt_engine engine = {};
    engine.name = "esp-dl";
    engine.version = "3.3.9";
    engine.caps = BT_CAP_PROFILE | BT_CAP_MODEL_TEST | BT_CAP_MULTI_CORE;
    engine.open = open_model;
    engine.close = close_model;
    engine.count = count;
    engine.tensor = describe;
    engine.set_input = set_input;
    engine.run = run;
    engine.output = output;
    engine.self_test = self_test;
    engine.profile = profile;
    return engine;
}
