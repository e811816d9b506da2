/* product_update.c: fuses the optimizer update of weights with the product of
 * their gradient, which is then never stored:
 *
 *     body  %d = gmm_wgrad %x %y             one kernel: for each tile of %d it
 *           %g = accum %d                    reads %m, %w, computes their new
 *     post  %n = add (mul %m b1) (mul %g c)  values and stores these
 *           write %m %n
 *           write %w ..
 *
 * Conditions: the body runs once; the gradient is this product and no rank adds
 * to it; its elementwise users end in writes of tensors with its layout
 * (AdamW); and the scalars that they read (rate, corrections of moments) are
 * known before the body and move to `pre`. A step that may be skipped reads a
 * word of `post`, so train.skip_bad=0 and no clipping are required. A weight
 * stored in FP8 (quant/primary.c) is quantized there too, if a tile is a block:
 *
 *     post  %b = quantize_blocks (cast %n to=bf16)
 *           write %w (part %b 0)
 *           write %s (part %b 1)
 *
 * Values are equal to the bit. Measured: decisions/update-in-product.md. */
#include <math.h>

#include "kernels.h"

typedef struct UpdateSearch {
    Fuse *fuse;
    const Node *gradient;
    Node **member;       /* vec */
    int stamp;           /* Fuse.seen of members */
    const Node *rounded; /* quantize_blocks among the members; null: none */
    const Node *other;   /* a quantize_blocks that the kernel cannot run */
} UpdateSearch;

/* ---- nodes of an update -------------------------------------------------- */

static int is_update_dtype(Dtype dt)
{
    return dt == Df32 || dt == Dbf16 || dt == Di16;
}

/* Has n the gradient's elements on every rank, in the same order? */
static int lies_as(const UpdateSearch *search, const Node *n)
{
    const Node *gradient = search->gradient;
    int same = same_order(n, gradient);

    for (int d = 0; d < n->nd && same; d++)
        same = n->dim[d].n == gradient->dim[d].n;
    return same && n->sh == gradient->sh;
}

/* Is n an fp32 scalar that does not depend on the body? */
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

/* Is n arithmetic whose text does not depend on its context? */
static int is_plain(const Node *n)
{
    return optab[n->op].cls == EW && optab[n->op].expr && !is_view(n) &&
           (n->op == Ocast || optab[n->op].nattr == 0) &&
           !op_is(n->op, OPcmp) && !op_is(n->op, OPapprox) && n->op != Opow &&
           n->op != Owhere && n->op != Obroadcast;
}

/* May the update contain this quantize_blocks? One value of the update may be
 * quantized in its own layout, with the blocks stored over the old ones. */
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

/* ---- the whole update ---------------------------------------------------- */

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

/* Adds users of n in post: they read the old values of written tensors, so all
 * of them must be members. */
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

/* Is n a gradient that only its product needs to hold? */
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

/* ---- scalars of an update ------------------------------------------------ */

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

/* Moves the scalars before the body. */
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

/* Adjusts the number of partial sums of squares to the kernel's tiles. */
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
