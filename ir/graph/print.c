/* print.c: prints a graph as text. parse.c parses it and has the grammar;
 * printing a parsed graph gives the same bytes.
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
 * has its size only if it differs from the declared one), the sharding type
 * from level `placed` on, and the place if requested. Bodies of composites come
 * first, each distinct one once.
 *
 * PRINTfold prints numbered scopes (layers.0, layers.1 ..) that differ only in
 * the number once; such a text cannot be parsed. */
#include <ctype.h>

#include "graph.h"
#include "../settings/keys.h"

typedef struct GraphPrinter {
    Arena *arena;
    int flags;
    Text bodies;
    Table *label;          /* body -> name */
    Table *bytext, *count; /* (text, stem) -> name; stem -> how many */
    Table *known;
    Axis **axis;  /* all axes seen, those of the graph first */
    Table *usual; /* undeclared axis -> size at its first use */
    Table *alias; /* nodes of the body being printed -> name */
} GraphPrinter;

/* ---- defaults, which are not printed ------------------------------------- */

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
    if (n->op == Opart)
        n = n->in[0];
    for (int i = 0; i < n->nin; i++)
        if (n->in[i]->map)
            return n->in[i]->map;
    return NULL;
}

/* ---- words --------------------------------------------------------------- */

/* The name of an axis, which the header will then declare. */
static void put_axis(GraphPrinter *printer, Text *out, Axis *a)
{
    void **seen = table_at(printer->known, KEYP(a));

    if (!*seen) {
        *seen = a;
        vec_push(printer->arena, printer->axis, a);
    }
    put_word(out, a->name);
}

static void put_axes(GraphPrinter *printer, Text *out, Axis *const *a, int n)
{
    for (int i = 0; i < n; i++) {
        if (i)
            putn(out, ",", 1);
        put_axis(printer, out, a[i]);
    }
}

void print_dims(Text *out, const Node *n)
{
    put(out, "[");
    for (int i = 0; i < n->nd; i++)
        put(out, "%s%s=%ld", i ? " " : "", n->dim[i].a->name, n->dim[i].n);
    put(out, "]");
}

/* Returns the axis size that is not printed. */
static int64_t usual(GraphPrinter *printer, const Dim *d)
{
    if (d->a->n)
        return d->a->n;
    void **size = table_at(printer->usual, KEYP(d->a));
    if (!*size)
        *size = (void *)(uintptr_t)d->n;
    return (int64_t)(uintptr_t)*size;
}

/* Returns dtype and axes; "" for a node without a value. */
static const char *type_text(GraphPrinter *printer, Dtype dt, const Dim *d,
                             int nd)
{
    Text out = { .arena = printer->arena };

    if (dt == Dnone && nd == 0)
        return NULL;
    put(&out, "%-4s [", dtypes[dt].name);
    for (int i = 0; i < nd; i++) {
        if (i)
            putn(&out, " ", 1);
        put_axis(printer, &out, d[i].a);
        if (d[i].n != usual(printer, &d[i]))
            put(&out, "=%ld", d[i].n);
    }
    putn(&out, "]", 1);
    return out.s;
}

static const char *loc_text(GraphPrinter *printer, const Loc *loc)
{
    Text out = { .arena = printer->arena };

    for (const char *mark = "!"; loc && loc->file; loc = loc->up, mark = " <") {
        put(&out, "%s", mark);
        put_word(&out, strf(printer->arena, "%s:%d", loc->file, loc->line));
    }
    return out.s;
}

/* ---- one node ------------------------------------------------------------ */

/* Returns a node's name; nodes of a body have names inside the body. */
static const char *name_of(GraphPrinter *printer, const Node *n)
{
    const char *alias =
        printer->alias ? table_get(printer->alias, KEYP(n)) : NULL;

    return alias ? alias : n->name;
}

static void put_node(GraphPrinter *printer, Text *out, const Node *n)
{
    putn(out, "%", 1);
    put_word(out, name_of(printer, n));
}

/* Is an attribute not printed? Unset optional ones, a source's name equal to
 * the node's, and those of a composite that its body has. */
static int is_plain(GraphPrinter *printer, const Node *n, const AttrInfo *info)
{
    int unsaid = attr_unsaid(n, info);

    if (info->type == ATstr)
        return unsaid || (n->op == Ocall && n->body) ||
               (optab[n->op].cls == SRC &&
                !strcmp(n_name(n), name_of(printer, n)));
    return unsaid && (info->use == ATmay || info->type == ATaxis);
}

static void put_attr(GraphPrinter *printer, Text *out, const Graph *g,
                     const Node *n, const AttrInfo *info)
{
    const void *v = attr_at(n, info);
    Axes x = attr_axes(n, info);

    put(out, " %s=", info->name);
    switch (info->type) {
    case ATint: put(out, "%ld", *(const int64_t *)v); break;
    case ATreal: put_real(out, *(const double *)v); break;
    case ATflag: put(out, "%d", *(const int *)v); break;
    case ATstr: put_word(out, *(const char *const *)v); break;
    case ATaxis:
    case ATaxes: put_axes(printer, out, x.v, x.n); break;
    case ATatoms: put_atoms(out, g->mesh, *(const uint32_t *)v); break;
    case ATdtype: put(out, "%s", dtypes[*(const Dtype *)v].name); break;
    case ATscales: put(out, "%s", scalenames[*(const ScaleLayout *)v]); break;
    case ATreduce: put(out, "%s", reduces[*(const Reduce *)v]); break;
    case ATrandom: put(out, "%s", randomkinds[*(const RandomKind *)v]); break;
    case ATstepvalue: put(out, "%s", stepvalues[*(const StepValue *)v]); break;
    }
}

static const char *what_text(GraphPrinter *printer, const Graph *g,
                             const Node *n)
{
    Text out = { .arena = printer->arena };
    const char *body =
        n->body ? table_get(printer->label, KEYP(n->body)) : NULL;

    put(&out, "%s", optab[n->op].name);
    if (body)
        put(&out, " %s", body);
    for (int i = 0; i < n->nin; i++) {
        putn(&out, " ", 1);
        put_node(printer, &out, n->in[i]);
    }
    for (int i = 0; i < optab[n->op].nattr; i++)
        if (!is_plain(printer, n, &optab[n->op].attr[i]))
            put_attr(printer, &out, g, n, &optab[n->op].attr[i]);
    if (n->map != text_map(n)) {
        put(&out, " map=");
        if (n->map)
            put_node(printer, &out, n->map);
        else
            put(&out, "none");
    }
    if (n->of) {
        put(&out, " of=");
        put_word(&out, n->of);
    }
    if (n->again)
        put(&out, " again=%d", n->again);
    if (n->piece)
        put(&out, " piece=%d", n->piece);
    if (n->kernel)
        put(&out, " kernel=%d", n->kernel);
    if (n->host)
        put(&out, " host=1");
    if (!printer->alias) {
        if (strcmp(n->scope->path, text_scope(n->name))) {
            put(&out, " scope=");
            put_word(&out, n->scope->path);
        }
        if (n->scope->marks)
            put(&out, " marks=%s", marks_text(printer->arena, n->scope->marks));
        if (n->scope->part != part_of_text(n->scope->path))
            put(&out, " part=%s", programparts[n->scope->part]);
    }
    return out.s;
}

static ListingLine line_of(GraphPrinter *printer, const Graph *g, const Node *n)
{
    Text name = { .arena = printer->arena };

    put_node(printer, &name, n);
    return (ListingLine){
        .name = name.s,
        .what = what_text(printer, g, n),
        .type = type_text(printer, n->dt, n->dim, n->nd),
        .shard = shard_text(printer->arena, g, n),
        .loc = printer->flags & PRINTloc ? loc_text(printer, n->loc) : NULL,
        .reg = n->reg,
        .path = n->scope->path,
    };
}

/* ---- graphs -------------------------------------------------------------- */

static void name_body(GraphPrinter *printer, const Graph *g, const Node *n);

static ListingLine *node_lines(GraphPrinter *printer, const Graph *g)
{
    size_t n = vec_len(g->node);
    ListingLine *v = alloc(printer->arena, (n + 1) * sizeof *v);

    for (size_t i = 0; i < n; i++)
        if (g->node[i]->body)
            name_body(printer, g, g->node[i]);
    for (size_t i = 0; i < n; i++)
        v[i] = line_of(printer, g, g->node[i]);
    return v;
}

/* Prints nodes in order, with a line "region:" where the region changes from
 * `reg`, and "F0:" before the nodes of a call in a stage's graph. */
static void put_nodes(GraphPrinter *printer, Text *out, const Graph *g, int reg)
{
    size_t n = vec_len(g->node);
    ListingLine *v = node_lines(printer, g);

    for (size_t i = 0, k; i < n; i = k) {
        for (k = i; k < n && same_section(g->node[k], g->node[i]); k++)
            ;
        if (g->node[i]->call)
            put(out, "  %s:\n",
                call_name(printer->arena, &g->call[g->node[i]->call - 1]));
        else if (i || (int)v[i].reg != reg)
            put(out, "  %s:\n", regions[v[i].reg]);
        put_lines(out, v + i, k - i, "    ", " = ", printer->flags & PRINTfold);
    }
}

static size_t prefix(const char *name, const char *scope)
{
    size_t n = strlen(scope);

    return n && !strncmp(name, scope, n) && name[n] == '.' ? n + 1 : 0;
}

/* Returns names of a body's nodes that do not depend on the call: without its
 * scope, with a number where names would be equal. */
static Table *aliases(GraphPrinter *printer, const Graph *graph,
                      const char *scope)
{
    Table *alias = table_new(printer->arena), *used = table_new(printer->arena);

    for (size_t i = 0; i < vec_len(graph->node); i++) {
        const char *s =
            graph->node[i]->name + prefix(graph->node[i]->name, scope);
        const char *name = intern(s);
        for (int k = 2; table_get(used, KEYP(name)); k++)
            name = intern(strf(printer->arena, "%s.%d", s, k));
        *table_at(used, KEYP(name)) = printer;
        *table_at(alias, KEYP(graph->node[i])) = (void *)(uintptr_t)name;
    }
    return alias;
}

/* Names n's body and prints it unless an equal one was printed. */
static void name_body(GraphPrinter *printer, const Graph *g, const Node *n)
{
    Text out = { .arena = printer->arena };
    const char *stem =
        n->op == Ocall && n->at.call.name ? n->at.call.name : optab[n->op].name;
    Graph b = *n->body;

    if (*table_at(printer->label, KEYP(n->body)))
        return;
    b.mesh = g->mesh;
    b.level = g->level;
    g_names(&b);
    putn(&out, "", 0);
    Table *outer = printer->alias;
    printer->alias = aliases(printer, &b, n->scope->path);
    put_nodes(printer, &out, &b, REGbody);
    printer->alias = outer;
    stem = intern(stem);
    void **known =
        table_at_pair(printer->bytext, KEYP(intern(out.s)), KEYP(stem));
    if (!*known) {
        void **k = table_at(printer->count, KEYP(stem));
        *k = (void *)((uintptr_t)*k + 1);
        *known = strf(printer->arena, "%s.%d", stem, (int)(uintptr_t)*k);
        put(&printer->bodies, "  def %s {\n%s  }\n", (char *)*known, out.s);
    }
    *table_at(printer->label, KEYP(n->body)) = *known;
}

static void put_options(Text *out, const Opts *opts)
{
    const char *key, *value;

    for (int i = 0; opts && opts_each(opts, i, &key, &value); i++) {
        put(out, "  option %s ", key);
        put_word(out, value);
        put(out, "\n");
    }
}

static void put_mesh(Text *out, const Mesh *m)
{
    if (!m)
        return;
    put(out, "  mesh world=%ld order=%s", m->world, m->order);
    for (int i = 0; i < NMESH; i++)
        put(out, " %s=%ld", meshnames[i], m->size[i]);
    put(out, "\n");
}

/* Prints "role 1/4", the calls, and the table in lines of a few rows. */
static void put_stage(Text *out, Arena *a, const Graph *g)
{
    enum { ROWS = 12 };

    if (!g->nrole)
        return;
    put(out, "  role %d/%d\n  calls", g->role, g->nrole);
    for (size_t i = 0; i < vec_len(g->call); i++)
        put(out, " %s", call_name(a, &g->call[i]));
    for (size_t i = 0; i < vec_len(g->slot); i++) {
        const ScheduleSlot *slot = &g->slot[i];
        put(out, "%s %s:%d%s", i % ROWS ? "" : "\n  slots",
            call_name(a, &g->call[slot->phase]), slot->micro,
            slot->pair ? "+" : "");
    }
    put(out, "\n");
}

static ListingLine axis_line(GraphPrinter *printer, const Axis *a)
{
    Text name = { .arena = printer->arena }, what = name;
    int64_t n = (int64_t)(uintptr_t)table_get(printer->usual, KEYP(a));

    put(&name, "axis ");
    put_word(&name, a->name);
    put(&what, n ? "(%ld)" : "%ld", n ? n : a->n);
    if (a->root && a->root != a) {
        put(&what, " root=");
        put_axis(printer, &what, a->root);
    }
    put(&what, "%s", a->zigzag ? " zigzag" : "");
    if (a->parts)
        put(&what, " parts=%ld", a->parts);
    if (a->role > ROLErow)
        put(&what, " role=%s", axisroles[a->role]);
    for (int m = 0; m < NMESH; m++)
        if (a->taken[m])
            put(&what, " shard=%s(%d)", meshnames[m], a->taken[m]);
    if (a->atoms)
        put(&what, " atoms=%u", a->atoms);
    for (int i = 0; i < a->nfactor; i++) {
        put(&what, i ? "," : " of=");
        put_axis(printer, &what, a->factor[i]);
    }
    return (ListingLine){
        .name = name.s,
        .what = what.s,
        .path = "",
        .loc = printer->flags & PRINTloc ? loc_text(printer, a->loc) : NULL,
    };
}

/* Prints all axes seen so far, which may add roots and factors. */
static void put_axis_lines(GraphPrinter *printer, Text *out)
{
    ListingLine *v = NULL;

    for (size_t i = 0; i < vec_len(printer->axis); i++) {
        ListingLine l = axis_line(printer, printer->axis[i]);
        vec_push(printer->arena, v, l);
    }
    put_lines(out, v, vec_len(v), "  ", "   ", 0);
}

static ListingLine param_line(GraphPrinter *printer, const Param *param)
{
    Text name = { .arena = printer->arena }, what = { .arena = printer->arena };

    put(&name, "%s ", tensor_kinds[param->kind].name);
    put_word(&name, param->path);
    put(&what, "%s ", initkinds[param->init]);
    put_real(&what, param->arg);
    if (param->of) {
        put(&what, " of=");
        put_word(&what, param->of);
    }
    if (param->expert) {
        put(&what, " expert=");
        put_axes(printer, &what, &param->expert, 1);
    }
    if (param->bucket) {
        put(&what, " bucket=");
        put_word(&what, param->bucket);
        put(&what, " at=%ld", param->at);
    }
    if (param->copy)
        put(&what, " copy");
    return (ListingLine){
        .name = name.s,
        .what = what.s,
        .type = type_text(printer, param->dt, param->dim, param->nd),
        .loc = printer->flags & PRINTloc ? loc_text(printer, param->loc) : NULL,
        .path = param->path,
    };
}

static void put_params(GraphPrinter *printer, Text *out, const Graph *g)
{
    size_t n = vec_len(g->param);
    ListingLine *v = alloc(printer->arena, (n + 1) * sizeof *v);

    for (size_t i = 0; i < n; i++)
        v[i] = param_line(printer, g->param[i]);
    put_lines(out, v, n, "  ", "   ", printer->flags & PRINTfold);
}

static void add_unit(GraphPrinter *printer, const Graph *g, const Scope ***v)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Scope *scope = g->node[i]->scope->unit;
        size_t k = 0;
        while (scope && k < vec_len(*v) && (*v)[k] != scope)
            k++;
        if (scope && k == vec_len(*v))
            vec_push(printer->arena, *v, scope);
        if (g->node[i]->body)
            add_unit(printer, g->node[i]->body, v);
    }
}

/* Prints "units layer layers.0 layers.1", a line per kind. */
static void put_units(GraphPrinter *printer, Text *out, const Graph *g)
{
    const Scope **v = NULL;

    add_unit(printer, g, &v);
    for (int kind = UNITlayer; kind < NUNITKIND; kind++) {
        int any = 0;
        for (size_t i = 0; i < vec_len(v); i++)
            if ((int)v[i]->kind == kind) {
                put(out, any++ ? " " : "  units %s ", unitkinds[kind]);
                put_word(out, v[i]->path);
            }
        put(out, any ? "\n" : "");
    }
}

static void put_header(GraphPrinter *printer, Text *out, const Graph *g,
                       const Text *axes, const Text *params)
{
    put(out, "graph ");
    put_word(out, g->name);
    put(out, " %s %s%s%s%s%s", programnames[g->prog], levels[g->level],
        g->after ? " after " : "", g->after ? g->after : "",
        g->turns ? " " : "", turnwords[g->turns]);
    for (int i = OFFLOADactivations; i <= OFFLOADmasters; i++)
        if (g->offloads.classes >> i & 1)
            put(out, " %s", key_word_text("train.offload", i));
    if (g->offloads.stay)
        put(out, " stay %d", g->offloads.stay);
    put(out, " {\n");
    put_options(out, g->opts);
    put_mesh(out, g->mesh);
    put_stage(out, printer->arena, g);
    put_units(printer, out, g);
    putn(out, axes->s, axes->len);
    putn(out, params->s, params->len);
    for (int i = 0; i < g->nhf && !(printer->flags & PRINTfold); i++) {
        put(out, "  ");
        put_hf(out, &g->hf[i]);
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
