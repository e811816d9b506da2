/* plantext.c: a plan as text. What stands in a line is said once, in the
 * function of its record that reads and writes it (codec.c); plancheck.c says
 * what must hold.
 *
 * A plan is written for machines first: no columns, integers in decimal, floats
 * in hex so that they come back as they were. Kernel text and Lua sources stand
 * in it byte for byte behind their length. The line "executed" has the XXH3-128
 * of all before it, which is all that is executed; the last line that of all
 * before. What is read may come from anywhere: nothing here trusts a number.
 * Lists grow by what is read, never by a count that is announced, and what was
 * read is checked by plan_wrong() before anybody sees it.
 *
 *     plan    = "pleat-plan" format head { hf } { shape } { sig } { role }
 *               [ prelude ] [ host ] { kernel } "executed" hash { source }
 *               "xxh3" hash
 *     head    = "model" name target  "tokens" int  "params" int int
 *               "flops" num  "mesh" world order int*7  { "option" key value }
 *     hf      = "hf" name param { axis "=" int }
 *               { "(" { axis int int int } ")" }
 *     shape  = "shape" dtype [ "scaled" layout ] [ "map" elements ]
 *               { "(" axis int [ "cut" atoms ] [ "zigzag" ] ")" }
 *     sig     = see signature.c
 *     role    = "role arena" int "persist" int [ "host" int ]
 *               "{" { item } "}"
 *     item    = buf | tensor | ("in" | "out") name dtype buffer | program
 *     buf     = "buf" name class dtype offset bytes
 *               [ "life" program born dies [ "frame" int ]
 *                 [ "stack" buffer ] ] place
 *     tensor  = "tensor" name kind dtype buffer
 *               { "(" axis [ "as" role ] int { aff int } ")" }
 *               [ "at" at run shard ] [ "second" ] place
 *     program = "program" name "transient" int "bound" int
 *                [ "rebuilt" num ] "{"
 *               { "phase" name first n repeat [ "pair" ] }
 *               { "slots" { phase [ "=" micro ] [ "&" ] } }
 *               { "frame" name bytes "s" { slot } "o" { int } }
 *               { "end" { buffer value } } { instr } "}"
 *     instr   = kind label { name "=" buffers }
 *               { name "=" word | name "=" int { "," int } }
 *               [ "v" use { "," use } ] [ "inner" atoms ]
 *               [ "spread" atoms ] [ "store_first" ] [ "last_only" ]
 *               [ "g" atoms ] issue
 *               [ "c" num num num [ "again" num ] [ "experts" ] ] place
 *               (operands and fields in the order of instructions.def; issue:
 *               streams.c)
 *     buffers = ( int | "-" ) { "," ( int | "-" ) }
 *     use     = "-" | [ value | "=" buffer ] [ "/" shape ]
 *               [ ">" value ":" shape { ( "+" | "^" | "_" ) atoms } ]
 *     aff     = int { "+" int "*a" atom } [ "!" place ]
 *     place   = [ "@" file line ]
 *     prelude = "prelude" bytes newline text newline
 *     host    = "host" bytes newline text newline
 *     kernel  = "kernel" name bytes newline text newline
 *     source  = "source" file bytes newline text newline */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "plan.h"

enum { HASHDIGITS = 32, HASHLINE = 5 + HASHDIGITS + 1 };

/* ---- roles --------------------------------------------------------------- */

static void buf_text(Codec *codec, Buf *b)
{
    b->name = code_word(codec, b->name);
    b->cls = (BufClass)code_choice(codec, bufclasses, NBUFCLASS, (int)b->cls);
    b->dt = code_dtype(codec, b->dt);
    b->offset = code_int(codec, b->offset);
    b->bytes = code_int(codec, b->bytes);
    if (code_option(codec, "life", b->prog >= 0)) {
        b->prog = code_index(codec, "program", b->prog);
        b->born = code_index(codec, "instruction", b->born);
        b->dies = code_index(codec, "instruction", b->dies);
        if (code_option(codec, "frame", b->frame != 0))
            b->frame =
                1 + (int)code_range(codec, "frame", 0, 1 << 30, b->frame - 1);
        if (code_option(codec, "stack", b->stack != 0))
            b->stack = 1 + code_index(codec, "buffer", b->stack - 1);
    } else {
        b->prog = -1;
    }
    code_place(codec, &b->file, &b->line);
}

static void pieces_text(Codec *codec, PlanDim *dim)
{
    for (int i = 0; !code_mark(codec, " )", i == dim->npiece); i++) {
        code_limit(codec, i, MANYNUMBERS, "pieces");
        Piece *piece = code_at(codec, dim->piece, dim->npiece, i);
        piece->start = code_aff(codec, piece->start);
        piece->len = code_int(codec, piece->len);
    }
}

static void dim_text(Codec *codec, PlanDim *dim)
{
    dim->axis = code_word(codec, dim->axis);
    if (code_option(codec, "as", dim->role != ROLEnone))
        dim->role =
            (AxisRole)code_choice(codec, axisroles, NROLE, (int)dim->role);
    dim->n = code_int(codec, dim->n);
    pieces_text(codec, dim);
}

static TensorKind tensor_kind(Codec *codec, TensorKind kind)
{
    const char *s = code_word(codec, tensor_kinds[kind].name);

    for (int i = 0; i < NTENSORKIND; i++)
        if (!strcmp(tensor_kinds[i].name, s))
            return (TensorKind)i;
    lex_err(codec->in, "no kind of tensors '%s'", s);
}

static void tensor_text(Codec *codec, Tensor *tensor)
{
    tensor->name = code_word(codec, tensor->name);
    tensor->kind = tensor_kind(codec, tensor->kind);
    tensor->dt = code_dtype(codec, tensor->dt);
    tensor->buf = code_index(codec, "buffer", tensor->buf);
    for (int i = 0; code_mark(codec, " (", i < tensor->nd); i++) {
        code_limit(codec, i, MAXD, "axes");
        tensor->nd = codec->in ? i + 1 : tensor->nd;
        dim_text(codec, &tensor->dim[i]);
    }
    if (code_option(codec, "at", tensor->at || tensor->run || tensor->shard)) {
        tensor->at = code_int(codec, tensor->at);
        tensor->run = code_int(codec, tensor->run);
        tensor->shard =
            (uint32_t)code_range(codec, "atoms", 0, UINT32_MAX, tensor->shard);
    }
    if (tensor_is(tensor, COMPANIONS)) {
        code_expect(codec, "of");
        tensor->of = code_index(codec, "tensor", tensor->of);
    }
    if (tensor->kind == TKinput) {
        tensor->second = code_option(codec, "second", tensor->second);
        if (code_option(codec, "below", tensor->below != 0))
            tensor->below = code_int(codec, tensor->below);
    }
    code_place(codec, &tensor->file, &tensor->line);
}

static void scalar_text(Codec *codec, Scalar *scalar)
{
    scalar->dt = code_dtype(codec, scalar->dt);
    scalar->buf = code_index(codec, "buffer", scalar->buf);
    if (code_option(codec, "along", scalar->dim.n != 0)) {
        scalar->dim.axis = code_word(codec, scalar->dim.axis);
        scalar->dim.n =
            code_range(codec, "elements", 1, INT32_MAX, scalar->dim.n);
    }
    code_end(codec);
}

static void given_text(Codec *codec, Scalar *scalar)
{
    scalar->name = code_word(codec, scalar->name);
    if (codec->in) {
        int value = word_index(scalar->name, stepvalues, NSTEPVALUE);
        if (value < 0)
            lex_err(codec->in, "no number of a step '%s'", scalar->name);
        scalar->value = (StepValue)value;
    }
    scalar_text(codec, scalar);
}

static void result_text(Codec *codec, Scalar *scalar)
{
    scalar->name = code_word(codec, scalar->name);
    if (codec->in && !result_named(scalar))
        lex_err(codec->in, "no result '%s'", scalar->name);
    scalar_text(codec, scalar);
}

static void role_text(Codec *codec, Role *role)
{
    code_expect(codec, "arena");
    role->arena = code_int(codec, role->arena);
    code_expect(codec, "persist");
    role->persist = code_int(codec, role->persist);
    if (code_option(codec, "host", role->host != 0))
        role->host = code_int(codec, role->host);
    code_need(codec, " {");
    code_end(codec);
    for (int i = 0; code_option(codec, "buf", i < role->nbuf); i++)
        buf_text(codec, code_at(codec, role->buf, role->nbuf, i));
    for (int i = 0; code_option(codec, "tensor", i < role->ntensor); i++)
        tensor_text(codec, code_at(codec, role->tensor, role->ntensor, i));
    for (int i = 0; code_option(codec, "in", i < role->nin); i++)
        given_text(codec, code_at(codec, role->in, role->nin, i));
    for (int i = 0; code_option(codec, "out", i < role->nout); i++)
        result_text(codec, code_at(codec, role->out, role->nout, i));
    for (int i = 0; code_option(codec, "program", i < role->nprog); i++)
        program_text(codec, code_at(codec, role->prog, role->nprog, i));
    if (!code_mark(codec, "}", 1))
        lex_err(codec->in, "a role has no '%s'", lex_word(codec->in));
    code_end(codec);
}

/* ---- the rest ------------------------------------------------------------ */

static void hfdim_text(Codec *codec, HfDim *dim)
{
    for (int i = 0; !code_mark(codec, " )", i == dim->nf); i++) {
        HfFactor *factor = &dim->f[i];
        code_limit(codec, i, 4, "factors");
        dim->nf = codec->in ? i + 1 : dim->nf;
        const char *axis = code_word(codec, factor->axis);
        factor->axis = axis && *axis ? axis : NULL;
        factor->total = code_int(codec, factor->total);
        factor->start = code_int(codec, factor->start);
        factor->n = code_int(codec, factor->n);
    }
}

static void hf_text(Codec *codec, HfMap *map)
{
    map->hf = code_word(codec, map->hf);
    map->param = code_word(codec, map->param);
    for (int i = 0; codec->in ? lex_more(codec->in) && *codec->in->p != '('
                              : i < map->nfix;
         i++) {
        code_limit(codec, i, 4, "unrolled axes");
        map->nfix = codec->in ? i + 1 : map->nfix;
        map->fixaxis[i] = code_word(codec, map->fixaxis[i]);
        code_need(codec, "=");
        map->fixat[i] = code_int(codec, map->fixat[i]);
    }
    for (int i = 0; code_mark(codec, " (", i < map->nd); i++) {
        code_limit(codec, i, MAXD, "axes");
        map->nd = codec->in ? i + 1 : map->nd;
        hfdim_text(codec, &map->dim[i]);
    }
}

void put_hf(Text *out, const HfMap *map)
{
    HfMap copy = *map;

    putn(out, "hf", 2);
    hf_text(&(Codec){ .out = out }, &copy);
    putn(out, "\n", 1);
}

void lex_hf(Lex *lex, HfMap *map)
{
    *map = (HfMap){ 0 };
    hf_text(&(Codec){ .in = lex }, map);
}

static void shape_text(Codec *codec, ValueShape *shape)
{
    shape->dt = code_dtype(codec, shape->dt);
    if (code_option(codec, "scaled", shape->scale != 0))
        shape->scale = (ScaleLayout)code_choice(codec, scalenames, NSCALE,
                                                (int)shape->scale);
    shape->map = code_option(codec, "map", shape->map);
    if (shape->map)
        shape->elems =
            code_range(codec, "elements", 0, HUGEBYTES, shape->elems);
    for (int i = 0; code_mark(codec, " (", i < shape->nd); i++) {
        ValueDim *dim = &shape->dim[i];
        code_limit(codec, i, MAXD, "axes");
        shape->nd = codec->in ? i + 1 : shape->nd;
        dim->axis = code_word(codec, dim->axis);
        dim->n = code_range(codec, "size", 0, HUGEBYTES, dim->n);
        dim->cut = code_atoms(codec, "cut", dim->cut);
        dim->zigzag = code_option(codec, "zigzag", dim->zigzag);
        code_need(codec, " )");
    }
    if (codec->in && !shape->map)
        shape->elems = shape_elems(shape);
    code_end(codec);
}

static void mesh_text(Codec *codec, Mesh **m)
{
    Loc l = { codec->in ? codec->in->file : NULL,
              codec->in ? codec->in->line : 0, NULL };
    int64_t size[NMESH] = { 0 };

    if (!codec->in)
        memcpy(size, (*m)->size, sizeof size);
    int64_t world =
        code_range(codec, "world", 1, INT32_MAX, codec->in ? 0 : (*m)->world);
    const char *order = code_word(codec, codec->in ? NULL : (*m)->order);
    for (int i = 0; i < NMESH; i++)
        size[i] = code_range(codec, meshnames[i], 1, INT32_MAX, size[i]);
    if (codec->in)
        *m = mesh_new(codec->in->arena, world, size, order, &l);
    code_end(codec);
}

static void check_format(const Codec *codec, int64_t format)
{
    if (format != format_now(FMTplan))
        err(&(Loc){ codec->in->file, 0, NULL },
            "is a plan of format %ld; Pleat %s executes format %d (`pleat "
            "run` compiles it anew from the sources it carries)",
            format, program_version, format_now(FMTplan));
}

static void options_text(Codec *codec, Plan *p)
{
    const char *key = NULL, *value = NULL;

    if (codec->in)
        p->opts = opts_new(codec->in->arena);
    for (int i = 0; code_option(codec, "option",
                                !codec->in && p->opts &&
                                    opts_each(p->opts, i, &key, &value));
         i++) {
        key = code_word(codec, key);
        value = code_word(codec, value);
        if (codec->in)
            opts_set(p->opts, key, value, NULL);
        code_end(codec);
    }
}

static void head_text(Codec *codec, Plan *p)
{
    code_expect(codec, "pleat-plan");
    check_format(codec, code_int(codec, format_now(FMTplan)));
    code_end(codec);
    code_expect(codec, "model");
    p->model = code_word(codec, p->model);
    p->target = code_word(codec, p->target);
    code_end(codec);
    code_expect(codec, "tokens");
    p->tokens = code_int(codec, p->tokens);
    code_end(codec);
    code_expect(codec, "params");
    p->params = code_int(codec, p->params);
    p->active = code_int(codec, p->active);
    code_end(codec);
    code_expect(codec, "flops");
    p->flops = code_num(codec, p->flops);
    code_end(codec);
    code_expect(codec, "mesh");
    mesh_text(codec, &p->mesh);
    options_text(codec, p);
}

static void put_hash(char hash[HASHDIGITS + 1], const char *text, size_t len)
{
    XXH128_hash_t h = XXH3_128bits(text, len);

    snprintf(hash, HASHDIGITS + 1, "%016lx%016lx", h.high64, h.low64);
}

/* begin: of the plan that is read. */
static void executed_text(Codec *codec, const char *begin)
{
    char hash[HASHDIGITS + 1];

    if (codec->in)
        put_hash(hash, begin, (size_t)(codec->in->p - begin));
    else
        put_hash(hash, codec->out->s, codec->out->len);
    code_expect(codec, "executed");
    if (strcmp(code_word(codec, hash), hash) != 0)
        lex_err(codec->in, "what is executed does not have the hash of this "
                           "line");
    code_end(codec);
}

static void texts_text(Codec *codec, Plan *p)
{
    if (codec->in ? lex_take(codec->in, "prelude") : p->prelude != NULL)
        p->prelude = code_text(codec, "prelude", NULL, p->prelude);
    if (codec->in ? lex_take(codec->in, "host") : p->host != NULL)
        p->host = code_text(codec, "host", NULL, p->host);
    for (int i = 0; codec->in ? lex_take(codec->in, "kernel") : i < p->nkernel;
         i++) {
        Kernel *kernel = code_at(codec, p->kernel, p->nkernel, i);
        kernel->text = code_text(codec, "kernel", &kernel->name, kernel->text);
    }
}

static void plan_text(Codec *codec, Plan *p)
{
    const char *begin = codec->in ? codec->in->p : NULL;

    head_text(codec, p);
    for (int i = 0; code_option(codec, "hf", i < p->nhf); i++) {
        hf_text(codec, code_at(codec, p->hf, p->nhf, i));
        code_end(codec);
    }
    for (int i = 0; code_option(codec, "shape", i < p->nshape); i++)
        shape_text(codec, code_at(codec, p->shape, p->nshape, i));
    for (int i = 0; code_option(codec, "sig", i < p->nsig); i++) {
        signature_text(codec, code_at(codec, p->sig, p->nsig, i));
        code_end(codec);
    }
    for (int i = 0; code_option(codec, "role", i < p->nrole); i++)
        role_text(codec, code_at(codec, p->role, p->nrole, i));
    texts_text(codec, p);
    executed_text(codec, begin);
    for (int i = 0; codec->in ? lex_take(codec->in, "source") : i < p->nsource;
         i++) {
        Source *source = code_at(codec, p->source, p->nsource, i);
        source->text = code_text(codec, "source", &source->file, source->text);
    }
    if (codec->in && lex_more(codec->in))
        lex_err(codec->in, "a plan has no '%s'", lex_word(codec->in));
}

/* ---- the whole ----------------------------------------------------------- */

char *plan_print(Arena *a, const Plan *p, size_t *len)
{
    Text out = { .arena = a };
    Plan copy = *p;
    char hash[HASHDIGITS + 1];

    plan_text(&(Codec){ .out = &out }, &copy);
    put_hash(hash, out.s, out.len);
    put(&out, "xxh3 %s\n", hash);
    *len = out.len;
    return out.s;
}

/* A call without a signature gets nothing, and is refused. */
static void bind_kernels(Arena *a, Plan *p)
{
    for (int r = 0; r < p->nrole; r++)
        for (int k = 0; k < p->role[r].nprog; k++)
            for (int i = 0; i < p->role[r].prog[k].ninstr; i++) {
                Instr *instr = &p->role[r].prog[k].instr[i];
                int64_t sig = instr_call(instr).sig;
                if (sig >= 0 && sig < p->nsig)
                    bind_signature(a, &p->sig[sig], instr);
            }
}

size_t plan_verify(const char *text, size_t len, const Loc *loc)
{
    static const char magic[] = "pleat-plan ";
    char hash[HASHDIGITS + 1];
    if (len < sizeof magic || memcmp(text, magic, sizeof magic - 1))
        err(loc, "not a plan");
    if (len < HASHLINE || memcmp(text + len - HASHLINE, "xxh3 ", 5))
        err(loc, "damaged: the last line is not its hash");
    put_hash(hash, text, len - HASHLINE);
    if (memcmp(text + len - HASHLINE + 5, hash, HASHDIGITS) ||
        text[len - 1] != '\n')
        err(loc, "damaged: its text does not have the hash of its last line");
    return len - HASHLINE;
}

Plan *(*plan_anew)(const Plan *rest, int64_t format, const char *name);

Plan *plan_parse(Arena *a, const char *text, size_t len, const char *name)
{
    Loc l = { intern(name), 0, 0 };
    int64_t format = plan_format(text, len);

    if (format && format != format_now(FMTplan) && plan_anew)
        return plan_anew(plan_rest(a, text, len, name), format, name);
    len = plan_verify(text, len, &l);
    Lex x = { .arena = a, .p = text, .end = text + len, .file = l.file };
    Plan *p = alloc(a, sizeof *p);
    lex_line(&x);
    plan_text(&(Codec){ .in = &x }, p);
    bind_kernels(a, p);
    const char *wrong = plan_wrong(a, p);
    if (wrong)
        err(&l, "%s", wrong);
    return p;
}
