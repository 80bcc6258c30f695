/* Attributes of nodes, values of tensors. */
#include "internal.h"

enum { NODE_ATTRIBUTE = 5, MAX_ATTRIBUTES = 64 };
enum { ATTRIBUTE_NAME = 0, ATTRIBUTE_TYPE = 3, ATTRIBUTE_F = 4, ATTRIBUTE_I = 5, ATTRIBUTE_S = 6, ATTRIBUTE_INTS = 11 };
enum { TYPE_FLOAT = 1, TYPE_INT = 2, TYPE_STRING = 3, TYPE_INTS = 7 };

uint32_t dtype_bytes(uint8_t dtype)
{
    switch (dtype) {
    case ENGINE_UINT8: case ENGINE_INT8: case ENGINE_BOOL: return 1;
    case ENGINE_UINT16: case ENGINE_INT16: return 2;
    case ENGINE_FLOAT: case ENGINE_INT32: case ENGINE_UINT32: return 4;
    case ENGINE_INT64: case ENGINE_UINT64: return 8;
    default: return 0;
    }
}

uint32_t value_bits(const tensor *t)
{
    return t->dtype == ENGINE_INT8 ? 8 : t->dtype == ENGINE_INT16 ? 16 : t->dtype == ENGINE_FLOAT ? 0 : NONE;
}

/* ---- attributes ---- */

static bool find_attribute(engine *e, const node *n, const char *name, int64_t type, table *out, bool *found)
{
    buffer *b = &e->model;
    table t;
    vector v;
    uint32_t left = b->tables_left;
    *found = false;
    if (!fb_table(b, n->at, n->name, &t) || !fb_vector(b, &t, NODE_ATTRIBUTE, 4, n->name, &v)) {
        return false;
    }
    if (v.count > MAX_ATTRIBUTES) {
        return node_bad(e, n, "more than 64 attributes");
    }
    for (uint32_t i = 0; i < v.count && !*found; i++) {
        const char *own;
        int64_t kind;
        if (!fb_element(b, &v, i, n->name, out) || !fb_text(b, out, ATTRIBUTE_NAME, n->name, &own) ||
            !fb_integer(b, out, ATTRIBUTE_TYPE, 4, n->name, &kind)) {
            return false;
        }
        *found = kind == type && strcmp(own, name) == 0;
    }
    b->tables_left = left; /* reading a node again is no growth */
    return true;
}

bool attribute_integer(engine *e, const node *n, const char *name, int64_t *value)
{
    table t;
    bool found;
    if (!find_attribute(e, n, name, TYPE_INT, &t, &found)) {
        return false;
    }
    return !found || fb_integer(&e->model, &t, ATTRIBUTE_I, 8, n->name, value);
}

bool attribute_float(engine *e, const node *n, const char *name, double *value, bool *found)
{
    table t;
    int64_t bits = 0;
    if (!find_attribute(e, n, name, TYPE_FLOAT, &t, found)) {
        return false;
    }
    if (*found) {
        if (!fb_integer(&e->model, &t, ATTRIBUTE_F, 4, n->name, &bits)) {
            return false;
        }
        uint32_t low = (uint32_t)bits;
        float single;
        memcpy(&single, &low, sizeof single);
        *value = (double)single;
    }
    return true;
}

bool attribute_text(engine *e, const node *n, const char *name, const char **text, uint32_t *length)
{
    table t;
    vector v;
    bool found;
    *length = 0;
    *text = "";
    if (!find_attribute(e, n, name, TYPE_STRING, &t, &found)) {
        return false;
    }
    if (found) {
        if (!fb_vector(&e->model, &t, ATTRIBUTE_S, 1, n->name, &v)) {
            return false;
        }
        *text = (const char *)(e->model.bytes + v.at);
        *length = v.count;
    }
    return true;
}

bool attribute_is(engine *e, const node *n, const char *name, const char *expected, bool absent, bool *is)
{
    const char *text;
    uint32_t length;
    if (!attribute_text(e, n, name, &text, &length)) {
        return false;
    }
    *is = length == 0 ? absent : length == strlen(expected) && memcmp(text, expected, length) == 0;
    return true;
}

bool attribute_integers(engine *e, const node *n, const char *name, uint32_t most, int64_t *values, uint32_t *count)
{
    table t;
    vector v;
    bool found;
    *count = 0;
    if (!find_attribute(e, n, name, TYPE_INTS, &t, &found) || (found && !fb_vector(&e->model, &t, ATTRIBUTE_INTS, 8, n->name, &v))) {
        return false;
    }
    if (found) {
        if (v.count > most) {
            return node_bad(e, n, "an attribute with too many values");
        }
        *count = v.count;
        for (uint32_t i = 0; i < v.count; i++) {
            values[i] = read_i64(e->model.bytes + v.at + 8 * i);
        }
    }
    return true;
}

/* ---- values ---- */

float load_float(const uint8_t *bytes, uint32_t index) { return read_f32(bytes + 4 * (size_t)index); }

void store_float(uint8_t *bytes, uint32_t index, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    for (uint32_t i = 0; i < 4; i++) {
        bytes[4 * (size_t)index + i] = (uint8_t)(bits >> (8 * i));
    }
}

int64_t constant_integer(const engine *e, const tensor *t, uint32_t index)
{
    const uint8_t *bytes = constant_bytes(e, t);
    switch (t->dtype) {
    case ENGINE_INT8: case ENGINE_INT16: return load(bytes, t->dtype, index);
    case ENGINE_UINT8: case ENGINE_BOOL: return bytes[index];
    case ENGINE_UINT16: return read_u16(bytes + 2 * (size_t)index);
    case ENGINE_INT32: return (int32_t)read_u32(bytes + 4 * (size_t)index);
    case ENGINE_UINT32: return read_u32(bytes + 4 * (size_t)index);
    default: return read_i64(bytes + 8 * (size_t)index);
    }
}

double constant_real(const engine *e, const tensor *t, uint32_t index)
{
    return t->dtype == ENGINE_FLOAT ? (double)load_float(constant_bytes(e, t), index) : (double)constant_integer(e, t, index);
}

int32_t exponent_at(const engine *e, const tensor *t, uint32_t index)
{
    return t->exponent_count <= 1 ? t->exponent : (int32_t)read_i64(e->model.bytes + t->exponents + 8 * index);
}

const tensor *node_input(const engine *e, const node *n, uint32_t index)
{
    uint32_t link = index < n->input_count ? e->links[n->first_input + index] : NONE;
    return link == NONE ? NULL : &e->tensors[link];
}

tensor *node_output(const engine *e, const node *n, uint32_t index) { return &e->tensors[e->links[n->first_output + index]]; }

bool half_even(const engine *e) { return e->target == ENGINE_TARGET_P4; }

bool node_bad(const engine *e, const node *n, const char *what) { return fail(e->model.error, ENGINE_BAD_MODEL, n->op, n->name, what); }

bool node_unsupported(const engine *e, const node *n, const char *what)
{
    return fail(e->model.error, ENGINE_UNSUPPORTED_OP, n->op, n->name, what);
}
