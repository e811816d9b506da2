/* dtype.c: dtypes and layouts of scales by the rows of types.def, and bf16 to
 * and from float. */
#include <string.h>
#include "plan.h"

/* clang-format off */
const DtypeInfo dtypes[NDTYPE] = {
#define DT(name, bytes, kind, store, compute, load, save, st) \
    {#name, bytes, kind, store, compute, load, save, st},
#define SCALE(id, name, rows, cols, dt)
#include "types.def"
};
const char *const scalenames[NSCALE] = {
#define DT(name, bytes, kind, store, compute, load, save, st)
#define SCALE(id, name, rows, cols, dt) name,
#include "types.def"
};
const ScaleInfo scales[NSCALE] = {
#define DT(name, bytes, kind, store, compute, load, save, st)
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
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

uint16_t f32_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) /* NaN stays NaN: quiet */
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
