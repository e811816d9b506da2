/* place_test: which types and collectives come out of the axes' names, for the
 * layers that Megatron writes by hand: a column and row parallel pair with
 * sequence parallelism, vocabulary parallel embedding and loss, a layer of
 * experts, and their gradients. The bytes of each kind of collective are
 * counted by hand from the axes. */
#include "tinymoe.h"

static Node *node(const Graph *g, const char *name)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (!strcmp(g->node[i]->name, name))
            return g->node[i];
    die("no node %s", name);
}

/* "seq micro", "+ R": per atom of g the axis, + for a sum, R. */
static char *type_of(const Graph *g, const Node *n)
{
    static const char *const sums[] = { "+", "+max", "+min" };
    Text t = { .arena = forever };

    for (int i = 0; i < g->mesh->natom; i++)
        put(&t, "%s%s", i ? " " : "",
            n->sh[i].k == S   ? n->sh[i].a->name
            : n->sh[i].k == P ? sums[n->sh[i].op]
                              : "R");
    return t.s;
}

static void is(const Graph *g, const char *name, const char *type)
{
    assert_string_equal(type_of(g, node(g, name)), type);
}

/* The collectives of value `name`, in order: "allgather(seq:0) allreduce(:2)",
 * with axis and lowest atom; those of its resharded versions follow, and of the
 * bucket that it is packed into. */
static void repairs_of(const Graph *g, const Node *n, Text *t)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *c = g->node[i];
        int low = 0;
        for (int k = 0; k < c->nin; k++)
            if (c->op == Opack && c->in[k] == n)
                repairs_of(g, c, t);
        if (optab[c->op].cls != COMM || c->in[0] != n)
            continue;
        while (!(n_atoms(c) >> low & 1))
            low++;
        put(t, "%s%s(%s:%d)", t->len ? " " : "", optab[c->op].name,
            attr_named(c->op, "axis") ? n_axis(c)->name : "", low);
        repairs_of(g, c, t);
    }
}

static void resharded(const Graph *g, const char *name, const char *want)
{
    Text t = { .arena = forever };

    put(&t, "%s", "");
    repairs_of(g, node(g, name), &t);
    assert_string_equal(t.s, want);
}

/* Bytes a rank receives by collectives of op within reg. */
static double bytes(const Graph *g, Op op, Region reg)
{
    double sum = 0;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (n->op != op || n->reg != reg)
            continue;
        Reshard r = { n->op, NULL, NULL, n_atoms(n) };
        sum += bytes_sent(g, n->in[0], n->in[0]->sh, &r);
    }
    return sum;
}

/* One of a program's products, by its operand's path. */
static Node *reading(const Graph *g, Op op, const char *path)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        for (int k = 0; k < g->node[i]->nin; k++)
            if (g->node[i]->op == op && g->node[i]->in[k]->op == Oparam &&
                !strcmp(g->node[i]->in[k]->at.param.path, path))
                return g->node[i];
    die("nothing reads %s", path);
}

enum { TOKENS = BATCH * SEQ, STREAM = 4 * TOKENS * HIDDEN };

/* Column parallel: sequence gathered before, features cut. Row parallel: sums
 * scattered over the sequence. One of each backward. */
static void mlp_pair(void **state)
{
    Graph *g = tinymoe("fold.tp=2 fold.etp=1 fold.ep=2", "collectives");
    Node *up = reading(g, Odot, "up"), *down = reading(g, Odot, "down");

    (void)state;
    is(g, "up", "ffn");
    is(g, "down", "ffn");
    assert_string_equal(type_of(g, up), "ffn");
    assert_int_equal(up->in[0]->op, Oallgather);
    assert_string_equal(type_of(g, up->in[0]->in[0]), "seq");
    assert_string_equal(type_of(g, down), "+");
    resharded(g, down->name, "reducescatter(seq:0)");
    is(g, "grad.up", "ffn");
    is(g, "grad.down", "ffn");
}

/* A rank finds the tokens of its vocabulary: sums. The loss never sees whole
 * logits; what is reduced is one number a token. */
static void vocabulary(void **state)
{
    Graph *g = tinymoe("fold.tp=2", "collectives");
    Node *x = reading(g, Ogather, "embed"), *logits = reading(g, Odot, "head");

    (void)state;
    is(g, "embed", "vocab");
    is(g, "head", "vocab");
    assert_string_equal(type_of(g, x), "+");
    resharded(g, x->name, "reducescatter(seq:0)");
    assert_string_equal(type_of(g, logits), "vocab");
    resharded(g, logits->name, "");
    is(g, "grad.head", "vocab");
}

/* Norms and routers see a part of the sequence on each rank of tp, and a part
 * of the batch on each of dp: their gradients are sums over both, and only
 * theirs. */
static void reduced_over(void **state)
{
    Graph *g = tinymoe("fold.tp=2 fold.dp=2 train.batch=4 fold.ep=2 "
                       "fold.zero=0",
                       "collectives");

    (void)state;
    is(g, "grad.n1", "+ +");
    resharded(g, "grad.n1", "allreduce(:0)");
    assert_int_equal(atoms_of(g, node(g, "grad.n1"), P),
                     g->mesh->mask[Mtp] | g->mesh->mask[Mdp]);
    is(g, "grad.gate", "+ +");
    resharded(g, "grad.gate", "allreduce(:0)");
    is(g, "grad.up", "ffn +");
    resharded(g, "grad.up", "allreduce(:1)");
    is(g, "n1", "R R");
}

/* ZeRO: the same sums over the same ranks, each of which keeps a run of them;
 * what makes whole again is the new parameter. */
static void reduced_into_runs(void **state)
{
    Graph *g =
        tinymoe("fold.tp=2 fold.dp=2 train.batch=4 fold.ep=2", "collectives");
    int reduced = 0, scattered = 0, gathered = 0;

    (void)state;
    resharded(g, "grad.n1", "reducescatter(flat.a0.a1:0)");
    resharded(g, "grad.gate", "reducescatter(flat.a0.a1:0)");
    resharded(g, "grad.up", "reducescatter(flat.a1:1)");
    resharded(g, "grad.w1", "reducescatter(flat.a1:1)");
    is(g, "n1", "R R");
    is(g, "up", "ffn R");
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        reduced += n->op == Oallreduce && n->reg == REGpost && n->nd > 0;
        scattered += n->op == Oreducescatter && n->reg == REGpost;
        gathered += n->op == Oallgather && n->reg == REGpost;
        if (n->op == Ostate && !strncmp(n->at.state.path, "optim.", 6))
            assert_int_equal(atoms_of(g, n, S), 3);
    }
    assert_int_equal(reduced, 0);
    assert_int_equal(scattered, gathered);
    assert_true(scattered > 2);
}

/* Experts are reduced over edp alone, whatever the dense grid cuts there. */
static void experts(void **state)
{
    Graph *g = tinymoe("fold.tp=2 fold.dp=2 train.batch=4 fold.ep=2 "
                       "fold.zero=0",
                       "collectives");

    (void)state;
    is(g, "w1", "expert R");
    is(g, "grad.w1", "expert +");
    resharded(g, "grad.w1", "allreduce(:1)");
    g = tinymoe("fold.tp=2 fold.dp=2 train.batch=4 fold.ep=4", "collectives");
    is(g, "w1", "expert expert");
    is(g, "grad.w1", "expert expert");
    resharded(g, "grad.w1", "");
    g = tinymoe("fold.tp=2 fold.dp=2 train.batch=4 fold.ep=2 fold.etp=2",
                "collectives");
    is(g, "w1", "ffn expert");
    is(g, "w2", "ffn expert");
    is(g, "grad.w2", "ffn expert");
    g = tinymoe("fold.dp=4 train.batch=8 fold.ep=2 fold.zero=0", "collectives");
    is(g, "w1", "expert R");
    is(g, "optim.m.w1", "expert R");
    resharded(g, "grad.w1", "allreduce(:1)");
}

/* Tokens come together over ep's and etp's ranks and nowhere else; the sums go
 * back to where the tokens were. */
static void dispatch(void **state)
{
    Graph *g = tinymoe("fold.dp=4 train.batch=8 fold.ep=2", "collectives");
    const Node *map = NULL, *rows = reading(g, Ogmm, "w1");

    (void)state;
    map = rows->map;
    assert_string_equal(type_of(g, map), "expert micro");
    assert_string_equal(type_of(g, rows), "expert micro");
    assert_string_equal(type_of(g, rows->in[0]->in[0]), "R micro");
    MapLayout l = map_layout(g, map);
    assert_int_equal(l.experts, EXPERT / 2);
    assert_int_equal(l.pairs, 2 * TOKENS * 2);
    assert_int_equal(l.cap, 2 * TOKENS * 2);
    g = tinymoe("fold.dp=4 train.batch=8 fold.ep=4", "collectives");
    l = map_layout(g, reading(g, Ogmm, "w1")->map);
    assert_int_equal(l.experts, 1);
    assert_int_equal(l.cap, 4 * TOKENS);
}

/* The square of a gradient is counted once: a sum over the ranks that cut it,
 * and on one of those that hold the same. */
static void norm(void **state)
{
    Graph *g =
        tinymoe("fold.tp=2 fold.dp=2 train.batch=4 fold.ep=4", "collectives");
    int reductions = 0;

    (void)state;
    for (size_t i = 0; i < vec_len(g->node); i++)
        reductions += g->node[i]->op == Oallreduce && g->node[i]->nd == 0;
    assert_int_equal(reductions, 2); /* the loss and the norm */
}

/* With tp=2 each of 2 gathers, 2 scatters, forward and backward, of the dense
 * pair moves half the stream; experts, embedding and head the like. */
static void volumes(void **state)
{
    Graph *g = tinymoe("fold.tp=2 fold.ep=2", "collectives");
    double scalar = 4 * TOKENS / 2; /* one number a token */

    (void)state;
    /* streams: embed, down, combine | d.head, d.combine, d.up; then z and the
       label's logit, and two gates' gradients */
    assert_float_equal(bytes(g, Oreducescatter, REGbody),
                       6 * STREAM / 2 + 4 * scalar, 0);
    /* up, dispatch, head | d.combine, d.down, d.embed; then e and g (two each),
       d.z */
    assert_float_equal(bytes(g, Oallgather, REGbody),
                       6 * STREAM / 2 + 5 * scalar, 0);
    assert_float_equal(bytes(g, Oallreduce, REGbody), 2 * scalar, 0);
    /* a bucket of two norms and one of the gate; loss and norm */
    assert_true(HIDDEN * EXPERT <= PACKALIGN);
    assert_float_equal(bytes(g, Oreducescatter, REGpost), 4 * 3 * PACKALIGN / 2,
                       0);
    assert_float_equal(bytes(g, Oallgather, REGpost), 4 * 3 * PACKALIGN / 2, 0);
    assert_float_equal(bytes(g, Oallreduce, REGpost), 2 * 4, 0);
    g = tinymoe("fold.tp=2 fold.ep=2 fold.zero=0", "collectives");
    assert_float_equal(bytes(g, Oallreduce, REGpost),
                       4 * (2 * HIDDEN + HIDDEN * EXPERT) + 2 * 4, 0);
    g = tinymoe("fold.dp=2 train.batch=4 fold.ep=1", "collectives");
    assert_float_equal(bytes(g, Oallgather, REGbody), 0, 0);
    assert_float_equal(bytes(g, Oreducescatter, REGbody), 0, 0);
}

/* Four heads of keys under tp=8 take what they can, the queries of a head take
 * the rest. Keys have no other such axis: each of two ranks makes half the
 * sequence. What no name divides stays whole. */
static void next_name(void **state)
{
    Graph *g = tinymoe("fold.tp=3 world=3", "collectives");
    Model m = model("fold.tp=8 world=8");
    Axis *kv = axis(m.g, "kv", ROLEheads, 4);
    Axis *group = axis(m.g, "group", ROLEgroup, 6);
    Node *x = leaf(&m, Oinput, "x", Df32, 3, AXES(m.micro, m.seq, m.hidden));
    Node *q = dot(&m, x, param3(&m, "wq", m.hidden, kv, group), m.hidden);
    Node *k = dot(&m, x, param2(&m, "wk", m.hidden, kv), m.hidden);
    Node *s = op(&m, Omul, q, k), *o = g_node(m.g, Ooutput, NULL, 1, &s);

    (void)state;
    is(g, "up", "R");
    is(g, "embed", "R");
    o->at.output.name = intern("s");
    infer(m.g, o);
    run_pass(m.g, target_named("host"), "precision");
    run_pass(m.g, target_named("host"), "fold");
    run_pass(m.g, target_named("host"), "sharding");
    is(m.g, "wq", "kv kv group");
    is(m.g, "wk", "kv kv R");
    assert_string_equal(type_of(m.g, q), "kv kv group");
    assert_string_equal(type_of(m.g, k), "kv kv seq");
    assert_string_equal(type_of(m.g, s), "kv kv group");
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp_pair), cmocka_unit_test(vocabulary),
        cmocka_unit_test(reduced_over),
        cmocka_unit_test(reduced_into_runs), cmocka_unit_test(experts),
        cmocka_unit_test(dispatch), cmocka_unit_test(norm),
        cmocka_unit_test(volumes), cmocka_unit_test(next_name),
    };
    /* clang-format on */

    return cmocka_run_group_tests(tests, NULL, NULL);
}
