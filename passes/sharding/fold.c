/* fold.c: maps the dense and the expert grid to the ranks (mesh.c). The dp
 * ranks run dp micro-batches at once, so the axis `micro` of every
 * data-dependent tensor grows to dp, and ragged rows with it. Parameters
 * selected by an index or a batch of experts are on the expert grid:
 *
 *     %w1 = param [expert hidden ffn]
 *     %y  = gmm %rows %w1 %map hidden        w1: expert over ep, ffn over etp
 *     %z  = dot %x %gate hidden              gate: dense (result: experts) */
#include "../../ir/settings/keys.h"
#include "sharding.h"

/* ---- the mesh ------------------------------------------------------------ */

Mesh *fold_mesh(Graph *g)
{
    static const char *const keys[NMESH] = {
        [Mtp] = "fold.tp", [Mcp] = "fold.cp",   [Mdp] = "fold.dp",
        [Mpp] = "fold.pp", [Metp] = "fold.etp", [Mep] = "fold.ep",
    };
    int64_t size[NMESH] = { 0 }, world = 0;
    const Loc *loc = NULL;

    for (int i = 0; i < NMESH; i++) {
        if (!keys[i] || !opts_given(g->opts, keys[i]))
            continue;
        size[i] = opts_int(g->opts, keys[i]);
        loc = opts_loc(g->opts, keys[i]) ? opts_loc(g->opts, keys[i]) : loc;
    }
    if (opts_given(g->opts, "world"))
        world = opts_int(g->opts, "world");
    const char *order = opts_str(g->opts, "fold.order");
    int64_t hybrid = 0, host = opts_int(g->opts, "fold.host");
    if (opts_given(g->opts, "fold.hybrid")) {
        hybrid = opts_int(g->opts, "fold.hybrid");
        loc = opts_loc(g->opts, "fold.hybrid");
    }
    if (hybrid || host)
        order = strf(g->arena, "%s:%lld", order, (long long)hybrid);
    if (host)
        order = strf(g->arena, "%s:%lld", order, (long long)host);
    Mesh *m = mesh_new(g->arena, world, size, order, loc);
    if (host > 0 && host < m->world && m->world % host)
        err(opts_loc(g->opts, "fold.host"),
            "fold.host=%ld does not divide %ld ranks: every host has the same "
            "number",
            host, m->world);
    return m;
}

/* ---- micro-batches ------------------------------------------------------- */

/* Does dim d grow with micro? Rows are as many as their index has elements. */
static int grows(const Node *n, int d, const Axis *micro)
{
    const Axis *a = n->dim[d].a;

    return a == micro ||
           (g_isrow(a) && n->map && dim_of(n->map->in[0], micro) >= 0);
}

static void widen(Node **node, const Axis *micro, int64_t dp)
{
    for (size_t i = 0; i < vec_len(node); i++)
        for (int d = 0; d < node[i]->nd; d++)
            if (grows(node[i], d, micro))
                node[i]->dim[d].n *= dp;
}

/* Widens bodies, each once: a composite and its gradient share one. */
static void widen_bodies(Graph *g, const Axis *micro, int64_t dp)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->body)
            for (size_t k = 0; k < vec_len(g->node[i]->body->node); k++)
                g->node[i]->body->node[k]->mark = 0;
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Graph *graph = g->node[i]->body;
        if (!graph || !vec_len(graph->node) || graph->node[0]->mark)
            continue;
        widen(graph->node, micro, dp);
        graph->node[0]->mark = 1;
    }
}

static void spread_batches(Graph *g)
{
    int64_t dp = g->mesh->size[Mdp];
    const Axis *micro = g_micro(g);

    micro_turns(g);
    widen(g->node, micro, dp);
    widen_bodies(g, micro, dp);
}

/* ---- pieces -------------------------------------------------------------- */

/* Is n a comparison of positions along an axis with positions along its renamed
 * axis, such as a causal mask? */
static int masks(const Node *n, const Axis *a)
{
    int d = dim_of(n, a);

    for (int i = 0; i < n->nd && d >= 0 && op_is(n->op, OPcmp); i++)
        if (n->dim[i].a != a && n->dim[i].a->root == a)
            return 1;
    return 0;
}

static const Node *mask_of(Node *const *node, const Axis *a)
{
    const Node *m = NULL;

    for (size_t i = 0; i < vec_len(node) && !m; i++)
        m = masks(node[i], a) ? node[i]
            : node[i]->body   ? mask_of(node[i]->body->node, a)
                              : NULL;
    return m;
}

/* Returns the largest size of axis a; its parts may be shorter. */
static int64_t longest(const Graph *g, const Axis *a)
{
    int64_t n = a->n;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        int d = dim_of(g->node[i], a);
        if (d >= 0 && g->node[i]->dim[d].n > n)
            n = g->node[i]->dim[d].n;
    }
    return n;
}

/* Gives ranks of cp an early and a late piece of the sequence, which balances
 * the work under a causal mask. */
static void balance(Graph *g)
{
    int64_t parts = 2 * g->mesh->size[Mcp] * g->mesh->size[Mtp];
    int asked = opts_given(g->opts, "fold.balance");
    Axis *a = g_role(g, ROLEseq);

    if (!a || g->mesh->size[Mcp] == 1 ||
        opts_cp_balance(g->opts) == BALANCEcontiguous)
        return;
    const Node *mask = asked ? NULL : mask_of(g->node, a);
    int64_t n = longest(g, a);
    if (n % parts == 0 && (asked || mask))
        a->zigzag = 1;
    else if (asked)
        err(opts_loc(g->opts, "fold.balance"),
            "fold.balance=zigzag cuts axis "
            "'%s' into 2 cp tp = %lld parts, which do not divide %lld",
            a->name, (long long)parts, (long long)n);
    else if (mask)
        why(g, mask,
            "cp's ranks have unequal work: 2 cp tp = %lld does not "
            "divide '%s' of %lld",
            (long long)parts, a->name, (long long)n);
}

/* ---- grids --------------------------------------------------------------- */

/* Returns an axis of experts that both operands of a dot without indexed
 * weights have and that is not contracted. */
static Axis *batch_of_experts(const Node *n)
{
    int whole = n->op == Odot && n->in[0]->op != Opick && n->in[1]->op != Opick;

    for (int i = 0; whole && i < n->nd; i++) {
        Axis *a = n->dim[i].a;
        if (a->role == ROLEchoice && dim_of(n->in[0], a) >= 0 &&
            dim_of(n->in[1], a) >= 0)
            return a;
    }
    return NULL;
}

static void pass_on(Axis **by, const Node *n, Axis *a)
{
    for (int k = 0; k < n->nin; k++)
        if (dim_of(n->in[k], a) >= 0)
            by[n->in[k]->id] = a;
}

/* Returns [id]: the axis along which weights are picked, for these weights and
 * for values from which they are computed elementwise; null: others. */
static Axis **picked(Graph *g)
{
    Axis **by = alloc(g->arena, (vec_len(g->node) + 1) * sizeof *by);

    g_renumber(g);
    for (size_t i = vec_len(g->node); i-- > 0;) {
        Node *n = g->node[i];
        Axis *a = batch_of_experts(n);
        if (n->op == Ogmm)
            by[n->in[1]->id] = n->in[2]->at.route.axis;
        else if (n->op == Opick)
            by[n->in[0]->id] = n->at.pick.axis;
        else if (a)
            pass_on(by, n, a);
        else if (by[i] && (optab[n->op].cls == EW || n->op == Odequantize))
            pass_on(by, n, by[i]);
    }
    return by;
}

/* Returns a node that reads weights picked along a other than by an index;
 * null: none. */
static const Node *used_whole(const Graph *g, Axis *const *by, const Axis *a)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        int makes = by[i] == a && optab[n->op].cls == EW;
        for (int k = 0; k < n->nin && !makes; k++)
            if (by[n->in[k]->id] == a && (n->op != Opick || k))
                return n;
        if (by[i] == a && n->op != Oparam && !makes)
            return n;
    }
    return NULL;
}

/* Returns a node of a body that names the axis; null: none. */
static const Node *naming(const Graph *body, const Axis *a)
{
    const Node *found = NULL;

    for (size_t i = 0; i < vec_len(body->node) && !found; i++) {
        const Node *n = body->node[i];
        found = n->op == Ocall     ? naming(n->body, a)
                : attrs_name(n, a) ? n
                                   : NULL;
    }
    return found;
}

/* Returns a node of the optimizer of weights picked along a that names a, such
 * as a sum over experts; null: none. */
static const Node *updated_whole(Graph *g, Axis *const *by, const Axis *a)
{
    const Node **optimizers = optimizers_of(g), *found = NULL;

    for (size_t i = 0; i < vec_len(g->node) && optimizers && !found; i++) {
        const Node *n = g->node[i];
        if (by[i] != a || n->op != Oparam || is_frozen(g, n->at.param.path))
            continue;
        found = naming(update_rule(g, optimizers, g_param(g, n->at.param.path))
                           .optimizer->body,
                       a);
    }
    return found;
}

/* Returns the number of ranks nearest to ep that divides `ranks` and can hold n
 * experts; 1 is one. */
static int64_t nearest_legal(int64_t n, int64_t ranks, int64_t ep, int uneven)
{
    for (int64_t d = 0;; d++)
        for (int up = 0; up < 2; up++) {
            int64_t to = up ? ep + d : ep - d;
            if (to > 0 && ranks % to == 0 &&
                (n % to == 0 || (uneven && to <= n)))
                return to;
        }
}

static void to_expert_grid(Graph *g, Param *p, Axis *a, Axis *const *by)
{
    int64_t ep = g->mesh->size[Mep], n = 0;

    for (int d = 0; d < p->nd; d++)
        if (p->dim[d].a == a)
            n = p->dim[d].n;
    p->expert = a;
    if (n % ep == 0)
        return;
    const Node *whole = used_whole(g, by, a),
               *updated = updated_whole(g, by, a);
    int64_t ranks = ep * g->mesh->size[Medp];
    note(p->loc, "%s has the axis", p->path);
    if (whole)
        note(whole->loc, "unequal parts need weights that only an index reads");
    if (updated)
        note(updated->loc,
             "unequal parts need an optimizer that does not name the axis");
    const char *form = "%lld, more than the %lld of axis '%s'";
    if (ep <= n)
        form = "%lld and does not divide the %lld of axis '%s'";
    err(opts_loc(g->opts, "fold.ep"), "fold.ep is %s (nearest legal: %lld)",
        strf(g->arena, form, (long long)ep, (long long)n, a->name),
        (long long)nearest_legal(n, ranks, ep, !whole && !updated));
}

void fold_experts(Graph *g)
{
    Axis **by = picked(g);

    for (size_t i = vec_len(g->node); i-- > 0;)
        if (by[i] && g->node[i]->op == Oparam)
            to_expert_grid(g, g_param(g, g->node[i]->at.param.path), by[i], by);
}

/* ---- experts that ep does not divide ------------------------------------- */

static int uneven(const Axis *a, int64_t ep)
{
    return a->n > ep && a->n % ep;
}

/* Marks constants, parameters, and elementwise functions of them. */
static void mark_weights(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        n->mark = n->op == Oparam || n->op == Oconst ||
                  (n->nin && optab[n->op].cls == EW);
        for (int k = 0; k < n->nin; k++)
            n->mark &= n->in[k]->mark;
    }
}

/* Returns the number of axes of dot n that both operands have. */
static int batch_axes(const Node *n)
{
    int count = 0;

    for (int i = 0; i < n->nd; i++)
        count +=
            has_dim(n->in[0], n->dim[i].a) && has_dim(n->in[1], n->dim[i].a);
    return count;
}

/* Returns the i32 index along a, with the axes that dot n has from its operand
 * rows. */
static Node *own_numbers(Graph *g, const Node *n, const Node *rows, Axis *a)
{
    Node like = { 0 };

    for (int d = 0; d < rows->nd; d++)
        if (has_dim(n, rows->dim[d].a))
            like.dim[like.nd++] = rows->dim[d];
    return g_broadcast(g, g_iota(g, a, n), &like);
}

/* Rewrites weights of a batch of experts as picked by the experts' own indices,
 * so that ep need not divide their number:
 *
 *     %y = dot %x %w hidden      =>      %e = iota expert    [expert slot]
 *                                        %p = pick %w %e
 *                                        %y = dot %x %p hidden */
static void pick_batches(Graph *g, int64_t ep)
{
    size_t count = vec_len(g->node);

    mark_weights(g);
    for (size_t i = 0; i < count; i++) {
        Node *n = g->node[i];
        Axis *a = batch_of_experts(n);
        int w = a && n->in[1]->mark;
        if (!a || !uneven(a, ep) || n->in[0]->mark == n->in[1]->mark ||
            batch_axes(n) > 1)
            continue;
        Node *in[2] = { n->in[w], own_numbers(g, n, n->in[!w], a) };
        n->in[w] = g_placed(g_node(g, Opick, n->loc, 2, in), n);
        n->in[w]->at.pick.axis = a;
        infer(g, n->in[w]);
    }
    g_sort(g);
}

static void pad_dims(Dim *dim, int nd, const Axis *a, Axis *padded)
{
    for (int d = 0; d < nd; d++)
        if (dim[d].a == a)
            dim[d] = (Dim){ padded, padded->n };
}

static void pad_picked(Graph *g, Axis *const *by, const Axis *a, Axis *padded)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->op == Opick && n->at.pick.axis == a)
            n->at.pick.axis = padded;
        if (by[i] != a)
            continue;
        pad_dims(n->dim, n->nd, a, padded);
        Param *p = n->op == Oparam ? g_param(g, n->at.param.path) : NULL;
        if (p)
            pad_dims(p->dim, p->nd, a, padded);
    }
}

/* Pads weights that only an index reads to equally many experts on each
 * rank. */
static void pad_experts(Graph *g)
{
    int64_t ep = g->mesh->size[Mep];
    pick_batches(g, ep);
    Axis **by = picked(g);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        Axis *a = g->node[i]->op == Opick ? g->node[i]->at.pick.axis : NULL;
        if (!a || !uneven(a, ep) || a->root != a || used_whole(g, by, a) ||
            updated_whole(g, by, a))
            continue;
        pad_picked(g, by, a, g_padded(g, a, ep));
        why(g, g->node[i],
            "%lld of ep's %lld ranks hold %lld of '%s', others "
            "%lld",
            (long long)(a->n % ep), (long long)ep, (long long)(a->n / ep + 1),
            a->name, (long long)(a->n / ep));
    }
}

void fold_model(Graph *g)
{
    g->mesh = fold_mesh(g);
    pad_experts(g);
    fold_experts(g);
    g->mesh = NULL;
}

void experts_like(Graph *g, const Graph *step)
{
    for (size_t i = 0; i < vec_len(step->param); i++) {
        const Param *p = step->param[i];
        Param *own = p->expert ? g_param(g, p->path) : NULL;
        for (int d = 0; own && d < p->nd; d++)
            if (p->dim[d].a == p->expert)
                own->expert = own->dim[d].a;
    }
}

/* Puts masters and moments on their parameter's grid. */
static void mark_optimizer(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->param); i++) {
        Param *p = g->param[i];
        const char *owner = p->of ? p->of : p->bucket;
        const Param *of = 1u << p->kind & COMPANIONS ? g_param(g, owner) : NULL;
        if (of)
            p->expert = of->expert;
    }
}

void pass_fold(Graph *g)
{
    g->mesh = fold_mesh(g);
    fold_experts(g);
    mark_optimizer(g);
    balance(g);
    if (g->prog < PGinit)
        spread_batches(g);
}
