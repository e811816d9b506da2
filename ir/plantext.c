/* plantext.c: a plan as text. What stands in a line is said once, in the
 * function of its record that reads and writes it (codec.c); plancheck.c says
 * what must hold.
 *
 * A plan is written for machines first: no columns, integers in decimal, floats
 * in hex so that they come back as they were. Kernel text and Lua sources stand
 * in it byte for byte behind their length. The last line is the XXH3-128 of all
 * before. What is read may come from anywhere: nothing here trusts a number.
 * Lists grow by what is read, never by a count that is announced, and what was
 * read is checked by plan_wrong() before anybody sees it.
 *
 *     plan    = "pleat-plan" format head { hf } { shape } { sig } { role }
 *               [ prelude ] { kernel } { source } "xxh3" hash
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
 *               [ "spread" atoms ] [ "g" atoms ] issue
 *               [ "c" num num num [ "again" num ] [ "experts" ] ] place
 *               (operands and fields in the order of instructions.def; issue:
 *               streams.c)
 *     buffers = ( int | "-" ) { "," ( int | "-" ) }
 *     use     = "-" | [ value | "=" buffer ] [ "/" shape ]
 *               [ ">" value ":" shape { ( "+" | "^" | "_" ) atoms } ]
 *     aff     = int { "+" int "*a" atom } [ "!" place ]
 *     place   = [ "@" file line ]
 *     prelude = "prelude" bytes newline text newline
 *     kernel  = "kernel" name bytes newline text newline
 *     source  = "source" file bytes newline text newline */
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "plan.h"

enum { HASHLINE = 5 + 32 + 1 };

/* ---- roles --------------------------------------------------------------- */

static void buf_text(Codec *t, Buf *b)
{
    b->name = code_word(t, b->name);
    b->cls = (BufClass)code_choice(t, bufclasses, NBUFCLASS, (int)b->cls);
    b->dt = code_dtype(t, b->dt);
    b->offset = code_int(t, b->offset);
    b->bytes = code_int(t, b->bytes);
    if (code_option(t, "life", b->prog >= 0)) {
        b->prog = code_index(t, "program", b->prog);
        b->born = code_index(t, "instruction", b->born);
        b->dies = code_index(t, "instruction", b->dies);
        if (code_option(t, "frame", b->frame != 0))
            b->frame =
                1 + (int)code_range(t, "frame", 0, 1 << 30, b->frame - 1);
        if (code_option(t, "stack", b->stack != 0))
            b->stack = 1 + code_index(t, "buffer", b->stack - 1);
    } else {
        b->prog = -1;
    }
    code_place(t, &b->file, &b->line);
}

static void pieces_text(Codec *t, PlanDim *d)
{
    for (int i = 0; !code_mark(t, " )", i == d->npiece); i++) {
        code_limit(t, i, MANYNUMBERS, "pieces");
        Piece *piece = code_at(t, d->piece, d->npiece, i);
        piece->start = code_aff(t, piece->start);
        piece->len = code_int(t, piece->len);
    }
}

static void dim_text(Codec *t, PlanDim *d)
{
    d->axis = code_word(t, d->axis);
    if (code_option(t, "as", d->role != ROLEnone))
        d->role = (AxisRole)code_choice(t, axisroles, NROLE, (int)d->role);
    d->n = code_int(t, d->n);
    pieces_text(t, d);
}

static TensorKind tensor_kind(Codec *t, TensorKind kind)
{
    const char *s = code_word(t, tensor_kinds[kind].name);

    for (int i = 0; i < NTENSORKIND; i++)
        if (!strcmp(tensor_kinds[i].name, s))
            return (TensorKind)i;
    lex_err(t->in, "no kind of tensors '%s'", s);
}

static void tensor_text(Codec *t, Tensor *x)
{
    x->name = code_word(t, x->name);
    x->kind = tensor_kind(t, x->kind);
    x->dt = code_dtype(t, x->dt);
    x->buf = code_index(t, "buffer", x->buf);
    for (int i = 0; code_mark(t, " (", i < x->nd); i++) {
        code_limit(t, i, MAXD, "axes");
        x->nd = t->in ? i + 1 : x->nd;
        dim_text(t, &x->dim[i]);
    }
    if (code_option(t, "at", x->at || x->run || x->shard)) {
        x->at = code_int(t, x->at);
        x->run = code_int(t, x->run);
        x->shard = (uint32_t)code_range(t, "atoms", 0, UINT32_MAX, x->shard);
    }
    if (x->kind == TKinput)
        x->second = code_option(t, "second", x->second);
    code_place(t, &x->file, &x->line);
}

static void scalar_text(Codec *t, Scalar *s)
{
    s->dt = code_dtype(t, s->dt);
    s->buf = code_index(t, "buffer", s->buf);
    if (code_option(t, "along", s->dim.n != 0)) {
        s->dim.axis = code_word(t, s->dim.axis);
        s->dim.n = code_range(t, "elements", 1, INT32_MAX, s->dim.n);
    }
    code_end(t);
}

static void given_text(Codec *t, Scalar *s)
{
    s->name = code_word(t, s->name);
    if (t->in) {
        int value = word_index(s->name, stepvalues, NSTEPVALUE);
        if (value < 0)
            lex_err(t->in, "no number of a step '%s'", s->name);
        s->value = (StepValue)value;
    }
    scalar_text(t, s);
}

static void result_text(Codec *t, Scalar *s)
{
    s->name = code_word(t, s->name);
    if (t->in && !result_named(s))
        lex_err(t->in, "no result '%s'", s->name);
    scalar_text(t, s);
}

static void role_text(Codec *t, Role *o)
{
    code_expect(t, "arena");
    o->arena = code_int(t, o->arena);
    code_expect(t, "persist");
    o->persist = code_int(t, o->persist);
    if (code_option(t, "host", o->host != 0))
        o->host = code_int(t, o->host);
    code_need(t, " {");
    code_end(t);
    for (int i = 0; code_option(t, "buf", i < o->nbuf); i++)
        buf_text(t, code_at(t, o->buf, o->nbuf, i));
    for (int i = 0; code_option(t, "tensor", i < o->ntensor); i++)
        tensor_text(t, code_at(t, o->tensor, o->ntensor, i));
    for (int i = 0; code_option(t, "in", i < o->nin); i++)
        given_text(t, code_at(t, o->in, o->nin, i));
    for (int i = 0; code_option(t, "out", i < o->nout); i++)
        result_text(t, code_at(t, o->out, o->nout, i));
    for (int i = 0; code_option(t, "program", i < o->nprog); i++)
        program_text(t, code_at(t, o->prog, o->nprog, i));
    if (!code_mark(t, "}", 1))
        lex_err(t->in, "a role has no '%s'", lex_word(t->in));
    code_end(t);
}

/* ---- the rest ------------------------------------------------------------ */

static void hfdim_text(Codec *t, HfDim *d)
{
    for (int i = 0; !code_mark(t, " )", i == d->nf); i++) {
        HfFactor *f = &d->f[i];
        code_limit(t, i, 4, "factors");
        d->nf = t->in ? i + 1 : d->nf;
        const char *axis = code_word(t, f->axis);
        f->axis = axis && *axis ? axis : NULL;
        f->total = code_int(t, f->total);
        f->start = code_int(t, f->start);
        f->n = code_int(t, f->n);
    }
}

static void hf_text(Codec *t, HfMap *h)
{
    h->hf = code_word(t, h->hf);
    h->param = code_word(t, h->param);
    for (int i = 0; t->in ? lex_more(t->in) && *t->in->p != '(' : i < h->nfix;
         i++) {
        code_limit(t, i, 4, "unrolled axes");
        h->nfix = t->in ? i + 1 : h->nfix;
        h->fixaxis[i] = code_word(t, h->fixaxis[i]);
        code_need(t, "=");
        h->fixat[i] = code_int(t, h->fixat[i]);
    }
    for (int i = 0; code_mark(t, " (", i < h->nd); i++) {
        code_limit(t, i, MAXD, "axes");
        h->nd = t->in ? i + 1 : h->nd;
        hfdim_text(t, &h->dim[i]);
    }
}

void put_hf(Text *out, const HfMap *h)
{
    HfMap copy = *h;

    putn(out, "hf", 2);
    hf_text(&(Codec){ .out = out }, &copy);
    putn(out, "\n", 1);
}

void lex_hf(Lex *x, HfMap *h)
{
    *h = (HfMap){ 0 };
    hf_text(&(Codec){ .in = x }, h);
}

static void shape_text(Codec *t, ValueShape *x)
{
    x->dt = code_dtype(t, x->dt);
    if (code_option(t, "scaled", x->scale != 0))
        x->scale =
            (ScaleLayout)code_choice(t, scalenames, NSCALE, (int)x->scale);
    x->map = code_option(t, "map", x->map);
    if (x->map)
        x->elems = code_range(t, "elements", 0, HUGEBYTES, x->elems);
    for (int i = 0; code_mark(t, " (", i < x->nd); i++) {
        ValueDim *d = &x->dim[i];
        code_limit(t, i, MAXD, "axes");
        x->nd = t->in ? i + 1 : x->nd;
        d->axis = code_word(t, d->axis);
        d->n = code_range(t, "size", 0, HUGEBYTES, d->n);
        d->cut = code_atoms(t, "cut", d->cut);
        d->zigzag = code_option(t, "zigzag", d->zigzag);
        code_need(t, " )");
    }
    if (t->in && !x->map)
        x->elems = shape_elems(x);
    code_end(t);
}

static void mesh_text(Codec *t, Mesh **m)
{
    Loc l = { t->in ? t->in->file : NULL, t->in ? t->in->line : 0, NULL };
    int64_t size[NMESH] = { 0 };

    if (!t->in)
        memcpy(size, (*m)->size, sizeof size);
    int64_t world =
        code_range(t, "world", 1, INT32_MAX, t->in ? 0 : (*m)->world);
    const char *order = code_word(t, t->in ? NULL : (*m)->order);
    for (int i = 0; i < NMESH; i++)
        size[i] = code_range(t, meshnames[i], 1, INT32_MAX, size[i]);
    if (t->in)
        *m = mesh_new(t->in->arena, world, size, order, &l);
    code_end(t);
}

static void check_format(const Codec *t, int64_t format)
{
    if (format != format_now(FMTplan))
        err(&(Loc){ t->in->file, 0, NULL },
            "is a plan of format %lld; Pleat %s executes format %d (`pleat "
            "run` compiles it anew from the sources it carries)",
            (long long)format, program_version, format_now(FMTplan));
}

static void options_text(Codec *t, Plan *p)
{
    const char *key = NULL, *value = NULL;

    if (t->in)
        p->opts = opts_new(t->in->arena);
    for (int i = 0;
         code_option(t, "option",
                     !t->in && p->opts && opts_each(p->opts, i, &key, &value));
         i++) {
        key = code_word(t, key);
        value = code_word(t, value);
        if (t->in)
            opts_set(p->opts, key, value, NULL);
        code_end(t);
    }
}

static void head_text(Codec *t, Plan *p)
{
    code_expect(t, "pleat-plan");
    check_format(t, code_int(t, format_now(FMTplan)));
    code_end(t);
    code_expect(t, "model");
    p->model = code_word(t, p->model);
    p->target = code_word(t, p->target);
    code_end(t);
    code_expect(t, "tokens");
    p->tokens = code_int(t, p->tokens);
    code_end(t);
    code_expect(t, "params");
    p->params = code_int(t, p->params);
    p->active = code_int(t, p->active);
    code_end(t);
    code_expect(t, "flops");
    p->flops = code_num(t, p->flops);
    code_end(t);
    code_expect(t, "mesh");
    mesh_text(t, &p->mesh);
    options_text(t, p);
}

static void plan_text(Codec *t, Plan *p)
{
    head_text(t, p);
    for (int i = 0; code_option(t, "hf", i < p->nhf); i++) {
        hf_text(t, code_at(t, p->hf, p->nhf, i));
        code_end(t);
    }
    for (int i = 0; code_option(t, "shape", i < p->nshape); i++)
        shape_text(t, code_at(t, p->shape, p->nshape, i));
    for (int i = 0; code_option(t, "sig", i < p->nsig); i++) {
        signature_text(t, code_at(t, p->sig, p->nsig, i));
        code_end(t);
    }
    for (int i = 0; code_option(t, "role", i < p->nrole); i++)
        role_text(t, code_at(t, p->role, p->nrole, i));
    if (t->in ? lex_take(t->in, "prelude") : p->prelude != NULL)
        p->prelude = code_text(t, "prelude", NULL, p->prelude);
    for (int i = 0; t->in ? lex_take(t->in, "kernel") : i < p->nkernel; i++) {
        Kernel *kernel = code_at(t, p->kernel, p->nkernel, i);
        kernel->text = code_text(t, "kernel", &kernel->name, kernel->text);
    }
    for (int i = 0; t->in ? lex_take(t->in, "source") : i < p->nsource; i++) {
        Source *source = code_at(t, p->source, p->nsource, i);
        source->text = code_text(t, "source", &source->file, source->text);
    }
    if (t->in && lex_more(t->in))
        lex_err(t->in, "a plan has no '%s'", lex_word(t->in));
}

/* ---- the whole ----------------------------------------------------------- */

static void put_hash(Text *out)
{
    XXH128_hash_t h = XXH3_128bits(out->s, out->len);
    put(out, "xxh3 %016llx%016llx\n", (unsigned long long)h.high64,
        (unsigned long long)h.low64);
}

char *plan_print(Arena *a, const Plan *p, size_t *len)
{
    Text out = { .arena = a };
    Plan copy = *p;

    plan_text(&(Codec){ .out = &out }, &copy);
    put_hash(&out);
    *len = out.len;
    return out.s;
}

/* A call without a signature gets nothing, and is refused. */
static void bind_kernels(Arena *a, Plan *p)
{
    for (int r = 0; r < p->nrole; r++)
        for (int k = 0; k < p->role[r].nprog; k++)
            for (int i = 0; i < p->role[r].prog[k].ninstr; i++) {
                Instr *s = &p->role[r].prog[k].instr[i];
                if (s->kind == Ikernel && s->call.sig >= 0 &&
                    s->call.sig < p->nsig)
                    bind_signature(a, &p->sig[s->call.sig], s);
            }
}

size_t plan_verify(const char *text, size_t len, const Loc *l)
{
    static const char magic[] = "pleat-plan ";
    char want[64];
    if (len < sizeof magic || memcmp(text, magic, sizeof magic - 1))
        err(l, "not a plan");
    if (len < HASHLINE || memcmp(text + len - HASHLINE, "xxh3 ", 5))
        err(l, "damaged: the last line is not its hash");
    XXH128_hash_t h = XXH3_128bits(text, len - HASHLINE);
    snprintf(want, sizeof want, "xxh3 %016llx%016llx\n",
             (unsigned long long)h.high64, (unsigned long long)h.low64);
    if (memcmp(text + len - HASHLINE, want, HASHLINE))
        err(l, "damaged: its text does not have the hash of its last line");
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
