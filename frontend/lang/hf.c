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

#include "../frontend.h"

enum { MAXBIND = 4 };

typedef struct Binding {
    const char *name[MAXBIND], *value[MAXBIND];
    size_t nname[MAXBIND], nvalue[MAXBIND];
    int n;
    int choice, choices; /* of {a,b}; choices 0: there was none */
} Binding;

typedef struct HfAxesReader {
    Front *front;
    const HfEntry *e;
    const Param *p;
    const Binding *b;
    const char *s; /* rest of the axes string */
    HfMap m;
} HfAxesReader;

/* ---- the left side ------------------------------------------------------- */

static int match(const char *pat, const char *s, Binding *binding);

static int match_choice(const char *pat, const char *end, const char *s,
                        Binding *binding)
{
    int k = 0;
    Binding at = *binding;

    for (const char *w = pat; w < end; k++) {
        size_t n = strcspn(w, ",}");
        Binding try = at;
        if (!strncmp(s, w, n) && match(end + 1, s + n, &try)) {
            *binding = try;
            binding->choice = k;
            binding->choices = 1;
            for (const char *c = pat; c < end; c++)
                binding->choices += *c == ',';
            return 1;
        }
        w += n + 1;
    }
    return 0;
}

/* Does path s match? Binds {i} to its number, {a,binding} to which of them it
 * is. */
static int match(const char *pat, const char *s, Binding *binding)
{
    while (*pat && *pat != '{' && *pat == *s)
        pat++, s++;
    if (*pat != '{')
        return *pat == 0 && *s == 0;
    const char *end = strchr(pat, '}');
    if (!end)
        return 0;
    if (memchr(pat, ',', (size_t)(end - pat)))
        return match_choice(pat + 1, end, s, binding);
    size_t n = strspn(s, "0123456789");
    if (n == 0 || binding->n == MAXBIND)
        return 0;
    binding->name[binding->n] = pat + 1;
    binding->nname[binding->n] = (size_t)(end - pat - 1);
    binding->value[binding->n] = s;
    binding->nvalue[binding->n++] = n;
    return match(end + 1, s + n, binding);
}

/* ---- the right side ------------------------------------------------------ */

static void unroll(HfAxesReader *reader, const char *s, size_t n)
{
    int d = param_axis(reader->p, s, n);

    if (d < 0)
        err(reader->e->loc,
            "hf: '{%.*s}' in \"%s\" is neither on the left nor an axis of '%s'",
            (int)n, s, reader->e->hf, reader->p->path);
    if (reader->m.nfix == 4)
        err(reader->e->loc, "hf: more than 4 unrolled axes in \"%s\"",
            reader->e->hf);
    reader->m.fixaxis[reader->m.nfix] = reader->p->dim[d].a->name;
    reader->m.fixat[reader->m.nfix++] = -1;
}

/* The tensor's name, with {i} replaced; {axis} stays for its indices. */
static void read_name(HfAxesReader *reader)
{
    Text out = { .arena = reader->front->g->arena };
    const char *rest,
        *source = opts_source(reader->front->g->opts, reader->p->path, &rest);

    put(&out, source ? "%s:" : "", source);
    for (const char *s = reader->e->hf; *s;) {
        const char *end = *s == '{' ? strchr(s, '}') : NULL;
        size_t n = end ? (size_t)(end - s - 1) : 0;
        int k = 0;
        if (!end) {
            putn(&out, s++, 1);
            continue;
        }
        while (k < reader->b->n && (reader->b->nname[k] != n ||
                                    strncmp(reader->b->name[k], s + 1, n)))
            k++;
        if (k < reader->b->n) {
            putn(&out, reader->b->value[k], reader->b->nvalue[k]);
        } else {
            unroll(reader, s + 1, n);
            putn(&out, s, n + 2);
        }
        s = end + 1;
    }
    reader->m.hf = intern(out.s ? out.s : "");
}

static _Noreturn void bad(const HfAxesReader *reader, const char *what)
{
    err(reader->e->loc, "hf: %s in \"%s\"", what, reader->e->axes);
}

static void skip(HfAxesReader *reader)
{
    reader->s += strspn(reader->s, " ");
}

/* name | number -> a factor; its size is the axis's. */
static HfFactor item(HfAxesReader *reader)
{
    size_t n = strcspn(reader->s, " ()|");
    HfFactor x = { NULL, 1, 0, 1 };

    skip(reader);
    n = strcspn(reader->s, " ()|");
    if (n == 0)
        bad(reader, "an axis is missing");
    if (isdigit((unsigned char)*reader->s)) {
        x.total = x.n = strtoll(reader->s, NULL, 10);
    } else {
        Axis *a[1];
        reader->front->loc = reader->e->loc;
        reader->front->fn = "hf";
        axes_known(reader->front,
                   strf(reader->front->g->arena, "%.*s", (int)n, reader->s), a,
                   1);
        x.axis = a[0]->name;
        x.total = x.n = axis_size(reader->front, a[0], reader->e->axes);
    }
    reader->s += n;
    skip(reader);
    return x;
}

static void push(HfAxesReader *reader, HfDim *dim, HfFactor x)
{
    if (dim->nf == 4)
        bad(reader, "more than 4 axes in one dimension");
    dim->f[dim->nf++] = x;
}

/* first "|" item ...: this parameter's branch, at its place in the whole. */
static HfFactor branches(HfAxesReader *reader, HfFactor first)
{
    HfFactor mine = first, x = first;
    int64_t total = first.n;
    int k = 0;

    for (; *reader->s == '|';) {
        reader->s++;
        x = item(reader);
        if (++k == reader->b->choice) {
            mine = x;
            mine.start = total;
        }
        total += x.n;
    }
    if (k + 1 < reader->b->choices || reader->b->choices == 0)
        bad(reader, "branches (a|b) need as many parameters {a,b} on the left");
    mine.total = total;
    return mine;
}

/* "(" item+ ")" or "(" item ("|" item)+ ")", nested ones in the first. */
static void group(HfAxesReader *reader, HfDim *dim, int depth)
{
    if (depth > 3)
        bad(reader, "too many parentheses");
    reader->s++;
    for (skip(reader); *reader->s && *reader->s != ')'; skip(reader)) {
        if (*reader->s == '(') {
            group(reader, dim, depth + 1);
            continue;
        }
        HfFactor x = item(reader);
        if (*reader->s == '|')
            x = branches(reader, x);
        push(reader, dim, x);
    }
    if (*reader->s != ')')
        bad(reader, "a ) is missing");
    reader->s++;
}

static void read_dims(HfAxesReader *reader)
{
    reader->s = reader->e->axes;
    for (skip(reader); *reader->s; skip(reader)) {
        HfDim *d = &reader->m.dim[reader->m.nd];
        if (reader->m.nd++ == MAXD)
            bad(reader, "too many dimensions");
        if (*reader->s == '(')
            group(reader, d, 0);
        else
            push(reader, d, item(reader));
    }
}

/* Every axis of the parameter stands once, and no other. */
static void check(HfAxesReader *reader)
{
    int seen[MAXD] = { 0 };

    for (int i = 0; i < reader->m.nfix; i++)
        seen[param_axis(reader->p, reader->m.fixaxis[i],
                        strlen(reader->m.fixaxis[i]))]++;
    for (int i = 0; i < reader->m.nd; i++)
        for (int k = 0; k < reader->m.dim[i].nf; k++) {
            const HfFactor *factor = &reader->m.dim[i].f[k];
            int d = factor->axis ? param_axis(reader->p, factor->axis,
                                              strlen(factor->axis))
                                 : 0;
            if (d < 0)
                err(reader->e->loc,
                    "hf: '%s' has no axis '%s', which stands in \"%s\"",
                    reader->p->path, factor->axis, reader->e->axes);
            seen[d] += factor->axis != NULL;
        }
    for (int d = 0; d < reader->p->nd; d++)
        if (seen[d] != 1)
            err(reader->e->loc,
                "hf: the axis '%s' of '%s' must stand once in \"%s\"%s",
                reader->p->dim[d].a->name, reader->p->path, reader->e->axes,
                reader->m.nfix ? " or as {axis} in the tensor's name" : "");
}

static void map_param(Front *front, HfEntry *entry, const Param *p,
                      const Binding *binding)
{
    HfAxesReader r = { .front = front,
                       .e = entry,
                       .p = p,
                       .b = binding,
                       .m = { .param = p->path } };
    void **slot = place_of(front, "hf", p->path);

    if (*slot) {
        note(*slot, "first mapped here");
        err(entry->loc, "hf: '%s' is mapped twice", p->path);
    }
    *slot = (void *)(uintptr_t)entry->loc;
    read_name(&r);
    read_dims(&r);
    check(&r);
    vec_push(front->g->arena, front->g->hf, r.m);
    entry->found++;
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

static void not_found(Front *front, const HfEntry *entry)
{
    size_t n = vec_len(front->g->param);
    const char **names = alloc(front->g->arena, (n + 1) * sizeof *names);

    for (size_t i = 0; i < n; i++)
        names[i] = general(front->g->arena, front->g->param[i]->path);
    err(entry->loc, "hf: no parameter is named '%s'%s", entry->param,
        did_you_mean(entry->param, names, n));
}

void hf_finish(Front *front)
{
    for (size_t k = 0; k < vec_len(front->hf); k++) {
        HfEntry *e = &front->hf[k];
        for (size_t i = 0; i < vec_len(front->g->param); i++) {
            Binding b = { .choices = 0 };
            const char *path = front->g->param[i]->path;
            opts_source(front->g->opts, path, &path);
            if (match(e->param, path, &b))
                map_param(front, e, front->g->param[i], &b);
        }
        if (e->found == 0)
            not_found(front, e);
    }
    peft_maps(front);
    front->g->nhf = (int)vec_len(front->g->hf);
    const HfMap *at;
    const char *why =
        hf_tensors_wrong(front->g->arena, front->g->hf, front->g->nhf, &at);
    if (why)
        err(*place_of(front, "hf", at->param), "hf: '%s' of '%s' %s", at->hf,
            at->param, why);
    hf_config_check(front);
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
    Front *front = enter(L, "hf");
    int n;

    const char **key = sorted_keys(L, 1, &n);
    for (int i = 0; i < n; i++) {
        if (!strcmp(key[i], "config")) {
            lua_getfield(L, 1, key[i]);
            if (!lua_istable(L, -1))
                err(front->loc,
                    "hf: config must be a table: { vocab_size=.. }");
            hf_config(L, front);
            lua_pop(L, 1);
            continue;
        }
        HfEntry e = { .param = key[i], .loc = front->loc };
        if (lua_getfield(L, 1, key[i]) == LUA_TTABLE &&
            lua_rawlen(L, -1) == 2) {
            e.hf = text_at(L, lua_gettop(L), 1);
            e.axes = text_at(L, lua_gettop(L), 2);
        }
        lua_pop(L, 1);
        if (!e.hf || !e.axes)
            err(front->loc, "hf: '%s' must be { \"tensor name\", \"axes\" }",
                key[i]);
        vec_push(front->g->arena, front->hf, e);
    }
    return 0;
}
