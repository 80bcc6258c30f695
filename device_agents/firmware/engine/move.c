/* Running operators that only move values. */
#include "internal.h"

typedef struct {
    const engine *e;
    const tensor *from, *to;
    const uint8_t *source;
    uint8_t *target;
    bool plain; /* bytes as they are */
    uint32_t width;
} mover;

static mover mover_of(const engine *e, const tensor *from, const tensor *to)
{
    mover m;
    m.e = e;
    m.from = from;
    m.to = to;
    m.source = tensor_bytes(e, from);
    m.target = activation_bytes(e, to);
    m.plain = value_bits(from) == 0 || (from->dtype == to->dtype && (from->exponent == to->exponent || e->semantics == ENGINE_DEVICE));
    m.width = dtype_bytes(to->dtype);
    return m;
}

/* `count` elements next to each other. */
static void move(const mover *m, uint32_t to, uint32_t from, uint32_t count)
{
    if (m->plain) {
        memcpy(m->target + (size_t)to * m->width, m->source + (size_t)from * m->width, (size_t)count * m->width);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        store(m->target, m->to->dtype, to + i, moved_value(m->e, m->from, m->to, load(m->source, m->from->dtype, from + i)));
    }
}

static uint32_t product(const uint32_t *dims, uint32_t first, uint32_t last)
{
    uint32_t all = 1;
    for (uint32_t i = first; i < last; i++) {
        all *= dims[i];
    }
    return all;
}

static void fill_with(const engine *e, const tensor *t, float value)
{
    for (uint32_t i = 0; i < t->count; i++) {
        if (value_bits(t) == 0) {
            store_float(activation_bytes(e, t), i, value);
        } else {
            store(activation_bytes(e, t), t->dtype, i, (int32_t)value);
        }
    }
}

static void run_strided(const engine *e, const node *n)
{
    const tensor *x = node_input(e, n, 0), *out = node_output(e, n, 0);
    mover m = mover_of(e, x, out);
    uint32_t index[MAX_RANK] = {0}, steps[MAX_RANK], at = 0;
    for (uint32_t i = 0; i < out->rank; i++) {
        uint32_t axis = (uint32_t)n->u.strided.perm[i], stride = product(x->dims, axis + 1, x->rank);
        at += (uint32_t)n->u.strided.start[i] * stride;
        steps[i] = (uint32_t)n->u.strided.step[i] * stride;
    }
    for (uint32_t i = 0; i < out->count; i++) {
        move(&m, i, at, 1);
        for (uint32_t axis = out->rank; axis-- > 0;) { /* the next place, wrapping modulo 2^32 on the way back */
            at += steps[axis];
            if (++index[axis] < out->dims[axis]) {
                break;
            }
            at -= steps[axis] * out->dims[axis];
            index[axis] = 0;
        }
    }
}

/* Pieces along an axis: into the output (Concat) or out of the input (Split). */
static void run_pieces(const engine *e, const node *n, bool join)
{
    uint32_t pieces = join ? n->input_count : n->output_count, offset = 0, axis = (uint32_t)n->u.axis.axis;
    const tensor *whole = join ? node_output(e, n, 0) : node_input(e, n, 0);
    uint32_t outer = product(whole->dims, 0, axis), row = product(whole->dims, axis, whole->rank);
    for (uint32_t i = 0; i < pieces; i++) {
        const tensor *piece = join ? node_input(e, n, i) : node_output(e, n, i);
        mover m = mover_of(e, join ? piece : whole, join ? whole : piece);
        uint32_t own = product(piece->dims, axis, piece->rank);
        for (uint32_t k = 0; k < outer; k++) {
            uint32_t in_whole = k * row + offset;
            move(&m, join ? in_whole : k * own, join ? k * own : in_whole, own);
        }
        offset += own;
    }
}

static void run_pad(const engine *e, const node *n)
{
    const tensor *x = node_input(e, n, 0), *out = node_output(e, n, 0);
    mover m = mover_of(e, x, out);
    float fill = n->u.pad.fill;
    if (value_bits(x) != 0) {
        fill = (float)moved_value(e, x, out, (int32_t)fill);
    }
    fill_with(e, out, fill);
    for (uint32_t i = 0; i < x->count; i++) {
        uint32_t rest = i, at = 0, step = 1;
        for (uint32_t axis = x->rank; axis-- > 0;) {
            at += (rest % x->dims[axis] + (uint32_t)n->u.pad.before[axis]) * step;
            step *= out->dims[axis];
            rest /= x->dims[axis];
        }
        move(&m, at, i, 1);
    }
}

static void run_gather(const engine *e, const node *n)
{
    const tensor *x = node_input(e, n, 0), *indices = node_input(e, n, 1), *out = node_output(e, n, 0);
    mover m = mover_of(e, x, out);
    uint32_t axis = (uint32_t)n->u.axis.axis, outer = product(x->dims, 0, axis), row = product(x->dims, axis + 1, x->rank);
    for (uint32_t k = 0; k < outer; k++) {
        for (uint32_t i = 0; i < indices->count; i++) {
            int64_t index = constant_integer(e, indices, i);
            uint32_t wanted = (uint32_t)(index < 0 ? index + x->dims[axis] : index);
            move(&m, (k * indices->count + i) * row, (k * x->dims[axis] + wanted) * row, row);
        }
    }
}

static void run_zeros(const engine *e, const node *n)
{
    const tensor *x = node_input(e, n, 0), *out = node_output(e, n, 0);
    mover m = mover_of(e, x, out);
    bool flat = x->rank == 3;
    uint32_t height = flat ? 1 : x->dims[1], width = x->dims[x->rank - 2u], channels = x->dims[x->rank - 1u];
    uint32_t out_h = flat ? 1 : out->dims[1], out_w = out->dims[out->rank - 2u];
    uint32_t step_y = flat ? 1 : (uint32_t)n->u.zeros.strides[0], step_x = (uint32_t)n->u.zeros.strides[flat ? 0 : 1];
    fill_with(e, out, 0.0f);
    for (uint32_t batch = 0; batch < x->dims[0]; batch++) {
        for (uint32_t y = 0; y < height; y++) {
            for (uint32_t column = 0; column < width; column++) {
                move(&m, ((batch * out_h + y * step_y) * out_w + column * step_x) * channels, ((batch * height + y) * width + column) * channels, channels);
            }
        }
    }
}

void run_move(engine *e, const node *n)
{
    switch (n->kind) {
    case KIND_STRIDED: run_strided(e, n); break;
    case KIND_CONCAT: run_pieces(e, n, true); break;
    case KIND_SPLIT: run_pieces(e, n, false); break;
    case KIND_PAD: run_pad(e, n); break;
    case KIND_GATHER: run_gather(e, n); break;
    case KIND_INSERT_ZEROS: run_zeros(e, n); break;
    default: {
        mover m = mover_of(e, node_input(e, n, 0), node_output(e, n, 0));
        move(&m, 0, 0, node_output(e, n, 0)->count);
    }
    }
}
