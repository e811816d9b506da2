/* plancheck.c: verifies a plan before it is executed: plans read from files and
 * those of the compiler. It assumes nothing: every index is in range, every
 * buffer is inside the arena, no two live buffers overlap, every instruction
 * has the arguments of its kind, and these stay inside their buffers on every
 * rank (instr_check.c, tablecheck.c).
 *
 * Each function returns null or the violation. */
#include "verify.h"

/* ---- buffers ------------------------------------------------------------- */

static int lies_in(const Buf *b, int64_t from, int64_t bytes)
{
    return b->bytes >= 0 && b->offset >= from && b->offset - from <= bytes &&
           b->bytes <= bytes - (b->offset - from);
}

/* Is b in a stack with its own kind of lifetime? */
static int in_stack(const Role *role, const Buf *b)
{
    if (b->stack < 0 || b->stack > role->nbuf)
        return 0;
    const Buf *buf = &role->buf[b->stack - 1];
    return buf->cls == Bstash && !buf->stack && b->cls == Btemp &&
           buf->prog == b->prog && buf->frame == b->frame &&
           buf->offset == b->offset && buf->bytes >= b->bytes &&
           buf->born <= b->born && b->dies <= buf->dies;
}

static const char *buf_wrong(const PlanCheck *check, const Buf *b)
{
    const Role *role = check->r;
    if (b->offset % BUFALIGN && law(Lbuf_aligned))
        return "is not aligned to 256 bytes";
    if (!b->frame && !lies_in(b, 0, role->arena) &&
        !lies_in(b, HOSTSPACE, role->host) && law(Lbuf_in_arena))
        return "does not lie in an arena";
    if ((b->prog >= role->nprog || b->prog < -1) && law(Lbuf_program))
        return "belongs to no program";
    if (b->cls == Bscratch && b->dt != Du8 && law(Lwork_dtype))
        return "is work space of another dtype than u8";
    if (b->prog >= 0 && b->cls <= Bio && law(Lbuf_class))
        return "of a persistent class does not live always";
    if (b->prog >= 0 &&
        (b->born < 0 || b->born > b->dies ||
         b->dies >= role->prog[b->prog].ninstr) &&
        law(Lbuf_life))
        return "has a life outside its program";
    if (b->stack && !in_stack(role, b) && law(Lstack_place))
        return "does not lie in a stack";
    if (!b->frame)
        return 0;
    if ((b->prog < 0 || b->frame < 0 ||
         b->frame > role->prog[b->prog].nframe) &&
        law(Lbuf_frame))
        return "lies in a frame that does not exist";
    if (!lies_in(b, 0, role->prog[b->prog].frame[b->frame - 1].bytes) &&
        law(Lbuf_in_frame))
        return "does not lie in its frame";
    return 0;
}

/* Returns the instruction from which a buffer owns its bytes: the result of a
 * join in a table from its first part on, and through the table. */
static int own_from(const PlanCheck *check, int buf)
{
    const Role *role = check->r;
    const Buf *b = &role->buf[buf];
    if (b->prog < 0)
        return -1;
    const Program *program = &role->prog[b->prog];
    const Instr *join = &program->instr[b->born];
    int from = b->born;
    if (!is_table_whole(role, buf))
        return from;
    for (int f = program->nphase; f-- > 0;)
        if (!program->phase[f].repeat && program->phase[f].first < from)
            from = program->phase[f].first;
    for (int i = 1; i < join->nbuf; i++)
        if (role->buf[join->buf[i]].born < from)
            from = role->buf[join->buf[i]].born;
    return from;
}

/* Collects the buffers with a fixed place that are live in a program;
 * persistent ones are born at -1. Buffers of a stack are separated by words on
 * the device. Frames are live while the table runs. */
static int gather(const PlanCheck *check, int prog, Span **out)
{
    Span *v = NULL;
    for (int i = 0; i < check->r->nbuf; i++) {
        const Buf *b = &check->r->buf[i];
        if (!b->bytes || b->frame || b->stack || is_table_part(check->r, i) ||
            (b->prog != -1 && b->prog != prog))
            continue;
        Span x = { .id = i,
                   .offset = b->offset,
                   .bytes = b->bytes,
                   .from = own_from(check, i),
                   .to = b->prog < 0 ? INT32_MAX
                                     : b->dies - joined(check->r, i, b->dies) };
        vec_push(check->arena, v, x);
    }
    if (prog >= 0)
        frame_runs(check, prog, &v);
    *out = v;
    return (int)vec_len(v);
}

static const char *name_of(const PlanCheck *check, int id)
{
    return id < 0 ? "frames" : check->r->buf[id].name;
}

static const char *overlaps(const PlanCheck *check, int prog)
{
    int one, two, n;
    Span *span;
    n = gather(check, prog, &span);
    if (!spans_meet(span, n, &one, &two) || !law(Lbufs_apart))
        return 0;
    return strf(check->arena,
                "role %d: buffers '%s' and '%s' overlap while both are alive",
                check->role, name_of(check, one), name_of(check, two));
}

static const char *bufs_wrong(const PlanCheck *check)
{
    const Role *role = check->r;
    const char *why;
    if ((role->arena < 0 || role->arena > HOSTSPACE || role->persist < 0 ||
         role->persist > role->arena || role->host < 0 ||
         role->host > HOSTSPACE) &&
        law(Larena_size))
        return strf(check->arena,
                    "role %d: arena of %ld bytes, %ld of them always, and "
                    "%ld of the host",
                    check->role, role->arena, role->persist, role->host);
    for (int i = 0; i < role->nbuf; i++)
        if ((why = buf_wrong(check, &role->buf[i])))
            return strf(check->arena, "role %d: buffer '%s' %s", check->role,
                        role->buf[i].name, why);
    return 0;
}

/* ---- programs ------------------------------------------------------------ */

/* Phases must be consecutive and cover all instructions. */
static const char *phases_wrong(const PlanCheck *check, const Program *prog)
{
    int64_t at = 0;
    for (int i = 0; i < prog->nphase; i++) {
        const Phase *phase = &prog->phase[i];
        if ((phase->first != at || phase->n < 0 || phase->repeat < 0) &&
            law(Lphases_follow))
            return strf(check->arena,
                        "role %d: program '%s': phase '%s' does not follow",
                        check->role, programnames[prog->kind], phase->name);
        at += phase->n;
    }
    if (at != prog->ninstr && law(Lphases_cover))
        return strf(
            check->arena,
            "role %d: program '%s' has %d instructions and phases for %ld",
            check->role, programnames[prog->kind], prog->ninstr, at);
    return 0;
}

/* A phase that runs once must have no instruction for other runs. */
static const char *lasts_wrong(const PlanCheck *check, const Program *prog)
{
    for (int f = 0; f < prog->nphase; f++)
        for (int k = 0; k < prog->phase[f].n; k++) {
            int i = prog->phase[f].first + k;
            if (prog->instr[i].last_only && phase_runs(prog, f) < 2 &&
                law(Llast_repeats))
                return instr_told(check, prog, i,
                                  "runs in the last run of a phase that has "
                                  "no other");
        }
    return 0;
}

/* Places are checked after all phases and tables. */
static const char *programs_wrong(const PlanCheck *check)
{
    const Role *role = check->r;
    const char *why = 0;
    for (int k = 0; k < role->nprog && !why; k++)
        why = phases_wrong(check, &role->prog[k]);
    for (int k = 0; k < role->nprog && !why; k++)
        why = lasts_wrong(check, &role->prog[k]);
    if (!why)
        why = bufs_wrong(check);
    for (int k = 0; k < role->nprog && !why; k++)
        for (int i = 0; i < role->prog[k].ninstr && !why; i++)
            why = instr_wrong(check, k, i);
    for (int k = 0; k < role->nprog && !why; k++)
        why = table_wrong(check, k);
    for (int k = -1; k < role->nprog && !why; k++)
        why = overlaps(check, k);
    for (int k = 0; k < role->nprog && !why; k++)
        why = streams_wrong(check, k);
    return why;
}

/* ---- a stage ------------------------------------------------------------- */

static const char *role_wrong(PlanCheck *check)
{
    const Role *role = check->r;
    const char *why = programs_wrong(check);
    if (!why)
        why = tensors_wrong(check);
    if (why || !has_flow(role))
        return why;
    why = tensors_loose(check);
    why = why ? why : purposes_wrong(check);
    check->lasting = why ? NULL : lasting_shapes(check);
    for (int k = 0; k < role->nprog && !why; k++)
        why = flow_wrong(check, k);
    return why ? why : sizes_wrong(check);
}

/* ---- texts and the whole ------------------------------------------------- */

/* Checks kernel texts, which target null does not have. */
static const char *texts_wrong(const PlanCheck *check)
{
    const Plan *p = check->p;
    for (int i = 0; i < p->nkernel && strcmp(p->target, "null") != 0; i++)
        if (!kernel_is_named(&p->kernel[i]) && law(Lkernel_text))
            return strf(check->arena,
                        "the text of kernel '%s' does not have the hash of its "
                        "name",
                        p->kernel[i].name);
    return NULL;
}

static const char *kernels_wrong(PlanCheck *check)
{
    int n = check->p->nkernel;
    check->kernels =
        alloc(check->arena, ((size_t)n + 1) * sizeof *check->kernels);
    for (int i = 0; i < n; i++)
        check->kernels[i] = intern(check->p->kernel[i].name);
    qsort(check->kernels, (size_t)n, sizeof *check->kernels, by_pointer);
    for (int i = 1; i < n; i++)
        if (check->kernels[i] == check->kernels[i - 1] && law(Lkernels_once))
            return strf(check->arena, "two kernels '%s'", check->kernels[i]);
    return texts_wrong(check);
}

const char *plan_wrong(Arena *a, const Plan *p)
{
    PlanCheck c = { .arena = a, .p = p };
    const char *why = kernels_wrong(&c);
    if (p->nrole != p->mesh->size[Mpp] &&
        (p->nrole != 1 || has_flow(p->role)) && law(Lroles))
        return strf(a, "%d roles for %ld pipeline stages", p->nrole,
                    p->mesh->size[Mpp]);
    if (!why)
        why = shapes_wrong(&c);
    if (!why)
        why = signatures_wrong(&c);
    for (c.role = 0; c.role < p->nrole && !why; c.role++) {
        c.r = &p->role[c.role];
        why = role_wrong(&c);
    }
    why = why ? why : shared_wrong(a, p);
    why = why ? why : hf_wrong(a, p);
    return why ? why : meets_wrong(a, p);
}

void plan_check(const Plan *p)
{
    Arena *a = arena_new();
    const char *why = plan_wrong(a, p);
    if (why)
        die("plan: %s", why);
    arena_free(a);
}
