/* plan.c: a plan as text, and finding things in it. planread.c reads the text
 * back and has the grammar; plancheck.c says what must hold.
 *
 * A plan is written for machines first: no columns, integers in decimal, floats
 * in hex so that they come back as they were. Kernel text and Lua sources stand
 * in it byte for byte behind their length. The last line is the XXH3-128 of all
 * before. */
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "plan.h"

const char *const bufclasses[NBUFCLASS] = {
    [Bparam] = "param", [Bstate] = "state", [Boptim] = "optim",
    [Bio] = "io",       [Btemp] = "temp",   [Bscratch] = "scratch",
};

const TensorInfo tensor_kinds[NTENSORKIND] = {
#define TENSOR(id, cls, prefix) { #id, cls, prefix },
#include "tensors.def"
#undef TENSOR
};

/* ---- finding ------------------------------------------------------------- */

const char *const axisroles[NROLE] = {
    "none",  "micro", "row", "batch", "seq",    "key",
    "heads", "group", "ffn", "vocab", "choice", "other",
};

int role_of(const Plan *p, int64_t rank)
{
    if (p->nrole == 1)
        return 0;
    return (int)mesh_pos(p->mesh, p->mesh->mask[Mpp], rank);
}

int role_tensor(const Role *r, const char *name)
{
    for (int i = 0; i < r->ntensor; i++)
        if (!strcmp(r->tensor[i].name, name))
            return i;
    return -1;
}

int tensor_is(const Tensor *tensor, unsigned kinds)
{
    return (int)(kinds >> tensor->kind & 1);
}

int is_copy(const Tensor *tensor)
{
    return tensor_is(tensor, COPIEDTENSORS);
}

int role_prog(const Role *r, ProgramKind k)
{
    for (int i = 0; i < r->nprog; i++)
        if (r->prog[i].kind == k)
            return i;
    return -1;
}

const PlanDim *tensor_axis(const Tensor *tensor, AxisRole k)
{
    for (int d = 0; d < tensor->nd; d++)
        if (tensor->dim[d].role == k)
            return &tensor->dim[d];
    return NULL;
}

int role_named(const char *s)
{
    return word_index(s, axisroles, NROLE);
}

/* ---- words --------------------------------------------------------------- */

static void puts_(Text *out, const char *s)
{
    putn(out, s, strlen(s));
}

/* " word 123" */
static void field(Text *out, const char *word, int64_t v)
{
    puts_(out, word);
    putn(out, " ", 1);
    put_int(out, v);
}

static void number(Text *out, int64_t v)
{
    field(out, "", v);
}

static void word(Text *out, const char *s)
{
    putn(out, " ", 1);
    put_word(out, s ? s : "");
}

static void put_place(Text *out, const char *file, int line)
{
    if (file) {
        puts_(out, " @");
        word(out, file);
        number(out, line);
    }
    puts_(out, "\n");
}

/* ---- parts --------------------------------------------------------------- */

static void put_buf(Text *out, const Buf *b)
{
    puts_(out, "buf");
    word(out, b->name);
    word(out, bufclasses[b->cls]);
    word(out, dtypes[b->dt].name);
    number(out, b->offset);
    number(out, b->bytes);
    if (b->prog >= 0) {
        field(out, " life", b->prog);
        number(out, b->born);
        number(out, b->dies);
        if (b->frame)
            field(out, " frame", b->frame - 1);
    }
    put_place(out, b->file, b->line);
}

static void put_dim(Text *out, const PlanDim *d)
{
    puts_(out, " (");
    word(out, d->axis);
    if (d->role != ROLEnone) {
        puts_(out, " as");
        word(out, axisroles[d->role]);
    }
    number(out, d->n);
    for (int i = 0; i < d->npiece; i++) {
        put_aff(out, &d->piece[i].start);
        number(out, d->piece[i].len);
    }
    puts_(out, " )");
}

static void put_tensor(Text *out, const Tensor *x)
{
    puts_(out, "tensor");
    word(out, x->name);
    word(out, tensor_kinds[x->kind].name);
    word(out, dtypes[x->dt].name);
    number(out, x->buf);
    for (int i = 0; i < x->nd; i++)
        put_dim(out, &x->dim[i]);
    if (x->at || x->run || x->shard) {
        field(out, " at", x->at);
        number(out, x->run);
        number(out, x->shard);
    }
    put_place(out, x->file, x->line);
}

static void put_scalar(Text *out, const char *io, const Scalar *s)
{
    puts_(out, io);
    word(out, s->name);
    word(out, dtypes[s->dt].name);
    number(out, s->buf);
    puts_(out, "\n");
}

static void put_shape(Text *out, const ValueShape *x)
{
    puts_(out, "shape");
    word(out, dtypes[x->dt].name);
    if (x->scale) {
        puts_(out, " scaled");
        word(out, scalenames[x->scale]);
    }
    if (x->map)
        field(out, " map", x->elems);
    for (int d = 0; d < x->nd; d++) {
        puts_(out, " (");
        word(out, x->dim[d].axis);
        number(out, x->dim[d].n);
        if (x->dim[d].cut)
            field(out, " cut", x->dim[d].cut);
        puts_(out, x->dim[d].zigzag ? " zigzag )" : " )");
    }
    puts_(out, "\n");
}

/* flow = use { "," use }; use = "-" | [ value | "=" buffer ] [ "/" shape ]
 * [ ">" value ":" shape { ("+" | "^" | "_") atoms } ] */
static void put_flow(Text *out, const ValueUse *f, int n)
{
    static const char *const marks[] = { "+", "^", "_" };

    puts_(out, " v ");
    for (int i = 0; i < n; i++, f++) {
        puts_(out, i ? "," : "");
        if (!f->read && !f->make)
            puts_(out, "-");
        if (f->read < 0)
            puts_(out, "=");
        if (f->read)
            put_int(out, f->read < 0 ? ~f->read : f->read);
        if (f->read && f->as >= 0) {
            puts_(out, "/");
            put_int(out, f->as);
        }
        if (!f->make)
            continue;
        puts_(out, ">");
        put_int(out, f->make);
        puts_(out, ":");
        put_int(out, f->shape);
        for (int k = 0; k < 3; k++)
            if (f->part[k]) {
                puts_(out, marks[k]);
                put_int(out, f->part[k]);
            }
    }
}

static void put_instr(Text *out, const Instr *s)
{
    puts_(out, instr_info(s->kind)->name);
    word(out, s->label);
    put_args(out, s);
    if (s->flow && s->nbuf)
        put_flow(out, s->flow, s->nbuf);
    if (s->inner)
        field(out, " inner", s->inner);
    if (s->spread)
        field(out, " spread", s->spread);
    if (s->atoms)
        field(out, " g", s->atoms);
    put_issue(out, &s->issue);
    if (s->flops != 0 || s->bytes != 0 || s->secs != 0) {
        puts_(out, " c ");
        put_hex(out, s->flops);
        puts_(out, " ");
        put_hex(out, s->bytes);
        puts_(out, " ");
        put_hex(out, s->secs);
        puts_(out, s->again != 0 ? " again " : "");
        if (s->again != 0)
            put_hex(out, s->again);
    }
    put_place(out, s->file, s->line);
}

/* Rows of a table: the phase, "=" micro-batch where that is not the one after
 * the phase's last, "&" when it may overlap with the next row. */
static void put_slots(Text *out, const Program *prog)
{
    enum { LINE = 32 };
    int *next = alloc(out->arena, sizeof *next * (size_t)(prog->nphase + 1));

    for (int i = 0; i < prog->nslot; i++) {
        const ScheduleSlot *r = &prog->slot[i];
        if (i % LINE == 0)
            puts_(out, "slots");
        number(out, r->phase);
        if (r->micro != next[r->phase])
            field(out, " =", r->micro);
        next[r->phase] = r->micro + 1;
        if (r->pair)
            puts_(out, " &");
        if (i % LINE == LINE - 1 || i == prog->nslot - 1)
            puts_(out, "\n");
    }
}

static void put_frame(Text *out, const SlotGroup *f)
{
    puts_(out, "frame");
    word(out, f->name);
    number(out, f->bytes);
    puts_(out, " s");
    for (int i = 0; i < f->nslot; i++)
        number(out, f->slot[i]);
    puts_(out, " o");
    for (int i = 0; i < f->nof; i++)
        number(out, f->of[i]);
    puts_(out, "\n");
}

static void put_ends(Text *out, const Program *prog)
{
    enum { LINE = 16 };
    for (int i = 0; i < prog->nend; i++) {
        if (i % LINE == 0)
            puts_(out, "end");
        number(out, prog->end[i].buf);
        number(out, prog->end[i].value);
        if (i % LINE == LINE - 1 || i == prog->nend - 1)
            puts_(out, "\n");
    }
}

static void put_program(Text *out, const Program *prog)
{
    puts_(out, "program");
    word(out, programnames[prog->kind]);
    field(out, " transient", prog->transient);
    field(out, " bound", prog->bound);
    puts_(out, " {\n");
    for (int i = 0; i < prog->nphase; i++) {
        puts_(out, "phase");
        word(out, prog->phase[i].name);
        number(out, prog->phase[i].first);
        number(out, prog->phase[i].n);
        number(out, prog->phase[i].repeat);
        puts_(out, "\n");
    }
    put_slots(out, prog);
    for (int i = 0; i < prog->nframe; i++)
        put_frame(out, &prog->frame[i]);
    put_ends(out, prog);
    for (int i = 0; i < prog->ninstr; i++)
        put_instr(out, &prog->instr[i]);
    puts_(out, "}\n");
}

static void put_role(Text *t, const Role *r)
{
    puts_(t, "role");
    field(t, " arena", r->arena);
    field(t, " persist", r->persist);
    puts_(t, " {\n");
    for (int i = 0; i < r->nbuf; i++)
        put_buf(t, &r->buf[i]);
    for (int i = 0; i < r->ntensor; i++)
        put_tensor(t, &r->tensor[i]);
    for (int i = 0; i < r->nin; i++)
        put_scalar(t, "in", &r->in[i]);
    for (int i = 0; i < r->nout; i++)
        put_scalar(t, "out", &r->out[i]);
    for (int i = 0; i < r->nprog; i++)
        put_program(t, &r->prog[i]);
    puts_(t, "}\n");
}

void put_hf(Text *out, const HfMap *h)
{
    puts_(out, "hf");
    word(out, h->hf);
    word(out, h->param);
    for (int i = 0; i < h->nfix; i++) {
        word(out, h->fixaxis[i]);
        puts_(out, "=");
        put_int(out, h->fixat[i]);
    }
    for (int i = 0; i < h->nd; i++) {
        puts_(out, " (");
        for (int k = 0; k < h->dim[i].nf; k++) {
            const HfFactor *f = &h->dim[i].f[k];
            word(out, f->axis);
            number(out, f->total);
            number(out, f->start);
            number(out, f->n);
        }
        puts_(out, " )");
    }
    puts_(out, "\n");
}

/* ---- the whole ----------------------------------------------------------- */

static void put_head(Text *out, const Plan *p)
{
    const char *key, *value;
    field(out, "pleat-plan", format_now(FMTplan));
    puts_(out, "\nmodel");
    word(out, p->model);
    word(out, p->target);
    field(out, "\ntokens", p->tokens);
    field(out, "\nparams", p->params);
    number(out, p->active);
    puts_(out, "\nflops ");
    put_hex(out, p->flops);
    field(out, "\nmesh", p->mesh->world);
    word(out, p->mesh->order);
    for (int i = 0; i < NMESH; i++)
        number(out, p->mesh->size[i]);
    puts_(out, "\n");
    for (int i = 0; p->opts && opts_each(p->opts, i, &key, &value); i++) {
        puts_(out, "option");
        word(out, key);
        word(out, value);
        puts_(out, "\n");
    }
}

static void put_hash(Text *out)
{
    XXH128_hash_t h = XXH3_128bits(out->s, out->len);
    put(out, "xxh3 %016llx%016llx\n", (unsigned long long)h.high64,
        (unsigned long long)h.low64);
}

char *plan_print(Arena *a, const Plan *p, size_t *len)
{
    Text out = { .arena = a };
    put_head(&out, p);
    for (int i = 0; i < p->nhf; i++)
        put_hf(&out, &p->hf[i]);
    for (int i = 0; i < p->nshape; i++)
        put_shape(&out, &p->shape[i]);
    for (int i = 0; i < p->nsig; i++)
        put_signature(&out, &p->sig[i]);
    for (int i = 0; i < p->nrole; i++)
        put_role(&out, &p->role[i]);
    if (p->prelude)
        put_text(&out, "prelude", 0, p->prelude);
    for (int i = 0; i < p->nkernel; i++)
        put_text(&out, "kernel", p->kernel[i].name, p->kernel[i].text);
    for (int i = 0; i < p->nsource; i++)
        put_text(&out, "source", p->source[i].file, p->source[i].text);
    put_hash(&out);
    *len = out.len;
    return out.s;
}
