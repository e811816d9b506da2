/* scope.c: places of nodes in a model. There is one object for each path of a
 * model and set of marks. Code compares objects; the path is for messages and
 * names of parameters. Marks (modules, keep, recompute) belong to single
 * values; nodes that a pass makes from a value are in its scope and so have its
 * marks.
 *
 *     scope("layers", 3, layer, x)          layers.3          a unit
 *       scope("attn", attend, x)            layers.3.attn     in that unit
 *       its backward                        d.layers.3.attn   in that unit */
#include "graph.h"

const char *const unitkinds[] = { "none", "layer", "mtp" };
const char *const programparts[] = { "model", "backward", "grad", "post" };

/* Allocates a scope, which outlives the copy of a graph that created it
 * (passes/plan/fit.c). */
static Scope *new_scope(Graph *g, const char *path, const Scope *up)
{
    Scope *s = alloc(table_arena(g->scopes[PARTmodel]), sizeof *s);

    s->path = path;
    s->base = s;
    s->up = up;
    s->unit = up ? up->unit : NULL;
    return s;
}

void scopes_init(Graph *g)
{
    for (int i = 0; i < NPART; i++)
        g->scopes[i] = table_new(g->arena);
    Scope *top = new_scope(g, intern(""), NULL);
    *table_at(g->scopes[PARTmodel], KEYP(top->path)) = top;
    g->top = top;
}

static Scope *find_or_make(Graph *g, const char *path)
{
    const char *p = intern(path), *dot = strrchr(p, '.');
    Scope *s = table_get(g->scopes[PARTmodel], KEYP(p));

    if (s)
        return s;
    s = new_scope(g, p,
                  dot ? g_scope(g, internn(p, (size_t)(dot - p))) : g->top);
    return *table_at(g->scopes[PARTmodel], KEYP(p)) = s;
}

const Scope *g_scope(Graph *g, const char *path)
{
    return find_or_make(g, path);
}

const Scope *g_unit(Graph *g, const char *path, UnitKind kind)
{
    Scope *s = find_or_make(g, path);

    if (s->kind == UNITnone && !s->unit) {
        s->kind = kind;
        s->unit = s;
    }
    return s;
}

const Scope *g_backward(Graph *g, const Scope *s)
{
    if (s->part == PARTbackward)
        return s;
    if (!s->twin) {
        Scope *scope = new_scope(
            g, intern(*s->path ? strf(g->arena, "d.%s", s->path) : "d"), NULL);
        scope->unit = s->unit;
        scope->part = PARTbackward;
        scope->twin = s;
        scope->marks = s->marks;
        if (s != s->base)
            scope->base = g_backward(g, s->base);
        ((Scope *)(uintptr_t)s)->twin = scope;
    }
    return s->twin;
}

const Scope *g_inner(Graph *g, const Scope *scope, const char *name)
{
    const Scope *f = scope->part == PARTbackward ? scope->twin : scope;
    const Scope *in =
        g_scope(g, *f->path ? strf(g->arena, "%s.%s", f->path, name) : name);

    in = g_marked(g, in, f->marks & ~(unsigned)MARKSONE);
    return f == scope ? in : g_backward(g, in);
}

/* ---- marks --------------------------------------------------------------- */

static const Scope *with_marks(Graph *g, const Scope *base, unsigned marks)
{
    Scope *b = (Scope *)(uintptr_t)base, *s = b->marked;

    while (s && s->marks != marks)
        s = s->next;
    if (s)
        return s;
    s = new_scope(g, b->path, b->up);
    s->unit = b->unit;
    s->kind = b->kind;
    s->marks = marks;
    s->base = b;
    s->next = b->marked;
    return b->marked = s;
}

const Scope *g_marked(Graph *g, const Scope *scope, unsigned marks)
{
    const Scope *f = scope->part == PARTbackward ? scope->twin : scope;

    if (marks == scope->marks || (f == scope && scope->part != PARTmodel))
        return scope;
    f = marks ? with_marks(g, f->base, marks) : f->base;
    return scope->part == PARTbackward ? g_backward(g, f) : f;
}

static const struct {
    const char *word;
    unsigned mark;
} ones[] = { { "keep", MARKkeep }, { "recompute", MARKagain } };

const char *marks_text(Arena *a, unsigned marks)
{
    Text out = { .arena = a };

    for (int i = 0; 1u << i < MARKagain; i++)
        if (marks >> i & 1)
            put(&out, "%s%s", out.len ? "," : "",
                key_word_text("train.recompute", i));
    for (int i = 0; i < 2; i++)
        if (marks & ones[i].mark)
            put(&out, "%s%s", out.len ? "," : "", ones[i].word);
    return out.s;
}

unsigned mark_named(const char *word)
{
    int i = key_word("train.recompute", word);

    if (i >= 0)
        return 1u << i;
    for (i = 0; i < 2; i++)
        if (!strcmp(ones[i].word, word))
            return ones[i].mark;
    return 0;
}

/* -------------------------------------------------------------------------- */

int in_scope(const Scope *scope, const Scope *outer)
{
    scope = scope->part == PARTbackward ? scope->twin : scope;
    for (scope = scope->base; scope && scope != outer->base; scope = scope->up)
        ;
    return scope != NULL;
}

static int is_in(const char *path, const char *name)
{
    size_t n = strlen(name);

    return !strncmp(path, name, n) && (!path[n] || path[n] == '.');
}

const Scope *g_partscope(Graph *g, ProgramPart part, const char *path)
{
    if (part == PARTmodel)
        return g_scope(g, path);
    if (part == PARTbackward)
        return g_backward(
            g,
            g_scope(g, is_in(path, "d") ? path + 1 + (path[1] == '.') : path));
    Scope **s = (Scope **)table_at(g->scopes[part], KEYP(intern(path)));
    if (!*s) {
        *s = new_scope(g, intern(path), NULL);
        (*s)->part = part;
    }
    return *s;
}

ProgramPart part_of_text(const char *path)
{
    return is_in(path, "d")        ? PARTbackward
           : is_in(path, "post")   ? PARTpost
           : !strcmp(path, "grad") ? PARTgrad
                                   : PARTmodel;
}
