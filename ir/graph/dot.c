/* dot.c: writes a graph in Graphviz's language: a box per node, clusters by
 * region (or call) and Lua scope, and on each arrow the type of its value.
 * Repeated scopes are drawn once: a dashed arrow comes from the previous
 * repeat, or goes to it in the backward pass. Values of another region, or of
 * the forward pass in the backward pass, are shown by name instead of an arrow:
 * Graphviz takes minutes for a thousand long arrows. */
#include <ctype.h>

#include "graph.h"

enum { LONGEST = 48 }; /* characters of an attribute */

typedef struct DotBox DotBox;
struct DotBox {
    const char *name, *label; /* one component of a scope: "layers.3" */
    const char *repeat;       /* see StandIn; each repeat has its own box */
    DotBox **in;              /* vec: boxes inside */
    int *node;                /* vec: ids */
    int number;               /* number in cluster names */
};

typedef struct Drawing {
    Arena *arena;
    const Graph *g;
    int k; /* number of the cluster, the prefix of names */
    ListingLine *line;
    StandIn *stand; /* per node; lines are nodes */
    DotBox **part;  /* per node: a region's box, or its backward */
    Table *drawn;   /* arrows and names drawn so far */
    int fold, nbox;
} Drawing;

/* ---- words --------------------------------------------------------------- */

static void put_escaped(Text *out, const char *s)
{
    for (; *s; s++)
        if (*s == '"' || *s == '\\')
            put(out, "\\%c", *s);
        else
            putn(out, (unsigned char)*s < ' ' ? " " : s, 1);
}

/* Returns the end of a word, which may be or contain a "string". */
static const char *word_end(const char *s)
{
    for (int quoted = 0; *s && (quoted || *s != ' '); s++) {
        if (quoted && *s == '\\' && s[1])
            s++;
        else if (*s == '"')
            quoted = !quoted;
    }
    return s;
}

/* Returns the node's own attributes: "axes=hidden to=f32" of "dot %x %w
 * axes=hidden to=f32 scope=d". */
static const char *attrs_of(Arena *a, const char *what)
{
    Text out = { .arena = a };

    put(&out, "%s", "");
    for (const char *end; *what; what = end + strspn(end, " ")) {
        end = word_end(what);
        const char *is = memchr(what, '=', (size_t)(end - what));
        if (!is || *what == '%' || !strncmp(what, "scope=", 6))
            continue;
        int len = end - what > LONGEST ? LONGEST : (int)(end - what);
        while (((unsigned char)what[len] & 0xc0) == 0x80)
            len--; /* never splits a character */
        put(&out, "%s%.*s%s", out.len ? " " : "", len, what,
            len < end - what ? "..." : "");
    }
    return out.s;
}

/* Is n a number, which is shown in its readers' boxes as "b=0.5"? */
static int is_number(const Node *n)
{
    return n->op == Oconst && n->nd == 0;
}

static void put_numbers(Text *out, const Node *n)
{
    for (int k = 0; k < n->nin; k++) {
        const char *s = optab[n->op].operands;
        for (int i = 0; i < k && s; i++)
            s = strchr(s + 1, ' ');
        s = s ? s + (*s == ' ') : "";
        if (is_number(n->in[k]))
            put(out, "\\n%.*s=%.9g", (int)strcspn(s, " "), s,
                n->in[k]->at.constant.value);
    }
}

/* Returns the name without the scope: "wq" of "layers.0.attn.wq". */
static const char *short_name(const Node *n)
{
    const char *scope = n->scope->path;
    size_t len = strlen(scope);

    if (len && !strncmp(n->name, scope, len) && n->name[len] == '.')
        return n->name + len + 1;
    return n->name;
}

/* ---- boxes by scope ------------------------------------------------------ */

static DotBox *box_in(Drawing *drawing, DotBox *up, const char *name,
                      const char *repeat)
{
    DotBox *b;

    for (size_t i = 0; i < vec_len(up->in); i++)
        if (up->in[i]->name == name && up->in[i]->repeat == repeat)
            return up->in[i];
    b = alloc(drawing->arena, sizeof *b);
    b->name = name;
    b->label = name;
    b->repeat = repeat;
    vec_push(drawing->arena, up->in, b);
    return b;
}

/* Returns the length of the next component of a path; a number belongs to the
 * word before it. */
static size_t component(const char *s)
{
    size_t n = strcspn(s, ".");

    while (s[n] == '.' && isdigit((unsigned char)s[n + 1])) {
        size_t k = n + 1 + strspn(s + n + 1, "0123456789");
        if (s[k] && s[k] != '.')
            break;
        n = k;
    }
    return n;
}

static void put_node_in(Drawing *drawing, DotBox *box, const Node *n)
{
    const char *repeat = NULL, *s = n->scope->path;

    drawing->part[n->id] = box;
    for (size_t len; *s; s += len + (s[len] == '.')) {
        len = component(s);
        const char *name = internn(s, len);
        int numbered = !repeat && memchr(s, '.', len);
        if (numbered)
            repeat = drawing->stand[n->id].repeat;
        box = box_in(drawing, box, name, repeat);
        if (numbered && repeat)
            box->label = repeat;
        else if (!strcmp(name, "d"))
            drawing->part[n->id] = box, box->label = "backward";
    }
    vec_push(drawing->arena, box->node, n->id);
}

/* ---- text ---------------------------------------------------------------- */

static const char *look_of(const Node *n)
{
    switch (optab[n->op].cls) {
    case SRC:
        return is_lasting(n) ? "style=filled, fillcolor=\"#c6dbef\""
                             : "style=filled, fillcolor=\"#e5e5e5\"";
    case EIN: return "style=filled, fillcolor=\"#fdd0a2\"";
    case COMP: return "style=\"rounded,filled\", fillcolor=\"#fdd0a2\"";
    case COMM: return "style=filled, fillcolor=\"#fcbba1\"";
    case SINK: return "style=filled, fillcolor=\"#c7e9c0\"";
    default: return "style=solid";
    }
}

static void put_box(Drawing *drawing, Text *out, const Node *n, int depth)
{
    const char *op = optab[n->op].name, *name = short_name(n);
    const char *attrs = attrs_of(drawing->arena, drawing->line[n->id].what);

    put(out, "%*sg%dn%d [label=\"", 2 * depth, "", drawing->k, n->id);
    if (n->op == Ocall && n->at.call.name)
        op = n->at.call.name;
    if (strncmp(name, op, strlen(op))) {
        put_escaped(out, name);
        put(out, "\\n");
    }
    put_escaped(out, op);
    if (*attrs)
        put(out, "\\n");
    put_escaped(out, attrs);
    put_numbers(out, n);
    put(out, "\", tooltip=\"");
    put_escaped(out, n->name);
    if (n->loc && n->loc->file) {
        put(out, " ");
        put_escaped(out, n->loc->file);
        put(out, ":%d", n->loc->line);
    }
    put(out, "\", %s];\n", look_of(n));
}

static void put_inside(Drawing *drawing, Text *out, const DotBox *box,
                       int depth)
{
    for (size_t i = 0; i < vec_len(box->node); i++)
        put_box(drawing, out, drawing->g->node[box->node[i]], depth);
    for (size_t i = 0; i < vec_len(box->in); i++) {
        box->in[i]->number = drawing->nbox++;
        put(out, "%*ssubgraph cluster_%d_%d {\n%*slabel=\"", 2 * depth, "",
            drawing->k, box->in[i]->number, 2 * depth + 2, "");
        put_escaped(out, box->in[i]->label);
        put(out, "\";\n");
        put_inside(drawing, out, box->in[i], depth + 1);
        put(out, "%*s}\n", 2 * depth, "");
    }
}

/* Appends the name of x for readers in another part. */
static void put_name(Drawing *drawing, Text *out, const Node *x,
                     const DotBox *part)
{
    void **seen = table_at(drawing->drawn, (uint64_t)1 << 63 |
                                               (uint64_t)part->number << 32 |
                                               (uint64_t)x->id);

    if (!*seen) {
        put(out, "    subgraph cluster_%d_%d { g%dn%d_%d [label=\"", drawing->k,
            part->number, drawing->k, x->id, part->number);
        put_escaped(out, x->name);
        put(out, "\", shape=plaintext]; }\n");
    }
    *seen = drawing;
}

/* Draws the arrow from operand k to n, or between their representatives,
 * once. */
static void put_arrow(Drawing *drawing, Text *out, const Node *n, int k)
{
    const StandIn *from = &drawing->stand[n->in[k]->id],
                  *to = &drawing->stand[n->id];
    const Node *x = drawing->g->node[from->line];
    const DotBox *part = drawing->part[to->line];
    int around = from->repeat && from->repeat == to->repeat &&
                 from->turn != to->turn,
        far = drawing->part[x->id] != part;
    void **seen = table_at(
        drawing->drawn, (uint64_t)from->line << 36 | (uint64_t)to->line << 9 |
                            (uint64_t)k << 1 | (uint64_t)around);

    if (*seen || is_number(x))
        return;
    *seen = drawing;
    if (far)
        put_name(drawing, out, x, part);
    put(out, "    g%dn%d%s -> g%dn%zu [label=\"%s ", drawing->k, x->id,
        far ? strf(drawing->arena, "_%d", part->number) : "", drawing->k,
        to->line, dtypes[x->dt].name);
    put_escaped(out, shape_text(drawing->g, x));
    if (drawing->line[x->id].shard) {
        put(out, "\\n");
        put_escaped(out, drawing->line[x->id].shard);
    }
    put(out, "\"%s];\n", around ? ", style=dashed, constraint=false" : "");
}

/* Draws the nodes of one region, or call, from i on. Returns their end. */
static size_t section(Drawing *drawing, size_t i, DotBox *all)
{
    Node *const *v = drawing->g->node;
    size_t end = i;
    const Node *first = v[i];
    const char *name =
        first->call
            ? call_name(drawing->arena, &drawing->g->call[first->call - 1])
            : regions[first->reg];

    while (end < vec_len(v) && same_section(v[end], first))
        end++;
    if (drawing->fold)
        stand_ins(drawing->arena, drawing->line + i, end - i,
                  drawing->stand + i);
    for (size_t k = i; k < end; k++)
        drawing->stand[k].line = drawing->fold ? drawing->stand[k].line + i : k;
    DotBox *b = box_in(drawing, all, intern(name), NULL);
    for (size_t k = i; k < end; k++)
        if (drawing->stand[k].line == k && !is_number(v[k]))
            put_node_in(drawing, b, v[k]);
    return end;
}

void graph_dot(Text *out, Graph *g, int k, int fold)
{
    Drawing d = { .arena = arena_new(), .g = g, .k = k, .fold = fold };
    DotBox all = { 0 };
    size_t n = vec_len(g->node);

    g_renumber(g);
    d.drawn = table_new(d.arena);
    d.part = alloc(d.arena, (n + 1) * sizeof *d.part);
    d.line = graph_lines(d.arena, g);
    d.stand = alloc(d.arena, (n + 1) * sizeof *d.stand);
    for (size_t i = 0; i < n;)
        i = section(&d, i, &all);
    put(out, "  subgraph cluster_%d {\n    label=\"", k);
    put_escaped(out, strf(d.arena, "%s %s%s%s", g->name, programnames[g->prog],
                          g->after ? " after " : "", g->after ? g->after : ""));
    if (g->nrole)
        put(out, ", stage %d of %d", g->role, g->nrole);
    put(out, "\";\n");
    put_inside(&d, out, &all, 2);
    for (size_t i = 0; i < n; i++)
        for (int x = 0; x < g->node[i]->nin; x++)
            put_arrow(&d, out, g->node[i], x);
    put(out, "  }\n");
    arena_free(d.arena);
}
