/* Runs a model on raw inputs: run_engine MODEL c|s3|p4 device|reference INPUTS OUTPUTS [REPEAT]
 *
 * INPUTS holds any number of samples, each the bytes of all inputs in order; OUTPUTS gets the bytes of all outputs of
 * each. Without INPUTS: the self-test. Exit codes: 0, 1 usage or files, 2 refused or failed (one line says why). */
#include "../engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint8_t *contents(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    long end = ftell(file);
    uint8_t *bytes = malloc(end > 0 ? (size_t)end : 1); /* exactly: a sanitizer sees the first byte past it */
    rewind(file);
    *size = bytes == NULL ? 0 : fread(bytes, 1, (size_t)end, file);
    fclose(file);
    return bytes;
}

static uint8_t *model, *arena, *inputs;

static int finished(int code)
{
    free(inputs);
    free(arena);
    free(model);
    return code;
}

static int told(const engine_error *error)
{
    printf("%s|%s|%s|%s|%lu|%lu|%ld|%ld\n", engine_status_text(error->status), error->op, error->where, error->what,
           (unsigned long)error->needed_bytes, (unsigned long)error->index, (long)error->expected, (long)error->got);
    return finished(2);
}

int main(int count, char **arguments)
{
    if (count != 4 && count != 6) {
        fprintf(stderr, "run_engine MODEL c|s3|p4 device|reference [INPUTS OUTPUTS]\n");
        return 1;
    }
    engine_target target = strcmp(arguments[2], "s3") == 0 ? ENGINE_TARGET_S3 : strcmp(arguments[2], "p4") == 0 ? ENGINE_TARGET_P4 : ENGINE_TARGET_C;
    engine_semantics semantics = strcmp(arguments[3], "device") == 0 ? ENGINE_DEVICE : ENGINE_REFERENCE;
    size_t model_size, arena_size = 1;
    model = contents(arguments[1], &model_size);
    arena = malloc(1);
    engine *opened;
    engine_error error;
    for (int attempt = 0; attempt < 4; attempt++) {
        if (engine_open(model, model_size, target, semantics, arena, arena_size, &opened, &error) != ENGINE_NO_MEM) {
            break;
        }
        free(arena);
        arena_size = error.needed_bytes;
        arena = malloc(arena_size);
    }
    if (error.status != ENGINE_OK) {
        return told(&error);
    }
    if (count == 4) {
        uint32_t compared;
        if (engine_self_test(opened, 1, &compared, &error) != ENGINE_OK) {
            return told(&error);
        }
        printf("ok %lu tensors, arena %lu of %lu bytes, activations %lu\n", (unsigned long)compared, (unsigned long)engine_arena_used(opened),
               (unsigned long)arena_size, (unsigned long)engine_activation_bytes(opened));
        return finished(0);
    }
    size_t input_size, offset = 0;
    inputs = contents(arguments[4], &input_size);
    FILE *out = fopen(arguments[5], "wb");
    if (out == NULL) {
        fprintf(stderr, "cannot write %s\n", arguments[5]);
        return 1;
    }
    while (offset < input_size) {
        for (uint32_t i = 0; i < engine_input_count(opened); i++) {
            engine_tensor t;
            engine_input(opened, i, &t);
            size_t left = input_size - offset, size = t.size_bytes < left ? t.size_bytes : left;
            if (engine_set_input(opened, i, 0, inputs + offset, size, &error) != ENGINE_OK) {
                return told(&error);
            }
            offset += size;
        }
        if (engine_run(opened, NULL, NULL, &error) != ENGINE_OK) {
            return told(&error);
        }
        for (uint32_t i = 0; i < engine_output_count(opened); i++) {
            engine_tensor t;
            engine_output(opened, i, &t);
            fwrite(engine_output_bytes(opened, i), 1, t.size_bytes, out);
        }
    }
    fclose(out);
    return finished(0);
}
