/* primary.c: weights stored as e4m3 and scales (precision.primary). If only FP8
 * products read a weight (fp8.c), no bf16 copy of it is kept: the parameter is
 * the e4m3 values, a second parameter `scales.w` the inverse scales, by which
 * dequantize multiplies. ZeRO gathers these bytes. The optimizer computes both
 * from the fp32 master:
 *
 *     %w = param w             =>     %q = param w                      e4m3
 *     %y = dot %x %w                  %s = param scales.w
 *                                     %w = cast (dequantize %q %s) to=real
 *     write w (cast %m to=real)       %y = dot %x %w
 *                                     %b = cast %m to=real
 *                                     %t = pow2_scale (amax %b)
 *                                     write w (quantize %b %t)
 *                                     write scales.w 1/%t
 *
 * Products read the same bits as if %b were quantized in every step. Blocks of
 * 128x128 are also blocks of the transpose, so the product of the input
 * gradient uses the same values and scales.
 *
 * A ZeRO rank has a contiguous run of the concatenated members of a bucket, so
 * a block may span the runs of several ranks. Each rank computes the amax of
 * its part, an all-reduce takes the maximum, and each rank quantizes its run
 * with the scales of its blocks. With ZeRO-3 a rank writes its shard; the
 * scales are whole on every rank:
 *
 *     %r = unpack (magnitude %b) at=.. largest=1     [hidden heads dim] dp:max
 *     %t = pow2_scale (pack (amax %r) ..)            all-reduced: of blocks
 *     %q = cast (mul %b (pack (spread (unpack %t)) ..)) to=e4m3  [flat] dp:flat
 *     write w (unpack %q at=..)                      gathered: bytes
 *
 * Checkpoints store the masters only, so they do not depend on
 * precision.primary; the program `weights` computes values and scales from
 * loaded masters. */
#include "../../ir/settings/keys.h"
#include "placement.h"

/* ---- a weight and its blocks --------------------------------------------- */

static int is_primary(const Param *param)
{
    return param->kind == TKnumbers;
}

static Node *weight_node(Graph *g, const char *path)
{
    const Param *p = g_param(g, path);
    Node *n = g_node(g, Oparam, p->loc, 0, NULL);

    n->at.param.path = p->path;
    n->dt = p->dt;
    n->nd = p->nd;
    memcpy(n->dim, p->dim, sizeof n->dim);
    return infer(g, n);
}

static const Param *companion_of(const Graph *g, const Param *param,
                                 TensorKind kind)
{
    const Param *p = param_companion(g, param, kind);

    if (!p)
        die("%s has no %s", param->path, tensor_kinds[kind].name);
    return p;
}

static const char *scales_of(const Graph *g, const Param *param)
{
    return companion_of(g, param, TKscales)->path;
}

/* The blocks of a weight, as in products (fp8.c). */
static struct amax_attrs blocks_of(Graph *g, const Param *param)
{
    Node x = { .op = Oparam, .nd = param->nd };
    Axis *cut[2], *count[2];

    memcpy(x.dim, param->dim, sizeof x.dim);
    if (axes_cut(SCALEsquare, NULL, &x, cut) != 2)
        die("%s has no blocks", param->path);
    for (int i = 0; i < 2; i++)
        count[i] = axis_of_blocks(g, cut[i], SCALEBLOCK);
    return (struct amax_attrs){ SCALEsquare, g_axes(g, cut, 2),
                                g_axes(g, count, 2) };
}

static void declare_scales(Graph *g, const Param *param)
{
    struct amax_attrs blocks = blocks_of(g, param);
    Param *p = alloc(g->arena, sizeof *p);

    if (param_companion(g, param, TKscales))
        return;
    *p = (Param){ .path =
                      intern(strf(g->arena, "%s%s",
                                  tensor_kinds[TKscales].prefix, param->path)),
                  .kind = TKscales,
                  .dt = Df32,
                  .nd = param->nd,
                  .of = param->path,
                  .loc = param->loc };
    for (int d = 0; d < p->nd; d++) {
        int at = axes_at(&blocks.axes, param->dim[d].a);
        p->dim[d] =
            at < 0 ? param->dim[d]
                   : (Dim){ blocks.blocks.v[at],
                            (param->dim[d].n + SCALEBLOCK - 1) / SCALEBLOCK };
    }
    vec_push(g->arena, g->param, p);
}

/* A node of op with the parameter's blocks. y: second operand, or null. */
static Node *in_blocks(Graph *g, const Param *param, Op op, const Loc *loc,
                       Node *x, Node *y)
{
    Node *n = g_node(g, op, loc, y ? 2 : 1, (Node *[]){ x, y });

    n->at.amax = blocks_of(g, param);
    return n;
}

/* The quantized values times their inverse scales. */
static Node *dequantized(Graph *g, const Param *param, Node *numbers,
                         Node *inverse, const Loc *loc)
{
    return infer(g, in_blocks(g, param, Odequantize, loc, numbers, inverse));
}

/* ---- choice -------------------------------------------------------------- */

/* Path -> the reason why a weight cannot be stored as e4m3: a reader that needs
 * bf16. */
static Table *other_readers(const Placement *placement)
{
    static const char *const other = "not only products read it",
                             *const cut = "a product reads it in bf16",
                             *const units = "several stages read it";
    Graph *g = placement->g;
    Table *why = table_new(g->arena), *unit = table_new(g->arena);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        for (int k = 0; k < n->nin; k++) {
            if (n->in[k]->op != Oparam)
                continue;
            uint64_t key = KEYP(intern(n->in[k]->at.param.path));
            const Scope **at = (const Scope **)table_at(unit, key);
            const char *wrong = weight_at(g, n) != k ? other
                                : !can_cut(placement, n, k, USEweight) ||
                                        !can_cut(placement, n, !k, USEvalue)
                                    ? cut
                                : g->stages && *at && *at != n->scope->unit
                                    ? units
                                    : NULL;
            *at = n->scope->unit;
            if (wrong)
                *table_at(why, key) = (void *)(uintptr_t)wrong;
        }
    }
    return why;
}

static Table *trained(const Graph *g)
{
    Table *t = table_new(g->arena);

    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == Oaccum && g->node[i]->of)
            *table_at(t, KEYP(intern(g->node[i]->of))) = g->node[i];
    return t;
}

/* Does tp or etp split a block across ranks? bucket_numbers() handles splits by
 * buckets. */
static int is_cut_inside(Graph *g, const Param *param)
{
    const Shard *sh = param_type(g, param);
    struct amax_attrs blocks = blocks_of(g, param);

    for (int d = 0; d < param->nd; d++) {
        int64_t parts = 1;
        for (int t = 0; t < g->mesh->natom; t++)
            if (sh[t].k == S && sh[t].a == param->dim[d].a)
                parts *= g->mesh->atom[t].size;
        if (parts > 1 && axes_at(&blocks.axes, param->dim[d].a) >= 0 &&
            param->dim[d].n % (parts * SCALEBLOCK))
            return 1;
    }
    return 0;
}

/* Chooses the weights, each with a why() line. */
static void choose(const Placement *placement)
{
    Graph *g = placement->g;
    Table *other = other_readers(placement), *sum = trained(g);
    size_t n = vec_len(g->param);

    for (size_t i = 0; i < n; i++) {
        Param *p = g->param[i];
        const WeightChoice *v = table_get(placement->choice, KEYP(p));
        if (!v || v->stays)
            continue;
        const char *stays = table_get(other, KEYP(p->path));
        if (!stays && !table_get(sum, KEYP(p->path)))
            stays = "it is not trained, so no master makes it";
        if (!stays && is_cut_inside(g, p))
            stays = "ranks of tp or etp cut its blocks";
        if (stays)
            why(g, v->n, "%s lives in bf16: %s", p->path, stays);
        else {
            p->kind = TKnumbers;
            why(g, v->n, "%s lives as numbers of 8 bits and scales", p->path);
        }
    }
}

int has_numbers_of_weights(const Graph *g, const Recipe *recipe)
{
    const ScaledDtype *to = recipe ? &recipe->use[USEweight] : NULL;

    return to && opts_dtype(g->opts) == Dbf16 && to->to == De4m3 &&
           to->layout == SCALEsquare && to->formula == FORMULApow2 &&
           to->rounding == ROUNDnearest;
}

static void choose_primary(Graph *g)
{
    Placement placement;
    Mesh *was = g->mesh;

    placement_new(g, &placement);
    if (opts_primary_weights(g->opts) == PRIMARYnone ||
        !has_numbers_of_weights(g, placement.recipe))
        return;
    g->mesh = fold_mesh(g);
    fold_experts(g);
    placement.real = Dreal; /* pass precision decides it later */
    judge_weights(&placement);
    choose(&placement);
    g->mesh = was;
}

/* ---- readers ------------------------------------------------------------- */

/* A reader has its own dequantize, so that the bf16 value is not kept between
 * readers. */
static Node *values_for(Graph *g, const Node *n, Node *x)
{
    const Param *p = g_param(g, x->at.param.path);
    Node *s = weight_node(g, scales_of(g, p));
    Node *d = dequantized(g, p, x, s, n->loc);
    Node *values = g_placed(g_cast(g, g_placed(d, n), Dreal), n);

    d->again = values->again = is_backward(n);
    return values;
}

/* Replaces the operands of readers. Dead nodes stay: sums of gradients have no
 * readers yet. */
static void read_numbers(Graph *g)
{
    Node **old = g->node;

    g->node = NULL;
    for (size_t i = 0; i < vec_len(old); i++) {
        Node *n = old[i];
        for (int k = 0; k < n->nin; k++)
            if (n->in[k]->op == Oparam && n->in[k]->dt == De4m3)
                n->in[k] = values_for(g, n, n->in[k]);
        vec_push(g->arena, g->node, n);
    }
    g_renumber(g);
}

void pass_primary(Graph *g)
{
    size_t count = vec_len(g->param);
    int any = 0;

    if (g->prog == PGstep)
        choose_primary(g);
    for (size_t i = 0; i < count; i++) {
        if (!is_primary(g->param[i]))
            continue;
        g->param[i]->dt = De4m3;
        if (!g->param[i]->bucket || g->param[i]->at >= 0)
            declare_scales(g, g->param[i]); /* for weights, not for buckets */
        any = 1;
    }
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == Oparam)
            g->node[i]->dt = g_param(g, g->node[i]->at.param.path)->dt;
    if (any)
        read_numbers(g);
}

void primary_like(Graph *g, const Graph *step)
{
    for (size_t i = 0; i < vec_len(step->param); i++) {
        const Param *p = step->param[i];
        Param *own = is_primary(p) ? g_param(g, p->path) : NULL;
        if (own)
            own->kind = TKnumbers; /* pass primary does the rest */
    }
}

/* ---- values and scales from masters -------------------------------------- */

static Node *made(const TrainStep *step, Node *n)
{
    n->scope = step->scope;
    return in_post(infer(step->g, n));
}

static void write_weight(TrainStep *step, const char *path, Node *value)
{
    post_set(step, in_post(weight_node(step->g, path)), value);
}

/* The amax of each block of x, a weight. */
static Node *largest(const TrainStep *step, const Param *param, Node *x)
{
    return made(step, in_blocks(step->g, param, Oamax, step->l, x, NULL));
}

/* The scales of blocks with this amax. */
static Node *scale_of_blocks(TrainStep *step, Node *amax)
{
    return post_op2(step, Opow2_scale, amax, post_num(step, E4M3MAX));
}

/* The inverse scales of blocks with this amax. */
static Node *inverse_of(TrainStep *step, Node *amax)
{
    Node *scale = scale_of_blocks(step, amax);

    return post_op2(step, Odiv, post_num(step, 1), scale);
}

/* Writes the inverse scales. Returns the scales, exact powers of two. */
static Node *scale_of(TrainStep *step, const Param *param, Node *inverse)
{
    write_weight(step, scales_of(step->g, param), inverse);
    return post_op2(step, Odiv, post_num(step, 1), inverse);
}

static Node *quantized(const TrainStep *step, const Param *param, Node *x,
                       Node *scale)
{
    Node *n = in_blocks(step->g, param, Oquantize, step->l, x, scale);

    n->at.quantize.to = De4m3;
    return made(step, n);
}

/* Broadcasts the scales of blocks to the elements of a weight. */
static Node *spread(const TrainStep *step, const Param *param, Node *scale)
{
    Node *n = in_blocks(step->g, param, Ospread, step->l, scale, NULL);

    n->nd = param->nd;
    memcpy(n->dim, param->dim, sizeof n->dim);
    return made(step, n);
}

/* A bucket of per-block tensors x[k], one a member, with axes of blocks; whole
 * on all ranks except those that shard members. */
static Bucket blocks_in_bucket(Graph *g, const Bucket *bucket, Node *const *x)
{
    Bucket b = { .own = bucket->own, .ranks = bucket->ranks };
    size_t n = vec_len(bucket->param);
    int cuts = bucket->ncut / (int)n;

    for (size_t k = 0; k < n; k++) {
        const Param *p = bucket->param[k];
        for (int d = 0; d < p->nd; d++)
            vec_push(g->arena, b.order, x[k]->dim[d].a);
        for (int c = 0; c < cuts; c++) {
            Node like = { .nd = p->nd };
            memcpy(like.dim, p->dim, sizeof like.dim);
            int d = dim_of(&like, bucket->cut[k * (size_t)cuts + (size_t)c]);
            vec_push(g->arena, b.cut, x[k]->dim[d].a);
        }
        vec_push(g->arena, b.param, (Param *)(uintptr_t)p);
        b.size +=
            (g_elems(x[k]) / b.ranks + PACKALIGN - 1) / PACKALIGN * PACKALIGN;
    }
    b.norder = (int)vec_len(b.order);
    b.ncut = (int)vec_len(b.cut);
    b.flat = g_axis(g, strf(g->arena, "blocks'%lld", (long long)b.size));
    return b;
}

/* Replaces each x[k], a rank's partial amax of the blocks of a member, by the
 * inverse scales, with one all-reduce for the bucket. */
static void find_inverses(TrainStep *step, const Bucket *bucket, Node **x)
{
    Graph *g = step->g;
    Bucket b = blocks_in_bucket(g, bucket, x);
    Node *amax = made(step, bucket_pack(g, &b, x));
    Node *all = inverse_of(step, amax);
    int cuts = b.ncut / (int)vec_len(b.param), at = 0;

    for (size_t k = 0; k < vec_len(b.param); k++) {
        Node *n = g_node(g, Ounpack, step->l, 1, &all);
        n->at.unpack = (struct unpack_attrs){
            .order = { x[k]->nd, b.order + at },
            .cut = { cuts, b.cut + (size_t)cuts * k },
            .at = bucket_at(amax, (int)k),
        };
        at += x[k]->nd;
        n->dt = Df32;
        n->nd = x[k]->nd;
        memcpy(n->dim, x[k]->dim, sizeof n->dim);
        x[k] = made(step, n);
    }
}

/* The quantized values of a bucket. */
static Node *bucket_numbers(TrainStep *step, const Bucket *bucket, Node *x)
{
    Graph *g = step->g;
    Node *size = post_op1(step, Omagnitude, x), *of[MAXIN];
    size_t n = vec_len(bucket->param);

    for (size_t k = 0; k < n; k++) {
        Node *part = bucket_unpack(g, bucket, k, size);
        part->at.unpack.largest = 1;
        of[k] = largest(step, bucket->param[k], made(step, part));
    }
    find_inverses(step, bucket, of);
    for (size_t k = 0; k < n; k++)
        of[k] = spread(step, bucket->param[k],
                       scale_of(step, bucket->param[k], of[k]));
    Node *s = made(step, bucket_pack(g, bucket, of));
    x = made(step, g_cast(g, x, Df32));
    return made(step, g_cast(g, post_op2(step, Omul, x, s), De4m3));
}

int bucket_is_primary(const Bucket *bucket)
{
    return is_primary(bucket->param[0]);
}

void primary_write(TrainStep *step, const Bucket *bucket, Node *value)
{
    const Param *first = bucket->param[0];
    Node *x = made(step, g_cast(step->g, value, Dreal)), *q;

    if (!bucket->flat) {
        Node *s = scale_of_blocks(step, largest(step, first, x));
        write_weight(step, scales_of(step->g, first),
                     post_op2(step, Odiv, post_num(step, 1), s));
        write_weight(step, first->path, quantized(step, first, x, s));
        return;
    }
    q = bucket_numbers(step, bucket, x);
    if (g_param(step->g, bucket->name)) {
        write_weight(step, bucket->name, q);
        return;
    }
    for (size_t k = 0; k < vec_len(bucket->param); k++)
        write_weight(step, bucket->param[k]->path,
                     made(step, bucket_unpack(step->g, bucket, k, q)));
}

/* ---- metrics ------------------------------------------------------------- */

static Node *before_step(Node *n, const Scope *scope)
{
    n->reg = REGpre;
    n->scope = scope;
    return n;
}

/* The bf16 value of a weight in this step, from its master. */
static Node *value_before(Graph *g, const Param *param, const Scope *scope)
{
    const Param *master = companion_of(g, param, TKmaster);
    Node *n = g_node(g, Ostate, param->loc, 0, NULL);
    size_t k = 0;

    n->at.state.path = master->path;
    n->dt = master->dt;
    n->nd = master->nd;
    memcpy(n->dim, master->dim, sizeof n->dim);
    before_step(infer(g, n), g_scope(g, text_scope(master->path)));
    n = before_step(g_cast(g, n, Dbf16), scope);
    if (master->of)
        return n;
    Bucket *b = bucket_named(g, master->bucket);
    while (b->param[k] != param)
        k++;
    return before_step(bucket_unpack(g, b, k, n), scope);
}

static void watch_weight(const Placement *placement, const Param *param,
                         const Scope *scope)
{
    Graph *g = placement->g;
    Node *x = value_before(g, param, scope);
    Node *a = in_blocks(g, param, Oamax, param->loc, x, NULL);

    before_step(infer(g, a), scope);
    Node *most = g_const(g, param->loc, Df32, E4M3MAX);
    Node *s = g_ew(g, Opow2_scale, param->loc, a, most, NULL);
    before_step(s, scope);
    Node *n = in_blocks(g, param, Oquantize, param->loc, x, s);
    n->at.quantize.to = De4m3;
    watch_quantize(placement->watch, before_step(infer(g, n), scope), USEweight,
                   param);
}

void primary_watch(const Placement *placement)
{
    Graph *g = placement->g;
    size_t n = vec_len(g->param);

    for (size_t i = 0; i < n && placement->watch; i++) {
        const Param *p = g->param[i];
        const WeightChoice *v = table_get(placement->choice, KEYP(p));
        if (v && is_primary(p))
            watch_weight(placement, p, v->n->scope);
    }
}
