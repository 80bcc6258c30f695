/* Functions of one value, by table or by formula; Add, Sub, Mul; scales; Softmax. */
#include "internal.h"

static bool table_tensor(engine *e, const node *n, const tensor **found)
{
    const char *name;
    uint32_t length;
    *found = NULL;
    if (!attribute_text(e, n, "lut", &name, &length)) {
        return false;
    }
    if (length == 0) {
        return true;
    }
    for (uint32_t i = 0; i < e->tensor_count; i++) {
        const tensor *t = &e->tensors[i];
        if (t->constant && strlen(t->name) == length && memcmp(t->name, name, length) == 0) {
            *found = t;
        }
    }
    return *found != NULL || node_bad(e, n, "its table is missing");
}

static bool bound_of(engine *e, node *n, uint32_t index, const char *name, double *value, bool *given)
{
    const tensor *t = node_input(e, n, index);
    if (t == NULL) {
        return attribute_float(e, n, name, value, given);
    }
    if (!t->constant || t->count != 1 || dtype_bytes(t->dtype) == 0) {
        return node_bad(e, n, "min or max that is not one constant");
    }
    *given = true;
    *value = constant_real(e, t, 0) * pow2(t->exponent);
    return true;
}

static bool prepare_clip(engine *e, node *n, bool relu)
{
    n->kind = KIND_CLIP;
    if (relu) {
        n->u.function.low = true;
        n->u.function.alpha = 0.0;
        return true;
    }
    return bound_of(e, n, 1, "min", &n->u.function.alpha, &n->u.function.low) && bound_of(e, n, 2, "max", &n->u.function.beta, &n->u.function.high);
}

static bool prepare_prelu(engine *e, node *n, const tensor *x)
{
    const tensor *slope = node_input(e, n, 1);
    uint32_t channels = x->rank == 0 ? 1 : x->dims[x->rank - 1u];
    if (slope == NULL || !slope->constant || (value_bits(slope) != 8 && value_bits(slope) != 16) || (slope->count != 1 && slope->count != channels)) {
        return node_bad(e, n, "slopes that do not fit the input");
    }
    n->kind = KIND_PRELU;
    n->u.prelu.shift_up = node_output(e, n, 0)->exponent - x->exponent;
    n->u.prelu.shift_down = n->u.prelu.shift_up - slope->exponent;
    if (!check_shift(e, n, n->u.prelu.shift_up) || !check_shift(e, n, n->u.prelu.shift_down)) {
        return false;
    }
    int32_t least = n->u.prelu.shift_up < n->u.prelu.shift_down ? n->u.prelu.shift_up : n->u.prelu.shift_down;
    return 31 - least <= EXACT_BITS || node_unsupported(e, n, "sums that may pass 2^53");
}

static bool prepare_formula(engine *e, node *n, const char *name)
{
    static const struct { const char *name; function_kind kind; double alpha, beta; } known[] = {
        {"Sigmoid", FN_SIGMOID, 0, 0}, {"Tanh", FN_TANH, 0, 0}, {"Swish", FN_SWISH, 0, 0}, {"Exp", FN_EXP, 0, 0},
        {"LeakyRelu", FN_LEAKY, 0.01, 0}, {"Elu", FN_ELU, 1.0, 0}, {"HardSigmoid", FN_HARD_SIGMOID, 0.2, 0.5},
        {"HardSwish", FN_HARD_SWISH, 1.0 / 6.0, 0.5}, {"Identity", FN_IDENTITY, 0, 0}, {"Cast", FN_IDENTITY, 0, 0}};
    for (uint32_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i].name) == 0) {
            bool found;
            n->kind = KIND_FUNCTION;
            n->u.function.function = known[i].kind;
            n->u.function.alpha = known[i].alpha;
            n->u.function.beta = known[i].beta;
            if (known[i].kind == FN_HARD_SWISH) {
                return true;
            }
            return attribute_float(e, n, "alpha", &n->u.function.alpha, &found) && attribute_float(e, n, "beta", &n->u.function.beta, &found);
        }
    }
    return node_unsupported(e, n, "no table, and the function is not known");
}

static bool prepare_table(engine *e, node *n, const tensor *lut, uint32_t bits, const tensor *out)
{
    uint32_t expected = bits == 8 ? 256 : lut->count;
    uint32_t step = bits == 8 || lut->count < 2 ? 1 : 65536 / (lut->count - 1);
    if (lut->dtype != out->dtype || lut->count != expected || (bits == 16 && (step < 1 || step * (lut->count - 1) != 65536 || lut->count < 2))) {
        return node_bad(e, n, "a table of another type or length than its input needs");
    }
    if ((step & (step - 1)) != 0) {
        return node_unsupported(e, n, "a table with a step that is no power of two");
    }
    n->kind = bits == 8 ? KIND_TABLE8 : KIND_TABLE16;
    n->u.lut.table = lut->data;
    n->u.lut.step = (int32_t)step;
    return true;
}

bool prepare_function(engine *e, node *n, bool *known)
{
    static const char *const names[] = {"LUT", "Relu", "Clip", "PRelu", "LeakyRelu", "Sigmoid", "Tanh", "Swish", "HardSwish", "HardSigmoid", "Elu",
                                        "Gelu", "Erf", "Softplus", "Exp", "Log", "Sqrt", "Abs", "Neg", "Cos", "Sin", "Tan", "Floor", "Ceil", "Round"};
    uint32_t count = sizeof names / sizeof *names, which = 0;
    const tensor *x = node_input(e, n, 0), *lut;
    tensor *out = node_output(e, n, 0);
    while (which < count && strcmp(n->op, names[which]) != 0) {
        which++;
    }
    *known = which < count;
    if (!*known) {
        return true;
    }
    if (x == NULL || x->constant) {
        return node_bad(e, n, "its input is missing or a constant");
    }
    uint32_t bits = value_bits(x);
    bool right;
    if (!table_tensor(e, n, &lut)) {
        return false;
    }
    if (bits == 0 || value_bits(out) == 0 || value_bits(out) == NONE) {
        return node_unsupported(e, n, "float input or output");
    }
    if (lut != NULL && (bits == 8 || e->semantics == ENGINE_DEVICE || which == 0)) {
        right = prepare_table(e, n, lut, bits, out);
    } else if (which == 1 || which == 2) {
        right = prepare_clip(e, n, which == 1) && (n->u.function.low || n->u.function.high || check_scale(e, n, x, out));
    } else if (which == 3) {
        right = prepare_prelu(e, n, x);
    } else {
        const char *name;
        uint32_t length;
        char kind[16];
        if (!attribute_text(e, n, "original_op_type", &name, &length)) {
            return false;
        }
        memset(kind, 0, sizeof kind);
        memcpy(kind, name, length < sizeof kind ? length : 0);
        right = prepare_formula(e, n, length == 0 ? n->op : kind);
    }
    return right && set_shape(e, n, out, x->dims, x->rank);
}

/* ---- running ---- */

static double sigmoid(double x)
{
    double power = exp_exact(x < 0 ? x : -x);
    return x >= 0 ? 1.0 / (1.0 + power) : power / (1.0 + power);
}

static double hyperbolic_tangent(double x)
{
    double power = exp_exact(-2.0 * (x < 0 ? -x : x)), positive = (1.0 - power) / (1.0 + power);
    return x >= 0 ? positive : -positive;
}

static double within(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

static double value_of_function(const node *n, double x)
{
    double alpha = n->u.function.alpha, beta = n->u.function.beta, product;
    switch (n->u.function.function) {
    case FN_SIGMOID: return sigmoid(x);
    case FN_TANH: return hyperbolic_tangent(x);
    case FN_SWISH: return x * sigmoid(x);
    case FN_EXP: return exp_exact(x);
    case FN_LEAKY: return x >= 0 ? x : x * alpha;
    case FN_ELU: return x > 0 ? x : alpha * (exp_exact(x < 0 ? x : 0.0) - 1);
    case FN_HARD_SIGMOID: product = alpha * x; return within(product + beta, 0.0, 1.0);
    case FN_HARD_SWISH: product = alpha * x; return x * within(product + beta, 0.0, 1.0);
    default: return x;
    }
}

static int32_t sloped(const engine *e, const node *n, const tensor *slope, uint32_t index, int32_t value, uint32_t bits)
{
    if (value >= 0) {
        return requantize(value, n->u.prelu.shift_up, bits, half_even(e));
    }
    int32_t factor = load(constant_bytes(e, slope), slope->dtype, slope->count == 1 ? 0 : index % slope->count);
    return requantize((int64_t)value * factor, n->u.prelu.shift_down, bits, half_even(e));
}

static int32_t nearest(const engine *e, const node *n, const tensor *out, int32_t value)
{
    int64_t place = shift_round((int64_t)value + 32768, 0, false);
    int32_t step = n->u.lut.step, shift = 0;
    while (1 << shift < step) {
        shift++;
    }
    return load(e->model.bytes + n->u.lut.table, out->dtype, (uint32_t)shift_round(place, shift, half_even(e)));
}

void run_function(engine *e, const node *n)
{
    const tensor *x = node_input(e, n, 0), *out = node_output(e, n, 0), *slope = node_input(e, n, 1);
    const uint8_t *from = tensor_bytes(e, x);
    uint8_t *to = activation_bytes(e, out);
    uint32_t bits = value_bits(out), in_bits = value_bits(x);
    bool to_even = half_even(e);
    double scale = pow2(x->exponent), inverse = pow2(-out->exponent);
    for (uint32_t i = 0; i < out->count; i++) {
        if (n->kind == KIND_QUANTIZE) {
            store(to, out->dtype, i, quantize_float(load_float(from, i) * (float)inverse, bits, to_even));
            continue;
        }
        int32_t value = load(from, x->dtype, i), result;
        if (n->kind == KIND_DEQUANTIZE) {
            store_float(to, i, (float)value * (float)scale);
            continue;
        }
        switch (n->kind) {
        case KIND_TABLE8: result = load(e->model.bytes + n->u.lut.table, out->dtype, (uint32_t)(value + 128)); break;
        case KIND_TABLE16: result = nearest(e, n, out, value); break;
        case KIND_PRELU: result = sloped(e, n, slope, i, value, bits); break;
        case KIND_RESCALE: result = requantize(value, out->exponent - x->exponent, bits, to_even); break;
        case KIND_CLIP:
            if (!n->u.function.low && !n->u.function.high && in_bits != 0) {
                result = requantize(value, out->exponent - x->exponent, bits, to_even);
            } else {
                double real = (double)value * scale;
                real = n->u.function.low && real < n->u.function.alpha ? n->u.function.alpha : real;
                real = n->u.function.high && real > n->u.function.beta ? n->u.function.beta : real;
                result = quantize_double(real * inverse, bits, to_even);
            }
            break;
        default: result = quantize_double(value_of_function(n, (double)value * scale) * inverse, bits, to_even);
        }
        store(to, out->dtype, i, result);
    }
}

void run_binary(engine *e, const node *n)
{
    const tensor *a = node_input(e, n, 0), *b = node_input(e, n, 1), *out = node_output(e, n, 0);
    const uint8_t *left = tensor_bytes(e, a), *right = tensor_bytes(e, b);
    uint8_t *to = activation_bytes(e, out);
    uint32_t bits = value_bits(out), steps_a[MAX_RANK], steps_b[MAX_RANK], index[MAX_RANK] = {0}, at_a = 0, at_b = 0;
    uint32_t size_a = 1, size_b = 1;
    bool to_even = half_even(e);
    for (uint32_t i = out->rank; i-- > 0;) {
        uint32_t own_a = i + a->rank < out->rank ? 1 : a->dims[i + a->rank - out->rank], own_b = i + b->rank < out->rank ? 1 : b->dims[i + b->rank - out->rank];
        steps_a[i] = own_a == 1 ? 0 : size_a;
        steps_b[i] = own_b == 1 ? 0 : size_b;
        size_a *= own_a;
        size_b *= own_b;
    }
    for (uint32_t i = 0; i < out->count; i++) {
        int64_t x = load(left, a->dtype, at_a), y = load(right, b->dtype, at_b), sum;
        if (n->kind == KIND_MUL) {
            sum = x * y;
        } else {
            sum = shift_round(x, -n->u.binary.shift_a, false) + n->u.binary.sign * shift_round(y, -n->u.binary.shift_b, false);
        }
        store(to, out->dtype, i, requantize(sum, n->u.binary.shift, bits, to_even));
        for (uint32_t axis = out->rank; axis-- > 0;) {
            at_a += steps_a[axis];
            at_b += steps_b[axis];
            if (++index[axis] < out->dims[axis]) {
                break;
            }
            at_a -= steps_a[axis] * out->dims[axis];
            at_b -= steps_b[axis] * out->dims[axis];
            index[axis] = 0;
        }
    }
}

static double real_at(const tensor *x, const uint8_t *from, uint32_t index)
{
    return value_bits(x) == 0 ? (double)load_float(from, index) : (double)load(from, x->dtype, index) * pow2(x->exponent);
}

void run_softmax(engine *e, const node *n)
{
    const tensor *x = node_input(e, n, 0), *out = node_output(e, n, 0);
    const uint8_t *from = tensor_bytes(e, x);
    uint8_t *to = activation_bytes(e, out);
    uint32_t axis = (uint32_t)n->u.axis.axis, length = x->dims[axis], inner = 1;
    for (uint32_t i = axis + 1; i < x->rank; i++) {
        inner *= x->dims[i];
    }
    uint32_t rows = length == 0 ? 0 : x->count / length;
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t first = row / inner * length * inner + row % inner;
        double most = real_at(x, from, first), total = 0;
        for (uint32_t i = 1; i < length; i++) {
            double real = real_at(x, from, first + i * inner);
            most = real > most ? real : most;
        }
        for (uint32_t i = 0; i < length; i++) {
            total += exp_exact(real_at(x, from, first + i * inner) - most);
        }
        for (uint32_t i = 0; i < length; i++) {
            uint32_t at = first + i * inner;
            float share = (float)(exp_exact(real_at(x, from, at) - most) / total);
            if (value_bits(out) == 0) {
                store_float(to, at, share);
            } else {
                store(to, out->dtype, at, quantize_float(share * (float)pow2(-out->exponent), value_bits(out), half_even(e)));
            }
        }
    }
}
