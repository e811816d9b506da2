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
#include <string.h>

#include "attn.h"

static int declared(Attn *t, const char *name)
{
    for (size_t i = 0; i < vec_len(t->name); i++)
        if (t->name[i] == name)
            return 1;
    vec_push(t->arena, t->name, name);
    return 0;
}

const char *attn_int(Attn *t, const char *name, RankAffine x)
{
    name = intern(name);
    if (declared(t, name))
        return name;
    put_line(&t->decl, 1, "const int64_t %s = iv[%d];", name,
             add_int(t->k, t->arena, x));
    return name;
}

/* Some operand that has the axis. */
static const Node *owner(const Attn *t, const Axis *a, int *dim)
{
    for (int i = 0; i < t->n->nin; i++)
        if ((*dim = dim_of(t->n->in[i], a)) >= 0)
            return t->n->in[i];
    die("attention: no operand has axis '%s'", a->name);
}

int64_t attn_count(const Attn *t, const Axis *a)
{
    int d;
    const Node *n = owner(t, a, &d);

    return local_n(t->g, n, d);
}

const char *attn_size(Attn *t, const Axis *a)
{
    return attn_int(t, strf(t->arena, "n_%s", attn_code(t, a)),
                    aff(attn_count(t, a)));
}

/* What stands at x is keys of the rank `round` before this one: x by that one's
 * position. */
static const char *start_of(Attn *t, const char *name, const Node *n,
                            RankAffine x)
{
    uint32_t ring = t->n->at.attn.ring;
    RankAffine pos = aff(0);
    int64_t ranks = 1, low = 0;

    if (!t->n->at.attn.round || dim_of(n, t->key) < 0)
        return attn_int(t, name, x);
    for (int i = t->g->mesh->natom; i-- > 0;)
        low = ring >> i & 1 ? i : low;
    for (int i = 0; i < t->g->mesh->natom; i++)
        if (ring >> i & 1) {
            pos.k[i] = ranks;
            ranks *= t->g->mesh->atom[i].size;
        }
    const char *me = attn_int(t, "ring_me", pos);
    const char *all = attn_int(t, "ring_all", aff(ranks));
    const char *back = attn_int(t, "ring_round", aff(t->n->at.attn.round - 1));
    const char *zero = attn_int(t, strf(t->arena, "%s_0", name), aff(x.c));
    const char *step = attn_int(t, strf(t->arena, "%s_1", name), aff(x.k[low]));
    name = intern(name);
    if (!declared(t, name))
        put_line(&t->decl, 1,
                 "const int64_t %s = %s + (%s + %s - %s) %% %s * "
                 "%s;",
                 name, zero, me, all, back, all, step);
    return name;
}

AttnPlace attn_place(Attn *t, const Axis *a)
{
    const char *x = attn_code(t, a);
    AttnPlace s = { 0 };
    Piece p[MAXPIECE];
    int d;
    const Node *n = owner(t, a, &d);

    s.two = pieces(t->g, n, d, p) == 2;
    s.at = start_of(t, strf(t->arena, "at_%s", x), n, p[0].start);
    if (!s.two)
        return s;
    s.half = attn_int(t, strf(t->arena, "half_%s", x), aff(p[0].len));
    s.to = start_of(t, strf(t->arena, "to_%s", x), n,
                    aff_add(p[1].start, aff(-p[0].len)));
    return s;
}

/* Text of the global index at the local index `i`. */
const char *attn_global(Attn *t, const Axis *a, const char *i)
{
    AttnPlace s = attn_place(t, a);

    return s.two ? strf(t->arena, "at_place(%s, %s, %s, %s)", i, s.half, s.at,
                        s.to)
                 : strf(t->arena, "%s + %s", s.at, i);
}

int64_t attn_product(const Attn *t, Axis *const *a, int n)
{
    int64_t p = 1;

    for (int i = 0; i < n; i++)
        p *= attn_count(t, a[i]);
    return p;
}

/* Elements of a row of an operand's tiles. */
int64_t attn_width(const Attn *t, int op)
{
    Axis *in[MAXD];
    int n = attn_inner(t, t->n->in[op], in);

    return (attn_product(t, in, n) + 15) / 16 * 16;
}

const char *attn_widthname(Attn *t, int op)
{
    return attn_int(t, strf(t->arena, "w%d", op), aff(attn_width(t, op)));
}

/* ---- tensors ------------------------------------------------------------- */

AttnView attn_operand(Attn *t, int i)
{
    return (AttnView){ strf(t->arena, "p%d", i), t->n->in[i], AToperand, 0 };
}

/* Its pointer's name, declared. */
const char *attn_base(Attn *t, AttnView v)
{
    const char *name = intern(v.name);

    if (declared(t, name))
        return name;
    if (v.kind == ATscratch) {
        const char *at = attn_int(t, strf(t->arena, "%s_at", name), aff(v.at));
        put_line(&t->decl, 1, "at_%s *%s = scratch + %s;", t->t, name, at);
    } else {
        put_line(&t->decl, 1, "%s%s *%s = buf[%d];",
                 v.kind == AToperand ? "const " : "", dtypes[v.n->dt].store,
                 name, add_arg(t->k, t->arena, v.n));
    }
    return name;
}

const char *attn_stride(Attn *t, AttnView v, const Axis *a)
{
    int at = dim_of(v.n, a);

    if (at < 0)
        return "0";
    if (at == v.n->nd - 1)
        return "1";
    const char *name = strf(t->arena, "%s_%s", v.name, attn_code(t, a));
    return attn_int(t, name, aff(local_stride(t->g, v.n, a)));
}

/* Where the score's current axes point: "p0 + i_x0 * p0_x0". */
const char *attn_at(Attn *t, AttnView v)
{
    Text s = { .arena = t->arena };

    put(&s, "%s", attn_base(t, v));
    for (int i = 0; i < t->nx; i++)
        if (dim_of(v.n, t->x[i]) >= 0)
            put(&s, " + i_%s * %s", attn_code(t, t->x[i]),
                attn_stride(t, v, t->x[i]));
    return s.s;
}

/* Coordinates along axes from their row-major number in `from`. */
void attn_coords(Attn *t, int depth, const char *from, Axis *const *a, int n)
{
    for (int i = 0; i < n; i++) {
        Text div = { .arena = t->arena };
        for (int k = i + 1; k < n; k++)
            put(&div, " / %s", attn_size(t, a[k]));
        if (i)
            put(&div, " %% %s", attn_size(t, a[i]));
        put_line(&t->o, depth, "const int64_t i_%s = %s%s;", attn_code(t, a[i]),
                 from, div.s ? div.s : "");
    }
}

/* ---- tiles --------------------------------------------------------------- */

/* A piece of the work space of `n` elements, which the text calls `size`. */
void attn_tile(Attn *t, const char *name, const char *size, int64_t n)
{
    put_line(&t->o, 1, "at_%s *const %s = ws;", t->t, name);
    put_line(&t->o, 1, "ws += %s;", size);
    t->work += n;
}

static const char *at_word(const Attn *t, AttnView v)
{
    if (t->dt == Df32 ? v.n->dt == Df64 : v.n->dt == Dbf16)
        die("attention: a %s operand in %s", dtypes[v.n->dt].name, t->t);
    return dtypes[v.n->dt].name;
}

/* Loops over all inner axes but the last; returns the loops' depth. Offsets of
 * tensor and tile are appended to the two texts. */
static int inner_loops(Attn *t, int depth, AttnView v, Axis *const *in, int n,
                       Text *tensor, Text *tile)
{
    Text flat = { .arena = t->arena };

    for (int i = 0; i < n - 1; i++) {
        const char *c = strf(t->arena, "c_%s", attn_code(t, in[i]));
        put_line(&t->o, depth++, "for (int64_t %s = 0; %s < %s; %s++)", c, c,
                 attn_size(t, in[i]), c);
        put(tensor, " + %s * %s", c, attn_stride(t, v, in[i]));
        if (!i)
            put(&flat, "%s", c);
        else
            flat.s = strf(t->arena, "(%s * %s + %s)", flat.s,
                          attn_size(t, in[i]), c);
    }
    if (n > 1)
        put(tile, " + %s * %s", flat.s, attn_size(t, in[n - 1]));
    return depth;
}

void attn_move(Attn *t, int depth, AttnHow how, AttnView v, const Axis *row,
               int op, const char *tile)
{
    Text tensor = { .arena = t->arena }, off = { .arena = t->arena };
    Axis *in[MAXD];
    int n = attn_inner(t, t->n->in[op], in);
    const char *ld = attn_widthname(t, op);
    const char *last = n ? attn_stride(t, v, in[n - 1]) : "0";
    const char *cols = n ? attn_size(t, in[n - 1]) : "1";
    const char *step = attn_stride(t, v, row);
    const char *rows = row == t->key ? "cols" : "rows";

    put(&tensor, "%s + %s * %s", attn_at(t, v), row == t->key ? "k0" : "q0",
        step);
    depth = inner_loops(t, depth, v, in, n, &tensor, &off);
    tile = strf(t->arena, "%s%s", tile, off.s ? off.s : "");
    if (how == ATpack)
        put_line(&t->o, depth, "at_pack_%s_%s(%s, %s, 1, %s, %s, %s, %s, %s);",
                 at_word(t, v), t->t, tile, ld, tensor.s, step, last, rows,
                 cols);
    else
        put_line(&t->o, depth, "at_%s_%s(%s, %s, %s, %s, %s, 1, %s, %s);",
                 how == ATput ? strf(t->arena, "put_%s", at_word(t, v)) : "add",
                 t->t, tensor.s, step, last, tile, ld, rows, cols);
}

void attn_clear(Attn *t, int depth, const char *tile, const char *rows, int op)
{
    put_line(&t->o, depth, "memset(%s, 0, sizeof *%s * %s * (size_t)%s);", tile,
             tile, rows, attn_widthname(t, op));
}

/* Does a dot contract this key-side operand? Then products want it flipped. */
int attn_contracted(const Attn *t, int op)
{
    for (int i = 0; i < t->ndot; i++)
        if (t->dot[i].k == op)
            return 1;
    return 0;
}

/* Tiles of all key-side operands: b as stored, f flipped. */
void attn_keytiles(Attn *t, int flipall)
{
    for (int op = 0; op < t->nop; op++) {
        if (!attn_keyside(t, op))
            continue;
        const char *w = attn_widthname(t, op);
        const char *size = strf(t->arena, "at_keypad * %s", w);
        int64_t n = ATKEYPAD * attn_width(t, op);
        attn_tile(t, strf(t->arena, "b%d", op), size, n);
        if (flipall || attn_contracted(t, op))
            attn_tile(t, strf(t->arena, "f%d", op), size, n);
    }
}

void attn_packkeys(Attn *t, int depth, int op, int flip)
{
    const char *tile = strf(t->arena, "b%d", op);

    attn_clear(t, depth, tile, "at_keys", op);
    attn_move(t, depth, ATpack, attn_operand(t, op), t->key, op, tile);
    if (flip)
        put_line(&t->o, depth, "at_flip_%s(f%d, b%d, %s);", t->t, op, op,
                 attn_widthname(t, op));
}

/* Queries of each dot, inner axes in the order of its keys. */
void attn_packqueries(Attn *t, int depth)
{
    for (int i = 0; i < t->ndot; i++) {
        const char *tile = strf(t->arena, "a%d", i);
        attn_clear(t, depth, tile, "at_rows", t->dot[i].k);
        attn_move(t, depth, ATpack, attn_operand(t, t->dot[i].q), t->query,
                  t->dot[i].k, tile);
    }
}

void attn_querytile(Attn *t, int depth, Axis *const *a, int n)
{
    put_line(&t->o, depth, "const int64_t q0 = m / nfree * at_rows;");
    put_line(&t->o, depth, "const int64_t rows = at_least(%s - q0, at_rows);",
             attn_size(t, t->query));
    attn_coords(t, depth, "(m % nfree)", a, n);
}

/* Tiles of all terms from packed queries and flipped keys. */
void attn_products(Attn *t, int depth)
{
    int begun[ATDOTS] = { 0 };

    for (int i = 0; i < t->ndot; i++) {
        const AttnDot *d = &t->dot[i];
        put_line(&t->o, depth,
                 "at_mm_%s(rows, wide, %s, a%d, %s, 1, f%d, "
                 "at_keys, t%d, at_ld, %d);",
                 t->t, attn_widthname(t, d->k), i, attn_widthname(t, d->k),
                 d->k, d->term, begun[d->term]++ > 0);
    }
}

/* ---- the kernel around it ------------------------------------------------ */

static int is64(const Attn *t)
{
    for (int i = 0; i < t->n->nin; i++)
        if (t->n->in[i]->dt == Df64)
            return 1;
    return 0;
}

void attn_begin(Attn *t, Group *k, Arena *a)
{
    t->k = k;
    t->arena = t->decl.arena = t->o.arena = a;
    t->dt = is64(t) ? Df64 : Df32;
    t->t = dtypes[t->dt].name;
}

/* The text is complete: name the kernel. */
void attn_finish(Attn *t)
{
    const char *work = attn_int(t, "work", aff(t->work + 16));
    Text s = { .arena = t->arena };

    put(&s, "{\n");
    if (t->k->scratch)
        put(&s, "    at_%s *scratch = buf[%d];\n", t->t, t->k->narg);
    put(&s, "%s", t->decl.s);
    put(&s, "    at_%s room[%s], *ws = at_align(room);\n", t->t, work);
    put(&s, "%s}\n", t->o.s);
    set_text(t->k, t->arena, s.s);
    set_label(t->k, t->arena, t->n);
}

/* Result i of the group's attention, or null: not wanted. */
Node *attn_part(const Attn *t, int i)
{
    for (int m = 0; m < t->k->nout; m++) {
        Node *p = t->k->out[m];
        if (p->op == Opart && p->in[0] == t->n && p->at.part.index == i)
            return p;
    }
    return NULL;
}

Node *attn_main(const Group *k)
{
    for (int i = 0; i < k->n; i++)
        if (k->node[i]->op == Oattn || k->node[i]->op == Oattn_bwd)
            return k->node[i];
    die("attention: a group without one");
}
