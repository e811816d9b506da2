/* poison.c: for tests on the host. PLEAT_POISON=1 fills each result before its
 * instruction runs: reals with NaN, integers with values far out of range.
 * Elements that the instruction does not write, such as the padding of ragged
 * rows, then show in every reader. Arenas and workspaces start poisoned too. */
#include "exec.h"

enum { NOTNUMBER = 0xff, HUGE_INDEX = 0x7f };

static int overlap(const uint8_t *a, int64_t n, const uint8_t *b, int64_t m)
{
    return a < b + m && b < a + n;
}

static int64_t buf_bytes(const Rank *rank, const Instr *instr, int i)
{
    return rank->role->buf[instr->buf[i]].bytes;
}

/* Does the instruction read memory of operand i? Parts of a concatenation lie
 * in the whole, and a result may share an operand's memory. An accumulating
 * instruction reads nothing in the run in which it stores. */
static int is_read(const Rank *rank, const BoundInstr *bound, int i)
{
    const Instr *s = bound->instr;

    for (int k = 0; k < s->nbuf; k++)
        if (s->buf[k] >= 0 && s->flow[k].read &&
            (bound->adds || !stores_first(s, k)) &&
            overlap(bound->buf[i], buf_bytes(rank, s, i), bound->buf[k],
                    buf_bytes(rank, s, k)))
            return 1;
    return 0;
}

void poison_instr(const Rank *rank, const BoundInstr *bound)
{
    const Instr *instr = bound->instr;

    for (int i = 0; i < instr->nbuf && instr->flow; i++) {
        const Buf *buf =
            instr->buf[i] < 0 ? NULL : &rank->role->buf[instr->buf[i]];
        if (!buf || buf->stack ||
            is_read(rank, bound, i)) /* its rows are in another buffer */
            continue;
        /* a value is as large as its buffer (ir/verify/value_types.c) */
        int real = buf->cls == Bscratch || dtypes[buf->dt].kind == 'f';
        if (buf->cls == Bscratch || instr->flow[i].make)
            memset(bound->buf[i], real ? NOTNUMBER : HUGE_INDEX,
                   (size_t)buf->bytes);
    }
}
