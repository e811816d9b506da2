/* interp.c: what every op means, in plain loops over doubles. Slow and simple;
 * kernels, gradients and passes are tested against it. */
#include "../../codegen/text/host.pre"
#include "../../ir/base/narrow.pre"
#include "../../codegen/text/math.pre"

#include "interp.h"

#include <math.h>
#include <string.h>

/* An index tuple: a value per axis. */
typedef struct Env {
    int n;
    Axis *a[4 * MAXD];
    int64_t i[4 * MAXD];
} Env;

static int64_t env_at(const Env *e, const Axis *a)
{
    for (int k = e->n; k-- > 0;)
        if (e->a[k] == a)
            return e->i[k];
    die("interp: no index for axis %s", a->name);
}

static void env_set(Env *e, Axis *a, int64_t i)
{
    for (int k = 0; k < e->n; k++)
        if (e->a[k] == a) {
            e->i[k] = i;
            return;
        }
    e->a[e->n] = a;
    e->i[e->n++] = i;
}

/* Row-major position in x of the tuple; axes x lacks are ignored. */
static int64_t place(const Node *x, const Env *e)
{
    int64_t at = 0;

    for (int d = 0; d < x->nd; d++)
        at = at * x->dim[d].n + env_at(e, x->dim[d].a);
    return at;
}

static Env tuple(const Node *n, int64_t at)
{
    Env e;

    e.n = n->nd;
    for (int d = n->nd; d-- > 0;) {
        e.a[d] = n->dim[d].a;
        e.i[d] = at % n->dim[d].n;
        at /= n->dim[d].n;
    }
    return e;
}

typedef struct Run {
    Graph *g;
    double **val;
} Run;

static double get(const Run *r, const Node *x, const Env *e)
{
    return r->val[x->id][place(x, e)];
}

/* ---- elementwise --------------------------------------------------------- */

static double sigmoid(double a)
{
    return 1 / (1 + exp(-a));
}

static double phi(double a)
{
    return 0.5 * (1 + erf(a / sqrt(2)));
}

static double round_to(Dtype t, double v)
{
    return t == Df64 || dtypes[t].kind != 'f' ? v : dtype_rounded(t, (float)v);
}

static const double e2m1[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };

static double e2m1_number(int code)
{
    return code & 8 ? -e2m1[code & 7] : e2m1[code];
}

/* The nearest, of two as near the one with an even code. */
static int nibble(double v)
{
    int best = isnan(v) ? 7 : 0;

    for (int c = 1; c < 8; c++) {
        double was = fabs(fabs(v) - e2m1[best]), now = fabs(fabs(v) - e2m1[c]);
        if (now < was || (now == was && c % 2 == 0))
            best = c;
    }
    return best + (!isnan(v) && signbit(v) ? 8 : 0);
}

static double defined(Op op, const double *x);

static double ew1(Op op, double a)
{
    switch (op) {
    case Oneg: return -a;
    case Oexp: return exp(a);
    case Olog: return log(a);
    case Osqrt: return sqrt(a);
    case Orsqrt: return 1 / sqrt(a);
    case Osigmoid: return sigmoid(a);
    case Osilu: return a * sigmoid(a);
    case Odsilu: return sigmoid(a) * (1 + a * (1 - sigmoid(a)));
    case Ogelu: return a * phi(a);
    case Odgelu: return phi(a) + a * exp(-a * a / 2) / sqrt(2 * acos(-1));
    case Orelu: return a > 0 ? a : 0;
    case Otanh: return tanh(a);
    case Osoftplus: return a > 30 ? a : log1p(exp(a));
    case Osin: return sin(a);
    case Ocos: return cos(a);
    case Oabs: return fabs(a);
    case Ofloor: return floor(a);
    case Osign: return (a > 0) - (a < 0);
    case Olnot: return !a;
    case Oisfinite: return isfinite(a) != 0;
    case Omagnitude: return isnan(a) ? INFINITY : fabs(a);
    case Oe2m1_code: return nibble(a);
    case Oremainder_bf16: return remainder_bf16_f64(a);
    case Ofloor_pow2: return a == 0 ? 0 : exp2(floor(log2(a)));
    case Oceil_pow2: return exp2(ceil(log2(a)));
    case Ostop_gradient:
    case Obroadcast: return a;
    default: return defined(op, &a);
    }
}

static double ew2(Op op, double a, double b)
{
    switch (op) {
    case Oadd: return a + b;
    case Osub: return a - b;
    case Omul: return a * b;
    case Odiv: return a / b;
    case Opow: return pow(a, b);
    case Omod: return b == 0 ? 0 : (double)((int64_t)a % (int64_t)b);
    case Ofloor_div: return b == 0 ? 0 : floor(a / b);
    case Oxor: return (double)((int64_t)a ^ (int64_t)b);
    case Omaximum: return a >= b ? a : b;
    case Ominimum: return a <= b ? a : b;
    case Olt: return a < b;
    case Ole: return a <= b;
    case Ostochastic_e2m1: return stochastic_e2m1_f64(a, b);
    case Ostochastic_bf16: return stochastic_bf16_f64(a, b);
    case Ojoin_bf16: return join_bf16_f64(a, b);
    case Oe2m1_value: return e2m1_number((int)a >> (b > 0 ? 4 : 0) & 15);
    case Ogt: return a > b;
    case Oge: return a >= b;
    case Oeq: return a == b;
    case One: return a != b;
    case Oland: return a && b;
    case Olor: return a || b;
    default: return defined(op, (const double[]){ a, b });
    }
}

/* Of a Hadamard matrix of 16: by how many bits row and column share. */
static double matrix_sign(int i, int j, int negative)
{
    double s = negative >> j & 1 ? -1 : 1;

    for (int b = 0; b < 4; b++)
        s *= i >> b & j >> b & 1 ? -1 : 1;
    return s;
}

static double ew(Op op, const double *x)
{
    switch (optab[op].nin) {
    case 1: return ew1(op, x[0]);
    case 2: return ew2(op, x[0], x[1]);
    default:
        return op == Owhere ? x[0] != 0 ? x[1] : x[2]
               : op == Ohadamard_sign
                   ? matrix_sign((int)x[0], (int)x[1], (int)x[2])
               : op == Ofma ? x[0] * x[1] + x[2]
                            : defined(op, x);
    }
}

static double scalar(const ScalarExpr *e, const double *x)
{
    double in[SCALARIN];

    if (e->kind == SCoperand)
        return x[e->operand];
    if (e->kind == SCnumber)
        return e->number;
    for (int i = 0; i < e->n; i++)
        in[i] = scalar(e->in[i], x);
    if (e->op == NOP)
        die("interp: %s is of kernels", e->word->text);
    return ew(e->op, in);
}

/* An op that its row says by others. */
static double defined(Op op, const double *x)
{
    if (!optab[op].expr || scalar_is_primitive(op))
        die("interp: no meaning for %s", optab[op].name);
    return scalar(optab[op].expr, x);
}

static double cast(const Node *n, double a)
{
    if (dtypes[n->dt].kind == 'f')
        return a;
    return n->dt == Dbool ? a != 0 : trunc(a);
}

static double elementwise(const Run *r, const Node *n, const Env *e)
{
    double x[3];

    for (int k = 0; k < n->nin; k++)
        x[k] = get(r, n->in[k], e);
    return n->op == Ocast ? cast(n, x[0]) : ew(n->op, x);
}

/* ---- sums and products --------------------------------------------------- */

/* Step the tuple over the axes v[0..nv) of sizes as in x; 0 when done. */
static int next(Env *e, Axis *const *v, int nv, const Node *x)
{
    for (int k = nv; k-- > 0;) {
        int64_t i = env_at(e, v[k]) + 1;
        if (i < x->dim[dim_of(x, v[k])].n) {
            env_set(e, v[k], i);
            return 1;
        }
        env_set(e, v[k], 0);
    }
    return 0;
}

static void first(Env *e, Axis *const *v, int nv)
{
    for (int k = 0; k < nv; k++)
        env_set(e, v[k], 0);
}

static double reduce(const Run *r, const Node *n, Env *e)
{
    double s = 0;
    int begun = 0, count = 0;

    first(e, n_axes(n)->v, n_axes(n)->n);
    do {
        double v = get(r, n->in[0], e);
        if (n->op == Omax)
            s = begun && s >= v ? s : v;
        else if (n->op == Omin)
            s = begun && s <= v ? s : v;
        else
            s += v;
        begun = 1;
        count++;
    } while (next(e, n_axes(n)->v, n_axes(n)->n, n->in[0]));
    return n->op == Omean ? s / count : s;
}

/* From an element of x to the next along a. */
static int64_t stride(const Node *x, const Axis *a)
{
    int64_t step = 1;

    for (int d = x->nd; x->dim[--d].a != a;)
        step *= x->dim[d].n;
    return step;
}

/* The last axis, where most of the time goes, by strides. */
static double dot(const Run *r, const Node *n, Env *e)
{
    const Node *x = n->in[0], *y = n->in[1];
    int last = n_axes(n)->n - 1;
    Axis *const *v = n_axes(n)->v;

    if (last < 0)
        return get(r, x, e) * get(r, y, e);
    int64_t len = x->dim[dim_of(x, v[last])].n;
    int64_t dx = stride(x, v[last]), dy = stride(y, v[last]);
    double s = 0;

    first(e, v, last + 1);
    do {
        const double *a = &r->val[x->id][place(x, e)];
        const double *b = &r->val[y->id][place(y, e)];
        for (int64_t k = 0; k < len; k++)
            s += a[k * dx] * b[k * dy];
    } while (next(e, v, last, x));
    return s;
}

/* ---- blocks with scales -------------------------------------------------- */

/* The tuple with the places of its blocks. */
static Env with_blocks(const Node *n, Env e)
{
    const struct amax_attrs *t = &n->at.amax;

    for (int i = 0; i < t->blocks.n; i++)
        env_set(&e, t->blocks.v[i],
                env_at(&e, t->axes.v[i]) / block_size(n, i));
    return e;
}

static double amax(const Run *r, const Node *n, const Env *e)
{
    const Node *x = n->in[0];
    double most = 0;

    for (int64_t at = 0; at < g_elems(x); at++) {
        Env f = with_blocks(n, tuple(x, at));
        int here = 1;
        for (int d = 0; d < n->nd; d++)
            here &= env_at(&f, n->dim[d].a) == env_at(e, n->dim[d].a);
        double v = fabs(r->val[x->id][at]);
        if (here)
            most = isnan(v) ? INFINITY : fmax(most, v);
    }
    return most;
}

static double hadamard(const Run *r, const Node *n, Env e)
{
    Axis *a = n->at.hadamard.axes.v[0];
    int64_t i = env_at(&e, a);
    double s = 0;

    for (int j = 0; j < 16; j++) {
        env_set(&e, a, i / 16 * 16 + j);
        s += matrix_sign((int)(i % 16), j, (int)n->at.hadamard.signs) *
             get(r, n->in[0], &e);
    }
    return s / 4;
}

static double spread(const Run *r, const Node *n, const Env *e)
{
    Env f = with_blocks(n, *e);

    return get(r, n->in[0], &f);
}

/* Numbers times their scales; of an element that is two, both. */
static double scaled(const Run *r, const Node *n, const Env *e)
{
    Env f = with_blocks(n, *e);
    double s = get(r, n->in[1], &f), v;
    Dtype dt = n->in[0]->dt == Df64 || n->in[1]->dt == Df64 ? Df64 : Df32;

    if (n->op == Odequantize && n_pairs(n)) {
        const Axes *x = &n->at.amax.axes;
        int64_t i = env_at(e, x->v[x->n - 1]);
        env_set(&f, n_pairs(n), i / 2);
        v = e2m1_number((int)get(r, n->in[0], &f) >> (i % 2 * 4) & 15);
    } else {
        v = get(r, n->in[0], &f);
    }
    return round_to(dt, v * s);
}

static double quantize(const Run *r, const Node *n, Env e)
{
    const Axes *x = &n->at.amax.axes;
    double both = 0;

    if (!n_pairs(n))
        return scaled(r, n, &e);
    for (int k = 2; k-- > 0;) {
        env_set(&e, x->v[x->n - 1], 2 * env_at(&e, n_pairs(n)) + k);
        both = 16 * both + nibble(scaled(r, n, &e));
    }
    return both;
}

/* ---- rows ---------------------------------------------------------------- */

static const double *map_of(const Run *r, const Node *map, MapLayout *l)
{
    *l = map_layout(r->g, map);
    return r->val[map->id];
}

static int64_t expert_of(const double *m, const MapLayout *l, int64_t row)
{
    for (int64_t e = 0; e < l->experts; e++)
        if (row < (int64_t)m[l->offset + e + 1])
            return e;
    return -1;
}

static Axis *row_axis(const Run *r)
{
    return g_axis(r->g, "row");
}

static double gmm(const Run *r, const Node *n, Env *e)
{
    MapLayout l;
    const Node *map = n->in[2];
    const double *m = map_of(r, map, &l);
    int64_t x = expert_of(m, &l, env_at(e, row_axis(r)));

    if (x < 0)
        return 0;
    env_set(e, map->at.route.axis, x);
    return dot(r, n, e);
}

static double gmm_wgrad(const Run *r, const Node *n, Env *e)
{
    MapLayout l;
    const Node *map = n->in[2];
    const double *m = map_of(r, map, &l);
    int64_t x = env_at(e, map->at.route.axis);
    double s = 0;

    for (int64_t i = (int64_t)m[l.offset + x]; i < m[l.offset + x + 1]; i++) {
        env_set(e, row_axis(r), i);
        s += get(r, n->in[0], e) * get(r, n->in[1], e);
    }
    return s;
}

/* Of the column's block of 128 rows of the expert; rows of nobody as they are.
 */
static double fake_quantize(const Run *r, const Node *n, Env *e)
{
    MapLayout l;
    const double *m = map_of(r, n->in[1], &l);
    int64_t row = env_at(e, row_axis(r)), x = expert_of(m, &l, row);
    Dtype dt = n->dt == Df64 ? Df64 : Df32;
    double most = 0, v = get(r, n->in[0], e);

    if (x < 0)
        return v;
    int64_t from = (int64_t)m[l.offset + x], end = (int64_t)m[l.offset + x + 1];
    from += (row - from) / 128 * 128;
    for (int64_t i = from; i < end && i < from + 128; i++) {
        env_set(e, row_axis(r), i);
        most = fmax(most, fabs(get(r, n->in[0], e)));
    }
    double s = most == 0 ? 1 : exp2(floor(log2(round_to(dt, 448 / most))));
    return dtype_rounded(De4m3, (float)round_to(dt, v * s)) / s;
}

/* v as weights are compared: 29 bits of an f64, 16 of others. */
static double coarse(double v, Dtype dt)
{
    int exponent, bits = dt == Df64 ? 29 : 16;
    double m = frexp(v, &exponent);

    return ldexp(round(ldexp(m, bits)), exponent - bits);
}

/* A pair stays when fewer than `rows` of its expert and micro-batch stand
 * before it. */
static double keep(const Run *r, const Node *n, Env *e)
{
    Dtype dt = n->in[1]->dt;
    double x = get(r, n->in[0], e), g = coarse(get(r, n->in[1], e), dt);
    const Node *v = n->in[0];
    int64_t before = 0, here = place(v, e);

    if (x < 0 || x >= (double)n->at.drop_to_capacity.axis->n)
        return x;
    for (int64_t at = 0; at < g_elems(v); at++) {
        Env f = tuple(v, at);
        int other = 0;
        for (int d = 0; d < v->nd; d++)
            if (!strcmp(v->dim[d].a->name, "micro"))
                other = env_at(&f, v->dim[d].a) != env_at(e, v->dim[d].a);
        double h = coarse(get(r, n->in[1], &f), dt);
        before +=
            !other && r->val[v->id][at] == x &&
            (n->at.drop_to_capacity.first ? at < here
                                          : h > g || (h == g && at < here));
    }
    return before < n->at.drop_to_capacity.rows ? x : -1;
}

/* Padding: pair -1, which stays. */
static double *padded(const Node *n, const MapLayout *l, const double *e,
                      double *m)
{
    for (int64_t i = 0; i < l->cap; i++)
        m[l->pair + i] = -1;
    for (int64_t x = 0; x < l->experts; x++) {
        int64_t row = x * l->each;
        m[l->offset + x] = (double)row;
        for (int64_t p = 0; p < l->pairs; p++)
            if ((int64_t)e[p] == x) {
                m[l->pair + row] = (double)p;
                m[l->row + p] = (double)row++;
            }
        if (row > (x + 1) * l->each)
            die("interp: %s has rows for %lld", n->name, (long long)l->each);
    }
    m[l->offset + l->experts] = (double)l->cap;
    return m;
}

static double *route(const Run *r, const Node *n)
{
    MapLayout l = map_layout(r->g, n);
    double *m = alloc(r->g->arena, (size_t)l.n * sizeof *m),
           *e = r->val[n->in[0]->id];
    int64_t row = 0;

    for (int64_t p = 0; p < l.pairs; p++)
        m[l.row + p] = -1;
    if (l.each)
        return padded(n, &l, e, m);
    for (int64_t x = 0; x < l.experts; x++) {
        m[l.offset + x] = (double)row;
        for (int64_t p = 0; p < l.pairs; p++)
            if ((int64_t)e[p] == x) {
                m[l.pair + row] = (double)p;
                m[l.row + p] = (double)row++;
            }
    }
    m[l.offset + l.experts] = (double)row;
    return m;
}

static double dispatch(const Run *r, const Node *n, Env *e)
{
    MapLayout l;
    const Node *map = n->in[1];
    const double *m = map_of(r, map, &l);
    int64_t row = env_at(e, row_axis(r));

    if (row >= (int64_t)m[l.offset + l.experts] || m[l.pair + row] < 0)
        return 0;
    Env t = tuple(map->in[0], (int64_t)m[l.pair + row]);
    for (int k = 0; k < t.n; k++)
        env_set(e, t.a[k], t.i[k]);
    return get(r, n->in[0], e);
}

static double combine(const Run *r, const Node *n, Env *e)
{
    MapLayout l;
    const Node *map = n->in[1];
    const double *m = map_of(r, map, &l);
    double row = m[l.row + place(map->in[0], e)];

    if (row < 0)
        return 0;
    env_set(e, row_axis(r), (int64_t)row);
    return get(r, n->in[0], e);
}

/* ---- moves --------------------------------------------------------------- */

static double window(const Run *r, const Node *n, Env *e)
{
    const Node *x = n->in[0];
    int64_t size = x->dim[dim_of(x, n_axis(n))].n, i = env_at(e, n_axis(n));

    if (n->op == Oslice)
        i += n->at.slice.start;
    else if (n->op == Opad)
        i -= n->at.pad.start;
    else
        i = n->at.shift.wrap ? ((i - n->at.shift.by) % size + size) % size
                             : i - n->at.shift.by;
    if (i < 0 || i >= size)
        return 0;
    env_set(e, n_axis(n), i);
    return get(r, x, e);
}

static double concat(const Run *r, const Node *n, Env *e)
{
    int64_t i = env_at(e, n->at.concat.axis);

    for (int k = 0; k < n->nin; k++) {
        int64_t size = n->in[k]->dim[dim_of(n->in[k], n->at.concat.axis)].n;
        if (i < size) {
            env_set(e, n->at.concat.axis, i);
            return get(r, n->in[k], e);
        }
        i -= size;
    }
    die("interp: concat");
}

static double gather(const Run *r, const Node *n, Env *e)
{
    double i = get(r, n->in[1], e);

    if (i < 0)
        return 0;
    env_set(e, n->at.gather.axis, (int64_t)i);
    return get(r, n->in[0], e);
}

static void scatter(const Run *r, const Node *n, double *out)
{
    const Node *v = n->in[0];

    for (int64_t at = 0; at < g_elems(v); at++) {
        Env e = tuple(v, at);
        double i = get(r, n->in[1], &e);
        if (i < 0)
            continue;
        env_set(&e, n->at.scatter_add.axis, (int64_t)i);
        out[place(n, &e)] += r->val[v->id][at];
    }
}

static double cumsum(const Run *r, const Node *n, Env *e)
{
    int64_t to = env_at(e, n->at.cumsum.axis);
    double s = 0;

    for (int64_t i = 0; i <= to; i++) {
        env_set(e, n->at.cumsum.axis, i);
        s += get(r, n->in[0], e);
    }
    return s;
}

/* The index of rank k: as many others are larger, or equal and before it. */
static double topk(const Run *r, const Node *n, Env *e)
{
    const Node *x = n->in[0];
    int64_t size = x->dim[dim_of(x, n->at.topk.axis)].n,
            rank = env_at(e, n->at.topk.new);

    for (int64_t i = 0; i < size; i++) {
        int64_t before = 0;
        env_set(e, n->at.topk.axis, i);
        double v = get(r, x, e);
        for (int64_t j = 0; j < size; j++) {
            env_set(e, n->at.topk.axis, j);
            double w = get(r, x, e);
            before += w > v || (w == v && j < i);
        }
        if (before == rank)
            return (double)i;
    }
    die("interp: topk");
}

/* ---- one node ------------------------------------------------------------ */

static double element(const Run *r, const Node *n, int64_t at)
{
    Env e = tuple(n, at);

    switch (n->op) {
    case Oconst: return n->at.constant.value;
    case Oiota: return (double)env_at(&e, n->at.iota.axis);
    case Odot: return dot(r, n, &e);
    case Ogmm: return gmm(r, n, &e);
    case Ogmm_wgrad: return gmm_wgrad(r, n, &e);
    case Otopk: return topk(r, n, &e);
    case Oamax: return amax(r, n, &e);
    case Ohadamard: return hadamard(r, n, e);
    case Oquantize: return quantize(r, n, e);
    case Odequantize: return scaled(r, n, &e);
    case Ospread: return spread(r, n, &e);
    case Ofake_quantize: return fake_quantize(r, n, &e);
    case Odrop_to_capacity: return keep(r, n, &e);
    case Ocumsum: return cumsum(r, n, &e);
    case Oslice:
    case Opad:
    case Oshift: return window(r, n, &e);
    case Oconcat: return concat(r, n, &e);
    case Ogather: return gather(r, n, &e);
    case Odispatch: return dispatch(r, n, &e);
    case Ocombine: return combine(r, n, &e);
    case Opermute:
    case Oaccum: return get(r, n->in[0], &e);
    case Osplit:
    case Omerge:
    case Orename: return r->val[n->in[0]->id][at];
    default: break;
    }
    if (optab[n->op].cls == EW)
        return elementwise(r, n, &e);
    if (optab[n->op].cls == RED)
        return reduce(r, n, &e);
    die("interp: no meaning for %s", optab[n->op].name);
}

/* A composite is its body on the operands. */
static double *call(const Run *r, const Node *n)
{
    Graph *b = n->body;
    size_t count = vec_len(b->node);
    double **val = alloc(r->g->arena, (count + 1) * sizeof *val);

    g_renumber(b);
    for (size_t i = 0; i < count; i++)
        if (b->node[i]->op == Oarg)
            val[i] = r->val[n->in[b->node[i]->at.arg.index]->id];
    interp(b, val);
    return val[count - 1];
}

static double *evaluate(const Run *r, const Node *n)
{
    int64_t elems = g_elems(n);
    double *v;

    if (n->op == Oroute)
        return route(r, n);
    if (n->op == Ocall)
        return call(r, n);
    if (optab[n->op].cls == SINK && n->op != Oaccum)
        return r->val[n->in[n->nin - 1]->id];
    v = alloc(r->g->arena, ((size_t)elems + 1) * sizeof *v);
    if (n->op == Oscatter_add)
        scatter(r, n, v);
    else
        for (int64_t at = 0; at < elems; at++)
            v[at] = element(r, n, at);
    for (int64_t at = 0; at < elems; at++)
        v[at] = round_to(n->dt, v[at]);
    return v;
}

void interp(Graph *g, double **val)
{
    Run r = { g, val };

    for (size_t i = 0; i < vec_len(g->node); i++)
        if (!val[i])
            val[i] = evaluate(&r, g->node[i]);
}
