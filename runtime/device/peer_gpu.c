/* peer_gpu.c: exchanges of rows between GPUs that reach each other's memory
 * (codegen/exchange). The arenas of all ranks of this machine are mapped once;
 * behind each lie words by which the blocks of a group meet, a run of them for
 * each set of ranks that exchanges rows. */
#include "gpu.h"

enum { MAXBLOCKS = 64, MEETINGS = 2, WORD = 8, ALIGN = 256 };

struct PeerCall {
    void *fn, **param;
    void *at[]; /* arenas of the group */
};

/* ---- arenas and words ---------------------------------------------------- */

static int64_t words_of(const Gpu *x, uint32_t atoms)
{
    return MAXBLOCKS * (MEETINGS * mesh_extent(x->plan->mesh, atoms) + 1) *
           WORD;
}

/* Where the words of a set of ranks begin behind the arenas' bytes, the same on
 * all ranks: sets follow each other as the plan names them. None: all words. */
static int64_t words_at(const Gpu *x, uint32_t atoms)
{
    const uint32_t *set = plan_groups(x->mem, x->plan, moves_rows);
    int64_t at = 0;

    for (size_t i = 0; i < vec_len(set) && set[i] != atoms; i++)
        at += words_of(x, set[i]);
    return at;
}

/* A word of the host's memory that kernels which wait look at. */
static void open_stop(Gpu *x)
{
    enum { MAPPED = 2 };
    void *p = NULL;

    gpu_ok(dl.cuMemHostAlloc(&p, sizeof *x->stop, MAPPED), "a mapped word");
    gpu_ok(dl.cuMemHostGetDevicePointer_v2(&x->stopat, p, 0), "a mapped word");
    x->stop = p;
    *x->stop = 0;
}

void peer_abort(Gpu *x)
{
    if (x->stop)
        *x->stop = 1;
}

void *gpu_shared(Gpu *x, int64_t bytes, const char *what)
{
    int64_t words = words_at(x, 0);

    x->words = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    x->peer = gpu_peers(x, x->words + words, what);
    gpu_ok(dl.cuMemsetD8Async((uint64_t)(uintptr_t)x->peer[x->rank] +
                                  (uint64_t)x->words,
                              0, (size_t)words, x->stream[STREAMcompute]),
           what);
    gpu_ok(dl.cuStreamSynchronize(x->stream[STREAMcompute]), what);
    open_stop(x);
    comm_barrier(x->comm);
    return x->peer[x->rank];
}

/* ---- calls --------------------------------------------------------------- */

PeerCall *peer_bind(Gpu *x, const BoundInstr *b)
{
    enum { OPERANDS = 3, OWN = OPERANDS, WORDS, ME, STOP, BEFORE };
    const Instr *s = b->instr;
    size_t n = (size_t)b->group;
    PeerCall *c = alloc(x->mem, sizeof *c + n * sizeof *c->at);
    int64_t *number = alloc(x->mem, 2 * sizeof *number);

    if (s->rows.kernel < 0)
        err(&(Loc){ s->file, s->line, NULL }, "%s has no kernel",
            instr_label(s));
    c->fn = x->fn[s->rows.kernel];
    gpu_allow(c->fn, s->rows.shared, instr_label(s));
    c->param = alloc(x->mem, (BEFORE + n) * sizeof *c->param);
    for (int i = 0; i < OPERANDS; i++)
        c->param[i] = &b->buf[i];
    number[0] = x->words + words_at(x, s->atoms);
    number[1] = b->me;
    c->param[OWN] = &x->peer[x->rank];
    c->param[WORDS] = &number[0];
    c->param[ME] = &number[1];
    c->param[STOP] = &x->stopat;
    for (size_t j = 0; j < n; j++) {
        c->at[j] = x->peer[b->ranks[j]];
        c->param[BEFORE + j] = &c->at[j];
    }
    return c;
}

void peer_run(const PeerCall *c, const RowsArgs *v, void *stream)
{
    gpu_ok(dl.cuLaunchKernel(c->fn, (unsigned)v->blocks, 1, 1,
                             (unsigned)v->threads, 1, 1, (unsigned)v->shared,
                             stream, c->param, NULL),
           "an exchange of rows");
}
