/* stages_test: a pipeline's stages together are the program. What depends on
 * data and on weights stands on one stage, once; what is sent is received as it
 * was sent, once; gradients are accumulated once, written where they are owned
 * and where there is a copy; results are on every stage; the table runs every
 * call for every micro-batch once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../../frontend/frontend.h"
#include "../../passes/passes.h"

enum { MICROS = 8, DATA = 1, WEIGHT = 2 };

/* ---- the program, whole and cut ------------------------------------------ */

static void drop_outputs(Graph *g)
{
    Node **old = g->node;

    g->node = NULL;
    for (size_t i = 0; i < vec_len(old); i++)
        if (old[i]->op != Ooutput)
            vec_push(g->arena, g->node, old[i]);
    g_tidy(g);
}

/* The program `step`, up to pipe. */
static Graph *whole(const char *model, const char *keys)
{
    Opts *o = opts_new(forever);
    char *s = strf(forever, "%s axes.batch=2 train.batch=%d", keys, 2 * MICROS);

    for (char *w = strtok(s, " "); w; w = strtok(NULL, " ")) {
        size_t n = strcspn(w, "=");
        opts_set(o, internn(w, n), intern(w + n + 1), NULL);
    }
    Graph *g = trace(model, o, TRACEquiet).g;
    drop_outputs(g);
    g->prog = PGstep;
    g->stages = stages_cut(g);
    for (const PassInfo *p = passtab; strcmp(p->name, "pipe"); p++)
        if (p->programs >> PGstep & 1)
            run_pass(g, &T_null, p->name);
    return g;
}

/* ---- counting ------------------------------------------------------------ */

/* By id what nodes depend on; what came from another stage, on both. */
static char *needs_of(Graph *g)
{
    char *needs = alloc(forever, vec_len(g->node) + 1);

    g_renumber(g);
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        char x = n->op == Oinput                      ? DATA
                 : n->op == Oparam || n->op == Ostate ? WEIGHT
                 : n->op == Orecv                     ? DATA | WEIGHT
                                                      : 0;
        for (int k = 0; k < n->nin; k++)
            x |= needs[n->in[k]->id];
        if (n->map)
            x |= needs[n->map->id];
        needs[i] = n->op == Oaccum && n->reg == REGden ? 0 : x;
    }
    return needs;
}

static int is_crossing(const Node *n)
{
    return n->op == Osend || n->op == Orecv || n->op == Opp_sum;
}

/* Sums over stages are cut: their adds and accumulators are counted apart. */
static int is_counted(const Node *n, const char *needs)
{
    return n->reg == REGbody && needs[n->id] == (DATA | WEIGHT) &&
           optab[n->op].cls != SRC && !is_crossing(n) && n->op != Oadd &&
           n->op != Oaccum;
}

typedef struct Count {
    const char *what;
    int whole, parts;
} Count;

static Count *count_of(Count **all, const char *what)
{
    what = intern(what);
    for (size_t i = 0; i < vec_len(*all); i++)
        if ((*all)[i].what == what)
            return &(*all)[i];
    vec_push(forever, *all, ((Count){ what, 0, 0 }));
    return &(*all)[vec_len(*all) - 1];
}

static void count_nodes(Count **all, Graph *g, int parts)
{
    const char *needs = needs_of(g);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (!is_counted(n, needs))
            continue;
        Count *c = count_of(all, strf(forever, "%s in '%s'", optab[n->op].name,
                                      n->scope->path));
        c->whole += !parts;
        c->parts += parts;
    }
}

static void check_counts(const Count *all)
{
    assert_true(vec_len(all) > 20);
    for (size_t i = 0; i < vec_len(all); i++)
        if (all[i].whole != all[i].parts)
            fail_msg("%s: %d, on stages %d", all[i].what, all[i].whole,
                     all[i].parts);
}

/* ---- what crosses -------------------------------------------------------- */

static Graph *stage(Graph *g, int64_t role)
{
    while (g && g->role != role)
        g = g->next;
    assert_non_null(g);
    return g;
}

static const Node *received(const Graph *g, int64_t peer, int64_t chan)
{
    const Node *r = NULL;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (n->op != Orecv || n->at.recv.peer != peer ||
            n->at.recv.chan != chan)
            continue;
        assert_null(r);
        r = n;
    }
    assert_non_null(r);
    return r;
}

static void check_crossings(Graph *first)
{
    int sends = 0, recvs = 0;

    for (Graph *g = first; g; g = g->next)
        for (size_t i = 0; i < vec_len(g->node); i++) {
            const Node *n = g->node[i];
            recvs += n->op == Orecv;
            if (n->op != Osend)
                continue;
            const Node *r = received(stage(first, n->at.send.peer), g->role,
                                     n->at.send.chan);
            assert_int_equal(r->dt, n->in[0]->dt);
            assert_true(same_dims(r, n->in[0]));
            sends++;
        }
    assert_true(sends > 0);
    assert_int_equal(sends, recvs);
}

/* Every stage takes part in the same sums, in the same order. */
static void check_sums(Graph *first)
{
    for (Graph *g = first->next; g; g = g->next) {
        size_t i = 0, k = 0;
        for (;; i++, k++) {
            while (i < vec_len(g->node) && g->node[i]->op != Opp_sum)
                i++;
            while (k < vec_len(first->node) && first->node[k]->op != Opp_sum)
                k++;
            if (i == vec_len(g->node) || k == vec_len(first->node))
                break;
            assert_int_equal(g->node[i]->at.pp_sum.chan,
                             first->node[k]->at.pp_sum.chan);
            assert_int_equal(g_elems(g->node[i]), g_elems(first->node[k]));
        }
        assert_true(i == vec_len(g->node) && k == vec_len(first->node));
    }
}

/* ---- sinks --------------------------------------------------------------- */

static int sinks(const Graph *g, Op op, const char *name)
{
    int found = 0;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (n->op == op)
            found += !strcmp(
                op == Owrite ? n_name(n->in[0]) : n->at.result.name, name);
    }
    return found;
}

/* A result on every stage; a write by one owner and by all copies. */
static void check_sinks(const Graph *whole, Graph *first)
{
    for (size_t i = 0; i < vec_len(whole->node); i++) {
        const Node *n = whole->node[i];
        int owners = 0;
        if (n->op != Owrite && n->op != Oresult)
            continue;
        const char *name =
            n->op == Owrite ? n_name(n->in[0]) : n->at.result.name;
        for (Graph *g = first; g; g = g->next) {
            const Param *p = n->op == Owrite ? g_param(g, name) : NULL;
            int has = n->op == Oresult || p;
            assert_int_equal(sinks(g, n->op, name), has);
            owners += p && !p->copy;
        }
        assert_int_equal(owners, n->op == Owrite);
    }
}

/* ---- the table ----------------------------------------------------------- */

static void check_turns(const Graph *g)
{
    for (size_t c = 0; c < vec_len(g->call); c++) {
        int seen[MICROS] = { 0 }, n = 0;
        assert_int_equal(micro_turns(g), MICROS);
        for (size_t i = 0; i < vec_len(g->slot); i++)
            if (g->slot[i].phase == (int)c) {
                seen[g->slot[i].micro]++;
                n++;
            }
        for (int m = 0; m < MICROS; m++)
            assert_int_equal(seen[m], 1);
        assert_int_equal(n, MICROS);
    }
}

static void check(const char *model, const char *keys)
{
    Graph *g = whole(model, keys);
    Graph before = *g;
    Count *all = NULL;

    count_nodes(&all, &before, 0);
    run_pass(g, &T_null, "pipe");
    for (Graph *h = g; h; h = h->next) {
        count_nodes(&all, h, 1);
        check_turns(h);
    }
    check_counts(all);
    check_crossings(g);
    check_sums(g);
    check_sinks(&before, g);
    arena_free(g->arena);
}

/* clang-format off */
static const char *const folds[] = {
    "fold.pp=2", "fold.pp=4", "fold.pp=2 fold.vpp=2 fold.schedule=interleaved",
    "fold.pp=2 fold.schedule=zerobubble",
    "fold.pp=2 fold.vpp=2 fold.schedule=dualpipev",
    "fold.pp=2 fold.dp=1 fold.tp=2 fold.cp=2 fold.ep=4",
};
/* clang-format on */

static void test_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof folds / sizeof *folds; i++)
        check("tests/models/folds.lua", folds[i]);
}

static void test_tied_parameters(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof folds / sizeof *folds; i++)
        check("tests/models/tied.lua", folds[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_tied_parameters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
