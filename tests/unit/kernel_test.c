/* kernel_test: kernels against the reference interpreter. Every row of the op
 * table in fp64, fp32 and bf16, and graphs whose parts fuse: norms, softmax, a
 * loss with its gradient, an optimizer step, routed experts. One translation
 * unit holds all kernels, as in a plan.                                         */
#include "hostrun.h"
#include "interp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;

typedef struct Trial {
    const char *name;
    Graph *g;
    Node *out, *sink;             /* out's value ends in the sink's operand     */
    Node dims;                    /* out's axes before fusion                   */
    double *want;
    Group **k;
    double limit;
} Trial;

/* Rounding of one operation, times what a chain of a few adds up to.            */
static double limit_of(Dtype dt)
{
    return dt == Df64 ? 1e-12 : dt == Df32 ? 2e-6 : 2e-2;
}

static double rounded(Dtype dt, double v)
{
    return dt == Dbf16 ? (double)bf16_to_f32(f32_to_bf16((float)v))
         : dt == Df32 ? (double)(float)v : v;
}

/* All values of the graph that are fp64 become dt.                              */
static void retype(Graph *g, Dtype dt)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->nin == 0) {
            n->dt = n->dt == Df64 ? dt : n->dt;
            continue;
        }
        if (n->op == Odot || n->op == Ogmm || n->op == Ogmmw)
            n->dt = Dnone;
        if (n->dt == Df64 && n->op != Ocast)
            n->dt = dt;
        infer(g, n);
    }
}

static void prepare(Trial *t, Arena *a, Node **leaf, double **val, int nleaf,
                    Dtype dt)
{
    Graph *g = t->g;

    retype(g, dt);
    g_renumber(g);
    double **v = alloc(a, (vec_len(g->node) + 1) * sizeof *v);
    for (int k = 0; k < nleaf; k++) {
        for (int64_t i = 0; i < g_elems(leaf[k]); i++)
            val[k][i] = rounded(leaf[k]->dt, val[k][i]);
        v[leaf[k]->id] = val[k];
        host_set(g, leaf[k], val[k]);
    }
    interp(g, v);
    t->want = v[t->out->id];
    t->dims = *t->out;
    t->sink = g_node(g, Ooutput, NULL, 1, &t->out);
    t->sink->s = intern("out");
    infer(g, t->sink);
    t->k = host_groups(g, a);
    t->limit = limit_of(dt);
}

/* Element i of the value as it was ordered before fusion.                        */
static double in_order(const Node *now, const double *v, const Node *was,
                       int64_t i)
{
    int64_t at = 0, idx[MAXD];

    for (int k = was->nd; k-- > 0; i /= was->dim[k].n)
        idx[k] = i % was->dim[k].n;
    for (int k = 0; k < now->nd; k++)
        at = at * now->dim[k].n + idx[dim_of(was, now->dim[k].a)];
    return v[at];
}

static int64_t rows_used(const Trial *t, const Node *n)
{
    const Node *map = n->map;

    return map && map->tmp ? ((int32_t *)map->tmp)[map_layout(t->g, map).experts]
                           : INT64_MAX;
}

static void judge(Trial *t, void *lib)
{
    double diff = 0, size = 1e-30;
    Node *now = t->sink->in[0];

    host_run(t->g, t->k, (int)vec_len(t->k), lib);
    double *got = host_get(t->g, now, t->g->arena);
    int64_t n = local_elems(t->g, now), used = rows_used(t, now);
    for (int64_t i = 0; i < n; i++) {
        if (now->map && i / (n / t->dims.dim[0].n) >= used)
            continue;
        double w = t->want[i];
        double x = now->nd ? in_order(now, got, &t->dims, i) : got[i];
        size = fmax(size, isfinite(w) ? fabs(w) : 0);
        diff = w == x || (isnan(w) && isnan(x)) ? diff : fmax(diff, fabs(w - x));
        if (isnan(w) != isnan(x))
            diff = INFINITY;
    }
    if (diff <= t->limit * size)
        passed++, printf("ok - kernel %s: %.1e\n", t->name, diff / size);
    else
        failed++, printf("not ok - kernel %s: differs by %.1e of the largest\n",
                         t->name, diff / size);
}

/* ---- rows of the op table ------------------------------------------------------------ */

static Trial *row_trials(Arena *a, Trial *list)
{
    static const Dtype dts[] = { Df64, Df32, Dbf16 };

    for (int d = 0; d < 3; d++)
        for (int i = 0; ; i++) {
            Case c;
            Trial t = { 0 };
            if (!case_at(i, a, &c))
                break;
            t.g = c.g;
            t.out = c.out;
            t.name = strf(a, "%s %s %s", optab[c.op].name, c.name,
                          dtypes[dts[d]].name);
            if (c.op == Oroute || c.op == Omean)      /* mean: gone by now        */
                continue;
            prepare(&t, a, c.leaf, c.val, c.nleaf, dts[d]);
            vec_push(a, list, t);
        }
    return list;
}

int main(int argc, char **argv)
{
    Arena *a = arena_new();
    Trial *list = row_trials(a, NULL);
    Group **all = NULL;

    for (size_t i = 0; i < vec_len(list); i++)
        for (size_t k = 0; k < vec_len(list[i].k); k++)
            vec_push(a, all, list[i].k[k]);
    void *lib = host_compile(a, all, (int)vec_len(all));
    if (!lib)
        return printf("not ok - kernels do not compile\n"), 1;
    for (size_t i = 0; i < vec_len(list); i++)
        if (argc < 2 || strstr(list[i].name, argv[1]))
            judge(&list[i], lib);
    return failed > 0;
}
