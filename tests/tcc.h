/* tcc.h: what tcc lacks of gcc's language, for kernels of the host (tests/cc). */
#define __INT8_TYPE__ signed char
#define __UINT8_TYPE__ unsigned char
#define __INT16_TYPE__ short
#define __UINT16_TYPE__ unsigned short
#define __INT32_TYPE__ int
#define __UINT32_TYPE__ unsigned
#define __INT64_TYPE__ long
#define __UINT64_TYPE__ unsigned long
#define __UINTPTR_TYPE__ unsigned long
#define __INT32_MAX__ 0x7fffffff
#define __builtin_inff() 1e39f
#define __builtin_nanf(code) f32_bits(0x7fc00000)
#define __builtin_sqrtf sqrtf
#define __builtin_sqrt sqrt
#define __builtin_fmaf fmaf
#define __builtin_fma fma
#define __builtin_floorf floorf
#define _Pragma(words)
#define FN __attribute__((weak))
#define LARGE FN
float floorf(float), fmaf(float, float, float), sqrtf(float);
double fma(double, double, double), sqrt(double);
