/* Conv, Gemm and MatMul. */
#include "internal.h"

/* Where a channel's terms lie: base + y * sy + x * sx + c * sc. See layout.py for the layouts. */
typedef struct {
    uint32_t base, sy, sx, sc;
} strides;

static strides channel_strides(const tensor *w, const filter_plan *f, uint32_t channel)
{
    uint32_t width = (uint32_t)f->kernel[1], terms = (uint32_t)f->kernel[0] * width * f->inner;
    uint32_t blocked = w->layout == LAYOUT_BLOCKED ? f->outputs / w->lanes * w->lanes : 0;
    strides s;
    if (w->layout == LAYOUT_HWCN) {
        s.base = channel;
        s.sc = f->outputs;
    } else if (channel < blocked) {
        s.base = channel / w->lanes * w->lanes * terms + channel % w->lanes;
        s.sc = w->lanes;
    } else if (w->layout == LAYOUT_BLOCKED && f->groups > 1) { /* CHWN */
        uint32_t rest = f->outputs - blocked;
        s.base = blocked * terms + channel - blocked;
        s.sc = (uint32_t)f->kernel[0] * width * rest;
        s.sx = rest;
        s.sy = width * rest;
        return s;
    } else {
        s.base = channel * terms;
        s.sc = 1;
    }
    s.sx = f->inner * s.sc;
    s.sy = width * s.sx;
    return s;
}

/* The taps of one side that lie inside the input. */
static void inside(int32_t corner, int32_t kernel, int32_t dilation, int32_t size, int32_t *first, int32_t *last)
{
    *first = corner < 0 ? (-corner + dilation - 1) / dilation : 0;
    int32_t end = corner >= size ? 0 : (size - 1 - corner) / dilation + 1;
    *last = end < kernel ? end : kernel;
}

taps taps_of(const filter_plan *f, uint32_t oy, uint32_t ox)
{
    taps p;
    p.y0 = (int32_t)oy * f->strides[0] - f->pads[0];
    p.x0 = (int32_t)ox * f->strides[1] - f->pads[1];
    inside(p.y0, f->kernel[0], f->dilations[0], (int32_t)f->in[0], &p.ky0, &p.ky1);
    inside(p.x0, f->kernel[1], f->dilations[1], (int32_t)f->in[1], &p.kx0, &p.kx1);
    return p;
}

/* First input element under a tap. */
static uint32_t under(const filter_plan *f, const taps *p, uint32_t batch, int32_t ky, int32_t kx)
{
    uint32_t y = (uint32_t)(p->y0 + ky * f->dilations[0]), x = (uint32_t)(p->x0 + kx * f->dilations[1]);
    return ((batch * f->in[0] + y) * f->in[1] + x) * f->channels;
}

typedef struct {
    const engine *e;
    const filter_plan *f;
    const tensor *x, *w, *bias, *out;
    const uint8_t *input, *weights;
    uint8_t *output;
    uint32_t bits;
    bool to_even;
} job;

static void put(const job *j, uint32_t index, uint32_t channel, int64_t sum)
{
    int32_t shift = j->out->exponent - j->x->exponent - exponent_at(j->e, j->w, channel);
    int32_t value = requantize(sum, shift, j->bits, j->to_even);
    store(j->output, j->out->dtype, index, j->f->relu && value < 0 ? 0 : value);
}

static int64_t start_of(const job *j, uint32_t channel) { return j->bias == NULL ? 0 : constant_integer(j->e, j->bias, channel); }

static int64_t lane(int64_t sum, const filter_plan *f) { return sum > f->lane_high ? f->lane_high : sum < f->lane_low ? f->lane_low : sum; }

/* One output channel at one position, of any types and layout. */
static int64_t any_sum(const job *j, const taps *p, uint32_t batch, uint32_t channel)
{
    const filter_plan *f = j->f;
    strides s = channel_strides(j->w, f, channel);
    uint32_t first = channel / (f->outputs / f->groups) * f->inner;
    bool clipped = f->lanes && channel < f->whole;
    int64_t sum = start_of(j, channel);
    sum = clipped ? lane(sum, f) : sum;
    for (int32_t ky = p->ky0; ky < p->ky1; ky++) {
        for (int32_t kx = p->kx0; kx < p->kx1; kx++) {
            uint32_t at = under(f, p, batch, ky, kx) + first, weight = s.base + (uint32_t)ky * s.sy + (uint32_t)kx * s.sx;
            for (uint32_t c = 0; c < f->inner; c++, weight += s.sc) {
                sum += (int64_t)load(j->input, j->x->dtype, at + c) * load(j->weights, j->w->dtype, weight);
                sum = clipped ? lane(sum, f) : sum;
            }
        }
    }
    return sum;
}

/* int8 with sums of 32 bits whose terms lie next to each other (NHWC, and the tails of blocked filters). */
static int32_t near_sum(const job *j, const taps *p, uint32_t batch, uint32_t channel)
{
    const filter_plan *f = j->f;
    strides s = channel_strides(j->w, f, channel);
    uint32_t first = channel / (f->outputs / f->groups) * f->inner;
    int32_t sum = (int32_t)start_of(j, channel);
    for (int32_t ky = p->ky0; ky < p->ky1; ky++) {
        for (int32_t kx = p->kx0; kx < p->kx1; kx++) {
            const int8_t *x = (const int8_t *)j->input + under(f, p, batch, ky, kx) + first;
            const int8_t *w = (const int8_t *)j->weights + s.base + (uint32_t)ky * s.sy + (uint32_t)kx * s.sx;
            for (uint32_t c = 0; c < f->inner; c++) {
                sum += x[c] * w[c];
            }
        }
    }
    return sum;
}

/* int8, one whole block of 16 output channels at one position. */
static void block_sums(const job *j, const taps *p, uint32_t batch, uint32_t channel, bool depthwise, int32_t sums[16])
{
    const filter_plan *f = j->f;
    uint32_t terms = (uint32_t)(f->kernel[0] * f->kernel[1]) * f->inner;
    const int8_t *weights = (const int8_t *)j->weights + channel * terms;
    for (uint32_t i = 0; i < 16; i++) {
        sums[i] = (int32_t)start_of(j, channel + i);
    }
    for (int32_t ky = p->ky0; ky < p->ky1; ky++) {
        for (int32_t kx = p->kx0; kx < p->kx1; kx++) {
            const int8_t *x = (const int8_t *)j->input + under(f, p, batch, ky, kx);
            const int8_t *w = weights + (uint32_t)(ky * f->kernel[1] + kx) * f->inner * 16;
            if (depthwise) {
                for (uint32_t i = 0; i < 16; i++) {
                    sums[i] += x[channel + i] * w[i];
                }
                continue;
            }
            for (uint32_t c = 0; c < f->inner; c++, w += 16) {
                int32_t value = x[c];
                for (uint32_t i = 0; i < 16; i++) {
                    sums[i] += value * w[i];
                }
            }
        }
    }
}

static void one_position(const job *j, uint32_t batch, uint32_t oy, uint32_t ox)
{
    const filter_plan *f = j->f;
    taps p = taps_of(f, oy, ox);
    uint32_t at = ((batch * f->out[0] + oy) * f->out[1] + ox) * f->outputs, channel = 0;
    bool bytes = j->x->dtype == ENGINE_INT8 && j->w->dtype == ENGINE_INT8 && !f->wide && !f->lanes;
    bool depthwise = f->groups > 1 && f->inner == 1 && f->groups == f->outputs;
    if (bytes && j->w->layout == LAYOUT_BLOCKED && j->w->lanes == 16 && (f->groups == 1 || depthwise)) {
        for (; channel + 16 <= f->outputs; channel += 16) {
            int32_t sums[16];
            block_sums(j, &p, batch, channel, depthwise, sums);
            for (uint32_t i = 0; i < 16; i++) {
                put(j, at + channel + i, channel + i, sums[i]);
            }
        }
    }
    bool near = bytes && f->groups == 1 && j->w->layout != LAYOUT_HWCN;
    for (; channel < f->outputs; channel++) {
        bool tail = j->w->layout == LAYOUT_NHWC || (j->w->layout == LAYOUT_BLOCKED && channel >= f->outputs / j->w->lanes * j->w->lanes);
        put(j, at + channel, channel, near && tail ? near_sum(j, &p, batch, channel) : any_sum(j, &p, batch, channel));
    }
}

void run_filter(engine *e, const node *n)
{
    job j;
    j.e = e;
    j.f = &n->u.filter;
    j.x = node_input(e, n, 0);
    j.w = node_input(e, n, 1);
    j.bias = strcmp(n->op, "MatMul") == 0 ? NULL : node_input(e, n, 2);
    j.out = node_output(e, n, 0);
    j.input = tensor_bytes(e, j.x);
    j.weights = tensor_bytes(e, j.w);
    j.output = activation_bytes(e, j.out);
    j.bits = value_bits(j.out);
    j.to_even = half_even(e);
    for (uint32_t batch = 0; batch < j.f->batch; batch++) {
        for (uint32_t oy = 0; oy < j.f->out[0]; oy++) {
            for (uint32_t ox = 0; ox < j.f->out[1]; ox++) {
                one_position(&j, batch, oy, ox);
            }
        }
    }
}

/* Where an element of the right side lies: plain, or packed like a 1x1 filter by nodes before (see layout.py). */
static uint32_t in_matrix(const engine *e, const filter_plan *f, const tensor *b, uint32_t k, uint32_t column)
{
    uint32_t lanes = value_bits(b) == 8 ? 16 : 8, whole = f->outputs / lanes * lanes;
    if (f->native) {
        return k * f->outputs + column;
    }
    if (e->target == ENGINE_TARGET_C || column >= whole) {
        return column * f->inner + k;
    }
    return column / lanes * lanes * f->inner + k * lanes + column % lanes;
}

/* Of two activations; their leading dimensions broadcast. */
void run_matmul(engine *e, const node *n)
{
    const filter_plan *f = &n->u.filter;
    const tensor *a = node_input(e, n, 0), *b = node_input(e, n, 1), *out = node_output(e, n, 0);
    const uint8_t *left = tensor_bytes(e, a), *right = tensor_bytes(e, b);
    uint8_t *to = activation_bytes(e, out);
    uint32_t rows = out->dims[out->rank - 2], columns = f->outputs, inner = f->inner, matrices = rows * columns == 0 ? 0 : out->count / (rows * columns);
    int32_t shift = out->exponent - a->exponent - b->exponent;
    for (uint32_t matrix = 0; matrix < matrices; matrix++) {
        uint32_t rest = matrix, at_a = 0, at_b = 0, size_a = rows * inner, size_b = inner * columns;
        for (uint32_t i = out->rank - 2; i-- > 0;) {
            uint32_t index = rest % out->dims[i];
            rest /= out->dims[i];
            if (i + a->rank >= out->rank) {
                uint32_t own = a->dims[i + a->rank - out->rank];
                at_a += own == 1 ? 0 : index * size_a;
                size_a *= own;
            }
            if (i + b->rank >= out->rank) {
                uint32_t own = b->dims[i + b->rank - out->rank];
                at_b += own == 1 ? 0 : index * size_b;
                size_b *= own;
            }
        }
        for (uint32_t row = 0; row < rows; row++) {
            for (uint32_t column = 0; column < columns; column++) {
                int64_t sum = 0;
                bool clipped = f->lanes && column < f->whole;
                for (uint32_t k = 0; k < inner; k++) {
                    sum += (int64_t)load(left, a->dtype, at_a + row * inner + k) * load(right, b->dtype, at_b + in_matrix(e, f, b, k, column));
                    sum = clipped ? lane(sum, f) : sum;
                }
                int32_t value = requantize(sum, shift, value_bits(out), half_even(e));
                store(to, out->dtype, (matrix * rows + row) * columns + column, f->relu && value < 0 ? 0 : value);
            }
        }
    }
}
