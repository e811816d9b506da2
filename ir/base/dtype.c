/* dtype.c: tables of dtypes and scale layouts (types.def), and conversions of
 * low-precision dtypes. */
#include "base.h"

#define FN __attribute__((unused)) static inline
#include "narrow.pre"

/* clang-format off */
const DtypeInfo dtypes[NDTYPE] = {
#define DT(name, ...) {#name, __VA_ARGS__},
#define SCALE(id, name, rows, cols, dt)
#include "types.def"
};
const char *const scalenames[NSCALE] = {
#define DT(...)
#define SCALE(id, name, rows, cols, dt) name,
#include "types.def"
};
const ScaleInfo scales[NSCALE] = {
#define DT(...)
#define SCALE(id, name, rows, cols, dt) {rows, cols, D##dt},
#include "types.def"
};
/* clang-format on */

int dtype_named(const char *name)
{
    for (int i = 0; i < NDTYPE; i++)
        if (!strcmp(dtypes[i].name, name))
            return i;
    return -1;
}

float bf16_to_f32(uint16_t x)
{
    return f32_bits((int32_t)((uint32_t)x << 16));
}

uint16_t f32_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) /* NaN stays NaN: quiet */
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

int16_t f32_remainder(float x)
{
    return (int16_t)bf16_remainder(x);
}

float f32_joined(uint16_t rounded, int16_t remainder)
{
    return bf16_joined(bf16_to_f32(rounded), remainder);
}

int is_narrow(Dtype dt)
{
    return dtypes[dt].kind == 'f' && dtypes[dt].bytes == 1;
}

float narrow_value(Dtype dt, uint8_t code)
{
    return dt == De4m3   ? e4m3_value(code)
           : dt == De5m2 ? e5m2_value(code)
                         : e8m0_value(code);
}

uint8_t narrow_nearest(Dtype dt, float x)
{
    return (uint8_t)(dt == De4m3   ? e4m3_code(x)
                     : dt == De5m2 ? e5m2_code(x)
                                   : e8m0_code(x));
}

float dtype_rounded(Dtype dt, float x)
{
    return is_narrow(dt) ? narrow_value(dt, narrow_nearest(dt, x))
           : dt == Dbf16 ? bf16_to_f32(f32_to_bf16(x))
                         : x;
}
