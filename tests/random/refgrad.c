/* refgrad.c: reverse mode over the opened graph: what each op passes back to
 * its operands, written from the op's meaning. Where an op has a kink the rule
 * is the language's: relu and abs have slope 0 at 0, of two equal operands the
 * first is the larger (or smaller), equal extremes share. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ref.h"

static Val *operand(const Ref *r, const Val *x, int k)
{
    return &r->val[x->in[k]];
}

/* ---- elementwise --------------------------------------------------------- */

static double sigmoid(double a)
{
    return 1 / (1 + exp(-a));
}

static double slope_gelu(double a)
{
    double density = exp(-a * a / 2) / sqrt(2 * acos(-1));

    return 0.5 * erfc(-a / sqrt(2)) + a * density;
}

/* dy/da of an op of one operand. */
static double slope(const Val *x, double a, double y)
{
    double s = sigmoid(a);

    switch (x->n->op) {
    case Oneg: return -1;
    case Oexp: return y;
    case Olog: return 1 / a;
    case Osqrt: return 0.5 / y;
    case Orsqrt: return -0.5 * y * y * y;
    case Osigmoid: return s * sigmoid(-a);
    case Osilu: return s + a * s * sigmoid(-a);
    case Ogelu: return slope_gelu(a);
    case Orelu: return a > 0;
    case Otanh: return 1 - y * y;
    case Osoftplus: return s;
    case Osin: return cos(a);
    case Ocos: return -sin(a);
    case Oabs: return (a > 0) - (a < 0);
    case Obroadcast:
    case Ocast: return 1;
    default: return 0; /* sign, lnot, stop_gradient */
    }
}

/* Of two or three operands: to each. */
static void slopes(const Val *x, double a, double b, double y, double *to)
{
    switch (x->n->op) {
    case Oadd: to[0] = to[1] = 1; break;
    case Osub: to[0] = 1, to[1] = -1; break;
    case Omul: to[0] = b, to[1] = a; break;
    case Odiv: to[0] = 1 / b, to[1] = -y / b; break;
    case Opow: to[0] = b * pow(a, b - 1), to[1] = 0; break;
    case Omaximum: to[0] = a >= b, to[1] = !(a >= b); break;
    case Ominimum: to[0] = a <= b, to[1] = !(a <= b); break;
    case Owhere: to[0] = 0, to[1] = a != 0, to[2] = a == 0; break;
    case Ofma: to[0] = b, to[1] = a, to[2] = 1; break;
    default: to[0] = to[1] = 0; break; /* comparisons, mod */
    }
}

static void elementwise(Ref *r, const Val *x)
{
    Val *in[3] = { 0 };
    const Val *all[4] = { x };

    for (int k = 0; k < x->nin; k++)
        all[k + 1] = in[k] = operand(r, x, k);
    Walk w = walk_over(all, 1, all, x->nin + 1);
    do {
        double to[3] = { 0 }, y = x->v[w.at[0]], dy = x->d[w.at[0]];
        double a = in[0]->v[w.at[1]];
        if (x->nin == 1)
            to[0] = slope(x, a, y);
        else
            slopes(x, a, in[1]->v[w.at[2]], y, to);
        for (int k = 0; k < x->nin; k++)
            if (in[k]->need && to[k] != 0)
                in[k]->d[w.at[k + 1]] += dy * to[k];
    } while (walk_next(&w));
}

static void dropout(Ref *r, const Val *x)
{
    Val *a = operand(r, x, 0);
    const Val *all[2] = { x, a };
    Walk w = walk_over(all, 1, all, 2);

    if (x->n->at.dropout.drawn)
        return;
    do
        a->d[w.at[1]] += x->d[w.at[0]] * ref_dropped(r, x, &w);
    while (walk_next(&w));
}

/* ---- sums and products --------------------------------------------------- */

static void add_up(Ref *r, const Val *x)
{
    Val *a = operand(r, x, 0);
    const Val *all[2] = { a, x };
    double times = x->n->op == Osum ? 1 : (double)x->elems / (double)a->elems;
    Walk w = walk_over(all, 1, all, 2);

    do
        a->d[w.at[0]] += x->d[w.at[1]] * times;
    while (walk_next(&w));
}

static void extreme(Ref *r, const Val *x)
{
    Val *a = operand(r, x, 0);
    const Val *all[2] = { a, x };
    double *hits = calloc((size_t)x->elems, sizeof *hits);
    Walk w = walk_over(all, 1, all, 2);

    do
        hits[w.at[1]] += a->v[w.at[0]] == x->v[w.at[1]];
    while (walk_next(&w));
    w = walk_over(all, 1, all, 2);
    do
        if (a->v[w.at[0]] == x->v[w.at[1]])
            a->d[w.at[0]] += x->d[w.at[1]] / hits[w.at[1]];
    while (walk_next(&w));
    free(hits);
}

/* To operand k of product x. */
static void dot_to(Ref *r, const Val *x, int k)
{
    Val *to = operand(r, x, k);
    const Val *other = operand(r, x, !k), *all[3] = { to, other, x };
    const double *v = other->v, *dy = x->d;
    Walk w = walk_over(all, 2, all, 3);

    if (r->noise && ref_few_bits(r, x)) {
        v = ref_rounded(r, r->value, v, other->elems);
        dy = ref_rounded(r, r->gradient, dy, x->elems);
    }
    do
        to->d[w.at[0]] += dy[w.at[2]] * v[w.at[1]];
    while (walk_next(&w));
}

static void dot(Ref *r, const Val *x)
{
    for (int k = 0; k < 2; k++)
        if (operand(r, x, k)->need)
            dot_to(r, x, k);
}

/* What the sum z of an attention's weights exp(s) / z passes back is -1/z times
 * the sum over keys of weight and gradient. Kernels take this from the result o
 * instead, as the sum of o do (Dao et al. 2022): equal, but rounded as these
 * terms are, which may be far larger where keys' values are much alike. */
static void from_result(Ref *r, const Val *o)
{
    Val *z = &r->val[o->weights];
    const Val *all[2] = { o, z };
    Walk w = walk_over(all, 1, all, 2);

    do
        z->d[w.at[1]] += r->noise * (2 * ref_uniform(&r->seed) - 1) *
                         o->v[w.at[0]] * o->d[w.at[0]] / z->v[w.at[1]];
    while (walk_next(&w));
}

/* ---- rows and moves ------------------------------------------------------ */

static void cumsum(Ref *r, const Val *x)
{
    Val *a = operand(r, x, 0);
    const Val *all[2] = { x, a };
    Walk w = walk_over(all, 1, all, 2);
    int d = walk_axis(&w, x->n->at.cumsum.axis),
        k = val_axis(a, x->n->at.cumsum.axis);

    walk_skip(&w, 1, x->n->at.cumsum.axis);
    do
        for (int64_t i = 0; i <= w.i[d]; i++)
            a->d[w.at[1] + i * a->step[k]] += x->d[w.at[0]];
    while (walk_next(&w));
}

static void view(Ref *r, const Val *x)
{
    Val *a = operand(r, x, 0);

    for (int64_t i = 0; i < x->elems; i++)
        a->d[i] += x->d[i];
}

/* slice and shift: every element of the operand went to one place, or none. */
static void window(Ref *r, const Val *x)
{
    Val *a = operand(r, x, 0);
    const Val *all[2] = { a, x };
    Walk w = walk_over(all, 1, all, 2);
    int d = walk_axis(&w, n_axis(x->n)), k = val_axis(x, n_axis(x->n));
    int64_t len = x->len[k];

    walk_skip(&w, 1, n_axis(x->n));
    do {
        int64_t i = x->n->op == Oslice ? w.i[d] - x->n->at.slice.start
                                       : w.i[d] + x->n->at.shift.by;
        if (x->n->op == Oshift && x->n->at.shift.wrap)
            i = (i % len + len) % len;
        if (i >= 0 && i < len)
            a->d[w.at[0]] += x->d[w.at[1] + i * x->step[k]];
    } while (walk_next(&w));
}

static void concat(Ref *r, const Val *x)
{
    int64_t from = 0, step = x->step[val_axis(x, x->n->at.concat.axis)];

    for (int k = 0; k < x->nin; k++) {
        Val *a = operand(r, x, k);
        const Val *all[2] = { a, x };
        Walk w = walk_over(all, 1, all, 2);
        do
            if (a->need)
                a->d[w.at[0]] += x->d[w.at[1] + from * step];
        while (walk_next(&w));
        from += a->len[val_axis(a, x->n->at.concat.axis)];
    }
}

static void gather(Ref *r, const Val *x)
{
    Val *a = operand(r, x, 0);
    const Val *e = operand(r, x, 1), *all[3] = { x, a, e };
    int k = val_axis(a, n_axis(x->n));
    Walk w = walk_over(all, 1, all, 3);

    walk_skip(&w, 1, n_axis(x->n));
    do {
        int64_t i = (int64_t)e->v[w.at[2]];
        if (i >= 0)
            a->d[w.at[1] + i * a->step[k]] += x->d[w.at[0]];
    } while (walk_next(&w));
}

static void scatter_add(Ref *r, const Val *x)
{
    Val *v = operand(r, x, 0);
    const Val *e = operand(r, x, 1), *all[3] = { v, e, x };
    int k = val_axis(x, x->n->at.scatter_add.axis);
    Walk w = walk_over(all, 2, all, 3);

    walk_skip(&w, 2, x->n->at.scatter_add.axis);
    do {
        int64_t i = (int64_t)e->v[w.at[1]];
        if (i >= 0)
            v->d[w.at[0]] += x->d[w.at[2] + i * x->step[k]];
    } while (walk_next(&w));
}

static void permute(Ref *r, const Val *x)
{
    Val *a = operand(r, x, 0);
    const Val *all[2] = { x, a };
    Walk w = walk_over(all, 1, all, 2);

    do
        a->d[w.at[1]] += x->d[w.at[0]];
    while (walk_next(&w));
}

void ref_back(Ref *r, const Val *x)
{
    if (r->noise && x->weights)
        from_result(r, x);
    switch (x->n->op) {
    case Odropout: dropout(r, x); break;
    case Osum:
    case Omean: add_up(r, x); break;
    case Omax:
    case Omin: extreme(r, x); break;
    case Odot: dot(r, x); break;
    case Ocumsum: cumsum(r, x); break;
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
    default:
        if (optab[x->n->op].cls == EW)
            elementwise(r, x);
    }
}
