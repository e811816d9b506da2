/* row.c: kernels that work along one whole axis: here topk and cumsum, in
 * route.c and scatter.c what else there is. Operands may lie in any order: axes
 * become (size, stride ...) and those that lie one inside the other everywhere
 * become one, so few texts serve all layouts. Order of additions is fixed,
 * whatever the number of threads.                                            */
#include "codegen.h"

#include <string.h>

enum { SELECT = 32, GRAIN = 16384 };

/* ---- axes as sizes and strides ------------------------------------------- */

int64_t row_stride(const Graph *g, const Node *n, const Axis *a)
{
    int64_t s = 1;
    int at = dim_of(n, a);

    for (int d = n->nd - 1; d > at; d--)
        s *= local_n(g, n, d);
    return at < 0 ? 0 : s;
}

void row_walk(const Graph *g, RowWalks *w, const Node *of, int d,
                     const Node *const t[3])
{
    RowWalk x = { local_n(g, of, d), { 0 } };

    for (int i = 0; i < 3; i++)
        x.s[i] = t[i] ? row_stride(g, t[i], of->dim[d].a) : 0;
    if (w->n && x.n > 1) {
        RowWalk *p = &w->at[w->n - 1];
        if (p->s[0] == x.n * x.s[0] && p->s[1] == x.n * x.s[1] &&
            p->s[2] == x.n * x.s[2]) {
            x.n *= p->n;
            *p = x;
            return;
        }
    }
    if (x.n > 1)
        w->at[w->n++] = x;
}

int64_t row_count(const RowWalks *w)
{
    int64_t c = 1;

    for (int i = 0; i < w->n; i++)
        c *= w->at[i].n;
    return c;
}

/* ---- text ---------------------------------------------------------------- */

void row_line(RowText *o, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    const char *s = vstrf(o->a, fmt, ap);
    va_end(ap);
    put(&o->t, "    ");
    putn(&o->t, s, strlen(s));
    put(&o->t, "\n");
}

int row_size(RowText *o, int64_t v)
{
    return add_size(o->k, o->a, v);
}

RowText row_begin(Group *k, Arena *a)
{
    RowText o = { k, a, { .arena = a } };

    row_size(&o, 0);
    row_size(&o, 1);
    put(&o.t, "{\n");
    return o;
}

void row_buffer(RowText *o, const char *name, Node *n, Dtype dt)
{
    int i = add_arg(o->k, o->a, n);

    row_line(o, "%s *const %s = buf[%d];", dtypes[dt].store, name, i);
}

void row_finish(RowText *o, const Graph *g, int64_t items, int64_t work)
{
    Group *k = o->k;
    int64_t per = work / (items ? items : 1) + 1;

    put(&o->t, "}\n");
    k->step.iv[0] = aff(items);
    k->step.iv[1] = aff(per >= GRAIN ? 1 : GRAIN / per);
    set_text(k, o->a, o->t.s);
    set_label(k, o->a, k->node[0]);
    k->step.flops = (double)work;
    for (int i = 0; i < k->narg; i++)
        k->step.bytes += (double)local_bytes(g, k->arg[i]);
}

/* Declare <name>0 <name>1 ..: offsets of the setting number q of the walks.  */
void row_decode(RowText *o, const RowWalks *w, const char *q, const char *name,
                   int tensors)
{
    row_line(o, "int64_t r%s = %s;", name, q);
    for (int i = 0; i < tensors; i++)
        row_line(o, "int64_t %s%d = 0;", name, i);
    for (int d = w->n - 1; d >= 0; d--) {
        int n = row_size(o, w->at[d].n);
        for (int i = 0; i < tensors; i++)
            if (w->at[d].s[i])
                row_line(o, "%s%d += r%s %% iv[%d] * iv[%d];", name, i, name, n,
                     row_size(o, w->at[d].s[i]));
        row_line(o, "r%s /= iv[%d];", name, n);
    }
    row_line(o, "(void)r%s;", name);
}

const char *row_load(Arena *a, Dtype dt, const char *x)
{
    return dt == Dbf16 ? strf(a, "bf16_f32(%s)", x) : x;
}

const char *row_save(Arena *a, Dtype dt, const char *x)
{
    return dt == Dbf16 ? strf(a, "f32_bf16(%s)", x)
                       : strf(a, "(%s)(%s)", dtypes[dt].store, x);
}

/* ---- topk ---------------------------------------------------------------- */

/* Does (x, i) stand before (y, j)? NaN last, ties to the lower index.        */
const char row_before[] =
    "#define BEFORE(x, i, y, j) "
    "((x) > (y) || ((y) != (y) && (x) == (x)) || \\\n"
    "    (((x) == (y) || ((x) != (x) && (y) != (y))) && (i) < (j)))\n";

/* k passes, each for the next in order: for few results.                     */
static void select_few(RowText *o, const char *ct, const char *x)
{
    row_line(o, "%s last = 0;", ct);
    row_line(o, "int64_t li = -1;");
    row_line(o, "for (int64_t c = 0; c < k; c++) {");
    row_line(o, "    %s best = 0;", ct);
    row_line(o, "    int64_t bi = -1;");
    row_line(o, "    for (int64_t i = 0; i < n; i++) {");
    row_line(o, "        const %s v = %s;", ct, x);
    row_line(o, "        if ((li < 0 || BEFORE(last, li, v, i)) &&");
    row_line(o, "            (bi < 0 || BEFORE(v, i, best, bi)))");
    row_line(o, "            best = v, bi = i;");
    row_line(o, "    }");
    row_line(o, "    y[p1 + c * sy] = (int32_t)bi;");
    row_line(o, "    last = best, li = bi;");
    row_line(o, "}");
}

/* Merge sort of all indices in the item's own work space.                    */
static void sort_all(RowText *o, const char *ct, const char *x)
{
    row_line(o, "int32_t *s = work + p * 2 * n, *d = s + n;");
    row_line(o, "for (int64_t i = 0; i < n; i++)");
    row_line(o, "    s[i] = (int32_t)i;");
    row_line(o, "for (int64_t w = 1; w < n; w *= 2) {");
    row_line(o, "    for (int64_t f = 0; f < n; f += 2 * w) {");
    row_line(o, "        int64_t m = f + w < n ? f + w : n;");
    row_line(o, "        const int64_t e = m + w < n ? m + w : n, h = m;");
    row_line(o, "        for (int64_t a = f, c = f; c < e; c++) {");
    row_line(o, "            int left = a < h;");
    row_line(o, "            if (left && m < e) {");
    row_line(o, "                int64_t i = s[a];");
    row_line(o, "                const %s v = %s;", ct, x);
    row_line(o, "                const int64_t j = i;");
    row_line(o, "                i = s[m];");
    row_line(o, "                const %s u = %s;", ct, x);
    row_line(o, "                left = BEFORE(v, j, u, i);");
    row_line(o, "            }");
    row_line(o, "            d[c] = left ? s[a++] : s[m++];");
    row_line(o, "        }");
    row_line(o, "    }");
    row_line(o, "    int32_t *t = s;");
    row_line(o, "    s = d, d = t;");
    row_line(o, "}");
    row_line(o, "for (int64_t c = 0; c < k; c++)");
    row_line(o, "    y[p1 + c * sy] = s[c];");
}

void topk_lower(Graph *g, Group *k, Arena *a)
{
    Node *n = k->node[0], *x = n->in[0];
    const Node *t[3] = { x, n, NULL };
    RowWalks w = { 0 };
    RowText o = row_begin(k, a);
    int at = dim_of(x, n->A[0]);
    int64_t len = local_n(g, x, at);
    const char *ct = dtypes[compute_type(x->dt)].compute;

    for (int d = 0; d < x->nd; d++)
        if (d != at)
            row_walk(g, &w, x, d, t);
    row_buffer(&o, "x", x, x->dt);
    row_buffer(&o, "y", n, Di32);
    row_line(&o, "const int64_t n = iv[%d], sx = iv[%d], k = iv[%d], "
             "sy = iv[%d];", row_size(&o, len),
             row_size(&o, row_stride(g, x, n->A[0])), row_size(&o, n->i),
             row_size(&o, row_stride(g, n, n->B[0])));
    int many = n->i > SELECT;
    if (many)
        row_line(&o, "int32_t *const work = buf[%d];", k->narg);
    put(&o.t, "%s", row_before);
    row_line(&o, "for (int64_t p = lo; p < hi; p++) {");
    row_decode(&o, &w, "p", "p", 2);
    const char *v = row_load(a, x->dt, "x[p0 + i * sx]");
    if (many)
        sort_all(&o, ct, v);
    else
        select_few(&o, ct, v);
    row_line(&o, "}");
    put(&o.t, "#undef BEFORE\n");
    k->scratch = many ? row_count(&w) * 2 * len * 4 : 0;
    row_finish(&o, g, row_count(&w), row_count(&w) * len * (many ? 16 : n->i));
}

/* ---- cumsum -------------------------------------------------------------- */

void cumsum_lower(Graph *g, Group *k, Arena *a)
{
    Node *n = k->node[0], *x = n->in[0];
    const Node *t[3] = { x, n, NULL };
    RowWalks w = { 0 };
    RowText o = row_begin(k, a);
    int at = dim_of(x, n->A[0]);
    int64_t len = local_n(g, x, at);

    for (int d = 0; d < x->nd; d++)
        if (d != at)
            row_walk(g, &w, x, d, t);
    row_buffer(&o, "x", x, x->dt);
    row_buffer(&o, "y", n, n->dt);
    row_line(&o, "const int64_t n = iv[%d], sx = iv[%d], sy = iv[%d];",
             row_size(&o, len), row_size(&o, row_stride(g, x, n->A[0])),
             row_size(&o, row_stride(g, n, n->A[0])));
    row_line(&o, "for (int64_t p = lo; p < hi; p++) {");
    row_decode(&o, &w, "p", "p", 2);
    row_line(&o, "%s s = 0;", dtypes[n->dt].compute);
    row_line(&o, "for (int64_t i = 0; i < n; i++) {");
    row_line(&o, "    s += %s;", row_load(a, x->dt, "x[p0 + i * sx]"));
    row_line(&o, "    y[p1 + i * sy] = %s;", row_save(a, n->dt, "s"));
    row_line(&o, "}");
    row_line(&o, "}");
    row_finish(&o, g, row_count(&w), row_count(&w) * len);
}

void zero_lower(Graph *g, Group *k, Arena *a)
{
    k->step.kind = Szero;
    add_arg(k, a, k->out[0]);
    set_label(k, a, k->out[0]);
    k->step.bytes = (double)local_bytes(g, k->arg[0]);
}
