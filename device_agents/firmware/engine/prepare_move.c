/* Preparing operators that only move values: Reshape and its like, Transpose, Slice, Split, Concat, Pad, Gather, InsertZeros. */
#include "internal.h"

static bool integers_of(engine *e, const node *n, uint32_t index, uint32_t most, int64_t *values, uint32_t *count)
{
    const tensor *t = node_input(e, n, index);
    *count = 0;
    if (t == NULL) {
        return true;
    }
    if (!t->constant || t->dtype == ENGINE_FLOAT || dtype_bytes(t->dtype) == 0) {
        return node_unsupported(e, n, "an input that is no constant of integers");
    }
    if (t->count > most) {
        return node_bad(e, n, "a list longer than a tensor has dimensions");
    }
    *count = t->count;
    for (uint32_t i = 0; i < t->count; i++) {
        values[i] = constant_integer(e, t, i);
    }
    return true;
}

static bool movable(const engine *e, const node *n, const tensor *from, const tensor *to)
{
    uint32_t in = value_bits(from), out = value_bits(to);
    if (in == NONE || out == NONE || (in == 0) != (out == 0)) {
        return node_unsupported(e, n, "types that differ");
    }
    return in == 0 || e->semantics == ENGINE_DEVICE || check_scale(e, n, from, to);
}

static bool as_shape(engine *e, node *n, const tensor *x, const uint32_t *dims, uint32_t rank)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < rank && count <= MAX_ELEMENTS; i++) {
        count *= dims[i];
    }
    if (count != x->count) {
        return node_bad(e, n, "a shape of another number of elements");
    }
    n->kind = KIND_COPY;
    return set_shape(e, n, node_output(e, n, 0), dims, rank);
}

static bool prepare_reshape(engine *e, node *n, const tensor *x)
{
    int64_t wanted[MAX_RANK], keep_zero = 0, known = 1;
    uint32_t rank, dims[MAX_RANK], open = NONE;
    if (node_input(e, n, 1) == NULL) {
        return node_bad(e, n, "an input is missing");
    }
    if (!integers_of(e, n, 1, MAX_RANK, wanted, &rank) || !attribute_integer(e, n, "allowzero", &keep_zero)) {
        return false;
    }
    for (uint32_t i = 0; i < rank; i++) {
        if (wanted[i] < -1 || wanted[i] > INT32_MAX || (wanted[i] == -1 && open != NONE)) {
            return node_bad(e, n, "a shape that is none");
        }
        if (wanted[i] == 0 && keep_zero == 0) {
            if (i >= x->rank) {
                return node_bad(e, n, "a shape that takes a dimension which the input has not");
            }
            wanted[i] = x->dims[i];
        }
        if (wanted[i] == -1) {
            open = i;
            continue;
        }
        dims[i] = (uint32_t)wanted[i];
        known *= wanted[i];
        if (known > MAX_ELEMENTS) {
            return node_bad(e, n, "a shape of another number of elements");
        }
    }
    if (open != NONE) {
        dims[open] = known == 0 ? 0 : (uint32_t)((int64_t)x->count / known);
    }
    return as_shape(e, n, x, dims, rank);
}

static bool prepare_flatten(engine *e, node *n, const tensor *x)
{
    int64_t axis = 1;
    uint32_t dims[2] = {1, 1};
    if (!attribute_integer(e, n, "axis", &axis)) {
        return false;
    }
    if (axis < -(int64_t)x->rank || axis > (int64_t)x->rank) {
        return node_bad(e, n, "an axis that the tensor has not");
    }
    axis = axis < 0 ? axis + x->rank : axis;
    for (uint32_t i = 0; i < x->rank; i++) {
        dims[i < (uint32_t)axis ? 0 : 1] *= x->dims[i];
    }
    return as_shape(e, n, x, dims, 2);
}

static bool prepare_squeeze(engine *e, node *n, const tensor *x, bool add)
{
    int64_t axes[MAX_RANK];
    uint32_t count, dims[MAX_RANK], rank = 0, mask = 0;
    if (!(node_input(e, n, 1) != NULL ? integers_of(e, n, 1, MAX_RANK, axes, &count) : attribute_integers(e, n, "axes", MAX_RANK, axes, &count))) {
        return false;
    }
    uint32_t whole = add ? x->rank + count : x->rank;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t axis;
        if (!node_axis(e, n, axes[i], whole, &axis)) {
            return false;
        }
        if (whole > MAX_RANK || (add && (mask >> axis & 1) != 0)) {
            return node_bad(e, n, "axes that are none");
        }
        mask |= 1u << axis;
    }
    if (add) {
        for (uint32_t i = 0, old = 0; i < whole; i++) {
            dims[rank++] = (mask >> i & 1) != 0 ? 1 : x->dims[old++];
        }
    } else {
        for (uint32_t i = 0; i < x->rank; i++) {
            if (count == 0 && node_input(e, n, 1) == NULL ? x->dims[i] != 1 : (mask >> i & 1) == 0) {
                dims[rank++] = x->dims[i];
            }
        }
    }
    return as_shape(e, n, x, dims, rank);
}

static bool prepare_transpose(engine *e, node *n, const tensor *x)
{
    int64_t perm[MAX_RANK];
    uint32_t count, dims[MAX_RANK], mask = 0;
    if (!attribute_integers(e, n, "perm", MAX_RANK, perm, &count)) {
        return false;
    }
    if (count == 0) {
        for (; count < x->rank; count++) {
            perm[count] = x->rank - 1 - count;
        }
    }
    for (uint32_t i = 0; i < count && i < x->rank; i++) {
        if (perm[i] < 0 || perm[i] >= x->rank) {
            return node_bad(e, n, "a perm that is none");
        }
        mask |= 1u << perm[i];
        dims[i] = x->dims[perm[i]];
        n->u.strided.perm[i] = (int32_t)perm[i];
        n->u.strided.start[i] = 0;
        n->u.strided.step[i] = 1;
    }
    if (count != x->rank || mask != (1u << x->rank) - 1) {
        return node_bad(e, n, "a perm that is none");
    }
    n->kind = KIND_STRIDED;
    return set_shape(e, n, node_output(e, n, 0), dims, count);
}

static bool prepare_slice(engine *e, node *n, const tensor *x)
{
    int64_t starts[MAX_RANK], ends[MAX_RANK], axes[MAX_RANK], steps[MAX_RANK];
    uint32_t count, other, dims[MAX_RANK];
    bool given = node_input(e, n, 3) != NULL, paced = node_input(e, n, 4) != NULL;
    if (node_input(e, n, 1) == NULL || node_input(e, n, 2) == NULL) {
        return node_bad(e, n, "an input is missing");
    }
    if (!integers_of(e, n, 1, MAX_RANK, starts, &count) || !integers_of(e, n, 2, MAX_RANK, ends, &other)) {
        return false;
    }
    bool fits = count == other;
    for (uint32_t i = 0; i < MAX_RANK; i++) {
        axes[i] = i;
        steps[i] = 1;
    }
    if (given && !integers_of(e, n, 3, MAX_RANK, axes, &other)) {
        return false;
    }
    fits = fits && count == other;
    if (paced && !integers_of(e, n, 4, MAX_RANK, steps, &other)) {
        return false;
    }
    if (!fits || count != other) {
        return node_bad(e, n, "starts, ends, axes and steps that do not go together");
    }
    for (uint32_t i = 0; i < x->rank; i++) {
        dims[i] = x->dims[i];
        n->u.strided.perm[i] = (int32_t)i;
        n->u.strided.start[i] = 0;
        n->u.strided.step[i] = 1;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t axis;
        if (!node_axis(e, n, axes[i], x->rank, &axis)) {
            return false;
        }
        if (steps[i] == 0) {
            return node_bad(e, n, "a step of 0");
        }
        if (steps[i] < 0) {
            return node_unsupported(e, n, "a negative step");
        }
        if (n->u.strided.start[axis] != 0 || n->u.strided.step[axis] != 1 || dims[axis] != x->dims[axis]) {
            return node_unsupported(e, n, "an axis sliced twice");
        }
        int64_t size = x->dims[axis], first = starts[i] < 0 ? (starts[i] < -size ? 0 : starts[i] + size) : starts[i];
        int64_t last = ends[i] < 0 ? (ends[i] < -size ? 0 : ends[i] + size) : ends[i];
        first = first > size ? size : first;
        last = last > size ? size : last;
        int64_t step = steps[i] > INT32_MAX ? INT32_MAX : steps[i];
        dims[axis] = last > first ? (uint32_t)((last - first - 1) / step + 1) : 0;
        n->u.strided.start[axis] = (int32_t)first;
        n->u.strided.step[axis] = (int32_t)step;
    }
    n->kind = KIND_STRIDED;
    return set_shape(e, n, node_output(e, n, 0), dims, x->rank);
}

static bool prepare_split(engine *e, node *n, const tensor *x)
{
    int64_t axis_given = 0;
    uint32_t axis, dims[MAX_RANK];
    const tensor *sizes = node_input(e, n, 1);
    if (!attribute_integer(e, n, "axis", &axis_given) || !node_axis(e, n, axis_given, x->rank, &axis)) {
        return false;
    }
    if (sizes != NULL && (!sizes->constant || sizes->dtype == ENGINE_FLOAT || dtype_bytes(sizes->dtype) == 0)) {
        return node_unsupported(e, n, "sizes that are no constant of integers");
    }
    uint32_t whole = x->dims[axis], each = (whole + n->output_count - 1) / n->output_count;
    if (sizes != NULL && sizes->count != n->output_count) {
        return node_bad(e, n, "sizes for another number of outputs");
    }
    memcpy(dims, x->dims, sizeof dims);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n->output_count; i++) {
        tensor *out = node_output(e, n, i);
        uint64_t left = (uint64_t)each * i > whole ? 0 : whole - (uint64_t)each * i;
        int64_t size = sizes != NULL ? constant_integer(e, sizes, i) : (int64_t)(left < each ? left : each);
        if (size < 0 || size > whole) {
            return node_bad(e, n, "sizes that are none");
        }
        if (!movable(e, n, x, out)) {
            return false;
        }
        if (e->semantics == ENGINE_REFERENCE && out->exponent != x->exponent && value_bits(x) != 0) {
            return node_unsupported(e, n, "outputs whose exponents differ from the input's");
        }
        sum += (uint64_t)size;
        dims[axis] = (uint32_t)size;
        if (!set_shape(e, n, out, dims, x->rank)) {
            return false;
        }
    }
    n->kind = KIND_SPLIT;
    n->u.axis.axis = (int32_t)axis;
    return sum == whole || node_bad(e, n, "sizes that do not add up");
}

static bool prepare_concat(engine *e, node *n)
{
    const tensor *first = node_input(e, n, 0);
    tensor *out = node_output(e, n, 0);
    int64_t axis_given = 0;
    uint32_t axis, dims[MAX_RANK];
    uint64_t sum = 0;
    if (first == NULL) {
        return node_bad(e, n, "an input is missing");
    }
    if (!attribute_integer(e, n, "axis", &axis_given) || !node_axis(e, n, axis_given, first->rank, &axis)) {
        return false;
    }
    memcpy(dims, first->dims, sizeof dims);
    for (uint32_t i = 0; i < n->input_count; i++) {
        const tensor *t = node_input(e, n, i);
        if (t == NULL || t->rank != first->rank) {
            return node_bad(e, n, "shapes that do not concatenate");
        }
        for (uint32_t k = 0; k < t->rank; k++) {
            if (k != axis && t->dims[k] != first->dims[k]) {
                return node_bad(e, n, "shapes that do not concatenate");
            }
        }
        if (!movable(e, n, t, out)) {
            return false;
        }
        sum += t->dims[axis];
    }
    if (sum > MAX_ELEMENTS) {
        return node_bad(e, n, "an output of more than 2^28 elements");
    }
    dims[axis] = (uint32_t)sum;
    n->kind = KIND_CONCAT;
    n->u.axis.axis = (int32_t)axis;
    return set_shape(e, n, out, dims, first->rank);
}

static bool prepare_pad(engine *e, node *n, const tensor *x)
{
    int64_t amounts[2 * MAX_RANK];
    uint32_t count, dims[MAX_RANK], bits = value_bits(x);
    const tensor *value = node_input(e, n, 2);
    bool constant;
    if (node_input(e, n, 1) == NULL) {
        return node_bad(e, n, "an input is missing");
    }
    if (!integers_of(e, n, 1, 2 * MAX_RANK, amounts, &count) || !attribute_is(e, n, "mode", "constant", true, &constant)) {
        return false;
    }
    if (!constant) {
        return node_unsupported(e, n, "a mode other than constant");
    }
    if (count != 2u * x->rank) {
        return node_bad(e, n, "pads that do not fit the input");
    }
    for (uint32_t i = 0; i < count; i++) {
        if (amounts[i] < 0 || amounts[i] > 1 << 20) {
            return node_bad(e, n, "a pad out of range");
        }
    }
    for (uint32_t i = 0; i < x->rank; i++) {
        n->u.pad.before[i] = (int32_t)amounts[i];
        dims[i] = x->dims[i] + (uint32_t)amounts[i] + (uint32_t)amounts[i + x->rank];
    }
    n->u.pad.fill = 0.0f;
    if (value != NULL && value->count != 0) {
        if (!value->constant || dtype_bytes(value->dtype) == 0) {
            return node_unsupported(e, n, "a value that is no constant");
        }
        uint32_t value_kind = value_bits(value);
        double real = constant_real(e, value, 0) * pow2(value_kind == 8 || value_kind == 16 ? value->exponent : 0);
        if (bits != 0) {
            double high = pow2((int32_t)bits - 1) - 1;
            real *= pow2(-x->exponent);
            real = real > high ? high : real < -high - 1 ? -high - 1 : real;
            if (real != (double)(int32_t)real) {
                return node_unsupported(e, n, "fills with what is no multiple of the exponent's unit");
            }
        }
        n->u.pad.fill = (float)real;
    }
    n->kind = KIND_PAD;
    return set_shape(e, n, node_output(e, n, 0), dims, x->rank);
}

static bool prepare_gather(engine *e, node *n, const tensor *x)
{
    const tensor *indices = node_input(e, n, 1);
    int64_t axis_given = 0;
    uint32_t axis, dims[MAX_RANK], rank = 0;
    if (indices == NULL || !indices->constant || indices->dtype == ENGINE_FLOAT || dtype_bytes(indices->dtype) == 0) {
        return node_unsupported(e, n, "indices that are no constant of integers");
    }
    if (!attribute_integer(e, n, "axis", &axis_given) || !node_axis(e, n, axis_given, x->rank, &axis)) {
        return false;
    }
    if (x->rank + indices->rank > MAX_RANK + 1u) {
        return node_unsupported(e, n, "more dimensions than 8");
    }
    for (uint32_t i = 0; i < indices->count; i++) {
        int64_t index = constant_integer(e, indices, i);
        if (index < -(int64_t)x->dims[axis] || index >= (int64_t)x->dims[axis]) {
            return node_bad(e, n, "an index past the end");
        }
    }
    for (uint32_t i = 0; i < x->rank; i++) {
        if (i == axis) {
            for (uint32_t k = 0; k < indices->rank; k++) {
                dims[rank++] = indices->dims[k];
            }
        } else {
            dims[rank++] = x->dims[i];
        }
    }
    n->kind = KIND_GATHER;
    n->u.axis.axis = (int32_t)axis;
    return set_shape(e, n, node_output(e, n, 0), dims, rank);
}

static bool prepare_zeros(engine *e, node *n, const tensor *x)
{
    int64_t steps[2], behind[2] = {0, 0};
    uint32_t count, padded, dims[MAX_RANK];
    if (!attribute_integers(e, n, "stride", 2, steps, &count) || !attribute_integers(e, n, "output_padding", 2, behind, &padded)) {
        return false;
    }
    if (count == 0 || x->rank != count + 2 || (padded != 0 && padded != count)) {
        return node_bad(e, n, "a stride or output_padding that does not fit the input");
    }
    memcpy(dims, x->dims, sizeof dims);
    for (uint32_t i = 0; i < count; i++) {
        int64_t size = x->dims[i + 1];
        if (steps[i] < 1 || steps[i] > MAX_SIDE || behind[i] < 0 || behind[i] > MAX_SIDE || size < 1 || size > MAX_SIDE ||
            (size - 1) * steps[i] + 1 + behind[i] > MAX_SIDE) {
            return node_bad(e, n, "a stride or output_padding out of range");
        }
        n->u.zeros.strides[i] = (int32_t)steps[i];
        dims[i + 1] = (uint32_t)((size - 1) * steps[i] + 1 + behind[i]);
    }
    n->kind = KIND_INSERT_ZEROS;
    return set_shape(e, n, node_output(e, n, 0), dims, x->rank);
}

bool prepare_move(engine *e, node *n, bool *known)
{
    static const char *const names[] = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Pad", "Gather", "InsertZeros", "Identity", "Concat"};
    uint32_t which = 0;
    while (which < 12 && strcmp(n->op, names[which]) != 0) {
        which++;
    }
    *known = which < 12;
    if (!*known) {
        return true;
    }
    if (which == 11) {
        return prepare_concat(e, n);
    }
    const tensor *x = node_input(e, n, 0);
    if (x == NULL || x->constant) {
        return node_bad(e, n, "its input is missing or a constant");
    }
    if (!movable(e, n, x, node_output(e, n, 0))) {
        return false;
    }
    switch (which) {
    case 0: return prepare_reshape(e, n, x);
    case 1: return prepare_flatten(e, n, x);
    case 2: return prepare_squeeze(e, n, x, false);
    case 3: return prepare_squeeze(e, n, x, true);
    case 4: return prepare_transpose(e, n, x);
    case 5: return prepare_slice(e, n, x);
    case 6: return prepare_split(e, n, x);
    case 7: return prepare_pad(e, n, x);
    case 8: return prepare_gather(e, n, x);
    case 9: return prepare_zeros(e, n, x);
    default: return as_shape(e, n, x, x->dims, x->rank);
    }
}
