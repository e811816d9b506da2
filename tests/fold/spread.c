/* spread.c: see spread.h. Phases stay apart: the first instruction of each is
 * behind all of the phase before, since the last of that is. */
#include <string.h>

#include "spread.h"
#include "../../ir/graph/graph.h"

typedef struct Spread {
    Arena *arena;
    const Role *r;
    Program *g;
    uint64_t seed;
    int events;
} Spread;

/* Buffers of two frames, or of one and of none, never share a byte. */
static int meet(const Buf *a, const Buf *b)
{
    return a->frame == b->frame && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static int ordered_class(const Instr *s)
{
    InstrClass k = instr_info(s->kind)->cls;
    return k == CLASSproduct || k == CLASScollective || k == CLASStransfer;
}

static int depend(const Role *r, const Instr *a, const Instr *b)
{
    if (ordered_class(a) &&
        instr_info(a->kind)->cls == instr_info(b->kind)->cls)
        return 1;
    for (int i = 0; i < a->nbuf; i++)
        for (int k = 0; k < b->nbuf; k++)
            if (a->buf[i] >= 0 && b->buf[k] >= 0 &&
                (instr_use(a, i) != 'r' || instr_use(b, k) != 'r') &&
                meet(&r->buf[a->buf[i]], &r->buf[b->buf[k]]))
                return 1;
    return 0;
}

static void wait_for(Spread *x, Instr *s, Instr *before)
{
    if (!before->issue.record)
        before->issue.record = ++x->events;
    vec_push(x->arena, s->issue.wait, before->issue.record);
    s->issue.nwait++;
}

static void spread_instr(Spread *x, const Phase *f, int k)
{
    Instr *s = &x->g->instr[k];
    int end = k == f->first + f->n - 1, first = k == f->first;
    uint64_t h = mix64(x->seed, (uint64_t)k);
    int seen[NSTREAM] = { 0 }, alone = 1;

    if (!end && !first && h & 1)
        s->issue.stream = (StreamKind)(1 + (h >> 1) % (NSTREAM - 1));
    s->issue.priority = s->kind == Ikernel && s->issue.stream;
    for (int j = k - 1; j >= f->first; j--) {
        Instr *o = &x->g->instr[j];
        StreamKind on = o->issue.stream;
        alone &= on != s->issue.stream;
        if (on == s->issue.stream || seen[on] || (!end && !depend(x->r, o, s)))
            continue;
        seen[on] = 1;
        wait_for(x, s, o);
    }
    if (alone && !s->issue.nwait && !first)
        wait_for(x, s, &x->g->instr[f->first]);
}

void spread_streams(Arena *a, Plan *p, uint64_t seed)
{
    for (int r = 0; r < p->nrole; r++)
        for (int g = 0; g < p->role[r].nprog; g++) {
            Spread x = { a, &p->role[r], &p->role[r].prog[g], seed, 0 };
            for (int f = 0; f < x.g->nphase; f++)
                for (int k = 0; k < x.g->phase[f].n; k++)
                    spread_instr(&x, &x.g->phase[f], x.g->phase[f].first + k);
        }
}

/* ---- a legal order ------------------------------------------------------- */

typedef struct Shuffle {
    const Instr *instr;      /* as they stood, n of them */
    int n, *behind[NSTREAM]; /* vecs: a stream's instructions */
    size_t at[NSTREAM];
    char *done;
} Shuffle;

/* Are the events there that the next of this stream waits for? */
static int may_go(const Shuffle *x, int stream)
{
    if (x->at[stream] == vec_len(x->behind[stream]))
        return 0;
    int i = x->behind[stream][x->at[stream]];
    const Issue *l = &x->instr[i].issue;
    for (int k = 0; k < l->nwait; k++)
        for (int j = i - 1; j >= 0; j--)
            if (x->instr[j].issue.record == l->wait[k] && !x->done[j])
                return 0;
    return 1;
}

static int shuffle_piece(Arena *a, Instr *s, int n, uint64_t *seed)
{
    Shuffle x = { .n = n };
    Instr *was = alloc(a, sizeof *was * (size_t)(n + 1));
    int moved = 0;

    memcpy(was, s, sizeof *was * (size_t)n);
    x.instr = was;
    x.done = alloc(a, (size_t)n + 1);
    for (int i = 0; i < n; i++)
        vec_push(a, x.behind[s[i].issue.stream], i);
    for (int k = 0; k < n; k++) {
        int on = (int)(mix64(++*seed, 1) % NSTREAM);
        while (!may_go(&x, on))
            on = (on + 1) % NSTREAM;
        int i = x.behind[on][x.at[on]++];
        x.done[i] = 1;
        s[k] = was[i];
        moved += i != k;
    }
    return moved;
}

int shuffle_streams(Arena *a, Plan *p, uint64_t seed)
{
    int moved = 0;

    for (int r = 0; r < p->nrole; r++)
        for (int g = 0; g < p->role[r].nprog; g++) {
            Program *q = &p->role[r].prog[g];
            for (int f = 0; f < q->nphase; f++) {
                const Phase *at = &q->phase[f];
                int once =
                    at->reg == REGbody && at->repeat == 1 && f + 1 < q->nphase;
                moved += shuffle_piece(a, &q->instr[at->first],
                                       at->n + (once ? at[1].n : 0), &seed);
                f += once;
            }
        }
    return moved;
}
