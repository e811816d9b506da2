/* columns.c: aligns lines in columns and folds repeated scopes.
 *
 * A scope with a number (layers.0, layers.1 ..) is a unit. Consecutive units
 * whose numbers ascend or descend by one, with equal lines except for the
 * number and for operands from other units, are folded into one:
 *
 *     # layers.0 .. layers.31: x32
 *     %layers.{i}.w.2 = dot %layers.{i-1}.add %layers.{i}.w
 *
 * The second unit is shown, since the first often has other operands. */
#include <ctype.h>

#include "graph.h"

enum { NAMECOL = 40, WHATCOL = 76, TYPECOL = 48 };

/* ---- columns ------------------------------------------------------------- */

/* Returns the width of a column: that of its widest text within the limit. */
static size_t width(const char *s, size_t now, size_t limit)
{
    size_t n = s ? strlen(s) : 0;
    return n > now && n <= limit ? n : now;
}

static void put_cell(Text *out, const char *s, size_t w, int last)
{
    size_t n = s ? strlen(s) : 0;

    if (n)
        putn(out, s, n);
    for (; !last && n < w; n++)
        putn(out, " ", 1);
}

typedef struct Columns {
    size_t name, what, type, shard;
} Columns;

static Columns columns(const ListingLine *line, size_t n)
{
    Columns c = { 0 };

    for (size_t i = 0; i < n; i++) {
        c.name = width(line[i].name, c.name, NAMECOL);
        c.what = width(line[i].what, c.what, WHATCOL);
        c.type = width(line[i].type, c.type, TYPECOL);
        c.shard = width(line[i].shard, c.shard, TYPECOL);
    }
    return c;
}

static void put_line(Text *out, const ListingLine *line, Columns c,
                     const char *indent, const char *eq)
{
    int last = line->loc ? 4 : line->shard ? 3 : line->type ? 2 : 1;

    put(out, "%s", indent);
    put_cell(out, line->name, c.name, 0);
    put(out, "%s", eq);
    put_cell(out, line->what, c.what, last == 1);
    if (last > 1)
        put(out, "  ");
    put_cell(out, line->type, c.type, last <= 2);
    if (line->shard || (line->loc && c.shard))
        put(out, "  ");
    put_cell(out, line->shard, c.shard, last <= 3);
    if (line->loc)
        put(out, "  %s", line->loc);
    put(out, "\n");
}

/* ---- repeated scopes ----------------------------------------------------- */

/* A scope's first number: "layers.3.attn" has stem "layers" and number 3. */
typedef struct NumberedScope {
    const char *stem;
    size_t n;
    long at;
} NumberedScope;

static NumberedScope unit_of(const char *path)
{
    for (const char *p = path; *p; p++) {
        if (*p != '.' || !isdigit((unsigned char)p[1]))
            continue;
        char *end;
        long at = strtol(p + 1, &end, 10);
        if (*end == '.' || !*end)
            return (NumberedScope){ path, (size_t)(p - path), at };
    }
    return (NumberedScope){ path, 0, -1 };
}

/* Returns the last word of a stem, before the number. */
static const char *last_word(NumberedScope u, size_t *n)
{
    const char *p = u.stem + u.n;

    while (p > u.stem && p[-1] != '.')
        p--;
    *n = (size_t)(u.stem + u.n - p);
    return p;
}

/* Are two scopes in one unit? "layers.3", "post.layers.3", "optim.m.layers.3"
 * are; the backward "d.layers.3" is another unit. */
static int same_stem(NumberedScope a, NumberedScope b)
{
    size_t n, m;
    const char *v = last_word(a, &n), *w = last_word(b, &m);
    int back = a.n > 2 && !memcmp(a.stem, "d.", 2);

    return n == m && !memcmp(v, w, n) &&
           back == (b.n > 2 && !memcmp(b.stem, "d.", 2));
}

/* Returns the length of "layers.<number>" at s, and the number; 0: none. */
static size_t number_at(const char *s, NumberedScope u, long *at)
{
    size_t n;
    const char *w = last_word(u, &n);
    char *end;

    if (strncmp(s, w, n) || s[n] != '.' || !isdigit((unsigned char)s[n + 1]))
        return 0;
    *at = strtol(s + n + 1, &end, 10);
    return *end == '.' ? (size_t)(end - s) : 0;
}

static int wordchar(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '-';
}

/* Appends s with the unit's number as {i} and its neighbours' as {i-1} and
 * {i+1}. blur: omits names of other scopes and random keys, for comparison. */
static void put_general(Text *out, const char *s, NumberedScope u, int blur)
{
    while (s && *s) {
        size_t n = strcspn(s, "% =");
        size_t w = n;
        long at;
        putn(out, s, n);
        s += n;
        if (!*s)
            break;
        n = 1;
        for (w = 1; wordchar(s[w]); w++)
            ;
        int mine = 0, key = blur && out->len > 3 && *s == '=' &&
                            !memcmp(out->s + out->len - 3, "key", 3);
        putn(out, s, 1);
        for (size_t i = 1; i < w && !mine && !key; i++) {
            if (s[i - 1] == '.' || i == 1)
                n = number_at(s + i, u, &at);
            else
                n = 0;
            if (!n || labs(at - u.at) > (blur ? 0 : 1))
                continue;
            size_t len;
            const char *word = last_word(u, &len);
            putn(out, s + 1, i - 1);
            put(out, "%.*s.%s", (int)len, word,
                at == u.at  ? "{i}"
                : at < u.at ? "{i-1}"
                            : "{i+1}");
            putn(out, s + i + n, w - i - n);
            mine = 1;
        }
        if (!mine && !key && !(blur && *s == '%'))
            putn(out, s + 1, w - 1);
        s += w;
    }
}

static const char *general(Arena *a, const char *s, NumberedScope u, int blur)
{
    Text out = { .arena = a };

    if (!s)
        return NULL;
    put(&out, "%s", "");
    put_general(&out, s, u, blur);
    return out.s;
}

static int same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

/* Returns the number of lines from i on that belong to one unit. */
static size_t run_at(const ListingLine *line, size_t n, size_t i,
                     NumberedScope *scope)
{
    size_t k = i;

    *scope = unit_of(line[i].path);
    for (; k < n && line[k].reg == line[i].reg; k++) {
        NumberedScope x = unit_of(line[k].path);
        if (x.at != scope->at || !same_stem(x, *scope))
            break;
    }
    return k - i;
}

static int same_run(Arena *a, const ListingLine *v, const ListingLine *w,
                    size_t n, NumberedScope u, NumberedScope x)
{
    for (size_t i = 0; i < n; i++) {
        if (!same_text(v[i].type, w[i].type) ||
            !same_text(v[i].shard, w[i].shard) ||
            !same_text(v[i].loc, w[i].loc) ||
            strcmp(general(a, v[i].name, u, 1), general(a, w[i].name, x, 1)) ||
            strcmp(general(a, v[i].what, u, 1), general(a, w[i].what, x, 1)))
            return 0;
    }
    return 1;
}

/* Returns the number of consecutive equal runs, including the one at i. */
static size_t repeats(Arena *a, const ListingLine *line, size_t n, size_t i,
                      size_t len, NumberedScope u, long *last)
{
    size_t count = 1;
    long way = 0;

    *last = u.at;
    for (size_t k = i + len; u.at >= 0 && k < n; k += len, count++) {
        NumberedScope x;
        if (run_at(line, n, k, &x) != len || !same_stem(u, x))
            break;
        if (!way)
            way = x.at - *last;
        if (x.at - *last != way || labs(way) != 1 ||
            line[k].reg != line[i].reg ||
            !same_run(a, line + i, line + k, len, u, x))
            break;
        *last = x.at;
    }
    return count;
}

void stand_ins(Arena *a, const ListingLine *line, size_t n, StandIn *in)
{
    for (size_t i = 0; i < n;) {
        NumberedScope u;
        long last;
        size_t w, len = run_at(line, n, i, &u);
        size_t times = repeats(a, line, n, i, len, u, &last);
        const char *word = last_word(u, &w), *text = NULL;
        if (times > 1)
            text = strf(a, "%.*s.%ld .. %.*s.%ld: x%zu", (int)w, word, u.at,
                        (int)w, word, last, times);
        for (size_t k = 0; k < times * len; k++)
            in[i + k] = (StandIn){ times > 1 ? i + len + k % len : i + k,
                                   times > 1 ? k / len : 0, text };
        i += times * len;
    }
}

/* Returns the lines with every repeat folded into one copy after a comment. */
static ListingLine *folded(Arena *a, const ListingLine *line, size_t n)
{
    ListingLine *out = NULL;
    StandIn *s = alloc(a, (n + 1) * sizeof *s);

    stand_ins(a, line, n, s);
    for (size_t i = 0; i < n; i++) {
        NumberedScope u = unit_of(line[i].path);
        ListingLine l = line[i];
        if (s[i].line != i)
            continue;
        if (s[i].repeat && s[i - 1].line != i - 1) {
            ListingLine c = { .note = strf(a, "# %s", s[i].repeat) };
            vec_push(a, out, c);
        }
        l.name = s[i].repeat ? general(a, l.name, u, 0) : l.name;
        l.what = s[i].repeat ? general(a, l.what, u, 0) : l.what;
        vec_push(a, out, l);
    }
    return out;
}

void put_lines(Text *out, const ListingLine *line, size_t n, const char *indent,
               const char *eq, int fold)
{
    Arena *a = arena_new();
    ListingLine *f = fold ? folded(a, line, n) : NULL;
    const ListingLine *show = fold ? f : line;
    size_t count = fold ? vec_len(f) : n;
    Columns c = columns(show, count);

    for (size_t i = 0; i < count; i++)
        if (show[i].note)
            put(out, "%s%s\n", indent, show[i].note);
        else
            put_line(out, &show[i], c, indent, eq);
    arena_free(a);
}
