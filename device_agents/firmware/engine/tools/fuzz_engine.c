/* Feeds the engine bytes that are no good model.
 *
 * With libFuzzer: clang -fsanitize=fuzzer,address,undefined -DLIBFUZZER …; AFL++ can drive the same entry.
 * Without: fuzz_engine ITERATIONS SEED FILE… mutates the files at random and prints a line every ten seconds. The first
 * byte of an input says target and semantics, the rest is the file. */
#include "../engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ARENA_BYTES = 256 * 1024, MOST_NODES = 200 };

static uint32_t outcomes[8];

static int few_nodes(void *context, uint32_t index, const char *name, const char *op)
{
    (void)context;
    return index >= MOST_NODES || name == NULL || op == NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    engine *opened;
    engine_error error;
    if (size < 1) {
        return 0;
    }
    uint8_t *model = malloc(size), *arena = malloc(ARENA_BYTES); /* of exactly this size: what lies past is poisoned */
    if (model == NULL || arena == NULL) {
        abort();
    }
    memcpy(model, data + 1, size - 1);
    engine_status status = engine_open(model, size - 1, (engine_target)(data[0] % 3), (engine_semantics)(data[0] / 3 % 2), arena, ARENA_BYTES, &opened, &error);
    if (status == ENGINE_OK) {
        for (uint32_t i = 0; i < engine_input_count(opened); i++) {
            engine_tensor t;
            engine_input(opened, i, &t);
            uint8_t byte = (uint8_t)(data[0] + i);
            for (size_t k = 0; k < t.size_bytes; k++) {
                byte = (uint8_t)(byte * 5 + 113);
                engine_set_input(opened, i, k, &byte, 1, &error);
            }
        }
        status = engine_run(opened, few_nodes, NULL, &error);
        if (status == ENGINE_OK) {
            uint32_t compared;
            volatile uint8_t last = 0;
            for (uint32_t i = 0; i < engine_output_count(opened); i++) {
                engine_tensor t;
                engine_output(opened, i, &t);
                if (t.size_bytes > 0) {
                    last ^= ((const uint8_t *)engine_output_bytes(opened, i))[t.size_bytes - 1];
                }
            }
            engine_self_test(opened, 1, &compared, &error);
        }
    }
    outcomes[status]++;
    free(arena);
    free(model);
    return 0;
}

#ifndef LIBFUZZER
static uint64_t state;

static uint32_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

static uint8_t *contents(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    long end = ftell(file);
    uint8_t *bytes = malloc((size_t)end + 1);
    rewind(file);
    *size = bytes == NULL ? 0 : fread(bytes, 1, (size_t)end, file);
    fclose(file);
    return bytes;
}

/* Some bytes, some whole words near what is there, now and then an end cut off. */
static size_t mutate(uint8_t *data, size_t size)
{
    static const uint32_t words[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 16, 255, 65536};
    uint32_t count = 1 + draw() % 6;
    for (uint32_t i = 0; i < count; i++) {
        size_t at = 17 + draw() % (size - 24);
        switch (draw() % 5) {
        case 0: data[at] = (uint8_t)draw(); break;
        case 1: data[at] ^= (uint8_t)(1u << draw() % 8); break;
        case 2: data[at] = (uint8_t)(data[at] + draw() % 9 - 4); break;
        case 3: memcpy(data + at / 4 * 4 + 1, &words[draw() % 8], 4); break;
        default: memcpy(data + at, data + 17 + draw() % (size - 24), 4);
        }
    }
    return draw() % 50 == 0 ? 1 + draw() % size : size;
}

int main(int count, char **arguments)
{
    if (count < 4) {
        fprintf(stderr, "fuzz_engine ITERATIONS SEED FILE…\n");
        return 1;
    }
    unsigned long iterations = strtoul(arguments[1], NULL, 10);
    state = strtoul(arguments[2], NULL, 10) * 2654435761u + 88172645463325252ull;
    size_t files = (size_t)count - 3, *sizes = malloc(files * sizeof *sizes);
    uint8_t **bytes = malloc(files * sizeof *bytes);
    time_t told = time(NULL);
    for (size_t i = 0; i < files; i++) {
        bytes[i] = contents(arguments[i + 3], &sizes[i]);
    }
    for (unsigned long i = 0; i < iterations; i++) {
        size_t which = draw() % files, size = sizes[which] + 1;
        uint8_t *data = malloc(size + 8);
        data[0] = (uint8_t)draw();
        memcpy(data + 1, bytes[which], sizes[which]);
        LLVMFuzzerTestOneInput(data, i < files ? size : mutate(data, size));
        free(data);
        if (time(NULL) - told >= 10) {
            told = time(NULL);
            printf("%lu inputs\n", i + 1);
            fflush(stdout);
        }
    }
    printf("%lu inputs:", iterations);
    for (int i = 0; i < 8; i++) {
        printf(" %s %lu,", engine_status_text((engine_status)i), (unsigned long)outcomes[i]);
    }
    printf(" no finding\n");
    for (size_t i = 0; i < files; i++) {
        free(bytes[i]);
    }
    free(bytes);
    free(sizes);
    return 0;
}
#endif
