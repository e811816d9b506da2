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

int tensor_is(const Tensor *t, unsigned kinds)
{
    return (int)(kinds >> t->kind & 1);
}

int is_copy(const Tensor *t)
{
    return tensor_is(t, COPIEDTENSORS);
}

int role_prog(const Role *r, ProgramKind k)
{
    for (int i = 0; i < r->nprog; i++)
        if (r->prog[i].kind == k)
            return i;
    return -1;
}

const PlanDim *tensor_axis(const Tensor *t, AxisRole k)
{
    for (int d = 0; d < t->nd; d++)
        if (t->dim[d].role == k)
            return &t->dim[d];
    return NULL;
}

int role_named(const char *s)
{
    return word_index(s, axisroles, NROLE);
}

/* ---- words --------------------------------------------------------------- */

static void puts_(Text *t, const char *s)
{
    putn(t, s, strlen(s));
}

/* " word 123" */
static void field(Text *t, const char *word, int64_t v)
{
    puts_(t, word);
    putn(t, " ", 1);
    put_int(t, v);
}

static void number(Text *t, int64_t v)
{
    field(t, "", v);
}

static void word(Text *t, const char *s)
{
    putn(t, " ", 1);
    put_word(t, s ? s : "");
}

static void put_place(Text *t, const char *file, int line)
{
    if (file) {
        puts_(t, " @");
        word(t, file);
        number(t, line);
    }
    puts_(t, "\n");
}

/* ---- parts --------------------------------------------------------------- */

static void put_buf(Text *t, const Buf *b)
{
    puts_(t, "buf");
    word(t, b->name);
    word(t, bufclasses[b->cls]);
    word(t, dtypes[b->dt].name);
    number(t, b->offset);
    number(t, b->bytes);
    if (b->prog >= 0) {
        field(t, " life", b->prog);
        number(t, b->born);
        number(t, b->dies);
        if (b->frame)
            field(t, " frame", b->frame - 1);
    }
    put_place(t, b->file, b->line);
}

static void put_dim(Text *t, const PlanDim *d)
{
    puts_(t, " (");
    word(t, d->axis);
    if (d->role != ROLEnone) {
        puts_(t, " as");
        word(t, axisroles[d->role]);
    }
    number(t, d->n);
    for (int i = 0; i < d->npiece; i++) {
        put_aff(t, &d->piece[i].start);
        number(t, d->piece[i].len);
    }
    puts_(t, " )");
}

static void put_tensor(Text *t, const Tensor *x)
{
    puts_(t, "tensor");
    word(t, x->name);
    word(t, tensor_kinds[x->kind].name);
    word(t, dtypes[x->dt].name);
    number(t, x->buf);
    for (int i = 0; i < x->nd; i++)
        put_dim(t, &x->dim[i]);
    if (x->at || x->run || x->shard) {
        field(t, " at", x->at);
        number(t, x->run);
        number(t, x->shard);
    }
    put_place(t, x->file, x->line);
}

static void put_scalar(Text *t, const char *io, const Scalar *s)
{
    puts_(t, io);
    word(t, s->name);
    word(t, dtypes[s->dt].name);
    number(t, s->buf);
    puts_(t, "\n");
}

static void put_shape(Text *t, const ValueShape *x)
{
    puts_(t, "shape");
    word(t, dtypes[x->dt].name);
    if (x->scale) {
        puts_(t, " scaled");
        word(t, scalenames[x->scale]);
    }
    if (x->map)
        field(t, " map", x->elems);
    for (int d = 0; d < x->nd; d++) {
        puts_(t, " (");
        word(t, x->dim[d].axis);
        number(t, x->dim[d].n);
        if (x->dim[d].cut)
            field(t, " cut", x->dim[d].cut);
        puts_(t, x->dim[d].zigzag ? " zigzag )" : " )");
    }
    puts_(t, "\n");
}

/* flow = use { "," use }; use = "-" | [ value | "=" buffer ] [ "/" shape ]
 * [ ">" value ":" shape { ("+" | "^" | "_") atoms } ] */
static void put_flow(Text *t, const ValueUse *f, int n)
{
    static const char *const marks[] = { "+", "^", "_" };

    puts_(t, " v ");
    for (int i = 0; i < n; i++, f++) {
        puts_(t, i ? "," : "");
        if (!f->read && !f->make)
            puts_(t, "-");
        if (f->read < 0)
            puts_(t, "=");
        if (f->read)
            put_int(t, f->read < 0 ? ~f->read : f->read);
        if (f->read && f->as >= 0) {
            puts_(t, "/");
            put_int(t, f->as);
        }
        if (!f->make)
            continue;
        puts_(t, ">");
        put_int(t, f->make);
        puts_(t, ":");
        put_int(t, f->shape);
        for (int k = 0; k < 3; k++)
            if (f->part[k]) {
                puts_(t, marks[k]);
                put_int(t, f->part[k]);
            }
    }
}

static void put_instr(Text *t, const Instr *s)
{
    puts_(t, instr_info(s->kind)->name);
    word(t, s->label);
    put_args(t, s);
    if (s->flow && s->nbuf)
        put_flow(t, s->flow, s->nbuf);
    if (s->inner)
        field(t, " inner", s->inner);
    if (s->spread)
        field(t, " spread", s->spread);
    if (s->atoms)
        field(t, " g", s->atoms);
    put_issue(t, &s->issue);
    if (s->flops != 0 || s->bytes != 0 || s->secs != 0) {
        puts_(t, " c ");
        put_hex(t, s->flops);
        puts_(t, " ");
        put_hex(t, s->bytes);
        puts_(t, " ");
        put_hex(t, s->secs);
        puts_(t, s->again != 0 ? " again " : "");
        if (s->again != 0)
            put_hex(t, s->again);
    }
    put_place(t, s->file, s->line);
}

/* Rows of a table: the phase, "=" micro-batch where that is not the one after
 * the phase's last, "&" when it may overlap with the next row. */
static void put_slots(Text *t, const Program *g)
{
    enum { LINE = 32 };
    int *next = alloc(t->arena, sizeof *next * (size_t)(g->nphase + 1));

    for (int i = 0; i < g->nslot; i++) {
        const ScheduleSlot *r = &g->slot[i];
        if (i % LINE == 0)
            puts_(t, "slots");
        number(t, r->phase);
        if (r->micro != next[r->phase])
            field(t, " =", r->micro);
        next[r->phase] = r->micro + 1;
        if (r->pair)
            puts_(t, " &");
        if (i % LINE == LINE - 1 || i == g->nslot - 1)
            puts_(t, "\n");
    }
}

static void put_frame(Text *t, const SlotGroup *f)
{
    puts_(t, "frame");
    word(t, f->name);
    number(t, f->bytes);
    puts_(t, " s");
    for (int i = 0; i < f->nslot; i++)
        number(t, f->slot[i]);
    puts_(t, " o");
    for (int i = 0; i < f->nof; i++)
        number(t, f->of[i]);
    puts_(t, "\n");
}

static void put_ends(Text *t, const Program *g)
{
    enum { LINE = 16 };
    for (int i = 0; i < g->nend; i++) {
        if (i % LINE == 0)
            puts_(t, "end");
        number(t, g->end[i].buf);
        number(t, g->end[i].value);
        if (i % LINE == LINE - 1 || i == g->nend - 1)
            puts_(t, "\n");
    }
}

static void put_program(Text *t, const Program *g)
{
    puts_(t, "program");
    word(t, programnames[g->kind]);
    field(t, " transient", g->transient);
    field(t, " bound", g->bound);
    puts_(t, " {\n");
    for (int i = 0; i < g->nphase; i++) {
        puts_(t, "phase");
        word(t, g->phase[i].name);
        number(t, g->phase[i].first);
        number(t, g->phase[i].n);
        number(t, g->phase[i].repeat);
        puts_(t, "\n");
    }
    put_slots(t, g);
    for (int i = 0; i < g->nframe; i++)
        put_frame(t, &g->frame[i]);
    put_ends(t, g);
    for (int i = 0; i < g->ninstr; i++)
        put_instr(t, &g->instr[i]);
    puts_(t, "}\n");
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

void put_hf(Text *t, const HfMap *h)
{
    puts_(t, "hf");
    word(t, h->hf);
    word(t, h->param);
    for (int i = 0; i < h->nfix; i++) {
        word(t, h->fixaxis[i]);
        puts_(t, "=");
        put_int(t, h->fixat[i]);
    }
    for (int i = 0; i < h->nd; i++) {
        puts_(t, " (");
        for (int k = 0; k < h->dim[i].nf; k++) {
            const HfFactor *f = &h->dim[i].f[k];
            word(t, f->axis);
            number(t, f->total);
            number(t, f->start);
            number(t, f->n);
        }
        puts_(t, " )");
    }
    puts_(t, "\n");
}

/* ---- the whole ----------------------------------------------------------- */

static void put_head(Text *t, const Plan *p)
{
    const char *key, *value;
    field(t, "pleat-plan", format_now(FMTplan));
    puts_(t, "\nmodel");
    word(t, p->model);
    word(t, p->target);
    field(t, "\ntokens", p->tokens);
    field(t, "\nparams", p->params);
    number(t, p->active);
    puts_(t, "\nflops ");
    put_hex(t, p->flops);
    field(t, "\nmesh", p->mesh->world);
    word(t, p->mesh->order);
    for (int i = 0; i < NMESH; i++)
        number(t, p->mesh->size[i]);
    puts_(t, "\n");
    for (int i = 0; p->opts && opts_each(p->opts, i, &key, &value); i++) {
        puts_(t, "option");
        word(t, key);
        word(t, value);
        puts_(t, "\n");
    }
}

static void put_hash(Text *t)
{
    XXH128_hash_t h = XXH3_128bits(t->s, t->len);
    put(t, "xxh3 %016llx%016llx\n", (unsigned long long)h.high64,
        (unsigned long long)h.low64);
}

char *plan_print(Arena *a, const Plan *p, size_t *len)
{
    Text t = { .arena = a };
    put_head(&t, p);
    for (int i = 0; i < p->nhf; i++)
        put_hf(&t, &p->hf[i]);
    for (int i = 0; i < p->nshape; i++)
        put_shape(&t, &p->shape[i]);
    for (int i = 0; i < p->nsig; i++)
        put_signature(&t, &p->sig[i]);
    for (int i = 0; i < p->nrole; i++)
        put_role(&t, &p->role[i]);
    if (p->prelude)
        put_text(&t, "prelude", 0, p->prelude);
    for (int i = 0; i < p->nkernel; i++)
        put_text(&t, "kernel", p->kernel[i].name, p->kernel[i].text);
    for (int i = 0; i < p->nsource; i++)
        put_text(&t, "source", p->source[i].file, p->source[i].text);
    put_hash(&t);
    *len = t.len;
    return t.s;
}
