/* What can be decided before running: shapes, shifts, windows; everything a run would have to check. */
#include "internal.h"

bool set_shape(const engine *e, const node *n, tensor *t, const uint32_t *dims, uint32_t rank)
{
    uint64_t count = 1;
    if (rank > MAX_RANK) {
        return node_unsupported(e, n, "more dimensions than 8");
    }
    if (t->constant || t->made) {
        return node_bad(e, n, "its output is a constant, an input or made twice");
    }
    for (uint32_t i = 0; i < rank; i++) {
        t->dims[i] = dims[i];
        count *= dims[i];
        if (count > MAX_ELEMENTS) {
            return node_bad(e, n, "an output of more than 2^28 elements");
        }
    }
    t->rank = (uint8_t)rank;
    t->count = (uint32_t)count;
    t->made = true;
    return value_bits(t) != NONE || node_unsupported(e, n, "an output of another type than int8, int16 or float");
}

bool check_shift(const engine *e, const node *n, int64_t shift)
{
    return (shift >= -EXACT_BITS && shift <= EXACT_BITS) || node_unsupported(e, n, "exponents too far apart");
}

bool node_axis(const engine *e, const node *n, int64_t axis, uint32_t rank, uint32_t *out)
{
    *out = 0;
    if (axis < -(int64_t)rank || axis >= (int64_t)rank) {
        return node_bad(e, n, "an axis that the tensor has not");
    }
    *out = (uint32_t)(axis < 0 ? axis + rank : axis);
    return true;
}

/* Largest magnitude of a sum, times 2^-shift where that grows, plus one half where it is rounded: below 2^53. */
bool check_exact(const engine *e, const node *n, double bound, int32_t lowest_shift, int32_t highest_shift)
{
    double all = bound * (lowest_shift < 0 ? pow2(-lowest_shift) : 1.0) + (highest_shift > 0 ? pow2(highest_shift - 1) : 0.0);
    return all <= pow2(EXACT_BITS) || node_unsupported(e, n, "sums that may pass 2^53");
}

bool check_scale(const engine *e, const node *n, const tensor *from, const tensor *to)
{
    int32_t shift = to->exponent - from->exponent;
    return check_shift(e, n, shift) && check_exact(e, n, pow2((int32_t)value_bits(from) - 1), shift, shift);
}

bool integers_only(const engine *e, const node *n, const tensor *t)
{
    uint32_t bits = value_bits(t);
    return bits == 8 || bits == 16 || node_unsupported(e, n, "float input or output");
}

/* ---- two inputs ---- */

static bool broadcast(engine *e, node *n, const tensor *a, const tensor *b)
{
    uint32_t dims[MAX_RANK], rank = a->rank > b->rank ? a->rank : b->rank;
    for (uint32_t i = 0; i < rank; i++) {
        uint32_t left = i + a->rank < rank ? 1 : a->dims[i + a->rank - rank], right = i + b->rank < rank ? 1 : b->dims[i + b->rank - rank];
        if (left != right && left != 1 && right != 1) {
            return node_bad(e, n, "shapes that do not broadcast");
        }
        dims[i] = left == 1 ? right : left;
    }
    return set_shape(e, n, node_output(e, n, 0), dims, rank);
}

static bool prepare_binary(engine *e, node *n)
{
    const tensor *a = node_input(e, n, 0), *b = node_input(e, n, 1);
    tensor *out = node_output(e, n, 0);
    if (a == NULL || b == NULL) {
        return node_bad(e, n, "an input is missing");
    }
    if (!integers_only(e, n, a) || !integers_only(e, n, b) || !integers_only(e, n, out)) {
        return false;
    }
    uint32_t a_bits = value_bits(a), b_bits = value_bits(b);
    if (strcmp(n->op, "Mul") == 0) {
        n->kind = KIND_MUL;
        n->u.binary.shift = out->exponent - a->exponent - b->exponent;
        return check_shift(e, n, n->u.binary.shift) && check_exact(e, n, pow2((int32_t)(a_bits + b_bits - 2)), n->u.binary.shift, n->u.binary.shift) && broadcast(e, n, a, b);
    }
    n->kind = KIND_SUM;
    n->u.binary.sign = strcmp(n->op, "Sub") == 0 ? -1 : 1;
    if (e->semantics == ENGINE_REFERENCE) {
        int32_t common = a->exponent < b->exponent ? a->exponent : b->exponent;
        n->u.binary.shift_a = a->exponent - common;
        n->u.binary.shift_b = b->exponent - common;
        n->u.binary.shift = out->exponent - common;
    }
    double bound = pow2((int32_t)(a_bits > b_bits ? a_bits : b_bits) - 1) * (pow2(n->u.binary.shift_a) + pow2(n->u.binary.shift_b));
    return check_shift(e, n, n->u.binary.shift) && check_exact(e, n, bound, n->u.binary.shift, n->u.binary.shift) && broadcast(e, n, a, b);
}

/* ---- one input ---- */

static bool prepare_scale(engine *e, node *n)
{
    const tensor *x = node_input(e, n, 0);
    tensor *out = node_output(e, n, 0);
    bool from_float = strcmp(n->op, "QuantizeLinear") == 0, to_float = strcmp(n->op, "DequantizeLinear") == 0;
    if (x == NULL || x->constant) {
        return node_bad(e, n, "its input is missing or a constant");
    }
    if ((value_bits(x) == 0) != from_float || (value_bits(out) == 0) != to_float) {
        return node_unsupported(e, n, "from or to what it is not made for");
    }
    n->kind = from_float ? KIND_QUANTIZE : to_float ? KIND_DEQUANTIZE : KIND_RESCALE;
    if (!from_float && !to_float && !check_scale(e, n, x, out)) {
        return false;
    }
    return set_shape(e, n, out, x->dims, x->rank);
}

static bool prepare_softmax(engine *e, node *n)
{
    const tensor *x = node_input(e, n, 0);
    int64_t axis = -1;
    uint32_t along = 0;
    if (x == NULL || x->constant) {
        return node_bad(e, n, "its input is missing or a constant");
    }
    if (!attribute_integer(e, n, "axis", &axis) || !node_axis(e, n, axis, x->rank, &along)) {
        return false;
    }
    n->kind = KIND_SOFTMAX;
    n->u.axis.axis = (int32_t)along;
    return set_shape(e, n, node_output(e, n, 0), x->dims, x->rank);
}

bool prepare_node(engine *e, node *n)
{
    static const char *const filters[] = {"Conv", "Gemm", "MatMul"};
    static const char *const binaries[] = {"Add", "Sub", "Mul"};
    static const char *const scales[] = {"RequantizeLinear", "QuantizeLinear", "DequantizeLinear"};
    for (uint32_t i = 0; i < n->input_count; i++) {
        const tensor *t = node_input(e, n, i);
        if (t != NULL && !t->made) {
            return node_bad(e, n, "an input that no node before it makes");
        }
        if (t != NULL && !t->constant && value_bits(t) == NONE) {
            return node_unsupported(e, n, "an input of another type than int8, int16 or float");
        }
    }
    for (uint32_t i = 0; i < 3; i++) {
        if (strcmp(n->op, filters[i]) == 0) {
            return prepare_filter(e, n);
        }
        if (strcmp(n->op, binaries[i]) == 0) {
            return prepare_binary(e, n);
        }
        if (strcmp(n->op, scales[i]) == 0) {
            return prepare_scale(e, n);
        }
    }
    if (strcmp(n->op, "Softmax") == 0) {
        return prepare_softmax(e, n);
    }
    bool known = false, right = prepare_move(e, n, &known);
    if (right && !known) {
        right = prepare_pool(e, n, &known);
    }
    if (right && !known) {
        right = prepare_function(e, n, &known);
    }
    return right && (known || node_unsupported(e, n, "no such operator here"));
}
