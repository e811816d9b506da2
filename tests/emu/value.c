/* value.c: operands' values, and the instructions that only compute. */
#include "rows.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* ---- numbers ------------------------------------------------------------- */

float as_f32(uint64_t v)
{
    uint32_t b = (uint32_t)v;
    float x;

    memcpy(&x, &b, sizeof x);
    return x;
}

double as_f64(uint64_t v)
{
    double x;

    memcpy(&x, &v, sizeof x);
    return x;
}

uint64_t bits_f32(float x)
{
    uint32_t b;

    memcpy(&b, &x, sizeof b);
    return b;
}

uint64_t bits_f64(double x)
{
    uint64_t b;

    memcpy(&b, &x, sizeof b);
    return b;
}

float wide_bf16(uint16_t h)
{
    return as_f32((uint32_t)h << 16);
}

/* To nearest, ties to even; a NaN is 0x7fff, as the instruction has it. */
uint16_t round_bf16(float x)
{
    uint32_t b = (uint32_t)bits_f32(x);

    if (x != x)
        return 0x7fff;
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

/* ---- operands ------------------------------------------------------------ */

static size_t arg_bytes(char type)
{
    switch (type) {
    case 'h': return 2;
    case 'r':
    case 'f': return 4;
    default: return 8;
    }
}

static uint64_t special(const SlotGroup *f, int which)
{
    const Thread *t = f->t;
    const StepValues *b = t->b;
    const unsigned three[][3] = {
        { t->place.x, t->place.y, t->place.z },
        { machine.dims[0], machine.dims[1], machine.dims[2] },
        { b->at.x, b->at.y, b->at.z },
        { machine.grid[0], machine.grid[1], machine.grid[2] },
    };
    struct timespec now;

    if (which < 12)
        return three[which / 3][which % 3];
    switch (which) {
    case 12: return (uint64_t)t->lane;
    case 13: return (uint64_t)(t->id / WARP);
    case 14: return b->at.x % 132;
    case 15: return 132;
    case 19: return b->rank;
    case 20: return (uint64_t)machine.nblock;
    default: break;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t get_value(const SlotGroup *f, const Operand *o)
{
    uint64_t v = 0;

    switch (o->kind) {
    case Kimm: return (uint64_t)o->imm;
    case Kreg: return o->negated ? !f->reg[o->i] : f->reg[o->i];
    case Kspecial: return special(f, o->i);
    case Karg: break;
    default: fail(EILLEGALINSTRUCTION, "an operand that has no value");
    }
    const char *c = f->constraints + 2 * o->i;
    if (c[0] == '_')
        return f->arg[o->i].bits;
    memcpy(&v, f->arg[o->i].at, arg_bytes(c[1]));
    return v;
}

void put_value(SlotGroup *f, const Operand *o, uint64_t v)
{
    if (o->kind == Ksink)
        return;
    if (o->kind == Kreg) {
        f->reg[o->i] = v;
        return;
    }
    const char *c = f->constraints + 2 * o->i;
    if (o->kind != Karg || c[0] == '_')
        fail(EILLEGALINSTRUCTION, "a result that goes to no variable");
    memcpy(f->arg[o->i].at, &v, arg_bytes(c[1]));
}

static int64_t extend(uint64_t v, Type t)
{
    int bits = ptx_types[t].bits;

    if (bits >= 64 || bits == 0)
        return (int64_t)v;
    v &= ((uint64_t)1 << bits) - 1;
    if (ptx_types[t].kind == 's' && v >> (bits - 1))
        v |= ~(uint64_t)0 << bits;
    return (int64_t)v;
}

int64_t get_int(const SlotGroup *f, const Operand *o, Type t)
{
    return extend(get_value(f, o), t);
}

/* ---- arithmetic ---------------------------------------------------------- */

static float flushed(float x, const Insn *i)
{
    return i->flags & FLAG(ftz) && fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

static int is_float(const Insn *i)
{
    return ptx_types[i->type[0]].kind == 'f';
}

/* Operands 1 .. of any type as doubles: exact for what is 32 bits wide. */
static double real(const SlotGroup *f, const Insn *i, int k)
{
    uint64_t v = get_value(f, &i->o[k]);

    switch (i->type[0]) {
    case Tf32: return flushed(as_f32(v), i);
    case Tf64: return as_f64(v);
    default: fail(EILLEGALINSTRUCTION, "a type of reals that is not known");
    }
}

static void put_real(SlotGroup *f, const Insn *i, double x)
{
    put_value(f, &i->o[0],
              i->type[0] == Tf32 ? bits_f32(flushed((float)x, i))
                                 : bits_f64(x));
}

typedef enum Math {
    Madd,
    Msub,
    Mmul,
    Mmin,
    Mmax,
    Mand,
    Mor,
    Mxor,
    Mshl,
    Mshr
} Math;

static double real_of(Math m, double a, double b)
{
    switch (m) {
    case Madd: return a + b;
    case Msub: return a - b;
    case Mmul: return a * b;
    case Mmin: return fmin(a, b);
    case Mmax: return fmax(a, b);
    default: fail(EILLEGALINSTRUCTION, "bits of a real number");
    }
}

static uint64_t whole_of(Math m, int64_t a, int64_t b, Type t)
{
    int is_signed = ptx_types[t].kind == 's', bits = ptx_types[t].bits;
    uint64_t u = (uint64_t)a, v = (uint64_t)b;
    int less = is_signed ? a < b : u < v;

    switch (m) {
    case Madd: return u + v;
    case Msub: return u - v;
    case Mmul: return u * v;
    case Mmin: return less ? u : v;
    case Mmax: return less ? v : u;
    case Mand: return u & v;
    case Mor: return u | v;
    case Mxor: return u ^ v;
    case Mshl: return v >= (uint64_t)bits ? 0 : u << v;
    default:
        if (v >= (uint64_t)bits)
            return is_signed && a < 0 ? ~(uint64_t)0 : 0;
        return is_signed ? (uint64_t)(a >> v) : u >> v;
    }
}

static void two(SlotGroup *f, const Insn *i, Math m)
{
    Type t = i->type[0];

    if (is_float(i)) {
        double a = real(f, i, 1), b = real(f, i, 2);
        int none = i->flags & FLAG(nan) && (isnan(a) || isnan(b));
        put_real(f, i, none ? NAN : real_of(m, a, b));
        return;
    }
    int64_t a = get_int(f, &i->o[1], t);
    int64_t b = get_int(f, &i->o[2], m == Mshl || m == Mshr ? Tu32 : t);
    put_value(f, &i->o[0], whole_of(m, a, b, t));
}

#define TWO(name, m)                             \
    void run_##name(SlotGroup *f, const Insn *i) \
    {                                            \
        two(f, i, m);                            \
    }
TWO(add, Madd)
TWO(sub, Msub)
TWO(min, Mmin)
TWO(max, Mmax)
TWO(and, Mand)
TWO(or, Mor)
TWO(xor, Mxor)
TWO(shl, Mshl)
TWO(shr, Mshr)

/* 64 bits of it; of narrower types that is all. */
static uint64_t product(const SlotGroup *f, const Insn *i)
{
    Type t = i->type[0];
    uint64_t p =
        (uint64_t)get_int(f, &i->o[1], t) * (uint64_t)get_int(f, &i->o[2], t);

    return i->flags & FLAG(hi) ? p >> ptx_types[t].bits : p;
}

const char *check_mul(const Insn *i)
{
    return i->flags & FLAG(hi) && ptx_types[i->type[0]].bits > 32
               ? "the upper half of 64 bits is not known"
               : NULL;
}

void run_mul(SlotGroup *f, const Insn *i)
{
    if (is_float(i))
        two(f, i, Mmul);
    else
        put_value(f, &i->o[0], product(f, i));
}

void run_mad(SlotGroup *f, const Insn *i)
{
    put_value(f, &i->o[0], product(f, i) + get_value(f, &i->o[3]));
}

void run_fma(SlotGroup *f, const Insn *i)
{
    double a = real(f, i, 1), b = real(f, i, 2), c = real(f, i, 3);

    if (i->type[0] == Tf32)
        put_value(f, &i->o[0], bits_f32(fmaf((float)a, (float)b, (float)c)));
    else
        put_value(f, &i->o[0], bits_f64(fma(a, b, c)));
}

void run_mov(SlotGroup *f, const Insn *i)
{
    const Operand *to = &i->o[0], *from = &i->o[1];
    uint64_t v = 0;
    int n = to->kind == Kvec ? to->n : from->n;

    if (to->kind != Kvec && from->kind != Kvec) {
        put_value(f, to, get_value(f, from));
        return;
    }
    int bits = ptx_types[i->type[0]].bits / n;
    uint64_t mask = bits < 64 ? ((uint64_t)1 << bits) - 1 : ~(uint64_t)0;
    if (from->kind == Kvec) {
        for (int k = 0; k < n; k++)
            v |= (get_value(f, &from->part[k]) & mask) << bits * k;
        put_value(f, to, v);
        return;
    }
    v = get_value(f, from);
    for (int k = 0; k < n; k++)
        put_value(f, &to->part[k], v >> bits * k & mask);
}

void run_not(SlotGroup *f, const Insn *i)
{
    uint64_t v = get_value(f, &i->o[1]);

    put_value(f, &i->o[0], i->type[0] == Tpred ? !v : ~v);
}

void run_popc(SlotGroup *f, const Insn *i)
{
    uint64_t v = get_value(f, &i->o[1]);

    put_value(f, &i->o[0], (uint64_t)__builtin_popcountll(v));
}

void run_neg(SlotGroup *f, const Insn *i)
{
    if (is_float(i))
        put_real(f, i, -real(f, i, 1));
    else
        put_value(f, &i->o[0], -get_value(f, &i->o[1]));
}

static int compared(int cmp, double a, double b)
{
    switch (cmp) {
    case Ceq: return a == b;
    case Cne: return a < b || a > b;
    case Clt: return a < b;
    case Cle: return a <= b;
    case Cgt: return a > b;
    default: return a >= b;
    }
}

void run_setp(SlotGroup *f, const Insn *i)
{
    Type t = i->type[0];

    if (is_float(i)) {
        put_value(f, &i->o[0],
                  (uint64_t)compared(i->cmp, real(f, i, 1), real(f, i, 2)));
        return;
    }
    int64_t a = get_int(f, &i->o[1], t), b = get_int(f, &i->o[2], t);
    int less = ptx_types[t].kind == 's' ? a < b : (uint64_t)a < (uint64_t)b;
    double order = a == b ? 0 : less ? -1 : 1;
    put_value(f, &i->o[0], (uint64_t)compared(i->cmp, order, 0));
}

void run_selp(SlotGroup *f, const Insn *i)
{
    put_value(f, &i->o[0],
              get_value(f, get_value(f, &i->o[3]) ? &i->o[1] : &i->o[2]));
}

#define ONE(name, x)                             \
    void run_##name(SlotGroup *f, const Insn *i) \
    {                                            \
        float a = (float)real(f, i, 1);          \
        put_real(f, i, x);                       \
    }
ONE(ex2, exp2f(a))
ONE(lg2, log2f(a))
ONE(rcp, 1 / a)
ONE(rsqrt, 1 / sqrtf(a))
ONE(sqrt, sqrtf(a))
ONE(tanh, tanhf(a))

const char *check_f32(const Insn *i)
{
    return i->type[0] == Tf32 ? NULL : "only f32 is known";
}

/* ---- conversions --------------------------------------------------------- */

static double any_real(const SlotGroup *f, const Operand *o, Type t)
{
    uint64_t v = get_value(f, o);

    switch (t) {
    case Tf32: return as_f32(v);
    case Tf64: return as_f64(v);
    case Tbf16: return wide_bf16((uint16_t)v);
    default: break;
    }
    if (ptx_types[t].kind == 'u')
        return (double)(uint64_t)extend(v, t);
    return (double)extend(v, t);
}

/* The code nearest to x, of m bits of mantissa, `most` the largest, 2^low the
 * least normal number. */
static uint32_t round_narrow(float x, int m, int low, uint32_t most)
{
    uint32_t sign = signbit(x) ? 0x80 : 0;
    int e = x == 0 || isinf(x) || ilogbf(x) < low ? low : ilogbf(x);
    double units = rint(ldexp(fabs((double)x), m - e));

    if (x != x)
        return 0x7f;
    if (isinf(x) || ((e - low) << m) + units > most)
        return sign | most;
    return sign | (uint32_t)(((e - low) << m) + (int)units);
}

/* Of a pair's half. */
static uint32_t round_half(Type pair, float x)
{
    return pair == Tbf16x2   ? round_bf16(x)
           : pair == Te4m3x2 ? round_narrow(x, 3, -6, 0x7e)
                             : round_narrow(x, 2, -14, 0x7b);
}

static int is_pair(Type t)
{
    return t == Tbf16x2 || t == Te4m3x2 || t == Te5m2x2;
}

/* cvt.rn.bf16x2.f32 d, a, b: a is the upper half. */
void run_cvt(SlotGroup *f, const Insn *i)
{
    Type to = i->type[0], from = i->type[1];
    uint64_t v;

    if (is_pair(to)) {
        uint32_t hi = round_half(to, as_f32(get_value(f, &i->o[1])));
        put_value(f, &i->o[0],
                  hi << ptx_types[to].bits / 2 |
                      round_half(to, as_f32(get_value(f, &i->o[2]))));
        return;
    }
    double x = any_real(f, &i->o[1], from);
    switch (to) {
    case Tf32: v = bits_f32((float)x); break;
    case Tf64: v = bits_f64(x); break;
    case Tbf16: v = round_bf16((float)x); break;
    default:
        v = ptx_types[from].kind == 'f'
                ? (uint64_t)(int64_t)(i->round == 2 ? trunc(x) : rint(x))
                : (uint64_t)get_int(f, &i->o[1], from);
    }
    put_value(f, &i->o[0], v);
}

const char *check_cvt(const Insn *i)
{
    int two_in = is_pair(i->type[0]);
    int saturates = i->type[0] == Te4m3x2 || i->type[0] == Te5m2x2;

    if (i->ntype != 2 || i->n != 2 + two_in)
        return "two types, and as many operands as they say";
    if (two_in && (i->type[1] != Tf32 || i->round != 1))
        return "only pairs of f32, to nearest, are known";
    if (!(i->flags >> FLsat & 1) != !saturates)
        return "numbers of 8 bits saturate, no others";
    for (int k = 0; k < 2; k++)
        if (i->type[k] == Tf16 || i->type[k] == Tf16x2 || i->type[k] == Te4m3 ||
            i->type[k] == Te5m2)
            return "a conversion that is not known";
    return NULL;
}
