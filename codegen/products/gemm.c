/* gemm.c: products as library instructions: sizes and strides, without kernel
 * text. legalize has given the operands layouts that fit
 * (ir/graph/matrix.c). */
#include "products.h"

/* Does the group add its product to an accumulator (beta = 1)? */
static int is_accum(const Group *group)
{
    return group->out[0]->op == Oaccum;
}

static void set_gemm_args(Group *group, Arena *a, Node *const *n, int count)
{
    group->narg = 0;
    for (int i = 0; i < count; i++) {
        vec_push(a, group->arg, n[i] ? storage(n[i]) : NULL);
        vec_push(a, group->view, n[i]);
        group->narg++;
    }
}

void set_product_cost(const Graph *g, Group *group, const Node *n)
{
    group->instr.flops = cost_of(g, n).flops;
    for (int i = 0; i < group->narg; i++)
        if (group->arg[i])
            group->instr.bytes += (double)local_bytes(g, group->arg[i]);
}

/* Libraries reach full speed with bf16 only if rows are multiples of 16
 * bytes. */
static ProductPath gemm_path(const GemmArgs *args)
{
    int64_t in = args->lda | args->ldb,
            out = args->ldc * dtypes[args->out].bytes;

    for (int i = 0; i < args->batch.n; i++) {
        in |= args->batch.at[i].a | args->batch.at[i].b;
        out |= args->batch.at[i].c * dtypes[args->out].bytes;
    }
    return args->in == Dbf16 && (in % 8 || out % 16) ? PATHunaligned : PATHfast;
}

void gemm_lower(Graph *g, Group *group, Arena *a)
{
    Node *n = group->node[0], *out = group->out[0];
    Matrix m;

    if (!as_matrix(g, n->in[0], n->in[1], out, &m))
        die("dot: no matrix product has these layouts");
    Node *arg[4] = { n->in[m.swap], n->in[!m.swap], out, NULL };
    BatchLoop *batch = alloc(a, MAXBATCH * sizeof *batch);
    for (int i = 0; i < m.nbatch; i++)
        batch[i] = (BatchLoop){ m.batch[i], m.sa[i], m.sb[i], m.sc[i] };
    group->maystore = 1;
    group->instr.kind = Igemm;
    group->instr.gemm = (GemmArgs){
        .in = n->in[0]->dt,
        .out = out->dt,
        .m = m.M,
        .n = m.N,
        .k = m.K,
        .lda = m.lda,
        .ldb = m.ldb,
        .ldc = m.ldc,
        .ta = m.ta,
        .tb = m.tb,
        .beta = is_accum(group),
        .batch = { m.nbatch, batch },
    };
    group->path = gemm_path(&group->instr.gemm);
    set_gemm_args(group, a, arg, 4);
    set_product_cost(g, group, n);
    set_label(group, a, n);
}

/* Elements of x per row: all dims except expert rows and experts. */
static int64_t row_elements(const Graph *g, const Node *x, const Axis *expert)
{
    int64_t w = 1;

    for (int d = 0; d < x->nd; d++)
        if (x->dim[d].a != expert && !g_isrow(x->dim[d].a))
            w *= local_n(g, x, d);
    return w;
}

/* Elements of x along the dims that n has. */
static int64_t elements_in(const Graph *g, const Node *x, const Node *n)
{
    int64_t w = 1;

    for (int d = 0; d < x->nd; d++)
        if (dim_of(n, x->dim[d].a) >= 0)
            w *= local_n(g, x, d);
    return w;
}

int grouped_terms(const Group *group)
{
    return group->fam == FAMgmm && group->n > 1 ? 2 : 1;
}

Node *sum_sq_of(const Group *group)
{
    for (int i = 0; i < group->nout; i++)
        if (group->out[i]->op == Osum_sq)
            return group->out[i];
    return NULL;
}

/* The accumulated result, stored or not. */
static Node *accumulated_result(const Group *group)
{
    return group_updates(group) ? group->node[1] : group->out[0];
}

int grouped_operands(int terms, int scaled)
{
    return 4 + (terms > 1 ? 2 : 0) + (scaled ? 2 * terms : 0);
}

/* Fills a grouped product, with its sums of squares or its second product. K,
 * N: elements of the summed and of the result's columns per row. transposed:
 * the weight is [expert N K]. */
static void set_grouped(Graph *g, Group *group, Arena *a, InstrKind kind,
                        int64_t K, int64_t N, int transposed)
{
    Node *n = group->node[0], *out = accumulated_result(group);
    MapLayout l = map_layout(g, n->in[2]);
    Node *arg[11] = { n->in[0], n->in[1], out, n->in[2] };
    int terms = grouped_terms(group), scaled = is_scaled_product(n), narg = 4;

    for (int t = 0; t < terms; t++) {
        for (int i = 0; i < 2 && t; i++)
            arg[narg++] = group->node[t]->in[i];
        for (int i = 0; i < 2 && scaled; i++)
            arg[narg++] = group->node[t]->in[3 + i];
    }
    if (sum_sq_of(group))
        arg[narg++] = sum_sq_of(group);

    /* gmm leaves rows without an expert unwritten */
    group->maystore = kind == Igmm_wgrad;
    group->instr.kind = kind;
    group->instr.gmm = (GmmArgs){
        .in = n->in[0]->dt,
        .out = out->dt,
        .experts = l.experts,
        .k = K,
        .n = N,
        .ldw = transposed ? K : N,
        .tw = transposed,
        .stride = K * N,
        .beta = is_accum(group),
        .cap = l.cap,
    };
    set_gemm_args(group, a, arg, narg > 5 ? narg : 5);
    for (int i = 0; i < 3; i++)
        group->instr.gmm.stash |= (group->arg[i]->stash > 0) << i;
    set_product_cost(g, group, n);
    group->instr.flops *= terms;
    set_label(group, a, n);
}

/* rows [row K] x W [expert K N] or [expert N K] -> [row N] */
void gmm_lower(Graph *g, Group *group, Arena *a)
{
    Node *n = group->node[0];
    const Axis *expert = n->in[2]->at.route.axis;
    const Node *w = n->in[1];
    int transposed = axes_at(&n->at.gmm.axes, w->dim[w->nd - 1].a) >= 0;

    set_grouped(g, group, a, Igmm, row_elements(g, n->in[0], expert),
                row_elements(g, n, expert),
                transposed && n->at.gmm.axes.n < w->nd - 1);
}

/* a [row K], b [row N] -> dW [expert K N] or [expert N K] */
void gmm_wgrad_lower(Graph *g, Group *group, Arena *a)
{
    Node *n = group->node[0], *out = accumulated_result(group);
    int transposed = out->nd > 1 && dim_of(n->in[0], out->dim[1].a) < 0;

    set_grouped(g, group, a, Igmm_wgrad, elements_in(g, n->in[0], n),
                elements_in(g, n->in[1], n), transposed);
}
