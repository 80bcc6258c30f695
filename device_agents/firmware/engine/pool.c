/* MaxPool, AveragePool, GlobalAveragePool, ReduceMean, Resize. Averages and linear resizing are float32, as in the interpreter. */
#include "internal.h"

static bool integer_pair(engine *e, const node *n)
{
    const tensor *x = node_input(e, n, 0);
    if (x == NULL || x->constant) {
        return node_bad(e, n, "its input is missing or a constant");
    }
    uint32_t in = value_bits(x), out = value_bits(node_output(e, n, 0));
    if ((in != 8 && in != 16) || (out != 8 && out != 16)) {
        return node_unsupported(e, n, "float input or output");
    }
    return check_scale(e, n, x, node_output(e, n, 0));
}

static bool prepare_window(engine *e, node *n, bool average)
{
    filter_plan *f = &n->u.filter;
    const tensor *x = node_input(e, n, 0);
    int64_t kernel[2], ceil = 0;
    uint32_t count, dims[4];
    if (!integer_pair(e, n) || !attribute_integers(e, n, "kernel_shape", 2, kernel, &count) || !attribute_integer(e, n, "ceil_mode", &ceil)) {
        return false;
    }
    bool flat = count == 1;
    if (count == 0 || x->rank != count + 2) {
        return node_bad(e, n, "a kernel_shape that does not fit the input");
    }
    for (uint32_t i = 0; i < count; i++) {
        if (kernel[i] < 1 || kernel[i] > MAX_SIDE) {
            return node_bad(e, n, "a kernel_shape out of range");
        }
    }
    f->kernel[0] = flat ? 1 : (int32_t)kernel[0];
    f->kernel[1] = (int32_t)kernel[flat ? 0 : 1];
    if (!window_of(e, n, f, flat)) {
        return false;
    }
    for (uint32_t i = 0; i < 4; i++) {
        if (f->pads[i] >= f->kernel[i % 2]) {
            return node_bad(e, n, "pads as wide as the window");
        }
    }
    if (average && (f->dilations[0] != 1 || f->dilations[1] != 1)) {
        return node_unsupported(e, n, "dilations");
    }
    f->batch = x->dims[0];
    f->in[0] = flat ? 1 : x->dims[1];
    f->in[1] = x->dims[x->rank - 2];
    f->channels = f->outputs = x->dims[x->rank - 1];
    for (uint32_t side = 0; side < 2; side++) {
        int64_t padded = (int64_t)f->in[side] + f->pads[side] + f->pads[side + 2], reach = (int64_t)(f->kernel[side] - 1) * f->dilations[side] + 1;
        int64_t windows = padded < reach ? 0 : (padded - reach) / f->strides[side] + 1;
        if (ceil != 0 && padded >= 0) {
            int64_t room = padded - reach, up = (room >= 0 ? (room + f->strides[side] - 1) / f->strides[side] : -(-room / f->strides[side])) + 1;
            if ((up - 1) * f->strides[side] >= (int64_t)f->in[side] + f->pads[side]) {
                up--;
            }
            windows = up;
        }
        if (windows < 1) {
            return node_bad(e, n, "a window larger than its input");
        }
        f->out[side] = (uint32_t)windows;
    }
    n->kind = average ? KIND_AVERAGE : KIND_MAXPOOL;
    dims[0] = f->batch;
    dims[1] = f->out[0];
    dims[flat ? 1 : 2] = f->out[1];
    dims[flat ? 2 : 3] = f->channels;
    return set_shape(e, n, node_output(e, n, 0), dims, x->rank);
}

static bool prepare_mean(engine *e, node *n, bool global)
{
    const tensor *x = node_input(e, n, 0), *given = node_input(e, n, 1);
    int64_t keep = 1, axes[MAX_RANK];
    uint32_t count = 0, mask = 0, dims[MAX_RANK], rank = 0;
    uint64_t divisor = 1;
    if (!integer_pair(e, n)) {
        return false;
    }
    if (global) {
        if (x->rank != 3 && x->rank != 4) {
            return node_bad(e, n, "an input that has neither 3 nor 4 dimensions");
        }
        mask = x->rank == 3 ? 2u : 6u;
    } else {
        if (!attribute_integer(e, n, "keepdims", &keep) || !attribute_integers(e, n, "axes", MAX_RANK, axes, &count)) {
            return false;
        }
        if (given != NULL) {
            if (!given->constant || given->count > MAX_RANK || given->dtype == ENGINE_FLOAT || dtype_bytes(given->dtype) == 0) {
                return node_unsupported(e, n, "axes that are no constant integers");
            }
            count = given->count;
            for (uint32_t i = 0; i < count; i++) {
                axes[i] = constant_integer(e, given, i);
            }
        }
        for (uint32_t i = 0; i < count; i++) {
            uint32_t axis;
            if (!node_axis(e, n, axes[i], x->rank, &axis)) {
                return false;
            }
            mask |= 1u << axis;
        }
        mask = mask == 0 ? (1u << x->rank) - 1 : mask;
    }
    for (uint32_t i = 0; i < x->rank; i++) {
        bool gone = (mask >> i & 1) != 0;
        divisor *= gone ? x->dims[i] : 1;
        if (!gone || keep != 0) {
            dims[rank++] = gone ? 1 : x->dims[i];
        }
    }
    if (divisor == 0) {
        return node_bad(e, n, "a mean of nothing");
    }
    n->kind = KIND_MEAN;
    n->u.mean.axes = mask;
    n->u.mean.divisor = (uint32_t)divisor;
    n->u.mean.shift = node_output(e, n, 0)->exponent - x->exponent;
    return set_shape(e, n, node_output(e, n, 0), dims, rank);
}

static bool prepare_resize(engine *e, node *n)
{
    const tensor *x = node_input(e, n, 0), *scales = node_input(e, n, 2), *sizes = node_input(e, n, 3);
    uint32_t dims[MAX_RANK];
    bool nearest, linear;
    if (!integer_pair(e, n) || !attribute_is(e, n, "mode", "nearest", true, &nearest) || !attribute_is(e, n, "mode", "linear", false, &linear) ||
        !attribute_is(e, n, "coordinate_transformation_mode", "align_corners", false, &n->u.resize.corners)) {
        return false;
    }
    if (!nearest && !linear) {
        return node_unsupported(e, n, "a mode other than nearest and linear");
    }
    const tensor *given = sizes != NULL && sizes->count != 0 ? sizes : scales;
    bool by_size = given == sizes && sizes != NULL;
    if (given == NULL || !given->constant || given->count != x->rank || x->rank < 3 || x->rank > 4 || dtype_bytes(given->dtype) == 0 ||
        (by_size && given->dtype == ENGINE_FLOAT)) {
        return node_bad(e, n, "neither scales nor sizes that fit the input");
    }
    n->u.resize.linear = linear;
    n->u.resize.sides = x->rank - 2u;
    memcpy(dims, x->dims, sizeof dims);
    for (uint32_t side = 0; side < n->u.resize.sides; side++) {
        double in = (double)x->dims[side + 1], value = constant_real(e, given, side + 2), out = by_size ? value : in * value;
        if (!(value > 0) || !(out >= 1) || out > MAX_SIDE || value > MAX_SIDE || x->dims[side + 1] == 0) {
            return node_bad(e, n, "an output size out of range");
        }
        dims[side + 1] = (uint32_t)out;
        n->u.resize.inverse[side] = by_size ? (float)in / (float)out : (float)(1.0 / value);
        if (n->u.resize.corners && linear) {
            n->u.resize.inverse[side] = dims[side + 1] > 1 ? (float)((in - 1) / (double)(dims[side + 1] - 1)) : 0.0f;
        }
    }
    n->kind = KIND_RESIZE;
    return set_shape(e, n, node_output(e, n, 0), dims, x->rank);
}

bool prepare_pool(engine *e, node *n, bool *known)
{
    *known = true;
    if (strcmp(n->op, "MaxPool") == 0) {
        return prepare_window(e, n, false);
    }
    if (strcmp(n->op, "AveragePool") == 0) {
        return prepare_window(e, n, true);
    }
    if (strcmp(n->op, "GlobalAveragePool") == 0 || strcmp(n->op, "ReduceMean") == 0) {
        return prepare_mean(e, n, *n->op == 'G');
    }
    if (strcmp(n->op, "Resize") == 0) {
        return prepare_resize(e, n);
    }
    *known = false;
    return true;
}

/* ESP-PPQ divides by the count; the device multiplies by the reciprocal of the whole window. */
static int32_t averaged(const engine *e, const tensor *out, int64_t total, uint32_t count, uint32_t whole, int32_t shift)
{
    float sum = (float)total, mean;
    if (e->semantics == ENGINE_DEVICE) {
        mean = sum * (1.0f / (float)whole);
    } else {
        mean = sum / (float)count;
    }
    return quantize_float(mean * (float)pow2(-shift), value_bits(out), half_even(e));
}

static void one_window(const engine *e, const node *n, const tensor *x, const tensor *out, uint32_t batch, uint32_t oy, uint32_t ox)
{
    const filter_plan *f = &n->u.filter;
    const uint8_t *from = tensor_bytes(e, x);
    uint8_t *to = activation_bytes(e, out);
    taps p = taps_of(f, oy, ox);
    int32_t y0 = p.y0, x0 = p.x0;
    int32_t high = (int32_t)f->in[0] + f->pads[2], wide = (int32_t)f->in[1] + f->pads[3]; /* padding counts, what ceil_mode adds does not */
    int32_t rows = y0 + f->kernel[0] < high ? f->kernel[0] : high - y0, columns = x0 + f->kernel[1] < wide ? f->kernel[1] : wide - x0;
    uint32_t at = ((batch * f->out[0] + oy) * f->out[1] + ox) * f->channels;
    for (uint32_t c = 0; c < f->channels; c++) {
        int64_t total = 0;
        int32_t most = value_bits(x) == 8 ? -128 : -32768;
        for (int32_t ky = p.ky0; ky < p.ky1; ky++) {
            int32_t y = y0 + ky * f->dilations[0];
            for (int32_t kx = p.kx0; kx < p.kx1; kx++) {
                int32_t column = x0 + kx * f->dilations[1];
                int32_t value = load(from, x->dtype, ((batch * f->in[0] + (uint32_t)y) * f->in[1] + (uint32_t)column) * f->channels + c);
                total += value;
                most = value > most ? value : most;
            }
        }
        if (n->kind == KIND_MAXPOOL) {
            store(to, out->dtype, at + c, moved_value(e, x, out, most));
        } else {
            store(to, out->dtype, at + c,
                  averaged(e, out, total, (uint32_t)(rows * columns), (uint32_t)(f->kernel[0] * f->kernel[1]), out->exponent - x->exponent));
        }
    }
}

static void run_mean(engine *e, const node *n)
{
    const tensor *x = node_input(e, n, 0), *out = node_output(e, n, 0);
    const uint8_t *from = tensor_bytes(e, x);
    uint8_t *to = activation_bytes(e, out);
    uint32_t steps[MAX_RANK], step = 1;
    for (uint32_t i = x->rank; i-- > 0;) {
        steps[i] = step;
        step *= x->dims[i];
    }
    for (uint32_t i = 0; i < out->count; i++) {
        uint32_t rest = i, base = 0;
        for (uint32_t axis = x->rank; axis-- > 0;) {
            if ((n->u.mean.axes >> axis & 1) == 0) {
                base += rest % x->dims[axis] * steps[axis];
                rest /= x->dims[axis];
            }
        }
        int64_t total = 0;
        for (uint32_t k = 0; k < n->u.mean.divisor; k++) {
            uint32_t inner = k, at = base;
            for (uint32_t axis = x->rank; axis-- > 0;) {
                if ((n->u.mean.axes >> axis & 1) != 0) {
                    at += inner % x->dims[axis] * steps[axis];
                    inner /= x->dims[axis];
                }
            }
            total += load(from, x->dtype, at);
        }
        store(to, out->dtype, i, averaged(e, out, total, n->u.mean.divisor, n->u.mean.divisor, n->u.mean.shift));
    }
}

void run_pool(engine *e, const node *n)
{
    const filter_plan *f = &n->u.filter;
    if (n->kind == KIND_MEAN) {
        run_mean(e, n);
        return;
    }
    for (uint32_t batch = 0; batch < f->batch; batch++) {
        for (uint32_t oy = 0; oy < f->out[0]; oy++) {
            for (uint32_t ox = 0; ox < f->out[1]; ox++) {
                one_window(e, n, node_input(e, n, 0), node_output(e, n, 0), batch, oy, ox);
            }
        }
    }
}

typedef struct {
    uint32_t low, high;
    float before, after;
} mixture;

static mixture mixed(uint32_t index, uint32_t size, float inverse, bool corners)
{
    mixture m;
    float source = corners ? (float)index * inverse : ((float)index + 0.5f) * inverse - 0.5f;
    source = source < 0.0f ? 0.0f : source;
    m.low = (uint32_t)source;
    m.low = m.low > size - 1 ? size - 1 : m.low;
    m.high = m.low + 1 > size - 1 ? size - 1 : m.low + 1;
    m.after = source - (float)m.low;
    m.after = m.after > 1.0f ? 1.0f : m.after;
    m.before = 1.0f - m.after;
    return m;
}

static uint32_t nearest_of(uint32_t index, uint32_t size, float inverse)
{
    float source = (float)index * inverse;
    return source >= (float)(size - 1) ? size - 1 : (uint32_t)source;
}

void run_resize(engine *e, const node *n)
{
    const tensor *x = node_input(e, n, 0), *out = node_output(e, n, 0);
    const uint8_t *from = tensor_bytes(e, x);
    uint8_t *to = activation_bytes(e, out);
    bool flat = n->u.resize.sides == 1;
    uint32_t in_h = flat ? 1 : x->dims[1], in_w = x->dims[x->rank - 2u], out_h = flat ? 1 : out->dims[1], out_w = out->dims[out->rank - 2u];
    uint32_t channels = x->dims[x->rank - 1u], index = 0;
    float inverse_w = n->u.resize.inverse[n->u.resize.sides - 1], inverse_h = flat ? 1.0f : n->u.resize.inverse[0];
    float factor = (float)pow2(x->exponent - out->exponent);
    for (uint32_t batch = 0; batch < x->dims[0]; batch++) {
        for (uint32_t oy = 0; oy < out_h; oy++) {
            mixture rows = {0, 0, 1.0f, 0.0f};
            if (!flat && n->u.resize.linear) {
                rows = mixed(oy, in_h, inverse_h, n->u.resize.corners);
            } else if (!flat) {
                rows.low = nearest_of(oy, in_h, inverse_h);
            }
            for (uint32_t ox = 0; ox < out_w; ox++) {
                mixture columns = {nearest_of(ox, in_w, inverse_w), 0, 1.0f, 0.0f};
                if (n->u.resize.linear) {
                    columns = mixed(ox, in_w, inverse_w, n->u.resize.corners);
                }
                uint32_t top = (batch * in_h + rows.low) * in_w, bottom = (batch * in_h + rows.high) * in_w;
                for (uint32_t c = 0; c < channels; c++, index++) {
                    int32_t corner = load(from, x->dtype, (top + columns.low) * channels + c);
                    if (!n->u.resize.linear) {
                        int32_t shift = out->exponent - x->exponent;
                        store(to, out->dtype, index, requantize(corner, shift, value_bits(out), half_even(e)));
                        continue;
                    }
                    float upper = (float)corner * columns.before, other = (float)load(from, x->dtype, (top + columns.high) * channels + c) * columns.after;
                    float value = upper + other;
                    if (!flat) {
                        float lower = (float)load(from, x->dtype, (bottom + columns.low) * channels + c) * columns.before;
                        other = (float)load(from, x->dtype, (bottom + columns.high) * channels + c) * columns.after;
                        lower = lower + other;
                        upper = value * rows.before;
                        lower = lower * rows.after;
                        value = upper + lower;
                    }
                    store(to, out->dtype, index, quantize_float(value * factor, value_bits(out), half_even(e)));
                }
            }
        }
    }
}
