/* product_update.c: weights are updated by the product that makes their
 * gradient, which then is never stored:
 *
 *     body  %d = gmm_wgrad %x %y             one kernel: of each tile of %d it
 *           %g = accum %d                    reads %m, %w, makes what they
 *     post  %n = add (mul %m b1) (mul %g c)  become, and stores that
 *           write %m %n
 *           write %w ..
 *
 * It may where the body runs once, the gradient is that product and no rank
 * adds to it, all that is made of it element by element ends in writes of what
 * lies as it does (AdamW), and the other numbers that this reads are known
 * before the body: these (a rate, corrections of the moments) go to `pre`. A
 * step that may be held back reads a word of `post`, so it may only with
 * train.skip_bad=0, and without clipping. A weight that is kept as numbers of 8
 * bits (training/primary.c) is rounded there too, where a tile is a block:
 *
 *     post  %b = quantize_blocks (cast %n to=bf16)
 *           write %w (part %b 0)
 *           write %s (part %b 1)
 *
 * Values are the same to the bit.
 *
 * Of each element of an fp32 gradient 8 bytes less are moved, of 32: the
 * product does not write it, the update does not read it. One H100,
 * alternately, ms a step with train.skip_bad=1 and 0: Qwen3's widths, 4 layers,
 * 1/1 59.1 and 53.9, 4/1 142.4 and 135.7; Mixtral's, 2 layers, 4/1 186.2 and
 * 182.1.
 *
 * With several micro-batches the last one's product could do so (of 4/4 1 %, by
 * bytes); the others' would have to run in all runs of the body but its last,
 * which no instruction can. */
#include <math.h>

#include "kernels.h"

typedef struct UpdateSearch {
    Fuse *fuse;
    const Node *gradient;
    Node **member;       /* vec */
    int stamp;           /* in Fuse.seen: members */
    const Node *rounded; /* of these, quantize_blocks; null: none */
    const Node *other;   /* quantize_blocks that the kernel cannot do */
} UpdateSearch;

/* ---- what an update may be made of --------------------------------------- */

static int is_update_dtype(Dtype dt)
{
    return dt == Df32 || dt == Dbf16 || dt == Di16;
}

/* The same elements of every rank, in the same order. */
static int lies_as(const UpdateSearch *search, const Node *n)
{
    const Node *gradient = search->gradient;
    int same = same_order(n, gradient);

    for (int d = 0; d < n->nd && same; d++)
        same = n->dim[d].n == gradient->dim[d].n;
    return same && n->sh == gradient->sh;
}

/* A number, fp32, that does not depend on what the body makes. */
static int is_ready(const Node *n)
{
    if (n->op == Ocast && n->in[0]->op == Ostepval)
        return n->dt == Df32;
    if (n->nd || n->dt != Df32)
        return 0;
    if (n->op == Oconst)
        return isfinite(n->at.constant.value);
    if (n->op == Ostepval || n->reg == REGpre)
        return 1;
    if (optab[n->op].cls != EW || n->reg != REGpost)
        return 0;
    for (int k = 0; k < n->nin; k++)
        if (!is_ready(n->in[k]))
            return 0;
    return 1;
}

static int is_kept(const UpdateSearch *search, Node *n)
{
    return is_lasting(n) && lies_as(search, n) && is_update_dtype(n->dt) &&
           !goes_to_host(search->fuse->graph, n);
}

/* Arithmetic whose text does not depend on what stands around it. */
static int is_plain(const Node *n)
{
    return optab[n->op].cls == EW && optab[n->op].expr && !is_view(n) &&
           (n->op == Ocast || optab[n->op].nattr == 0) &&
           !op_is(n->op, OPcmp) && !op_is(n->op, OPapprox) && n->op != Opow &&
           n->op != Owhere && n->op != Obroadcast;
}

/* One value of the update may be rounded in blocks, as it lies, which are
 * stored in place of what was made of it before. */
static int may_round_in(UpdateSearch *search, const Node *n)
{
    const Node *x = n->in[0];
    Node **part = search->fuse->user[n->id];
    int fits = !search->rounded && optab[x->op].cls == EW && x->dt == Dbf16 &&
               lies_as(search, x);

    for (size_t i = 0; i < vec_len(part); i++)
        fits &= part[i]->at.part.index < 2;
    fits = fits && vec_len(part) == 2 &&
           search->fuse->target->updates(search->fuse->graph,
                                         search->gradient->in[0], n);
    *(fits ? &search->rounded : &search->other) = n;
    return fits;
}

static int writes_part(const Node *n)
{
    return n->op == Owrite && n->in[1]->op == Opart;
}

static int is_own_part(const UpdateSearch *search, const Node *w)
{
    const Node *to = w->in[0], *part = w->in[1];

    return is_lasting(to) && !goes_to_host(search->fuse->graph, to) &&
           to->dt == part->dt && same_order(to, part) &&
           vec_len(search->fuse->user[part->id]) == 1;
}

static int may_take(UpdateSearch *search, const Node *n)
{
    if (n->reg != REGpost || n->host || n->call != search->gradient->call)
        return 0;
    if (n->op == Oquantize_blocks)
        return may_round_in(search, n);
    if (n->op == Opart)
        return n->in[0] == search->rounded;
    if (writes_part(n))
        return is_own_part(search, n);
    if (n->op == Owrite)
        return is_kept(search, n->in[0]) && lies_as(search, n->in[1]) &&
               n->in[1]->dt == n->in[0]->dt && optab[n->in[1]->op].cls == EW;
    return is_plain(n) && lies_as(search, n) && is_update_dtype(n->dt);
}

/* ---- all of it ----------------------------------------------------------- */

static int is_known(const UpdateSearch *search, const Node *n)
{
    return n == search->gradient || search->fuse->seen[n->id] == search->stamp;
}

static int take(UpdateSearch *search, Node *n)
{
    if (is_known(search, n))
        return 1;
    if (!may_take(search, n) || vec_len(search->member) >= MOSTNODES - 4)
        return 0;
    search->fuse->seen[n->id] = search->stamp;
    vec_push(search->fuse->arena, search->member, n);
    return 1;
}

/* Those of post read what is written as it was before, so they are members. */
static int take_users(UpdateSearch *search, const Node *n)
{
    Node **user = search->fuse->user[n->id];

    for (size_t i = 0; i < vec_len(user); i++)
        if (user[i]->reg == REGpost && !take(search, user[i]))
            return 0;
    return 1;
}

static int take_operands(UpdateSearch *search, const Node *n)
{
    for (int k = 0; k < n->nin; k++) {
        Node *x = n->in[k];
        int kept = is_kept(search, x) || (k == 0 && writes_part(n));
        if (kept ? !take_users(search, x)
                 : !is_ready(x) && !is_known(search, x) && !take(search, x))
            return 0;
    }
    return 1;
}

static int is_squares(const Node *n)
{
    return n->op == Osum_sq;
}

static int take_all(UpdateSearch *search)
{
    const Node *gradient = search->gradient;
    Node **user = search->fuse->user[gradient->id];
    int writes = 0;

    for (size_t i = 0; i < vec_len(user); i++)
        if (!is_squares(user[i]) && !take(search, user[i]))
            return 0;
    for (size_t i = 0; i < vec_len(search->member); i++) {
        Node *n = search->member[i];
        writes += n->op == Owrite;
        if (!take_operands(search, n) ||
            (n->op != Owrite && !take_users(search, n)))
            return 0;
    }
    return writes > 0;
}

/* Is it a gradient that its only product could keep to itself? */
static int is_own(const Fuse *fuse, const Node *n)
{
    const Graph *g = fuse->graph;

    return fuse->target->updates && !g->call && n->op == Oaccum && n->of &&
           n->nin == 1 && g->opts && program_turns(g) == 1 &&
           (n->dt == Df32 || is_low_gradient(n)) &&
           n->in[0]->op == Ogmm_wgrad &&
           vec_len(fuse->user[n->in[0]->id]) == 1 && feeds(g, n->in[0], n) &&
           fuse->target->updates(g, n->in[0], NULL);
}

static UpdateSearch search_update(Fuse *fuse, const Node *n)
{
    UpdateSearch search = { .fuse = fuse, .gradient = n };

    search.stamp = ++fuse->stamp;
    if (!is_own(fuse, n) || !take_all(&search))
        search.member = NULL;
    return search;
}

Node **product_update(Fuse *fuse, const Node *n)
{
    return search_update(fuse, n).member;
}

/* ---- numbers that an update reads ---------------------------------------- */

static void move_before(Graph *g, Node *n, Node ***to)
{
    if (n->mark || n->reg < REGbody)
        return;
    n->mark = 1;
    for (int k = 0; k < n->nin; k++)
        move_before(g, n->in[k], to);
    n->reg = REGpre;
    vec_push(g->arena, *to, n);
}

static void move_numbers(Graph *g, Node *const *member, Node ***to)
{
    for (size_t i = 0; i < vec_len(member); i++)
        for (int k = 0; k < member[i]->nin; k++)
            if (is_ready(member[i]->in[k]) && member[i]->in[k]->reg == REGpost)
                move_before(g, member[i]->in[k], to);
}

/* The moved stand before the body. */
static void place_moved(Graph *g, Node **moved)
{
    Node **old = g->node;
    size_t at = 0;

    g->node = NULL;
    while (at < vec_len(old) && old[at]->reg < REGbody)
        vec_push(g->arena, g->node, old[at++]);
    for (size_t i = 0; i < vec_len(moved); i++)
        vec_push(g->arena, g->node, moved[i]);
    for (; at < vec_len(old); at++)
        if (!old[at]->mark)
            vec_push(g->arena, g->node, old[at]);
    g_renumber(g);
}

/* Its sums of squares are those of other tiles. */
static void fit_squares(const Fuse *fuse, const Node *gradient)
{
    const Graph *g = fuse->graph;
    const Node *n = gradient->in[0];
    Node **user = fuse->user[gradient->id];

    for (size_t i = 0; i < vec_len(user); i++)
        if (is_squares(user[i]))
            user[i]->dim[0].n = user[i]->dim[0].n /
                                fuse->target->squares(g, n, 0) *
                                fuse->target->squares(g, n, 1);
}

static void say(const Graph *g, const Node *n)
{
    why(g, n,
        "is not stored: its product updates %s with it, which saves %.1f us",
        n->of, 1e6 * 2 * (double)local_bytes(g, n) / machine_of(g)->memory);
}

static void say_stored(const Graph *g, const Node *n, const Node *other)
{
    why(g, n,
        "is stored: the blocks that %%%s rounds %s in are no tiles of its "
        "product",
        other->in[0]->name, n->of);
}

void pass_product_update(Graph *g)
{
    Arena *a = arena_new();
    Node **moved = NULL;

    if (pass_target(g)->updates && g->opts && program_turns(g) == 1) {
        Fuse f = fuse_begin(g, a);
        for (int i = 0; i < f.count; i++)
            g->node[i]->mark = 0;
        for (int i = 0; i < f.count; i++) {
            const UpdateSearch search = search_update(&f, g->node[i]);
            if (search.member) {
                say(g, g->node[i]);
                fit_squares(&f, g->node[i]);
                move_numbers(g, search.member, &moved);
            } else if (search.other)
                say_stored(g, g->node[i], search.other);
        }
        place_moved(g, moved);
    }
    arena_free(a);
}
