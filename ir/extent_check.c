/* extent_check.c: instructions fill their buffers and nothing is left over.
 * instr_check.c says that no instruction goes beyond its buffers; a plan of the
 * compiler has, besides, operands that are exactly as large as their buffers,
 * an arena and frames that are exactly as high as what lies in them, groups of
 * more than one rank, and as often as a step has micro-batches.
 *
 * Not proved: which way a square matrix is turned. */
#include <string.h>

#include "plan.h"

typedef struct Sizes {
    const PlanCheck *c;
    const Instr *s;
} Sizes;

static int64_t bytes_of(const Sizes *x, int i)
{
    return x->s->buf[i] < 0 ? -1 : x->c->r->buf[x->s->buf[i]].bytes;
}

static const char *fills(const Sizes *x, int i, int64_t elems, int64_t width)
{
    return sat_mul(elems, width) != bytes_of(x, i) && law(Lfills)
               ? strf(x->c->arena, "leaves a part of its operand '%s' alone",
                      instr_operand(x->s, i)->name)
               : NULL;
}

/* ---- instructions -------------------------------------------------------- */

/* Products and copies, and collectives along an axis, are as large as their
 * operands' shapes (operands.c), and those as their buffers. */
static const char *instr_sizes(const Sizes *x)
{
    const Instr *s = x->s;
    int64_t n = s->kind == Iallreduce                       ? s->allreduce.n
                : s->kind == Ippermute                      ? s->ppermute.n
                : instr_info(s->kind)->cls == CLASStransfer ? s->transfer.n
                                                            : -1;
    return n < 0 ? NULL : fills(x, 0, n, dtypes[instr_dtype(s, 0)].bytes);
}

/* ---- memory -------------------------------------------------------------- */

/* Of what lies in the host's arena, or in the other. */
static void raise(int64_t *top, int64_t at, int64_t bytes, int host)
{
    if ((at >= HOSTSPACE) == host && at + bytes > *top)
        *top = at + bytes;
}

static int64_t top_of(const PlanCheck *c, int prog, int host)
{
    const Program *g = prog < 0 ? NULL : &c->r->prog[prog];
    int64_t from = host ? HOSTSPACE : 0, top = from;
    for (int i = 0; i < c->r->nbuf; i++) {
        const Buf *b = &c->r->buf[i];
        if (b->prog == prog && !b->frame)
            raise(&top, b->offset, b->bytes, host);
    }
    for (int i = 0; g && i < g->nframe; i++)
        for (int k = 0; k < g->frame[i].nslot; k++)
            raise(&top, g->frame[i].slot[k], g->frame[i].bytes, host);
    return (top - from + BUFALIGN - 1) / BUFALIGN * BUFALIGN;
}

static int64_t lasting_bytes(const Role *r, int host)
{
    int64_t n = 0;
    for (int i = 0; i < r->nbuf; i++)
        if (r->buf[i].prog < 0 && in_host(r, &r->buf[i]) == host)
            n = sat_add(n,
                        (r->buf[i].bytes + BUFALIGN - 1) / BUFALIGN * BUFALIGN);
    return n;
}

static const char *heights_wrong(const PlanCheck *c)
{
    const Role *r = c->r;
    int64_t most = 0, host = top_of(c, -1, 1);
    if ((top_of(c, -1, 0) != r->persist || lasting_bytes(r, 0) != r->persist ||
         lasting_bytes(r, 1) != host) &&
        law(Lheight_lasting))
        return "does not say how high what lives always is";
    for (int k = 0; k < r->nprog; k++) {
        int64_t top = top_of(c, k, 0), n = r->prog[k].transient;
        int64_t more = top_of(c, k, 1);
        if ((top > r->persist ? top - r->persist : 0) != n &&
            law(Lheight_program))
            return strf(c->arena, "program '%s' does not say how much it needs",
                        programnames[r->prog[k].kind]);
        most = n > most ? n : most;
        host = more > host ? more : host;
    }
    if (r->host != host && law(Lheight_host))
        return "does not have the host's arena that its programs need";
    return r->arena != r->persist + most && law(Lheight_arena)
               ? "does not have the arena that its programs need"
               : NULL;
}

/* ---- micro-batches ------------------------------------------------------- */

/* Micro-batches that a rank runs in turn, from the tokens of a step; 0: there
 * is no input to tell, -1: none. */
static int64_t micros_of(const Plan *p)
{
    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++) {
            const Tensor *t = &p->role[r].tensor[i];
            int64_t n = 1;
            for (int d = 0; d < t->nd; d++)
                n = sat_mul(n, t->dim[d].n);
            if (t->kind == TKinput)
                return p->tokens > 0 && p->tokens % n == 0 ? p->tokens / n : -1;
        }
    return 0;
}

static const char *repeats_wrong(const PlanCheck *c, const Program *prog)
{
    int data = program_trains(prog->kind) || prog->kind == PGeval;
    int64_t n = data ? micros_of(c->p) : 1;
    if (n < 0 && law(Lrepeats))
        return "has another number of tokens than its inputs";
    for (int f = 0; f < prog->nphase && n > 0; f++) {
        const Phase *x = &prog->phase[f];
        int each = x->reg == REGden || x->reg == REGbody;
        if ((x->repeat ? phase_micro(x, x->repeat, 0) != (each ? n : 1)
                       : phase_runs(prog, f) != n) &&
            law(Lrepeats))
            return strf(c->arena, "program '%s' runs its phase '%s' %lld times",
                        programnames[prog->kind], x->name,
                        (long long)phase_runs(prog, f));
    }
    return 0;
}

/* Does phase f read the input t of its pair's other micro-batch too? */
static int reads_other(const Role *r, const Program *prog, const Phase *f,
                       const Tensor *t)
{
    for (int i = 0; i < r->ntensor; i++) {
        const Tensor *o = &r->tensor[i];
        if (o->kind == TKinput && o->second != t->second &&
            !strcmp(o->name, t->name) && phase_names(prog, f, o->buf))
            return 1;
    }
    return 0;
}

static const char *pairs_wrong(const PlanCheck *c, const Program *prog)
{
    for (int f = 0; f < prog->nphase; f++)
        for (int i = 0; i < c->r->ntensor; i++) {
            const Phase *x = &prog->phase[f];
            const Tensor *t = &c->r->tensor[i];
            if (t->kind == TKinput && (x->pair || t->second) &&
                phase_names(prog, x, t->buf) &&
                !(x->pair && reads_other(c->r, prog, x, t)) &&
                law(Lpair_inputs))
                return strf(c->arena,
                            "program '%s' reads input '%s' of one micro-batch "
                            "of its pairs",
                            programnames[prog->kind], t->name);
        }
    return NULL;
}

/* ---- frames -------------------------------------------------------------- */

/* What lies in a frame lies there side by side, and fills it. */
static const char *frames_wrong(const PlanCheck *c, int prog)
{
    const Program *g = &c->r->prog[prog];
    int64_t *top = alloc(c->arena, sizeof *top * (size_t)(g->nframe + 1));
    Span *v = NULL;
    int one, two;
    for (int i = 0; i < c->r->nbuf; i++) {
        const Buf *b = &c->r->buf[i];
        if (b->prog != prog || !b->frame || b->stack || !b->bytes)
            continue;
        Span x = { .id = i,
                   .offset = b->offset,
                   .bytes = b->bytes,
                   .from = b->frame,
                   .to = b->frame };
        vec_push(c->arena, v, x);
        if (b->offset + b->bytes > top[b->frame])
            top[b->frame] = b->offset + b->bytes;
    }
    if (spans_meet(v, (int)vec_len(v), &one, &two) && law(Lframe_apart))
        return strf(c->arena, "buffers '%s' and '%s' overlap in their frame",
                    c->r->buf[one].name, c->r->buf[two].name);
    for (int i = 0; i < g->nframe; i++)
        if ((top[i + 1] + BUFALIGN - 1) / BUFALIGN * BUFALIGN !=
                g->frame[i].bytes &&
            law(Lframe_full))
            return strf(c->arena,
                        "frame '%s' is not as large as what lies in it",
                        g->frame[i].name);
    return 0;
}

const char *sizes_wrong(const PlanCheck *c)
{
    const char *why = heights_wrong(c);
    for (int k = 0; k < c->r->nprog && !why; k++)
        why = repeats_wrong(c, &c->r->prog[k]);
    for (int k = 0; k < c->r->nprog && !why; k++)
        why = pairs_wrong(c, &c->r->prog[k]);
    for (int k = 0; k < c->r->nprog && !why; k++)
        why = frames_wrong(c, k);
    if (why)
        return strf(c->arena, "role %d %s", c->role, why);
    for (int k = 0; k < c->r->nprog; k++)
        for (int i = 0; i < c->r->prog[k].ninstr; i++) {
            Sizes x = { c, &c->r->prog[k].instr[i] };
            if ((why = instr_sizes(&x)))
                return instr_told(c, &c->r->prog[k], i, why);
        }
    return 0;
}
