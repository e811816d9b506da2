/* attn_emit.c: building blocks of attention kernels' texts. Sizes, strides and
 * starts are named integers in iv, declared at their first use:
 *
 *     n_x     local size of axis x          at_x    its first global index
 *     half_x  start of a second piece       to_x    offset of the second piece
 *     p0_x    stride of operand 0 along x   w0      padded width of its tiles
 *     i_x     coordinate along x
 *
 * A name has the same role in every attention, so texts depend on the roles of
 * axes and on dtypes only. */
#include "attn.h"

void attn_line(Attn *attn, int depth, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vput_line(&attn->out, depth, fmt, ap);
    va_end(ap);
}

static int declared(Attn *attn, const char *name)
{
    for (size_t i = 0; i < vec_len(attn->name); i++)
        if (attn->name[i] == name)
            return 1;
    vec_push(attn->arena, attn->name, name);
    return 0;
}

const char *attn_int(Attn *attn, const char *name, RankAffine x)
{
    name = intern(name);
    if (declared(attn, name))
        return name;
    put_line(&attn->decl, 1, "const int64_t %s = iv[%d];", name,
             add_int(attn->group, attn->arena, x));
    return name;
}

/* An operand that has the axis. */
static const Node *operand_with(const Attn *attn, const Axis *a, int *dim)
{
    for (int i = 0; i < attn->node->nin; i++)
        if ((*dim = dim_of(attn->node->in[i], a)) >= 0)
            return attn->node->in[i];
    die("attention: no operand has axis '%s'", a->name);
}

int64_t attn_local_size(const Attn *attn, const Axis *a)
{
    int d;
    const Node *n = operand_with(attn, a, &d);

    return local_n(attn->graph, n, d);
}

const char *attn_size_name(Attn *attn, const Axis *a)
{
    return attn_int(attn, strf(attn->arena, "n_%s", attn_axis(attn, a)),
                    aff(attn_local_size(attn, a)));
}

/* Start x of keys from the ring rank `round` steps before this one: x at that
 * rank's position. */
static const char *declare_start(Attn *attn, const char *name, const Node *n,
                                 RankAffine x)
{
    uint32_t ring = attn->node->at.attn.ring;
    RankAffine pos = aff(0);
    int64_t ranks = 1, low = 0;

    if (!attn->node->at.attn.round || dim_of(n, attn->key) < 0)
        return attn_int(attn, name, x);
    for (int i = attn->graph->mesh->natom; i-- > 0;)
        low = ring >> i & 1 ? i : low;
    for (int i = 0; i < attn->graph->mesh->natom; i++)
        if (ring >> i & 1) {
            pos.k[i] = ranks;
            ranks *= attn->graph->mesh->atom[i].size;
        }
    const char *me = attn_int(attn, "ring_me", pos);
    const char *all = attn_int(attn, "ring_all", aff(ranks));
    const char *back =
        attn_int(attn, "ring_round", aff(attn->node->at.attn.round - 1));
    const char *zero =
        attn_int(attn, strf(attn->arena, "%s_0", name), aff(x.c));
    const char *one =
        attn_int(attn, strf(attn->arena, "%s_1", name), aff(x.k[low]));
    name = intern(name);
    if (!declared(attn, name))
        put_line(&attn->decl, 1,
                 "const int64_t %s = %s + (%s + %s - %s) %% %s * %s;", name,
                 zero, me, all, back, all, one);
    return name;
}

AttnPlace attn_index_map(Attn *attn, const Axis *a)
{
    const char *x = attn_axis(attn, a);
    AttnPlace s = { 0 };
    Piece p[MAXPIECE];
    int d;
    const Node *n = operand_with(attn, a, &d);

    s.two = pieces(attn->graph, n, d, p) == 2;
    s.at = declare_start(attn, strf(attn->arena, "at_%s", x), n, p[0].start);
    if (!s.two)
        return s;
    s.half = attn_int(attn, strf(attn->arena, "half_%s", x), aff(p[0].len));
    s.to = declare_start(attn, strf(attn->arena, "to_%s", x), n,
                         aff_add(p[1].start, aff(-p[0].len)));
    return s;
}

/* Text of the global index of local index `i`. */
const char *attn_global(Attn *attn, const Axis *a, const char *i)
{
    AttnPlace s = attn_index_map(attn, a);

    return s.two ? strf(attn->arena, "at_place(%s, %s, %s, %s)", i, s.half,
                        s.at, s.to)
                 : strf(attn->arena, "%s + %s", s.at, i);
}

int64_t attn_local_product(const Attn *attn, Axis *const *a, int n)
{
    int64_t p = 1;

    for (int i = 0; i < n; i++)
        p *= attn_local_size(attn, a[i]);
    return p;
}

/* Elements per row of an operand's tiles, a multiple of 16. */
int64_t attn_row_width(const Attn *attn, int op)
{
    Axis *in[MAXD];
    int n = attn_inner_axes(attn, attn->node->in[op], in);

    return (attn_local_product(attn, in, n) + 15) / 16 * 16;
}

const char *attn_width_name(Attn *attn, int op)
{
    return attn_int(attn, strf(attn->arena, "w%d", op),
                    aff(attn_row_width(attn, op)));
}

/* ---- tensors ------------------------------------------------------------- */

AttnView attn_operand(Attn *attn, int i)
{
    return (AttnView){ strf(attn->arena, "p%d", i), attn->node->in[i],
                       AToperand, 0 };
}

/* Name of its pointer, which is declared. */
const char *attn_pointer_name(Attn *attn, AttnView v)
{
    const char *name = intern(v.name);

    if (declared(attn, name))
        return name;
    if (v.kind == ATscratch) {
        const char *at =
            attn_int(attn, strf(attn->arena, "%s_at", name), aff(v.at));
        put_line(&attn->decl, 1, "at_%s *%s = scratch + %s;", attn->type, name,
                 at);
    } else {
        put_line(&attn->decl, 1, "%s%s *%s = buf[%d];",
                 v.kind == AToperand ? "const " : "", dtypes[v.n->dt].store,
                 name, add_arg(attn->group, attn->arena, v.n));
    }
    return name;
}

const char *attn_stride_name(Attn *attn, AttnView v, const Axis *a)
{
    int at = dim_of(v.n, a);

    if (at < 0)
        return "0";
    if (at == v.n->nd - 1)
        return "1";
    const char *name = strf(attn->arena, "%s_%s", v.name, attn_axis(attn, a));
    return attn_int(attn, name, aff(local_stride(attn->graph, v.n, a)));
}

/* Pointer at the current score axes: "p0 + i_x0 * p0_x0". */
const char *attn_row_pointer(Attn *attn, AttnView v)
{
    Text s = { .arena = attn->arena };

    put(&s, "%s", attn_pointer_name(attn, v));
    for (int i = 0; i < attn->nx; i++)
        if (dim_of(v.n, attn->x[i]) >= 0)
            put(&s, " + i_%s * %s", attn_axis(attn, attn->x[i]),
                attn_stride_name(attn, v, attn->x[i]));
    return s.s;
}

/* Coordinates along axes a from their row-major index in `from`. */
void attn_coords(Attn *attn, int depth, const char *from, Axis *const *a, int n)
{
    for (int i = 0; i < n; i++) {
        Text div = { .arena = attn->arena };
        for (int k = i + 1; k < n; k++)
            put(&div, " / %s", attn_size_name(attn, a[k]));
        if (i)
            put(&div, " %% %s", attn_size_name(attn, a[i]));
        attn_line(attn, depth, "const int64_t i_%s = %s%s;",
                  attn_axis(attn, a[i]), from, div.s ? div.s : "");
    }
}

/* ---- tiles --------------------------------------------------------------- */

/* A tile of n elements in the workspace; the text calls the number `size`. */
void attn_tile(Attn *attn, const char *name, const char *size, int64_t n)
{
    attn_line(attn, 1, "at_%s *const %s = ws;", attn->type, name);
    attn_line(attn, 1, "ws += %s;", size);
    attn->work += n;
}

static const char *operand_dtype(const Attn *attn, AttnView v)
{
    if (attn->dt == Df32 ? v.n->dt == Df64 : v.n->dt == Dbf16)
        die("attention: a %s operand in %s", dtypes[v.n->dt].name, attn->type);
    return dtypes[v.n->dt].name;
}

/* Loops over all inner axes but the last; returns the depth. The offsets in
 * tensor and tile are appended to the two texts. */
static int inner_loops(Attn *attn, int depth, AttnView v, Axis *const *in,
                       int n, Text *tensor, Text *tile)
{
    Text flat = { .arena = attn->arena };

    for (int i = 0; i < n - 1; i++) {
        const char *c = strf(attn->arena, "c_%s", attn_axis(attn, in[i]));
        attn_line(attn, depth++, "for (int64_t %s = 0; %s < %s; %s++)", c, c,
                  attn_size_name(attn, in[i]), c);
        put(tensor, " + %s * %s", c, attn_stride_name(attn, v, in[i]));
        if (!i)
            put(&flat, "%s", c);
        else
            flat.s = strf(attn->arena, "(%s * %s + %s)", flat.s,
                          attn_size_name(attn, in[i]), c);
    }
    if (n > 1)
        put(tile, " + %s * %s", flat.s, attn_size_name(attn, in[n - 1]));
    return depth;
}

void attn_move(Attn *attn, int depth, AttnHow how, AttnView v, const Axis *row,
               int op, const char *tile)
{
    Text tensor = { .arena = attn->arena }, off = { .arena = attn->arena };
    Axis *in[MAXD];
    int n = attn_inner_axes(attn, attn->node->in[op], in);
    const char *ld = attn_width_name(attn, op);
    const char *last = n ? attn_stride_name(attn, v, in[n - 1]) : "0";
    const char *cols = n ? attn_size_name(attn, in[n - 1]) : "1";
    const char *stride = attn_stride_name(attn, v, row);
    const char *rows = row == attn->key ? "cols" : "rows";

    put(&tensor, "%s + %s * %s", attn_row_pointer(attn, v),
        row == attn->key ? "k0" : "q0", stride);
    depth = inner_loops(attn, depth, v, in, n, &tensor, &off);
    tile = strf(attn->arena, "%s%s", tile, off.s ? off.s : "");
    if (how == ATpack)
        attn_line(attn, depth, "at_pack_%s_%s(%s, %s, 1, %s, %s, %s, %s, %s);",
                  operand_dtype(attn, v), attn->type, tile, ld, tensor.s,
                  stride, last, rows, cols);
    else
        attn_line(attn, depth, "at_%s_%s(%s, %s, %s, %s, %s, 1, %s, %s);",
                  how == ATput
                      ? strf(attn->arena, "put_%s", operand_dtype(attn, v))
                      : "add",
                  attn->type, tensor.s, stride, last, tile, ld, rows, cols);
}

void attn_clear(Attn *attn, int depth, const char *tile, const char *rows,
                int op)
{
    attn_line(attn, depth, "memset(%s, 0, sizeof *%s * %s * (size_t)%s);", tile,
              tile, rows, attn_width_name(attn, op));
}

/* Is it a key-side operand that a dot contracts? Products then use the
 * transposed tile. */
int attn_contracted(const Attn *attn, int op)
{
    for (int i = 0; i < attn->ndot; i++)
        if (attn->dot[i].k == op)
            return 1;
    return 0;
}

/* Tiles of all key-side operands: b as stored, f transposed. */
void attn_keytiles(Attn *attn, int flipall)
{
    for (int op = 0; op < attn->nop; op++) {
        if (!attn_is_keyside(attn, op))
            continue;
        const char *w = attn_width_name(attn, op);
        const char *size = strf(attn->arena, "at_keypad * %s", w);
        int64_t n = ATKEYPAD * attn_row_width(attn, op);
        attn_tile(attn, strf(attn->arena, "b%d", op), size, n);
        if (flipall || attn_contracted(attn, op))
            attn_tile(attn, strf(attn->arena, "f%d", op), size, n);
    }
}

void attn_packkeys(Attn *attn, int depth, int op, int flip)
{
    const char *tile = strf(attn->arena, "b%d", op);

    attn_clear(attn, depth, tile, "at_keys", op);
    attn_move(attn, depth, ATpack, attn_operand(attn, op), attn->key, op, tile);
    if (flip)
        attn_line(attn, depth, "at_flip_%s(f%d, b%d, %s);", attn->type, op, op,
                  attn_width_name(attn, op));
}

/* Tiles of the queries of each dot, inner axes in the order of its keys. */
void attn_packqueries(Attn *attn, int depth)
{
    for (int i = 0; i < attn->ndot; i++) {
        const char *tile = strf(attn->arena, "a%d", i);
        attn_clear(attn, depth, tile, "at_rows", attn->dot[i].k);
        attn_move(attn, depth, ATpack, attn_operand(attn, attn->dot[i].q),
                  attn->query, attn->dot[i].k, tile);
    }
}

void attn_querytile(Attn *attn, int depth, Axis *const *a, int n)
{
    attn_line(attn, depth, "const int64_t q0 = m / nfree * at_rows;");
    attn_line(attn, depth, "const int64_t rows = at_least(%s - q0, at_rows);",
              attn_size_name(attn, attn->query));
    attn_coords(attn, depth, "(m % nfree)", a, n);
}

/* Tiles of all terms from packed queries and transposed keys. */
void attn_products(Attn *attn, int depth)
{
    int begun[ATDOTS] = { 0 };

    for (int i = 0; i < attn->ndot; i++) {
        const AttnDot *dot = &attn->dot[i];
        const char *width = attn_width_name(attn, dot->k);
        attn_line(attn, depth,
                  "at_mm_%s(rows, wide, %s, a%d, %s, 1, f%d, at_keys, t%d, "
                  "at_ld, %d);",
                  attn->type, width, i, width, dot->k, dot->term,
                  begun[dot->term]++ > 0);
    }
}

/* ---- the kernel ---------------------------------------------------------- */

static int computes_in_f64(const Attn *attn)
{
    for (int i = 0; i < attn->node->nin; i++)
        if (attn->node->in[i]->dt == Df64)
            return 1;
    return 0;
}

void attn_begin(Attn *attn, Group *group, Arena *a)
{
    attn->group = group;
    attn->arena = attn->decl.arena = attn->out.arena = a;
    attn->dt = computes_in_f64(attn) ? Df64 : Df32;
    attn->type = dtypes[attn->dt].name;
}

/* Completes the text and names the kernel. */
void attn_finish(Attn *attn)
{
    const char *work = attn_int(attn, "work", aff(attn->work + 16));
    Text s = { .arena = attn->arena };

    put(&s, "{\n");
    if (attn->group->scratch)
        put(&s, "    at_%s *scratch = buf[%d];\n", attn->type,
            attn->group->narg);
    put(&s, "%s", attn->decl.s);
    put(&s, "    at_%s room[%s], *ws = at_align(room);\n", attn->type, work);
    put(&s, "    UNWRITTEN(room);\n");
    put(&s, "%s}\n", attn->out.s);
    set_text(attn->group, attn->arena, s.s);
    attn->group->shared = attn_pre;
    set_label(attn->group, attn->arena, attn->node);
}

/* Result i of the group's attention; null: unused. */
Node *attn_result(const Attn *attn, int i)
{
    for (int m = 0; m < attn->group->nout; m++) {
        Node *p = attn->group->out[m];
        if (p->op == Opart && p->in[0] == attn->node && p->at.part.index == i)
            return p;
    }
    return NULL;
}

Node *attn_of_group(const Group *group)
{
    for (int i = 0; i < group->n; i++)
        if (group->node[i]->op == Oattn || group->node[i]->op == Oattn_bwd)
            return group->node[i];
    die("attention: a group without one");
}
