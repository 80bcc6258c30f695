#include "bt_portable.h"

#include <stdio.h>
#include <string.h>

static bt_status told(const engine_error *error, char *detail) {
    static const bt_status status_of[] = {
        [ENGINE_OK] = BT_OK,
        [ENGINE_BAD_MODEL] = BT_BAD_MODEL,
        [ENGINE_ENCRYPTED] = BT_ENCRYPTED,
        [ENGINE_UNSUPPORTED_OP] = BT_UNSUPPORTED_OPERATOR,
        [ENGINE_NO_MEM] = BT_NO_MEMORY,
        [ENGINE_BAD_ARGUMENT] = BT_BAD_DATA,
        [ENGINE_STOPPED] = BT_ENGINE_FAILED,
        [ENGINE_MISMATCH] = BT_OK,
    };
    if (detail != NULL && error->status != ENGINE_OK) {
        if (error->status == ENGINE_NO_MEM && error->needed_bytes > 0)
            snprintf(detail, BT_DETAIL_BYTES, "%.90s; %lu bytes are needed", error->what,
                     (unsigned long)error->needed_bytes);
        else
            snprintf(detail, BT_DETAIL_BYTES, "%.40s%s%.40s%s%.90s", error->op, error->op[0] ? " " : "", error->where,
                     error->where[0] ? ": " : "", error->what);
    }
    size_t index = (size_t)error->status;
    return index < sizeof status_of / sizeof *status_of ? status_of[index] : BT_ENGINE_FAILED;
}

static bt_status portable_open(void *ctx, const uint8_t *model, uint32_t size, const bt_open_options *options,
                               bt_memory *used, char *detail) {
    bt_portable *self = ctx;
    engine_error error;
    memset(&error, 0, sizeof error);
    self->opened = NULL;
    engine_status status = engine_open(model, size, self->target, ENGINE_DEVICE, self->arena, self->arena_bytes,
                                       &self->opened, &error);
    if (status != ENGINE_OK) {
        self->opened = NULL;
        return told(&error, detail);
    }
    used->psram_bytes = (uint32_t)engine_arena_used(self->opened);
    if (options->in_flash)
        used->flash_bytes = size;
    else
        used->psram_bytes += size;
    return BT_OK;
}

static void portable_close(void *ctx) { ((bt_portable *)ctx)->opened = NULL; }

static uint32_t portable_count(void *ctx, bool output) {
    const engine *opened = ((bt_portable *)ctx)->opened;
    return output ? engine_output_count(opened) : engine_input_count(opened);
}

static bool portable_tensor(void *ctx, bool output, uint32_t index, bt_tensor *tensor) {
    const engine *opened = ((bt_portable *)ctx)->opened;
    engine_tensor found;
    memset(&found, 0, sizeof found);
    engine_status status = output ? engine_output(opened, index, &found) : engine_input(opened, index, &found);
    if (status != ENGINE_OK || found.rank > BT_MAX_RANK || found.size_bytes > UINT32_MAX) return false;
    tensor->name = found.name;
    tensor->dtype = (uint8_t)found.dtype;
    tensor->exponent = (int8_t)found.exponent;
    tensor->rank = (uint8_t)found.rank;
    for (uint32_t axis = 0; axis < found.rank; axis++) tensor->dims[axis] = (int32_t)found.dims[axis];
    tensor->bytes = (uint32_t)found.size_bytes;
    return true;
}

static bt_status portable_set_input(void *ctx, uint32_t index, const uint8_t *data, uint32_t bytes) {
    engine_error error;
    memset(&error, 0, sizeof error);
    return engine_set_input(((bt_portable *)ctx)->opened, index, 0, data, bytes, &error) == ENGINE_OK ? BT_OK : BT_BAD_DATA;
}

static int after_node(void *context, uint32_t index, const char *name, const char *op) {
    bt_portable *self = context;
    (void)index;
    if (self->on_node != NULL) self->on_node(self->context, op, name);
    return 0;
}

static bt_status portable_run(void *ctx, bt_node_callback on_node, void *context, char *detail) {
    bt_portable *self = ctx;
    engine_error error;
    memset(&error, 0, sizeof error);
    self->on_node = on_node;
    self->context = context;
    engine_status status = engine_run(self->opened, on_node != NULL ? after_node : NULL, self, &error);
    return status == ENGINE_OK ? BT_OK : told(&error, detail);
}

static const uint8_t *portable_output(void *ctx, uint32_t index) {
    return engine_output_bytes(((bt_portable *)ctx)->opened, index);
}

static bt_status portable_self_test(void *ctx, bt_tested *tested, char *detail) {
    bt_portable *self = ctx;
    engine_error error;
    memset(&error, 0, sizeof error);
    engine_status status = engine_self_test(self->opened, 1, &tested->checked, &error);
    if (status != ENGINE_OK && status != ENGINE_MISMATCH) return told(&error, detail);
    tested->passed = status == ENGINE_OK;
    tested->index = error.index;
    tested->expected = error.expected;
    tested->got = error.got;
    memcpy(self->where, error.where, sizeof self->where);
    self->where[sizeof self->where - 1] = '\0';
    tested->where = self->where;
    return BT_OK;
}

bt_engine bt_portable_engine(bt_portable *portable) {
    bt_engine made = {portable,
                        "boardtune-espdl",
                        "1",
                        BT_CAP_PROFILE | BT_CAP_MODEL_TEST,
                        portable_open,
                        portable_close,
                        portable_count,
                        portable_tensor,
                        portable_set_input,
                        portable_run,
                        portable_output,
                        portable_self_test,
                        NULL};
    return made;
}
