/* Preparing Conv, Gemm and MatMul. */
#include "internal.h"

bool window_of(engine *e, const node *n, filter_plan *f, bool flat)
{
    static const struct { const char *name; int64_t absent; uint32_t per_side; } lists[] = {{"strides", 1, 1}, {"dilations", 1, 1}, {"pads", 0, 2}};
    bool none;
    if (!attribute_is(e, n, "auto_pad", "NOTSET", true, &none)) {
        return false;
    }
    if (!none) {
        return node_unsupported(e, n, "auto_pad");
    }
    for (uint32_t list = 0; list < 3; list++) {
        int64_t values[4] = {lists[list].absent, lists[list].absent, 0, 0};
        uint32_t count, expected = (flat ? 1 : 2) * lists[list].per_side;
        if (!attribute_integers(e, n, lists[list].name, 4, values, &count)) {
            return false;
        }
        if (count != 0 && count != expected) {
            return node_bad(e, n, "strides, dilations or pads of another number of dimensions");
        }
        for (uint32_t i = 0; i < expected; i++) {
            if (values[i] < (list == 2 ? 0 : 1) || values[i] > MAX_SIDE) {
                return node_bad(e, n, "a stride, dilation or pad out of range");
            }
        }
        if (list == 2) {
            f->pads[0] = flat ? 0 : (int32_t)values[0];
            f->pads[1] = (int32_t)values[flat ? 0 : 1];
            f->pads[2] = flat ? 0 : (int32_t)values[2];
            f->pads[3] = (int32_t)values[flat ? 1 : 3];
        } else {
            int32_t *to = list == 0 ? f->strides : f->dilations;
            to[0] = flat ? 1 : (int32_t)values[0];
            to[1] = (int32_t)values[flat ? 0 : 1];
        }
    }
    return true;
}

static bool output_sides(const engine *e, const node *n, filter_plan *f)
{
    for (uint32_t side = 0; side < 2; side++) {
        int64_t reach = (int64_t)(f->kernel[side] - 1) * f->dilations[side] + 1;
        int64_t room = (int64_t)f->in[side] + f->pads[side] + f->pads[side + 2] - reach;
        if (room < 0) {
            return node_bad(e, n, "a filter larger than its input");
        }
        f->out[side] = (uint32_t)(room / f->strides[side] + 1);
    }
    return true;
}

/* Bounds of sums decide the accumulator; with saturating lanes, the least and greatest partial sum of each channel. */
static bool accumulators(engine *e, node *n, const tensor *x, const tensor *w, const tensor *bias)
{
    filter_plan *f = &n->u.filter;
    const tensor *out = node_output(e, n, 0);
    uint32_t bits = value_bits(x), terms = (uint32_t)(f->kernel[0] * f->kernel[1]) * f->inner;
    uint32_t lane_bits = e->target == ENGINE_TARGET_S3 ? (bits == 8 ? 20 : 40) : e->target == ENGINE_TARGET_P4 && bits == 16 ? 40 : 0;
    uint32_t block = bits == 8 ? 16 : 8;
    int32_t low_shift = INT32_MAX, high_shift = INT32_MIN;
    double largest = 0, x_low = -(double)(1 << (bits - 1)), x_high = (double)((1 << (bits - 1)) - 1);
    f->whole = f->outputs / block * block;
    f->lane_high = lane_bits == 0 ? 0 : ((int64_t)1 << (lane_bits - 1)) - 1;
    f->lane_low = -f->lane_high - 1;
    for (uint32_t channel = 0; channel < f->outputs; channel++) {
        double start = bias == NULL ? 0.0 : constant_real(e, bias, channel), sum = 0, least = start < 0 ? start : 0, greatest = start > 0 ? start : 0;
        uint32_t first = 0, step = 0;
        /* the place of a channel's terms does not matter here, only that each is looked at once */
        if (w->layout == LAYOUT_BLOCKED && channel < f->outputs / w->lanes * w->lanes) {
            first = channel / w->lanes * w->lanes * terms + channel % w->lanes;
            step = w->lanes;
        } else if (w->layout == LAYOUT_BLOCKED) {
            uint32_t blocked = f->outputs / w->lanes * w->lanes;
            bool grouped = f->groups > 1;
            first = blocked * terms + (grouped ? channel - blocked : (channel - blocked) * terms);
            step = grouped ? f->outputs - blocked : 1;
        } else {
            first = w->layout == LAYOUT_HWCN ? channel : channel * terms;
            step = w->layout == LAYOUT_HWCN ? f->outputs : 1;
        }
        for (uint32_t k = 0; k < terms; k++) {
            double value = (double)load(constant_bytes(e, w), w->dtype, first + k * step);
            sum += value < 0 ? -value : value;
            least += value < 0 ? value * x_high : value * x_low;
            greatest += value < 0 ? value * x_low : value * x_high;
        }
        sum = sum * -x_low + (start < 0 ? -start : start);
        largest = sum > largest ? sum : largest;
        int32_t shift = out->exponent - x->exponent - exponent_at(e, w, channel);
        low_shift = shift < low_shift ? shift : low_shift;
        high_shift = shift > high_shift ? shift : high_shift;
        if (e->semantics == ENGINE_DEVICE && lane_bits != 0 && channel < f->whole && (least < (double)f->lane_low || greatest > (double)f->lane_high)) {
            f->lanes = true;
        }
    }
    f->wide = largest > 2147483647.0;
    return check_shift(e, n, low_shift) && check_shift(e, n, high_shift) && check_exact(e, n, largest, low_shift, high_shift);
}

static bool filter_shape(engine *e, node *n, const tensor *w, uint32_t outputs, uint32_t kh, uint32_t kw, uint32_t inner)
{
    filter_plan *f = &n->u.filter;
    if (value_bits(w) != 8 && value_bits(w) != 16) {
        return node_unsupported(e, n, "a filter that is not int8 or int16");
    }
    if (w->layout == LAYOUT_PLAIN || w->layout == LAYOUT_UNKNOWN) {
        return node_bad(e, n, "a filter of unknown layout");
    }
    if (w->layout == LAYOUT_BLOCKED && !w->unaligned && outputs % w->lanes != 0) {
        return node_bad(e, n, "output channels that do not fill the blocks of the filter's layout");
    }
    if (outputs == 0 || kh == 0 || kw == 0 || inner == 0 || kh > MAX_SIDE || kw > MAX_SIDE || w->count == 0) {
        return node_bad(e, n, "an empty filter");
    }
    if (w->exponent_count > 1 && w->exponent_count != outputs) {
        return node_bad(e, n, "exponents for another number of output channels");
    }
    f->outputs = outputs;
    f->kernel[0] = (int32_t)kh;
    f->kernel[1] = (int32_t)kw;
    f->inner = inner;
    return true;
}

static bool bias_fits(engine *e, const node *n, const tensor *x, const tensor *w, const tensor *bias, uint32_t outputs)
{
    if (bias == NULL) {
        return true;
    }
    if (!bias->constant || bias->count != outputs || bias->dtype == ENGINE_FLOAT || dtype_bytes(bias->dtype) == 0 ||
        (bias->exponent_count > 1 && bias->exponent_count != outputs)) {
        return node_bad(e, n, "a bias that does not fit the filter");
    }
    for (uint32_t i = 0; i < outputs; i++) {
        if (exponent_at(e, bias, i) != x->exponent + exponent_at(e, w, i)) {
            return node_unsupported(e, n, "a bias whose exponent is not the input's plus the filter's");
        }
        double value = constant_real(e, bias, i);
        if (value > pow2(EXACT_BITS) || value < -pow2(EXACT_BITS)) {
            return node_unsupported(e, n, "a bias past 2^53");
        }
    }
    return true;
}

static bool activation_attribute(engine *e, node *n)
{
    return attribute_is(e, n, "activation", "Relu", false, &n->u.filter.relu);
}

static bool prepare_conv(engine *e, node *n, const tensor *x, const tensor *w, const tensor *bias)
{
    filter_plan *f = &n->u.filter;
    int64_t groups = 1;
    uint32_t dims[4];
    bool flat = w->rank == 3;
    if (w->rank != 3 && w->rank != 4) {
        return node_bad(e, n, "a filter that has neither 3 nor 4 dimensions");
    }
    if (!attribute_integer(e, n, "group", &groups)) {
        return false;
    }
    groups = groups < 1 ? 1 : groups;
    const uint32_t *last = w->dims + w->rank - 3;
    uint32_t outputs = groups == 1 ? last[2] : last[1], inner = groups == 1 ? last[1] : last[2];
    if (!filter_shape(e, n, w, outputs, flat ? 1 : w->dims[0], last[0], inner) || !window_of(e, n, f, flat)) {
        return false;
    }
    if (outputs % groups != 0) {
        return node_bad(e, n, "output channels that do not divide into the groups");
    }
    if (x->rank != w->rank || (uint64_t)inner * (uint64_t)groups != x->dims[x->rank - 1]) {
        return node_bad(e, n, "an input that does not fit the filter");
    }
    f->groups = (uint32_t)groups;
    f->channels = x->dims[x->rank - 1];
    f->batch = x->dims[0];
    f->in[0] = flat ? 1 : x->dims[1];
    f->in[1] = x->dims[x->rank - 2];
    if (!output_sides(e, n, f) || !bias_fits(e, n, x, w, bias, outputs)) {
        return false;
    }
    dims[0] = f->batch;
    dims[1] = f->out[0];
    dims[flat ? 1 : 2] = f->out[1];
    dims[flat ? 2 : 3] = outputs;
    return set_shape(e, n, node_output(e, n, 0), dims, x->rank);
}

/* Gemm, and MatMul with a constant: a 1x1 filter over rows. */
static bool prepare_rows(engine *e, node *n, const tensor *x, const tensor *w, const tensor *bias, uint32_t inner, uint32_t outputs)
{
    filter_plan *f = &n->u.filter;
    uint32_t dims[MAX_RANK];
    if (!filter_shape(e, n, w, outputs, 1, 1, inner)) {
        return false;
    }
    if (x->rank == 0 || x->dims[x->rank - 1] != inner) {
        return node_bad(e, n, "an input that does not fit the filter");
    }
    f->strides[0] = f->strides[1] = f->dilations[0] = f->dilations[1] = 1;
    f->groups = f->batch = f->in[0] = f->out[0] = 1;
    f->channels = inner;
    f->in[1] = f->out[1] = x->count / inner;
    memcpy(dims, x->dims, sizeof dims);
    dims[x->rank - 1] = outputs;
    return bias_fits(e, n, x, w, bias, outputs) && set_shape(e, n, node_output(e, n, 0), dims, x->rank);
}

static bool prepare_gemm(engine *e, node *n, const tensor *x, const tensor *w, const tensor *bias)
{
    int64_t transposed = 0;
    double alpha = 1.0, beta = 1.0;
    bool found;
    if (!attribute_integer(e, n, "transA", &transposed) || !attribute_float(e, n, "alpha", &alpha, &found) || !attribute_float(e, n, "beta", &beta, &found)) {
        return false;
    }
    if (transposed != 0 || alpha != 1.0 || beta != 1.0) {
        return node_unsupported(e, n, "transA, alpha or beta");
    }
    if (w->rank != 4 || w->dims[0] != 1 || w->dims[1] != 1) {
        return node_unsupported(e, n, "a filter of another shape than 1x1xCxN");
    }
    return prepare_rows(e, n, x, w, bias, w->dims[2], w->dims[3]);
}

static bool prepare_products(engine *e, node *n, const tensor *a, const tensor *b)
{
    filter_plan *f = &n->u.filter;
    tensor *out = node_output(e, n, 0);
    uint32_t dims[MAX_RANK], rank = a->rank > b->rank ? a->rank : b->rank;
    n->kind = KIND_MATMUL;
    if (!attribute_is(e, n, "input1_layout", "native_kn", false, &f->native)) {
        return false;
    }
    if (a->rank < 2 || b->rank < 2 || a->dims[a->rank - 1] != b->dims[b->rank - 2]) {
        return node_bad(e, n, "shapes that do not multiply");
    }
    for (uint32_t i = 0; i + 2 < rank; i++) {
        uint32_t left = i + a->rank < rank ? 1 : a->dims[i + a->rank - rank], right = i + b->rank < rank ? 1 : b->dims[i + b->rank - rank];
        if (left != right && left != 1 && right != 1) {
            return node_bad(e, n, "shapes that do not multiply");
        }
        dims[i] = left == 1 ? right : left;
    }
    dims[rank - 2] = a->dims[a->rank - 2];
    dims[rank - 1] = b->dims[b->rank - 1];
    uint32_t bits = value_bits(a), block = bits == 8 ? 16 : 8;
    uint32_t lane_bits = e->target == ENGINE_TARGET_S3 ? (bits == 8 ? 20 : 40) : e->target == ENGINE_TARGET_P4 && bits == 16 ? 40 : 0;
    f->inner = a->dims[a->rank - 1];
    f->outputs = dims[rank - 1];
    f->whole = f->outputs / block * block;
    f->lanes = e->semantics == ENGINE_DEVICE && lane_bits != 0;
    f->lane_high = lane_bits == 0 ? 0 : ((int64_t)1 << (lane_bits - 1)) - 1;
    f->lane_low = -f->lane_high - 1;
    int32_t shift = out->exponent - a->exponent - b->exponent;
    return check_shift(e, n, shift) && check_exact(e, n, pow2((int32_t)(bits + value_bits(b) - 2)) * f->inner, shift, shift) && set_shape(e, n, out, dims, rank);
}

bool prepare_filter(engine *e, node *n)
{
    const tensor *x = node_input(e, n, 0), *w = node_input(e, n, 1), *bias = node_input(e, n, 2);
    if (x == NULL || w == NULL) {
        return node_bad(e, n, "an input is missing");
    }
    if (x->constant) {
        return node_unsupported(e, n, "its first input is a constant");
    }
    if (!integers_only(e, n, x) || !integers_only(e, n, w) || !integers_only(e, n, node_output(e, n, 0)) || !activation_attribute(e, n)) {
        return false;
    }
    n->kind = KIND_CONV;
    bool matmul = strcmp(n->op, "MatMul") == 0, right;
    if (matmul && !w->constant) {
        return prepare_products(e, n, x, w);
    }
    if (!w->constant) {
        return node_unsupported(e, n, "its filter is not a constant");
    }
    if (matmul) {
        uint64_t single = w->rank >= 2 ? (uint64_t)w->dims[w->rank - 1] * w->dims[w->rank - 2] : 0;
        if (w->rank < 2 || single != w->count) {
            return w->rank < 2 ? node_bad(e, n, "a right side of one dimension") : node_unsupported(e, n, "a constant right side of several matrices");
        }
        right = prepare_rows(e, n, x, w, NULL, w->dims[w->rank - 2], w->dims[w->rank - 1]);
        bias = NULL;
    } else if (strcmp(n->op, "Gemm") == 0) {
        right = prepare_gemm(e, n, x, w, bias);
    } else {
        right = prepare_conv(e, n, x, w, bias);
    }
    return right && accumulators(e, n, x, w, bias);
}
