/* The loaded model: its tensors, timed runs, profile, self-test. */
#include "bt_core.h"

#include "bt_pack.h"

bt_status bt_unload(bt_core *core) {
    if (core->model.loaded) core->model.engine.close(core->model.engine.ctx);
    memset(&core->model, 0, sizeof core->model);
    return BT_OK;
}

static bt_status describe(bt_core *core, bool output, uint32_t count, uint32_t *bytes, bt_writer *out) {
    bt_model *model = &core->model;
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
        bt_tensor tensor;
        memset(&tensor, 0, sizeof tensor);
        if (!model->engine.tensor(model->engine.ctx, output, i, &tensor) || tensor.rank > BT_MAX_RANK)
            return bt_fail(core, BT_BAD_MODEL, "an input or output cannot be described");
        bt_put8(out, tensor.dtype);
        bt_put8(out, (uint8_t)tensor.exponent);
        bt_put8(out, tensor.rank);
        bt_put8(out, 0);
        bt_put32(out, tensor.bytes);
        for (uint32_t axis = 0; axis < tensor.rank; axis++) bt_put32(out, (uint32_t)tensor.dims[axis]);
        bt_put_text(out, tensor.name);
        total += tensor.bytes;
    }
    if (total > UINT32_MAX) return bt_fail(core, BT_BAD_MODEL, "inputs or outputs of 4 GB");
    *bytes = (uint32_t)total;
    return BT_OK;
}

bt_status bt_load(bt_core *core, bt_reader *in, bt_writer *out) {
    bt_model *model = &core->model;
    const bt_platform *platform = core->platform;
    uint8_t slot = bt_get8(in);
    bt_open_options options;
    memset(&options, 0, sizeof options);
    options.multi_core = bt_get8(in) != 0;
    options.param_copy = bt_get8(in) != 0;
    bt_get8(in);
    options.max_internal_bytes = bt_get32(in);
    if (in->bad) return BT_BAD_REQUEST;
    bt_unload(core);
    const uint8_t *data = NULL;
    uint32_t size = 0;
    if (slot == BT_CANARY_SLOT) {
        model->engine = bt_canary_engine();
    } else {
        if (slot >= platform->slot_count || core->slots[slot].state != BT_SLOT_COMMITTED ||
            platform->slots[slot].kind == BT_SLOT_DATA)
            return bt_fail(core, BT_NOT_FOUND, "the slot holds no model");
        model->engine = core->engine;
        data = platform->slots[slot].data;
        size = core->slots[slot].size;
        options.in_flash = platform->slots[slot].kind == BT_SLOT_FLASH;
    }
    bt_memory used;
    memset(&used, 0, sizeof used);
    uint64_t before = platform->clock_ns(platform->ctx);
    bt_status status = model->engine.open(model->engine.ctx, data, size, &options, &used, core->detail);
    uint64_t after = platform->clock_ns(platform->ctx);
    if (status != BT_OK) {
        memset(model, 0, sizeof *model);
        return status;
    }
    model->loaded = true;
    model->slot = slot;
    model->inputs = model->engine.count(model->engine.ctx, false);
    model->outputs = model->engine.count(model->engine.ctx, true);
    bt_put64(out, after - before);
    bt_put32(out, used.internal_bytes);
    bt_put32(out, used.psram_bytes);
    bt_put32(out, used.flash_bytes);
    bt_put16(out, (uint16_t)model->inputs);
    bt_put16(out, (uint16_t)model->outputs);
    if (model->inputs > 64 || model->outputs > 64)
        status = bt_fail(core, BT_BAD_MODEL, "more than 64 inputs or outputs");
    if (status == BT_OK) status = describe(core, false, model->inputs, &model->row_bytes, out);
    if (status == BT_OK) status = describe(core, true, model->outputs, &model->output_bytes, out);
    if (status != BT_OK) bt_unload(core);
    return status;
}

bt_status bt_set_input(bt_core *core, bt_reader *in, bt_writer *out) {
    const bt_platform *platform = core->platform;
    uint32_t offset = bt_get32(in);
    uint32_t size = (uint32_t)bt_left(in);
    const uint8_t *data = bt_take(in, size);
    (void)out;
    if (in->bad || data == NULL) return BT_BAD_REQUEST;
    if (offset > platform->staging_bytes || size > platform->staging_bytes - offset)
        return bt_fail(core, BT_TOO_LARGE, "past the end of the staging area");
    memcpy(platform->staging + offset, data, size);
    return BT_OK;
}

static bt_status feed(bt_core *core, const uint8_t *row) {
    bt_model *model = &core->model;
    for (uint32_t i = 0; i < model->inputs; i++) {
        bt_tensor tensor;
        memset(&tensor, 0, sizeof tensor);
        if (!model->engine.tensor(model->engine.ctx, false, i, &tensor)) return BT_ENGINE_FAILED;
        bt_status status = model->engine.set_input(model->engine.ctx, i, row, tensor.bytes);
        if (status != BT_OK) return bt_fail(core, status, "the engine does not take an input");
        row += tensor.bytes;
    }
    return BT_OK;
}

static bt_status timed(bt_core *core, const uint8_t *row, uint64_t *ns) {
    bt_model *model = &core->model;
    bt_status status = feed(core, row);
    if (status != BT_OK) return status;
    uint64_t before = core->platform->clock_ns(core->platform->ctx);
    status = model->engine.run(model->engine.ctx, NULL, NULL, core->detail);
    *ns = core->platform->clock_ns(core->platform->ctx) - before;
    model->ran = true;
    return status;
}

static bt_status keep_outputs(bt_core *core) {
    bt_model *model = &core->model;
    for (uint32_t i = 0; i < model->outputs; i++) {
        bt_tensor tensor;
        memset(&tensor, 0, sizeof tensor);
        const uint8_t *data = model->engine.output(model->engine.ctx, i);
        if (data == NULL || !model->engine.tensor(model->engine.ctx, true, i, &tensor) ||
            tensor.bytes > core->platform->results_bytes - model->outputs_at - model->outputs_size)
            return bt_fail(core, BT_ENGINE_FAILED, "an output is missing or has grown");
        memcpy(core->platform->results + model->outputs_at + model->outputs_size, data, tensor.bytes);
        model->outputs_size += tensor.bytes;
    }
    return BT_OK;
}

typedef struct run_request {
    uint8_t flags, slot;
    uint32_t first_row, rows, warmup, min_count, max_count;
    uint64_t min_ns, max_ns;
    const uint8_t *data;
} run_request;

static bt_status check_run(bt_core *core, run_request *run) {
    const bt_platform *platform = core->platform;
    const bt_model *model = &core->model;
    uint64_t available = platform->staging_bytes;
    run->data = platform->staging;
    if ((run->flags & BT_RUN_FROM_SLOT) != 0) {
        if (run->slot >= platform->slot_count || core->slots[run->slot].state != BT_SLOT_COMMITTED ||
            platform->slots[run->slot].kind != BT_SLOT_DATA)
            return bt_fail(core, BT_NOT_FOUND, "the slot holds no data");
        run->data = platform->slots[run->slot].data;
        available = core->slots[run->slot].size;
    }
    if (run->rows == 0 || run->max_count == 0 || run->warmup > BT_MAX_WARMUP ||
        ((uint64_t)run->first_row + run->rows) * model->row_bytes > available)
        return bt_fail(core, BT_BAD_DATA, "no rows or no inferences are asked for, or more rows than there are");
    uint64_t each = sizeof(uint64_t) + ((run->flags & BT_RUN_COLLECT) != 0 ? model->output_bytes : 0u);
    if (run->max_count * each > platform->results_bytes)
        return bt_fail(core, BT_TOO_LARGE, "more results than there is room for");
    return BT_OK;
}

static const uint8_t *row_of(const bt_core *core, const run_request *run, uint32_t index) {
    return run->data + (size_t)(run->first_row + index % run->rows) * core->model.row_bytes;
}

bt_status bt_run(bt_core *core, bt_reader *in, bt_writer *out) {
    const bt_platform *platform = core->platform;
    bt_model *model = &core->model;
    run_request run;
    memset(&run, 0, sizeof run);
    run.flags = bt_get8(in);
    run.slot = bt_get8(in);
    bt_get16(in);
    run.first_row = bt_get32(in);
    run.rows = bt_get32(in);
    run.warmup = bt_get32(in);
    run.min_count = bt_get32(in);
    run.max_count = bt_get32(in);
    run.min_ns = bt_get64(in);
    run.max_ns = bt_get64(in);
    if (in->bad) return BT_BAD_REQUEST;
    if (!model->loaded) return bt_fail(core, BT_BAD_STATE, "no model is loaded");
    bt_status status = check_run(core, &run);
    if (status != BT_OK) return status;
    model->times = 0;
    model->profile_size = 0;
    model->outputs_at = run.max_count * (uint32_t)sizeof(uint64_t);
    model->outputs_size = 0;
    uint64_t first_ns = 0, ns = 0;
    if (!model->ran && (status = timed(core, row_of(core, &run, 0), &first_ns)) != BT_OK) return status;
    for (uint32_t i = 0; i < run.warmup; i++) {
        if ((status = timed(core, row_of(core, &run, i), &ns)) != BT_OK) return status;
        bt_progress(core, 0);
    }
    uint64_t before = platform->clock_ns(platform->ctx), after = before;
    do {
        if ((status = timed(core, row_of(core, &run, model->times), &ns)) != BT_OK) return status;
        memcpy(platform->results + model->times * sizeof ns, &ns, sizeof ns);
        model->times++;
        if ((run.flags & BT_RUN_COLLECT) != 0 && (status = keep_outputs(core)) != BT_OK) return status;
        after = platform->clock_ns(platform->ctx);
        bt_progress(core, model->times);
    } while (model->times < run.max_count && after - before < run.max_ns &&
             (model->times < run.min_count || after - before < run.min_ns));
    bt_put32(out, model->times);
    bt_put32(out, model->outputs_size);
    bt_put64(out, first_ns);
    bt_put64(out, before);
    bt_put64(out, after);
    uint32_t inline_times = (uint32_t)((out->size - out->at - 4) / sizeof ns);
    if (inline_times > model->times) inline_times = model->times;
    bt_put32(out, inline_times);
    for (uint32_t i = 0; i < inline_times; i++) {
        memcpy(&ns, platform->results + i * sizeof ns, sizeof ns);
        bt_put64(out, ns);
    }
    return BT_OK;
}

typedef struct profile {
    bt_core *core;
    bt_writer out;
    uint64_t since;
    uint32_t nodes;
} profile;

static void add_node(void *context, uint64_t ns, const char *operator_type, const char *name) {
    profile *found = context;
    size_t begin = found->out.at;
    bt_put64(&found->out, ns);
    bt_put_text(&found->out, operator_type);
    bt_put_text(&found->out, name);
    if (found->out.bad)
        found->out.at = begin; /* no half records */
    else
        found->nodes++;
}

static void after_node(void *context, const char *operator_type, const char *name) {
    profile *found = context;
    uint64_t now = found->core->platform->clock_ns(found->core->platform->ctx);
    add_node(found, now - found->since, operator_type, name);
    bt_progress(found->core, found->nodes);
    found->since = found->core->platform->clock_ns(found->core->platform->ctx);
}

bt_status bt_profile(bt_core *core, bt_writer *out) {
    const bt_platform *platform = core->platform;
    bt_model *model = &core->model;
    if (!model->loaded) return bt_fail(core, BT_BAD_STATE, "no model is loaded");
    if (model->row_bytes > platform->staging_bytes) return bt_fail(core, BT_TOO_LARGE, "a row does not fit");
    bt_status status = feed(core, platform->staging);
    if (status != BT_OK) return status;
    model->times = 0;
    model->outputs_size = 0;
    profile found = {core, bt_write_to(platform->results, platform->results_bytes), 0, 0};
    uint64_t before = platform->clock_ns(platform->ctx);
    found.since = before;
    if (model->engine.profile != NULL)
        status = model->engine.profile(model->engine.ctx, add_node, &found, core->detail);
    else
        status = model->engine.run(model->engine.ctx, after_node, &found, core->detail);
    uint64_t total = platform->clock_ns(platform->ctx) - before;
    model->ran = true;
    if (status != BT_OK) return status;
    if (found.out.bad) return bt_fail(core, BT_TOO_LARGE, "the profile does not fit into the results area");
    model->profile_size = (uint32_t)found.out.at;
    bt_put32(out, found.nodes);
    bt_put32(out, model->profile_size);
    bt_put64(out, total);
    return BT_OK;
}

bt_status bt_self_test(bt_core *core, bt_reader *in, bt_writer *out) {
    bt_model *model = &core->model;
    uint8_t what = bt_get8(in);
    bt_tested tested;
    memset(&tested, 0, sizeof tested);
    if (in->bad) return BT_BAD_REQUEST;
    if (what == 0) {
        tested.passed = bt_canary_is_right();
        tested.checked = 1;
        tested.where = "canary";
    } else {
        if (!model->loaded) return bt_fail(core, BT_BAD_STATE, "no model is loaded");
        if (model->engine.self_test == NULL) return bt_fail(core, BT_NOT_FOUND, "this engine has no self-test");
        bt_status status = model->engine.self_test(model->engine.ctx, &tested, core->detail);
        if (status != BT_OK) return status;
        model->ran = true;
    }
    bt_put8(out, tested.passed);
    bt_put8(out, 0);
    bt_put16(out, 0);
    bt_put32(out, tested.checked);
    bt_put32(out, tested.index);
    bt_put32(out, (uint32_t)tested.expected);
    bt_put32(out, (uint32_t)tested.got);
    bt_put_text(out, tested.where);
    return BT_OK;
}

bt_status bt_read_results(bt_core *core, bt_reader *in, bt_writer *out) {
    const bt_model *model = &core->model;
    uint8_t kind = bt_get8(in);
    bt_get8(in);
    uint32_t length = bt_get16(in), offset = bt_get32(in);
    if (in->bad) return BT_BAD_REQUEST;
    uint32_t at = 0, size = 0;
    if (kind == BT_RESULT_TIMES) {
        size = model->times * (uint32_t)sizeof(uint64_t);
    } else if (kind == BT_RESULT_OUTPUTS) {
        at = model->outputs_at;
        size = model->outputs_size;
    } else if (kind == BT_RESULT_PROFILE) {
        size = model->profile_size;
    }
    if (offset > size || length > size - offset) return bt_fail(core, BT_BAD_DATA, "there is no such result");
    if (length > BT_CHUNK_BYTES) return bt_fail(core, BT_TOO_LARGE, "more than a frame carries");
    bt_put_bytes(out, core->platform->results + at + offset, length);
    return BT_OK;
}
