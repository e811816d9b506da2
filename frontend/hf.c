/* hf.c: hf{} says which Hugging Face tensor holds a parameter, and in which
 * order of axes:
 *
 *     ["layers.{i}.attn.wq"] = { "model.layers.{i}.self_attn.q_proj.weight",
 *                                "(kv group dim) hidden" }
 *
 *   {i}            on the left: any number; on the right: the same number
 *   {a,b}          on the left: these parameters share one tensor
 *   {expert}       on the right: an axis unrolled into one tensor an index
 *   (kv group dim) one dimension made of axes, major first
 *   (nope|rot)     one after another: the first parameter of {a,b} has nope,
 *                  the second rot; a number: that many fixed places */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "frontend.h"

enum { MAXBIND = 4 };

typedef struct Binding {
    const char *name[MAXBIND], *value[MAXBIND];
    size_t nname[MAXBIND], nvalue[MAXBIND];
    int n;
    int choice, choices; /* of {a,b}; choices 0: there was none */
} Binding;

typedef struct HfAxesReader {
    Front *f;
    const HfEntry *e;
    const Param *p;
    const Binding *b;
    const char *s; /* rest of the axes string */
    HfMap m;
} HfAxesReader;

/* ---- the left side ------------------------------------------------------- */

static int match(const char *pat, const char *s, Binding *b);

static int match_choice(const char *pat, const char *end, const char *s,
                        Binding *b)
{
    int k = 0;
    Binding at = *b;

    for (const char *w = pat; w < end; k++) {
        size_t n = strcspn(w, ",}");
        Binding try = at;
        if (!strncmp(s, w, n) && match(end + 1, s + n, &try)) {
            *b = try;
            b->choice = k;
            b->choices = 1;
            for (const char *c = pat; c < end; c++)
                b->choices += *c == ',';
            return 1;
        }
        w += n + 1;
    }
    return 0;
}

/* Does path s match? Binds {i} to its number, {a,b} to which of them it is. */
static int match(const char *pat, const char *s, Binding *b)
{
    while (*pat && *pat != '{' && *pat == *s)
        pat++, s++;
    if (*pat != '{')
        return *pat == 0 && *s == 0;
    const char *end = strchr(pat, '}');
    if (!end)
        return 0;
    if (memchr(pat, ',', (size_t)(end - pat)))
        return match_choice(pat + 1, end, s, b);
    size_t n = strspn(s, "0123456789");
    if (n == 0 || b->n == MAXBIND)
        return 0;
    b->name[b->n] = pat + 1;
    b->nname[b->n] = (size_t)(end - pat - 1);
    b->value[b->n] = s;
    b->nvalue[b->n++] = n;
    return match(end + 1, s + n, b);
}

/* ---- the right side ------------------------------------------------------ */

static int param_axis(const Param *param, const char *s, size_t n)
{
    for (int i = 0; i < param->nd; i++)
        if (strlen(param->dim[i].a->name) == n &&
            !strncmp(param->dim[i].a->name, s, n))
            return i;
    return -1;
}

static void unroll(HfAxesReader *r, const char *s, size_t n)
{
    int d = param_axis(r->p, s, n);

    if (d < 0)
        err(r->e->loc,
            "hf: '{%.*s}' in \"%s\" is neither on the left nor an axis of '%s'",
            (int)n, s, r->e->hf, r->p->path);
    if (r->m.nfix == 4)
        err(r->e->loc, "hf: more than 4 unrolled axes in \"%s\"", r->e->hf);
    r->m.fixaxis[r->m.nfix] = r->p->dim[d].a->name;
    r->m.fixat[r->m.nfix++] = -1;
}

/* The tensor's name, with {i} replaced; {axis} stays for its indices. */
static void read_name(HfAxesReader *r)
{
    Text out = { .arena = r->f->g->arena };

    for (const char *s = r->e->hf; *s;) {
        const char *end = *s == '{' ? strchr(s, '}') : NULL;
        size_t n = end ? (size_t)(end - s - 1) : 0;
        int k = 0;
        if (!end) {
            putn(&out, s++, 1);
            continue;
        }
        while (k < r->b->n &&
               (r->b->nname[k] != n || strncmp(r->b->name[k], s + 1, n)))
            k++;
        if (k < r->b->n) {
            putn(&out, r->b->value[k], r->b->nvalue[k]);
        } else {
            unroll(r, s + 1, n);
            putn(&out, s, n + 2);
        }
        s = end + 1;
    }
    r->m.hf = intern(out.s ? out.s : "");
}

static _Noreturn void bad(const HfAxesReader *r, const char *what)
{
    err(r->e->loc, "hf: %s in \"%s\"", what, r->e->axes);
}

static void skip(HfAxesReader *r)
{
    r->s += strspn(r->s, " ");
}

/* name | number -> a factor; its size is the axis's. */
static HfFactor item(HfAxesReader *r)
{
    size_t n = strcspn(r->s, " ()|");
    HfFactor x = { NULL, 1, 0, 1 };

    skip(r);
    n = strcspn(r->s, " ()|");
    if (n == 0)
        bad(r, "an axis is missing");
    if (isdigit((unsigned char)*r->s)) {
        x.total = x.n = strtoll(r->s, NULL, 10);
    } else {
        Axis *a[1];
        r->f->loc = r->e->loc;
        r->f->fn = "hf";
        axes_known(r->f, strf(r->f->g->arena, "%.*s", (int)n, r->s), a, 1);
        x.axis = a[0]->name;
        x.total = x.n = axis_size(r->f, a[0], r->e->axes);
    }
    r->s += n;
    skip(r);
    return x;
}

static void push(HfAxesReader *r, HfDim *d, HfFactor x)
{
    if (d->nf == 4)
        bad(r, "more than 4 axes in one dimension");
    d->f[d->nf++] = x;
}

/* first "|" item ...: this parameter's branch, at its place in the whole. */
static HfFactor branches(HfAxesReader *r, HfFactor first)
{
    HfFactor mine = first, x = first;
    int64_t total = first.n;
    int k = 0;

    for (; *r->s == '|';) {
        r->s++;
        x = item(r);
        if (++k == r->b->choice) {
            mine = x;
            mine.start = total;
        }
        total += x.n;
    }
    if (k + 1 < r->b->choices || r->b->choices == 0)
        bad(r, "branches (a|b) need as many parameters {a,b} on the left");
    mine.total = total;
    return mine;
}

/* "(" item+ ")" or "(" item ("|" item)+ ")", nested ones in the first. */
static void group(HfAxesReader *r, HfDim *d, int depth)
{
    if (depth > 3)
        bad(r, "too many parentheses");
    r->s++;
    for (skip(r); *r->s && *r->s != ')'; skip(r)) {
        if (*r->s == '(') {
            group(r, d, depth + 1);
            continue;
        }
        HfFactor x = item(r);
        if (*r->s == '|')
            x = branches(r, x);
        push(r, d, x);
    }
    if (*r->s != ')')
        bad(r, "a ) is missing");
    r->s++;
}

static void read_dims(HfAxesReader *r)
{
    r->s = r->e->axes;
    for (skip(r); *r->s; skip(r)) {
        HfDim *d = &r->m.dim[r->m.nd];
        if (r->m.nd++ == MAXD)
            bad(r, "too many dimensions");
        if (*r->s == '(')
            group(r, d, 0);
        else
            push(r, d, item(r));
    }
}

/* Every axis of the parameter stands once, and no other. */
static void check(HfAxesReader *r)
{
    int seen[MAXD] = { 0 };

    for (int i = 0; i < r->m.nfix; i++)
        seen[param_axis(r->p, r->m.fixaxis[i], strlen(r->m.fixaxis[i]))]++;
    for (int i = 0; i < r->m.nd; i++)
        for (int k = 0; k < r->m.dim[i].nf; k++) {
            const HfFactor *x = &r->m.dim[i].f[k];
            int d = x->axis ? param_axis(r->p, x->axis, strlen(x->axis)) : 0;
            if (d < 0)
                err(r->e->loc,
                    "hf: '%s' has no axis '%s', which stands in \"%s\"",
                    r->p->path, x->axis, r->e->axes);
            seen[d] += x->axis != NULL;
        }
    for (int d = 0; d < r->p->nd; d++)
        if (seen[d] != 1)
            err(r->e->loc,
                "hf: the axis '%s' of '%s' must stand once in \"%s\"%s",
                r->p->dim[d].a->name, r->p->path, r->e->axes,
                r->m.nfix ? " or as {axis} in the tensor's name" : "");
}

static void map_param(Front *f, HfEntry *e, const Param *p, const Binding *b)
{
    HfAxesReader r = {
        .f = f, .e = e, .p = p, .b = b, .m = { .param = p->path }
    };
    uint64_t of = mix64(0, KEYP(intern("hf")));
    void **slot = table_at(f->places, mix64(of, KEYP(p->path)));

    if (*slot) {
        note(*slot, "first mapped here");
        err(e->loc, "hf: '%s' is mapped twice", p->path);
    }
    *slot = (void *)(uintptr_t)e->loc;
    read_name(&r);
    read_dims(&r);
    check(&r);
    vec_push(f->g->arena, f->g->hf, r.m);
    e->found++;
}

/* "layers.3.attn.wq" -> "layers.{i}.attn.wq", to suggest one. */
static const char *general(Arena *a, const char *path)
{
    Text out = { .arena = a };

    for (const char *s = path; *s;) {
        size_t n = s == path || s[-1] == '.' ? strspn(s, "0123456789") : 0;
        if (n && (s[n] == '.' || !s[n]))
            put(&out, "{i}");
        else
            putn(&out, s, n = 1);
        s += n;
    }
    return out.s;
}

static void not_found(Front *f, const HfEntry *e)
{
    size_t n = vec_len(f->g->param);
    const char **names = alloc(f->g->arena, (n + 1) * sizeof *names);

    for (size_t i = 0; i < n; i++)
        names[i] = general(f->g->arena, f->g->param[i]->path);
    err(e->loc, "hf: no parameter is named '%s'%s", e->param,
        did_you_mean(e->param, names, n));
}

void hf_finish(Front *f)
{
    for (size_t k = 0; k < vec_len(f->hf); k++) {
        HfEntry *e = &f->hf[k];
        for (size_t i = 0; i < vec_len(f->g->param); i++) {
            Binding b = { .choices = 0 };
            if (match(e->param, f->g->param[i]->path, &b))
                map_param(f, e, f->g->param[i], &b);
        }
        if (e->found == 0)
            not_found(f, e);
    }
    f->g->nhf = (int)vec_len(f->g->hf);
    hf_config_check(f);
}

static const char *text_at(lua_State *L, int table, int i)
{
    const char *s = NULL;

    if (lua_rawgeti(L, table, i) == LUA_TSTRING &&
        strlen(lua_tostring(L, -1)) == lua_rawlen(L, -1))
        s = intern(lua_tostring(L, -1));
    lua_pop(L, 1);
    return s;
}

/* hf { ["path"] = { "tensor name", "axes" }, .., config={ .. } } */
int lua_hf(lua_State *L)
{
    Front *f = enter(L, "hf");
    int n;

    const char **key = sorted_keys(L, 1, &n);
    for (int i = 0; i < n; i++) {
        if (!strcmp(key[i], "config")) {
            lua_getfield(L, 1, key[i]);
            if (!lua_istable(L, -1))
                err(f->loc, "hf: config must be a table: { vocab_size=.. }");
            hf_config(L, f);
            lua_pop(L, 1);
            continue;
        }
        HfEntry e = { .param = key[i], .loc = f->loc };
        if (lua_getfield(L, 1, key[i]) == LUA_TTABLE &&
            lua_rawlen(L, -1) == 2) {
            e.hf = text_at(L, lua_gettop(L), 1);
            e.axes = text_at(L, lua_gettop(L), 2);
        }
        lua_pop(L, 1);
        if (!e.hf || !e.axes)
            err(f->loc, "hf: '%s' must be { \"tensor name\", \"axes\" }",
                key[i]);
        vec_push(f->g->arena, f->hf, e);
    }
    return 0;
}
