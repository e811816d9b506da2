/* row_kernels.c: kernels along one whole axis: topk and cumsum; route.c and
 * scatter.c have the others. Operands may have any layout: axes become (size,
 * strides), and axes that are contiguous in all tensors merge, so few texts
 * cover all layouts. The order of additions does not depend on the number of
 * threads. */
#include "rows.h"

/* SELECT: largest k selected by passes. GRAIN: least operations of a thread. */
enum { SELECT = 32, GRAIN = 16384 };

/* ---- axes as sizes and strides ------------------------------------------- */

void row_walk(const Graph *g, RowWalks *walks, const Node *of, int d,
              const Node *const t[3])
{
    RowWalk x = { local_n(g, of, d), { 0 } };

    for (int i = 0; i < 3; i++)
        x.s[i] = t[i] ? local_stride(g, t[i], of->dim[d].a) : 0;
    if (walks->n && x.n > 1) {
        RowWalk *walk = &walks->at[walks->n - 1];
        if (walk->s[0] == x.n * x.s[0] && walk->s[1] == x.n * x.s[1] &&
            walk->s[2] == x.n * x.s[2]) {
            x.n *= walk->n;
            *walk = x;
            return;
        }
    }
    if (x.n > 1)
        walks->at[walks->n++] = x;
}

int64_t row_count(const RowWalks *walks)
{
    int64_t c = 1;

    for (int i = 0; i < walks->n; i++)
        c *= walks->at[i].n;
    return c;
}

/* ---- text ---------------------------------------------------------------- */

void row_line(RowText *row, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vput_line(&row->text, 1, fmt, ap);
    va_end(ap);
}

void row_start(RowText *row, const char *name, RankAffine v)
{
    int i = add_int(row->group, row->arena, v);

    row_line(row, "const int64_t %s = iv[%d];", name, i);
}

void row_size(RowText *row, const char *name, int64_t v)
{
    row_start(row, name, aff(v));
}

void row_define(RowText *row, const char *name, const char *value)
{
    put(&row->text, "#define %s %s\n", name, value);
    put(&row->after, "#undef %.*s\n", (int)strcspn(name, "("), name);
}

void row_flag(RowText *row, const char *name, int64_t v)
{
    row_define(row, name, strf(row->arena, "%ld", v));
}

RowText row_begin(Group *group, Arena *a)
{
    RowText o = { group, a, { .arena = a }, { .arena = a } };

    put(&o.text, "{\n");
    return o;
}

void row_buffer(RowText *row, const char *name, Node *n, Dtype dt)
{
    int i = add_arg(row->group, row->arena, n);

    row_line(row, "%s *const %s = buf[%d];", dtypes[dt].store, name, i);
}

void row_finish(RowText *row, const Graph *g, int64_t items, int64_t work)
{
    Group *group = row->group;
    int64_t per = work / (items ? items : 1) + 1;

    put(&row->text, "%s}\n", row->after.s ? row->after.s : "");
    set_items(group, items, per >= GRAIN ? 1 : GRAIN / per);
    set_text(group, row->arena, row->text.s);
    set_label(group, row->arena, group->node[0]);
    group->instr.flops = (double)work;
    for (int i = 0; i < group->narg; i++)
        group->instr.bytes += (double)local_bytes(g, group->arg[i]);
}

void row_offsets(RowText *row, const char *name, const RowWalks *walks)
{
    Text t = { .arena = row->arena };

    put(&t, "int64_t r##p = q, p##0 = 0, p##1 = 0, p##2 = 0;");
    for (int d = walks->n - 1; d >= 0; d--) {
        const RowWalk *walk = &walks->at[d];
        int n = add_size(row->group, row->arena, walk->n);
        for (int i = 0; i < 3; i++)
            if (walk->s[i])
                put(&t, " p##%d += r##p %% iv[%d] * iv[%d];", i, n,
                    add_size(row->group, row->arena, walk->s[i]));
        put(&t, " r##p /= iv[%d];", n);
    }
    put(&t, " (void)r##p, (void)p##0, (void)p##1, (void)p##2;");
    row_define(row, strf(row->arena, "%s(p, q)", name), t.s);
}

/* ---- topk ---------------------------------------------------------------- */

/* FORM of topk.cuh. */
typedef enum TopkForm { TOPKpasses, TOPKsort, TOPKwarp, TOPKblock } TopkForm;

static TopkForm topk_form(const Node *n, int64_t len, int gpu)
{
    enum { WARPLANES = 32 };

    if (gpu)
        return n->at.topk.k > SELECT || len > WARPLANES * WARPLANES ? TOPKblock
                                                                    : TOPKwarp;
    return n->at.topk.k > SELECT ? TOPKsort : TOPKpasses;
}

static int64_t power_of_two(int64_t n)
{
    int64_t p = 1;

    while (p < n)
        p *= 2;
    return p;
}

/* Declares x, y = n, the strides of their axes, and the size of x's; returns
 * the items. */
static int64_t row_operands(RowText *row, const Graph *g, Node *n,
                            const Axis *from, const Axis *to)
{
    Node *x = n->in[0];
    const Node *t[3] = { x, n, NULL };
    RowWalks items = { 0 };

    for (int d = 0; d < x->nd; d++)
        if (x->dim[d].a != from)
            row_walk(g, &items, x, d, t);
    row_buffer(row, "x", x, x->dt);
    row_buffer(row, "y", n, n->dt);
    row_size(row, "n", local_n(g, x, dim_of(x, from)));
    row_size(row, "sx", local_stride(g, x, from));
    row_size(row, "sy", local_stride(g, n, to));
    row_offsets(row, "ITEM", &items);
    row_define(row, "X(i)", text_load(row->arena, x->dt, "x[p0 + (i) * sx]"));
    return row_count(&items);
}

int topk_lower(Graph *g, Group *group, Arena *a, int gpu)
{
    Node *n = group->node[0], *x = n->in[0];
    const Axis *axis = n->at.topk.axis;
    RowText o = row_begin(group, a);
    int64_t len = local_n(g, x, dim_of(x, axis)), k = n->at.topk.k;
    int64_t items = row_operands(&o, g, n, axis, n->at.topk.new);
    TopkForm form = topk_form(n, len, gpu);
    int64_t length = form == TOPKblock ? power_of_two(len) : len;

    row_size(&o, "k", k);
    if (form == TOPKsort || form == TOPKblock) {
        row_line(&o, "int32_t *const work = buf[%d];", group->narg);
        group->scratch = items * (form == TOPKsort ? 2 * len : length) * 4;
    }
    row_define(&o, "CT", dtypes[compute_type(x->dt)].compute);
    row_flag(&o, "FORM", form);
    if (gpu) {
        row_flag(&o, "LENGTH", length);
        row_flag(&o, "ITEMS", items);
    }
    put(&o.text, "%s%s", sort_cuh, topk_cuh);
    row_finish(&o, g, form == TOPKwarp ? (items + 7) / 8 : items,
               items * len * (k > SELECT ? 16 : k));
    return gpu ? THREADMAP : 0;
}

/* ---- cumsum -------------------------------------------------------------- */

enum { LONGSUM = 512 }; /* elements worth a block */

int cumsum_lower(Graph *g, Group *group, Arena *a, int gpu)
{
    Node *n = group->node[0];
    const Axis *axis = n->at.cumsum.axis;
    RowText o = row_begin(group, a);
    int64_t items = row_operands(&o, g, n, axis, axis);
    int64_t len = local_n(g, n->in[0], dim_of(n->in[0], axis));
    int blocks = gpu && len >= LONGSUM;

    row_define(&o, "CT", dtypes[n->dt].compute);
    row_define(&o, "SAVE(s)", text_save(a, n->dt, "(s)"));
    row_flag(&o, "BLOCKS", blocks);
    put(&o.text, "%s", cumsum_cuh);
    row_finish(&o, g, items, items * len);
    return blocks ? THREADMAP : 0;
}

void copy_lower(Graph *g, Group *group, Arena *a)
{
    group->instr.kind = Icopy;
    add_arg(group, a, group->in[0]);
    add_arg(group, a, group->out[0]);
    set_label(group, a, group->out[0]);
    group->instr.bytes = (double)local_bytes(g, group->out[0]);
}

void zero_lower(Graph *g, Group *group, Arena *a)
{
    group->instr.kind = Izero;
    add_arg(group, a, group->out[0]);
    set_label(group, a, group->out[0]);
    group->instr.bytes = (double)local_bytes(g, group->arg[0]);
}
