/* Reading a flatbuffer without trusting it: every offset and length is checked before it is followed. */
#include "internal.h"

uint16_t read_u16(const uint8_t *bytes) { return (uint16_t)(bytes[0] | (uint16_t)bytes[1] << 8); }

uint32_t read_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

int64_t read_i64(const uint8_t *bytes)
{
    uint64_t bits = (uint64_t)read_u32(bytes) | (uint64_t)read_u32(bytes + 4) << 32;
    int64_t value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float read_f32(const uint8_t *bytes)
{
    uint32_t bits = read_u32(bytes);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void copy_text(char *to, const char *from, size_t size)
{
    size_t length = 0;
    while (length + 1 < size && from[length] != '\0') {
        to[length] = from[length];
        length++;
    }
    to[length] = '\0';
}

bool fail(engine_error *error, engine_status status, const char *op, const char *where, const char *what)
{
    memset(error, 0, sizeof *error);
    error->status = status;
    copy_text(error->op, op, sizeof error->op);
    copy_text(error->where, where, sizeof error->where);
    copy_text(error->what, what, sizeof error->what);
    return false;
}

static bool broken(buffer *b, const char *place, const char *what) { return fail(b->error, ENGINE_BAD_MODEL, "", place, what); }

static bool inside(const buffer *b, uint64_t at, uint64_t bytes) { return at + bytes <= b->size; }

static bool spend(buffer *b, const char *place)
{
    if (b->tables_left == 0) {
        return broken(b, place, "more tables than the file has room for");
    }
    b->tables_left--;
    return true;
}

bool fb_table(buffer *b, uint32_t at, const char *place, table *out)
{
    memset(out, 0, sizeof *out);
    if (!spend(b, place)) {
        return false;
    }
    if (!inside(b, at, 4)) {
        return broken(b, place, "a table past the end");
    }
    int64_t vtable = (int64_t)at - (int32_t)read_u32(b->bytes + at);
    if (vtable < 0 || !inside(b, (uint64_t)vtable, 4)) {
        return broken(b, place, "a vtable outside the file");
    }
    uint16_t size = read_u16(b->bytes + vtable);
    if (size < 4 || size % 2 != 0 || !inside(b, (uint64_t)vtable, size)) {
        return broken(b, place, "a vtable of impossible size");
    }
    out->at = at;
    out->vtable = (uint32_t)vtable;
    out->fields = (uint16_t)(size / 2 - 2);
    return true;
}

static bool follow(buffer *b, uint32_t at, const char *place, uint32_t *out)
{
    *out = 0;
    if (!inside(b, at, 4)) {
        return broken(b, place, "an offset past the end");
    }
    uint64_t target = (uint64_t)at + read_u32(b->bytes + at);
    if (!inside(b, target, 4)) {
        return broken(b, place, "an offset that leads past the end");
    }
    *out = (uint32_t)target;
    return true;
}

bool fb_root(buffer *b, table *out)
{
    uint32_t at = 0;
    return follow(b, 0, "model", &at) && fb_table(b, at, "model", out);
}

uint32_t fb_field(const buffer *b, const table *t, uint32_t field)
{
    if (field >= t->fields) {
        return 0;
    }
    uint16_t offset = read_u16(b->bytes + t->vtable + 4 + 2 * field);
    return offset == 0 ? 0 : t->at + offset;
}

bool fb_integer(buffer *b, const table *t, uint32_t field, uint32_t bytes, const char *place, int64_t *out)
{
    uint32_t at = fb_field(b, t, field);
    *out = 0;
    if (at == 0) {
        return true;
    }
    if (!inside(b, at, bytes)) {
        return broken(b, place, "a number past the end");
    }
    *out = bytes == 1 ? b->bytes[at] : bytes == 4 ? (int32_t)read_u32(b->bytes + at) : read_i64(b->bytes + at);
    return true;
}

bool fb_child(buffer *b, const table *t, uint32_t field, const char *place, table *out, bool *found)
{
    uint32_t at = fb_field(b, t, field);
    *found = at != 0;
    memset(out, 0, sizeof *out);
    return at == 0 || (follow(b, at, place, &at) && fb_table(b, at, place, out));
}

static bool vector_at(buffer *b, uint32_t at, uint32_t element, const char *place, vector *out)
{
    out->at = out->count = 0;
    if (!inside(b, at, 4)) {
        return broken(b, place, "a vector past the end");
    }
    out->count = read_u32(b->bytes + at);
    out->at = at + 4;
    if (!inside(b, (uint64_t)at + 4, (uint64_t)out->count * element)) {
        return broken(b, place, "elements past the end");
    }
    return true;
}

bool fb_vector(buffer *b, const table *t, uint32_t field, uint32_t element, const char *place, vector *out)
{
    uint32_t at = fb_field(b, t, field);
    out->at = out->count = 0;
    return at == 0 || (follow(b, at, place, &at) && vector_at(b, at, element, place, out));
}

bool fb_element(buffer *b, const vector *v, uint32_t index, const char *place, table *out)
{
    uint32_t at = 0;
    memset(out, 0, sizeof *out);
    return follow(b, v->at + 4 * index, place, &at) && fb_table(b, at, place, out);
}

static bool text_at(buffer *b, uint32_t at, const char *place, const char **out)
{
    vector v = {0, 0};
    if (!vector_at(b, at, 1, place, &v)) {
        return false;
    }
    if (!inside(b, v.at, (uint64_t)v.count + 1) || memchr(b->bytes + v.at, '\0', (size_t)v.count + 1) != b->bytes + v.at + v.count) {
        return broken(b, place, "a text that does not end where it should");
    }
    *out = (const char *)(b->bytes + v.at);
    return true;
}

bool fb_text(buffer *b, const table *t, uint32_t field, const char *place, const char **out)
{
    uint32_t at = fb_field(b, t, field);
    *out = "";
    return at == 0 || (follow(b, at, place, &at) && text_at(b, at, place, out));
}

bool fb_text_element(buffer *b, const vector *v, uint32_t index, const char *place, const char **out)
{
    uint32_t at = 0;
    *out = "";
    return spend(b, place) && follow(b, v->at + 4 * index, place, &at) && text_at(b, at, place, out);
}

uint32_t text_hash(const char *text)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *text != '\0'; text++) {
        hash = (hash ^ (uint8_t)*text) * 16777619u;
    }
    return hash;
}
