/* planread.c: text to plan. A plan may come from anywhere: nothing here trusts
 * a number. Arrays grow by what is read, never by a count that is announced,
 * and what was read is checked by plan_wrong() before anybody sees it.
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
 *     role    = "role arena" int "persist" int "{" { item } "}"
 *     item    = buf | tensor | ("in" | "out") name dtype buffer | program
 *     buf     = "buf" name class dtype offset bytes
 *               [ "life" program born dies [ "frame" int ] ] place
 *     tensor  = "tensor" name kind dtype buffer
 *               { "(" axis [ "as" role ] int { aff int } ")" }
 *               [ "at" at run shard ] place
 *     program = "program" name "transient" int "bound" int "{"
 *               { "phase" name first n repeat }
 *               { "slots" { phase [ "=" micro ] [ "&" ] } }
 *               { "frame" name bytes "s" { slot } "o" { int } }
 *               { "end" { buffer value } } { instr } "}"
 *     instr   = kind label { name "=" buffers }
 *               { name "=" word | name "=" int { "," int } }
 *               [ "v" use { "," use } ] [ "inner" atoms ]
 *               [ "spread" atoms ] [ "g" atoms ] issue
 *               [ "c" num num num [ "again" num ] ] place
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

enum { HASHLINE = 5 + 32 + 1, MANY = 1 << 16 };

typedef struct PlanReader {
    Lex x;
    Plan *p;
    Piece *piece; /* vecs, for lists whose length is unknown */
    int *buf;
} PlanReader;

/* ---- small things -------------------------------------------------------- */

/* Forget what a vec holds, keep its room. */
static void empty(void *v)
{
    if (v)
        ((VecHead *)v)[-1].len = 0;
}

/* What a vec holds, in memory of just that size. */
static void *exact(Arena *a, const void *v, size_t elem)
{
    size_t n = vec_len(v) * elem;
    void *copy = alloc(a, n);
    return n ? memcpy(copy, v, n) : copy;
}

static int read_index(Lex *x, const char *what)
{
    return (int)lex_range(x, what, -1, INT32_MAX - 1);
}

static int starts_number(Lex *x)
{
    return lex_more(x) && (lex_isdigit(*x->p) || *x->p == '-');
}

/* ---- instructions -------------------------------------------------------- */

static int instr_named(Lex *x)
{
    const char *s = lex_word(x);
    for (int i = 0; i < NINSTR; i++)
        if (!strcmp(instr_info((InstrKind)i)->name, s))
            return i;
    lex_err(x, "no instruction '%s'", s);
}

/* { index }: up to what does not begin as a number. */
static int *read_indices(PlanReader *r, const char *what, int *n)
{
    Lex *x = &r->x;
    empty(r->buf);
    while (starts_number(x)) {
        int b = read_index(x, what);
        vec_push(x->arena, r->buf, b);
        if (vec_len(r->buf) > MANY)
            lex_err(x, "more than %d numbers", MANY);
    }
    *n = (int)vec_len(r->buf);
    return exact(x->arena, r->buf, sizeof *r->buf);
}

/* A number from min on in the middle of a word. */
static int64_t part(Lex *x, int64_t min, int64_t max)
{
    int64_t v = lex_more(x) ? lex_digits(x) : -1;
    if (v < min || v > max)
        lex_err(x, "no value, buffer or group %lld", (long long)v);
    return v;
}

static ValueUse read_use(Lex *x)
{
    ValueUse f = { .as = -1, .shape = -1 };
    if (lex_mark(x, '-'))
        return f;
    if (lex_mark(x, '='))
        f.read = ~(int)part(x, 0, INT32_MAX);
    else if (lex_more(x) && lex_isdigit(*x->p))
        f.read = (int)part(x, 1, INT32_MAX);
    if (lex_mark(x, '/'))
        f.as = (int)part(x, 0, INT32_MAX);
    if (!lex_mark(x, '>'))
        return f;
    f.make = (int)part(x, 1, INT32_MAX);
    lex_need(x, ':');
    f.shape = (int)part(x, 0, INT32_MAX);
    for (int k = 0; k < 3; k++)
        if (lex_mark(x, "+^_"[k]))
            f.part[k] = (uint32_t)part(x, 1, UINT32_MAX);
    return f;
}

static ValueUse *read_flow(Lex *x, int n)
{
    ValueUse *v = alloc(x->arena, (size_t)(n + 1) * sizeof *v);
    for (int i = 0; i < n; i++) {
        if (i)
            lex_need(x, ',');
        v[i] = read_use(x);
    }
    return v;
}

static Instr read_instr(Lex *x)
{
    Instr s = { .kind = (InstrKind)instr_named(x) };
    s.label = lex_word(x);
    lex_args(x, &s);
    if (lex_take(x, "v"))
        s.flow = read_flow(x, s.nbuf);
    if (lex_take(x, "inner"))
        s.inner = (uint32_t)lex_range(x, "atoms", 1, UINT32_MAX);
    if (lex_take(x, "spread"))
        s.spread = (uint32_t)lex_range(x, "atoms", 1, UINT32_MAX);
    if (lex_take(x, "g"))
        s.atoms = (uint32_t)lex_range(x, "atoms", 0, UINT32_MAX);
    s.issue = lex_issue(x);
    if (lex_take(x, "c")) {
        s.flops = lex_num(x);
        s.bytes = lex_num(x);
        s.secs = lex_num(x);
        s.again = lex_take(x, "again") ? lex_num(x) : 0;
    }
    lex_place(x, &s.file, &s.line);
    return s;
}

static Phase read_phase(Lex *x)
{
    const char *name = lex_word(x);
    Phase f;
    if (!phase_named(x->arena, name, &f))
        lex_err(x, "no phase '%s'", name);
    f.first = read_index(x, "first instruction");
    f.n = read_index(x, "count");
    f.repeat = lex_range(x, "micro-batches", 0, MAXMICROS);
    return f;
}

/* next: by phase, the micro-batch after its last row. */
static void read_slots(Lex *x, Program *prog, int **next)
{
    while (vec_len(*next) < vec_len(prog->phase))
        vec_push(x->arena, *next, 0);
    while (lex_more(x)) {
        ScheduleSlot t = { .phase = read_index(x, "phase") };
        if (t.phase < 0 || (size_t)t.phase >= vec_len(prog->phase))
            lex_err(x, "phase %d of %zu", t.phase, vec_len(prog->phase));
        t.micro = (*next)[t.phase];
        if (lex_mark(x, '='))
            t.micro = (int)lex_range(x, "micro-batch", 0, MAXMICROS - 1);
        t.pair = lex_mark(x, '&');
        (*next)[t.phase] = t.micro + 1;
        vec_push(x->arena, prog->slot, t);
    }
}

static SlotGroup read_frame(PlanReader *r)
{
    Lex *x = &r->x;
    SlotGroup f = { .name = lex_word(x) };
    int64_t *slot = NULL;
    f.bytes = lex_int(x);
    lex_expect(x, "s");
    while (starts_number(x)) {
        int64_t at = lex_int(x);
        vec_push(x->arena, slot, at);
    }
    f.slot = slot;
    f.nslot = (int)vec_len(slot);
    lex_expect(x, "o");
    f.of = read_indices(r, "slot", &f.nof);
    return f;
}

static Program read_program(PlanReader *r)
{
    Lex *x = &r->x;
    Program prog = { .kind =
                         (ProgramKind)lex_choice(x, programnames, NPROGRAM) };
    int *next = NULL;
    lex_expect(x, "transient");
    prog.transient = lex_int(x);
    lex_expect(x, "bound");
    prog.bound = lex_int(x);
    lex_need(x, '{');
    for (lex_line(x); !lex_mark(x, '}'); lex_line(x)) {
        if (lex_take(x, "phase")) {
            Phase f = read_phase(x);
            vec_push(x->arena, prog.phase, f);
        } else if (lex_take(x, "slots")) {
            read_slots(x, &prog, &next);
        } else if (lex_take(x, "frame")) {
            SlotGroup f = read_frame(r);
            vec_push(x->arena, prog.frame, f);
        } else if (lex_take(x, "end")) {
            while (lex_more(x)) {
                FinalValue e = { .buf = read_index(x, "buffer") };
                e.value = read_index(x, "value");
                vec_push(x->arena, prog.end, e);
            }
        } else {
            Instr s = read_instr(x);
            vec_push(x->arena, prog.instr, s);
        }
    }
    prog.nphase = (int)vec_len(prog.phase);
    prog.nslot = (int)vec_len(prog.slot);
    prog.nframe = (int)vec_len(prog.frame);
    prog.ninstr = (int)vec_len(prog.instr);
    prog.nend = (int)vec_len(prog.end);
    return prog;
}

/* ---- roles --------------------------------------------------------------- */

static Buf read_buf(Lex *x)
{
    Buf b = { .name = lex_word(x), .prog = -1 };
    b.cls = (BufClass)lex_choice(x, bufclasses, NBUFCLASS);
    b.dt = lex_dtype(x);
    b.offset = lex_int(x);
    b.bytes = lex_int(x);
    if (lex_take(x, "life")) {
        b.prog = read_index(x, "program");
        b.born = read_index(x, "instruction");
        b.dies = read_index(x, "instruction");
        if (lex_take(x, "frame"))
            b.frame = 1 + (int)lex_range(x, "frame", 0, 1 << 30);
    }
    lex_place(x, &b.file, &b.line);
    return b;
}

static PlanDim read_dim(PlanReader *r)
{
    Lex *x = &r->x;
    PlanDim d = { .axis = lex_word(x) };
    if (lex_take(x, "as"))
        d.role = (AxisRole)lex_choice(x, axisroles, NROLE);
    d.n = lex_int(x);
    empty(r->piece);
    while (!lex_mark(x, ')')) {
        Piece c = { .start = lex_aff(x) };
        c.len = lex_int(x);
        vec_push(x->arena, r->piece, c);
        if (vec_len(r->piece) > MANY)
            lex_err(x, "more than %d pieces", MANY);
    }
    d.piece = exact(x->arena, r->piece, sizeof *r->piece);
    d.npiece = (int)vec_len(r->piece);
    return d;
}

static TensorKind read_kind(Lex *x)
{
    const char *s = lex_word(x);
    for (int i = 0; i < NTENSORKIND; i++)
        if (!strcmp(tensor_kinds[i].name, s))
            return (TensorKind)i;
    lex_err(x, "no kind of tensors '%s'", s);
}

static Tensor read_tensor(PlanReader *r)
{
    Lex *x = &r->x;
    Tensor tensor = { .name = lex_word(x) };
    tensor.kind = read_kind(x);
    tensor.dt = lex_dtype(x);
    tensor.buf = read_index(x, "buffer");
    while (lex_mark(x, '(')) {
        if (tensor.nd == MAXD)
            lex_err(x, "more than %d axes", MAXD);
        tensor.dim[tensor.nd++] = read_dim(r);
    }
    if (lex_take(x, "at")) {
        tensor.at = lex_int(x);
        tensor.run = lex_int(x);
        tensor.shard = (uint32_t)lex_range(x, "atoms", 0, UINT32_MAX);
    }
    lex_place(x, &tensor.file, &tensor.line);
    return tensor;
}

static Scalar read_given(Lex *x)
{
    Scalar s = { .value = (StepValue)lex_choice(x, stepvalues, NSTEPVALUE) };
    s.name = stepvalues[s.value];
    s.dt = lex_dtype(x);
    s.buf = read_index(x, "buffer");
    return s;
}

static Scalar read_result(Lex *x)
{
    Scalar s = { .name = lex_word(x) };
    if (!result_named(&s))
        lex_err(x, "no result '%s'", s.name);
    s.dt = lex_dtype(x);
    s.buf = read_index(x, "buffer");
    return s;
}

static void read_item(PlanReader *r, Role *o)
{
    Lex *x = &r->x;
    if (lex_take(x, "buf")) {
        Buf b = read_buf(x);
        vec_push(x->arena, o->buf, b);
    } else if (lex_take(x, "tensor")) {
        Tensor t = read_tensor(r);
        vec_push(x->arena, o->tensor, t);
    } else if (lex_take(x, "in")) {
        Scalar s = read_given(x);
        vec_push(x->arena, o->in, s);
    } else if (lex_take(x, "out")) {
        Scalar s = read_result(x);
        vec_push(x->arena, o->out, s);
    } else {
        lex_expect(x, "program");
        Program g = read_program(r);
        vec_push(x->arena, o->prog, g);
    }
}

static Role read_role(PlanReader *r)
{
    Lex *x = &r->x;
    Role o = { 0 };
    lex_expect(x, "arena");
    o.arena = lex_int(x);
    lex_expect(x, "persist");
    o.persist = lex_int(x);
    lex_need(x, '{');
    for (lex_line(x); !lex_mark(x, '}'); lex_line(x))
        read_item(r, &o);
    o.nbuf = (int)vec_len(o.buf);
    o.ntensor = (int)vec_len(o.tensor);
    o.nin = (int)vec_len(o.in);
    o.nout = (int)vec_len(o.out);
    o.nprog = (int)vec_len(o.prog);
    return o;
}

Plan *(*plan_anew)(const Plan *rest, int64_t format, const char *name);

/* ---- the rest ------------------------------------------------------------ */

static HfDim read_hfdim(Lex *x)
{
    HfDim d = { 0 };
    while (!lex_mark(x, ')')) {
        if (d.nf == 4)
            lex_err(x, "more than 4 factors");
        HfFactor *f = &d.f[d.nf++];
        const char *axis = lex_word(x);
        f->axis = *axis ? axis : 0;
        f->total = lex_int(x);
        f->start = lex_int(x);
        f->n = lex_int(x);
    }
    return d;
}

void lex_hf(Lex *x, HfMap *h)
{
    *h = (HfMap){ .hf = lex_word(x) };
    h->param = lex_word(x);
    while (lex_more(x) && *x->p != '(') {
        if (h->nfix == 4)
            lex_err(x, "more than 4 unrolled axes");
        h->fixaxis[h->nfix] = lex_word(x);
        lex_need(x, '=');
        h->fixat[h->nfix++] = lex_int(x);
    }
    while (lex_mark(x, '(')) {
        if (h->nd == MAXD)
            lex_err(x, "more than %d axes", MAXD);
        h->dim[h->nd++] = read_hfdim(x);
    }
}

static ValueShape read_shape(Lex *x)
{
    ValueShape l = { .dt = lex_dtype(x) };
    if (lex_take(x, "scaled"))
        l.scale = (ScaleLayout)lex_choice(x, scalenames, NSCALE);
    l.map = lex_take(x, "map");
    l.elems = l.map ? lex_range(x, "elements", 0, HUGEBYTES) : 1;
    while (lex_mark(x, '(')) {
        ValueDim d = { .axis = lex_word(x) };
        if (l.nd == MAXD)
            lex_err(x, "more than %d axes", MAXD);
        d.n = lex_range(x, "size", 0, HUGEBYTES);
        if (lex_take(x, "cut"))
            d.cut = (uint32_t)lex_range(x, "atoms", 1, UINT32_MAX);
        d.zigzag = lex_take(x, "zigzag");
        lex_need(x, ')');
        l.dim[l.nd++] = d;
    }
    l.elems = l.map ? l.elems : shape_elems(&l);
    return l;
}

static void read_mesh(PlanReader *r)
{
    Lex *x = &r->x;
    Loc l = { x->file, x->line, 0 };
    int64_t size[NMESH], world = lex_range(x, "world", 1, INT32_MAX);
    const char *order = lex_word(x);
    for (int i = 0; i < NMESH; i++)
        size[i] = lex_range(x, meshnames[i], 1, INT32_MAX);
    r->p->mesh = mesh_new(x->arena, world, size, order, &l);
}

static void read_head(PlanReader *r)
{
    Lex *x = &r->x;
    Plan *p = r->p;
    lex_line(x), lex_expect(x, "pleat-plan");
    int64_t format = lex_int(x);
    if (format != format_now(FMTplan))
        err(&(Loc){ x->file, 0, NULL },
            "is a plan of format %lld; Pleat %s executes format %d (`pleat "
            "run` "
            "compiles it anew from the sources it carries)",
            (long long)format, program_version, format_now(FMTplan));
    lex_line(x), lex_expect(x, "model");
    p->model = lex_word(x);
    p->target = lex_word(x);
    lex_line(x), lex_expect(x, "tokens");
    p->tokens = lex_int(x);
    lex_line(x), lex_expect(x, "params");
    p->params = lex_int(x);
    p->active = lex_int(x);
    lex_line(x), lex_expect(x, "flops");
    p->flops = lex_num(x);
    lex_line(x), lex_expect(x, "mesh");
    read_mesh(r);
    p->opts = opts_new(x->arena);
}

static void read_part(PlanReader *r)
{
    Lex *x = &r->x;
    Plan *p = r->p;
    if (lex_take(x, "role")) {
        Role o = read_role(r);
        vec_push(x->arena, p->role, o);
    } else if (lex_take(x, "option")) {
        const char *key = lex_word(x);
        opts_set(p->opts, key, lex_word(x), 0);
    } else if (lex_take(x, "hf")) {
        HfMap h;
        lex_hf(x, &h);
        vec_push(x->arena, p->hf, h);
    } else if (lex_take(x, "shape")) {
        ValueShape l = read_shape(x);
        vec_push(x->arena, p->shape, l);
    } else if (lex_take(x, "sig")) {
        KernelSignature s;
        lex_signature(x, &s);
        vec_push(x->arena, p->sig, s);
    } else if (lex_take(x, "kernel")) {
        Kernel k = { .name = lex_word(x) };
        k.text = lex_text(x);
        vec_push(x->arena, p->kernel, k);
    } else if (lex_take(x, "source")) {
        Source s = { .file = lex_word(x) };
        s.text = lex_text(x);
        vec_push(x->arena, p->source, s);
    } else {
        lex_expect(x, "prelude");
        p->prelude = lex_text(x);
    }
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

Plan *plan_parse(Arena *a, const char *text, size_t len, const char *name)
{
    Loc l = { intern(name), 0, 0 };
    int64_t format = plan_format(text, len);
    if (format && format != format_now(FMTplan) && plan_anew)
        return plan_anew(plan_rest(a, text, len, name), format, name);
    len = plan_verify(text, len, &l);
    PlanReader r = {
        .x = { .arena = a, .p = text, .end = text + len, .file = l.file },
        .p = alloc(a, sizeof(Plan)),
    };
    read_head(&r);
    while (lex_next(&r.x))
        read_part(&r);
    Plan *p = r.p;
    p->nrole = (int)vec_len(p->role);
    p->nshape = (int)vec_len(p->shape);
    p->nhf = (int)vec_len(p->hf);
    p->nkernel = (int)vec_len(p->kernel);
    p->nsource = (int)vec_len(p->source);
    p->nsig = (int)vec_len(p->sig);
    bind_kernels(a, p);
    const char *wrong = plan_wrong(a, p);
    if (wrong)
        err(&l, "%s", wrong);
    return p;
}
