/* programs.c: what each program of a stage is for: their names and order, and
 * what of what lives always each may write, and must. A program that is missing
 * is missed when it is asked for. */
#include <string.h>

#include "plan.h"

/* Rows in the order in which a plan has them; classes of buffers as sets. */
typedef struct ProgramKind {
    const char *name;
    uint32_t may, must; /* be written */
} ProgramKind;

enum {
    WEIGHTS = 1u << Bparam | 1u << Bstate,
    OPTIM = 1u << Boptim,
    RESULTS = 1u << Bio
};

static const ProgramKind kinds[] = {
    { "step", WEIGHTS | OPTIM | RESULTS, OPTIM },
    { "step.fallback", WEIGHTS | OPTIM | RESULTS, OPTIM },
    { "eval", RESULTS, 0 },
    { "forward", RESULTS, 0 },
    { "init", WEIGHTS | OPTIM, WEIGHTS | OPTIM },
};
enum { NKIND = sizeof kinds / sizeof *kinds };

static int kind_of(const char *name)
{
    for (int i = 0; i < NKIND; i++)
        if (!strcmp(kinds[i].name, name))
            return i;
    return -1;
}

static const char *wrong(const PlanCheck *c, const char *name, const char *why)
{
    return strf(c->arena, "role %d: program '%s' %s", c->role, name, why);
}

static int writes(const Program *g, int buf)
{
    for (int i = 0; i < g->nend; i++)
        if (g->end[i].buf == buf)
            return 1;
    return 0;
}

/* ---- each ---------------------------------------------------------------- */

/* By buffer: does the program end with something in it? */
static char *written(const PlanCheck *c, const Program *g)
{
    char *v = alloc(c->arena, (size_t)c->r->nbuf + 1);
    for (int i = 0; i < g->nend; i++)
        if (g->end[i].buf >= 0 && g->end[i].buf < c->r->nbuf)
            v[g->end[i].buf] = 1;
    return v;
}

static const char *program_wrong(const PlanCheck *c, const Program *g,
                                 const ProgramKind *k)
{
    const char *v = written(c, g);
    for (int i = 0; i < c->r->nbuf; i++) {
        const Buf *b = &c->r->buf[i];
        if (b->prog >= 0)
            continue;
        if (v[i] && !(k->may >> b->cls & 1) && law(Lmay_write))
            return wrong(c, g->name,
                         strf(c->arena, "may not write '%s'", b->name));
        if (!v[i] && k->must >> b->cls & 1 && law(Lmust_write))
            return wrong(c, g->name,
                         strf(c->arena, "does not write '%s'", b->name));
    }
    return NULL;
}

/* ---- all ----------------------------------------------------------------- */

static const Scalar *result(const Role *r, const char *name)
{
    for (int i = 0; i < r->nout; i++)
        if (!strcmp(r->out[i].name, name))
            return &r->out[i];
    return NULL;
}

/* What may overflow says so and has a fallback, which cannot. */
static const char *fallback_wrong(const PlanCheck *c)
{
    const Role *r = c->r;
    const Scalar *s = result(r, "overflow");
    int step = role_prog(r, "step"), back = role_prog(r, "step.fallback");
    if (!s)
        return NULL;
    if ((step < 0 || back < 0) && law(Lfallback_there))
        return wrong(c, "step", "may overflow and has no fallback");
    int swapped =
        !writes(&r->prog[step], s->buf) || writes(&r->prog[back], s->buf);
    return swapped && law(Lfallback_not_step)
               ? wrong(c, "step.fallback", "is taken for the step")
               : NULL;
}

static const char *set_wrong(const PlanCheck *c)
{
    const Role *r = c->r;
    int last = -1;
    for (int i = 0; i < r->nprog; i++) {
        int k = kind_of(r->prog[i].name);
        if (k <= last && law(Lprogram_order))
            return wrong(c, r->prog[i].name,
                         k < 0 ? "is of no kind" : "is not in its place");
        last = k;
    }
    return fallback_wrong(c);
}

const char *purposes_wrong(const PlanCheck *c)
{
    const char *why = set_wrong(c);
    for (int i = 0; i < c->r->nprog && !why; i++)
        why = program_wrong(c, &c->r->prog[i],
                            &kinds[kind_of(c->r->prog[i].name)]);
    return why;
}
