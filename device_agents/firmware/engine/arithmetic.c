/* The arithmetic of the numpy interpreter (device_agents/emulated/espdl/arithmetic.py), to the bit.
 *
 * Integers are integers here; where the interpreter uses a float, so does this, with the same operations in the same
 * order. Nothing needs libm. */
#include "internal.h"

int64_t shift_round(int64_t value, int32_t shift, bool to_even)
{
    if (shift <= 0) {
        return shift == 0 ? value : value * (int64_t)(1ull << -shift); /* bounded when the node was prepared */
    }
    uint64_t magnitude = value < 0 ? (uint64_t)0 - (uint64_t)value : (uint64_t)value;
    uint64_t whole = magnitude >> shift, rest = magnitude & ((1ull << shift) - 1), half = 1ull << (shift - 1);
    if (rest > half || (rest == half && (to_even ? (whole & 1) != 0 : value > 0))) {
        whole++;
    }
    return value < 0 ? -(int64_t)whole : (int64_t)whole;
}

int32_t clip_to(int64_t value, uint32_t bits)
{
    int32_t high = (int32_t)((1u << (bits - 1)) - 1);
    return value > high ? high : value < -high - 1 ? -high - 1 : (int32_t)value;
}

int32_t requantize(int64_t value, int32_t shift, uint32_t bits, bool to_even)
{
    return clip_to(shift_round(value, shift, to_even), bits);
}

double pow2(int32_t exponent)
{
    if (exponent < -1022 || exponent > 1023) {
        return exponent < 0 ? 0.0 : 1.7976931348623157e308;
    }
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

int32_t quantize_float(float scaled, uint32_t bits, bool to_even)
{
    if (scaled != scaled) {
        return 0;
    }
    if (scaled > 100000.0f || scaled < -100000.0f) {
        return clip_to(scaled > 0 ? INT32_MAX : INT32_MIN, bits);
    }
    if (!to_even) {
        float up = scaled + 0.5f;
        int32_t floor_up = (int32_t)up;
        return clip_to((float)floor_up > up ? floor_up - 1 : floor_up, bits);
    }
    int32_t floored = (int32_t)scaled;
    if ((float)floored > scaled) {
        floored--;
    }
    float rest = scaled - (float)floored;
    return clip_to(rest > 0.5f || (rest == 0.5f && (floored & 1) != 0) ? (int64_t)floored + 1 : floored, bits);
}

int32_t quantize_double(double scaled, uint32_t bits, bool to_even)
{
    if (scaled != scaled) {
        return 0;
    }
    if (scaled > 100000.0 || scaled < -100000.0) {
        return clip_to(scaled > 0 ? INT32_MAX : INT32_MIN, bits);
    }
    if (!to_even) {
        double up = scaled + 0.5;
        int32_t floor_up = (int32_t)up;
        return clip_to((double)floor_up > up ? floor_up - 1 : floor_up, bits);
    }
    int32_t floored = (int32_t)scaled;
    if ((double)floored > scaled) {
        floored--;
    }
    double rest = scaled - (double)floored;
    return clip_to(rest > 0.5 || (rest == 0.5 && (floored & 1) != 0) ? (int64_t)floored + 1 : floored, bits);
}

/* Taylor series after reduction to |r| <= ln(2)/2; see arithmetic.py. */
double exp_exact(double x)
{
    static const double factorials[] = {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0,
                                        720.0,       120.0,      24.0,      6.0,      2.0,     1.0, 1.0};
    x = x < -700.0 ? -700.0 : x > 700.0 ? 700.0 : x;
    double place = x * 1.44269504088896338700e+00 + 0.5;
    int32_t k = (int32_t)place;
    if ((double)k > place) {
        k--;
    }
    double r = (x - (double)k * 6.93147180369123816490e-01) - (double)k * 1.90821492927058770002e-10;
    double total = 1.0 / 6227020800.0;
    for (uint32_t i = 0; i < sizeof factorials / sizeof *factorials; i++) {
        total = total * r + 1.0 / factorials[i];
    }
    return total * pow2(k);
}

int32_t moved_value(const engine *e, const tensor *from, const tensor *to, int32_t value)
{
    uint32_t bits = value_bits(to);
    if (from->exponent == to->exponent && from->dtype == to->dtype) {
        return value;
    }
    int32_t shift = e->semantics == ENGINE_DEVICE ? 0 : to->exponent - from->exponent;
    return requantize(value, shift, bits, half_even(e));
}
