/* refvalue.c: the value of one node from those of its operands. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ref.h"

static const Val *operand(const Ref *r, const Val *x, int k)
{
    return &r->val[x->in[k]];
}

/* ---- decisions ----------------------------------------------------------- */

static double largest_of(const double *v, int64_t n)
{
    double most = 0;

    for (int64_t i = 0; i < n; i++)
        if (isfinite(v[i]) && fabs(v[i]) > most)
            most = fabs(v[i]);
    return most;
}

static double largest(const Val *x)
{
    return x ? largest_of(x->v, x->elems) : 0;
}

/* A choice between a and b was made. */
static void decided(Ref *r, double a, double b, double scale, int64_t choice)
{
    double gap = fabs(a - b);

    r->decided = mix64(r->decided, (uint64_t)choice);
    vec_push(r->a, r->gap, a - b);
    if (gap == 0)
        r->ties++;
    else if (gap < r->margin * scale)
        r->margin = gap / scale;
}

/* ---- elementwise --------------------------------------------------------- */

static double sigmoid(double a)
{
    return 1 / (1 + exp(-a));
}

static double one_operand(const Val *x, double a)
{
    switch (x->n->op) {
    case Oneg: return -a;
    case Oexp: return exp(a);
    case Olog: return log(a);
    case Osqrt: return sqrt(a);
    case Orsqrt: return 1 / sqrt(a);
    case Osigmoid: return sigmoid(a);
    case Osilu: return a * sigmoid(a);
    case Ogelu: return a * 0.5 * erfc(-a / sqrt(2));
    case Orelu: return a > 0 ? a : 0;
    case Otanh: return tanh(a);
    case Osoftplus: return a > 30 ? a : log1p(exp(a));
    case Osin: return sin(a);
    case Ocos: return cos(a);
    case Oabs: return fabs(a);
    case Ofloor: return floor(a);
    case Osign: return (a > 0) - (a < 0);
    case Olnot: return a == 0;
    case Ocast: return x->real ? a : trunc(a);
    case Obroadcast:
    case Ostop_gradient: return a;
    default: die("reference: no meaning for %s", optab[x->n->op].name);
    }
}

static double two_operands(Op op, double a, double b)
{
    switch (op) {
    case Oadd: return a + b;
    case Osub: return a - b;
    case Omul: return a * b;
    case Odiv: return a / b;
    case Opow: return pow(a, b);
    case Omod: return fmod(a, b);
    case Ofloor_div: return b == 0 ? 0 : floor(a / b);
    case Oxor: return (double)((int64_t)a ^ (int64_t)b);
    case Omaximum: return a >= b ? a : b;
    case Ominimum: return a <= b ? a : b;
    case Olt: return a < b;
    case Ole: return a <= b;
    case Ogt: return a > b;
    case Oge: return a >= b;
    case Oeq: return a == b;
    case One: return a != b;
    case Oland: return a != 0 && b != 0;
    case Olor: return a != 0 || b != 0;
    default: die("reference: no meaning for %s", optab[op].name);
    }
}

/* Ops whose value or slope jumps where two numbers cross. */
static int chooses(Op op)
{
    switch (op) {
    case Orelu:
    case Oabs:
    case Osign:
    case Omaximum:
    case Ominimum:
    case Olt:
    case Ole:
    case Ogt:
    case Oge:
    case Oeq:
    case One: return 1;
    default: return 0;
    }
}

static void elementwise(Ref *r, Val *x)
{
    const Val *in[3] = { 0 }, *all[4] = { x };

    for (int k = 0; k < x->nin; k++)
        all[k + 1] = in[k] = operand(r, x, k);
    int choice = chooses(x->n->op) && (in[0]->real || (in[1] && in[1]->real));
    double scale = choice ? largest(in[0]) : 0;
    if (choice && x->nin > 1)
        scale = fmax(scale, largest(in[1]));
    Walk w = walk_over((const Val *const[]){ x }, 1, all, x->nin + 1);
    do {
        const int64_t *at = w.at + 1;
        double a = in[0]->v[at[0]], b = x->nin > 1 ? in[1]->v[at[1]] : 0;
        double c = x->nin > 2 ? in[2]->v[at[2]] : 0;
        x->v[w.at[0]] = x->nin == 1          ? one_operand(x, a)
                        : x->nin == 2        ? two_operands(x->n->op, a, b)
                        : x->n->op == Owhere ? (a != 0 ? b : c)
                                             : fma(a, b, c);
        if (choice)
            decided(r, a, b, scale, (a > b) - (a < b));
    } while (walk_next(&w));
}

/* ---- dropout ------------------------------------------------------------- */

/* Philox4x32-10 (Salmon et al. 2011): the first word. */
static uint32_t philox(uint64_t key, const uint32_t counter[4])
{
    uint32_t c[4], k[2] = { (uint32_t)key, (uint32_t)(key >> 32) };

    memcpy(c, counter, sizeof c);
    for (int round = 0; round < 10; round++) {
        uint64_t p = 0xD2511F53ull * c[0], q = 0xCD9E8D57ull * c[2];
        uint32_t next[4] = { (uint32_t)(q >> 32) ^ c[1] ^ k[0], (uint32_t)q,
                             (uint32_t)(p >> 32) ^ c[3] ^ k[1], (uint32_t)p };
        memcpy(c, next, sizeof c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return c[0];
}

static int axis_number(const Graph *g, const Axis *a)
{
    int i = 0;

    while (g->axis[i] != a)
        i++;
    return i;
}

/* Row-major over the axes in the order in which the model first uses them,
 * micro apart. */
static uint64_t place_by_axis(const Ref *r, const Val *x, const Walk *w)
{
    uint64_t at = 0;
    int done[MAXD] = { 0 };

    for (int k = 0; k < x->nd; k++) {
        int best = -1;
        for (int d = 0; d < x->nd; d++)
            if (!done[d] && (best < 0 || axis_number(r->g, x->a[d]) <
                                             axis_number(r->g, x->a[best])))
                best = d;
        done[best] = 1;
        if (x->a[best] != r->microaxis)
            at = at * (uint64_t)x->len[best] +
                 (uint64_t)w->i[walk_axis(w, x->a[best])];
    }
    return at;
}

/* An element is kept where a uniform number is not below p: by its place, the
 * micro-batch and the step. */
double ref_dropped(const Ref *r, const Val *x, const Walk *w)
{
    int d = walk_axis(w, r->microaxis);
    uint64_t at = place_by_axis(r, x, w);
    uint64_t key = mix64((uint64_t)x->n->at.dropout.key,
                         (uint64_t)opts_int(r->g->opts, "seed"));
    uint32_t word = philox(
        key, (uint32_t[4]){ (uint32_t)at, (uint32_t)(at >> 32),
                            d < 0 ? 0 : (uint32_t)w->i[d], (uint32_t)r->step });
    float u = (float)(word >> 8) * 0x1p-24f;

    if (x->n->at.dropout.drawn)
        return u;
    return u >= (float)x->n->at.dropout.p ? 1 / (1 - x->n->at.dropout.p) : 0;
}

static void dropout(const Ref *r, Val *x)
{
    const Val *a = operand(r, x, 0), *all[2] = { x, a };
    Walk w = walk_over(all, 1, all, 2);

    do
        x->v[w.at[0]] = ref_dropped(r, x, &w) *
                        (x->n->at.dropout.drawn ? 1 : a->v[w.at[1]]);
    while (walk_next(&w));
}

/* ---- sums and products --------------------------------------------------- */

/* A term of a sum, as rounding may change it: the sum's error is that of its
 * terms, however small it is itself. */
static double term(Ref *r, double v)
{
    return r->noise ? v * (1 + r->noise * (2 * ref_uniform(&r->seed) - 1)) : v;
}

static void add_up(Ref *r, Val *x)
{
    const Val *a = operand(r, x, 0), *all[2] = { a, x };
    double times =
        x->n->op == Osum ? x->times : (double)x->elems / (double)a->elems;
    Walk w = walk_over(all, 1, all, 2);

    do
        x->v[w.at[1]] += term(r, a->v[w.at[0]]);
    while (walk_next(&w));
    for (int64_t i = 0; i < x->elems; i++)
        x->v[i] *= times;
}

/* All users throw away where it came from. */
static int is_quiet(const Ref *r, const Val *x)
{
    int at = (int)(x - r->val), users = 0, quiet = 0;

    for (size_t i = 0; i < vec_len(r->val); i++)
        for (int k = 0; k < r->val[i].nin; k++)
            if (r->val[i].in[k] == at) {
                users++;
                quiet += r->val[i].n->op == Ostop_gradient;
            }
    return users == quiet;
}

static void extreme(Ref *r, Val *x)
{
    const Val *a = operand(r, x, 0), *all[2] = { a, x };
    double sign = x->n->op == Omax ? 1 : -1, scale = largest(a);
    int tell = a->real && !is_quiet(r, x);
    int64_t *best = calloc((size_t)x->elems, sizeof *best);
    Walk w = walk_over(all, 1, all, 2);

    for (int64_t i = 0; i < x->elems; i++)
        x->v[i] = -INFINITY;
    do {
        double v = sign * a->v[w.at[0]], *m = &x->v[w.at[1]];
        if (!(v <= *m)) {
            *m = v;
            best[w.at[1]] = w.at[0];
        }
    } while (walk_next(&w));
    w = walk_over(all, 1, all, 2);
    do
        if (tell && best[w.at[1]] != w.at[0])
            decided(r, x->v[w.at[1]], sign * a->v[w.at[0]], scale,
                    best[w.at[1]]);
    while (walk_next(&w));
    for (int64_t i = 0; i < x->elems; i++)
        x->v[i] *= sign;
    free(best);
}

/* ---- few bits ------------------------------------------------------------ */

const double *ref_rounded(Ref *r, const FewBits *b, const double *v, int64_t n)
{
    double most = largest_of(v, n), *to = alloc(r->a, (size_t)n * sizeof *to);

    for (int64_t i = 0; i < n; i++)
        to[i] =
            v[i] + (2 * ref_uniform(&r->seed) - 1) *
                       (b->itself * fabs(v[i]) + b->largest * most + b->least);
    return to;
}

/* A parameter, of other axes or dtype. */
static int is_weight(const Ref *r, const Val *x)
{
    while (x->n->op == Ocast || (optab[x->n->op].cls == VIEW && x->nin))
        x = operand(r, x, 0);
    return x->n->op == Oparam;
}

static int has_role(const Val *x, AxisRole role)
{
    for (int d = 0; d < x->nd; d++)
        if (x->a[d]->role == role)
            return 1;
    return 0;
}

int ref_few_bits(const Ref *r, const Val *x)
{
    for (int k = 0; r->value && k < 2; k++) {
        const Val *w = operand(r, x, k);
        int picked = w->n->op == Opick;
        if (picked)
            w = operand(r, w, 0);
        if (is_weight(r, w) && !has_role(w, ROLEvocab) &&
            (picked || !has_role(w, ROLEchoice) ||
             has_role(operand(r, x, !k), ROLEchoice)))
            return 1;
    }
    return 0;
}

static void dot(Ref *r, Val *x)
{
    const Val *all[3] = { operand(r, x, 0), operand(r, x, 1), x };
    const double *v[2] = { all[0]->v, all[1]->v };
    Walk w = walk_over(all, 2, all, 3);

    for (int k = 0; k < 2 && r->noise && ref_few_bits(r, x); k++)
        v[k] = ref_rounded(r, r->value, v[k], all[k]->elems);
    do
        x->v[w.at[2]] += term(r, v[0][w.at[0]] * v[1][w.at[1]]);
    while (walk_next(&w));
}

/* ---- rows ---------------------------------------------------------------- */

static void cumsum(Ref *r, Val *x)
{
    const Val *a = operand(r, x, 0), *all[2] = { x, a };
    Walk w = walk_over(all, 1, all, 2);
    int d = walk_axis(&w, x->n->at.cumsum.axis),
        k = val_axis(a, x->n->at.cumsum.axis);

    walk_skip(&w, 1, x->n->at.cumsum.axis);
    do
        for (int64_t i = 0; i <= w.i[d]; i++)
            x->v[w.at[0]] += term(r, a->v[w.at[1] + i * a->step[k]]);
    while (walk_next(&w));
}

/* Is element i before j in topk's order? */
static int before(const double *v, int64_t step, int64_t i, int64_t j)
{
    double a = v[i * step], b = v[j * step];

    return a > b || (a == b && i < j);
}

/* The element that k others come before. */
static void topk(Ref *r, Val *x)
{
    const Val *a = operand(r, x, 0), *all[2] = { x, a };
    const Axis *axis = x->n->at.topk.axis;
    int64_t step = a->step[val_axis(a, axis)], n = a->len[val_axis(a, axis)];
    double scale = largest(a);
    Walk w = walk_over(all, 1, all, 2);
    int d = walk_axis(&w, x->n->at.topk.new);

    walk_skip(&w, 1, axis);
    do {
        const double *v = a->v + w.at[1];
        for (int64_t i = 0; i < n; i++) {
            int64_t rank = 0;
            for (int64_t j = 0; j < n && rank <= w.i[d]; j++)
                rank += j != i && before(v, step, j, i);
            if (rank != w.i[d])
                continue;
            x->v[w.at[0]] = (double)i;
            for (int64_t j = 0; j < n; j++)
                if (a->real && j != i)
                    decided(r, v[i * step], v[j * step], scale, i);
        }
    } while (walk_next(&w));
}

/* ---- moves --------------------------------------------------------------- */

static void iota(Val *x)
{
    for (int64_t i = 0; i < x->elems; i++)
        x->v[i] = (double)i;
}

static void view(const Ref *r, Val *x)
{
    memcpy(x->v, operand(r, x, 0)->v, (size_t)x->elems * sizeof *x->v);
}

/* slice and shift: where element i along the axis comes from; -1: a zero. */
static int64_t came_from(const Node *n, int64_t i, int64_t len)
{
    if (n->op == Oslice)
        return i + n->at.slice.start;
    i -= n->at.shift.by;
    if (n->at.shift.wrap)
        i = (i % len + len) % len;
    return i < 0 || i >= len ? -1 : i;
}

static void window(const Ref *r, Val *x)
{
    const Val *a = operand(r, x, 0), *all[2] = { x, a };
    Walk w = walk_over(all, 1, all, 2);
    int d = walk_axis(&w, n_axis(x->n)), k = val_axis(a, n_axis(x->n));

    walk_skip(&w, 1, n_axis(x->n));
    do {
        int64_t i = came_from(x->n, w.i[d], a->len[k]);
        x->v[w.at[0]] = i < 0 ? 0 : a->v[w.at[1] + i * a->step[k]];
    } while (walk_next(&w));
}

static void concat(const Ref *r, Val *x)
{
    int64_t from = 0;

    for (int k = 0; k < x->nin; k++) {
        const Val *a = operand(r, x, k), *all[2] = { a, x };
        int64_t step = x->step[val_axis(x, x->n->at.concat.axis)];
        Walk w = walk_over(all, 1, all, 2);
        do
            x->v[w.at[1] + from * step] = a->v[w.at[0]];
        while (walk_next(&w));
        from += a->len[val_axis(a, x->n->at.concat.axis)];
    }
}

/* An index beyond the axis has no meaning; below 0 it gives 0. */
static int64_t checked(const Val *x, double i, int64_t len)
{
    if (i >= (double)len)
        die("reference: %s: index %g of %lld", optab[x->n->op].name, i,
            (long long)len);
    return (int64_t)i;
}

static void gather(const Ref *r, Val *x)
{
    const Val *a = operand(r, x, 0), *e = operand(r, x, 1);
    const Val *all[3] = { x, a, e };
    int k = val_axis(a, n_axis(x->n));
    Walk w = walk_over(all, 1, all, 3);

    walk_skip(&w, 1, n_axis(x->n));
    do {
        int64_t i = checked(x, e->v[w.at[2]], a->len[k]);
        x->v[w.at[0]] = i < 0 ? 0 : a->v[w.at[1] + i * a->step[k]];
    } while (walk_next(&w));
}

static void scatter_add(Ref *r, Val *x)
{
    const Val *v = operand(r, x, 0), *e = operand(r, x, 1);
    const Val *all[3] = { v, e, x };
    int k = val_axis(x, x->n->at.scatter_add.axis);
    Walk w = walk_over(all, 2, all, 3);

    walk_skip(&w, 2, x->n->at.scatter_add.axis);
    do {
        int64_t i = checked(x, e->v[w.at[1]], x->len[k]);
        if (i >= 0)
            x->v[w.at[2] + i * x->step[k]] += term(r, v->v[w.at[0]]);
    } while (walk_next(&w));
}

static void permute(const Ref *r, Val *x)
{
    const Val *a = operand(r, x, 0), *all[2] = { x, a };
    Walk w = walk_over(all, 1, all, 2);

    do
        x->v[w.at[0]] = a->v[w.at[1]];
    while (walk_next(&w));
}

/* ---- one node ------------------------------------------------------------ */

static void compute(Ref *r, Val *x)
{
    switch (x->n->op) {
    case Oconst: x->v[0] = x->n->at.constant.value; break;
    case Oiota: iota(x); break;
    case Odropout: dropout(r, x); break;
    case Osum:
    case Omean: add_up(r, x); break;
    case Omax:
    case Omin: extreme(r, x); break;
    case Odot: dot(r, x); break;
    case Ocumsum: cumsum(r, x); break;
    case Otopk: topk(r, x); break;
    case Orename:
    case Osplit:
    case Omerge: view(r, x); break;
    case Oslice:
    case Oshift: window(r, x); break;
    case Oconcat: concat(r, x); break;
    case Opick:
    case Ogather: gather(r, x); break;
    case Oscatter_add: scatter_add(r, x); break;
    case Opermute: permute(r, x); break;
    default: elementwise(r, x);
    }
}

static int is_leaf(Op op)
{
    return op == Oparam || op == Ostate || op == Oinput;
}

/* Those that give one of their operands, or its negative, do not. */
static int rounds(Op op)
{
    switch (op) {
    case Oneg:
    case Oabs:
    case Orelu:
    case Osign:
    case Omaximum:
    case Ominimum:
    case Owhere:
    case Obroadcast:
    case Opick:
    case Ostop_gradient: return 0;
    case Osum:
    case Omean:
    case Ocumsum:
    case Oscatter_add: return 1;
    default: return optab[op].cls == EW || optab[op].cls == EIN;
    }
}

void ref_value(Ref *r, Val *x)
{
    OpClass c = optab[x->n->op].cls;

    if (is_leaf(x->n->op) || c == SINK ||
        (r->frozen && x->n->op == Ostop_gradient))
        return;
    memset(x->v, 0, (size_t)x->elems * sizeof *x->v);
    compute(r, x);
    for (int64_t i = 0; x->real && rounds(x->n->op) && i < x->elems; i++)
        x->v[i] = term(r, x->v[i]);
}
