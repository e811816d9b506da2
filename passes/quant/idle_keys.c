/* idle_keys.c: keys of precision{} without effect on the placed step. A row
 * gives a key and the condition under which it has an effect. */
#include "placement.h"

typedef struct Need {
    int (*met)(const Placement *placement);
    const char *text;
} Need;

static int asks_few_bits(const Placement *placement)
{
    return placement->recipe != NULL;
}

static int is_delayed(const Placement *placement)
{
    return asks_few_bits(placement) &&
           placement->recipe->use[USEvalue].formula == FORMULAdelayed;
}

static int has_blocks_of_rows(const Placement *placement)
{
    return asks_few_bits(placement) && has_wide_rows(placement->recipe);
}

static int has_numbers(const Placement *placement)
{
    return has_numbers_of_weights(placement->g, placement->recipe);
}

static int has_lone_products(const Placement *placement)
{
    const Graph *g = placement->g;

    return opts_dtype(g->opts) == Dbf16 && program_turns(g) == 1;
}

static const Need few_bits = {
    asks_few_bits, "no product is of few bits (precision.policy=fp8 or "
                   "precision.recipe asks for them)"
};
static const Need history = { is_delayed, "it needs precision.recipe=delayed" };
static const Need numbers = {
    has_numbers, "it needs weights of bf16 and precision.recipe=blockwise"
};
static const Need rows = { has_blocks_of_rows,
                           "it needs precision.recipe=blockwise" };
static const Need lone_products = {
    has_lone_products, "it needs products of bf16, and one micro-batch a step"
};

static const struct {
    const char *key;
    const Need *need;
} needs[] = {
    { "precision.keep", &few_bits },       { "precision.place", &few_bits },
    { "precision.watch", &few_bits },      { "precision.wire", &rows },
    { "precision.kept", &rows },           { "precision.history", &history },
    { "precision.margin", &history },      { "precision.primary", &numbers },
    { "precision.grads", &lone_products },
};

/* Does a weight of products match the pattern? */
static int names_weight(const Placement *placement, const char *pattern)
{
    Param *const *param = placement->g->param;

    for (size_t i = 0; i < vec_len(param); i++)
        if (table_get(placement->choice, KEYP(param[i])) &&
            pattern_match(pattern, param[i]->path))
            return 1;
    return 0;
}

static void warn_idle_patterns(const Placement *placement)
{
    const Opts *opts = placement->g->opts;
    const char *pattern;

    for (int i = 0; (pattern = opts_pattern(opts, "precision.keep", i)); i++)
        if (!names_weight(placement, pattern))
            warn(opts_loc(opts, "precision.keep"),
                 "precision.keep: '%s' changes nothing: it names no weight of "
                 "a product",
                 pattern);
}

/* The first parameter whose products stay unscaled although precision.keep does
 * not name it; null: a product is scaled, or precision.keep names all. */
static const Param *first_that_stays(const Placement *placement)
{
    const Graph *g = placement->g;
    const Param *first = NULL;

    for (size_t i = 0; i < vec_len(g->param); i++) {
        const Param *p = g->param[i];
        const WeightChoice *v = table_get(placement->choice, KEYP(p));
        if (v && !v->stays)
            return NULL;
        if (v && !first && !opts_match(g->opts, "precision.keep", p->path))
            first = p;
    }
    return first;
}

static void warn_that_all_stay(const Placement *placement)
{
    const Param *p = first_that_stays(placement);
    const WeightChoice *v = p ? table_get(placement->choice, KEYP(p)) : NULL;

    if (v)
        warn(opts_loc(placement->g->opts, "precision.policy"),
             "precision: no product is of few bits (%s stays: %s); -d why says "
             "all",
             p->path, v->stays);
}

void warn_idle_keys(const Placement *placement)
{
    const Opts *opts = placement->g->opts;

    if (placement->g->prog != PGstep || placement->g->compile->options.again)
        return;
    for (int i = 0; i < countof(needs); i++) {
        const char *key = needs[i].key;
        if (opts_asks(opts, key) && !needs[i].need->met(placement))
            warn(opts_loc(opts, key), "%s changes nothing: %s", key,
                 needs[i].need->text);
    }
    if (!asks_few_bits(placement))
        return;
    warn_idle_patterns(placement);
    if (placement->kernels || !placement->pays)
        warn_that_all_stay(placement);
}
