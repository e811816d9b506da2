/* initial.c: the program that initializes parameters and states. The key of a
 * parameter's random numbers is its path, so values depend neither on the order
 * of parameters nor on their sharding. */
#include "passes.h"

static uint64_t hash_path(int64_t seed, const char *path)
{
    uint64_t h = mix64(0, (uint64_t)seed);

    for (; *path; path++)
        h = mix64(h, (unsigned char)*path);
    return h;
}

static Node *shaped(Graph *g, Op op, const Param *param)
{
    Node *n = g_node(g, op, param->loc, 0, NULL);

    n->dt = param->dt;
    n->reg = REGpost;
    n->nd = param->nd;
    memcpy(n->dim, param->dim, sizeof n->dim);
    return n;
}

/* Returns v with param's padding: zeros, which gradients do not change. */
static Node *with_padding(Graph *g, Node *v, const Param *param)
{
    for (int d = 0; d < param->nd; d++) {
        Axis *a = param->dim[d].a;
        if (!a->parts)
            continue;
        Node *in[2] = { v, g_from_padded(g, a, g_iota(g, a, v)) };
        v = g_placed(g_node(g, Ogather, param->loc, 2, in), v);
        v->at.gather.axis = unpadded(a);
        infer(g, v);
    }
    return v;
}

static Node *initial(Graph *g, const Param *p);

/* Returns the pack of all members of bucket p, in its dtype. */
static Node *initial_bucket(Graph *g, const Param *p)
{
    Bucket *b = bucket_named(g, p->bucket);
    Node *in[MAXIN], *n;

    for (size_t k = 0; k < vec_len(b->param); k++) {
        Param q = *b->param[k];
        q.dt = p->dt;
        in[k] = initial(g, &q);
    }
    n = bucket_pack(g, b, in);
    n->reg = REGpost;
    return n;
}

/* Returns the initial value. A parameter and its master have the same random
 * numbers: the key is the parameter's path. */
static Node *initial(Graph *g, const Param *param)
{
    const Param *of = param->init == INITcopy ? g_param(g, param->of) : param;
    int fixed = of->init == INITconst;

    if (of->init == INITpack)
        return initial_bucket(g, of);
    Node *n = shaped(g, fixed ? Oconst : Orandom, param);
    int pads = !fixed || of->arg != 0;
    for (int d = 0; d < n->nd && pads; d++)
        if (n->dim[d].a->parts) {
            n->dim[d].a = unpadded(n->dim[d].a);
            n->dim[d].n = n->dim[d].a->n;
        }
    if (fixed) {
        n->at.constant.value = of->arg;
    } else {
        n->at.random.kind = of->init == INITnormal ? RANDnormal : RANDuniform;
        n->at.random.arg = of->arg;
        n->at.random.key =
            (int64_t)hash_path(opts_int(g->opts, "seed"), of->path);
    }
    if (!fixed || param->dt == Dreal) /* pass precision decides `real` later */
        n->dt = param->dt == Df64 ? Df64 : Df32;
    infer(g, n);
    return g_cast(g, pads ? with_padding(g, n, param) : n, param->dt);
}

static TrainStep post_at(Graph *g, const Loc *loc)
{
    return (TrainStep){ .g = g,
                        .l = loc,
                        .scope = g_partscope(g, PARTpost, "post") };
}

/* ---- quantized weights --------------------------------------------------- */

/* Returns the bucket whose quantized values a master determines; or null. */
static Bucket *numbers_of(Graph *g, const Param *master)
{
    if (master->kind != TKmaster)
        return NULL;
    Bucket *b = master->bucket && !master->of ? bucket_named(g, master->bucket)
                                              : alloc(g->arena, sizeof *b);
    if (master->of)
        vec_push(g->arena, b->param, g_param(g, master->of));
    return bucket_is_primary(b) ? b : NULL;
}

static void write_numbers(Graph *g, const Param *master, Node *value)
{
    Bucket *b = numbers_of(g, master);
    TrainStep step = post_at(g, master->loc);

    if (b)
        primary_write(&step, b, value);
}

/* ---- masters ------------------------------------------------------------- */

/* Returns the first value of a parameter or of an optimizer state. */
static Node *first_value(Graph *g, const Param *param)
{
    TrainStep step = post_at(g, param->loc);
    Param master = *param;

    if (param->kind != TKmaster && param->kind != TKremainder)
        return initial(g, param);
    master.dt = Df32;
    Node *w = initial(g, &master);
    return param->kind == TKmaster
               ? post_settled(&step, w)
               : in_post(g_cast(g, post_op1(&step, Oremainder_bf16, w), Di16));
}

/* ---- the programs -------------------------------------------------------- */

static Graph *filling(Graph *g, ProgramKind k)
{
    Graph *h = g_like(g);

    h->prog = k;
    h->level = LOGICAL;
    h->mesh = NULL;
    h->after = NULL;
    h->passed = 0;
    h->call = NULL;
    h->slot = NULL;
    h->turns = TURNSopen;
    return h;
}

static Node *lasting(Graph *g, const Param *p)
{
    int weight = tensor_kinds[p->kind].cls == Bparam;
    Node *n = shaped(g, weight ? Oparam : Ostate, p);

    set_name(n, p->path);
    return infer(g, n);
}

static void write_first(Graph *g, const Param *param)
{
    Node *in[2] = { lasting(g, param), first_value(g, param) };
    Node *w = g_node(g, Owrite, param->loc, 2, in);

    infer(g, in_post(w));
    write_numbers(g, param, in[1]);
}

/* A remainder is computed with its parameter, in one kernel. */
Graph *initial_graph(Graph *g)
{
    Graph *h = filling(g, PGinit);

    for (size_t i = 0; i < vec_len(h->param); i++) {
        const Param *p = h->param[i], *left;
        if (p->kind == TKnumbers || p->kind == TKscales ||
            p->kind == TKremainder)
            continue; /* written with their master or parameter */
        if (is_member(p, NULL) && g_param(h, p->bucket))
            continue; /* initialized by its bucket */
        write_first(h, p);
        left = param_companion(h, p, TKremainder);
        if (left && 1u << p->kind & PARAMETERS)
            write_first(h, left);
    }
    return h;
}

Graph *weights_graph(Graph *g)
{
    Graph *h = filling(g, PGweights);

    for (size_t i = 0; i < vec_len(h->param); i++)
        if (numbers_of(h, h->param[i]))
            write_numbers(h, h->param[i], lasting(h, h->param[i]));
    return h;
}
