/* print.c: a graph as text. parse.c reads it back and has the grammar; printing
 * what was read gives the same bytes.
 *
 *     graph mixtral step logical {
 *       axis  batch   4
 *       param wq      normal 0.02                  real [hidden heads dim]
 *       body:
 *         %tokens   = input                        i32  [micro batch seq]
 *         %q        = dot %x %wq axes=hidden       real [micro batch heads dim]
 *     }
 *
 * A node is one line: name, op, operands, attributes, dtype and axes (an axis
 * with its size only when it is not the declared one), the sharding type from
 * level `placed` on, and the place when asked for. Bodies of composites stand
 * in front, each distinct one once.
 *
 * With PRINTfold, scopes that repeat with a number (layers.0, layers.1 ..) and
 * are the same but for that number are printed once. That is for reading
 * only. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir.h"

typedef struct GraphPrinter {
    Arena *arena;
    int flags;
    Text bodies;
    Table *label;          /* body -> its name */
    Table *bytext, *count; /* hash of text -> name; name -> how many */
    Table *known;
    Axis **axis;  /* all axes seen, the graph's own first */
    Table *usual; /* undeclared axis -> its size when first met */
    Table *alias; /* nodes of the body being printed -> name */
} GraphPrinter;

/* ---- what the text leaves out -------------------------------------------- */

const char *text_scope(const char *name)
{
    const char *end = name + strlen(name), *p = end;

    while (p > name && isdigit((unsigned char)p[-1]))
        p--;
    if (p < end && p > name && p[-1] == '.')
        end = p - 1;
    for (p = end; p > name && p[-1] != '.'; p--)
        ;
    return internn(name, p > name ? (size_t)(p - 1 - name) : 0);
}

Node *text_map(const Node *n)
{
    int rows = 0;

    for (int i = 0; i < n->nd; i++)
        rows |= g_isrow(n->dim[i].a);
    if (!rows)
        return NULL;
    if (n->nin && n->in[n->nin - 1]->op == Oroute)
        return n->in[n->nin - 1];
    for (int i = 0; i < n->nin; i++)
        if (n->in[i]->map)
            return n->in[i]->map;
    return NULL;
}

/* ---- words --------------------------------------------------------------- */

/* Shortest decimal that reads back as the same double. */
static void put_num(Text *t, double v)
{
    char s[40];
    int digits = 6;

    do
        snprintf(s, sizeof s, "%.*g", digits, v);
    while (digits++ < 17 && strtod(s, NULL) != v && !isnan(v));
    putn(t, s, strlen(s));
}

/* The name of an axis, which the header will then declare. */
static void put_axis(GraphPrinter *p, Text *t, Axis *a)
{
    void **seen = table_at(p->known, KEYP(a));

    if (!*seen) {
        *seen = a;
        vec_push(p->arena, p->axis, a);
    }
    put_word(t, a->name);
}

static void put_axes(GraphPrinter *p, Text *t, Axis *const *a, int n)
{
    for (int i = 0; i < n; i++) {
        if (i)
            putn(t, ",", 1);
        put_axis(p, t, a[i]);
    }
}

void print_dims(Text *t, const Node *n)
{
    put(t, "[");
    for (int i = 0; i < n->nd; i++)
        put(t, "%s%s=%lld", i ? " " : "", n->dim[i].a->name,
            (long long)n->dim[i].n);
    put(t, "]");
}

/* The size that needs no saying. */
static int64_t usual(GraphPrinter *p, const Dim *d)
{
    if (d->a->n)
        return d->a->n;
    void **size = table_at(p->usual, KEYP(d->a));
    if (!*size)
        *size = (void *)(uintptr_t)d->n;
    return (int64_t)(uintptr_t)*size;
}

/* dtype and axes; nothing for what has no value. */
static const char *type_text(GraphPrinter *p, Dtype dt, const Dim *d, int nd)
{
    Text t = { .arena = p->arena };

    if (dt == Dnone && nd == 0)
        return NULL;
    put(&t, "%-4s [", dtypes[dt].name);
    for (int i = 0; i < nd; i++) {
        if (i)
            putn(&t, " ", 1);
        put_axis(p, &t, d[i].a);
        if (d[i].n != usual(p, &d[i]))
            put(&t, "=%lld", (long long)d[i].n);
    }
    putn(&t, "]", 1);
    return t.s;
}

static const char *loc_text(GraphPrinter *p, const Loc *l)
{
    Text t = { .arena = p->arena };

    for (const char *mark = "!"; l && l->file; l = l->up, mark = " <") {
        put(&t, "%s", mark);
        put_word(&t, strf(p->arena, "%s:%d", l->file, l->line));
    }
    return t.s;
}

/* ---- one node ------------------------------------------------------------ */

/* Nodes of a body have names of their own there. */
static const char *name_of(GraphPrinter *p, const Node *n)
{
    const char *alias = p->alias ? table_get(p->alias, KEYP(n)) : NULL;

    return alias ? alias : n->name;
}

static void put_node(GraphPrinter *p, Text *t, const Node *n)
{
    putn(t, "%", 1);
    put_word(t, name_of(p, n));
}

/* Needs no saying: what is optional and not set, a source's name where the node
 * has it too, a composite's where its body says it. */
static int is_plain(GraphPrinter *p, const Node *n, const AttrInfo *a)
{
    int unsaid = attr_unsaid(n, a);

    if (a->type == ATstr)
        return unsaid || (n->op == Ocall && n->body) ||
               (optab[n->op].cls == SRC && !strcmp(n_name(n), name_of(p, n)));
    return unsaid && (a->use == ATmay || a->type == ATaxis);
}

static void put_attr(GraphPrinter *p, Text *t, const Graph *g, const Node *n,
                     const AttrInfo *a)
{
    const void *v = attr_at(n, a);
    Axes x = attr_axes(n, a);

    put(t, " %s=", a->name);
    switch (a->type) {
    case ATint: put(t, "%lld", (long long)*(const int64_t *)v); break;
    case ATreal: put_num(t, *(const double *)v); break;
    case ATflag: put(t, "%d", *(const int *)v); break;
    case ATstr: put_word(t, n_name(n)); break;
    case ATaxis:
    case ATaxes: put_axes(p, t, x.v, x.n); break;
    case ATatoms: put_atoms(t, g->mesh, *(const uint32_t *)v); break;
    case ATdtype: put(t, "%s", dtypes[*(const Dtype *)v].name); break;
    case ATreduce: put(t, "%s", reduces[*(const Reduce *)v]); break;
    case ATrandom: put(t, "%s", randomkinds[*(const RandomKind *)v]); break;
    case ATstepvalue: put(t, "%s", stepvalues[*(const StepValue *)v]); break;
    }
}

static const char *what_text(GraphPrinter *p, const Graph *g, const Node *n)
{
    Text t = { .arena = p->arena };
    const char *body = n->body ? table_get(p->label, KEYP(n->body)) : NULL;

    put(&t, "%s", optab[n->op].name);
    if (body)
        put(&t, " %s", body);
    for (int i = 0; i < n->nin; i++) {
        putn(&t, " ", 1);
        put_node(p, &t, n->in[i]);
    }
    for (int i = 0; i < optab[n->op].nattr; i++)
        if (!is_plain(p, n, &optab[n->op].attr[i]))
            put_attr(p, &t, g, n, &optab[n->op].attr[i]);
    if (n->map != text_map(n)) {
        put(&t, " map=");
        if (n->map)
            put_node(p, &t, n->map);
        else
            put(&t, "none");
    }
    if (n->of) {
        put(&t, " of=");
        put_word(&t, n->of);
    }
    if (n->again)
        put(&t, " again=%d", n->again);
    if (n->piece)
        put(&t, " piece=%d", n->piece);
    if (n->kernel)
        put(&t, " kernel=%d", n->kernel);
    if (!p->alias) {
        if (strcmp(n->scope->path, text_scope(n->name))) {
            put(&t, " scope=");
            put_word(&t, n->scope->path);
        }
        if (n->scope->part != part_of_text(n->scope->path))
            put(&t, " part=%s", programparts[n->scope->part]);
    }
    return t.s;
}

static ListingLine line_of(GraphPrinter *p, const Graph *g, const Node *n)
{
    Text name = { .arena = p->arena };

    put_node(p, &name, n);
    return (ListingLine){
        .name = name.s,
        .what = what_text(p, g, n),
        .type = type_text(p, n->dt, n->dim, n->nd),
        .shard = shard_text(p->arena, g, n),
        .loc = p->flags & PRINTloc ? loc_text(p, n->loc) : NULL,
        .reg = n->reg,
        .path = n->scope->path,
    };
}

/* ---- graphs -------------------------------------------------------------- */

static void name_body(GraphPrinter *p, const Graph *g, const Node *n);

static ListingLine *node_lines(GraphPrinter *p, const Graph *g)
{
    size_t n = vec_len(g->node);
    ListingLine *v = alloc(p->arena, (n + 1) * sizeof *v);

    for (size_t i = 0; i < n; i++)
        if (g->node[i]->body)
            name_body(p, g, g->node[i]);
    for (size_t i = 0; i < n; i++)
        v[i] = line_of(p, g, g->node[i]);
    return v;
}

/* Nodes in order, with a line "region:" where the region changes from `reg`,
 * "F0:" in a stage's graph for the nodes of a call. */
static void put_nodes(GraphPrinter *p, Text *t, const Graph *g, int reg)
{
    size_t n = vec_len(g->node);
    ListingLine *v = node_lines(p, g);

    for (size_t i = 0, k; i < n; i = k) {
        for (k = i; k < n && same_section(g->node[k], g->node[i]); k++)
            ;
        if (g->node[i]->call)
            put(t, "  %s:\n",
                call_name(p->arena, &g->call[g->node[i]->call - 1]));
        else if (i || (int)v[i].reg != reg)
            put(t, "  %s:\n", regions[v[i].reg]);
        put_lines(t, v + i, k - i, "    ", " = ", p->flags & PRINTfold);
    }
}

static size_t prefix(const char *name, const char *scope)
{
    size_t n = strlen(scope);

    return n && !strncmp(name, scope, n) && name[n] == '.' ? n + 1 : 0;
}

/* A body reads the same wherever it is called: its names without the scope of
 * the call, told apart by a number where that makes them equal. */
static Table *aliases(GraphPrinter *p, const Graph *b, const char *scope)
{
    Table *alias = table_new(p->arena), *used = table_new(p->arena);

    for (size_t i = 0; i < vec_len(b->node); i++) {
        const char *s = b->node[i]->name + prefix(b->node[i]->name, scope);
        const char *name = intern(s);
        for (int k = 2; table_get(used, KEYP(name)); k++)
            name = intern(strf(p->arena, "%s.%d", s, k));
        *table_at(used, KEYP(name)) = p;
        *table_at(alias, KEYP(b->node[i])) = (void *)(uintptr_t)name;
    }
    return alias;
}

/* Give n's body a name; print it unless an equal one has been. */
static void name_body(GraphPrinter *p, const Graph *g, const Node *n)
{
    Text t = { .arena = p->arena };
    const char *stem =
        n->op == Ocall && n->at.call.name ? n->at.call.name : optab[n->op].name;
    Graph b = *n->body;
    uint64_t h = 14695981039346656037u;

    if (*table_at(p->label, KEYP(n->body)))
        return;
    b.mesh = g->mesh;
    b.level = g->level;
    g_names(&b);
    putn(&t, "", 0);
    Table *outer = p->alias;
    p->alias = aliases(p, &b, n->scope->path);
    put_nodes(p, &t, &b, REGbody);
    p->alias = outer;
    for (const char *c = t.s; *c; c++)
        h = (h ^ (unsigned char)*c) * 1099511628211u;
    h = mix64(h, KEYP(intern(stem)));
    void **known = table_at(p->bytext, h);
    if (!*known) {
        void **k = table_at(p->count, KEYP(intern(stem)));
        *k = (void *)((uintptr_t)*k + 1);
        *known = strf(p->arena, "%s.%d", stem, (int)(uintptr_t)*k);
        put(&p->bodies, "  def %s {\n%s  }\n", (char *)*known, t.s);
    }
    *table_at(p->label, KEYP(n->body)) = *known;
}

static void put_options(Text *t, const Opts *o)
{
    const char *key, *value;

    for (int i = 0; o && opts_each(o, i, &key, &value); i++) {
        put(t, "  option %s ", key);
        put_word(t, value);
        put(t, "\n");
    }
}

static void put_mesh(Text *t, const Mesh *m)
{
    if (!m)
        return;
    put(t, "  mesh world=%lld order=%s", (long long)m->world, m->order);
    for (int i = 0; i < NMESH; i++)
        put(t, " %s=%lld", meshnames[i], (long long)m->size[i]);
    put(t, "\n");
}

/* "role 1/4", the calls, and the table in lines of a few rows. */
static void put_stage(Text *t, Arena *a, const Graph *g)
{
    enum { ROWS = 12 };

    if (!g->nrole)
        return;
    put(t, "  role %d/%d\n  calls", g->role, g->nrole);
    for (size_t i = 0; i < vec_len(g->call); i++)
        put(t, " %s", call_name(a, &g->call[i]));
    for (size_t i = 0; i < vec_len(g->slot); i++) {
        const ScheduleSlot *r = &g->slot[i];
        put(t, "%s %s:%d%s", i % ROWS ? "" : "\n  slots",
            call_name(a, &g->call[r->phase]), r->micro, r->pair ? "+" : "");
    }
    put(t, "\n");
}

static ListingLine axis_line(GraphPrinter *p, const Axis *a)
{
    Text name = { .arena = p->arena }, what = name;
    int64_t n = (int64_t)(uintptr_t)table_get(p->usual, KEYP(a));

    put(&name, "axis ");
    put_word(&name, a->name);
    put(&what, n ? "(%lld)" : "%lld", (long long)(n ? n : a->n));
    if (a->root && a->root != a) {
        put(&what, " root=");
        put_axis(p, &what, a->root);
    }
    put(&what, "%s", a->zigzag ? " zigzag" : "");
    if (a->role > ROLErow)
        put(&what, " role=%s", axisroles[a->role]);
    for (int m = 0; m < NMESH; m++)
        if (a->taken[m])
            put(&what, " shard=%s(%d)", meshnames[m], a->taken[m]);
    if (a->atoms)
        put(&what, " atoms=%u", a->atoms);
    for (int i = 0; i < a->nfactor; i++) {
        put(&what, i ? "," : " of=");
        put_axis(p, &what, a->factor[i]);
    }
    return (ListingLine){
        .name = name.s,
        .what = what.s,
        .path = "",
        .loc = p->flags & PRINTloc ? loc_text(p, a->loc) : NULL,
    };
}

/* All axes met so far; a root or a factor may be met only now. */
static void put_axis_lines(GraphPrinter *p, Text *t)
{
    ListingLine *v = NULL;

    for (size_t i = 0; i < vec_len(p->axis); i++) {
        ListingLine l = axis_line(p, p->axis[i]);
        vec_push(p->arena, v, l);
    }
    put_lines(t, v, vec_len(v), "  ", "   ", 0);
}

static ListingLine param_line(GraphPrinter *p, const Param *x)
{
    Text name = { .arena = p->arena }, what = { .arena = p->arena };

    put(&name, "%s ", tensor_kinds[x->kind].name);
    put_word(&name, x->path);
    put(&what, "%s ", initkinds[x->init]);
    put_num(&what, x->arg);
    if (x->of) {
        put(&what, " of=");
        put_word(&what, x->of);
    }
    if (x->expert) {
        put(&what, " expert=");
        put_axes(p, &what, &x->expert, 1);
    }
    if (x->bucket) {
        put(&what, " bucket=");
        put_word(&what, x->bucket);
        put(&what, " at=%lld", (long long)x->at);
    }
    if (x->copy)
        put(&what, " copy");
    return (ListingLine){
        .name = name.s,
        .what = what.s,
        .type = type_text(p, x->dt, x->dim, x->nd),
        .loc = p->flags & PRINTloc ? loc_text(p, x->loc) : NULL,
        .path = x->path,
    };
}

static void put_params(GraphPrinter *p, Text *t, const Graph *g)
{
    size_t n = vec_len(g->param);
    ListingLine *v = alloc(p->arena, (n + 1) * sizeof *v);

    for (size_t i = 0; i < n; i++)
        v[i] = param_line(p, g->param[i]);
    put_lines(t, v, n, "  ", "   ", p->flags & PRINTfold);
}

static void add_unit(GraphPrinter *p, const Graph *g, const Scope ***v)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Scope *u = g->node[i]->scope->unit;
        size_t k = 0;
        while (u && k < vec_len(*v) && (*v)[k] != u)
            k++;
        if (u && k == vec_len(*v))
            vec_push(p->arena, *v, u);
        if (g->node[i]->body)
            add_unit(p, g->node[i]->body, v);
    }
}

/* "units layer layers.0 layers.1", a line each kind. */
static void put_units(GraphPrinter *p, Text *t, const Graph *g)
{
    const Scope **v = NULL;

    add_unit(p, g, &v);
    for (int kind = UNITlayer; kind < NUNITKIND; kind++) {
        int any = 0;
        for (size_t i = 0; i < vec_len(v); i++)
            if ((int)v[i]->kind == kind) {
                put(t, any++ ? " " : "  units %s ", unitkinds[kind]);
                put_word(t, v[i]->path);
            }
        put(t, any ? "\n" : "");
    }
}

static void put_header(GraphPrinter *p, Text *t, const Graph *g,
                       const Text *axes, const Text *params)
{
    put(t, "graph ");
    put_word(t, g->name);
    put(t, " %s %s%s%s {\n", programnames[g->prog], levels[g->level],
        g->after ? " after " : "", g->after ? g->after : "");
    put_options(t, g->opts);
    put_mesh(t, g->mesh);
    put_stage(t, p->arena, g);
    put_units(p, t, g);
    putn(t, axes->s, axes->len);
    putn(t, params->s, params->len);
    for (int i = 0; i < g->nhf && !(p->flags & PRINTfold); i++) {
        put(t, "  ");
        put_hf(t, &g->hf[i]);
    }
}

static GraphPrinter printer(Arena *a, int flags)
{
    return (GraphPrinter){
        .arena = a,
        .flags = flags,
        .bodies = { .arena = a },
        .label = table_new(a),
        .bytext = table_new(a),
        .count = table_new(a),
        .known = table_new(a),
        .usual = table_new(a),
    };
}

ListingLine *graph_lines(Arena *a, const Graph *g)
{
    GraphPrinter p = printer(a, 0);
    Graph named = *g;

    g_names(&named);
    return node_lines(&p, g);
}

char *graph_print(Arena *a, const Graph *g, int flags)
{
    Arena *scratch = arena_new();
    GraphPrinter p = printer(scratch, flags);
    Text nodes = { .arena = scratch }, t = { .arena = a };
    Text axes = nodes, params = nodes;
    Graph named = *g;

    for (int i = 0; i < g->naxis; i++)
        put_axis(&p, &axes, g->axis[i]);
    axes.len = 0;
    g_names(&named);
    put_nodes(&p, &nodes, g, -1);
    put_params(&p, &params, g);
    put_axis_lines(&p, &axes);
    put_header(&p, &t, g, &axes, &params);
    putn(&t, p.bodies.s, p.bodies.len);
    putn(&t, nodes.s, nodes.len);
    put(&t, "}\n");
    arena_free(scratch);
    return t.s;
}
