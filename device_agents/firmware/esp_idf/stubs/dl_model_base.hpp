/* See README.md. */
#pragma once
#include <map>
#include <string>
#include <vector>

#include "idf.h"

namespace fbs {
class FbsModel;
typedef enum { MODEL_LOCATION_IN_FLASH_RODATA, MODEL_LOCATION_IN_FLASH_PARTITION, MODEL_LOCATION_IN_SDCARD } model_location_type_t;
} // namespace fbs

namespace dl {
typedef enum { DATA_TYPE_FLOAT = 1, DATA_TYPE_INT8 = 3, DATA_TYPE_INT16 = 5 } dtype_t;
typedef enum { RUNTIME_MODE_AUTO = 0, RUNTIME_MODE_SINGLE_CORE = 1, RUNTIME_MODE_MULTI_CORE = 2 } runtime_mode_t;
typedef enum { MEMORY_MANAGER_GREEDY = 0, LINEAR_MEMORY_MANAGER = 1 } memory_manager_t;
struct mem_info_t { size_t internal, psram, flash; };
struct module_info { std::string type; uint32_t latency; };
class TensorBase {
public:
    int get_bytes();
    virtual void *get_element_ptr();
    std::vector<int> get_shape();
    int get_exponent();
    dtype_t get_dtype();
};
class Model {
public:
    Model(const char *rodata_address_or_partition_label_or_path,
          fbs::model_location_type_t location = fbs::MODEL_LOCATION_IN_FLASH_RODATA, int max_internal_size = 0,
          memory_manager_t mm_type = MEMORY_MANAGER_GREEDY, const uint8_t *key = nullptr, bool param_copy = true);
    Model(const char *rodata_address_or_partition_label_or_path, int model_index,
          fbs::model_location_type_t location = fbs::MODEL_LOCATION_IN_FLASH_RODATA, int max_internal_size = 0,
          memory_manager_t mm_type = MEMORY_MANAGER_GREEDY, const uint8_t *key = nullptr, bool param_copy = true);
    virtual ~Model();
    virtual void run(runtime_mode_t mode = RUNTIME_MODE_SINGLE_CORE);
    virtual std::map<std::string, TensorBase *> &get_inputs();
    virtual std::map<std::string, TensorBase *> &get_outputs();
    virtual fbs::FbsModel *get_fbs_model();
    esp_err_t test();
    std::map<std::string, mem_info_t> get_memory_info();
    std::map<std::string, module_info> get_module_info();
};
} // namespace dl
