/* placement.c: which products of weights are of few bits (fp8.c): of whose
 * operands blocks can be cut, for whose numbers the target has a kernel, and
 * which save more time, at the speeds of the machine, than rounding takes. */
#include "placement.h"
#include "../../ir/settings/keys.h"

#define SCALED(to, layout, formula, rounding)                   \
    {                                                           \
        D##to, SCALE##layout, FORMULA##formula, ROUND##rounding \
    }
#define RECIPE(name, value, weight, gradient, transform) \
    [RECIPE##name] = { { value, weight, gradient }, TRANSFORM##transform },
const Recipe recipes[] = {
#include "../../ir/settings/recipes.def"
};

/* ---- products of weights ------------------------------------------------- */

int is_between_clones(const Node *x)
{
    return (x->op == Ogather || x->op == Oscatter_add) &&
           n_axis(x)->role == ROLEchoice && x->in[1]->nd == 1 &&
           x->in[1]->dim[0].a->role == ROLEchoice;
}

/* The parameter that x is, by whatever axes and dtype; null: none. */
const Param *weight_of(Graph *g, const Node *x)
{
    while (x->op == Ocast || x->op == Odequantize || is_between_clones(x) ||
           (optab[x->op].cls == VIEW && x->nin))
        x = x->in[0];
    if (x->op == Oparam)
        return g_param(g, x->at.param.path);
    if (x->op == Ounpack && x->in[0]->op == Oparam)
        return bucket_member(g, x);
    return NULL;
}

/* Does n, or one that it is made of, have axis micro? seen: nodes looked at. */
static int is_made_of_data(const Node *n, const Axis *micro, Table *seen)
{
    void **at = table_at(seen, KEYP(n));
    int yes = dim_of(n, micro) >= 0;

    if (*at)
        return 0;
    *at = seen;
    for (int k = 0; k < n->nin && !yes; k++)
        yes = is_made_of_data(n->in[k], micro, seen);
    return yes;
}

/* What the gradient of another value is rounded of would be the sum over the
 * micro-batches of a rank, so other numbers in each fold. */
int differs_by_micro(Graph *g, const Node *x)
{
    const Axis *micro = g_micro(g);

    return dim_of(x, micro) >= 0 ||
           (x->map && is_made_of_data(x->map, micro, table_new(g->arena)));
}

/* The operand of product n that is a weight, the other being data; -1: none. */
int weight_at(Graph *g, const Node *n)
{
    if (n->op != Odot && n->op != Ogmm)
        return -1;
    for (int k = 0; k < 2; k++)
        if (weight_of(g, n->in[k]) && differs_by_micro(g, n->in[!k]))
            return k;
    return -1;
}

/* ---- blocks -------------------------------------------------------------- */

Axis *axis_of_blocks(Graph *g, Axis *a, int size)
{
    Axis *blocks = g_axis(g, strf(g->arena, "%s'in%d", a->name, size));

    if (a->role != ROLEseq && a->role != ROLEkey)
        blocks->role = a->role;
    return blocks;
}

/* The longest of x's axes, the last of equals; among those that product n sums
 * over, or null any; but. Not micro, nor of rows and experts. */
Axis *longest_axis(const Node *x, const Node *n, const Axis *but)
{
    const Dim *best = NULL;

    for (int d = 0; d < x->nd; d++) {
        const Dim *at = &x->dim[d];
        if (at->a != but && !g_ismicro(at->a) && !g_isrow(at->a) &&
            at->a->role != ROLEchoice &&
            (!n || axes_at(n_axes(n), at->a) >= 0) &&
            (!best || at->n >= best->n))
            best = at;
    }
    return best ? best->a : NULL;
}

/* Has x axes but micro and rows, each of which has a scale of its own? */
static int has_own_axes(const Node *x)
{
    int n = 0;

    for (int d = 0; d < x->nd; d++)
        n += !g_ismicro(x->dim[d].a) && !g_isrow(x->dim[d].a);
    return n > 0;
}

/* Axes cut into blocks by a layout for operand x of n; how many, 0 for a layout
 * without blocks, -1: x lacks them. */
int axes_cut(ScaleLayout layout, const Node *n, const Node *x, Axis *cut[2])
{
    if (!scales[layout].cols)
        return has_own_axes(x) ? 0 : -1;
    if (scales[layout].rows == 1) {
        cut[0] = longest_axis(x, n, NULL);
        return cut[0] ? 1 : -1;
    }
    cut[1] = longest_axis(x, NULL, NULL);
    cut[0] = longest_axis(x, NULL, cut[1]);
    return cut[0] ? 2 : -1;
}

/* Whether operand k of n can be cut so: it has the axes, and two numbers make
 * an element. */
int can_cut(const Placement *placement, const Node *n, int k, OperandUse use)
{
    const ScaledDtype *to = &placement->recipe->use[use];
    const Node *x = n->in[k];
    Axis *cut[2];
    int ncut = axes_cut(to->layout, n, x, cut);

    return ncut >= 0 &&
           (to->to != De2m1x2 || x->dim[dim_of(x, cut[ncut - 1])].n % 2 == 0);
}

/* ---- what stays ---------------------------------------------------------- */

static const Axis *role_in(const Node *n, AxisRole role)
{
    for (int d = 0; d < n->nd; d++)
        if (n->dim[d].a->role == role)
            return n->dim[d].a;
    return NULL;
}

/* Null, or why products of the weight, operand w of n, are not scaled however
 * long they take. */
static const char *must_stay(const Placement *placement, const Node *n, int w,
                             const Param *param)
{
    const Axis *choice = role_in(n->in[w], ROLEchoice);

    if (opts_match(placement->g->opts, "precision.keep", param->path))
        return "precision.keep names it";
    if (role_in(n->in[w], ROLEvocab))
        return "of a vocabulary";
    if (choice && n->op == Odot && !has_dim(n->in[!w], choice))
        return "of a router";
    if (n->in[0]->dt != placement->real || n->in[1]->dt != placement->real)
        return "the model asks for another dtype";
    if (!n_axes(n)->n)
        return "it sums over nothing";
    for (int k = 0; k < 2; k++)
        if (!can_cut(placement, n, k, k == w ? USEweight : USEvalue))
            return "its axes cannot be cut into the recipe's blocks";
    return NULL;
}

/* Elements of operand x of n on a rank, of the axes that are summed over or of
 * the others; of a weight by its parameter's type. Axes of experts, rows and
 * micro-batches apart. */
static double extent(const Graph *g, const Node *n, const Node *x,
                     const Shard *sh, int summed)
{
    double e = 1;

    for (int d = 0; d < x->nd; d++)
        if (x->dim[d].a->role != ROLEchoice && !g_isrow(x->dim[d].a) &&
            (axes_at(n_axes(n), x->dim[d].a) >= 0) == summed)
            e *= (double)x->dim[d].n;
    for (int t = 0; t < g->mesh->natom; t++)
        if (sh[t].k == S && sh[t].a->role != ROLEchoice &&
            (axes_at(n_axes(n), sh[t].a) >= 0) == summed)
            e /= (double)g->mesh->atom[t].size;
    return e;
}

/* Elements of x of a micro-batch along axes that are not among these. */
static double elements_beside(const Node *x, const Axes *but)
{
    double e = 1;

    for (int d = 0; d < x->nd; d++)
        if (axes_at(but, x->dim[d].a) < 0 && !g_ismicro(x->dim[d].a))
            e *= (double)x->dim[d].n;
    return e;
}

/* Rows of x that forward product n multiplies on a rank in a micro-batch: of
 * experts as many as choices are expected. */
static double rows_of(const Graph *g, const Node *n, const Node *x)
{
    const int64_t *size = g->mesh->size;

    if (n->op == Odot)
        return elements_beside(x, n_axes(n)) / (double)size[Mcp];
    return g_tokens(g) * map_choices(n->in[2]) * (double)size[Metp] /
           (double)(size[Mdp] * size[Mcp] * size[Mtp]);
}

int has_wide_rows(const Recipe *recipe)
{
    static const OperandUse uses[] = { USEvalue, USEgradient };
    int all = 1;

    for (int i = 0; i < 2; i++) {
        const ScaledDtype *to = &recipe->use[uses[i]];
        all &= to->to == De4m3 && to->formula == FORMULApow2 &&
               to->layout == SCALEwide && to->rounding == ROUNDnearest;
    }
    return all;
}

/* Has the target a kernel for grouped products of such numbers? */
int has_scaled_kernels(const Graph *g, const Recipe *recipe)
{
    for (int use = 0; use < NUSE; use++)
        if (recipe->use[use].to != De4m3 ||
            recipe->use[use].layout !=
                (use == USEweight ? SCALEsquare : SCALEwide))
            return 0;
    return pass_target(g)->scaled && machine_of(g)->narrow > 0;
}

/* Bytes of a micro-batch that rounding weight x takes: elements are read and
 * stored in both orders once a step, or those that are gathered for each
 * product. */
static double rounding_bytes(const Graph *g, const Node *x, double elements)
{
    enum { READ = 2, STORED = 1, PRODUCTS = 2 };

    return x->op == Oparam
               ? (READ + PRODUCTS * STORED) * elements / (double)micro_turns(g)
               : PRODUCTS * (READ + STORED) * elements;
}

/* Of a product on a rank in a micro-batch: K is summed over, N made. */
typedef struct ProductSizes {
    double K, N, rows, each; /* each: rows of an expert */
    double weight, share;    /* elements; products that read the same rows */
} ProductSizes;

/* Operand w of n is the weight, which is `param`. */
static ProductSizes sizes_of(const Placement *placement, const Node *n, int w,
                             const Param *param)
{
    const Graph *g = placement->g;
    const Shard *sh = param_type(placement->g, param);
    ProductSizes z = { .rows = rows_of(g, n, n->in[!w]) };

    z.share = (double)(uintptr_t)table_get(placement->readers, KEYP(n->in[!w]));
    z.K = extent(g, n, n->in[w], sh, 1);
    z.N = extent(g, n, n->in[w], sh, 0);
    Node bytes = *n->in[w];
    bytes.dt = Du8;
    z.weight = bytes_as(g, &bytes, sh);
    z.each = z.rows / (z.weight / (z.K * z.N));
    return z;
}

/* Are weight x's blocks, along the axes that n sums over or the others, those
 * of all these axes as one? Its cut axis is one of them, whole blocks of it or
 * nothing else. Axes of experts apart. */
static const Axis *cut_as_one(const Node *n, const Node *x, int summed)
{
    Axis *cut[2], *found = NULL;
    int ncut = axes_cut(SCALEsquare, n, x, cut), beside = 0;
    int64_t size = 0;

    for (int d = 0; d < x->nd; d++) {
        const Dim *at = &x->dim[d];
        if (at->a->role == ROLEchoice ||
            (axes_at(n_axes(n), at->a) >= 0) != summed)
            continue;
        if (ncut == 2 && (at->a == cut[0] || at->a == cut[1]) && !found)
            found = at->a, size = at->n;
        else
            beside = 1;
    }
    return found && (!beside || size % scales[SCALEsquare].cols == 0) ? found
                                                                      : NULL;
}

/* Does another of these axes lie behind the one that is cut? Rows then lie in
 * another order than for a product of bf16, whose neighbours bring them into it
 * or take them from it. */
static int is_permuted(const Node *n, const Node *x, int summed)
{
    const Axis *cut = cut_as_one(n, x, summed), *last = NULL;

    for (int d = 0; d < x->nd; d++)
        if (x->dim[d].a->role != ROLEchoice &&
            (axes_at(n_axes(n), x->dim[d].a) >= 0) == summed)
            last = x->dim[d].a;
    return cut && cut != last;
}

/* Seconds of a micro-batch on a rank that forward product n and the gradient of
 * its rows save, less those to read their operands in bf16 and store them in a
 * byte, the rows shared by all products that read the same, and to permute what
 * lies otherwise. Tokens are as many as a rank has. */
static double predicted_gain(const Placement *placement, const Node *n, int w,
                             const Param *param)
{
    enum { PRODUCTS = 2, ROWBYTES = 3, PIECE = 16, WIDE = 2 };
    const Graph *g = placement->g;
    const MachineSpeeds *speeds = machine_of(g);
    const ProductSizes z = sizes_of(placement, n, w, param);

    if (fmod(z.K, PIECE) != 0 || fmod(z.N, PIECE) != 0) /* no tensor cores */
        return -1;
    double flops = 2 * z.rows * z.K * z.N, both = z.rows * (z.K + z.N);
    double bytes = ROWBYTES * z.rows * (z.K / z.share + z.N) +
                   rounding_bytes(g, n->in[w], z.weight);
    for (int summed = 0; summed < 2; summed++)
        if (is_permuted(n, n->in[w], summed))
            bytes += PRODUCTS * 2 * WIDE * z.rows * (summed ? z.K : z.N);
    int dense = n->op == Odot;
    double plain =
        product_secs(speeds, dense ? SPEEDgemm : SPEEDgrouped,
                     dense ? flops : z.each, flops, WIDE * (both + z.weight));
    double few = product_secs(speeds, SPEEDnarrow, z.each, flops,
                              (1 + WIDE) * both / PRODUCTS + z.weight);
    return PRODUCTS * (plain - few) -
           bytes / speed_at(speeds, SPEEDmemory, bytes);
}

/* Are n's rows summed up for tokens, and so their gradients tokens'? */
static int makes_tokens(const Graph *g, const Node *n)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == Ocombine && g->node[i]->in[0] == n)
            return 1;
    return 0;
}

static int is_map(const Node *n)
{
    return n->op == Ocast || optab[n->op].expr;
}

/* Are n's rows read by maps only, which then make their gradients? */
static int read_by_maps(const Graph *g, const Node *n)
{
    int any = 0;

    for (size_t i = 0; i < vec_len(g->node); i++)
        for (int k = 0; k < g->node[i]->nin; k++) {
            if (g->node[i]->in[k] != n || is_backward(g->node[i]))
                continue;
            if (!is_map(g->node[i]))
                return 0;
            any = 1;
        }
    return any;
}

/* Bytes more an element of rows of so many columns, where a product by columns
 * reads them too: which are read to be rounded for the products of rows anyway,
 * and stored in columns too. Those of tokens are rounded where these lie and
 * not stored in bf16, those of a map where it makes them, so not read again. */
static double column_bytes(const Graph *g, int tokens, int map, double columns)
{
    enum { WIDE = 2 };
    int whole = pass_target(g)->rounds && fmod(columns, SCALEBLOCK) == 0;

    return tokens ? 1 - WIDE : map && whole ? 1 - 2 * WIDE : 1;
}

/* May experts' weights be updated by the product that makes their gradients
 * (passes/kernels/product_update.c), by what is known before there are any? */
static int updates_by_products(const Graph *g)
{
    return pass_target(g)->updates && micro_turns(g) == 1 &&
           !opts_int(g->opts, "train.skip_bad") &&
           opts_num(g->opts, "train.clip") <= 0;
}

/* Seconds of a micro-batch that the own gradient of n's weight saves. Rows that
 * n reads are stored in columns for all that read them. What updates a weight
 * beside a product of 8 bits is hidden, beside one of bf16 not. */
static double own_gain(const Placement *placement, const Node *n, int w,
                       const Param *param)
{
    /* bytes of an element read, summed up, updated */
    enum { WIDE = 2, SUM = 4, UPDATED = 24 };
    const Graph *g = placement->g;
    const Node *rows = n->in[!w];
    const MachineSpeeds *speeds = machine_of(placement->g);
    const ProductSizes z = sizes_of(placement, n, w, param);
    double flops = 2 * z.rows * z.K * z.N, x = z.rows * z.K / z.share,
           dy = z.rows * z.N;
    double bytes =
        x * column_bytes(g, rows->op == Odispatch, is_map(rows), z.K) +
        dy * column_bytes(g, makes_tokens(g, n), read_by_maps(g, n), z.N);
    double read = z.rows * (z.K + z.N), sums = SUM * z.weight;
    double plain = product_secs(speeds, SPEEDweights, z.each, flops,
                                WIDE * read + sums),
           few = product_secs(speeds, SPEEDnarrow_weights, z.each, flops,
                              read + sums);

    if (updates_by_products(g)) {
        double updated = UPDATED * z.weight;
        updated /= speed_at(speeds, SPEEDmemory, updated);
        plain += updated;
        few = fmax(few, updated);
    }
    return plain - few - bytes / speed_at(speeds, SPEEDmemory, fabs(bytes));
}

/* Null, or why the own gradient of n's weight is of bf16. */
static const char *own_stays(const Placement *placement, const Node *n, int w,
                             const Param *param, double *gain)
{
    enum weight_gradients wish = opts_weight_gradients(placement->g->opts);

    if (n->op != Ogmm)
        return "of a matrix";
    if (wish == WGRADnone)
        return "precision.wgrad=none";
    if (!has_wide_rows(placement->recipe))
        return "the recipe has no columns of rows";
    if (opts_rows_on_wire(placement->g->opts) != WIREnone)
        return "precision.wire rounds its rows already";
    if (opts_kept_operands(placement->g->opts) == KEPTrounded)
        return "precision.kept rounds its rows already";
    if (wish == WGRADall)
        return NULL;
    if (!placement->kernels || machine_of(placement->g)->narrow_weights <= 0)
        return "no kernel multiplies such numbers";
    *gain += own_gain(placement, n, w, param);
    return *gain > 0 ? NULL : "it would take longer";
}

/* Is the weight of n, operand w, a matrix of blocks, forward and for the
 * gradient of what it meets? */
static int is_matrix_of_blocks(const Node *n, int w)
{
    return n->op == Ogmm ||
           (cut_as_one(n, n->in[w], 0) && cut_as_one(n, n->in[w], 1));
}

static void judge(Placement *placement, const Node *n, int w)
{
    const Graph *g = placement->g;
    const Param *param = weight_of(placement->g, n->in[w]);
    WeightChoice **at =
        (WeightChoice **)table_at(placement->choice, KEYP(param));
    int pays = placement->pays;

    if (!*at) {
        *at = alloc(g->arena, sizeof **at);
        (*at)->n = n;
    }
    if (param->kind == TKnumbers)
        pays = 0; /* pass primary has found that they do */
    else if (!(*at)->stays)
        (*at)->stays = must_stay(placement, n, w, param);
    if (pays && !(*at)->stays &&
        (!placement->kernels || !is_matrix_of_blocks(n, w)))
        (*at)->stays = "no kernel multiplies such numbers";
    if (pays && !(*at)->stays)
        (*at)->gain += predicted_gain(placement, n, w, param);
    if (!(*at)->stays)
        (*at)->own = own_stays(placement, n, w, param, &(*at)->own_gain);
    if (pays && !(*at)->stays &&
        (*at)->gain + ((*at)->own ? 0 : (*at)->own_gain) < 0)
        (*at)->stays = "it would take longer";
}

void judge_weights(Placement *placement)
{
    Graph *g = placement->g;

    for (int counting = 1; counting >= 0; counting--)
        for (size_t i = 0; i < vec_len(g->node); i++) {
            const Node *n = g->node[i];
            int w = weight_at(g, n);
            if (w < 0 || is_backward(n))
                continue;
            if (counting)
                ++*(uintptr_t *)table_at(placement->readers, KEYP(n->in[!w]));
            else
                judge(placement, n, w);
        }
}

void report_weights(const Placement *placement)
{
    const Graph *g = placement->g;
    const char *word =
        key_word_text("precision.recipe", (int)(placement->recipe - recipes));

    for (size_t i = 0; i < vec_len(g->param); i++) {
        const WeightChoice *v = table_get(placement->choice, KEYP(g->param[i]));
        if (!v)
            continue;
        const char *rows =
            v->n->op != Ogmm ? ""
            : v->own ? strf(g->arena, ", its own gradient not: %s", v->own)
            : v->own_gain > 0
                ? strf(g->arena, ", its own gradient too: saves %.1f us",
                       v->own_gain * 1e6)
                : ", its own gradient too";
        if (v->stays)
            why(g, v->n, "%s stays: %s", g->param[i]->path, v->stays);
        else if (v->gain > 0)
            why(g, v->n, "%s is scaled, %s%s; saves %.1f us a micro-batch",
                g->param[i]->path, word, rows, v->gain * 1e6);
        else
            why(g, v->n, "%s is scaled, %s%s", g->param[i]->path, word, rows);
    }
}

/* ---- of a graph ---------------------------------------------------------- */

/* Of a plan without kernels on a machine that multiplies mxfp8: a scale of four
 * bytes for 128 numbers stands for four of one byte for 32 each. */
static enum scaling_recipe planned_recipe(const Graph *g)
{
    enum scaling_recipe r = opts_scaling_recipe(g->opts);
    const Target *target = pass_target(g);
    int blocks = r == RECIPEmxfp8 && machine_of(g)->mx > 0 && target->scaled &&
                 !target->grid;

    return (int)r < 0 || blocks ? RECIPEblockwise : r;
}

void placement_new(Graph *g, Placement *placement)
{
    *placement = (Placement){ .g = g };
    if ((int)opts_scaling_recipe(g->opts) < 0 &&
        opts_real_dtype(g->opts) != REALfp8)
        return;
    *placement = (Placement){
        .g = g,
        .recipe = &recipes[planned_recipe(g)],
        .real = opts_dtype(g->opts),
        .pays = opts_scaled_products(g->opts) == PLACEpays &&
                (machine_of(g)->narrow > 0 || pass_target(g)->scaled),
        .readers = table_new(g->arena),
        .choice = table_new(g->arena),
        .gradient = table_new(g->arena),
        .rows = table_new(g->arena),
    };
    placement->kernels = has_scaled_kernels(g, placement->recipe);
}
