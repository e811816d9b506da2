/* genmoe.c: experts: routers of all kinds, weights that an index picks. */
#include <math.h>
#include <string.h>

#include "gen.h"

/* One layer of experts: x [tokens.. in], e of the tokens' axes and top. */
typedef struct Moe {
    Tens *x;
    GDim in, expert, top;
    Tens tokens;      /* x without in */
    const char *axes; /* names of the tokens' axes */
    int64_t k;
    Tens *e, *g; /* g null: no weights */
} Moe;

static int routes(const Tens *t, const void *with)
{
    (void)with;
    return t->nd >= 2 && t->nd <= 4;
}

static int choose(Gen *g, Moe *m)
{
    m->x = pick(g, REAL, routes, NULL);
    if (!m->x)
        return 0;
    int at = (int)below(g, m->x->nd);
    m->in = m->x->dim[at];
    m->tokens = *m->x;
    drop_dim(&m->tokens, at);
    m->axes = names_of(g, &m->tokens);
    m->expert = some_axis(g, 2);
    m->k = 1 + below(g, m->expert.n < 3 ? m->expert.n : 3);
    return dim_at(m->x, m->expert.a) < 0 && declarable(g, m->in) &&
           declarable(g, m->expert);
}

static Tens *logits(Gen *g, Moe *m)
{
    Tens w = { 0 }, like = m->tokens;

    add_dim(&w, m->in);
    add_dim(&w, m->expert);
    Tens *gate = make_param(g, &w, "normal(1)");
    add_dim(&like, m->expert);
    like.most = 6;
    gate->uses++;
    m->x->uses++;
    Tens *z = emit(g, &like, "dot(%s, %s, \"%s\")", tame(g, m->x, 3),
                   gate->name, m->in.a);
    z->uses++;
    return z;
}

/* A bias that only the choice sees, changed after the step; its name, or null
 * where the tokens are data of which some are no more there. */
static const char *bias_of(Gen *g, const Moe *m)
{
    Tens like = { .most = 1 };

    if (m->x->data && dim_at(&m->tokens, intern("batch")) < 0)
        return NULL;
    add_dim(&like, m->expert);
    Tens *s =
        emit(g, &like, "state(\"s%d\", \"%s\", 0.1)", g->states++, m->expert.a);
    s->closed = 1;
    s->live = 1;
    return s->name;
}

/* With a bias, or within the best of some groups. */
static const char *sigmoid_router(Gen *g, const Moe *m, const char *z)
{
    const char *bias = chance(g, 50) ? bias_of(g, m) : NULL;
    Text t = { .arena = g->a };

    put(&t, "sigmoid_topk(%s, %lld, \"%s\"", z, (long long)m->k, m->expert.a);
    if (bias)
        put(&t, ", { bias=%s", bias);
    for (int64_t n = 2; n < m->expert.n && chance(g, 60); n++)
        if (m->expert.n % n == 0 && m->expert.n / n >= m->k) {
            GDim groups = new_axis(g, "groups", n);
            declarable(g, groups);
            put(&t, "%sgroups=\"%s\", keep=%lld, best=1", bias ? ", " : ", { ",
                groups.a, (long long)(1 + below(g, n)));
            bias = "";
            break;
        }
    put(&t, "%s)", bias ? " }" : "");
    return t.s;
}

/* "local g, e = ..." of a router; the names of both. */
static void take_choice(Gen *g, Moe *m, const char *text)
{
    int id = ++g->names;
    Tens like = m->tokens;

    add_dim(&like, m->top);
    like.most = 1;
    like.kind = INTEGER;
    like.of = m->expert.a;
    like.ofn = m->expert.n;
    int more = strncmp(text, "topk(", 5); /* routers: probabilities too */
    line(g, "local g%d, e%d%s = %s", id, id,
         more ? strf(g->a, ", p%d", id) : "", text);
    m->e = add_tensor(g, strf(g->a, "e%d", id), &like, text);
    like.kind = REAL;
    like.of = NULL;
    m->g = add_tensor(g, strf(g->a, "g%d", id), &like, text);
    if (more) {
        like.dim[like.nd - 1] = m->expert;
        add_tensor(g, strf(g->a, "p%d", id), &like, text)->live = chance(g, 60);
    }
}

static void route(Gen *g, Moe *m)
{
    static const char *const forms[] = {
        "softmax_topk(%s, %lld, \"%s\")",
        "topk_softmax(%s, %lld, \"%s\")",
        "softmax_top1(%1$s, \"%3$s\")",
        ("topk(softmax(limit_groups(%1$s, \"%3$s\", \"%4$s\", 1, 1), "
         "\"%3$s\"), %2$lld, \"%3$s\")"),
        "topk(sigmoid(%s), %lld, \"%s\")",
        "topk(%s, %lld, \"%s\")",
        "topk(softmax(%1$s, \"%3$s\"), %2$lld, \"%3$s\")",
    };
    const char *z = logits(g, m)->name, *form;
    GDim groups = new_axis(g, "groups", 1);

    form = forms[below(g, sizeof forms / sizeof *forms)];
    if (strstr(form, "top1"))
        m->k = 1;
    if (strstr(form, "groups"))
        declarable(g, groups);
    m->top = (GDim){ intern("top"), m->k };
    vec_push(g->a, g->made, m->top);
    if (chance(g, 15))
        take_choice(g, m, sigmoid_router(g, m, z));
    else
        take_choice(
            g, m, strf(g->a, form, z, (long long)m->k, m->expert.a, groups.a));
}

/* A weight [expert a b], indexed. */
static const char *weight(Gen *g, const Moe *m, GDim a, GDim b)
{
    Tens w = { 0 };

    add_dim(&w, m->expert);
    add_dim(&w, a);
    add_dim(&w, b);
    Tens *t = make_param(g, &w, "normal(0.7)");
    t->uses++;
    return strf(g->a, "%s[%s]", t->name, m->e->name);
}

static GDim other_axis(Gen *g, const Moe *m, GDim not )
{
    GDim d;

    for (int tries = 0; tries < 30; tries++) {
        d = some_axis(g, 1);
        if (dim_at(m->x, d.a) < 0 && d.a != m->expert.a && d.a != not .a &&
            d.a != m->top.a)
            return d;
    }
    d = new_axis(g, "o", 2 + below(g, 4));
    declarable(g, d);
    return d;
}

static int has_index(const Tens *t, const void *with)
{
    (void)with;
    return t->of != NULL && t->nd <= 3 && dim_at(t, t->of) < 0;
}

/* A state that follows how often an index chose. */
static int rebalanced(Gen *g)
{
    Tens *e = pick(g, INTEGER, has_index, NULL), like = { .most = 1 };

    if (!e || !e->nd || (e->data && dim_at(e, intern("batch")) < 0) ||
        !declarable(g, (GDim){ e->of, e->ofn }))
        return 0;
    add_dim(&like, (GDim){ e->of, e->ofn });
    Tens *s = emit(g, &like, "state(\"s%d\", \"%s\", 0.1)", g->states++, e->of);
    line(g, "balance_bias(%s, %s, \"%s\", \"%s\", 0.01)", s->name, e->name,
         e->of, names_of(g, e));
    return 1;
}

static int experts(Gen *g)
{
    Moe m = { 0 };

    if (!choose(g, &m) || dim_at(m.x, intern("top")) >= 0)
        return 0;
    route(g, &m);
    GDim f = other_axis(g, &m, m.in), out = m.in;
    Tens like = m.tokens, *y;
    const char *x = tame(g, m.x, 3);

    if (chance(g, 40))
        out = other_axis(g, &m, f);
    add_dim(&like, m.top);
    add_dim(&like, f);
    like.most = 6;
    const char *up =
        strf(g->a, "dot(%s, %s, \"%s\")", x, weight(g, &m, m.in, f), m.in.a);
    switch (below(g, 5)) {
    case 0:
        y = emit(g, &like, "swiglu(%s, dot(%s, %s, \"%s\"))", up, x,
                 weight(g, &m, m.in, f), m.in.a);
        break;
    case 1: y = emit(g, &like, "%s", up); break;
    default:
        y = emit(g, &like, "%s(%s)", ONE_OF(g, "silu", "gelu", "tanh", "relu"),
                 up);
    }
    if (chance(g, 25))
        return 1;
    y->uses++;
    drop_dim(&like, like.nd - 1);
    add_dim(&like, out);
    y = emit(g, &like, "dot(%s%s, %s, \"%s\")", y->name,
             chance(g, 20) ? strf(g->a, " * %s", m.g->name) : "",
             weight(g, &m, f, out), f.a);
    if (chance(g, 15))
        return 1;
    y->uses++;
    m.g->uses++;
    drop_dim(&like, dim_at(&like, m.top.a));
    if (chance(g, 85))
        emit(g, &like, "sum(%s * %s, \"top\")", m.g->name, y->name);
    else
        emit(g, &like, "dot(%s, %s, \"top\")", m.g->name, y->name);
    return 1;
}

/* A weight of up to three axes indexed by any index there is. */
static int within(const Tens *t, const void *with)
{
    const Tens *e = with;
    int shared = 0;

    for (int i = 0; i < t->nd; i++) {
        int at = dim_at(e, t->dim[i].a);
        shared += at >= 0;
        if (at >= 0 && e->dim[at].n != t->dim[i].n)
            return 0;
    }
    return dim_at(t, e->of) < 0 && shared > 0;
}

/* All axes of x that the index lacks are summed. */
static int indexed(Gen *g)
{
    Tens *e = pick(g, INTEGER, has_index, NULL);
    Tens *x = e ? pick(g, REAL, within, e) : NULL;
    Tens w = { 0 }, over = { 0 }, like;
    GDim d;

    if (!x)
        return 0;
    add_dim(&w, (GDim){ e->of, e->ofn });
    for (int i = 0; i < x->nd; i++)
        if (dim_at(e, x->dim[i].a) < 0) {
            add_dim(&over, x->dim[i]);
            add_dim(&w, x->dim[i]);
        }
    like = *e;
    like.of = NULL;
    like.kind = REAL;
    like.data |= x->data;
    like.most = 8;
    for (int tries = 0; tries < 3; tries++) {
        d = some_axis(g, 1);
        if (dim_at(e, d.a) < 0 && dim_at(x, d.a) < 0 && dim_at(&w, d.a) < 0 &&
            like.nd < GENDIM && w.nd < 5 && chance(g, 60)) {
            add_dim(&w, d);
            add_dim(&like, d);
        }
    }
    if (!over.nd || elems(&w) > GENELEMS || elems(&like) > GENELEMS)
        return 0;
    Tens *t = make_param(g, &w, "normal(0.7)");
    if (!t)
        return 0;
    t->uses++;
    emit(g, &like, "dot(%s, %s[%s], \"%s\")", tame(g, x, 3), t->name, e->name,
         names_of(g, &over));
    return 1;
}

/* ---- losses of routers, cross entropy, expert choice --------------------- */

static int labelled(Gen *g)
{
    Tens *t = pick(g, REAL, routes, NULL), like;

    if (!t)
        return 0;
    int at = (int)below(g, t->nd), by = (int)below(g, t->nd - 1);
    by += by >= at;
    like = *t;
    drop_dim(&like, at);
    like.most = 6;
    if (!declarable(g, t->dim[by]))
        return 0;
    emit(g, &like,
         "cross_entropy(%s, mod(iota(\"%s\") * %lld + 1, %lld)%s, "
         "\"%s\")",
         tame(g, t, 6), t->dim[by].a, (long long)(1 + below(g, 4)),
         (long long)t->dim[at].n, ONE_OF(g, "", " - 1"), t->dim[at].a);
    return 1;
}

static int balanced(Gen *g)
{
    Tens *t = pick(g, REAL, routes, NULL), like;

    if (!t || dim_at(t, intern("top")) >= 0)
        return 0;
    int at = (int)below(g, t->nd);
    GDim d = t->dim[at];
    if (!declarable(g, d))
        return 0;
    like = *t;
    drop_dim(&like, at);
    Tens none = real(4);
    none.data = t->data;
    if (chance(g, 30) && (!t->data || dim_at(&like, intern("batch")) >= 0))
        emit(g, &none,
             "scope(\"b%d\", global_balance_loss, softmax(%s, "
             "\"%s\"), %lld, \"%s\", \"%s\")",
             g->states++, t->name, d.a, (long long)(1 + below(g, d.n)), d.a,
             names_of(g, &like));
    else if (chance(g, 40))
        emit(g, &none, "z_loss(%s, \"%s\", \"%s\")", tame(g, t, 4), d.a,
             names_of(g, &like));
    else
        emit(g, &none,
             "balance_loss(softmax(%s, \"%s\"), %lld, \"%s\", "
             "\"%s\")",
             t->name, d.a, (long long)(1 + below(g, d.n)), d.a,
             names_of(g, &like));
    return 1;
}

/* Every expert takes its tokens; what they do to rows is one product. */
static int chosen(Gen *g)
{
    Moe m = { 0 };

    if (!choose(g, &m) || dim_at(m.x, intern("slot")) >= 0 ||
        dim_at(m.x, intern("token")) >= 0 || m.in.a == intern("slot"))
        return 0;
    for (int i = 0; i < m.tokens.nd; i++)
        if (!declarable(g, m.tokens.dim[i]))
            return 0;
    Tens *z = logits(g, &m), w = { 0 }, like = *m.x;
    int64_t n = 1 + below(g, elems(&m.tokens));
    add_dim(&w, m.expert);
    add_dim(&w, m.in);
    Tens *scale = make_param(g, &w, "normal(1)");
    scale->uses++;
    like.most = 3 * (double)m.expert.n;
    emit(g, &like,
         "expert_choice(%s, %s, %lld, \"%s\", \"%s\", function(r) "
         "return tanh(r * %s) end)",
         tame(g, m.x, 3), z->name, (long long)n, m.expert.a, m.axes,
         scale->name);
    return 1;
}

const GenRow genmoe[] = {
    { 10, experts },   { 6, indexed }, { 4, labelled }, { 3, balanced },
    { 2, rebalanced }, { 2, chosen },  { 0, NULL },
};
