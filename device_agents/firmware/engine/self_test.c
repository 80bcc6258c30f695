/* The model on the test values it brings. */
#include "internal.h"

typedef struct {
    engine *e;
    int32_t tolerance;
    uint32_t compared;
    engine_error *error;
} trial;

static bool floats_differ(float expected, float got)
{
    float gap = expected > got ? expected - got : got - expected, size = expected < 0 ? -expected : expected;
    return !(gap <= 1e-5f * (size > 1.0f ? size : 1.0f));
}

static bool compare(trial *t, const tensor *expected, const tensor *got)
{
    const uint8_t *wanted = constant_bytes(t->e, expected), *made = activation_bytes(t->e, got);
    if (expected->dtype != got->dtype || expected->count != got->count) {
        return fail(t->error, ENGINE_MISMATCH, "", got->name, "another type or number of values than the test value");
    }
    for (uint32_t i = 0; i < got->count; i++) {
        int64_t left, right;
        bool differ;
        if (value_bits(got) == 0) {
            float a = load_float(wanted, i), b = load_float(made, i);
            differ = floats_differ(a, b);
            left = a > -2e9f && a < 2e9f ? (int64_t)a : 0;
            right = b > -2e9f && b < 2e9f ? (int64_t)b : 0;
        } else {
            left = load(wanted, got->dtype, i);
            right = load(made, got->dtype, i);
            int64_t gap = left > right ? left - right : right - left;
            differ = gap > (value_bits(got) == 8 ? 0 : t->tolerance);
        }
        if (differ) {
            fail(t->error, ENGINE_MISMATCH, "", got->name, "a value that is not the test value");
            t->error->index = i;
            t->error->expected = (int32_t)left;
            t->error->got = (int32_t)right;
            return false;
        }
    }
    t->compared++;
    return true;
}

/* The tensor of a list of test values. */
static bool test_value(engine *e, const vector *list, uint32_t index, tensor *out)
{
    table t;
    e->model.tables_left = UINT32_MAX; /* the model is open: its tables were counted */
    return fb_element(&e->model, list, index, "test values", &t) && test_tensor(e, &t, out);
}

/* Compares what a node made with its test values, where there are some. */
static bool right_after(trial *t, const node *n)
{
    for (uint32_t k = 0; k < n->output_count; k++) {
        const tensor *made = node_output(t->e, n, k);
        for (uint32_t i = 0; i < t->e->test_outputs.count; i++) {
            tensor expected;
            if (!test_value(t->e, &t->e->test_outputs, i, &expected)) {
                return false;
            }
            if (expected.hash == made->hash && strcmp(expected.name, made->name) == 0 && !compare(t, &expected, made)) {
                return false;
            }
        }
    }
    return true;
}

engine_status engine_self_test(engine *opened, int32_t tolerance_wide, uint32_t *tensors_compared, engine_error *error)
{
    trial t = {opened, tolerance_wide, 0, error};
    memset(error, 0, sizeof *error);
    *tensors_compared = 0;
    opened->model.error = error;
    if (opened->test_inputs.count == 0 || opened->test_outputs.count == 0) {
        fail(error, ENGINE_BAD_ARGUMENT, "", "", "the model has no test values");
        return error->status;
    }
    for (uint32_t i = 0; i < opened->test_inputs.count; i++) {
        tensor value;
        if (!test_value(opened, &opened->test_inputs, i, &value)) {
            return error->status;
        }
        int32_t index = engine_find_input(opened, value.name);
        const tensor *input = index < 0 ? NULL : &opened->tensors[opened->inputs[index]];
        if (input == NULL || input->dtype != value.dtype || input->count != value.count) {
            fail(error, ENGINE_BAD_MODEL, "", value.name, "a test value that fits no input");
            return error->status;
        }
        memcpy(activation_bytes(opened, input), constant_bytes(opened, &value), (size_t)value.count * dtype_bytes(value.dtype));
    }
    for (uint32_t i = 0; i < opened->node_count; i++) {
        run_node(opened, &opened->nodes[i]);
        if (!right_after(&t, &opened->nodes[i])) {
            break;
        }
    }
    opened->ran = true;
    *tensors_compared = t.compared;
    return error->status;
}
