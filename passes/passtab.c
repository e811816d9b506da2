/* passtab.c: passes.def as a table, and the proof that in its order every pass
 * finds the facts that it needs. */
#include "passes.h"

/* Programs that a pass runs in, as bits. */
enum {
    FALLBACK = 1u << PGfallback,
    STEP = 1u << PGstep | 1u << PGwatched | FALLBACK,
    EVAL = 1u << PGeval,
    FORWARD = 1u << PGforward,
    INIT = 1u << PGinit | 1u << PGweights,
    ALL = STEP | EVAL | FORWARD | INIT
};

/* Facts as bits. */
enum {
#define FACT(name, given, sentence) NUMBER##name,
#include "facts.def"
    NFACT
};
enum {
#define FACT(name, given, sentence) name = 1u << NUMBER##name,
#include "facts.def"
};
enum {
    TRACED = 0
#define FACT(name, given, sentence) | (unsigned)(given) << NUMBER##name
#include "facts.def"
};

static const char *const facts[] = {
#define FACT(name, given, sentence) sentence,
#include "facts.def"
};

/* clang-format off */
const PassInfo passtab[] = {
#define PASS(name, programs, needs, makes, breaks, level, sentence)            \
    { #name, pass_##name, programs, needs, makes, breaks, level, sentence },
#define PLAN(name, programs, needs, makes, breaks, level, sentence)         \
    { #name, NULL, programs, needs, makes, breaks, level, sentence },
#include "passes.def"
};
/* clang-format on */
const int npass = sizeof passtab / sizeof *passtab;

/* Returns the pass that makes the fact: ", which sharding makes". */
static const char *maker(Arena *a, const PassInfo *tab, int n, unsigned fact)
{
    for (int i = 0; i < n; i++)
        if (tab[i].makes & fact)
            return strf(a, ", which '%s' makes", tab[i].name);
    return "";
}

const char *pass_order_wrong(Arena *a, const PassInfo *tab, int n,
                             ProgramKind k, const char *skip)
{
    unsigned have = TRACED;

    for (int i = 0; i < n; i++) {
        const PassInfo *info = &tab[i];
        if (!(info->programs >> k & 1) || (skip && !strcmp(skip, info->name)))
            continue;
        for (int f = 0; f < NFACT; f++)
            if (info->needs & ~have & 1u << f)
                return strf(a, "pass '%s' of program '%s' needs that %s%s",
                            info->name, programnames[k], facts[f],
                            maker(a, tab, n, 1u << f));
        have = (have | info->makes) & ~info->breaks;
    }
    return NULL;
}
