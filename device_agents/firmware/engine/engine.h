/* Integer engine for `.espdl` models: portable C99, no heap, no libm.
 *
 * The caller owns two pieces of memory and keeps both alive while the engine is open: the bytes of the model, which
 * are only read (flash or PSRAM; any alignment), and an arena, from which the engine takes everything it needs.
 * Nothing outside them is written. Bytes of the model are not trusted: every offset is checked, and a bad model gives
 * an error that names the place, never undefined behaviour.
 *
 * Values are integers as the model stores them; real value = q * 2^exponent. Shapes are those of the exported graph:
 * channels last for images. Floats appear where a model has them (Softmax); they are computed in IEEE arithmetic without
 * contraction, so compile with -std=c99 or -ffp-contract=off.
 */
#ifndef BOARDTUNE_ENGINE_H
#define BOARDTUNE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ENGINE_MAX_RANK 8u
#define ENGINE_TEXT_SIZE 96u /* of texts in an engine_error, with the final NUL */

typedef enum {
    ENGINE_OK = 0,
    ENGINE_BAD_MODEL = 1,      /* not an .espdl, truncated, or an offset, shape or attribute makes no sense */
    ENGINE_ENCRYPTED = 2,      /* the container is encrypted, and there is no key */
    ENGINE_UNSUPPORTED_OP = 3, /* error.op names the operator, error.where the node */
    ENGINE_NO_MEM = 4,         /* the arena is too small: error.needed_bytes is what would do, 0 if not known */
    ENGINE_BAD_ARGUMENT = 5,   /* no such tensor, wrong size, not opened */
    ENGINE_STOPPED = 6,        /* the node callback asked to stop (deadline) */
    ENGINE_MISMATCH = 7        /* self-test: error.where is the first tensor that differs */
} engine_status;

/* The numbers of TensorDataType in espdl.fbs (those of ONNX). */
typedef enum {
    ENGINE_FLOAT = 1,
    ENGINE_UINT8 = 2,
    ENGINE_INT8 = 3,
    ENGINE_UINT16 = 4,
    ENGINE_INT16 = 5,
    ENGINE_INT32 = 6,
    ENGINE_INT64 = 7,
    ENGINE_BOOL = 9,
    ENGINE_UINT32 = 12,
    ENGINE_UINT64 = 13
} engine_dtype;

/* Whose arithmetic: which rounding, bias width and accumulators. The file does not say for which target it was made,
 * so the caller does. */
typedef enum {
    ENGINE_TARGET_C = 0, /* esp32, esp32s2, c2/c3/c5/c6: half up, per-tensor weights, NHWC filters */
    ENGINE_TARGET_S3 = 1, /* esp32s3: half up, 20-bit lanes */
    ENGINE_TARGET_P4 = 2  /* esp32p4, esp32s31: half to even */
} engine_target;

typedef enum {
    ENGINE_DEVICE = 0,   /* as esp-dl's kernels compute: Add does not rescale, the S3's int8 lanes saturate at 20 bits */
    ENGINE_REFERENCE = 1 /* as ESP-PPQ simulates */
} engine_semantics;

typedef struct {
    engine_status status;
    char op[ENGINE_TEXT_SIZE];    /* operator type, or "" */
    char where[ENGINE_TEXT_SIZE]; /* node or tensor, or "" */
    char what[ENGINE_TEXT_SIZE];  /* one sentence */
    size_t needed_bytes;
    /* ENGINE_MISMATCH only: the flat index of the first value that differs, and both values */
    uint32_t index;
    int32_t expected;
    int32_t got;
} engine_error;

typedef struct {
    const char *name; /* NUL-terminated, lives in the model */
    engine_dtype dtype;
    uint32_t rank; /* 0: a scalar */
    uint32_t dims[ENGINE_MAX_RANK];
    int32_t exponent;   /* of every element; 0 for floats */
    size_t size_bytes;  /* of the whole tensor */
} engine_tensor;

typedef struct engine engine; /* lives at the start of the arena */

/* Called after every node with its index in execution order, its name and operator type; the caller reads its own
 * clock. Return 0 to go on, anything else to stop the run (ENGINE_STOPPED). */
typedef int (*engine_node_callback)(void *context, uint32_t index, const char *name, const char *op);

/* Checks the whole model, plans memory, refuses what it cannot run. `arena` may have any alignment. On ENGINE_OK
 * *opened points into the arena. `error` is always filled (status ENGINE_OK when nothing is wrong). On ENGINE_NO_MEM
 * error->needed_bytes is an arena that would do: exactly, once there was room for the engine's tables, else at least. */
engine_status engine_open(const uint8_t *model, size_t model_size, engine_target target, engine_semantics semantics,
                          void *arena, size_t arena_size, engine **opened, engine_error *error);

uint32_t engine_input_count(const engine *opened);
uint32_t engine_output_count(const engine *opened);
uint32_t engine_node_count(const engine *opened);
/* 0 or ENGINE_BAD_ARGUMENT for an index past the last. */
engine_status engine_input(const engine *opened, uint32_t index, engine_tensor *tensor);
engine_status engine_output(const engine *opened, uint32_t index, engine_tensor *tensor);
/* -1 when there is none of that name. */
int32_t engine_find_input(const engine *opened, const char *name);
int32_t engine_find_output(const engine *opened, const char *name);
/* Name and operator type of a node in execution order; NULL past the last. */
const char *engine_node_name(const engine *opened, uint32_t index);
const char *engine_node_op(const engine *opened, uint32_t index);

/* What the arena holds: total bytes used, and the part of it that is activations. */
size_t engine_arena_used(const engine *opened);
size_t engine_activation_bytes(const engine *opened);

/* Copies `size` bytes to `offset` of an input; inputs keep their values between runs. Little-endian. */
engine_status engine_set_input(engine *opened, uint32_t index, size_t offset, const void *bytes, size_t size,
                               engine_error *error);

/* One inference. `callback` may be NULL. Deterministic: the same inputs give the same bytes. */
engine_status engine_run(engine *opened, engine_node_callback callback, void *context, engine_error *error);

/* Bytes of an output after a run, as laid out in the model; valid until the next run. NULL for a bad index. */
const void *engine_output_bytes(const engine *opened, uint32_t index);

/* Runs the model on the test inputs stored in it and compares every tensor whose test values it holds, in execution
 * order: integers of 8 bits exactly, wider ones to `tolerance_wide` units. ENGINE_MISMATCH names the first that
 * differs; ENGINE_BAD_ARGUMENT when the model has no test values. Inputs are overwritten. */
engine_status engine_self_test(engine *opened, int32_t tolerance_wide, uint32_t *tensors_compared, engine_error *error);

/* A constant text for a status: "ok", "bad model", … */
const char *engine_status_text(engine_status status);

#ifdef __cplusplus
}
#endif
#endif
