/* attn_cases.c: the attentions that the kernels are tested and timed on, built
 * as the prelude and the passes would leave them, lowered and compiled: all
 * kernels of all forms and dtypes are one translation unit. */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attn_cases.h"

static const Dtype dts[NDT] = { Df64, Df32, Dbf16 };

/* ---- building ------------------------------------------------------------ */

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
    if (op == Oinput)
        n->at.input.name = "x";
    for (int i = 0; i < nd; i++)
        n->dim[n->nd++] = (Dim){ a[i], a[i]->n };
    return infer(g, n);
}

static Node *operand(Build *m, int trains, Dtype dt, int nd, Axis *const *a)
{
    Node *n = shaped(m->b, Oarg, dt, nd, a);

    n->at.arg.index = m->nop;
    m->op[m->nop] = shaped(m->g, Oinput, dt, nd, a);
    m->trains[m->nop] = trains;
    return m->arg[m->nop++] = n;
}
#define AX(...)                                                         \
    (int)(sizeof(Axis *[]){ __VA_ARGS__ } / sizeof(Axis *)), (Axis *[]) \
    {                                                                   \
        __VA_ARGS__                                                     \
    }

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

    n->at.iota.axis = a;
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

/* ---- the scores of each case --------------------------------------------- */

static Node *qk(Build *m)
{
    Node *q = operand(m, 1, m->dt,
                      AX(m->micro, m->batch, m->seq, m->kv, m->group, m->dim));
    Node *k =
        operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->kv, m->dim));

    operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->kv, m->vdim));
    return scaled(m, g_dot(m->b, NULL, q, k, &m->dim, 1, NULL), m->dim->n);
}

Node *attn_plain(Build *m)
{
    return qk(m);
}

Node *attn_causal(Build *m)
{
    return causal(m, qk(m));
}

/* Multi-head latent attention: two dots, the second with a key that all heads
 * share. */
Node *attn_mla(Build *m)
{
    Node *qn =
        operand(m, 1, m->dt, AX(m->micro, m->batch, m->seq, m->kv, m->dim));
    Node *qr =
        operand(m, 1, m->dt, AX(m->micro, m->batch, m->seq, m->kv, m->rot));
    Node *kn =
        operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->kv, m->dim));
    Node *kr = operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->rot));
    Node *s = op2(m, Oadd, g_dot(m->b, NULL, qn, kn, &m->dim, 1, NULL),
                  g_dot(m->b, NULL, kr, qr, &m->rot, 1, NULL));

    operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->kv, m->vdim));
    return causal(m, scaled(m, s, m->dim->n + m->rot->n));
}

/* Soft cap, a slope per head that is not trained, a window of 37. */
Node *attn_window(Build *m)
{
    Node *s = qk(m), *v = m->arg[m->nop - 1];
    Node *slope, *ago, *cap;

    m->nop--; /* values stand last */
    slope = operand(m, 0, m->dt, AX(m->kv));
    m->arg[m->nop] = v;
    operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->kv, m->vdim));
    ago = op2(m, Osub, pos(m, m->seq), pos(m, m->key));
    cap =
        op2(m, Omul, num(m, s, 5),
            g_ew(m->b, Otanh, NULL, op2(m, Odiv, s, num(m, s, 5)), NULL, NULL));
    s = op2(m, Osub, cap, op2(m, Omul, slope, ago));
    return mask(m,
                op2(m, Oland, op2(m, Oge, ago, num(m, ago, 0)),
                    op2(m, Olt, ago, num(m, ago, 37))),
                s);
}

/* Chunks of 53 positions, which see nothing of each other. */
Node *attn_chunks(Build *m)
{
    Node *s = qk(m), *at = pos(m, m->seq);
    Node *first = op2(m, Osub, at, op2(m, Omod, at, num(m, at, 53)));

    return mask(m,
                op2(m, Oland, op2(m, Ole, pos(m, m->key), at),
                    op2(m, Oge, pos(m, m->key), first)),
                s);
}

/* Trained operands of the score beside the dots: a slope per head, a bias of
 * keys gated by one of queries, one of pairs. */
static Node *biased(Build *m, Node *s)
{
    Node *v = m->arg[--m->nop], *slope, *b, *gate, *pair, *ago;

    slope = operand(m, 1, m->dt, AX(m->kv));
    b = operand(m, 1, m->dt, AX(m->micro, m->batch, m->key));
    gate = operand(m, 1, m->dt, AX(m->kv, m->seq));
    pair = operand(m, 1, m->dt, AX(m->seq, m->key));
    m->arg[m->nop] = v;
    operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->kv, m->vdim));
    ago = op2(m, Osub, pos(m, m->seq), pos(m, m->key));
    s = op2(m, Oadd, s, op2(m, Omul, slope, ago));
    b = g_ew(m->b, Otanh, NULL, b, NULL, NULL);
    return op2(m, Oadd, op2(m, Oadd, s, op2(m, Omul, b, gate)), pair);
}

Node *attn_biases(Build *m)
{
    return causal(m, biased(m, qk(m)));
}

Node *attn_mlabiases(Build *m)
{
    Node *s = attn_mla(m);

    return biased(m, s);
}

/* Only queries from 5 on see keys, at most the one 5 before: the first rows are
 * wholly masked. */
Node *attn_late(Build *m)
{
    Node *s = qk(m), *q = pos(m, m->seq);

    q = op2(m, Osub, q, num(m, q, 5));
    return mask(m, op2(m, Ole, pos(m, m->key), q), s);
}

/* The same keys, said by a strict order. */
Node *attn_strict(Build *m)
{
    Node *s = qk(m), *q = pos(m, m->seq);

    q = op2(m, Osub, q, num(m, q, 4));
    return mask(m, op2(m, Olt, pos(m, m->key), q), s);
}

/* A condition on the scaled score itself. */
Node *attn_capped(Build *m)
{
    Node *s = qk(m);

    return mask(m, op2(m, Olt, s, num(m, s, 0.3)), s);
}

/* Documents: queries see keys of the same number only; both sides are data. The
 * two dots meet in a product, so each has a tile of its own. */
Node *attn_documents(Build *m)
{
    Node *dq = operand(m, 0, Di32, AX(m->micro, m->batch, m->seq));
    Node *dk = operand(m, 0, Di32, AX(m->micro, m->batch, m->key));
    Node *q =
        operand(m, 1, m->dt, AX(m->micro, m->batch, m->kv, m->seq, m->dim));
    Node *k =
        operand(m, 1, m->dt, AX(m->micro, m->batch, m->kv, m->dim, m->key));
    Node *p = operand(m, 1, m->dt, AX(m->kv, m->seq, m->rot));
    Node *s = g_dot(m->b, NULL, q, k, &m->dim, 1, NULL);
    Node *u = operand(m, 1, m->dt, AX(m->kv, m->key, m->rot));
    Node *gate = g_ew(m->b, Osigmoid, NULL,
                      g_dot(m->b, NULL, p, u, &m->rot, 1, NULL), NULL, NULL);

    operand(m, 1, m->dt, AX(m->micro, m->batch, m->kv, m->vdim, m->key));
    s = op2(m, Omul, op2(m, Oadd, s, op2(m, Omul, s, s)), gate);
    return causal(m, mask(m, op2(m, Oeq, dq, dk), s));
}

/* One latent tensor is keys, over two axes, and values. */
Node *attn_latent(Build *m)
{
    Node *q = operand(m, 1, m->dt,
                      AX(m->micro, m->batch, m->seq, m->kv, m->rot, m->dim));
    Node *c =
        operand(m, 1, m->dt, AX(m->micro, m->batch, m->key, m->dim, m->rot));
    Axis *both[2] = { m->rot, m->dim };

    return causal(m, scaled(m, g_dot(m->b, NULL, q, c, both, 2, NULL), 8));
}

/* ---- the graph around a score -------------------------------------------- */

static Node *part(Graph *g, Node *of, int i, Dtype dt, const Node *like)
{
    Node *p = g_node(g, Opart, NULL, 1, &of);

    p->at.part.index = i;
    p->dt = dt;
    p->nd = like->nd;
    memcpy(p->dim, like->dim, sizeof p->dim);
    return infer(g, p);
}

static Node *composite(Build *m, Op op, int nin, Node *const *in)
{
    Node *n = g_node(m->g, op, NULL, nin, in);

    n->at.attn.key = m->key; /* attn_bwd's lie there too */
    n->at.attn.query = m->seq;
    n->body = m->b;
    return infer(m->g, n);
}

/* softmax and the product with the values, as the prelude writes them. */
static Node *finish_body(Build *m, Node *s)
{
    Node *top = g_red(m->b, Omax, s, &m->key, 1), *e, *y;

    top = g_ew(m->b, Ostop_gradient, NULL, top, NULL, NULL);
    e = g_ew(m->b, Oexp, NULL, op2(m, Osub, s, top), NULL, NULL);
    y = op2(m, Odiv, e, g_red(m->b, Osum, e, &m->key, 1));
    return g_dot(m->b, NULL, y, m->arg[m->nop - 1], &m->key, 1, NULL);
}

void attn_kernels(Run *r)
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
    k->fam = FAMattn_bwd;
    k->node = alloc(forever, 13 * sizeof *k->node);
    k->node[k->n++] = r->back;
    for (int i = 0; i < r->m.nop; i++)
        if (r->grad[i])
            k->node[k->n++] = r->grad[i];
    k->out = k->node + 1;
    k->nout = k->n - 1;
    attn_bwd_lower(r->m.g, k, forever);
}

/* ---- for a GPU ----------------------------------------------------------- */

enum { SHARED = 3 }; /* latent attention's operand that heads share */

static Group group(Node *of, int n, Node *const *part)
{
    Group k = { .fam = of->op == Oattn ? FAMattn : FAMattn_bwd };

    k.node = alloc(forever, 16 * sizeof *k.node);
    k.node[k.n++] = of;
    for (int i = 0; i < n; i++)
        if (part[i])
            k.node[k.n++] = part[i];
    k.out = k.node + 1;
    k.nout = k.n - 1;
    return k;
}

/* Sums of result times gradient, as the compiler has them made elsewhere. */
static void use_deltas(Run *r)
{
    Node *of = r->lse->in[0];

    r->delta = part(r->m.g, of, 1, r->lse->dt, r->lse);
    r->delta->op = Oinput;
    r->back->in[r->m.nop] = r->delta;
}

/* The key that heads share has a gradient of each head. */
static void part_heads(Run *r)
{
    Node *p = r->grad[SHARED];
    int at = dim_of(p, r->m.key);

    memmove(p->dim + at + 1, p->dim + at,
            (size_t)(p->nd++ - at) * sizeof *p->dim);
    p->dim[at] = (Dim){ r->m.kv, r->m.kv->n };
    p->dt = Df32;
}

void attn_kernels_cuda(Run *r)
{
    use_deltas(r);
    if (r->grad[SHARED] && r->c->scores == attn_mla && r->m.dt == Dbf16)
        part_heads(r);
    r->fwd = group(r->attn, 2, (Node *[]){ r->out, r->lse });
    r->bwd = group(r->back, r->m.nop, r->grad);
    attn_lower_cuda(r->m.g, &r->fwd, forever);
    attn_lower_cuda(r->m.g, &r->bwd, forever);
}

double *attn_deltas(const Run *r, const double *y)
{
    const Node *out = r->out, *delta = r->delta;
    double *sum = calloc((size_t)g_elems(delta), sizeof *sum);

    for (int64_t i = 0; i < g_elems(out); i++) {
        int64_t at = 0, rest = i, stride = 1, step[MAXD];
        for (int k = delta->nd; k-- > 0; stride *= delta->dim[k].n)
            step[k] = stride;
        for (int k = out->nd; k-- > 0; rest /= out->dim[k].n) {
            int m = dim_of(delta, out->dim[k].a);
            at += m < 0 ? 0 : rest % out->dim[k].n * step[m];
        }
        sum[at] += y[i] * r->w[i];
    }
    return sum;
}

int attn_results(const Run *r, Node **out, const char **name)
{
    int n = 0;

    out[n] = r->out, name[n++] = "out";
    out[n] = r->lse, name[n++] = "lse";
    for (int i = 0; i < r->m.nop; i++)
        if (r->grad[i])
            out[n] = r->grad[i], name[n++] = strf(forever, "d%d", i);
    return n;
}

double attn_distance(const double *x, const double *y, int64_t n)
{
    double d = 0, all = 0;

    for (int64_t i = 0; i < n; i++) {
        if (isinf(y[i]) && x[i] == y[i])
            continue;
        d += (x[i] - y[i]) * (x[i] - y[i]);
        all += y[i] * y[i];
    }
    return sqrt(d / (all > 0 ? all : 1));
}

double *attn_summed(const Run *r, const Node *p, double *x, int64_t n)
{
    int64_t heads = g_elems(p) / n, inner = 1;
    double *y = calloc((size_t)n, sizeof *y);

    for (int k = p->nd; k-- > dim_of(p, r->m.kv) + 1;)
        inner *= p->dim[k].n;
    if (heads == 1)
        inner = n;
    for (int64_t i = 0; i < n * heads; i++)
        y[i / inner / heads * inner + i % inner] += x[i];
    free(x);
    return y;
}

void attn_build(Run *r, const Form *c, Dtype dt)
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
    o = finish_body(m, c->scores(m));
    r->attn = composite(m, Oattn, m->nop, m->op);
    if (attn_refused(m->g, r->attn))
        die("no kernel for %s", c->name);
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
    r->dout->at.input.name = "dout";
    r->back = composite(m, Oattn_bwd, m->nop + 3, in);
    for (int i = 0; i < m->nop; i++)
        if (m->trains[i])
            r->grad[i] = part(m->g, r->back, i, dt, m->op[i]);
}

/* ---- kernels ------------------------------------------------------------- */

static void *unit;

static void compile(Run (*runs_)[NDT], int n)
{
    char dir[] = "/tmp/attn_test.XXXXXX", cmd[512];
    FILE *f;

    if (!mkdtemp(dir))
        die("no folder %s", dir);
    snprintf(cmd, sizeof cmd, "%s/k.c", dir);
    if (!(f = fopen(cmd, "w")))
        die("no file %s", cmd);
    fprintf(f, "%s%s", host_pre, attn_pre);
    Table *seen = table_new(forever);
    for (int i = 0; i < n * NDT * 2; i++) {
        Run *r = &runs_[i / 2 / NDT][i / 2 % NDT];
        Group *k = i % 2 ? &r->bwd : &r->fwd;
        if (!k->text || table_get(seen, KEYP(k->instr.kernel)))
            continue;
        *table_at(seen, KEYP(k->instr.kernel)) = k;
        fprintf(f, "%s\n", k->text);
    }
    fclose(f);
    snprintf(cmd, sizeof cmd,
             "cd %s && ${CC:-cc} -std=gnu11 -O${PLEAT_OPT:-3} -march=native "
             "-ffp-contract=off -fPIC -c k.c -o k.o && "
             "${CC:-cc} -shared -o k.so k.o -lm",
             dir);
    if (system(cmd))
        die("fails: %s", cmd);
    snprintf(cmd, sizeof cmd, "%s/k.so", dir);
    unit = dlopen(cmd, RTLD_NOW);
    if (!unit)
        die("%s", dlerror());
    if (getenv("ATTN_KEEP"))
        fprintf(stderr, "kept %s\n", dir);
    else
        snprintf(cmd, sizeof cmd, "rm -r %s", dir), (void)!system(cmd);
}

void *attn_stored(const Node *n, const double *x)
{
    int64_t e = g_elems(n);
    char *p = malloc((size_t)(e * 8));

    for (int64_t i = 0; i < e; i++)
        switch (n->dt) {
        case Df64: ((double *)p)[i] = x ? x[i] : NAN; break;
        case Df32: ((float *)p)[i] = x ? (float)x[i] : NAN; break;
        case Dbf16:
            ((uint16_t *)p)[i] = x ? f32_to_bf16((float)x[i]) : 0x7fc0;
            break;
        default: ((int32_t *)p)[i] = (int32_t)x[i];
        }
    return p;
}

double *attn_loaded(const Node *n, const void *p)
{
    int64_t e = g_elems(n);
    double *x = malloc((size_t)(e * 8));

    for (int64_t i = 0; i < e; i++)
        x[i] = n->dt == Df64   ? ((const double *)p)[i]
               : n->dt == Df32 ? ((const float *)p)[i]
                               : bf16_to_f32(((const uint16_t *)p)[i]);
    return x;
}

Entry *attn_entry(const Group *k)
{
    Entry *f;

    *(void **)&f = dlsym(unit, k->instr.kernel);
    if (!f || k->instr.nword > 512 || k->narg >= 32)
        die("no kernel %s, or too many arguments", k->instr.kernel);
    return f;
}

/* The double value of a buffer, or null for one to be written. */
const double *attn_known(const Run *r, const Node *n)
{
    for (int i = 0; i < r->m.nop; i++)
        if (n == r->m.op[i])
            return r->x[i];
    return n == r->dout ? r->w : n == r->out ? r->y : n == r->lse ? r->l : NULL;
}

/* ---- values -------------------------------------------------------------- */

double attn_random(void)
{
    static uint64_t s = 88172645463325252ull;

    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return (double)(s >> 11) / 9007199254740992.0;
}

/* Representable in bf16, so that all dtypes start from the same numbers. */
double *attn_values(const Node *n, double scale)
{
    int64_t e = g_elems(n);
    double *x = malloc((size_t)(e * 8));

    for (int64_t i = 0; i < e; i++) {
        float f = (float)(scale * (4 * attn_random() - 2));
        x[i] = n->dt == Di32 ? (double)(i * 3 / (e + 1))
                             : bf16_to_f32(f32_to_bf16(f));
    }
    return x;
}

void attn_prepare(Run (*all)[NDT], const Form *c, int n)
{
    for (int i = 0; i < n; i++)
        for (int t = 0; t < NDT; t++) {
            Run *r = &all[i][t], *first = &all[i][0];
            attn_build(r, &c[i], dts[t]);
            attn_kernels(r);
            for (int k = 0; k < r->m.nop; k++)
                r->x[k] =
                    t ? first->x[k] : attn_values(r->m.op[k], r->c->scale);
            r->w = t ? first->w : attn_values(r->out, 1);
        }
    compile(all, n);
}
