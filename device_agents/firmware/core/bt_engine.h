/* What executes a model, as the core sees it: esp-dl, the portable engine, or the canary. */
#ifndef BT_ENGINE_H
#define BT_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bt_wire.h"

#define BT_MAX_RANK 8u
#define BT_DETAIL_BYTES 200u

typedef struct bt_tensor {
    const char *name;
    uint8_t dtype; /* onnx.TensorProto.DataType */
    int8_t exponent;
    uint8_t rank;
    int32_t dims[BT_MAX_RANK];
    uint32_t bytes;
} bt_tensor;

typedef struct bt_open_options {
    bool multi_core;
    bool param_copy;
    uint32_t max_internal_bytes;
    bool in_flash; /* where the model's bytes are */
} bt_open_options;

typedef struct bt_memory {
    uint32_t internal_bytes, psram_bytes, flash_bytes;
} bt_memory;

typedef struct bt_tested {
    bool passed;
    uint32_t checked, index;
    int32_t expected, got;
    const char *where;
} bt_tested;

/* Called after every node, in order; the core reads the clock. */
typedef void (*bt_node_callback)(void *context, const char *operator_type, const char *name);

/* `detail` takes a sentence about a failure, at most BT_DETAIL_BYTES with its NUL. One model is open at a time. */
typedef struct bt_engine {
    void *ctx;
    const char *name, *version;
    uint32_t caps; /* of bt_caps: PROFILE, MULTI_CORE, MODEL_TEST */
    bt_status (*open)(void *ctx, const uint8_t *model, uint32_t size, const bt_open_options *options, bt_memory *used,
                      char *detail);
    void (*close)(void *ctx);
    uint32_t (*count)(void *ctx, bool output);
    bool (*tensor)(void *ctx, bool output, uint32_t index, bt_tensor *tensor);
    bt_status (*set_input)(void *ctx, uint32_t index, const uint8_t *data, uint32_t bytes);
    /* `on_node` may be NULL; an engine that cannot call it between nodes has `profile` instead. */
    bt_status (*run)(void *ctx, bt_node_callback on_node, void *context, char *detail);
    const uint8_t *(*output)(void *ctx, uint32_t index);
    bt_status (*self_test)(void *ctx, bt_tested *tested, char *detail);
    /* Optional: fills times per node by itself (esp-dl's get_module_info). Calls `node` for each. */
    bt_status (*profile)(void *ctx, void (*node)(void *context, uint64_t ns, const char *operator_type, const char *name),
                         void *context, char *detail);
} bt_engine;

/* The canary: a fixed int8 convolution that every build contains. */
extern const uint8_t bt_canary_sha256[BT_SHA256_BYTES];
bt_engine bt_canary_engine(void);
/* Whether it computes what it must: a test of processor, compiler and memory. */
bool bt_canary_is_right(void);

#endif
