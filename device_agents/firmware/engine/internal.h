/* What the files of the engine share. */
#ifndef BOARDTUNE_ENGINE_INTERNAL_H
#define BOARDTUNE_ENGINE_INTERNAL_H

#include "engine.h"

#include <stdbool.h>
#include <string.h>

#define MAX_RANK ENGINE_MAX_RANK
#define NONE UINT32_MAX
#define MAX_ELEMENTS (1u << 28)
#define MAX_SIDE (1 << 15) /* of an image, a filter, a stride */
#define EXACT_BITS 53      /* sums stay below 2^53, as in the numpy interpreter */

/* ---- the model's bytes ---- */

typedef struct {
    const uint8_t *bytes;
    uint32_t size;
    uint32_t tables_left; /* a vector may name one table many times: without a limit a small file costs any time */
    engine_error *error;
} buffer;

typedef struct {
    uint32_t at, vtable;
    uint16_t fields;
} table;

typedef struct {
    uint32_t at, count; /* of the first element */
} vector;

uint16_t read_u16(const uint8_t *bytes);
uint32_t read_u32(const uint8_t *bytes);
int64_t read_i64(const uint8_t *bytes);
float read_f32(const uint8_t *bytes);

/* All give false after filling the error; `place` is a word for it. A missing field gives an empty vector, 0 or false
 * in `found`. */
bool fb_table(buffer *b, uint32_t at, const char *place, table *out);
bool fb_root(buffer *b, table *out);
uint32_t fb_field(const buffer *b, const table *t, uint32_t field); /* absolute position or 0 */
bool fb_integer(buffer *b, const table *t, uint32_t field, uint32_t bytes, const char *place, int64_t *out);
bool fb_child(buffer *b, const table *t, uint32_t field, const char *place, table *out, bool *found);
bool fb_vector(buffer *b, const table *t, uint32_t field, uint32_t element, const char *place, vector *out);
bool fb_element(buffer *b, const vector *v, uint32_t index, const char *place, table *out);
/* Texts end in NUL inside the file. */
bool fb_text(buffer *b, const table *t, uint32_t field, const char *place, const char **out);
bool fb_text_element(buffer *b, const vector *v, uint32_t index, const char *place, const char **out);
uint32_t text_hash(const char *text);

/* ---- tensors and nodes ---- */

typedef enum { LAYOUT_PLAIN, LAYOUT_NHWC, LAYOUT_HWCN, LAYOUT_BLOCKED, LAYOUT_UNKNOWN } layout_kind;

typedef struct {
    const char *name;
    uint32_t hash;
    uint8_t dtype, rank, layout, lanes;
    bool constant, unaligned, made;
    int32_t exponent;
    uint32_t exponents, exponent_count; /* in the model */
    uint32_t dims[MAX_RANK];
    uint32_t count;
    uint32_t data;      /* constant: in the model; activation: in the activations */
    uint32_t last_use;  /* node index; NONE: kept to the end */
} tensor;

typedef struct node node;

typedef enum {
    KIND_CONV, KIND_MATMUL, KIND_SUM, KIND_MUL, KIND_RESCALE, KIND_QUANTIZE, KIND_DEQUANTIZE, KIND_SOFTMAX, KIND_TABLE8,
    KIND_TABLE16, KIND_CLIP, KIND_PRELU, KIND_FUNCTION, KIND_MAXPOOL, KIND_AVERAGE, KIND_MEAN, KIND_RESIZE, KIND_CONCAT,
    KIND_SPLIT, KIND_STRIDED, KIND_PAD, KIND_GATHER, KIND_INSERT_ZEROS, KIND_COPY
} node_kind;

typedef enum {
    FN_SIGMOID, FN_TANH, FN_SWISH, FN_EXP, FN_LEAKY, FN_ELU, FN_HARD_SIGMOID, FN_HARD_SWISH, FN_IDENTITY
} function_kind;

typedef struct {
    int32_t kernel[2], strides[2], pads[4], dilations[2];
    uint32_t batch, in[2], out[2], channels; /* of the input */
    uint32_t outputs, groups, inner;         /* inner: input channels of a group */
    bool relu, wide, lanes; /* wide: 64-bit sums; lanes: some block can saturate */
    bool native;            /* of two activations: the right one is plain, not packed like a filter */
    int64_t lane_low, lane_high;
    uint32_t whole; /* output channels in whole blocks */
} filter_plan;

/* The part of a filter or window that lies inside the input at one output position. */
typedef struct {
    int32_t y0, x0; /* of its corner in the input */
    int32_t ky0, ky1, kx0, kx1;
} taps;

struct node {
    const char *name, *op;
    uint32_t at;                       /* its table in the model */
    uint32_t first_input, input_count; /* in the engine's list of tensor indices */
    uint32_t first_output, output_count;
    node_kind kind;
    union {
        filter_plan filter;
        struct { int32_t shift_a, shift_b, shift; int8_t sign; } binary;
        struct { int32_t axis; } axis;
        struct { uint32_t table; int32_t step; } lut;
        struct { function_kind function; double alpha, beta; bool low, high; } function;
        struct { int32_t shift_up, shift_down; } prelu;
        struct { uint32_t axes; int32_t shift; uint32_t divisor; } mean; /* axes: a bit for each */
        struct { bool linear, corners; uint32_t sides; float inverse[2]; } resize;
        struct { int32_t start[MAX_RANK], step[MAX_RANK], perm[MAX_RANK]; } strided; /* per output dimension */
        struct { int32_t before[MAX_RANK]; float fill; } pad;
        struct { int32_t strides[2]; } zeros;
    } u;
};

struct engine {
    buffer model;
    engine_target target;
    engine_semantics semantics;
    tensor *tensors;
    uint32_t tensor_count;
    node *nodes;
    uint32_t node_count;
    uint32_t *links; /* tensor indices, NONE for an omitted input */
    uint32_t *inputs, *outputs;
    uint32_t input_count, output_count;
    uint8_t *activations;
    uint32_t activation_bytes;
    size_t arena_used;
    vector test_inputs, test_outputs;
    bool ran;
};

bool half_even(const engine *e);
const tensor *node_input(const engine *e, const node *n, uint32_t index); /* NULL when left out */
tensor *node_output(const engine *e, const node *n, uint32_t index);
uint32_t dtype_bytes(uint8_t dtype);                       /* 0: not a type of numbers */
uint32_t value_bits(const tensor *t);                      /* 8, 16; 0 for float, NONE for others */
int64_t constant_integer(const engine *e, const tensor *t, uint32_t index);
double constant_real(const engine *e, const tensor *t, uint32_t index);
int32_t exponent_at(const engine *e, const tensor *t, uint32_t index);
float load_float(const uint8_t *bytes, uint32_t index);
void store_float(uint8_t *bytes, uint32_t index, float value);

/* In every inner loop, so here. */
static inline const uint8_t *constant_bytes(const engine *e, const tensor *t) { return e->model.bytes + t->data; }

static inline uint8_t *activation_bytes(const engine *e, const tensor *t) { return e->activations + t->data; }

static inline const uint8_t *tensor_bytes(const engine *e, const tensor *t) { return t->constant ? constant_bytes(e, t) : activation_bytes(e, t); }

/* An int8 or int16. */
static inline int32_t load(const uint8_t *bytes, uint8_t dtype, uint32_t index)
{
    if (dtype == ENGINE_INT8) {
        return (int8_t)bytes[index];
    }
    return (int16_t)read_u16(bytes + 2 * (size_t)index);
}

static inline void store(uint8_t *bytes, uint8_t dtype, uint32_t index, int32_t value)
{
    if (dtype == ENGINE_INT8) {
        bytes[index] = (uint8_t)value;
    } else {
        bytes[2 * (size_t)index] = (uint8_t)value;
        bytes[2 * (size_t)index + 1] = (uint8_t)((uint32_t)value >> 8);
    }
}

bool attribute_integer(engine *e, const node *n, const char *name, int64_t *value); /* unchanged when missing */
bool attribute_float(engine *e, const node *n, const char *name, double *value, bool *found);
bool attribute_text(engine *e, const node *n, const char *name, const char **text, uint32_t *length);
bool attribute_is(engine *e, const node *n, const char *name, const char *expected, bool absent, bool *is);
bool attribute_integers(engine *e, const node *n, const char *name, uint32_t most, int64_t *values, uint32_t *count);

/* ---- errors: fill and give false ---- */

void copy_text(char *to, const char *from, size_t size);
bool fail(engine_error *error, engine_status status, const char *op, const char *where, const char *what);
bool node_bad(const engine *e, const node *n, const char *what);
bool node_unsupported(const engine *e, const node *n, const char *what);

/* ---- stages ---- */

bool model_counts(buffer *b, table *graph, uint32_t *tensors, uint32_t *nodes, uint32_t *links, uint32_t *in, uint32_t *out);
bool model_fill(engine *e, const table *graph);
bool test_tensor(engine *e, const table *from, tensor *out);
bool prepare_node(engine *e, node *n);
bool prepare_filter(engine *e, node *n);
bool prepare_move(engine *e, node *n, bool *known);
bool prepare_function(engine *e, node *n, bool *known);
bool prepare_pool(engine *e, node *n, bool *known);
bool set_shape(const engine *e, const node *n, tensor *t, const uint32_t *dims, uint32_t rank);
bool window_of(engine *e, const node *n, filter_plan *f, bool flat);
bool check_exact(const engine *e, const node *n, double bound, int32_t lowest_shift, int32_t highest_shift);
bool integers_only(const engine *e, const node *n, const tensor *t);
bool check_shift(const engine *e, const node *n, int64_t shift);
bool check_scale(const engine *e, const node *n, const tensor *from, const tensor *to); /* from one exponent to another */
bool node_axis(const engine *e, const node *n, int64_t axis, uint32_t rank, uint32_t *out);

taps taps_of(const filter_plan *f, uint32_t oy, uint32_t ox);
void run_node(engine *e, const node *n);
void run_filter(engine *e, const node *n);
void run_matmul(engine *e, const node *n);
void run_binary(engine *e, const node *n);
void run_pool(engine *e, const node *n);
void run_resize(engine *e, const node *n);
void run_move(engine *e, const node *n);
void run_function(engine *e, const node *n);
void run_softmax(engine *e, const node *n);

/* ---- arithmetic ---- */

int64_t shift_round(int64_t value, int32_t shift, bool to_even);
int32_t clip_to(int64_t value, uint32_t bits);
int32_t requantize(int64_t value, int32_t shift, uint32_t bits, bool to_even);
double pow2(int32_t exponent);
/* A real value to an integer of `bits`: scaled, rounded in the type it has, clipped; NaN gives 0. */
int32_t quantize_float(float scaled, uint32_t bits, bool to_even);
int32_t quantize_double(double scaled, uint32_t bits, bool to_even);
double exp_exact(double x);
/* Of an element whose place is known, moved to a tensor with another exponent or type: rescaled (reference) or clipped. */
int32_t moved_value(const engine *e, const tensor *from, const tensor *to, int32_t value);

#endif
