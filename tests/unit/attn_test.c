/* attn_test: host attention kernels against a plain evaluation of their bodies
 * in double, node by node. Forward results and logsumexps are compared element
 * by element; gradients with differences of the plain evaluation along random
 * directions, and for the smallest case along every axis. All kernels of all
 * cases and dtypes are one translation unit. `attn_test bench` prints speeds.  */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "../../codegen/codegen.h"

typedef struct Sizes {
    int64_t batch, kv, group, seq, key, dim, rot, vdim;
} Sizes;

/* One attention being built: the outer graph and its body.                     */
typedef struct Build {
    Graph *g, *b;
    Axis *micro, *batch, *kv, *group, *seq, *key, *dim, *rot, *vdim;
    Dtype dt;
    Node *op[8]; int nop;         /* operands outside ...                       */
    Node *arg[8];                 /* ... and in the body                        */
    int trains[8];
} Build;

typedef struct Case {
    const char *name;
    Sizes z;
    Node *(*score)(Build *m);     /* declares operands, the value operand last   */
    double scale;                 /* of the random operands                      */
} Case;

enum { F64, F32, BF16, NDT };
static const Dtype dts[NDT] = { Df64, Df32, Dbf16 };

/* A case in one dtype, with its kernels and values.                            */
typedef struct Run {
    const Case *c;
    Build m;
    Node *attn, *out, *lse, *dout, *back, *grad[8];
    Group fwd, bwd;
    double *x[8], *w;             /* operands, dout, as doubles                  */
    double *y, *l, *dx[8];        /* results                                     */
} Run;

typedef void Entry(void *const *buf, const int64_t *iv, int64_t lo, int64_t hi);

/* ---- building ------------------------------------------------------------------ */

static Axis *axis(Graph *g, const char *name, int64_t n)
{
    Axis *a = g_axis(g, name);

    a->n = n;
    return a;
}

static Node *shaped(Graph *g, Op op, Dtype dt, int nd, Axis *const *a)
{
    Node *n = g_node(g, op, NULL, 0, NULL);

    n->dt = dt;
    n->s = "x";
    for (int i = 0; i < nd; i++)
        n->dim[n->nd++] = (Dim){ a[i], a[i]->n };
    return infer(g, n);
}

static Node *operand(Build *m, int trains, Dtype dt, int nd, Axis *const *a)
{
    Node *n = shaped(m->b, Oarg, dt, nd, a);

    n->i = m->nop;
    m->op[m->nop] = shaped(m->g, Oinput, dt, nd, a);
    m->trains[m->nop] = trains;
    return m->arg[m->nop++] = n;
}
#define AX(...) (int)(sizeof (Axis *[]){ __VA_ARGS__ } / sizeof(Axis *)),         \
                (Axis *[]){ __VA_ARGS__ }

static Node *op2(Build *m, Op op, Node *a, Node *b)
{
    return g_ew(m->b, op, NULL, a, b, NULL);
}

static Node *num(Build *m, const Node *like, double v)
{
    return g_const(m->b, NULL, like->dt, v);
}

static Node *pos(Build *m, Axis *a)
{
    Node *n = g_node(m->b, Oiota, NULL, 0, NULL);

    n->A = alloc(forever, sizeof *n->A);
    n->A[0] = a;
    n->nA = 1;
    return infer(m->b, n);
}

static Node *mask(Build *m, Node *keep, Node *s)
{
    return g_ew(m->b, Owhere, NULL, keep, s, num(m, s, -INFINITY));
}

static Node *causal(Build *m, Node *s)
{
    return mask(m, op2(m, Ole, pos(m, m->key), pos(m, m->seq)), s);
}

static Node *scaled(Build *m, Node *s, int64_t d)
{
    return op2(m, Odiv, s, num(m, s, sqrt((double)d)));
}

/* ---- the scores of each case ------------------------------------------------------ */

static Node *qk(Build *m)
{
    Node *q = operand(m, 1, m->dt, AX(m->micro, m->batch, m->seq, m->kv,
                                      m->group, m->dim));
    Node *k = operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->kv, m->dim));

    operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->kv, m->vdim));
    return scaled(m, g_dot(m->b, NULL, q, k, &m->dim, 1, NULL), m->dim->n);
}

static Node *plain_causal(Build *m) { return causal(m, qk(m)); }

/* Multi-head latent attention: two dots, the second with a key that all heads
 * share.                                                                       */
static Node *mla(Build *m)
{
    Node *qn = operand(m, 1, m->dt, AX(m->micro, m->batch, m->seq, m->kv, m->dim));
    Node *qr = operand(m, 1, m->dt, AX(m->micro, m->batch, m->seq, m->kv, m->rot));
    Node *kn = operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->kv, m->dim));
    Node *kr = operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->rot));
    Node *s = op2(m, Oadd, g_dot(m->b, NULL, qn, kn, &m->dim, 1, NULL),
                  g_dot(m->b, NULL, kr, qr, &m->rot, 1, NULL));

    operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->kv, m->vdim));
    return causal(m, scaled(m, s, m->dim->n + m->rot->n));
}

/* Soft cap, a slope per head that is not trained, a window of 37.              */
static Node *window(Build *m)
{
    Node *s = qk(m), *v = m->arg[m->nop - 1];
    Node *slope, *ago, *cap;

    m->nop--;                                  /* values stand last              */
    slope = operand(m, 0, m->dt, AX(m->kv));
    m->arg[m->nop] = v;
    operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->kv, m->vdim));
    ago = op2(m, Osub, pos(m, m->seq), pos(m, m->key));
    cap = op2(m, Omul, num(m, s, 5), g_ew(m->b, Otanh, NULL,
              op2(m, Odiv, s, num(m, s, 5)), NULL, NULL));
    s = op2(m, Osub, cap, op2(m, Omul, slope, ago));
    return mask(m, op2(m, Oland, op2(m, Oge, ago, num(m, ago, 0)),
                       op2(m, Olt, ago, num(m, ago, 37))), s);
}

/* Only queries from 5 on see keys, at most the one 5 before: the first rows are
 * wholly masked.                                                               */
static Node *late(Build *m)
{
    Node *s = qk(m), *q = pos(m, m->seq);

    return mask(m, op2(m, Ole, pos(m, m->key), op2(m, Osub, q, num(m, q, 5))), s);
}

/* Documents: queries see keys of the same number only; both sides are data. The
 * two dots meet in a product, so each has a tile of its own.                   */
static Node *documents(Build *m)
{
    Node *dq = operand(m, 0, Di32, AX(m->micro, m->batch, m->seq));
    Node *dk = operand(m, 0, Di32, AX(m->micro, m->batch, m->key));
    Node *q = operand(m, 1, m->dt, AX(m->micro, m->batch, m->kv, m->seq, m->dim));
    Node *k = operand(m, 1, m->dt, AX(m->micro, m->batch, m->kv, m->dim, m->key));
    Node *p = operand(m, 1, m->dt, AX(m->kv, m->seq, m->rot));
    Node *s = g_dot(m->b, NULL, q, k, &m->dim, 1, NULL);
    Node *u = operand(m, 1, m->dt, AX(m->kv, m->key, m->rot));
    Node *gate = g_ew(m->b, Osigmoid, NULL,
                      g_dot(m->b, NULL, p, u, &m->rot, 1, NULL), NULL, NULL);

    operand(m, 1, m->dt, AX(m->micro, m->batch, m->kv, m->vdim, m->key));
    s = op2(m, Omul, op2(m, Oadd, s, op2(m, Omul, s, s)), gate);
    return causal(m, mask(m, op2(m, Oeq, dq, dk), s));
}

/* One latent tensor is keys, over two axes, and values.                        */
static Node *latent(Build *m)
{
    Node *q = operand(m, 1, m->dt, AX(m->micro, m->batch, m->seq, m->kv, m->rot,
                                      m->dim));
    Node *c = operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->dim, m->rot));
    Axis *both[2] = { m->rot, m->dim };

    return causal(m, scaled(m, g_dot(m->b, NULL, q, c, both, 2, NULL), 8));
}

static const Case cases[] = {
    { "tiny", { 1, 1, 1, 3, 5, 2, 2, 3 }, qk, 1 },
    { "mha-causal", { 2, 3, 1, 130, 130, 32, 1, 32 }, plain_causal, 1 },
    { "gqa", { 1, 2, 3, 70, 70, 20, 1, 17 }, plain_causal, 1 },
    { "cross", { 2, 1, 2, 61, 149, 16, 1, 40 }, qk, 1 },
    { "mla", { 2, 3, 1, 101, 101, 24, 8, 16 }, mla, 1 },
    { "window", { 1, 2, 2, 150, 150, 12, 1, 12 }, window, 1 },
    { "late", { 1, 1, 2, 67, 67, 8, 1, 8 }, late, 1 },
    { "documents", { 2, 2, 1, 75, 75, 10, 6, 9 }, documents, 0.3 },
    { "latent", { 1, 3, 1, 66, 66, 5, 7, 1 }, latent, 1 },
    { "one", { 1, 1, 1, 1, 1, 1, 1, 1 }, plain_causal, 1 },
};
enum { NCASE = sizeof cases / sizeof *cases };
static Run runs[NCASE][NDT];

/* The widths that matter: head sizes 32 to 128, latent attention, capped.      */
static const Case speeds[] = {
    { "d32 s256", { 4, 4, 1, 256, 256, 32, 1, 32 }, plain_causal, 1 },
    { "d64 s1024", { 1, 8, 1, 1024, 1024, 64, 1, 64 }, plain_causal, 1 },
    { "d128 s2048", { 1, 4, 1, 2048, 2048, 128, 1, 128 }, plain_causal, 1 },
    { "d64 gqa4 full", { 1, 2, 4, 1024, 1024, 64, 1, 64 }, qk, 1 },
    { "mla 128+64", { 1, 4, 1, 1024, 1024, 128, 64, 128 }, mla, 1 },
    { "capped window", { 1, 8, 1, 1024, 1024, 64, 1, 64 }, window, 1 },
};
enum { NSPEED = sizeof speeds / sizeof *speeds };
static Run timed[NSPEED][NDT];

/* ---- the graph around a score -------------------------------------------------------- */

static Node *part(Graph *g, Node *of, int i, Dtype dt, const Node *like)
{
    Node *p = g_node(g, Opart, NULL, 1, &of);

    p->i = i;
    p->dt = dt;
    p->nd = like->nd;
    memcpy(p->dim, like->dim, sizeof p->dim);
    return infer(g, p);
}

static Node *composite(Build *m, Op op, int nin, Node *const *in)
{
    Node *n = g_node(m->g, op, NULL, nin, in);

    n->A = alloc(forever, sizeof *n->A);
    n->B = alloc(forever, sizeof *n->B);
    n->A[0] = m->key;
    n->B[0] = m->seq;
    n->nA = n->nB = 1;
    n->body = m->b;
    return infer(m->g, n);
}

/* softmax and the product with the values, as the prelude writes them.         */
static Node *finish_body(Build *m, Node *s)
{
    Node *top = g_red(m->b, Omax, s, &m->key, 1), *e, *y;

    top = g_ew(m->b, Ostop_gradient, NULL, top, NULL, NULL);
    e = g_ew(m->b, Oexp, NULL, op2(m, Osub, s, top), NULL, NULL);
    y = op2(m, Odiv, e, g_red(m->b, Osum, e, &m->key, 1));
    return g_dot(m->b, NULL, y, m->arg[m->nop - 1], &m->key, 1, NULL);
}

static void lower(Run *r)
{
    Group *k = &r->fwd;

    k->fam = FAMattn;
    k->node = alloc(forever, 3 * sizeof *k->node);
    k->node[k->n++] = r->attn;
    k->node[k->n++] = r->out;
    k->node[k->n++] = r->lse;
    k->out = k->node + 1;
    k->nout = 2;
    attn_lower(r->m.g, k, forever);
    k = &r->bwd;
    k->fam = FAMattnback;
    k->node = alloc(forever, 9 * sizeof *k->node);
    k->node[k->n++] = r->back;
    for (int i = 0; i < r->m.nop; i++)
        if (r->grad[i])
            k->node[k->n++] = r->grad[i];
    k->out = k->node + 1;
    k->nout = k->n - 1;
    attnback_lower(r->m.g, k, forever);
}

static void build(Run *r, const Case *c, Dtype dt)
{
    Build *m = &r->m;
    Node *in[16], *o;

    r->c = c;
    m->g = g_new(forever, "test");
    m->dt = dt;
    m->micro = axis(m->g, "micro", 1);
    m->batch = axis(m->g, "batch", c->z.batch);
    m->kv = axis(m->g, "kv", c->z.kv);
    m->group = axis(m->g, "group", c->z.group);
    m->seq = axis(m->g, "seq", c->z.seq);
    m->key = axis(m->g, "key", c->z.key);
    m->dim = axis(m->g, "dim", c->z.dim);
    m->rot = axis(m->g, "rot", c->z.rot);
    m->vdim = axis(m->g, "vdim", c->z.vdim);
    m->b = g_like(m->g);
    o = finish_body(m, c->score(m));
    r->attn = composite(m, Oattn, m->nop, m->op);
    assert_true(attn_can(m->g, r->attn));
    r->out = part(m->g, r->attn, 0, dt, o);
    o = m->b->node[vec_len(m->b->node) - 1]->in[0];
    Node like = { 0 };
    for (int i = 0; i < o->nd; i++)
        if (o->dim[i].a != m->key)
            like.dim[like.nd++] = o->dim[i];
    r->lse = part(m->g, r->attn, 1, dt == Df64 ? Df64 : Df32, &like);
    memcpy(in, m->op, sizeof m->op);
    in[m->nop] = r->out;
    in[m->nop + 1] = r->lse;
    in[m->nop + 2] = r->dout = part(m->g, r->attn, 0, dt, r->out);
    r->dout->op = Oinput;
    r->back = composite(m, Oattnback, m->nop + 3, in);
    for (int i = 0; i < m->nop; i++)
        if (m->trains[i])
            r->grad[i] = part(m->g, r->back, i, dt, m->op[i]);
    lower(r);
}

/* ---- plain evaluation ------------------------------------------------------------------ */

typedef struct Eval {
    const Graph *g;               /* axes                                       */
    const Graph *body;
    double *const *x;             /* operands                                   */
    double **v;                   /* by body node                               */
    int64_t at[16];               /* coordinates by axis                        */
} Eval;

static int slot(const Eval *e, const Axis *a)
{
    for (int i = 0; i < e->g->naxis; i++)
        if (e->g->axis[i] == a)
            return i;
    abort();
}

static double *element(Eval *e, const Node *n)
{
    int64_t off = 0;

    for (int d = 0; d < n->nd; d++)
        off = off * n->dim[d].n + e->at[slot(e, n->dim[d].a)];
    return &e->v[n->id][off];
}

static double elementwise(const Node *n, double a, double b, double c)
{
    switch (n->op) {
    case Oadd: return a + b;
    case Osub: return isinf(a) && a == b ? a : a - b;
    case Omul: return a * b;
    case Odiv: return b == 0 && a == 0 ? 0 : a / b;   /* nothing seen: 0         */
    case Oexp: return exp(a);
    case Otanh: return tanh(a);
    case Osigmoid: return 1 / (1 + exp(-a));
    case Owhere: return a != 0 ? b : c;
    case Ole: return a <= b;
    case Olt: return a < b;
    case Oge: return a >= b;
    case Oeq: return a == b;
    case Oland: return a != 0 && b != 0;
    case Ostop_gradient: return a;
    default: abort();
    }
}

static double reduced(Eval *e, const Node *n, int axis)
{
    double r = n->op == Omax ? -INFINITY : 0;

    if (axis == n->nA)
        return n->op == Odot ? *element(e, n->in[0]) * *element(e, n->in[1])
                             : *element(e, n->in[0]);
    int s = slot(e, n->A[axis]);
    for (e->at[s] = 0; e->at[s] < n->A[axis]->n; e->at[s]++) {
        double t = reduced(e, n, axis + 1);
        r = n->op == Omax ? fmax(r, t) : r + t;
    }
    return r;
}

static double value_at(Eval *e, const Node *n)
{
    double in[3] = { 0 };

    if (n->op == Oconst)
        return n->f;
    if (n->op == Oiota)
        return (double)e->at[slot(e, n->A[0])];
    if (optab[n->op].cls == RED || n->op == Odot)
        return reduced(e, n, 0);
    for (int k = 0; k < n->nin; k++)
        in[k] = *element(e, n->in[k]);
    return elementwise(n, in[0], in[1], in[2]);
}

static void each_element(Eval *e, const Node *n, int d)
{
    if (d == n->nd) {
        *element(e, n) = value_at(e, n);
        return;
    }
    int s = slot(e, n->dim[d].a);
    for (int64_t i = 0; i < n->dim[d].n; i++) {
        e->at[s] = i;
        each_element(e, n, d + 1);
    }
}

/* Every value of the body; the last is the attention's.                        */
static double **evaluate(const Run *r, double *const *x)
{
    const Graph *b = r->m.b;
    size_t n = vec_len(b->node);
    Eval e = { r->m.g, b, x, calloc(n, sizeof(double *)), { 0 } };

    for (size_t i = 0; i < n; i++) {
        b->node[i]->id = (int)i;
        e.v[i] = malloc(sizeof(double) * (size_t)g_elems(b->node[i]));
        if (b->node[i]->op == Oarg)
            memcpy(e.v[i], x[b->node[i]->i],
                   sizeof(double) * (size_t)g_elems(b->node[i]));
        else
            each_element(&e, b->node[i], 0);
    }
    return e.v;
}

static void discard(const Run *r, double **v)
{
    for (size_t i = 0; i < vec_len(r->m.b->node); i++)
        free(v[i]);
    free(v);
}

static double weighted(const Run *r, double *const *x)
{
    double **v = evaluate(r, x), s = 0;

    for (int64_t i = 0; i < g_elems(r->out); i++)
        s += v[vec_len(r->m.b->node) - 1][i] * r->w[i];
    discard(r, v);
    return s;
}

/* ---- running kernels ---------------------------------------------------------------------- */

static void *unit;

static void compile(Run (*runs_)[NDT], int n)
{
    char dir[] = "/tmp/attn_test.XXXXXX", cmd[512];
    FILE *f;

    assert_non_null(mkdtemp(dir));
    snprintf(cmd, sizeof cmd, "%s/k.c", dir);
    assert_non_null(f = fopen(cmd, "w"));
    fputs(host_pre, f);
    Table *seen = table_new(forever);
    for (int i = 0; i < n * NDT * 2; i++) {
        Run *r = &runs_[i / 2 / NDT][i / 2 % NDT];
        Group *k = i % 2 ? &r->bwd : &r->fwd;
        if (!k->text || table_get(seen, KEYP(k->step.kernel)))
            continue;
        *table_at(seen, KEYP(k->step.kernel)) = k;
        fprintf(f, "%s\n", k->text);
    }
    fclose(f);
    snprintf(cmd, sizeof cmd, "cd %s && ${CC:-cc} -std=gnu11 -O3 -march=native "
             "-ffp-contract=off -shared -fPIC -o k.so k.c -lm", dir);
    assert_int_equal(system(cmd), 0);
    snprintf(cmd, sizeof cmd, "%s/k.so", dir);
    unit = dlopen(cmd, RTLD_NOW);
    if (!unit)
        fail_msg("%s", dlerror());
    if (getenv("KEEP"))
        fprintf(stderr, "kept %s\n", dir);
    else
        snprintf(cmd, sizeof cmd, "rm -r %s", dir), (void)!system(cmd);
}

static void *stored(const Node *n, const double *x)
{
    int64_t e = g_elems(n);
    char *p = malloc((size_t)(e * 8));

    for (int64_t i = 0; i < e; i++)
        switch (n->dt) {
        case Df64: ((double *)p)[i] = x ? x[i] : NAN; break;
        case Df32: ((float *)p)[i] = x ? (float)x[i] : NAN; break;
        case Dbf16: ((uint16_t *)p)[i] = x ? f32_to_bf16((float)x[i]) : 0x7fc0;
            break;
        default: ((int32_t *)p)[i] = (int32_t)x[i];
        }
    return p;
}

static double *loaded(const Node *n, const void *p)
{
    int64_t e = g_elems(n);
    double *x = malloc((size_t)(e * 8));

    for (int64_t i = 0; i < e; i++)
        x[i] = n->dt == Df64 ? ((const double *)p)[i]
             : n->dt == Df32 ? ((const float *)p)[i]
             : bf16_to_f32(((const uint16_t *)p)[i]);
    return x;
}

/* The double value of a buffer, or null for one to be written.                 */
static const double *value_of(const Run *r, const Node *n)
{
    for (int i = 0; i < r->m.nop; i++)
        if (n == r->m.op[i])
            return r->x[i];
    return n == r->dout ? r->w : n == r->out ? r->y : n == r->lse ? r->l : NULL;
}

static void call(const Group *k, void **buf, int backwards)
{
    int64_t iv[512], n = k->step.iv[0].c, cut = n / 3;
    Entry *f;

    *(void **)&f = dlsym(unit, k->step.kernel);

    assert_non_null(f);
    assert_true(k->step.nint <= 512);
    for (int i = 0; i < k->step.nint; i++)
        iv[i] = k->step.iv[i].c;
    if (!backwards) {
        f(buf, iv, 0, n);
        return;
    }
    for (int64_t i = n; i-- > cut; )
        f(buf, iv, i, i + 1);
    f(buf, iv, 0, cut);
}

/* Runs a kernel twice, split differently: the same bytes must come out.        */
static void run(Run *r, const Group *k)
{
    void *buf[2][32];

    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < k->narg; i++)
            buf[t][i] = stored(k->arg[i], value_of(r, k->arg[i]));
        buf[t][k->narg] = malloc((size_t)k->scratch + 1);
        memset(buf[t][k->narg], 0xff, (size_t)k->scratch);
        call(k, buf[t], t);
    }
    for (int i = 0; i < k->narg; i++) {
        Node *n = k->arg[i];
        size_t bytes = (size_t)(g_elems(n) * dtypes[n->dt].bytes);
        assert_memory_equal(buf[0][i], buf[1][i], bytes);
        if (n == r->out)
            r->y = loaded(n, buf[0][i]);
        if (n == r->lse)
            r->l = loaded(n, buf[0][i]);
        for (int q = 0; q < r->m.nop; q++)
            if (n == r->grad[q])
                r->dx[q] = loaded(n, buf[0][i]);
    }
    for (int i = 0; i <= k->narg; i++) {
        free(buf[0][i]);
        free(buf[1][i]);
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

static double uniform(void)
{
    static uint64_t s = 88172645463325252ull;

    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return (double)(s >> 11) / 9007199254740992.0;
}

/* Representable in bf16, so that all dtypes start from the same numbers.       */
static double *random_values(const Node *n, double scale)
{
    int64_t e = g_elems(n);
    double *x = malloc((size_t)(e * 8));

    for (int64_t i = 0; i < e; i++)
        x[i] = n->dt == Di32 ? (double)(i * 3 / (e + 1))
             : bf16_to_f32(f32_to_bf16((float)(scale * (4 * uniform() - 2))));
    return x;
}

static double norm(const double *x, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s = fmax(s, fabs(x[i]));
    return s;
}

static double difference(const double *x, const double *y, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        if (x[i] != y[i])                      /* also equal infinities          */
            s = fmax(s, isnan(x[i] - y[i]) ? INFINITY : fabs(x[i] - y[i]));
    return s;
}

static double *logsumexp(const Run *r, double **v)
{
    const Graph *b = r->m.b;
    const Node *o = b->node[vec_len(b->node) - 1], *y = o->in[0];
    const Node *z = y->in[1], *m = y->in[0]->in[0]->in[1];
    double *l = malloc(sizeof(double) * (size_t)g_elems(r->lse));

    for (int64_t i = 0; i < g_elems(r->lse); i++)
        l[i] = isinf(v[m->id][i]) ? -INFINITY : v[m->id][i] + log(v[z->id][i]);
    return l;
}

/* ---- tests ------------------------------------------------------------------------------------- */

/* Rounding errors of a sum of `key` terms; bf16 has 8 bits.                    */
static const double tolerance[NDT] = { 1e-12, 1e-5, 1e-2 };

static void test_forward(void **state)
{
    Run *all = *state, *ref = &all[F64];
    double **v = evaluate(ref, ref->x);
    double *o = v[vec_len(ref->m.b->node) - 1], *l = logsumexp(ref, v);

    for (int t = 0; t < NDT; t++) {
        Run *r = &all[t];
        int64_t n = g_elems(r->out), nl = g_elems(r->lse);
        double no = fmax(norm(o, n), 1e-30);
        run(r, &r->fwd);
        double e = difference(o, r->y, n) / no;
        double el = difference(l, r->l, nl) / 10;
        printf("  %-11s %-4s out %.1e lse %.1e\n", r->c->name,
               dtypes[r->m.dt].name, e, el);
        assert_true(e < tolerance[t]);
        assert_true(el < tolerance[t == BF16 ? F32 : t]);
    }
    discard(ref, v);
    free(l);
}

/* Derivative of the weighted result along d of operand k.                      */
static double along(Run *r, int k, const double *d, double h)
{
    int64_t n = g_elems(r->m.op[k]);
    double *keep = r->x[k], *x = malloc((size_t)n * 8), f[2];

    r->x[k] = x;
    for (int s = 0; s < 2; s++) {
        for (int64_t i = 0; i < n; i++)
            x[i] = keep[i] + (s ? h : -h) * d[i];
        f[s] = weighted(r, r->x);
    }
    r->x[k] = keep;
    free(x);
    return (f[1] - f[0]) / (2 * h);
}

/* Central differences of step 1e-5 leave about 1e-10 of truncation and as much
 * of rounding.                                                                 */
static void check_direction(Run *r, int k, int64_t only)
{
    int64_t n = g_elems(r->m.op[k]);
    double *d = calloc((size_t)n, 8), dot = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        d[i] = only < 0 ? 2 * uniform() - 1 : i == only;
        dot += d[i] * r->dx[k][i];
        size += fabs(d[i] * r->dx[k][i]);
    }
    double fd = along(r, k, d, 1e-5);
    double e = fabs(fd - dot) / fmax(size, 1e-3);
    if (e > 1e-6)
        fail_msg("%s: operand %d: %.12g by differences, %.12g by kernel",
                 r->c->name, k, fd, dot);
    free(d);
}

static void test_gradient(void **state)
{
    Run *all = *state, *r = &all[F64];

    for (int t = 0; t < NDT; t++)
        run(&all[t], &all[t].bwd);
    for (int k = 0; k < r->m.nop; k++) {
        if (!r->grad[k])
            continue;
        int64_t n = g_elems(r->m.op[k]);
        for (int64_t i = 0; i < (n < 64 ? n : 0); i++)
            check_direction(r, k, i);
        for (int i = 0; i < 2; i++)
            check_direction(r, k, -1);
        for (int t = F32; t < NDT; t++) {
            double size = fmax(norm(r->dx[k], n), 1e-2);
            double e = difference(r->dx[k], all[t].dx[k], n) / size;
            printf("  %-11s %-4s gradient %d %.1e\n", r->c->name,
                   dtypes[dts[t]].name, k, e);
            assert_true(e < 2 * tolerance[t]);
        }
    }
}

static void prepare(Run (*all)[NDT], const Case *c, int n)
{
    for (int i = 0; i < n; i++)
        for (int t = 0; t < NDT; t++) {
            Run *r = &all[i][t], *first = &all[i][0];
            build(r, &c[i], dts[t]);
            for (int k = 0; k < r->m.nop; k++)
                r->x[k] = t ? first->x[k]
                            : random_values(r->m.op[k], r->c->scale);
            r->w = t ? first->w : random_values(r->out, 1);
        }
    compile(all, n);
}

/* ---- speed ------------------------------------------------------------------------------------- */

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Best of some runs, on one core.                                              */
static double time_of(Run *r, const Group *k)
{
    void *buf[32];
    double best = INFINITY, end = seconds() + 0.4;

    for (int i = 0; i < k->narg; i++) {
        const double *x = value_of(r, k->arg[i]);
        double *zero = x ? NULL : calloc((size_t)g_elems(k->arg[i]), 8);
        buf[i] = stored(k->arg[i], x ? x : zero);
        free(zero);
    }
    buf[k->narg] = malloc((size_t)k->scratch + 1);
    do {
        double t = seconds();
        call(k, buf, 0);
        best = fmin(best, seconds() - t);
    } while (seconds() < end);
    for (int i = 0; i <= k->narg; i++)
        free(buf[i]);
    return best;
}

/* Multiply-adds of all products that a mask leaves, by two.                    */
static double flops(const Case *c)
{
    const Sizes *z = &c->z;
    double square = (double)(z->batch * z->kv * z->group * z->seq * z->key);
    double width = (double)(z->dim + (c->score == mla ? z->rot : 0) + z->vdim);

    double seen = c->score == qk ? 1 : c->score == window ? 37.0 / (double)z->key
                                                          : 0.5;
    return 2 * square * width * seen;
}

typedef void Product(int, int, int, int, int, int, float, const float *, int,
                   const float *, int, float, float *, int);

static void time_sgemm(void)
{
    enum { N = 768 };
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
    float *x = calloc(3 * N * N, sizeof *x);
    double best = INFINITY;
    void (*threads)(int);
    Product *f;

    if (!lib)
        return;
    *(void **)&f = dlsym(lib, "cblas_sgemm");
    *(void **)&threads = dlsym(lib, "openblas_set_num_threads");
    threads(1);
    for (int i = 0; i < 10; i++) {
        double t = seconds();
        f(101, 111, 111, N, N, N, 1, x, N, x + N * N, N, 0, x + 2 * N * N, N);
        best = fmin(best, seconds() - t);
    }
    printf("sgemm %d: %.1f GFLOP/s\n", N, 2.0 * N * N * N / best / 1e9);
    free(x);
}

static int bench(void)
{
    prepare(timed, speeds, NSPEED);
    time_sgemm();
    printf("%-14s %-4s %9s %9s GFLOP/s, one core\n", "", "", "forward",
           "backward");
    for (int i = 0; i < NSPEED; i++)
        for (int t = F32; t < NDT; t++) {
            Run *r = &timed[i][t];
            r->y = random_values(r->out, 1);
            r->l = random_values(r->lse, 0);
            double f = flops(r->c), fwd = time_of(r, &r->fwd);
            for (int64_t q = 0; q < g_elems(r->lse); q++)
                r->l[q] = 8;                   /* no weight overflows            */
            double bwd = time_of(r, &r->bwd);
            printf("%-14s %-4s %9.1f %9.1f\n", r->c->name,
                   dtypes[r->m.dt].name, f / fwd / 1e9, 2.5 * f / bwd / 1e9);
        }
    return 0;
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[2 * NCASE];

    if (argc > 1 && !strcmp(argv[1], "bench"))
        return bench();
    prepare(runs, cases, NCASE);
    for (int i = 0; i < NCASE; i++)
        for (int b = 0; b < 2; b++)
            tests[2 * i + b] = (struct CMUnitTest){
                strf(forever, "%s %s", cases[i].name,
                     b ? "backward" : "forward"),
                b ? test_gradient : test_forward, NULL, NULL, runs[i] };
    return cmocka_run_group_tests_name("attn", tests, NULL, NULL);
}
