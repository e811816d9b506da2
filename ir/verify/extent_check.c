/* extent_check.c: checks that instructions fill their buffers. instr_check.c
 * proves that no instruction exceeds its buffers; in a plan of the compiler
 * operands also have exactly the size of their buffers, the arena and frames
 * exactly the height of their contents, groups more than one rank, and phases
 * as many runs as a step has micro-batches.
 *
 * Not proved: whether a square matrix is transposed. */
#include "verify.h"

typedef struct Sizes {
    const PlanCheck *c;
    const Instr *s;
} Sizes;

static int64_t bytes_of(const Sizes *sizes, int i)
{
    return sizes->s->buf[i] < 0 ? -1 : sizes->c->r->buf[sizes->s->buf[i]].bytes;
}

static const char *fills(const Sizes *sizes, int i, int64_t elems,
                         int64_t width)
{
    return sat_mul(elems, width) != bytes_of(sizes, i) && law(Lfills)
               ? strf(sizes->c->arena,
                      "leaves a part of its operand '%s' alone",
                      instr_operand(sizes->s, i)->name)
               : NULL;
}

/* ---- instructions -------------------------------------------------------- */

/* Products, copies, and collectives along an axis have the size of their
 * operands' shapes (operands.c), and these the size of their buffers. */
static const char *instr_sizes(const Sizes *sizes)
{
    const Instr *instr = sizes->s;
    int64_t n = instr->kind == Iallreduce  ? instr->allreduce.n
                : instr->kind == Ippermute ? instr->ppermute.n
                : instr_info(instr->kind)->cls == CLASStransfer
                    ? instr->transfer.n
                    : -1;
    return n < 0 ? NULL
                 : fills(sizes, 0, n, dtypes[instr_dtype(instr, 0)].bytes);
}

/* ---- memory -------------------------------------------------------------- */

/* Raises the top of the host's arena, or of the device's. */
static void raise(int64_t *top, int64_t at, int64_t bytes, int host)
{
    if ((at >= HOSTSPACE) == host && at + bytes > *top)
        *top = at + bytes;
}

static int64_t top_of(const PlanCheck *check, int prog, int host)
{
    const Program *program = prog < 0 ? NULL : &check->r->prog[prog];
    int64_t from = host ? HOSTSPACE : 0, top = from;
    for (int i = 0; i < check->r->nbuf; i++) {
        const Buf *b = &check->r->buf[i];
        if (b->prog == prog && !b->frame)
            raise(&top, b->offset, b->bytes, host);
    }
    for (int i = 0; program && i < program->nframe; i++)
        for (int k = 0; k < program->frame[i].nslot; k++)
            raise(&top, program->frame[i].slot[k], program->frame[i].bytes,
                  host);
    return (top - from + BUFALIGN - 1) / BUFALIGN * BUFALIGN;
}

static int64_t lasting_bytes(const Role *role, int host)
{
    int64_t n = 0;
    for (int i = 0; i < role->nbuf; i++)
        if (role->buf[i].prog < 0 && in_host(role, &role->buf[i]) == host)
            n = sat_add(n, (role->buf[i].bytes + BUFALIGN - 1) / BUFALIGN *
                               BUFALIGN);
    return n;
}

static const char *heights_wrong(const PlanCheck *check)
{
    const Role *role = check->r;
    int64_t most = 0, host = top_of(check, -1, 1);
    if ((top_of(check, -1, 0) != role->persist ||
         lasting_bytes(role, 0) != role->persist ||
         lasting_bytes(role, 1) != host) &&
        law(Lheight_lasting))
        return "does not say how high what lives always is";
    for (int k = 0; k < role->nprog; k++) {
        int64_t top = top_of(check, k, 0), n = role->prog[k].transient;
        int64_t more = top_of(check, k, 1);
        if ((top > role->persist ? top - role->persist : 0) != n &&
            law(Lheight_program))
            return strf(check->arena,
                        "program '%s' does not say how much it needs",
                        programnames[role->prog[k].kind]);
        most = n > most ? n : most;
        host = more > host ? more : host;
    }
    if (role->host != host && law(Lheight_host))
        return "does not have the host's arena that its programs need";
    return role->arena != role->persist + most && law(Lheight_arena)
               ? "does not have the arena that its programs need"
               : NULL;
}

/* ---- micro-batches ------------------------------------------------------- */

/* Returns the micro-batches of a rank, from the tokens of a step; 0: the plan
 * has no inputs, -1: not an integer. */
static int64_t micros_of(const Plan *p)
{
    int64_t n = plan_tokens(p);

    if (n == 0)
        return 0;
    return p->tokens > 0 && p->tokens % n == 0 ? p->tokens / n : -1;
}

static const char *repeats_wrong(const PlanCheck *check, const Program *prog)
{
    int data = program_trains(prog->kind) || prog->kind == PGeval;
    int64_t n = data ? micros_of(check->p) : 1;
    if (n < 0 && law(Lrepeats))
        return "has another number of tokens than its inputs";
    for (int f = 0; f < prog->nphase && n > 0; f++) {
        const Phase *phase = &prog->phase[f];
        int each = phase->reg == REGden || phase->reg == REGbody;
        if ((phase->repeat
                 ? phase_micro(phase, phase->repeat, 0) != (each ? n : 1)
                 : phase_runs(prog, f) != n) &&
            law(Lrepeats))
            return strf(
                check->arena, "program '%s' runs its phase '%s' %ld times",
                programnames[prog->kind], phase->name, phase_runs(prog, f));
    }
    return 0;
}

/* Does the phase also read the input of its pair's other micro-batch? */
static int reads_other(const Role *role, const Program *prog,
                       const Phase *phase, const Tensor *tensor)
{
    for (int i = 0; i < role->ntensor; i++) {
        const Tensor *o = &role->tensor[i];
        if (o->kind == TKinput && o->second != tensor->second &&
            !strcmp(o->name, tensor->name) && phase_names(prog, phase, o->buf))
            return 1;
    }
    return 0;
}

static const char *pairs_wrong(const PlanCheck *check, const Program *prog)
{
    for (int f = 0; f < prog->nphase; f++)
        for (int i = 0; i < check->r->ntensor; i++) {
            const Phase *x = &prog->phase[f];
            const Tensor *tensor = &check->r->tensor[i];
            if (tensor->kind == TKinput && (x->pair || tensor->second) &&
                phase_names(prog, x, tensor->buf) &&
                !(x->pair && reads_other(check->r, prog, x, tensor)) &&
                law(Lpair_inputs))
                return strf(check->arena,
                            "program '%s' reads input '%s' of one micro-batch "
                            "of its pairs",
                            programnames[prog->kind], tensor->name);
        }
    return NULL;
}

/* ---- frames -------------------------------------------------------------- */

/* Buffers of a frame must be adjacent and fill it. */
static const char *frames_wrong(const PlanCheck *check, int prog)
{
    const Program *program = &check->r->prog[prog];
    int64_t *top =
        alloc(check->arena, sizeof *top * (size_t)(program->nframe + 1));
    Span *v = NULL;
    int one, two;
    for (int i = 0; i < check->r->nbuf; i++) {
        const Buf *b = &check->r->buf[i];
        if (b->prog != prog || !b->frame || b->stack || !b->bytes)
            continue;
        Span x = { .id = i,
                   .offset = b->offset,
                   .bytes = b->bytes,
                   .from = b->frame,
                   .to = b->frame };
        vec_push(check->arena, v, x);
        if (b->offset + b->bytes > top[b->frame])
            top[b->frame] = b->offset + b->bytes;
    }
    if (spans_meet(v, (int)vec_len(v), &one, &two) && law(Lframe_apart))
        return strf(check->arena,
                    "buffers '%s' and '%s' overlap in their frame",
                    check->r->buf[one].name, check->r->buf[two].name);
    for (int i = 0; i < program->nframe; i++)
        if ((top[i + 1] + BUFALIGN - 1) / BUFALIGN * BUFALIGN !=
                program->frame[i].bytes &&
            law(Lframe_full))
            return strf(check->arena,
                        "frame '%s' is not as large as what lies in it",
                        program->frame[i].name);
    return 0;
}

const char *sizes_wrong(const PlanCheck *check)
{
    const char *why = heights_wrong(check);
    for (int k = 0; k < check->r->nprog && !why; k++)
        why = repeats_wrong(check, &check->r->prog[k]);
    for (int k = 0; k < check->r->nprog && !why; k++)
        why = pairs_wrong(check, &check->r->prog[k]);
    for (int k = 0; k < check->r->nprog && !why; k++)
        why = frames_wrong(check, k);
    if (why)
        return strf(check->arena, "role %d %s", check->role, why);
    for (int k = 0; k < check->r->nprog; k++)
        for (int i = 0; i < check->r->prog[k].ninstr; i++) {
            Sizes x = { check, &check->r->prog[k].instr[i] };
            if ((why = instr_sizes(&x)))
                return instr_told(check, &check->r->prog[k], i, why);
        }
    return 0;
}
