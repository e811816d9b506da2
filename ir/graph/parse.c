/* parse.c: parses a graph's text, the inverse of print.c. The text may be
 * written by hand, so its errors are err() with file and line.
 *
 *     text    = { graph } { "source" file bytes newline text newline }
 *     graph   = "graph" name program level [ "after" pass ] [ turns ]
 *               { class } "{" { item } "}"
 *     class   = "activations" | "moments" | "masters"     (of train.offload)
 *     turns   = "alone" | "pairs" | "paired"
 *     item    = option | mesh | stage | axis | param | hf | def | nodes
 *     option  = "option" key value            (the command line overrides it)
 *     mesh    = "mesh" "world=" int "order=" word { axis "=" int }
 *     stage   = "role" int "/" int | "calls" { call }
 *             | "slots" { call ":" micro-batch [ "+" ] }     (+: a pair)
 *     call    = ( "F" | "B" | "I" | "W" ) chunk; transfers: "send.", "recv." or
 *               "wait." before it and "." chunk after it
 *     axis    = "axis" name ( size | "(" usual ")" ) [ "root=" name ]
 *               [ "zigzag" ] [ "parts=" int ] [ "of=" names ] places  (usual:
 *               not declared)
 *     param   = ( "param" | "state" | "master" | "m" | "v" ) path init number
 *               [ "of=" path ] [ "expert=" axis ] [ "bucket=" name "at=" int ]
 *               [ "copy" ] type places
 *     hf      = see plantext.c
 *     def     = "def" name "{" { nodes } "}"      the body of a composite
 *     nodes   = region ":" | call ":" | node
 *     node    = "%" name "=" op [ def ] { "%" operand } { attr } [ type ]
 *               [ shards ] places             (shards, atoms: shardtext.c)
 *     attr    = word "=" ( names | number | word | atoms | "%" name | "none" )
 *     type    = dtype "[" { axis [ "=" size ] } "]"
 *     names   = name { "," name }
 *     places  = [ "!" file:line { "<" file:line } ]         (the caller's next)
 *
 * Attributes are those of the op's row in ops.def, and again, piece, kernel and
 * host of any node; map, part and scope are written only if they differ from
 * text_map() and text_scope(), marks if there are some. */
#include "graph.h"
#include "../settings/keys.h"

/* ---- the header ---------------------------------------------------------- */

static void read_option(GraphReader *reader)
{
    const char *key = lex_word(&reader->x), *value = lex_word(&reader->x);

    opts_set(opts_new(reader->x.arena), key, value, NULL); /* checks the key */
    if (!reader->g->opts)
        reader->g->opts = opts_new(reader->g->arena);
    if (!opts_given(reader->g->opts, key))
        opts_set(reader->g->opts, key, value, NULL);
}

static void read_mesh(GraphReader *reader)
{
    Lex *lex = &reader->x;
    Loc l = { lex->file, lex->line, NULL };
    int64_t world, size[NMESH] = { 0 };

    lex_take(lex, "world"), lex_need(lex, '=');
    world = lex_int(lex);
    lex_take(lex, "order"), lex_need(lex, '=');
    const char *order = lex_word(lex);
    while (lex_more(lex)) {
        int i = lex_choice(lex, meshnames, NMESH);
        lex_need(lex, '=');
        size[i] = lex_int(lex);
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

/* Reads units = kind { path }. */
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

/* Creates all axes in their order first: a root may be declared after its
 * use. */
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

static AxisRole read_axis_role(Lex *lex)
{
    const char *s = lex_word(lex);
    int r = role_named(s);

    if (r <= ROLErow)
        lex_err(lex, "no role '%s' of an axis", s);
    return (AxisRole)r;
}

static void read_taken(Lex *lex, Axis *a)
{
    int m = lex_choice(lex, meshnames, NMESH);

    lex_need(lex, '(');
    a->taken[m] = (char)lex_range(lex, "place", 1, 64);
    lex_need(lex, ')');
}

static void read_axis_line(GraphReader *reader)
{
    Lex *lex = &reader->x;
    Axis *a = parse_axis(reader);

    if (lex_mark(lex, '(')) {
        *table_at(reader->usual, KEYP(a)) =
            (void *)(uintptr_t)lex_range(lex, "size", 1, INT64_MAX);
        lex_need(lex, ')');
    } else {
        a->n = lex_range(lex, "size", 0, INT64_MAX);
    }
    if (lex_key(lex, "root"))
        a->root = parse_axis(reader);
    a->zigzag = lex_take(lex, "zigzag");
    if (lex_key(lex, "parts"))
        a->parts = lex_range(lex, "parts", 1, INT32_MAX);
    if (lex_key(lex, "role"))
        a->role = read_axis_role(lex);
    while (lex_key(lex, "shard"))
        read_taken(lex, a);
    if (lex_key(lex, "atoms"))
        a->atoms = (uint32_t)lex_range(lex, "atoms", 1, (1 << MAXATOM) - 1);
    a->nfactor = 0;
    if (lex_key(lex, "of"))
        do {
            if (a->nfactor == 4)
                lex_err(lex, "more than 4 factors");
            a->factor[a->nfactor++] = parse_axis(reader);
        } while (lex_mark(lex, ','));
    a->loc = parse_places(reader);
}

static void read_param(GraphReader *reader, TensorKind kind)
{
    Lex *lex = &reader->x;
    Param *v = alloc(reader->g->arena, sizeof *v);

    v->kind = kind;
    v->path = lex_word(lex);
    v->init = (InitKind)lex_choice(lex, initkinds, NINIT);
    v->arg = lex_num(lex);
    if (lex_key(lex, "of"))
        v->of = lex_word(lex);
    if (lex_key(lex, "expert"))
        v->expert = parse_axis(reader);
    if (lex_key(lex, "bucket")) {
        v->bucket = lex_word(lex);
        if (!lex_key(lex, "at"))
            lex_err(lex, "a member of a bucket lies at an element");
        v->at = lex_int(lex);
    }
    v->copy = lex_take(lex, "copy");
    parse_type(reader, &v->dt, v->dim, &v->nd);
    v->loc = parse_places(reader);
    if (g_param(reader->g, v->path))
        lex_err(lex, "two parameters '%s'", v->path);
    vec_push(reader->g->arena, reader->g->param, v);
}

/* Reads def = "def" name "{" { nodes } "}". */
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
    Lex *lex = &reader->x;

    for (int i = TKparam; i <= TKmoment; i++)
        if (lex_take(lex, tensor_kinds[i].name)) {
            read_param(reader, (TensorKind)i);
            return;
        }
    if (lex_take(lex, "axis"))
        read_axis_line(reader);
    else if (lex_take(lex, "option"))
        read_option(reader);
    else if (lex_take(lex, "mesh"))
        read_mesh(reader);
    else if (lex_take(lex, "role"))
        read_role(reader);
    else if (lex_take(lex, "units"))
        read_units(reader);
    else if (lex_take(lex, "calls"))
        while (lex_more(lex))
            read_call(reader);
    else if (lex_take(lex, "slots"))
        while (lex_more(lex))
            read_slot(reader);
    else if (lex_take(lex, "hf"))
        read_hf(reader);
    else if (lex_take(lex, "def"))
        read_def(reader);
    else
        parse_nodes(reader);
}

static void read_head(GraphReader *reader)
{
    Lex *lex = &reader->x;

    if (!lex_take(lex, "graph"))
        lex_err(lex, "not a graph: expected 'graph'");
    reader->g->name = lex_word(lex);
    reader->g->prog = (ProgramKind)lex_choice(lex, programnames, NPROGRAM);
    reader->g->level = (Level)lex_choice(lex, levels, NLEVEL);
    if (lex_take(lex, "after"))
        reader->g->after = lex_word(lex);
    for (int t = TURNSalone; t < NTURNS; t++)
        if (lex_take(lex, turnwords[t]))
            reader->g->turns = (Turns)t;
    for (int i = OFFLOADactivations; i <= OFFLOADmasters; i++)
        if (lex_take(lex, key_word_text("train.offload", i)))
            reader->g->offloads.classes |= 1u << i;
    if (lex_take(lex, "stay"))
        reader->g->offloads.stay =
            (int)lex_range(lex, "parts that stay", 1, OFFLOADPARTS);
    lex_need(lex, '{');
    declare_axes(reader);
}

/* Reads one graph. first: graph of the same text that shares its scopes, or
 * null. */
static Graph *read_graph(Arena *a, Lex *lex, Opts *opts, Table *axis,
                         const Graph *first)
{
    GraphReader reader = {
        .x = *lex,
        .g = g_new(a, lex->file),
        .node = table_new(lex->arena),
        .body = table_new(lex->arena),
        .usual = table_new(lex->arena),
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
    const char *wrong = graph_wrong(lex->arena, reader.g);
    if (wrong)
        lex_err(&reader.x, "%s", wrong);
    *lex = reader.x;
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
