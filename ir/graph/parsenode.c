/* parsenode.c: parses nodes of a graph's text. parse.c has the whole grammar
 * and parses the lines before the nodes. */
#include "graph.h"

/* ---- names --------------------------------------------------------------- */

Axis *parse_axis(GraphReader *reader)
{
    return lex_axis(&reader->x, reader->g, lex_word(&reader->x));
}

/* names */
static Axes read_axes(GraphReader *reader)
{
    Axis **v = NULL;

    do
        vec_push(reader->g->arena, v, parse_axis(reader));
    while (lex_mark(&reader->x, ','));
    return (Axes){ (int)vec_len(v), v };
}

/* Reads an operand after "%": an earlier node. */
static Node *read_operand(GraphReader *reader)
{
    const char *name = lex_word(&reader->x);
    Node *n = table_get(reader->node, KEYP(name));

    if (!n)
        lex_err(&reader->x, "no node '%%%s' stands above", name);
    return n;
}

int parse_call(const GraphReader *reader, const char *s, size_t n)
{
    for (size_t i = 0; i < vec_len(reader->g->call); i++) {
        const char *name = call_name(reader->x.arena, &reader->g->call[i]);
        if (strlen(name) == n && !memcmp(name, s, n))
            return (int)i;
    }
    return -1;
}

/* ---- places -------------------------------------------------------------- */

static Loc *read_place(GraphReader *reader)
{
    const char *s = lex_word(&reader->x), *colon = strrchr(s, ':');
    Loc *l = alloc(reader->g->arena, sizeof *l);

    if (!colon)
        lex_err(&reader->x, "'%s' is not file:line", s);
    l->file = internn(s, (size_t)(colon - s));
    l->line = atoi(colon + 1);
    return l;
}

const Loc *parse_places(GraphReader *reader)
{
    if (!lex_mark(&reader->x, '!'))
        return NULL;
    Loc *first = read_place(reader), *l = first;
    while (lex_mark(&reader->x, '<')) {
        Loc *up = read_place(reader);
        l->up = up;
        l = up;
    }
    return first;
}

/* ---- types --------------------------------------------------------------- */

/* Reads type = dtype "[" { axis [ "=" size ] } "]". */
int parse_type(GraphReader *reader, Dtype *dt, Dim *dim, int *nd)
{
    Lex at = reader->x;
    const char *s = lex_more(&reader->x) && !strchr("@!%", *reader->x.p)
                        ? lex_word(&reader->x)
                        : NULL;
    int d = s ? dtype_named(s) : -1;

    if (d < 0) {
        reader->x = at;
        return 0;
    }
    *dt = (Dtype)d;
    lex_need(&reader->x, '[');
    while (!lex_mark(&reader->x, ']')) {
        if (*nd == MAXD)
            lex_err(&reader->x, "more than %d axes", MAXD);
        Axis *a = parse_axis(reader);
        int64_t n =
            a->n ? a->n : (int64_t)(uintptr_t)table_get(reader->usual, KEYP(a));
        if (lex_mark(&reader->x, '='))
            n = lex_int(&reader->x);
        dim[(*nd)++] = (Dim){ a, n };
    }
    return 1;
}

/* ---- nodes --------------------------------------------------------------- */

static void read_value(GraphReader *reader, const AttrInfo *info, void *v)
{
    Lex *lex = &reader->x;

    switch (info->type) {
    case ATint: *(int64_t *)v = lex_int(lex); break;
    case ATreal: *(double *)v = lex_num(lex); break;
    case ATflag: *(int *)v = (int)lex_range(lex, info->name, 0, 1); break;
    case ATstr: *(const char **)v = lex_word(lex); break;
    case ATaxis: *(Axis **)v = parse_axis(reader); break;
    case ATaxes: *(Axes *)v = read_axes(reader); break;
    case ATatoms:
        *(uint32_t *)v = (uint32_t)lex_atoms(lex, reader->g->mesh);
        break;
    case ATdtype: *(Dtype *)v = lex_dtype(lex); break;
    case ATscales:
        *(ScaleLayout *)v = (ScaleLayout)lex_choice(lex, scalenames, NSCALE);
        break;
    case ATreduce:
        *(Reduce *)v = (Reduce)lex_choice(lex, reduces, NREDUCE);
        break;
    case ATrandom:
        *(RandomKind *)v = (RandomKind)lex_choice(lex, randomkinds, NRANDOM);
        break;
    case ATstepvalue:
        *(StepValue *)v = (StepValue)lex_choice(lex, stepvalues, NSTEPVALUE);
        break;
    }
}

/* Explicit map and scope, and a bit for each attribute read. */
typedef struct NodeExtra {
    int map, part; /* -1: default of the path */
    const char *scope;
    unsigned said, marks;
} NodeExtra;

/* Checks required attributes; attrs_wrong() checks names. */
static void need_attrs(const GraphReader *reader, const Node *n,
                       const NodeExtra *extra)
{
    const OpInfo *info = &optab[n->op];

    for (int i = 0; i < info->nattr; i++)
        if (info->attr[i].use != ATmay && info->attr[i].type != ATstr &&
            !(extra->said >> i & 1))
            lex_err(&reader->x, "%s: lacks '%s'", info->name,
                    info->attr[i].name);
}

static unsigned read_marks(Lex *lex)
{
    unsigned marks = 0, one;

    do {
        const char *word = lex_word(lex);
        if (!(one = mark_named(word)))
            lex_err(lex, "no mark '%s'", word);
        marks |= one;
    } while (lex_mark(lex, ','));
    return marks;
}

static void read_attr(GraphReader *reader, Node *n, NodeExtra *extra)
{
    Lex *lex = &reader->x;
    const char *name = lex_word(lex);
    const AttrInfo *a = attr_named(n->op, name);

    lex_need(lex, '=');
    if (a) {
        read_value(reader, a, attr_at(n, a));
        extra->said |= 1u << (a - optab[n->op].attr);
    } else if (!strcmp(name, "map")) {
        extra->map = 1;
        n->map = lex_mark(lex, '%') ? read_operand(reader) : NULL;
        if (!n->map && !lex_take(lex, "none"))
            lex_err(lex, "map is neither a node nor none");
    } else if (!strcmp(name, "again")) {
        n->again = (int)lex_range(lex, name, 0, INT32_MAX);
    } else if (!strcmp(name, "piece")) {
        n->piece = (int)lex_range(lex, name, 0, INT32_MAX);
    } else if (!strcmp(name, "kernel")) {
        n->kernel = (int)lex_range(lex, name, 1, INT32_MAX);
    } else if (!strcmp(name, "host")) {
        n->host = (int)lex_range(lex, name, 0, 1);
    } else if (!strcmp(name, "scope")) {
        extra->scope = lex_word(lex);
    } else if (!strcmp(name, "marks")) {
        extra->marks = read_marks(lex);
    } else if (!strcmp(name, "part")) {
        extra->part = lex_choice(lex, programparts, NPART);
    } else if (!strcmp(name, "of")) {
        n->of = lex_word(lex);
    } else {
        lex_err(lex, "%s has no attribute '%s'", optab[n->op].name, name);
    }
}

static Op read_op(GraphReader *reader)
{
    const char **names, *s = lex_word(&reader->x);
    int op = op_named(s);

    if (op >= 0)
        return (Op)op;
    names = alloc(reader->g->arena, (size_t)op_count * sizeof *names);
    for (int i = 0; i < op_count; i++)
        names[i] = optab[i].name;
    lex_err(&reader->x, "no op '%s'%s", s,
            did_you_mean(s, names, (size_t)op_count));
}

static void read_operands(GraphReader *reader, Node *n)
{
    Node *in[MAXIN];

    while (lex_mark(&reader->x, '%')) {
        if (n->nin == MAXIN)
            lex_err(&reader->x, "more than %d operands", MAXIN);
        in[n->nin++] = read_operand(reader);
    }
    if (!takes(n->op, n->nin))
        lex_err(&reader->x, "%s has %d operands (%s), not %d",
                optab[n->op].name, optab[n->op].nin, optab[n->op].operands,
                n->nin);
    n->in = alloc(reader->g->arena, ((size_t)n->nin + 1) * sizeof *n->in);
    for (int i = 0; i < n->nin; i++)
        n->in[i] = in[i];
}

static const char *body_stem(GraphReader *reader, const char *name)
{
    const char *dot = strrchr(name, '.');

    if (!dot)
        lex_err(&reader->x, "body '%s' has no number", name);
    return internn(name, (size_t)(dot - name));
}

/* Reads a composite's body name, unless operands or attributes follow. */
static void read_body(GraphReader *reader, Node *n)
{
    Lex at = reader->x;

    if (!has_body(n->op) || !lex_more(&reader->x) || *reader->x.p == '%')
        return;
    const char *name = lex_word(&reader->x);
    if (lex_more(&reader->x) && *reader->x.p == '=') {
        reader->x = at;
        return;
    }
    n->body = table_get(reader->body, KEYP(name));
    if (!n->body)
        lex_err(&reader->x, "no body '%s' stands above", name);
    if (n->op == Ocall)
        n->at.call.name = body_stem(reader, name);
}

static void add_node(GraphReader *reader, Node *n)
{
    void **slot = table_at(reader->node, KEYP(n->name));

    if (*slot)
        lex_err(&reader->x, "two nodes '%%%s'", n->name);
    *slot = n;
    n->id = (int)vec_len(reader->g->node);
    vec_push(reader->g->arena, reader->g->node, n);
}

static const Scope *read_scope(Graph *g, const NodeExtra *extra,
                               const char *said)
{
    const char *path = extra->scope ? extra->scope : said;

    return g_marked(g,
                    g_partscope(g,
                                extra->part < 0 ? part_of_text(path)
                                                : (ProgramPart)extra->part,
                                path),
                    extra->marks);
}

/* Reads node = "%" name "=" op ... */
static void read_node(GraphReader *reader)
{
    Node *n = alloc(reader->g->arena, sizeof *n);
    NodeExtra e = { .part = -1 };
    int typed = 0;

    n->name = lex_word(&reader->x);
    n->reg = reader->reg;
    n->call = reader->call;
    n->buf = -1;
    n->sh = whole_type;
    lex_need(&reader->x, '=');
    n->op = read_op(reader);
    read_body(reader, n);
    read_operands(reader, n);
    while (!(typed = parse_type(reader, &n->dt, n->dim, &n->nd)) &&
           lex_more(&reader->x) && !strchr("@!", *reader->x.p))
        read_attr(reader, n, &e);
    lex_shards(&reader->x, reader->g, n);
    n->loc = parse_places(reader);
    const AttrInfo *info = optab[n->op].shared[SHname];
    if (info && info->use == ATmust && optab[n->op].cls == SRC &&
        attr_unsaid(n, info))
        set_name(n, n->name);
    if (!e.map)
        n->map = text_map(n);
    n->scope = read_scope(reader->g, &e, text_scope(n->name));
    need_attrs(reader, n, &e);
    const char *wrong = attrs_wrong(reader->x.arena, n);
    if (wrong)
        lex_err(&reader->x, "%s: %s", optab[n->op].name, wrong);
    if (!typed) /* written by hand: inferred */
        infer(reader->g, n);
    add_node(reader, n);
}

/* Reads nodes = region ":" | call ":" | node. */
void parse_nodes(GraphReader *reader)
{
    if (lex_mark(&reader->x, '%')) {
        read_node(reader);
        return;
    }
    const char *s = lex_word(&reader->x);
    for (int i = 0; i < NREGION; i++) {
        size_t n = strlen(regions[i]);
        if (!strncmp(s, regions[i], n) && !strcmp(s + n, ":")) {
            reader->reg = (Region)i;
            reader->call = 0;
            return;
        }
    }
    size_t n = strlen(s);
    int call = n && s[n - 1] == ':' ? parse_call(reader, s, n - 1) : -1;
    if (call >= 0) {
        reader->reg = REGbody;
        reader->call = call + 1;
        return;
    }
    lex_err(&reader->x, "'%s' begins neither a node nor a region", s);
}
