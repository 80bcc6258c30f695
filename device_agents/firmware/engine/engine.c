/* Opening, memory, running, self-test. */
#include "internal.h"

#define ALIGNMENT 16u
#define HEADER_BYTES 16u

static engine_status done(engine_error *error)
{
    memset(error, 0, sizeof *error);
    return ENGINE_OK;
}

static engine_status refuse(engine_error *error, engine_status status, const char *what)
{
    fail(error, status, "", "", what);
    return status;
}

static bool content_of(const uint8_t *model, size_t size, buffer *b, engine_error *error)
{
    b->error = error;
    if (model == NULL || size < HEADER_BYTES) {
        return fail(error, ENGINE_BAD_MODEL, "", "header", "fewer bytes than a header has");
    }
    if (memcmp(model, "PDL", 3) == 0) {
        return fail(error, ENGINE_BAD_MODEL, "", "header", "a pack of models, not one model");
    }
    if (memcmp(model, "EDL2", 4) != 0) {
        return fail(error, ENGINE_BAD_MODEL, "", "header", "not an .espdl: it does not begin with EDL2");
    }
    uint32_t encrypted = read_u32(model + 4), length = read_u32(model + 8);
    if (encrypted == 1) {
        return fail(error, ENGINE_ENCRYPTED, "", "header", "the model is encrypted");
    }
    if (encrypted != 0 || length > size - HEADER_BYTES || length > INT32_MAX) {
        return fail(error, ENGINE_BAD_MODEL, "", "header", "a length past the end, or a mode that is none");
    }
    b->bytes = model + HEADER_BYTES;
    b->size = length;
    b->tables_left = length / 2 + 1024;
    return true;
}

typedef struct {
    uint8_t *base;
    uint64_t used, size;
} arena;

/* NULL when there is no room; `used` grows all the same, so that it ends as what is needed. */
static void *take(arena *a, uint64_t bytes)
{
    uint64_t at = a->used;
    a->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return a->used <= a->size ? a->base + at : NULL;
}

static bool too_small(const arena *a, engine_error *error)
{
    fail(error, ENGINE_NO_MEM, "", "", "the arena is too small");
    error->needed_bytes = (size_t)(a->used + ALIGNMENT - 1);
    return false;
}

static void mark_uses(engine *e)
{
    for (uint32_t i = 0; i < e->node_count; i++) {
        const node *n = &e->nodes[i];
        for (uint32_t k = 0; k < n->input_count + n->output_count; k++) {
            uint32_t link = e->links[n->first_input + k];
            if (link != NONE) {
                e->tensors[link].last_use = i;
            }
        }
    }
    for (uint32_t i = 0; i < e->input_count; i++) {
        e->tensors[e->inputs[i]].last_use = NONE;
    }
    for (uint32_t i = 0; i < e->output_count; i++) {
        e->tensors[e->outputs[i]].last_use = NONE;
    }
}

typedef struct {
    uint32_t *live; /* tensors that hold memory, by their place */
    uint32_t count;
    uint64_t peak;
} plan;

static uint64_t bytes_of(const tensor *t) { return ((uint64_t)t->count * dtype_bytes(t->dtype) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* The first gap that is wide enough. */
static bool give_place(engine *e, plan *p, uint32_t which)
{
    tensor *t = &e->tensors[which];
    uint64_t at = 0, size = bytes_of(t);
    uint32_t slot = 0;
    for (; slot < p->count; slot++) {
        const tensor *other = &e->tensors[p->live[slot]];
        if (at + size <= other->data) {
            break;
        }
        uint64_t end = other->data + bytes_of(other);
        at = end > at ? end : at;
    }
    if (at + size > INT32_MAX) {
        return fail(e->model.error, ENGINE_NO_MEM, "", t->name, "activations of more than 2 GiB");
    }
    memmove(p->live + slot + 1, p->live + slot, (p->count - slot) * sizeof *p->live);
    p->live[slot] = which;
    p->count++;
    t->data = (uint32_t)at;
    p->peak = at + size > p->peak ? at + size : p->peak;
    return true;
}

static void release(engine *e, plan *p, uint32_t now)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (e->tensors[p->live[i]].last_use != now) {
            p->live[kept++] = p->live[i];
        }
    }
    p->count = kept;
}

static bool plan_memory(engine *e, plan *p)
{
    mark_uses(e);
    for (uint32_t i = 0; i < e->input_count; i++) {
        if (e->tensors[e->inputs[i]].data == NONE && !give_place(e, p, e->inputs[i])) {
            return false;
        }
    }
    for (uint32_t i = 0; i < e->node_count; i++) {
        for (uint32_t k = 0; k < e->nodes[i].output_count; k++) {
            if (!give_place(e, p, e->links[e->nodes[i].first_output + k])) {
                return false;
            }
        }
        release(e, p, i);
    }
    return true;
}

static bool prepare_all(engine *e)
{
    for (uint32_t i = 0; i < e->node_count; i++) {
        node *n = &e->nodes[i];
        bool several = strcmp(n->op, "Split") == 0;
        if (!several && n->output_count != 1) {
            return node_unsupported(e, n, "more outputs than one");
        }
        if (!prepare_node(e, n)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < e->output_count; i++) {
        const tensor *t = &e->tensors[e->outputs[i]];
        if (t->constant || !t->made) {
            return fail(e->model.error, ENGINE_BAD_MODEL, "", t->name, "an output that no node makes");
        }
    }
    return true;
}

static bool open_into(const uint8_t *model, size_t size, engine_target target, engine_semantics semantics, arena *a, engine **opened, engine_error *error)
{
    buffer b;
    table graph;
    uint32_t tensors, nodes, links, in, out;
    if (!content_of(model, size, &b, error) || !model_counts(&b, &graph, &tensors, &nodes, &links, &in, &out)) {
        return false;
    }
    engine *e = take(a, sizeof *e);
    tensor *all = take(a, (uint64_t)tensors * sizeof *all);
    node *steps = take(a, (uint64_t)nodes * sizeof *steps);
    uint32_t *joined = take(a, (uint64_t)links * sizeof *joined), *first = take(a, (uint64_t)in * sizeof *first);
    uint32_t *last = take(a, (uint64_t)out * sizeof *last), *live = take(a, ((uint64_t)tensors + 1) * sizeof *live);
    if (live == NULL) {
        return too_small(a, error);
    }
    memset(e, 0, sizeof *e);
    e->model = b;
    e->target = target;
    e->semantics = semantics;
    e->tensors = all;
    e->nodes = steps;
    e->node_count = nodes;
    e->links = joined;
    e->inputs = first;
    e->outputs = last;
    e->input_count = in;
    e->output_count = out;
    plan p = {live, 0, 0};
    if (!model_fill(e, &graph) || !prepare_all(e) || !plan_memory(e, &p)) {
        return false;
    }
    e->activation_bytes = (uint32_t)p.peak;
    e->activations = take(a, p.peak);
    if (e->activations == NULL) {
        return too_small(a, error);
    }
    memset(e->activations, 0, (size_t)p.peak);
    e->arena_used = (size_t)a->used;
    *opened = e;
    return true;
}

engine_status engine_open(const uint8_t *model, size_t model_size, engine_target target, engine_semantics semantics,
                          void *memory, size_t memory_size, engine **opened, engine_error *error)
{
    uintptr_t skew = (uintptr_t)memory % ALIGNMENT, skip = skew == 0 ? 0 : ALIGNMENT - skew;
    arena a = {(uint8_t *)memory + skip, 0, memory_size > skip ? memory_size - skip : 0};
    *opened = NULL;
    done(error);
    if (memory == NULL || target > ENGINE_TARGET_P4 || semantics > ENGINE_REFERENCE) {
        return refuse(error, ENGINE_BAD_ARGUMENT, "no arena, or an unknown target or semantics");
    }
    open_into(model, model_size, target, semantics, &a, opened, error);
    return error->status;
}

uint32_t engine_input_count(const engine *opened) { return opened->input_count; }

uint32_t engine_output_count(const engine *opened) { return opened->output_count; }

uint32_t engine_node_count(const engine *opened) { return opened->node_count; }

static engine_status describe(const engine *e, const uint32_t *list, uint32_t count, uint32_t index, engine_tensor *out)
{
    if (index >= count) {
        return ENGINE_BAD_ARGUMENT;
    }
    const tensor *t = &e->tensors[list[index]];
    memset(out, 0, sizeof *out);
    out->name = t->name;
    out->dtype = (engine_dtype)t->dtype;
    out->rank = t->rank;
    for (uint32_t i = 0; i < t->rank; i++) {
        out->dims[i] = t->dims[i];
    }
    out->exponent = value_bits(t) == 0 ? 0 : t->exponent;
    out->size_bytes = (size_t)t->count * dtype_bytes(t->dtype);
    return ENGINE_OK;
}

engine_status engine_input(const engine *opened, uint32_t index, engine_tensor *tensor_out)
{
    return describe(opened, opened->inputs, opened->input_count, index, tensor_out);
}

engine_status engine_output(const engine *opened, uint32_t index, engine_tensor *tensor_out)
{
    return describe(opened, opened->outputs, opened->output_count, index, tensor_out);
}

static int32_t find_named(const engine *e, const uint32_t *list, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(e->tensors[list[i]].name, name) == 0) {
            return (int32_t)i;
        }
    }
    return -1;
}

int32_t engine_find_input(const engine *opened, const char *name) { return find_named(opened, opened->inputs, opened->input_count, name); }

int32_t engine_find_output(const engine *opened, const char *name) { return find_named(opened, opened->outputs, opened->output_count, name); }

const char *engine_node_name(const engine *opened, uint32_t index) { return index < opened->node_count ? opened->nodes[index].name : NULL; }

const char *engine_node_op(const engine *opened, uint32_t index) { return index < opened->node_count ? opened->nodes[index].op : NULL; }

size_t engine_arena_used(const engine *opened) { return opened->arena_used; }

size_t engine_activation_bytes(const engine *opened) { return opened->activation_bytes; }

engine_status engine_set_input(engine *opened, uint32_t index, size_t offset, const void *bytes, size_t size, engine_error *error)
{
    engine_tensor t;
    done(error);
    if (engine_input(opened, index, &t) != ENGINE_OK) {
        return refuse(error, ENGINE_BAD_ARGUMENT, "no such input");
    }
    if (offset > t.size_bytes || size > t.size_bytes - offset) {
        fail(error, ENGINE_BAD_ARGUMENT, "", t.name, "bytes past the end of the input");
        return ENGINE_BAD_ARGUMENT;
    }
    if (size > 0) {
        memcpy(activation_bytes(opened, &opened->tensors[opened->inputs[index]]) + offset, bytes, size);
    }
    return ENGINE_OK;
}

void run_node(engine *e, const node *n)
{
    switch (n->kind) {
    case KIND_CONV: run_filter(e, n); break;
    case KIND_MATMUL: run_matmul(e, n); break;
    case KIND_SUM: case KIND_MUL: run_binary(e, n); break;
    case KIND_SOFTMAX: run_softmax(e, n); break;
    case KIND_MAXPOOL: case KIND_AVERAGE: case KIND_MEAN: run_pool(e, n); break;
    case KIND_RESIZE: run_resize(e, n); break;
    case KIND_CONCAT: case KIND_SPLIT: case KIND_STRIDED: case KIND_PAD: case KIND_GATHER: case KIND_INSERT_ZEROS: case KIND_COPY: run_move(e, n); break;
    default: run_function(e, n);
    }
}

engine_status engine_run(engine *opened, engine_node_callback callback, void *context, engine_error *error)
{
    done(error);
    opened->model.error = error;
    opened->ran = false;
    for (uint32_t i = 0; i < opened->node_count; i++) {
        const node *n = &opened->nodes[i];
        run_node(opened, n);
        if (callback != NULL && callback(context, i, n->name, n->op) != 0) {
            fail(error, ENGINE_STOPPED, n->op, n->name, "stopped after this node");
            return ENGINE_STOPPED;
        }
    }
    opened->ran = true;
    return ENGINE_OK;
}

const void *engine_output_bytes(const engine *opened, uint32_t index)
{
    if (index >= opened->output_count || !opened->ran) {
        return NULL;
    }
    return activation_bytes(opened, &opened->tensors[opened->outputs[index]]);
}

const char *engine_status_text(engine_status status)
{
    static const char *const texts[] = {"ok", "bad model", "encrypted", "unsupported operator", "out of memory", "bad argument", "stopped", "mismatch"};
    return (uint32_t)status < sizeof texts / sizeof *texts ? texts[status] : "unknown";
}
