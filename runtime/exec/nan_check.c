/* nan_check.c: finds the first NaN or infinity of a run, for exec_checked.
 * Memory that the plan has not written reads as zero. A value is new if the
 * instruction changed its bits: buffers are compared on the host before and
 * after each instruction. Instructions that only move data are skipped, since a
 * block of an exchange may hold garbage beyond its rows. */
#include "exec.h"

/* Returns buffer i of an instruction if the instruction can create a bad number
 * in it, else null. Rows of a stack are checked where they are read. */
static const Buf *looked_at(const Role *role, const Instr *instr, int i)
{
    const Buf *b = instr->buf[i] < 0 ? NULL : &role->buf[instr->buf[i]];

    if (!b || b->cls == Bscratch || b->stack || dtypes[b->dt].kind != 'f' ||
        (instr->kind == Ikernel && instr_use(instr, i) == 'r'))
        return NULL;
    switch (instr->kind) {
    case Ikernel:
    case Igemm:
    case Igmm:
    case Igmm_wgrad:
    case Ireducescatter:
    case Iallreduce: return b;
    default: return NULL;
    }
}

static int64_t instr_bytes(const Role *role, const Instr *instr)
{
    int64_t n = 0;

    for (int i = 0; i < instr->nbuf; i++) {
        const Buf *b = looked_at(role, instr, i);
        n += b ? b->bytes : 0;
    }
    return n;
}

/* Allocates the copy for the largest instruction of all ranks here and zeroes
 * all transient memory. */
void look_open(Exec *exec)
{
    int64_t room = 0;

    for (int i = 0; i < exec->nstage; i++) {
        const Role *r = exec->stage[i].rank[0]->role;
        int64_t most = 0;
        for (int g = 0; g < r->nprog; g++)
            for (int k = 0; k < r->prog[g].ninstr; k++) {
                int64_t n = instr_bytes(r, &r->prog[g].instr[k]);
                most = n > most ? n : most;
            }
        room += most * exec->stage[i].nrank;
    }
    for (int64_t i = 0; i < exec->comm->n; i++) {
        const Role *r = exec->rank[i].role;
        exec->dev->clear(exec->on, STREAMcompute,
                         exec->rank[i].base + r->persist,
                         r->arena - r->persist);
    }
    exec->ncopy = room + 1;
    exec->copy = pages(exec->ncopy, "looking for the first NaN");
    exec->bad = NULL;
}

void look_close(Exec *exec)
{
    drop_pages(exec->copy, exec->ncopy);
    exec->copy = NULL;
}

/* ---- one instruction ----------------------------------------------------- */

void look_before(Exec *exec, Stage *const *s, int n)
{
    uint8_t *to = exec->copy;

    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < s[i]->nrank; k++) {
            const Rank *r = s[i]->rank[k];
            const BoundInstr *bound = rank_instr(r);
            for (int j = 0; j < bound->instr->nbuf; j++) {
                const Buf *f = looked_at(r->role, bound->instr, j);
                if (!f)
                    continue;
                memcpy(to, exec_seen(exec, r, bound->buf[j], f->bytes),
                       (size_t)f->bytes);
                to += f->bytes;
            }
        }
}

/* Returns "NaN" or "infinity"; null: neither. Masks hold -infinity, which is
 * valid. */
static const char *badness(double v)
{
    return v != v ? "NaN" : v > 0 && isinf(v) ? "infinity" : NULL;
}

/* Returns the worst kind among bad values that changed: NaN before infinity. */
static const char *new_bad(const Buf *b, const uint8_t *now,
                           const uint8_t *before)
{
    int size = dtypes[b->dt].bytes;
    const char *found = NULL;

    for (int64_t i = 0; i < b->bytes / size; i++) {
        if (!memcmp(now + i * size, before + i * size, (size_t)size))
            continue;
        const char *what = badness(elem_get(b->dt, now, i));
        if (what && *what == 'N')
            return what;
        found = what ? what : found;
    }
    return found;
}

/* Is buffer i also an earlier operand's? A result in place of an operand has
 * the operand's buffer. */
static int in_place(const Instr *instr, int i)
{
    int k = 0;

    while (instr->buf[k] != instr->buf[i])
        k++;
    return k < i;
}

static char *say(const Exec *exec, const Rank *rank, const Instr *instr, int i,
                 const char *what)
{
    const Buf *b = &rank->role->buf[instr->buf[i]];
    const char *label =
        instr->label ? instr->label : instr_info(instr->kind)->name;
    int own = b->file && !in_place(instr, i);
    const char *file = own ? b->file : instr->file;
    int line = own ? b->line : instr->line;

    return strf(exec->mem, "first %s in %s%s (rank %ld)", what,
                in_place(instr, i)
                    ? strf(exec->mem, "a result of %s", label)
                    : strf(exec->mem, "'%s' after %s", b->name, label),
                place_text(exec->mem, file, line), rank->id);
}

void look_after(Exec *exec, Stage *const *s, int n)
{
    const uint8_t *before = exec->copy;

    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < s[i]->nrank; k++) {
            const Rank *r = s[i]->rank[k];
            const BoundInstr *bound = rank_instr(r);
            exec->dev->sync(exec->on, bound->on);
            for (int j = 0; j < bound->instr->nbuf && !exec->bad; j++) {
                const Buf *f = looked_at(r->role, bound->instr, j);
                if (!f)
                    continue;
                const char *what = new_bad(
                    f, exec_seen(exec, r, bound->buf[j], f->bytes), before);
                if (what)
                    exec->bad = say(exec, r, bound->instr, j, what);
                before += f->bytes;
            }
        }
}
