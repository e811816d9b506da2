/* parse.c: text to graph, the inverse of print.c. The text is written by us or
 * by hand, so what is wrong in it is err() with file and line.
 *
 *     text    = { graph } { "source" file bytes newline text newline }
 *     graph   = "graph" name program level [ "after" pass ] "{" { item } "}"
 *     item    = option | mesh | stage | axis | param | hf | def | nodes
 *     option  = "option" key value               (the command line's go first)
 *     mesh    = "mesh" "world=" int "order=" word { axis "=" int }
 *     stage   = "role" int "/" int | "calls" { call }
 *             | "turns" { call ":" micro-batch [ "+" ] }     (+: a pair)
 *     call    = ( "F" | "B" | "I" | "W" ) chunk, for transfers after "send." or
 *               "recv." or "wait." and with "." chunk behind
 *     axis    = "axis" name ( size | "(" usual ")" ) [ "root=" name ]
 *               [ "zigzag" ] [ "of=" names ] places  (usual: not declared)
 *     param   = ( "param" | "state" | "master" | "m" | "v" ) path init number
 *               [ "of=" path ] [ "expert=" axis ] [ "bucket=" name "at=" int ]
 *               [ "copy" ] type places
 *     hf      = as in a plan (planread.c)
 *     def     = "def" name "{" { nodes } "}"      the body of a composite
 *     nodes   = region ":" | call ":" | node
 *     node    = "%" name "=" op [ def ] { "%" operand } { attr } [ type ]
 *               [ "@" { where ":" shard } ] places
 *     attr    = word "=" ( names | number | word | atoms | "%" name | "none" )
 *     type    = dtype "[" { axis [ "=" size ] } "]"
 *     where   = mesh axis | "a" atom
 *     shard   = axis | "+" | "+max" | "+min" | "~"           (not named: whole)
 *     atoms   = where { "," where } | "none"
 *     names   = name { "," name }
 *     places  = [ "!" file:line { "<" file:line } ]         (the caller's next)
 *
 * Attributes are those of the op's row in ops.def; A B i j f s name a node's
 * slots where the row has none; map, again and scope are written only when they
 * are not what text_map() and text_scope() say.                              */
#include <stdlib.h>
#include <string.h>

#include "ir.h"

typedef struct Parser {
    Lex x;
    Graph *g;                     /* being filled: the graph, or a body       */
    Table *node;                  /* name -> node of g                        */
    Table *body;                  /* name -> graph                            */
    Table *usual;                /* undeclared axis -> size where none stands */
    Table *axis;                  /* name -> axis, of all graphs of the text  */
    Region reg;
    int call;                     /* 1 + index: of what stands below "F0:"    */
} Parser;

/* ---- names --------------------------------------------------------------- */

static Axis *axis_named(Parser *p, const char *name)
{
    const char *all[64];
    size_t n = 0;

    for (int i = 0; i < p->g->naxis; i++) {
        if (p->g->axis[i]->name == name)
            return p->g->axis[i];
        if (n < 64)
            all[n++] = p->g->axis[i]->name;
    }
    const char *near = nearest(name, all, n);
    if (near)
        lex_err(&p->x, "unknown axis '%s' (did you mean '%s'?)", name, near);
    lex_err(&p->x, "unknown axis '%s'", name);
}

static Axis *read_axis(Parser *p)
{
    return axis_named(p, lex_word(&p->x));
}

/* names */
static Axis **read_axes(Parser *p, int *n)
{
    Axis **v = NULL;

    do
        vec_push(p->g->arena, v, read_axis(p));
    while (lex_mark(&p->x, ','));
    *n = (int)vec_len(v);
    return v;
}

/* After "%": a node that stands above.                                       */
static Node *read_operand(Parser *p)
{
    const char *name = lex_word(&p->x);
    Node *n = table_get(p->node, KEYP(name));

    if (!n)
        lex_err(&p->x, "no node '%%%s' stands above", name);
    return n;
}

static int index_of(const char *s, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], s))
            return i;
    return -1;
}

/* ---- places -------------------------------------------------------------- */

static Loc *read_place(Parser *p)
{
    const char *s = lex_word(&p->x), *colon = strrchr(s, ':');
    Loc *l = alloc(p->g->arena, sizeof *l);

    if (!colon)
        lex_err(&p->x, "'%s' is not file:line", s);
    l->file = internn(s, (size_t)(colon - s));
    l->line = atoi(colon + 1);
    return l;
}

static const Loc *read_places(Parser *p)
{
    if (!lex_mark(&p->x, '!'))
        return NULL;
    Loc *first = read_place(p), *l = first;
    while (lex_mark(&p->x, '<')) {
        Loc *up = read_place(p);
        l->up = up;
        l = up;
    }
    return first;
}

/* ---- types --------------------------------------------------------------- */

/* type = dtype "[" { axis [ "=" size ] } "]" ; 1 when there was one.         */
static int read_type(Parser *p, Dtype *dt, Dim *dim, int *nd)
{
    Lex at = p->x;
    const char *s = lex_more(&p->x) && !strchr("@!%", *p->x.p)
                        ? lex_word(&p->x) : NULL;
    int d = s ? dtype_named(s) : -1;

    if (d < 0) {
        p->x = at;
        return 0;
    }
    *dt = (Dtype)d;
    lex_need(&p->x, '[');
    while (!lex_mark(&p->x, ']')) {
        if (*nd == MAXD)
            lex_err(&p->x, "more than %d axes", MAXD);
        Axis *a = read_axis(p);
        int64_t n = a->n ? a->n
                         : (int64_t)(uintptr_t)table_get(p->usual, KEYP(a));
        if (lex_mark(&p->x, '='))
            n = lex_int(&p->x);
        dim[(*nd)++] = (Dim){ a, n };
    }
    return 1;
}

/* where = mesh axis | "a" atom: a set of atoms, from the n bytes at s.       */
static uint32_t read_where(Parser *p, const char *s, size_t n)
{
    const Mesh *m = p->g->mesh;

    for (int i = 0; m && i < NMESH; i++)
        if (strlen(meshnames[i]) == n && !memcmp(meshnames[i], s, n))
            return m->mask[i];
    int at = n > 1 && s[0] == 'a' ? atoi(s + 1) : -1;
    if (at < 0 || at >= MAXATOM)
        lex_err(&p->x, "'%.*s' is no mesh axis and no atom", (int)n, s);
    return 1u << at;
}

static Shard read_shard(Parser *p, const char *s)
{
    static const char *const ops[] = { "+", "+max", "+min" };
    int op = index_of(s, ops, 3);

    if (op >= 0)
        return (Shard){ .k = P, .op = (Reduce)op };
    if (!strcmp(s, "~"))
        return (Shard){ .k = F };
    return (Shard){ .k = S, .a = axis_named(p, intern(s)) };
}

/* "@" { where ":" shard } */
static void read_shards(Parser *p, Node *n)
{
    if (!lex_mark(&p->x, '@'))
        return;
    while (lex_more(&p->x) && *p->x.p != '!') {
        const char *s = lex_word(&p->x), *colon = strchr(s, ':');
        if (!colon)
            lex_err(&p->x, "'%s' is not mesh-axis:shard", s);
        uint32_t set = read_where(p, s, (size_t)(colon - s));
        Shard h = read_shard(p, colon + 1);
        for (int i = 0; i < MAXATOM; i++)
            if (set >> i & 1)
                n->sh[i] = h;
    }
}

/* atoms = where { "," where } | "none" */
static int64_t read_atoms(Parser *p)
{
    uint32_t set = 0;

    if (lex_take(&p->x, "none"))
        return 0;
    do {
        const char *s = lex_word(&p->x);
        set |= read_where(p, s, strlen(s));
    } while (lex_mark(&p->x, ','));
    return set;
}

/* ---- nodes --------------------------------------------------------------- */

static void read_slot(Parser *p, Node *n, const AttrInfo *a)
{
    Lex *x = &p->x;

    switch (a->slot) {
    case SlotA: n->A = read_axes(p, &n->nA); break;
    case SlotB: n->B = read_axes(p, &n->nB); break;
    case Sloti:
        n->i = strcmp(a->name, "atoms") ? lex_int(x) : read_atoms(p);
        break;
    case Slotj: n->j = lex_int(x); break;
    case Slotf: n->f = lex_num(x); break;
    case Slots: n->s = lex_word(x); break;
    }
}

static const AttrInfo *attr_named(Op op, const char *name)
{
    static const AttrInfo raw[] = {
        { "A", SlotA }, { "B", SlotB }, { "i", Sloti },
        { "j", Slotj }, { "f", Slotf }, { "s", Slots },
    };

    for (int i = 0; i < optab[op].nattr; i++)
        if (!strcmp(optab[op].attr[i].name, name))
            return &optab[op].attr[i];
    for (int i = 0; i < 6; i++)
        if (!strcmp(raw[i].name, name))
            return &raw[i];
    return NULL;
}

/* What text_map() and text_scope() do not say.                               */
typedef struct Extra { int map, scope; } Extra;

static void read_attr(Parser *p, Node *n, Extra *e)
{
    Lex *x = &p->x;
    const char *name = lex_word(x);
    const AttrInfo *a = attr_named(n->op, name);

    lex_need(x, '=');
    if (a) {
        read_slot(p, n, a);
    } else if (!strcmp(name, "map")) {
        e->map = 1;
        n->map = lex_mark(x, '%') ? read_operand(p) : NULL;
        if (!n->map && !lex_take(x, "none"))
            lex_err(x, "map is neither a node nor none");
    } else if (!strcmp(name, "again")) {
        n->again = (int)lex_range(x, name, 0, INT32_MAX);
    } else if (!strcmp(name, "scope")) {
        e->scope = 1;
        n->scope = lex_word(x);
    } else {
        lex_err(x, "%s has no attribute '%s'", optab[n->op].name, name);
    }
}

static Op read_op(Parser *p)
{
    const char *names[NOP], *s = lex_word(&p->x);
    int op = op_named(s);

    if (op >= 0)
        return (Op)op;
    for (int i = 0; i < NOP; i++)
        names[i] = optab[i].name;
    const char *near = nearest(s, names, NOP);
    if (near)
        lex_err(&p->x, "no op '%s' (did you mean '%s'?)", s, near);
    lex_err(&p->x, "no op '%s'", s);
}

static void read_operands(Parser *p, Node *n)
{
    Node *in[MAXIN];

    while (lex_mark(&p->x, '%')) {
        if (n->nin == MAXIN)
            lex_err(&p->x, "more than %d operands", MAXIN);
        in[n->nin++] = read_operand(p);
    }
    if (!takes(n->op, n->nin))
        lex_err(&p->x, "%s has %d operands (%s), not %d", optab[n->op].name,
                optab[n->op].nin, optab[n->op].operands, n->nin);
    n->in = alloc(p->g->arena, ((size_t)n->nin + 1) * sizeof *n->in);
    for (int i = 0; i < n->nin; i++)
        n->in[i] = in[i];
}

static const char *body_stem(Parser *p, const char *name)
{
    const char *dot = strrchr(name, '.');

    if (!dot)
        lex_err(&p->x, "body '%s' has no number", name);
    return internn(name, (size_t)(dot - name));
}

/* A composite's second word, unless operands or attributes follow at once.   */
static void read_body(Parser *p, Node *n)
{
    Lex at = p->x;

    if (optab[n->op].cls != COMP || !lex_more(&p->x) || *p->x.p == '%')
        return;
    const char *name = lex_word(&p->x);
    if (lex_more(&p->x) && *p->x.p == '=') {
        p->x = at;
        return;
    }
    n->body = table_get(p->body, KEYP(name));
    if (!n->body)
        lex_err(&p->x, "no body '%s' stands above", name);
    if (n->op == Ocall)
        n->s = body_stem(p, name);
}

static void add_node(Parser *p, Node *n)
{
    void **slot = table_at(p->node, KEYP(n->name));

    if (*slot)
        lex_err(&p->x, "two nodes '%%%s'", n->name);
    *slot = n;
    n->id = (int)vec_len(p->g->node);
    vec_push(p->g->arena, p->g->node, n);
}

/* node = "%" name "=" op ... */
static void read_node(Parser *p)
{
    Node *n = alloc(p->g->arena, sizeof *n);
    Extra e = { 0 };
    int typed = 0;

    n->name = lex_word(&p->x);
    n->reg = p->reg;
    n->call = p->call;
    n->buf = -1;
    lex_need(&p->x, '=');
    n->op = read_op(p);
    read_body(p, n);
    read_operands(p, n);
    while (!(typed = read_type(p, &n->dt, n->dim, &n->nd)) &&
           lex_more(&p->x) && !strchr("@!", *p->x.p))
        read_attr(p, n, &e);
    read_shards(p, n);
    n->loc = read_places(p);
    if (!n->s && optab[n->op].cls == SRC && n->op != Oarg &&
        n->op != Oconst && n->op != Oiota)
        n->s = n->name;
    if (!e.map)
        n->map = text_map(n);
    if (!e.scope)
        n->scope = text_scope(n->name);
    const char *wrong = attrs_wrong(p->x.arena, n);
    if (wrong)
        lex_err(&p->x, "%s: %s", optab[n->op].name, wrong);
    if (!typed)                               /* written by hand: as inferred */
        infer(p->g, n);
    add_node(p, n);
}

/* Index of the graph's call that the n bytes at s name; -1: none.            */
static int call_named(Parser *p, const char *s, size_t n)
{
    for (size_t i = 0; i < vec_len(p->g->call); i++) {
        const char *name = call_name(p->x.arena, &p->g->call[i]);
        if (strlen(name) == n && !memcmp(name, s, n))
            return (int)i;
    }
    return -1;
}

/* nodes = region ":" | call ":" | node */
static void read_nodes(Parser *p)
{
    if (lex_mark(&p->x, '%')) {
        read_node(p);
        return;
    }
    const char *s = lex_word(&p->x);
    for (int i = 0; i < NREGION; i++) {
        size_t n = strlen(regions[i]);
        if (!strncmp(s, regions[i], n) && !strcmp(s + n, ":")) {
            p->reg = (Region)i;
            p->call = 0;
            return;
        }
    }
    size_t n = strlen(s);
    int call = n && s[n - 1] == ':' ? call_named(p, s, n - 1) : -1;
    if (call >= 0) {
        p->reg = REGbody;
        p->call = call + 1;
        return;
    }
    lex_err(&p->x, "'%s' begins neither a node nor a region", s);
}

static void line(Lex *x)
{
    if (!lex_next(x))
        lex_err(x, "the text ends before its '}'");
}

/* def = "def" name "{" { nodes } "}" */
static void read_def(Parser *p)
{
    const char *name = lex_word(&p->x);
    void **slot = table_at(p->body, KEYP(name));
    Parser b = *p;

    if (*slot)
        lex_err(&p->x, "two bodies '%s'", name);
    b.g = g_like(p->g);
    b.node = table_new(p->x.arena);
    b.reg = REGbody;
    b.call = 0;
    lex_need(&b.x, '{');
    for (line(&b.x); !lex_mark(&b.x, '}'); line(&b.x))
        read_nodes(&b);
    p->x = b.x;
    *table_at(p->body, KEYP(name)) = b.g;
}

/* ---- the header ---------------------------------------------------------- */

static void read_option(Parser *p)
{
    const char *key = lex_word(&p->x), *value = lex_word(&p->x);

    opts_set(opts_new(p->x.arena), key, value, NULL);    /* is it a key?      */
    if (!p->g->opts)
        p->g->opts = opts_new(p->g->arena);
    if (!opts_given(p->g->opts, key))
        opts_set(p->g->opts, key, value, NULL);
}

static void read_mesh(Parser *p)
{
    Lex *x = &p->x;
    Loc l = { x->file, x->line, NULL };
    int64_t world, size[NMESH] = { 0 };

    lex_take(x, "world"), lex_need(x, '=');
    world = lex_int(x);
    lex_take(x, "order"), lex_need(x, '=');
    const char *order = lex_word(x);
    while (lex_more(x)) {
        const char *s = lex_word(x);
        int i = index_of(s, meshnames, NMESH);
        if (i < 0)
            lex_err(x, "no mesh axis '%s'", s);
        lex_need(x, '=');
        size[i] = lex_int(x);
    }
    p->g->mesh = mesh_new(p->g->arena, world, size, order, &l);
}

/* call = [ "send." .. ] letter chunk [ "." chunk ] */
static void read_call(Parser *p)
{
    static const char *const kinds[] = { "", "send.", "recv.", "wait." };
    const char *all = lex_word(&p->x), *s = all, *job;
    Call c = { 0 };
    char *end;

    for (int k = ROWsend; k <= ROWwait; k++)
        if (!strncmp(all, kinds[k], strlen(kinds[k]))) {
            c.k = (RowKind)k;
            s = all + strlen(kinds[k]);
        }
    job = *s ? strchr(jobnames, *s) : NULL;
    c.w = job ? (Job)(job - jobnames) : WF;
    c.chunk = job ? (int)strtol(s + 1, &end, 10) : -1;
    if (c.k != ROWwork && job && *end == '.')
        c.other = (int)strtol(end + 1, &end, 10);
    vec_push(p->g->arena, p->g->call, c);
    if (!job || strcmp(call_name(p->x.arena, &c), all))
        lex_err(&p->x, "'%s' is no call", all);
}

static void read_turn(Parser *p)
{
    const char *s = lex_word(&p->x), *colon = strchr(s, ':');
    int call = colon ? call_named(p, s, (size_t)(colon - s)) : -1;
    Turn t = { .phase = call };
    char *end;

    if (call < 0)
        lex_err(&p->x, "'%s' is not call:micro-batch", s);
    t.micro = (int)strtol(colon + 1, &end, 10);
    t.pair = *end == '+';
    if (t.micro < 0 || end == colon + 1 || end[t.pair])
        lex_err(&p->x, "'%s' is not call:micro-batch", s);
    vec_push(p->g->arena, p->g->turn, t);
}

static void read_role(Parser *p)
{
    const char *s = lex_word(&p->x), *slash = strchr(s, '/');

    p->g->role = atoi(s);
    p->g->nrole = slash ? atoi(slash + 1) : 0;
    if (p->g->role < 0 || p->g->role >= p->g->nrole)
        lex_err(&p->x, "'%s' is no stage of a pipeline", s);
}

static void declare_axis(Parser *p, const char *name)
{
    void **slot = table_at(p->axis, KEYP(name));

    for (int i = 0; i < p->g->naxis; i++)
        if (p->g->axis[i]->name == name)
            lex_err(&p->x, "two axes '%s'", name);
    if (!*slot) {
        *slot = g_axis(p->g, name);
        return;
    }
    vec_push(p->g->arena, p->g->axis, *slot);
    p->g->naxis++;
}

/* All axes first, in their order: a root may be declared below its use.      */
static void declare_axes(Parser *p)
{
    Lex x = p->x;

    for (int depth = 0; x.p < x.end && depth >= 0;) {
        if (lex_take(&x, "axis"))
            declare_axis(p, lex_word(&x));
        depth += lex_take(&x, "def") - lex_mark(&x, '}');
        const char *nl = memchr(x.p, '\n', (size_t)(x.end - x.p));
        x.p = nl ? nl + 1 : x.end;
    }
}

static void read_axis_line(Parser *p)
{
    Lex *x = &p->x;
    Axis *a = read_axis(p);

    if (lex_mark(x, '(')) {
        *table_at(p->usual, KEYP(a)) =
            (void *)(uintptr_t)lex_range(x, "size", 1, INT64_MAX);
        lex_need(x, ')');
    } else {
        a->n = lex_range(x, "size", 0, INT64_MAX);
    }
    if (lex_take(x, "root")) {
        lex_need(x, '=');
        a->root = read_axis(p);
    }
    a->zigzag = lex_take(x, "zigzag");
    a->nfactor = 0;
    if (lex_take(x, "of")) {
        lex_need(x, '=');
        do {
            if (a->nfactor == 4)
                lex_err(x, "more than 4 factors");
            a->factor[a->nfactor++] = read_axis(p);
        } while (lex_mark(x, ','));
    }
    a->loc = read_places(p);
}

static void read_param(Parser *p, ParamKind kind)
{
    Lex *x = &p->x;
    Param *v = alloc(p->g->arena, sizeof *v);

    v->kind = kind;
    v->path = lex_word(x);
    v->init = lex_word(x);
    if (!strcmp(v->init, "-"))
        v->init = NULL;
    v->arg = lex_num(x);
    if (lex_take(x, "of")) {
        lex_need(x, '=');
        v->of = lex_word(x);
    }
    if (lex_take(x, "expert")) {
        lex_need(x, '=');
        v->expert = read_axis(p);
    }
    if (lex_take(x, "bucket")) {
        lex_need(x, '=');
        v->bucket = lex_word(x);
        if (!lex_take(x, "at"))
            lex_err(x, "a member of a bucket lies at an element");
        lex_need(x, '=');
        v->at = lex_int(x);
    }
    v->copy = lex_take(x, "copy");
    read_type(p, &v->dt, v->dim, &v->nd);
    v->loc = read_places(p);
    if (g_param(p->g, v->path))
        lex_err(x, "two parameters '%s'", v->path);
    vec_push(p->g->arena, p->g->param, v);
}

static void read_hf(Parser *p)
{
    HfMap h;

    lex_hf(&p->x, &h);
    vec_push(p->g->arena, p->g->hf, h);
    p->g->nhf = (int)vec_len(p->g->hf);
}

static void read_item(Parser *p)
{
    Lex *x = &p->x;

    for (int i = PKparam; i <= PKv; i++)
        if (lex_take(x, paramkinds[i])) {
            read_param(p, (ParamKind)i);
            return;
        }
    if (lex_take(x, "axis"))
        read_axis_line(p);
    else if (lex_take(x, "option"))
        read_option(p);
    else if (lex_take(x, "mesh"))
        read_mesh(p);
    else if (lex_take(x, "role"))
        read_role(p);
    else if (lex_take(x, "calls"))
        while (lex_more(x))
            read_call(p);
    else if (lex_take(x, "turns"))
        while (lex_more(x))
            read_turn(p);
    else if (lex_take(x, "hf"))
        read_hf(p);
    else if (lex_take(x, "def"))
        read_def(p);
    else
        read_nodes(p);
}

static void read_head(Parser *p)
{
    Lex *x = &p->x;

    if (!lex_take(x, "graph"))
        lex_err(x, "not a graph: expected 'graph'");
    p->g->name = lex_word(x);
    p->g->prog = lex_word(x);
    const char *s = lex_word(x);
    int level = index_of(s, levels, NLEVEL);
    if (level < 0)
        lex_err(x, "no level '%s'", s);
    p->g->level = (Level)level;
    if (lex_take(x, "after"))
        p->g->after = lex_word(x);
    lex_need(x, '{');
    declare_axes(p);
}

/* One graph; x stands behind it afterwards.                                  */
static Graph *read_graph(Arena *a, Lex *x, Opts *opts, Table *axis)
{
    Parser p = {
        .x = *x, .g = g_new(a, x->file), .node = table_new(x->arena),
        .body = table_new(x->arena), .usual = table_new(x->arena),
        .axis = axis, .reg = REGbody,
    };

    p.g->opts = opts;
    read_head(&p);
    for (line(&p.x); !lex_mark(&p.x, '}'); line(&p.x))
        read_item(&p);
    const char *wrong = graph_wrong(x->arena, p.g);
    if (wrong)
        lex_err(&p.x, "%s", wrong);
    *x = p.x;
    return p.g;
}

Graph **graphs_parse(Arena *a, const char *text, size_t len, const char *name,
                     Opts *opts, Source **sources)
{
    Arena *scratch = arena_new();
    Lex x = { .arena = scratch, .p = text, .end = text + len,
              .file = intern(name) };
    Table *axis = table_new(scratch);
    Graph **v = NULL;
    Source s;

    source_add(name, text, len);
    lex_next(&x);
    do {
        Graph *g = read_graph(a, &x, opts, axis);
        vec_push(a, v, g);
        opts = g->opts;
    } while (lex_next(&x) && !lex_take(&x, "source"));
    x.arena = a;                              /* texts outlive the reading    */
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
