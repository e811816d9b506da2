/* genattn.c: attentions of any scores over any axes. */
#include <math.h>
#include <string.h>

#include "gen.h"

/* One attention: queries along seq, keys along key; over are summed. */
typedef struct Attn {
    Tens *x, *from; /* queries, and what keys and values are made of */
    GDim seq, key, over;
    Tens score; /* its axes so far */
} Attn;

static int attends(const Tens *t, const void *with)
{
    (void)with;
    return t->nd >= 2 && t->nd < GENDIM;
}

/* The same sequence and the same axis to sum over. */
static int suits(const Tens *t, const void *with)
{
    const Attn *a = with;

    return attends(t, NULL) && dim_at(t, a->seq.a) >= 0 &&
           dim_at(t, a->over.a) >= 0 && united(t, a->x).nd >= 0;
}

static Tens keyed(const Tens *t, const Attn *a)
{
    Tens k = *t;

    k.dim[dim_at(&k, a->seq.a)] = a->key;
    return k;
}

static Tens *rename_keys(Gen *g, const Tens *t, const Attn *a)
{
    Tens k = keyed(t, a);

    return emit(g, &k, "rename(%s * 0.7, {%s=\"%s\"})", tame(g, t, 3), a->seq.a,
                a->key.a);
}

/* All its axes are the scores'. */
static int fits_score(const Tens *t, const void *with)
{
    const Attn *a = with;

    for (int i = 0; i < t->nd; i++) {
        int at = dim_at(&a->score, t->dim[i].a);
        if (at < 0 || a->score.dim[at].n != t->dim[i].n)
            return 0;
    }
    return 1;
}

/* ---- what scores are made of --------------------------------------------- */

/* Queries minus keys. */
static const char *ago(Gen *g, const Attn *a)
{
    return strf(g->a, "(iota(\"%s\") - rename(iota(\"%s\"), {%s=\"%s\"}))",
                a->seq.a, a->seq.a, a->seq.a, a->key.a);
}

/* An axis of the scores that is neither; 0: none. */
static int head_of(Gen *g, const Attn *a, GDim *d)
{
    for (int tries = 0; tries < 8; tries++) {
        *d = a->score.dim[below(g, a->score.nd)];
        if (d->a != a->seq.a && d->a != a->key.a && declarable(g, *d))
            return 1;
    }
    return 0;
}

static const char *param_of(Gen *g, GDim d, const char *init)
{
    return strf(g->a, "param(\"%s\", \"%s\", %s)", new_param(g), d.a, init);
}

static const char *scalar(Gen *g, const char *init)
{
    return strf(g->a, "param(\"%s\", \"\", %s)", new_param(g), init);
}

/* A slope for each head, or one, trained or not. */
static const char *slopes(Gen *g, const Attn *a)
{
    GDim d;

    if (chance(g, 20))
        return strf(g->a, "%s * %s", scalar(g, "normal(0.3)"), ago(g, a));
    if (!head_of(g, a, &d) || chance(g, 30))
        return strf(g->a, "0.1 * %s", ago(g, a));
    if (chance(g, 50))
        return strf(g->a, "%s * %s", param_of(g, d, "normal(0.3)"), ago(g, a));
    return strf(g->a,
                "%s * (f32(rename(iota(\"%s\"), {%s=\"%s\"})) - "
                "f32(iota(\"%s\")))",
                param_of(g, d, "uniform(0.3)"), a->seq.a, a->seq.a, a->key.a,
                a->seq.a);
}

/* A table of biases by distance, of 4 buckets (as T5's), for each head. */
static const char *buckets(Gen *g, const Attn *a)
{
    GDim d, b = new_axis(g, "bucket", 4);
    int heads = head_of(g, a, &d);

    declarable(g, b);
    return strf(g->a,
                "gather(param(\"%s\", \"%s%s%s\", normal(1)), "
                "minimum(maximum(%s, 0), 3), \"%s\")",
                new_param(g), b.a, heads ? " " : "", heads ? d.a : "",
                ago(g, a), b.a);
}

/* Another product, over an axis of its own, as latent attention has. */
static const char *more(Gen *g, const Attn *a)
{
    Tens w = { 0 };
    GDim rot = some_axis(g, 1);

    if (dim_at(a->x, rot.a) >= 0 || dim_at(a->from, rot.a) >= 0 ||
        !declarable(g, a->over))
        return slopes(g, a);
    add_dim(&w, a->over);
    add_dim(&w, rot);
    Tens *q = make_param(g, &w, "normal(0.5)");
    Tens *k = make_param(g, &w, "normal(0.5)");
    if (!q || !k)
        return slopes(g, a);
    q->uses = k->uses = 1;
    return strf(g->a,
                "dot(dot(%s, %s, \"%s\"), rename(dot(%s, %s, \"%s\"), "
                "{%s=\"%s\"}), \"%s\") * 0.3",
                tame(g, a->x, 2), q->name, a->over.a, tame(g, a->from, 2),
                k->name, a->over.a, a->seq.a, a->key.a, rot.a);
}

static Tens *add_terms(Gen *g, Attn *a, Tens *s)
{
    for (int64_t n = below(g, 3); n > 0; n--) {
        const char *term = below(g, 3) == 0   ? buckets(g, a)
                           : below(g, 2) == 0 ? more(g, a)
                                              : slopes(g, a);
        s->uses++;
        s = emit(g, &a->score, "%s + %s", s->name, term);
    }
    if (chance(g, 15)) {
        s->uses++;
        s = emit(g, &a->score, "2 * tanh(%s / 2)", s->name);
    }
    return s;
}

/* A document each, of 2 or 3 elements: only pairs of one see each other. */
static const char *documents(Gen *g, const Attn *a)
{
    const char *doc = strf(g->a, "f32(gt(iota(\"%s\"), %lld))", a->seq.a,
                           (long long)below(g, a->seq.n));

    return strf(g->a, "eq(%s, rename(%s, {%s=\"%s\"}))", doc, doc, a->seq.a,
                a->key.a);
}

/* A real that scores are compared with: of the pool, a scalar, or a number for
 * each element of an axis of the scores; trained or not. */
static const char *threshold(Gen *g, Attn *a)
{
    GDim d = a->score.dim[below(g, a->score.nd)];
    Tens *t = chance(g, 30) ? pick(g, REAL, fits_score, a) : NULL;
    a->score.data |= t && t->data;
    const char *x = t                  ? tame(g, t, 1)
                    : declarable(g, d) ? param_of(g, d, "normal(0.5)")
                                       : scalar(g, "normal(0.5)");

    return chance(g, 25) ? strf(g->a, "stop_gradient(%s)", x) : x;
}

/* The scores, and others where a comparison of reals says so. */
static const char *compared(Gen *g, Attn *a, const char *x)
{
    const char *than = ONE_OF(g, "ge", "lt", "gt");
    const char *other = ONE_OF(g, "-3", "0.5 * %s", "%s - 2");

    other = strf(g->a, other, x);
    if (chance(g, 30))
        return strf(g->a, "where(%s(%s, %s), %s, %s)", than, ago(g, a),
                    threshold(g, a), x, other);
    if (chance(g, 30) && a->key.n > 1) {
        GDim top = new_axis(g, "top", 1 + below(g, a->key.n - 1));
        return strf(g->a,
                    "where(ge(%s, min(topk(%s, %lld, \"%s\", \"%s\"), "
                    "\"%s\")), %s, %s)",
                    x, x, (long long)top.n, a->key.a, top.a, top.a, x, other);
    }
    return strf(g->a, "where(%s(%s, %s), %s, %s)", than, x, threshold(g, a), x,
                other);
}

/* Every query sees itself, whatever the masks are. */
static Tens *mask(Gen *g, Attn *a, Tens *s)
{
    int causal = chance(g, 50);
    const char *x = s->name;

    s->uses++;
    if (chance(g, 30)) {
        s = emit(g, &a->score, "%s", compared(g, a, x));
        s->uses++;
        x = s->name;
    }
    if (causal)
        x = strf(g->a, "causal(%s, \"%s\", \"%s\")", x, a->seq.a, a->key.a);
    switch (below(g, 6)) {
    case 0:
        return emit(g, &a->score, "where(lt(%s, %lld), %s, -inf)", ago(g, a),
                    (long long)(1 + below(g, a->seq.n)), x);
    case 1:
        return emit(g, &a->score, "where(%s, %s, -inf)", documents(g, a), x);
    case 2:
        return emit(g, &a->score, "where(land(ge(%s, 0), lt(%s, 3)), %s, -inf)",
                    ago(g, a), ago(g, a), x);
    default: return causal ? emit(g, &a->score, "%s", x) : s;
    }
}

/* ---- one attention ------------------------------------------------------- */

static int choose(Gen *g, Attn *a)
{
    a->x = pick(g, REAL, attends, NULL);
    if (!a->x)
        return 0;
    int seq = (int)below(g, a->x->nd), over = (int)below(g, a->x->nd - 1);
    a->seq = a->x->dim[seq];
    a->over = a->x->dim[over + (over >= seq)];
    if (!strncmp(a->seq.a, "key", 3) || !declarable(g, a->seq))
        return 0;
    a->from = chance(g, 50) ? pick(g, REAL, suits, a) : a->x;
    a->key = new_axis(g, "key", a->seq.n);
    return a->from != NULL;
}

/* The axes of both but the one summed. */
static int score_axes(Attn *a)
{
    Tens k = keyed(a->from, a);

    a->score = united(a->x, &k);
    if (a->score.nd < 0)
        return 0;
    drop_dim(&a->score, dim_at(&a->score, a->over.a));
    a->score.most = 6;
    return 1;
}

static Tens *values_of(Gen *g, Attn *a, Tens *k)
{
    Tens *v = chance(g, 30) ? pick(g, REAL, suits, a) : NULL;

    if (!v) {
        k->uses++;
        return k;
    }
    Tens both = united(&a->score, v);
    return both.nd < 0 ? k : rename_keys(g, v, a);
}

static Tens *scores_of(Gen *g, Attn *a, Tens *k)
{
    k->uses++;
    Tens *s =
        emit(g, &a->score, "dot(%s, %s, \"%s\")%s%s", tame(g, a->x, 3), k->name,
             a->over.a, ONE_OF(g, "", "", " / math.sqrt(3)", " * 0.5"),
             chance(g, 15) ? strf(g->a, " * %s", scalar(g, "ones")) : "");
    s = mask(g, a, add_terms(g, a, s));
    s->uses++;
    s->closed = 1; /* it may hold -inf */
    return s;
}

/* Axes of the scores, but the keys', that values have not. */
static int lacking(const Attn *a, const Tens *v)
{
    int n = 0;

    for (int i = 0; i < a->score.nd; i++)
        n += a->score.dim[i].a != a->key.a && dim_at(v, a->score.dim[i].a) < 0;
    return n;
}

/* An attention and its logsumexp, or its largest score too. */
static void with_results(Gen *g, const Attn *a, const Tens *like,
                         const char *text)
{
    Tens row = a->score;
    int id = ++g->names, most = chance(g, 30);

    row.data = like->data;
    row.most = 8;
    drop_dim(&row, dim_at(&row, a->key.a));
    line(g, "local y%d, l%d%s = %s", id, id,
         most ? strf(g->a, ", m%d", id) : "", text);
    add_tensor(g, strf(g->a, "y%d", id), like, text);
    add_tensor(g, strf(g->a, "l%d", id), &row, text);
    if (most)
        add_tensor(g, strf(g->a, "m%d", id), &row, text);
}

static int attention(Gen *g)
{
    Attn a;

    if (!choose(g, &a) || !score_axes(&a))
        return 0;
    Tens *k = rename_keys(g, a.from, &a), *v = values_of(g, &a, k);
    Tens like = united(&a.score, v);
    if (like.nd < 0)
        return 1;
    if (lacking(&a, v) == 1 && chance(g, 15))
        declare(g, a.key.a, a.key.n);
    Tens *s = scores_of(g, &a, k);
    v->uses++;
    like.data |= a.score.data;
    drop_dim(&like, dim_at(&like, a.key.a));
    like.most = v->most;
    const char *text =
        strf(g->a, "attention(%s, %s, \"%s\")", s->name, v->name, a.key.a);
    if (chance(g, 25))
        with_results(g, &a, &like, text);
    else if (chance(g, 80))
        emit(g, &like, "%s", text);
    else
        emit(g, &like, "dot(softmax(%s, \"%s\"), %s, \"%s\")", s->name, a.key.a,
             v->name, a.key.a);
    return 1;
}

/* ---- rotary embeddings --------------------------------------------------- */

static int rotated(Gen *g)
{
    Tens *t = pick(g, REAL, attends, NULL);

    if (!t)
        return 0;
    int axis = (int)below(g, t->nd), pos = (int)below(g, t->nd - 1);
    pos += pos >= axis;
    if (t->dim[axis].n % 2 || !declarable(g, t->dim[axis]) ||
        !declarable(g, t->dim[pos]))
        return 0;
    emit(g, t, "rope(%s, \"%s\", \"%s\", %s%s)", t->name, t->dim[axis].a,
         t->dim[pos].a, ONE_OF(g, "1e4", "100"),
         ONE_OF(g, "", "", ", { interleaved=true }",
                ", { yarn={ factor=4, original=8 } }"));
    return 1;
}

const GenRow genattn[] = {
    { 10, attention },
    { 3, rotated },
    { 0, NULL },
};
