/* stages.c: divides a model into the chunks of a pipeline. Its units are the
 * outermost scopes with a number ("layers.3" of "layers.3.attn"); nodes before
 * the first unit are E (embedding), after the last L (head and loss).
 *
 *     E  layers.0  layers.1  layers.2  L      fold.pp=2     Et|ttL
 *
 * fold.layout has Megatron's syntax: E t m L, m a unit "mtp.<n>", t any other,
 * | between chunks, x*n and (x)*n repeat. The default minimizes the largest
 * chunk among contiguous divisions, by FLOPs of the forward. */
#include <ctype.h>

#include "pipe.h"

enum { LONGEST = 1 << 16 }; /* limit of a layout's letters */

typedef struct StageCut {
    Graph *graph;
    Stages *st;
    double *cost; /* vec: costs of E, each unit, L */
} StageCut;

static int is_mtp(const Scope *unit)
{
    return unit->kind == UNITmtp;
}

/* ---- units --------------------------------------------------------------- */

static int unit_index(const Stages *st, const Scope *unit)
{
    for (int i = 0; i < st->nunit; i++)
        if (st->unit[i] == unit)
            return i;
    return -1;
}

int unit_at(const Stages *st, const Scope *scope)
{
    return scope->unit ? unit_index(st, scope->unit) : -1;
}

static void find_units(StageCut *cut)
{
    const Graph *g = cut->graph;
    int now = 0;

    vec_push(g->arena, cut->cost, 0);
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Scope *unit = g->node[i]->scope->unit;
        if (!unit || unit_index(cut->st, unit) >= 0)
            continue;
        vec_push(g->arena, cut->st->unit, unit);
        cut->st->nunit++;
        vec_push(g->arena, cut->cost, 0);
    }
    vec_push(g->arena, cut->cost, 0);
    size_t last = 0;
    for (size_t i = 0; i < vec_len(g->node); i++)
        last = g->node[i]->scope->unit ? i : last;
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Scope *unit = g->node[i]->scope->unit;
        if (unit)
            now = unit_index(cut->st, unit) + 1;
        cut->cost[i > last ? cut->st->nunit + 1 : now] +=
            flops_of(g, g->node[i]);
    }
    cut->st->chunk =
        alloc(g->arena, (size_t)(cut->st->nunit + 1) * sizeof(int));
}

/* ---- the layout string --------------------------------------------------- */

typedef struct Letter {
    char letter;
    int at;
} Letter;

typedef struct PatternReader {
    Graph *graph;
    const char *s, *p;
    Letter *out; /* vec: letters after expansion */
} PatternReader;

static _Noreturn void bad(const PatternReader *reader, int at, const char *fmt,
                          ...) __attribute__((format(printf, 3, 4)));

static _Noreturn void bad(const PatternReader *reader, int at, const char *fmt,
                          ...)
{
    va_list ap;

    va_start(ap, fmt);
    char *why = vstrf(reader->graph->arena, fmt, ap);
    va_end(ap);
    err(opts_loc(reader->graph->opts, "fold.layout"),
        "fold.layout %s, position %d: %s", reader->s, at, why);
}

static void letter(PatternReader *reader)
{
    static const char *const cases[] = { "eE", "Tt", "Mm", "lL" };
    int at = (int)(reader->p - reader->s) + 1;
    char c = *reader->p++;

    if (strchr("EtmL|", c)) {
        Letter l = { c, at };
        vec_push(reader->graph->arena, reader->out, l);
        return;
    }
    for (int i = 0; i < 4; i++)
        if (c == cases[i][0])
            bad(reader, at, "'%c' is none of E t m L | (did you mean '%c'?)", c,
                cases[i][1]);
    bad(reader, at, "'%c' is none of E t m L |", c);
}

/* Reads "*29" and repeats the letters from `first` on. */
static void repeat(PatternReader *reader, size_t first)
{
    int at = (int)(reader->p++ - reader->s) + 1;
    size_t len = vec_len(reader->out) - first;
    long n = 0;

    for (; isdigit((unsigned char)*reader->p); reader->p++)
        n = n < LONGEST ? n * 10 + (*reader->p - '0') : LONGEST;
    if (!n || !len)
        bad(reader, at, "'*' stands between what is repeated and how often");
    if ((size_t)n * len + first > LONGEST)
        bad(reader, at, "more than %d letters", LONGEST);
    for (size_t i = 0; i < (size_t)(n - 1) * len; i++) {
        Letter l = reader->out[first + i];
        vec_push(reader->graph->arena, reader->out, l);
    }
}

static void letters(PatternReader *reader, int depth)
{
    while (*reader->p && *reader->p != ')') {
        size_t first = vec_len(reader->out);
        if (*reader->p == ',' || *reader->p == ' ') {
            reader->p++;
            continue;
        }
        if (*reader->p == '(') {
            int at = (int)(reader->p++ - reader->s) + 1;
            if (depth > 8)
                bad(reader, at, "too many parentheses");
            letters(reader, depth + 1);
            if (*reader->p++ != ')')
                bad(reader, at, "'(' without ')'");
        } else {
            letter(reader);
        }
        if (*reader->p == '*')
            repeat(reader, first);
    }
    if (*reader->p && !depth)
        bad(reader, (int)(reader->p - reader->s) + 1, "')' without '('");
}

/* ---- application to the model -------------------------------------------- */

static int count_letters(const PatternReader *reader, char c)
{
    int n = 0;

    for (size_t i = 0; i < vec_len(reader->out); i++)
        n += reader->out[i].letter == c;
    return n;
}

static const char *first_unit(const Stages *st, int mtp, int last)
{
    const char *s = "";

    for (int i = 0; i < st->nunit; i++)
        if (is_mtp(st->unit[i]) == mtp && (last || !*s))
            s = st->unit[i]->path;
    return s;
}

static void check_units(const PatternReader *reader, const Stages *st, int mtp)
{
    int has = count_letters(reader, mtp ? 'm' : 't'), needs = 0;

    for (int i = 0; i < st->nunit; i++)
        needs += is_mtp(st->unit[i]) == mtp;
    if (has == needs || (mtp && !needs))
        return;
    if (!needs)
        err(opts_loc(reader->graph->opts, "fold.layout"),
            "fold.layout %s has %d t, and "
            "the model has none",
            reader->s, has);
    err(opts_loc(reader->graph->opts, "fold.layout"),
        "fold.layout %s has %d %c, and "
        "the model has %d: %s to %s",
        reader->s, has, mtp ? 'm' : 't', needs, first_unit(st, mtp, 0),
        first_unit(st, mtp, 1));
}

static void check_counts(const PatternReader *reader, const Stages *st)
{
    const Opts *opts = reader->graph->opts;
    int has = count_letters(reader, '|') + 1;

    for (const char *c = "EL"; *c; c++)
        if (count_letters(reader, *c) != 1)
            err(opts_loc(opts, "fold.layout"),
                "fold.layout %s has %d %c, and "
                "needs one: %s",
                reader->s, count_letters(reader, *c), *c,
                *c == 'E' ? "the embedding" : "the head and the loss");
    if (has != st->nchunk)
        err(opts_loc(opts, "fold.layout"),
            "fold.layout %s has %d chunk%s, and "
            "fold.pp=%s fold.vpp=%s make %d",
            reader->s, has, has > 1 ? "s" : "", opts_str(opts, "fold.pp"),
            opts_str(opts, "fold.vpp"), st->nchunk);
    check_units(reader, st, 0);
    check_units(reader, st, 1);
}

/* Assigns the next unit of a kind to a chunk, if the model has one. */
static void give_unit(Stages *st, int *next, int mtp, int chunk)
{
    while (*next < st->nunit && is_mtp(st->unit[*next]) != mtp)
        ++*next;
    if (*next < st->nunit)
        st->chunk[(*next)++] = chunk;
}

static void cut_by_layout(Graph *g, Stages *st, const char *layout)
{
    PatternReader x = { .graph = g, .s = layout, .p = layout };
    int chunk = 0, t = 0, m = 0, begun = 0, ended = 0;

    letters(&x, 0);
    check_counts(&x, st);
    for (size_t i = 0; i < vec_len(x.out); i++) {
        Letter l = x.out[i];
        chunk += l.letter == '|';
        if (l.letter == 'E' && begun)
            bad(&x, l.at, "E stands behind what needs it");
        if (l.letter != '|' && ended)
            bad(&x, l.at, "'%c' stands behind L", l.letter);
        begun |= l.letter != '|';
        ended |= l.letter == 'L';
        if (l.letter == 'E')
            st->first = chunk;
        if (l.letter == 'L')
            st->last = chunk;
        if (l.letter == 't' || l.letter == 'm')
            give_unit(st, l.letter == 't' ? &t : &m, l.letter == 'm', chunk);
    }
    for (int i = 1; i < st->nunit; i++)
        if (st->chunk[i] < st->chunk[i - 1])
            err(opts_loc(g->opts, "fold.layout"),
                "fold.layout %s puts %s "
                "before %s, which it needs",
                x.s, st->unit[i]->path, st->unit[i - 1]->path);
}

static void put_run(Text *out, char c, int n)
{
    if (n > 2)
        put(out, "%c*%d", c, n);
    for (int i = 0; n < 3 && i < n; i++)
        put(out, "%c", c);
}

static char *chunk_text(Arena *a, const Stages *st, int chunk)
{
    Text out = { .arena = a };
    int run = 0;

    put(&out, "%s", chunk == st->first ? "E" : "");
    for (int i = 0; i < st->nunit; i++) {
        char c = is_mtp(st->unit[i]) ? 'm' : 't';
        if (st->chunk[i] != chunk)
            continue;
        run++;
        if (i + 1 < st->nunit && st->chunk[i + 1] == chunk &&
            is_mtp(st->unit[i + 1]) == is_mtp(st->unit[i]))
            continue;
        put_run(&out, c, run);
        run = 0;
    }
    put(&out, "%s", chunk == st->last ? "L" : "");
    return out.s;
}

static const char *layout_text(Arena *a, const Stages *st)
{
    Text out = { .arena = a };

    for (int c = 0; c < st->nchunk;) {
        char *s = chunk_text(a, st, c);
        int n = 1;
        while (c + n < st->nchunk - 1 && !strcmp(s, chunk_text(a, st, c + n)))
            n++;
        if (n > 2 && *s) {
            put(&out, "(%s|)*%d", s, n);
            c += n;
            continue;
        }
        put(&out, "%s%s", s, c < st->nchunk - 1 ? "|" : "");
        c++;
    }
    return out.s;
}

/* ---- equal shares -------------------------------------------------------- */

/* Dynamic program. best[k][i]: items 0..i-1 in chunks 0..k, the first and the
 * last of them not empty. limit 0 minimizes the largest chunk; otherwise the
 * sum of squares with no chunk beyond the limit. from[k][i]: start of chunk k.
 * Returns the optimum. */
static double shares(Arena *a, const double *cost, int n, int chunks,
                     double limit, int *begin)
{
    size_t w = (size_t)n + 1, last = (size_t)chunks - 1;
    double *sum = alloc(a, w * sizeof *sum);
    double *best = alloc(a, w * (size_t)chunks * sizeof *best);
    int *from = alloc(a, w * (size_t)chunks * sizeof *from);

    for (int i = 0; i < n; i++)
        sum[i + 1] = sum[i] + cost[i];
    for (size_t k = 0; k <= last; k++)
        for (int i = 0; i <= n; i++) {
            double *to = &best[k * w + (size_t)i], min = -1;
            for (int j = k ? 1 : 0; j <= (k ? i : 0); j++) {
                double own = sum[i] - sum[j];
                double old = k ? best[(k - 1) * w + (size_t)j] : 0;
                double now =
                    limit > 0 ? old + own * own : (own > old ? own : old);
                if (old < 0 || (limit > 0 && own > limit) ||
                    (k == last && j == n) || (!k && !i) ||
                    (min >= 0 && now >= min))
                    continue;
                min = now;
                from[k * w + (size_t)i] = j;
            }
            *to = min;
        }
    for (int i = n, k = chunks - 1; k >= 0; k--)
        i = begin[k] = from[(size_t)k * w + (size_t)i];
    return best[last * w + (size_t)n];
}

/* Minimizes the largest chunk, and among these divisions the sum of squares. */
static void cut_by_cost(StageCut *cut)
{
    Stages *st = cut->st;
    Arena *a = arena_new();
    int n = st->nunit + 2, *begin = alloc(a, (size_t)st->nchunk * sizeof(int));
    double max = shares(a, cut->cost, n, st->nchunk, 0, begin);

    if (max > 0)
        shares(a, cut->cost, n, st->nchunk, max, begin);
    for (int c = 0; c < st->nchunk; c++)
        for (int i = begin[c]; i < (c + 1 < st->nchunk ? begin[c + 1] : n); i++)
            if (i && i < n - 1)
                st->chunk[i - 1] = c;
    st->first = 0;
    st->last = st->nchunk - 1;
    arena_free(a);
}

/* ---- between units ------------------------------------------------------- */

enum { AFTER = 1, BEFORE = 2 }; /* it reads a unit; a unit reads it */

static void add_scope(Arena *a, const Scope ***v, const Scope *scope)
{
    for (size_t i = 0; i < vec_len(*v); i++)
        if ((*v)[i] == scope)
            return;
    vec_push(a, *v, scope);
}

/* Finds Stages.between in the model, so that programs without the later unit
 * agree. */
static void find_between(Graph *g, Stages *st)
{
    size_t n = vec_len(g->node);
    char *side = alloc(g->arena, n + 1);

    g_renumber(g);
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < g->node[i]->nin; k++) {
            const Node *x = g->node[i]->in[k];
            side[i] |= side[x->id] & AFTER;
            side[i] |= unit_at(st, x->scope) >= 0 ? AFTER : 0;
        }
    for (size_t i = n; i-- > 0;) {
        const Node *x = g->node[i];
        int reads = side[i] & BEFORE || unit_at(st, x->scope) >= 0;
        for (int k = 0; k < x->nin && reads; k++)
            side[x->in[k]->id] |= BEFORE;
        if (side[i] == (AFTER | BEFORE) && x->scope->base != g->top &&
            unit_at(st, x->scope) < 0)
            add_scope(g->arena, &st->between, x->scope->base);
    }
}

Stages *stages_cut(Graph *g)
{
    int64_t pp = opts_int(g->opts, "fold.pp");
    int64_t v = opts_int(g->opts, "fold.vpp");
    const char *layout = opts_str(g->opts, "fold.layout");
    StageCut x = { .graph = g };

    if (pp < 2)
        return NULL;
    if (pp > 4096 || v > 4096 || pp * v > 4096)
        err(opts_loc(g->opts, "fold.pp"),
            "fold.pp=%lld fold.vpp=%lld make "
            "more than 4096 chunks",
            (long long)pp, (long long)v);
    x.st = alloc(g->arena, sizeof *x.st);
    x.st->nchunk = (int)(pp * v);
    find_units(&x);
    if (!x.st->nunit)
        err(opts_loc(g->opts, "fold.pp"),
            "fold.pp=%lld, but the model has no "
            "layers to cut: no scope has a number, as \"layers.0\"",
            (long long)pp);
    if (layout)
        cut_by_layout(g, x.st, layout);
    else if (pp > x.st->nunit + 2)
        err(opts_loc(g->opts, "fold.pp"),
            "fold.pp=%lld, but the model has %d "
            "layer%s to cut (nearest legal: %d, with the embedding and the "
            "head by themselves)",
            (long long)pp, x.st->nunit, x.st->nunit == 1 ? "" : "s",
            x.st->nunit + 2);
    else
        cut_by_cost(&x);
    x.st->text = layout_text(g->arena, x.st);
    find_between(g, x.st);
    return x.st;
}
