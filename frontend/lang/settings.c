/* settings.c: what is checked once a model is whole: its settings, against it
 * and each other; what its updates and metrics read. */
#include "../../ir/settings/keys.h"
#include "../frontend.h"

/* A pattern of parameters must mean one. */
void check_pattern(const Graph *g, const char *what, const char *pattern,
                   const Loc *loc)
{
    size_t n = 0;
    const char **names =
        alloc(g->arena, (vec_len(g->param) + 1) * sizeof *names);

    for (size_t i = 0; i < vec_len(g->param); i++) {
        if (g->param[i]->kind != TKparam)
            continue;
        names[n++] = g->param[i]->path;
        if (pattern_match(pattern, g->param[i]->path))
            return;
    }
    err(loc, "%s: no parameter is named '%s'%s", what, pattern,
        did_you_mean(pattern, names, n));
}

/* An update or a metric is of a step: of data, or of a dropout's mask, it may
 * have statistics. Marks lead from it to what it reads. */
static void statistics_only(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        g->node[i]->mark = 0;
    for (size_t i = vec_len(g->node); i-- > 0;) {
        const Node *n = g->node[i];
        if (n->op == Oupdate || (n->op == Ometric && !n->at.metric.beyond))
            n->in[n->nin - 1]->mark = (int)i + 1;
        if (!n->mark || g_over_batch(g, n))
            continue;
        const Node *user = g->node[n->mark - 1];
        int drops = n->op == Odropout;
        if (drops || (!n->nin && g_is_data(g, n))) {
            note(n->loc, "'%s' differs between micro-batches",
                 !drops                ? n_name(n)
                 : n->at.dropout.drawn ? "random"
                                       : "dropout");
            err(user->loc,
                "%s: the value depends on data other than through a reduction "
                "over 'batch'",
                optab[user->op].name);
        }
        for (int k = 0; k < n->nin; k++)
            n->in[k]->mark = n->mark;
    }
}

static void need_modules(const Graph *g)
{
    unsigned have = 0, asked = opts_words(g->opts, "train.recompute");
    Arena *a = g->arena;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Scope *scope = g->node[i]->scope;
        have |= scope->marks & ~(unsigned)MARKSONE;
        have |= scope->unit ? 1u << MODULEfull : 0;
    }
    unsigned none = asked & ~have;
    if (none)
        err(opts_loc(g->opts, "train.recompute"),
            "train.recompute: the model has no %s%s%s; it says what is one by "
            "module(\"%s\", f, ...)",
            marks_text(a, none), have ? "; it has " : "",
            have ? marks_text(a, have) : "", marks_text(a, none & ~(none - 1)));
}

/* err(): the key and one of the i keys before it, of one table, match a
 * parameter both. The fields of a table have no order. */
static void check_order(const Graph *g, int i, const char *key)
{
    const char *other, *value, *pattern = key_own(key);
    const Loc *loc = opts_loc(g->opts, key);

    for (int k = 0; loc && k < i && opts_each(g->opts, k, &other, &value);
         k++) {
        const char *p = key_own(other);
        if (!p || p - other != pattern - key || opts_loc(g->opts, other) != loc)
            continue;
        for (size_t j = 0; j < vec_len(g->param); j++) {
            const char *path = g->param[j]->path;
            if (pattern_match(p, path) && pattern_match(pattern, path))
                err(loc,
                    "%s and %s match '%s', and a table has no order: of two "
                    "calls the last holds",
                    other, key, path);
        }
    }
}

static void check_patterns(const Graph *g)
{
    const char *key, *value, *pattern;

    for (int i = 0; opts_each(g->opts, i, &key, &value); i++)
        if ((pattern = key_own(key)) && !key_of_model(key)) {
            check_pattern(g, key,
                          strncmp(key, "from.", 5)
                              ? pattern
                              : strf(g->arena, "%s.*", pattern),
                          opts_loc(g->opts, key));
            check_order(g, i, key);
        }
    for (const KeyInfo *k = keytab; k->name; k++)
        for (int i = 0; is_kind(k->kind, "params") &&
                        (pattern = opts_pattern(g->opts, key_name(k), i));
             i++)
            check_pattern(g, key_name(k), pattern + (*pattern == '!'),
                          opts_loc(g->opts, key_name(k)));
}

void check_whole(Graph *g)
{

    cluster_settle(g->opts);
    opts_check(g->opts);
    settle_from(g->opts);
    check_patterns(g);
    need_modules(g);
    statistics_only(g);
}
