/* nan_check.c: the first NaN or infinity of a run, for exec_checked. What a
 * plan has not written yet it reads as zero; a number counts as new when the
 * instruction that ran changed its bits. Those that only move numbers make
 * none: what a block of an exchange carries beyond its rows is not looked at.
 * An instruction's buffers are looked at where the host has them, before it and
 * after. */
#include <math.h>
#include <string.h>

#include "exec.h"

/* The i-th buffer of an instruction if it can make a bad number in it. Rows of
 * a stack are seen where they are read. */
static const Buf *looked_at(const Role *r, const Instr *s, int i)
{
    const Buf *b = s->buf[i] < 0 ? NULL : &r->buf[s->buf[i]];

    if (!b || b->cls == Bscratch || b->stack || dtypes[b->dt].kind != 'f' ||
        (s->kind == Ikernel && instr_use(s, i) == 'r'))
        return NULL;
    switch (s->kind) {
    case Ikernel:
    case Igemm:
    case Igmm:
    case Igmm_wgrad:
    case Ireducescatter:
    case Iallreduce: return b;
    default: return NULL;
    }
}

static int64_t instr_bytes(const Role *r, const Instr *s)
{
    int64_t n = 0;

    for (int i = 0; i < s->nbuf; i++) {
        const Buf *b = looked_at(r, s, i);
        n += b ? b->bytes : 0;
    }
    return n;
}

/* Room for what any instruction changes on all ranks here; all transient bytes
 * are zero. */
void look_open(Exec *x)
{
    int64_t room = 0;

    for (int i = 0; i < x->nstage; i++) {
        const Role *r = x->stage[i].rank[0]->role;
        int64_t most = 0;
        for (int g = 0; g < r->nprog; g++)
            for (int k = 0; k < r->prog[g].ninstr; k++) {
                int64_t n = instr_bytes(r, &r->prog[g].instr[k]);
                most = n > most ? n : most;
            }
        room += most * x->stage[i].nrank;
    }
    for (int64_t i = 0; i < x->comm->n; i++) {
        const Role *r = x->rank[i].role;
        x->dev->clear(x->on, STREAMcompute, x->rank[i].base + r->persist,
                      r->arena - r->persist);
    }
    x->ncopy = room + 1;
    x->copy = pages(x->ncopy, "looking for the first NaN");
    x->bad = NULL;
}

void look_close(Exec *x)
{
    drop_pages(x->copy, x->ncopy);
    x->copy = NULL;
}

/* ---- one instruction ----------------------------------------------------- */

void look_before(Exec *x, Stage *const *s, int n)
{
    uint8_t *to = x->copy;

    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < s[i]->nrank; k++) {
            const Rank *r = s[i]->rank[k];
            const BoundInstr *b = rank_instr(r);
            for (int j = 0; j < b->instr->nbuf; j++) {
                const Buf *f = looked_at(r->role, b->instr, j);
                if (!f)
                    continue;
                memcpy(to, exec_seen(x, r, b->buf[j], f->bytes),
                       (size_t)f->bytes);
                to += f->bytes;
            }
        }
}

/* A NaN or +infinity (-infinity is what masks hold); null: neither. */
static const char *badness(double v)
{
    return v != v ? "NaN" : v > 0 && isinf(v) ? "infinity" : NULL;
}

/* The worse kind of what is bad and changed: NaN before infinity. */
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

/* A result in place of an operand has the operand's buffer, not its name. */
static int in_place(const Instr *s, int i)
{
    int k = 0;

    while (s->buf[k] != s->buf[i])
        k++;
    return k < i;
}

static char *say(const Exec *x, const Rank *r, const Instr *s, int i,
                 const char *what)
{
    const Buf *b = &r->role->buf[s->buf[i]];
    const char *label = s->label ? s->label : instr_info(s->kind)->name;
    int own = b->file && !in_place(s, i);
    const char *file = own ? b->file : s->file;
    int line = own ? b->line : s->line;

    return strf(x->mem, "first %s in %s%s (rank %lld)", what,
                in_place(s, i) ? strf(x->mem, "a result of %s", label)
                               : strf(x->mem, "'%s' after %s", b->name, label),
                place_text(x->mem, file, line), (long long)r->id);
}

void look_after(Exec *x, Stage *const *s, int n)
{
    const uint8_t *before = x->copy;

    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < s[i]->nrank; k++) {
            const Rank *r = s[i]->rank[k];
            const BoundInstr *b = rank_instr(r);
            x->dev->sync(x->on, b->on);
            for (int j = 0; j < b->instr->nbuf && !x->bad; j++) {
                const Buf *f = looked_at(r->role, b->instr, j);
                if (!f)
                    continue;
                const char *what =
                    new_bad(f, exec_seen(x, r, b->buf[j], f->bytes), before);
                if (what)
                    x->bad = say(x, r, b->instr, j, what);
                before += f->bytes;
            }
        }
}
