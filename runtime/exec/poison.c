/* poison.c: for tests, on the host. With PLEAT_POISON=1 a value is no number
 * before the instruction that makes it: real ones are NaN, integers far out of
 * range. Whatever that leaves unwritten, as the padding of ragged rows, then
 * shows in all that reads it. Arenas and work space begin so too. */
#include <string.h>

#include "exec.h"

enum { NOTNUMBER = 0xff, HUGE_INDEX = 0x7f };

static int overlap(const uint8_t *a, int64_t n, const uint8_t *b, int64_t m)
{
    return a < b + m && b < a + n;
}

static int64_t buf_bytes(const Rank *r, const Instr *s, int i)
{
    return r->role->buf[s->buf[i]].bytes;
}

/* Does the instruction read some of what operand i holds? Parts that are joined
 * lie in the whole, a result may have an operand's place. */
static int is_read(const Rank *r, const BoundInstr *b, int i)
{
    const Instr *s = b->instr;

    for (int k = 0; k < s->nbuf; k++)
        if (s->buf[k] >= 0 && s->flow[k].read &&
            overlap(b->buf[i], buf_bytes(r, s, i), b->buf[k],
                    buf_bytes(r, s, k)))
            return 1;
    return 0;
}

void poison_instr(const Rank *r, const BoundInstr *b)
{
    const Instr *s = b->instr;

    for (int i = 0; i < s->nbuf && s->flow; i++) {
        const Buf *t = s->buf[i] < 0 ? NULL : &r->role->buf[s->buf[i]];
        if (!t || t->stack || is_read(r, b, i)) /* whose rows lie elsewhere */
            continue;
        /* a value is as large as its buffer (ir/value_types.c) */
        int real = t->cls == Bscratch || dtypes[t->dt].kind == 'f';
        if (t->cls == Bscratch || s->flow[i].make)
            memset(b->buf[i], real ? NOTNUMBER : HUGE_INDEX, (size_t)t->bytes);
    }
}
