/* parse.c: text to graph, the inverse of print.c. The text is written by us or
 * by hand, so what is wrong in it is err() with file and line.
 *
 *     text    = { graph } { "source" file bytes newline text newline }
 *     graph   = "graph" name program level [ "after" pass ] [ turns ]
 *               { class } "{" { item } "}"
 *     class   = "activations" | "moments" | "masters"     (of train.offload)
 *     turns   = "alone" | "pairs" | "paired"
 *     item    = option | mesh | stage | axis | param | hf | def | nodes
 *     option  = "option" key value               (the command line's go first)
 *     mesh    = "mesh" "world=" int "order=" word { axis "=" int }
 *     stage   = "role" int "/" int | "calls" { call }
 *             | "slots" { call ":" micro-batch [ "+" ] }     (+: a pair)
 *     call    = ( "F" | "B" | "I" | "W" ) chunk, for transfers after "send." or
 *               "recv." or "wait." and with "." chunk behind
 *     axis    = "axis" name ( size | "(" usual ")" ) [ "root=" name ]
 *               [ "zigzag" ] [ "parts=" int ] [ "of=" names ] places  (usual:
 *               not declared)
 *     param   = ( "param" | "state" | "master" | "m" | "v" ) path init number
 *               [ "of=" path ] [ "expert=" axis ] [ "bucket=" name "at=" int ]
 *               [ "copy" ] type places
 *     hf      = as in a plan (plantext.c)
 *     def     = "def" name "{" { nodes } "}"      the body of a composite
 *     nodes   = region ":" | call ":" | node
 *     node    = "%" name "=" op [ def ] { "%" operand } { attr } [ type ]
 *               [ shards ] places             (shards, atoms: shardtext.c)
 *     attr    = word "=" ( names | number | word | atoms | "%" name | "none" )
 *     type    = dtype "[" { axis [ "=" size ] } "]"
 *     names   = name { "," name }
 *     places  = [ "!" file:line { "<" file:line } ]         (the caller's next)
 *
 * Attributes are those of the op's row in ops.def, and again, piece and kernel
 * of any node; map, part and scope are written only when they are not what
 * text_map() and text_scope() say, marks where a model made some. */
#include <stdlib.h>
#include <string.h>

#include "ir.h"
#include "keys.h"

/* ---- the header ---------------------------------------------------------- */

static void read_option(GraphReader *reader)
{
    const char *key = lex_word(&reader->x), *value = lex_word(&reader->x);

    opts_set(opts_new(reader->x.arena), key, value, NULL); /* is it a key? */
    if (!reader->g->opts)
        reader->g->opts = opts_new(reader->g->arena);
    if (!opts_given(reader->g->opts, key))
        opts_set(reader->g->opts, key, value, NULL);
}

static void read_mesh(GraphReader *reader)
{
    Lex *x = &reader->x;
    Loc l = { x->file, x->line, NULL };
    int64_t world, size[NMESH] = { 0 };

    lex_take(x, "world"), lex_need(x, '=');
    world = lex_int(x);
    lex_take(x, "order"), lex_need(x, '=');
    const char *order = lex_word(x);
    while (lex_more(x)) {
        int i = lex_choice(x, meshnames, NMESH);
        lex_need(x, '=');
        size[i] = lex_int(x);
    }
    reader->g->mesh = mesh_new(reader->g->arena, world, size, order, &l);
}

static void read_call(GraphReader *reader)
{
    const char *s = lex_word(&reader->x);
    Call c;

    if (!call_named(reader->x.arena, s, &c))
        lex_err(&reader->x, "'%s' is no call", s);
    vec_push(reader->g->arena, reader->g->call, c);
}

static void read_slot(GraphReader *reader)
{
    const char *s = lex_word(&reader->x), *colon = strchr(s, ':');
    int call = colon ? parse_call(reader, s, (size_t)(colon - s)) : -1;
    ScheduleSlot t = { .phase = call };
    char *end;

    if (call < 0)
        lex_err(&reader->x, "'%s' is not call:micro-batch", s);
    t.micro = (int)strtol(colon + 1, &end, 10);
    t.pair = *end == '+';
    if (t.micro < 0 || end == colon + 1 || end[t.pair])
        lex_err(&reader->x, "'%s' is not call:micro-batch", s);
    vec_push(reader->g->arena, reader->g->slot, t);
}

/* units = kind { path } */
static void read_units(GraphReader *reader)
{
    const char *s = lex_word(&reader->x);
    int kind = word_index(s, unitkinds, NUNITKIND);

    if (kind <= UNITnone)
        lex_err(&reader->x, "no kind of units '%s'", s);
    while (lex_more(&reader->x))
        g_unit(reader->g, lex_word(&reader->x), (UnitKind)kind);
}

static void read_role(GraphReader *reader)
{
    const char *s = lex_word(&reader->x), *slash = strchr(s, '/');

    reader->g->role = atoi(s);
    reader->g->nrole = slash ? atoi(slash + 1) : 0;
    if (reader->g->role < 0 || reader->g->role >= reader->g->nrole)
        lex_err(&reader->x, "'%s' is no stage of a pipeline", s);
}

static void declare_axis(GraphReader *reader, const char *name)
{
    void **slot = table_at(reader->axis, KEYP(name));

    for (int i = 0; i < reader->g->naxis; i++)
        if (reader->g->axis[i]->name == name)
            lex_err(&reader->x, "two axes '%s'", name);
    if (!*slot) {
        *slot = g_axis(reader->g, name);
        return;
    }
    vec_push(reader->g->arena, reader->g->axis, *slot);
    reader->g->naxis++;
}

/* All axes first, in their order: a root may be declared below its use. */
static void declare_axes(GraphReader *reader)
{
    Lex x = reader->x;

    for (int depth = 0; x.p < x.end && depth >= 0;) {
        if (lex_take(&x, "axis"))
            declare_axis(reader, lex_word(&x));
        depth += lex_take(&x, "def") - lex_mark(&x, '}');
        const char *nl = memchr(x.p, '\n', (size_t)(x.end - x.p));
        x.p = nl ? nl + 1 : x.end;
    }
}

static AxisRole read_axis_role(Lex *x)
{
    const char *s = lex_word(x);
    int r = role_named(s);

    if (r <= ROLErow)
        lex_err(x, "no role '%s' of an axis", s);
    return (AxisRole)r;
}

static void read_taken(Lex *x, Axis *a)
{
    int m = lex_choice(x, meshnames, NMESH);

    lex_need(x, '(');
    a->taken[m] = (char)lex_range(x, "place", 1, 64);
    lex_need(x, ')');
}

static void read_axis_line(GraphReader *reader)
{
    Lex *x = &reader->x;
    Axis *a = parse_axis(reader);

    if (lex_mark(x, '(')) {
        *table_at(reader->usual, KEYP(a)) =
            (void *)(uintptr_t)lex_range(x, "size", 1, INT64_MAX);
        lex_need(x, ')');
    } else {
        a->n = lex_range(x, "size", 0, INT64_MAX);
    }
    if (lex_key(x, "root"))
        a->root = parse_axis(reader);
    a->zigzag = lex_take(x, "zigzag");
    if (lex_key(x, "parts"))
        a->parts = lex_range(x, "parts", 1, INT32_MAX);
    if (lex_key(x, "role"))
        a->role = read_axis_role(x);
    while (lex_key(x, "shard"))
        read_taken(x, a);
    if (lex_key(x, "atoms"))
        a->atoms = (uint32_t)lex_range(x, "atoms", 1, (1 << MAXATOM) - 1);
    a->nfactor = 0;
    if (lex_key(x, "of"))
        do {
            if (a->nfactor == 4)
                lex_err(x, "more than 4 factors");
            a->factor[a->nfactor++] = parse_axis(reader);
        } while (lex_mark(x, ','));
    a->loc = parse_places(reader);
}

static void read_param(GraphReader *reader, TensorKind kind)
{
    Lex *x = &reader->x;
    Param *v = alloc(reader->g->arena, sizeof *v);

    v->kind = kind;
    v->path = lex_word(x);
    v->init = (InitKind)lex_choice(x, initkinds, NINIT);
    v->arg = lex_num(x);
    if (lex_key(x, "of"))
        v->of = lex_word(x);
    if (lex_key(x, "expert"))
        v->expert = parse_axis(reader);
    if (lex_key(x, "bucket")) {
        v->bucket = lex_word(x);
        if (!lex_key(x, "at"))
            lex_err(x, "a member of a bucket lies at an element");
        v->at = lex_int(x);
    }
    v->copy = lex_take(x, "copy");
    parse_type(reader, &v->dt, v->dim, &v->nd);
    v->loc = parse_places(reader);
    if (g_param(reader->g, v->path))
        lex_err(x, "two parameters '%s'", v->path);
    vec_push(reader->g->arena, reader->g->param, v);
}

/* def = "def" name "{" { nodes } "}" */
static void read_def(GraphReader *reader)
{
    const char *name = lex_word(&reader->x);
    void **slot = table_at(reader->body, KEYP(name));
    GraphReader b = *reader;

    if (*slot)
        lex_err(&reader->x, "two bodies '%s'", name);
    b.g = g_like(reader->g);
    b.node = table_new(reader->x.arena);
    b.reg = REGbody;
    b.call = 0;
    lex_need(&b.x, '{');
    for (lex_line(&b.x); !lex_mark(&b.x, '}'); lex_line(&b.x))
        parse_nodes(&b);
    reader->x = b.x;
    *table_at(reader->body, KEYP(name)) = b.g;
}

static void read_hf(GraphReader *reader)
{
    HfMap h;

    lex_hf(&reader->x, &h);
    vec_push(reader->g->arena, reader->g->hf, h);
    reader->g->nhf = (int)vec_len(reader->g->hf);
}

static void read_item(GraphReader *reader)
{
    Lex *x = &reader->x;

    for (int i = TKparam; i <= TKv; i++)
        if (lex_take(x, tensor_kinds[i].name)) {
            read_param(reader, (TensorKind)i);
            return;
        }
    if (lex_take(x, "axis"))
        read_axis_line(reader);
    else if (lex_take(x, "option"))
        read_option(reader);
    else if (lex_take(x, "mesh"))
        read_mesh(reader);
    else if (lex_take(x, "role"))
        read_role(reader);
    else if (lex_take(x, "units"))
        read_units(reader);
    else if (lex_take(x, "calls"))
        while (lex_more(x))
            read_call(reader);
    else if (lex_take(x, "slots"))
        while (lex_more(x))
            read_slot(reader);
    else if (lex_take(x, "hf"))
        read_hf(reader);
    else if (lex_take(x, "def"))
        read_def(reader);
    else
        parse_nodes(reader);
}

static void read_head(GraphReader *reader)
{
    Lex *x = &reader->x;

    if (!lex_take(x, "graph"))
        lex_err(x, "not a graph: expected 'graph'");
    reader->g->name = lex_word(x);
    reader->g->prog = (ProgramKind)lex_choice(x, programnames, NPROGRAM);
    reader->g->level = (Level)lex_choice(x, levels, NLEVEL);
    if (lex_take(x, "after"))
        reader->g->after = lex_word(x);
    for (int t = TURNSalone; t < NTURNS; t++)
        if (lex_take(x, turnwords[t]))
            reader->g->turns = (Turns)t;
    for (int i = OFFLOADactivations; i <= OFFLOADmasters; i++)
        if (lex_take(x, key_word_text("train.offload", i)))
            reader->g->offloads |= 1u << i;
    lex_need(x, '{');
    declare_axes(reader);
}

/* One graph; x stands behind it afterwards. first: of the same text, whose
 * scopes are this graph's too; or null. */
static Graph *read_graph(Arena *a, Lex *x, Opts *opts, Table *axis,
                         const Graph *first)
{
    GraphReader reader = {
        .x = *x,
        .g = g_new(a, x->file),
        .node = table_new(x->arena),
        .body = table_new(x->arena),
        .usual = table_new(x->arena),
        .axis = axis,
        .reg = REGbody,
    };

    reader.g->opts = opts;
    if (first) {
        memcpy(reader.g->scopes, first->scopes, sizeof first->scopes);
        reader.g->top = first->top;
    }
    read_head(&reader);
    for (lex_line(&reader.x); !lex_mark(&reader.x, '}'); lex_line(&reader.x))
        read_item(&reader);
    const char *wrong = graph_wrong(x->arena, reader.g);
    if (wrong)
        lex_err(&reader.x, "%s", wrong);
    *x = reader.x;
    return reader.g;
}

Graph **graphs_parse(Arena *a, const char *text, size_t len, const char *name,
                     Opts *opts, Source **sources)
{
    Arena *scratch = arena_new();
    Lex x = {
        .arena = scratch, .p = text, .end = text + len, .file = intern(name)
    };
    Table *axis = table_new(scratch);
    Graph **v = NULL;
    Source s;

    source_add(name, text, len);
    lex_next(&x);
    do {
        Graph *g = read_graph(a, &x, opts, axis, v ? v[0] : NULL);
        vec_push(a, v, g);
        opts = g->opts;
    } while (lex_next(&x) && !lex_take(&x, "source"));
    x.arena = a; /* texts outlive the reading */
    while (lex_more(&x)) {
        s.file = lex_word(&x);
        s.text = lex_text(&x);
        vec_push(a, *sources, s);
        if (lex_next(&x) && !lex_take(&x, "source"))
            lex_err(&x, "expected 'source'");
    }
    arena_free(scratch);
    return v;
}

Graph *graph_parse(Arena *a, const char *text, size_t len, const char *name,
                   Opts *opts)
{
    Source *sources = NULL;
    Graph **v = graphs_parse(a, text, len, name, opts, &sources);

    if (vec_len(v) != 1 || sources) {
        const Loc l = { intern(name), 1, NULL };
        err(&l, "%zu graphs and %zu sources where one graph is meant",
            vec_len(v), vec_len(sources));
    }
    return v[0];
}
