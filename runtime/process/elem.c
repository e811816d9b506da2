/* elem.c: an element of any dtype in memory. */
#include "process.h"

double elem_get(Dtype dt, const void *p, int64_t i)
{
    switch (dt) {
    case Df64: return ((const double *)p)[i];
    case Dreal:
    case Df32: return ((const float *)p)[i];
    case Dbf16: return bf16_to_f32(((const uint16_t *)p)[i]);
    case Di64: return (double)((const int64_t *)p)[i];
    case Di16: return ((const int16_t *)p)[i];
    case Di32: return ((const int32_t *)p)[i];
    case Du8:
    case De2m1x2:
    case Dbool: return ((const uint8_t *)p)[i];
    default:
        return is_narrow(dt) ? narrow_value(dt, ((const uint8_t *)p)[i]) : 0;
    }
}

double number_get(char kind, int bytes, const void *p)
{
    int free_bits = 64 - 8 * bytes;
    uint64_t x = 0;
    double d;
    float f;

    memcpy(&x, p, (size_t)bytes); /* little-endian */
    memcpy(&d, &x, sizeof d);
    memcpy(&f, &x, sizeof f);
    if (kind == 'f')
        return bytes == 8 ? d : f;
    return kind == 'u' ? (double)x
                       : (double)((int64_t)(x << free_bits) >> free_bits);
}

void elem_set(Dtype dt, void *p, int64_t i, double v)
{
    switch (dt) {
    case Df64: ((double *)p)[i] = v; break;
    case Dreal:
    case Df32: ((float *)p)[i] = (float)v; break;
    case Dbf16: ((uint16_t *)p)[i] = f32_to_bf16((float)v); break;
    case Di64: ((int64_t *)p)[i] = (int64_t)v; break;
    case Di16: ((int16_t *)p)[i] = (int16_t)v; break;
    case Di32: ((int32_t *)p)[i] = (int32_t)v; break;
    case Du8:
    case De2m1x2:
    case Dbool: ((uint8_t *)p)[i] = (uint8_t)v; break;
    default:
        if (is_narrow(dt))
            ((uint8_t *)p)[i] = narrow_nearest(dt, (float)v);
    }
}
