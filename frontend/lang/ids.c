/* ids.c: ranges of integers. An index is checked against the axis that it
 * indexes; -1 names no element. An input that is an index, also after a number
 * was added or multiplied, gets the bound `below`: data beyond it are refused
 * when they are read. Every other index whose range reaches beyond its axis,
 * or below -1, gets a metric `beyond`, the value farthest from the axis or 0,
 * and a run ends where that is not 0. Ranges follow from constants, sizes and
 * operations:
 *
 *     mod(tokens, 7)                        0 .. 6
 *     where(c, tokens, 0), tokens < 256     0 .. 255                       */
#include "../frontend.h"

typedef struct Range {
    double lo, hi; /* both included */
} Range;

/* The calls of composites around a node, the innermost first. */
typedef struct CallStack {
    Node *call;
    const struct CallStack *up;
} CallStack;

typedef struct Ids {
    Front *front;
    Table *range; /* Range by node */
    int checks;
} Ids;

typedef void UseFn(Ids *ids, Node *use, Node *index, int64_t size,
                   const CallStack *in);

/* ---- uses ---------------------------------------------------------------- */

static Node *result_of(const Node *call)
{
    return call->body->node[vec_len(call->body->node) - 1];
}

/* The index that n reads, and the size of its axis; null: n reads none. */
static Node *index_of_use(const Ids *ids, const Node *n, int64_t *size)
{
    const Node *of = n->op == Oscatter_add ? n : n->in[0];

    if (n->op == Oeq && table_get(ids->front->onehot, KEYP(n))) {
        *size = n->in[1]->dim[0].n;
        return n->in[0];
    }
    if (n->op != Ogather && n->op != Opick && n->op != Oscatter_add)
        return NULL;
    *size = of->dim[dim_of(of, n_axis(n))].n;
    return n->in[1];
}

/* ---- bounds of inputs ---------------------------------------------------- */

static int is_whole(const Node *n)
{
    return n->op == Oconst && dtypes[n->dt].kind == 'i';
}

/* The largest x whose y = n(x) is at most `most`, where n is x and a constant;
 * *x: the operand that is x, or null. */
static double undone(const Node *n, double most, Node **x)
{
    int k = is_whole(n->in[0]) && n->op != Osub;
    const Node *c = n->in[!k];

    *x = is_whole(c) ? n->in[k] : NULL;
    if (!*x)
        return 0;
    double v = c->at.constant.value;
    if (n->op == Omul && v < 1)
        *x = NULL;
    return n->op == Oadd   ? most - v
           : n->op == Osub ? most + v
                           : floor(most / v);
}

/* Does n hold what its first operand holds, and zeros? */
static int keeps_values(const Node *n)
{
    return n->nin && (optab[n->op].cls == VIEW || n->op == Oslice ||
                      n->op == Oshift || n->op == Opad || n->op == Opermute ||
                      n->op == Obroadcast || n->op == Ostop_gradient ||
                      (n->op == Ocast && dtypes[n->in[0]->dt].kind == 'i'));
}

static int is_text(const Node *input)
{
    const char *name = input->at.input.name;

    return !strcmp(name, "tokens") || !strcmp(name, "labels");
}

/* The bound of an input implies that it is not below -1. So a term to which a
 * number is added bounds text only. */
static void bound_input(Node *n, double most, const CallStack *in)
{
    int added = 0;

    while (n->op != Oinput) {
        CallStack body = { n, in };
        if (n->op == Ocall) {
            bound_input(result_of(n), most, &body);
            return;
        }
        for (int k = 1; n->op == Oconcat && k < n->nin; k++)
            bound_input(n->in[k], most, in);
        if (n->op == Oarg && in) {
            n = in->call->in[n->at.arg.index];
            in = in->up;
        } else if (keeps_values(n) || n->op == Oconcat) {
            n = n->in[0];
        } else {
            if (n->op != Oadd && n->op != Osub && n->op != Omul)
                return;
            added |= n->op != Omul;
            most = undone(n, most, &n);
            if (!n)
                return;
        }
    }
    if (added && !is_text(n))
        return;
    int64_t below = most < 1 ? 1 : most < INT32_MAX ? (int64_t)most + 1 : 0;
    if (below && (!n->at.input.below || n->at.input.below > below))
        n->at.input.below = below;
}

static void bound_use(Ids *ids, Node *use, Node *index, int64_t size,
                      const CallStack *in)
{
    (void)ids, (void)use;
    bound_input(index, (double)size - 1, in);
}

/* ---- ranges -------------------------------------------------------------- */

static Range all_of(Dtype dt)
{
    return dt == Dbool  ? (Range){ 0, 1 }
           : dt == Du8  ? (Range){ 0, UINT8_MAX }
           : dt == Di16 ? (Range){ INT16_MIN, INT16_MAX }
                        : (Range){ INT32_MIN, INT32_MAX };
}

static Range united(Range a, Range b)
{
    return (Range){ fmin(a.lo, b.lo), fmax(a.hi, b.hi) };
}

static Range range_of(const Ids *ids, const Node *n)
{
    const Range *r = table_get(ids->range, KEYP(n));

    return r ? *r : all_of(n->dt);
}

static Range input_range(const Node *n)
{
    Range all = all_of(n->dt);

    if (n->at.input.below)
        all.hi = (double)n->at.input.below - 1;
    if (is_text(n) || n->at.input.below)
        all.lo = strcmp(n->at.input.name, "tokens") ? -1 : 0;
    return all;
}

static Range product(Range a, Range b)
{
    return united(united((Range){ a.lo * b.lo, a.lo * b.lo },
                         (Range){ a.lo * b.hi, a.lo * b.hi }),
                  united((Range){ a.hi * b.lo, a.hi * b.lo },
                         (Range){ a.hi * b.hi, a.hi * b.hi }));
}

/* a % b has the sign of a. */
static Range remainder_range(Range a, Range b)
{
    double most = fmax(0, fmax(fabs(b.lo), fabs(b.hi)) - 1);

    return (Range){ fmax(fmin(a.lo, 0), -most), fmin(fmax(a.hi, 0), most) };
}

/* n's from its operands' a and b; of no op that is here, all integers. */
static Range made(const Ids *ids, const Node *n, const CallStack *in)
{
    static const Range zero, one = { 1, 1 };
    Range all = all_of(n->dt), a = all, b = all;
    double count = 1;

    if (n->nin > 0)
        a = range_of(ids, n->in[0]);
    if (n->nin > 1)
        b = range_of(ids, n->in[1]);
    if (keeps_values(n))
        return united(a, n->op == Oshift || n->op == Opad ? zero : a);
    switch (n->op) {
    case Oinput: return input_range(n);
    case Oarg: return in ? range_of(ids, in->call->in[n->at.arg.index]) : all;
    case Ocall: return range_of(ids, result_of(n));
    case Oconst: return (Range){ n->at.constant.value, n->at.constant.value };
    case Oiota: return (Range){ 0, (double)n->dim[0].n - 1 };
    case Otopk:
        count = (double)n->in[0]->dim[dim_of(n->in[0], n->at.topk.axis)].n;
        return (Range){ 0, count - 1 };
    case Oadd: return (Range){ a.lo + b.lo, a.hi + b.hi };
    case Osub: return (Range){ a.lo - b.hi, a.hi - b.lo };
    case Oneg: return (Range){ -a.hi, -a.lo };
    case Omul: return product(a, b);
    case Omod: return remainder_range(a, b);
    case Ofloor_div:
        return b.lo < 1 ? all
                        : (Range){ floor(fmin(a.lo / b.lo, a.lo / b.hi)),
                                   floor(fmax(a.hi / b.lo, a.hi / b.hi)) };
    case Omaximum: return (Range){ fmax(a.lo, b.lo), fmax(a.hi, b.hi) };
    case Ominimum: return (Range){ fmin(a.lo, b.lo), fmin(a.hi, b.hi) };
    case Oabs: return (Range){ 0, fmax(fabs(a.lo), fabs(a.hi)) };
    case Owhere: return united(b, range_of(ids, n->in[2]));
    case Ogather: return united(a, zero);
    case Omax:
    case Omin: return a;
    case Osum:
        count = (double)g_elems(n->in[0]) / (double)g_elems(n);
        return product(a, (Range){ count, count });
    case Ocumsum:
        count = (double)n->dim[dim_of(n, n->at.cumsum.axis)].n;
        return united(product(a, (Range){ count, count }), product(a, one));
    case Oconcat:
        for (int k = 1; k < n->nin; k++)
            a = united(a, range_of(ids, n->in[k]));
        return a;
    default: return all;
    }
}

/* ---- checks -------------------------------------------------------------- */

/* n with operands of the body's outside instead of arguments. */
static Node *outside(Front *front, Node *n, const CallStack *in)
{
    Node **op = alloc(front->g->arena, ((size_t)n->nin + 1) * sizeof *op);

    if (!in)
        return n;
    if (n->op == Oarg)
        return outside(front, in->call->in[n->at.arg.index], in->up);
    for (int k = 0; k < n->nin; k++)
        op[k] = outside(front, n->in[k], in);
    return infer(front->g, g_copyof(front->g, n, op));
}

/* The largest e from `least` on; sign "-": e is an index negated. */
static void report_beyond(Ids *ids, const Axis *axis, Node *e, double least,
                          const char *sign)
{
    Front *front = ids->front;
    Node *over = ew(front, Oge, e, constant(front, e->dt, least), NULL);
    Node *v = ew(front, Owhere, over, e, constant(front, e->dt, 0));
    Node *n = make(front, Ometric, 1, &v);

    n->at.metric.name = intern(
        strf(front->g->arena, "%s'%s%d", axis->name, sign, ++ids->checks));
    n->at.metric.beyond = 1;
    infer(front->g, n);
}

static void check_use(Ids *ids, Node *use, Node *index, int64_t size,
                      const CallStack *in)
{
    const Axis *axis = use->op == Oeq ? use->in[1]->dim[0].a : n_axis(use);
    Front *front = ids->front;
    Range range = range_of(ids, index);

    front->loc = use->loc;
    if (range.hi >= (double)size)
        report_beyond(ids, axis, outside(front, index, in), (double)size, "");
    if (range.lo < -1) {
        Node *e = outside(front, index, in);
        report_beyond(ids, axis, ew(front, Oneg, e, NULL, NULL), 2, "-");
    }
}

/* f for each use in g, in its order, ranges found up to there. */
static void each_use(Ids *ids, const Graph *g, const CallStack *in, UseFn *f)
{
    size_t count = vec_len(g->node);
    int64_t size;

    for (size_t i = 0; i < count; i++) {
        Node *n = g->node[i], *index = index_of_use(ids, n, &size);
        CallStack body = { n, in };
        if (!in && !n->mark)
            continue;
        if (n->op == Ocall)
            each_use(ids, n->body, &body, f);
        if (f == check_use && dtypes[n->dt].kind != 'f') {
            Range *r = alloc(ids->front->g->arena, sizeof *r);
            Range all = all_of(n->dt);
            *r = made(ids, n, in);
            if (!(r->lo >= all.lo && r->hi <= all.hi))
                *r = all; /* it may have wrapped around */
            *table_at(ids->range, KEYP(n)) = r;
        }
        if (index)
            f(ids, n, index, size, in);
    }
}

void bound_ids(Front *front)
{
    Ids ids = { front, table_new(front->g->arena), 0 };

    mark_used(front->g);
    each_use(&ids, front->g, NULL, bound_use);
    each_use(&ids, front->g, NULL, check_use);
}
