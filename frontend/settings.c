/* settings.c: settings against the model and each other, once all are there. */
#include <string.h>

#include "frontend.h"

/* A pattern of parameters must mean one. */
static void check_pattern(const Graph *g, const char *key, const char *pattern)
{
    const Loc *loc = opts_loc(g->opts, key);
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
    const char *near = nearest(pattern, names, n);
    err(loc, "%s: no parameter is named '%s'%s%s%s", key, pattern,
        near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "");
}

void check_settings(const Graph *g)
{
    const char *pattern;

    opts_check(g->opts);
    for (const KeyInfo *k = keytab; k->name; k++)
        if (is_kind(k->kind, "params"))
            for (int i = 0; (pattern = opts_pattern(g->opts, key_name(k), i));
                 i++)
                check_pattern(g, key_name(k), pattern);
}
