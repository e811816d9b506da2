/* attn_emit.c: the vocabulary of attention kernels' texts. Sizes, strides and
 * starts are named integers read from iv, declared at their first use:
 *
 *     n_x     size of axis x on this rank     at_x    its first global index
 *     half_x  from here on a second piece      to_x    added there instead
 *     p0_x    stride of operand 0 along x     w0      padded width of its tiles
 *     i_x     the coordinate along x
 *
 * A name stands for the same role in every attention, so texts depend on the
 * roles of axes and the dtypes only. */
#include "attn.h"

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

/* Some operand that has the axis. */
static const Node *owner(const Attn *attn, const Axis *a, int *dim)
{
    for (int i = 0; i < attn->node->nin; i++)
        if ((*dim = dim_of(attn->node->in[i], a)) >= 0)
            return attn->node->in[i];
    die("attention: no operand has axis '%s'", a->name);
}

int64_t attn_count(const Attn *attn, const Axis *a)
{
    int d;
    const Node *n = owner(attn, a, &d);

    return local_n(attn->graph, n, d);
}

const char *attn_size(Attn *attn, const Axis *a)
{
    return attn_int(attn, strf(attn->arena, "n_%s", attn_code(attn, a)),
                    aff(attn_count(attn, a)));
}

/* What stands at x is keys of the rank `round` before this one: x by that one's
 * position. */
static const char *start_of(Attn *attn, const char *name, const Node *n,
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

AttnPlace attn_place(Attn *attn, const Axis *a)
{
    const char *x = attn_code(attn, a);
    AttnPlace s = { 0 };
    Piece p[MAXPIECE];
    int d;
    const Node *n = owner(attn, a, &d);

    s.two = pieces(attn->graph, n, d, p) == 2;
    s.at = start_of(attn, strf(attn->arena, "at_%s", x), n, p[0].start);
    if (!s.two)
        return s;
    s.half = attn_int(attn, strf(attn->arena, "half_%s", x), aff(p[0].len));
    s.to = start_of(attn, strf(attn->arena, "to_%s", x), n,
                    aff_add(p[1].start, aff(-p[0].len)));
    return s;
}

/* Text of the global index at the local index `i`. */
const char *attn_global(Attn *attn, const Axis *a, const char *i)
{
    AttnPlace s = attn_place(attn, a);

    return s.two ? strf(attn->arena, "at_place(%s, %s, %s, %s)", i, s.half,
                        s.at, s.to)
                 : strf(attn->arena, "%s + %s", s.at, i);
}

int64_t attn_product(const Attn *attn, Axis *const *a, int n)
{
    int64_t p = 1;

    for (int i = 0; i < n; i++)
        p *= attn_count(attn, a[i]);
    return p;
}

/* Elements of a row of an operand's tiles. */
int64_t attn_width(const Attn *attn, int op)
{
    Axis *in[MAXD];
    int n = attn_inner(attn, attn->node->in[op], in);

    return (attn_product(attn, in, n) + 15) / 16 * 16;
}

const char *attn_widthname(Attn *attn, int op)
{
    return attn_int(attn, strf(attn->arena, "w%d", op),
                    aff(attn_width(attn, op)));
}

/* ---- tensors ------------------------------------------------------------- */

AttnView attn_operand(Attn *attn, int i)
{
    return (AttnView){ strf(attn->arena, "p%d", i), attn->node->in[i],
                       AToperand, 0 };
}

/* Its pointer's name, declared. */
const char *attn_base(Attn *attn, AttnView v)
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

const char *attn_stride(Attn *attn, AttnView v, const Axis *a)
{
    int at = dim_of(v.n, a);

    if (at < 0)
        return "0";
    if (at == v.n->nd - 1)
        return "1";
    const char *name = strf(attn->arena, "%s_%s", v.name, attn_code(attn, a));
    return attn_int(attn, name, aff(local_stride(attn->graph, v.n, a)));
}

/* Where the score's current axes point: "p0 + i_x0 * p0_x0". */
const char *attn_at(Attn *attn, AttnView v)
{
    Text s = { .arena = attn->arena };

    put(&s, "%s", attn_base(attn, v));
    for (int i = 0; i < attn->nx; i++)
        if (dim_of(v.n, attn->x[i]) >= 0)
            put(&s, " + i_%s * %s", attn_code(attn, attn->x[i]),
                attn_stride(attn, v, attn->x[i]));
    return s.s;
}

/* Coordinates along axes from their row-major number in `from`. */
void attn_coords(Attn *attn, int depth, const char *from, Axis *const *a, int n)
{
    for (int i = 0; i < n; i++) {
        Text div = { .arena = attn->arena };
        for (int k = i + 1; k < n; k++)
            put(&div, " / %s", attn_size(attn, a[k]));
        if (i)
            put(&div, " %% %s", attn_size(attn, a[i]));
        put_line(&attn->out, depth, "const int64_t i_%s = %s%s;",
                 attn_code(attn, a[i]), from, div.s ? div.s : "");
    }
}

/* ---- tiles --------------------------------------------------------------- */

/* A piece of the work space of `n` elements, which the text calls `size`. */
void attn_tile(Attn *attn, const char *name, const char *size, int64_t n)
{
    put_line(&attn->out, 1, "at_%s *const %s = ws;", attn->type, name);
    put_line(&attn->out, 1, "ws += %s;", size);
    attn->work += n;
}

static const char *at_word(const Attn *attn, AttnView v)
{
    if (attn->dt == Df32 ? v.n->dt == Df64 : v.n->dt == Dbf16)
        die("attention: a %s operand in %s", dtypes[v.n->dt].name, attn->type);
    return dtypes[v.n->dt].name;
}

/* Loops over all inner axes but the last; returns the loops' depth. Offsets of
 * tensor and tile are appended to the two texts. */
static int inner_loops(Attn *attn, int depth, AttnView v, Axis *const *in,
                       int n, Text *tensor, Text *tile)
{
    Text flat = { .arena = attn->arena };

    for (int i = 0; i < n - 1; i++) {
        const char *c = strf(attn->arena, "c_%s", attn_code(attn, in[i]));
        put_line(&attn->out, depth++, "for (int64_t %s = 0; %s < %s; %s++)", c,
                 c, attn_size(attn, in[i]), c);
        put(tensor, " + %s * %s", c, attn_stride(attn, v, in[i]));
        if (!i)
            put(&flat, "%s", c);
        else
            flat.s = strf(attn->arena, "(%s * %s + %s)", flat.s,
                          attn_size(attn, in[i]), c);
    }
    if (n > 1)
        put(tile, " + %s * %s", flat.s, attn_size(attn, in[n - 1]));
    return depth;
}

void attn_move(Attn *attn, int depth, AttnHow how, AttnView v, const Axis *row,
               int op, const char *tile)
{
    Text tensor = { .arena = attn->arena }, off = { .arena = attn->arena };
    Axis *in[MAXD];
    int n = attn_inner(attn, attn->node->in[op], in);
    const char *ld = attn_widthname(attn, op);
    const char *last = n ? attn_stride(attn, v, in[n - 1]) : "0";
    const char *cols = n ? attn_size(attn, in[n - 1]) : "1";
    const char *stride = attn_stride(attn, v, row);
    const char *rows = row == attn->key ? "cols" : "rows";

    put(&tensor, "%s + %s * %s", attn_at(attn, v),
        row == attn->key ? "k0" : "q0", stride);
    depth = inner_loops(attn, depth, v, in, n, &tensor, &off);
    tile = strf(attn->arena, "%s%s", tile, off.s ? off.s : "");
    if (how == ATpack)
        put_line(&attn->out, depth,
                 "at_pack_%s_%s(%s, %s, 1, %s, %s, %s, %s, %s);",
                 at_word(attn, v), attn->type, tile, ld, tensor.s, stride, last,
                 rows, cols);
    else
        put_line(&attn->out, depth, "at_%s_%s(%s, %s, %s, %s, %s, 1, %s, %s);",
                 how == ATput ? strf(attn->arena, "put_%s", at_word(attn, v))
                              : "add",
                 attn->type, tensor.s, stride, last, tile, ld, rows, cols);
}

void attn_clear(Attn *attn, int depth, const char *tile, const char *rows,
                int op)
{
    put_line(&attn->out, depth, "memset(%s, 0, sizeof *%s * %s * (size_t)%s);",
             tile, tile, rows, attn_widthname(attn, op));
}

/* Does a dot contract this key-side operand? Then products want it flipped. */
int attn_contracted(const Attn *attn, int op)
{
    for (int i = 0; i < attn->ndot; i++)
        if (attn->dot[i].k == op)
            return 1;
    return 0;
}

/* Tiles of all key-side operands: b as stored, f flipped. */
void attn_keytiles(Attn *attn, int flipall)
{
    for (int op = 0; op < attn->nop; op++) {
        if (!attn_keyside(attn, op))
            continue;
        const char *w = attn_widthname(attn, op);
        const char *size = strf(attn->arena, "at_keypad * %s", w);
        int64_t n = ATKEYPAD * attn_width(attn, op);
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
        put_line(&attn->out, depth, "at_flip_%s(f%d, b%d, %s);", attn->type, op,
                 op, attn_widthname(attn, op));
}

/* Queries of each dot, inner axes in the order of its keys. */
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
    put_line(&attn->out, depth, "const int64_t q0 = m / nfree * at_rows;");
    put_line(&attn->out, depth,
             "const int64_t rows = at_least(%s - q0, at_rows);",
             attn_size(attn, attn->query));
    attn_coords(attn, depth, "(m % nfree)", a, n);
}

/* Tiles of all terms from packed queries and flipped keys. */
void attn_products(Attn *attn, int depth)
{
    int begun[ATDOTS] = { 0 };

    for (int i = 0; i < attn->ndot; i++) {
        const AttnDot *dot = &attn->dot[i];
        put_line(&attn->out, depth,
                 "at_mm_%s(rows, wide, %s, a%d, %s, 1, f%d, at_keys, t%d, "
                 "at_ld, %d);",
                 attn->type, attn_widthname(attn, dot->k), i,
                 attn_widthname(attn, dot->k), dot->k, dot->term,
                 begun[dot->term]++ > 0);
    }
}

/* ---- the kernel around it ------------------------------------------------ */

static int is64(const Attn *attn)
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
    attn->dt = is64(attn) ? Df64 : Df32;
    attn->type = dtypes[attn->dt].name;
}

/* The text is complete: name the kernel. */
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

/* Result i of the group's attention, or null: not wanted. */
Node *attn_part(const Attn *attn, int i)
{
    for (int m = 0; m < attn->group->nout; m++) {
        Node *p = attn->group->out[m];
        if (p->op == Opart && p->in[0] == attn->node && p->at.part.index == i)
            return p;
    }
    return NULL;
}

Node *attn_main(const Group *group)
{
    for (int i = 0; i < group->n; i++)
        if (group->node[i]->op == Oattn || group->node[i]->op == Oattn_bwd)
            return group->node[i];
    die("attention: a group without one");
}
