/* From the flatbuffer to tables of tensors and nodes in the arena. Field numbers are those of esp-dl's espdl.fbs. */
#include "internal.h"

enum { MODEL_GRAPH = 7 };
enum { GRAPH_NODE = 0, GRAPH_INITIALIZER = 2, GRAPH_INPUT = 4, GRAPH_OUTPUT = 5, GRAPH_VALUE_INFO = 6, GRAPH_TEST_INPUTS = 8, GRAPH_TEST_OUTPUTS = 9 };
enum { NODE_INPUT = 0, NODE_OUTPUT = 1, NODE_NAME = 2, NODE_OP = 3 };
enum { TENSOR_DIMS = 0, TENSOR_TYPE = 1, TENSOR_NAME = 6, TENSOR_DOC = 7, TENSOR_RAW = 8, TENSOR_EXPONENTS = 13 };
enum { VALUE_NAME = 0, VALUE_TYPE = 1, VALUE_EXPONENTS = 3 };
enum { MAX_TENSORS = 16384, MAX_NODES = 8192, MAX_LINKS = 65536 };

static bool graph_of(buffer *b, table *graph)
{
    table root;
    bool found;
    if (!fb_root(b, &root) || !fb_child(b, &root, MODEL_GRAPH, "model.graph", graph, &found)) {
        return false;
    }
    return found || fail(b->error, ENGINE_BAD_MODEL, "", "model.graph", "missing");
}

bool model_counts(buffer *b, table *graph, uint32_t *tensors, uint32_t *nodes, uint32_t *links, uint32_t *in, uint32_t *out)
{
    vector v, values, inputs, outputs, all;
    if (!graph_of(b, graph) || !fb_vector(b, graph, GRAPH_INITIALIZER, 4, "initializer", &v) ||
        !fb_vector(b, graph, GRAPH_VALUE_INFO, 4, "value_info", &values) ||
        !fb_vector(b, graph, GRAPH_INPUT, 4, "input", &inputs) || !fb_vector(b, graph, GRAPH_OUTPUT, 4, "output", &outputs) ||
        !fb_vector(b, graph, GRAPH_NODE, 4, "node", &all)) {
        return false;
    }
    uint64_t total = (uint64_t)v.count + values.count + inputs.count + outputs.count;
    if (total > MAX_TENSORS || all.count > MAX_NODES) {
        return fail(b->error, ENGINE_BAD_MODEL, "", "model.graph", "more than 16384 tensors or 8192 nodes");
    }
    *tensors = (uint32_t)total;
    *nodes = all.count;
    *in = inputs.count;
    *out = outputs.count;
    *links = 0;
    for (uint32_t i = 0; i < all.count; i++) {
        table t;
        vector taken, made;
        if (!fb_element(b, &all, i, "node", &t) || !fb_vector(b, &t, NODE_INPUT, 4, "node.input", &taken) ||
            !fb_vector(b, &t, NODE_OUTPUT, 4, "node.output", &made)) {
            return false;
        }
        if (made.count == 0 || (uint64_t)*links + taken.count + made.count > MAX_LINKS) {
            return fail(b->error, ENGINE_BAD_MODEL, "", "node", "a node without outputs, or more than 65536 links");
        }
        *links += taken.count + made.count;
    }
    return true;
}

static bool exponents_of(engine *e, const table *t, uint32_t field, tensor *out)
{
    vector v;
    if (!fb_vector(&e->model, t, field, 8, "exponents", &v)) {
        return false;
    }
    for (uint32_t i = 0; i < v.count; i++) {
        int64_t exponent = read_i64(e->model.bytes + v.at + 8 * i);
        if (exponent < -127 || exponent > 127) {
            return fail(e->model.error, ENGINE_BAD_MODEL, "", out->name, "an exponent out of range");
        }
    }
    out->exponents = v.at;
    out->exponent_count = v.count;
    out->exponent = v.count == 0 ? 0 : (int32_t)read_i64(e->model.bytes + v.at);
    return true;
}

static bool count_elements(engine *e, tensor *t)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < t->rank; i++) {
        count *= t->dims[i];
        if (count > MAX_ELEMENTS) {
            return fail(e->model.error, ENGINE_BAD_MODEL, "", t->name, "a tensor of more than 2^28 elements");
        }
    }
    t->count = (uint32_t)count;
    return true;
}

static void layout_of(tensor *t, const char *text)
{
    static const struct { const char *text; uint8_t kind, lanes; bool unaligned; } known[] = {
        {"NHWC", LAYOUT_NHWC, 0, false}, {"NWC", LAYOUT_NHWC, 0, false}, {"HWCN", LAYOUT_HWCN, 0, false}, {"WCN", LAYOUT_HWCN, 0, false},
        {"(N/16)HWC16", LAYOUT_BLOCKED, 16, false}, {"(N/16)WC16", LAYOUT_BLOCKED, 16, false},
        {"(N/8)HWC8", LAYOUT_BLOCKED, 8, false}, {"(N/8)WC8", LAYOUT_BLOCKED, 8, false},
        {"(N/16)HWC16_UNALIGNED", LAYOUT_BLOCKED, 16, true}, {"(N/16)WC16_UNALIGNED", LAYOUT_BLOCKED, 16, true},
        {"(N/8)HWC8_UNALIGNED", LAYOUT_BLOCKED, 8, true}, {"(N/8)WC8_UNALIGNED", LAYOUT_BLOCKED, 8, true},
        {"UNK", LAYOUT_PLAIN, 0, false}, {"", LAYOUT_PLAIN, 0, false}};
    static const char prefix[] = "layout ==> ";
    if (strncmp(text, prefix, sizeof prefix - 1) == 0) {
        text += sizeof prefix - 1;
    }
    t->layout = LAYOUT_UNKNOWN;
    for (uint32_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(text, known[i].text) == 0) {
            t->layout = known[i].kind;
            t->lanes = known[i].lanes;
            t->unaligned = known[i].unaligned;
        }
    }
}

/* Constants and test values. */
static bool tensor_of(engine *e, const table *from, tensor *t)
{
    buffer *b = &e->model;
    vector dims, raw;
    int64_t type;
    const char *doc;
    memset(t, 0, sizeof *t);
    if (!fb_text(b, from, TENSOR_NAME, "tensor.name", &t->name) || !fb_vector(b, from, TENSOR_DIMS, 8, t->name, &dims) ||
        !fb_integer(b, from, TENSOR_TYPE, 4, t->name, &type) || !fb_vector(b, from, TENSOR_RAW, 16, t->name, &raw) ||
        !fb_text(b, from, TENSOR_DOC, t->name, &doc) || !exponents_of(e, from, TENSOR_EXPONENTS, t)) {
        return false;
    }
    if (dims.count > MAX_RANK) {
        return fail(b->error, ENGINE_BAD_MODEL, "", t->name, "more dimensions than 8");
    }
    t->rank = (uint8_t)dims.count;
    for (uint32_t i = 0; i < dims.count; i++) {
        int64_t size = read_i64(b->bytes + dims.at + 8 * i);
        if (size < 0 || size > INT32_MAX) {
            return fail(b->error, ENGINE_BAD_MODEL, "", t->name, "a dimension out of range");
        }
        t->dims[i] = (uint32_t)size;
    }
    if (!count_elements(e, t)) {
        return false;
    }
    t->dtype = (uint8_t)(type >= 0 && type < 255 ? type : 0);
    t->hash = text_hash(t->name);
    t->constant = t->made = true;
    t->data = raw.at;
    layout_of(t, doc);
    if ((uint64_t)t->count * dtype_bytes(t->dtype) > (uint64_t)raw.count * 16) {
        return fail(b->error, ENGINE_BAD_MODEL, "", t->name, "fewer values than its shape says");
    }
    return true;
}

bool test_tensor(engine *e, const table *from, tensor *out) { return tensor_of(e, from, out); }

static bool value_shape(engine *e, const table *outline, tensor *t)
{
    buffer *b = &e->model;
    vector dims;
    if (!fb_vector(b, outline, 0, 4, t->name, &dims)) {
        return false;
    }
    if (dims.count > MAX_RANK) {
        return fail(b->error, ENGINE_BAD_MODEL, "", t->name, "more dimensions than 8");
    }
    t->rank = (uint8_t)dims.count;
    for (uint32_t i = 0; i < dims.count; i++) {
        table dim, value;
        bool found;
        int64_t size = 0;
        if (!fb_element(b, &dims, i, t->name, &dim) || !fb_child(b, &dim, 0, t->name, &value, &found) ||
            (found && !fb_integer(b, &value, 1, 8, t->name, &size))) {
            return false;
        }
        if (size < 0 || size > INT32_MAX) {
            return fail(b->error, ENGINE_BAD_MODEL, "", t->name, "a dimension out of range");
        }
        t->dims[i] = (uint32_t)size;
    }
    return true;
}

static bool value_of(engine *e, const table *from, tensor *t)
{
    buffer *b = &e->model;
    table info, type, outline;
    bool found = false, typed = false, shaped = false;
    int64_t kind = 0, dtype = 0;
    memset(t, 0, sizeof *t);
    if (!fb_text(b, from, VALUE_NAME, "value_info.name", &t->name) || !exponents_of(e, from, VALUE_EXPONENTS, t) ||
        !fb_child(b, from, VALUE_TYPE, t->name, &info, &found)) {
        return false;
    }
    if (found && (!fb_integer(b, &info, 0, 1, t->name, &kind) || (kind == 1 && !fb_child(b, &info, 1, t->name, &type, &typed)))) {
        return false;
    }
    if (typed && (!fb_integer(b, &type, 0, 4, t->name, &dtype) || !fb_child(b, &type, 1, t->name, &outline, &shaped) ||
                  (shaped && !value_shape(e, &outline, t)))) {
        return false;
    }
    t->hash = text_hash(t->name);
    t->dtype = (uint8_t)(dtype >= 0 && dtype < 255 ? dtype : 0);
    t->data = t->last_use = NONE;
    return true;
}

static uint32_t find_tensor(const engine *e, const char *name, uint32_t hash)
{
    for (uint32_t i = 0; i < e->tensor_count; i++) {
        if (e->tensors[i].hash == hash && strcmp(e->tensors[i].name, name) == 0) {
            return i;
        }
    }
    return NONE;
}

/* Those of a list that are not there yet; their place in the table into `links` unless it is NULL. */
static bool add_values(engine *e, const table *graph, uint32_t field, const char *place, uint32_t *links)
{
    vector v;
    if (!fb_vector(&e->model, graph, field, 4, place, &v)) {
        return false;
    }
    for (uint32_t i = 0; i < v.count; i++) {
        table t;
        tensor *slot = &e->tensors[e->tensor_count];
        if (!fb_element(&e->model, &v, i, place, &t) || !(field == GRAPH_INITIALIZER ? tensor_of(e, &t, slot) : value_of(e, &t, slot))) {
            return false;
        }
        uint32_t known = find_tensor(e, slot->name, slot->hash);
        if (known == NONE) {
            known = e->tensor_count++;
        }
        if (links != NULL) {
            links[i] = known;
        }
    }
    return true;
}

static bool link_node(engine *e, const table *t, node *n, uint32_t *next)
{
    buffer *b = &e->model;
    vector taken, made;
    memset(n, 0, sizeof *n);
    n->at = t->at;
    if (!fb_text(b, t, NODE_NAME, "node.name", &n->name) || !fb_text(b, t, NODE_OP, n->name, &n->op) ||
        !fb_vector(b, t, NODE_INPUT, 4, n->name, &taken) || !fb_vector(b, t, NODE_OUTPUT, 4, n->name, &made)) {
        return false;
    }
    n->first_input = *next;
    n->input_count = taken.count;
    n->first_output = *next + taken.count;
    n->output_count = made.count;
    *next += taken.count + made.count;
    for (uint32_t i = 0; i < taken.count + made.count; i++) {
        const char *name;
        bool output = i >= taken.count;
        if (!fb_text_element(b, output ? &made : &taken, output ? i - taken.count : i, n->name, &name)) {
            return false;
        }
        uint32_t found = *name == '\0' && !output ? NONE : find_tensor(e, name, text_hash(name));
        if (found == NONE && (*name != '\0' || output)) {
            return node_bad(e, n, "a tensor that nothing is said of");
        }
        e->links[n->first_input + i] = found;
    }
    return true;
}

bool model_fill(engine *e, const table *graph)
{
    buffer *b = &e->model;
    vector all;
    uint32_t next = 0;
    e->tensor_count = 0;
    if (!add_values(e, graph, GRAPH_INITIALIZER, "initializer", NULL) || !add_values(e, graph, GRAPH_VALUE_INFO, "value_info", NULL) ||
        !add_values(e, graph, GRAPH_INPUT, "input", e->inputs) || !add_values(e, graph, GRAPH_OUTPUT, "output", e->outputs) ||
        !fb_vector(b, graph, GRAPH_NODE, 4, "node", &all) ||
        !fb_vector(b, graph, GRAPH_TEST_INPUTS, 4, "test_inputs_value", &e->test_inputs) ||
        !fb_vector(b, graph, GRAPH_TEST_OUTPUTS, 4, "test_outputs_value", &e->test_outputs)) {
        return false;
    }
    for (uint32_t i = 0; i < e->node_count; i++) {
        table t;
        if (!fb_element(b, &all, i, "node", &t) || !link_node(e, &t, &e->nodes[i], &next)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < e->input_count; i++) {
        tensor *t = &e->tensors[e->inputs[i]];
        if (t->constant || value_bits(t) == NONE || !count_elements(e, t)) {
            return t->constant || value_bits(t) == NONE ? fail(b->error, ENGINE_BAD_MODEL, "", t->name, "an input of another type than int8, int16 or float") : false;
        }
        t->made = true;
    }
    return true;
}
