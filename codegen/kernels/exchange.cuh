/* exchange.cuh: exchange of expert rows between GPUs through peer-mapped memory
 * (instructions.def: sendrows, returnrows).
 *
 * BULK (rows of at least LEASTPART pieces): each warp has a ring of STAGES buffers in
 * shared memory. sendrows: a bulk copy (TMA) loads a part of a token's row once;
 * bulk stores write it to every rank that has an expert of the token, this one
 * included. returnrows: bulk copies load the parts of a token from all ranks, and
 * threads sum them; stores to the token's rank would need a buffer there. Stores
 * reach a higher NVLink bandwidth than loads: decisions/exchange-copies.md.
 *
 * Else (short rows): teams of TEAM threads move PIECE elements at a time, EACH of
 * them in flight; latency dominates.
 *
 * Barriers: block b of every GPU synchronizes with block b of the others before the
 * first remote access and after the last one. Each writes the number of the barrier
 * to a word in the memory of every peer and waits for their words; the second
 * barrier also carries the number of rows written. Kernels of a stream run in
 * order, so all earlier work on a buffer has finished when its blocks start. A
 * block waits only for blocks of its own number, so blocks may be scheduled in any
 * order that all GPUs share. `stop` ends the waits of a failed run; the results are
 * then invalid.
 *
 * Words behind each arena, from `words` on:
 *     [block][BEFORE AFTER][rank that writes it], [block] barriers passed
 *
 * Constants of the text: T TC (element type, computation type), SENDS, RANKS,
 * TOKENS, PAIR (rows from one rank to another), ROWPIECES (pieces of a row), PIECE,
 * TEAM, EACH, THREADS; with BULK also PART (pieces of a part; it divides
 * ROWPIECES), STAGES, UNREAD (groups of bulk stores that may still read shared
 * memory). */
enum { BEFORE, AFTER, MEETINGS, MAXBLOCKS = 64 };
enum { WARP = 32, WARPS = THREADS / WARP };

struct alignas(sizeof(T) * PIECE) Piece { T x[PIECE]; };

FN void write_word(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v)
                 : "memory");
}

FN uint64_t read_word(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                 : "=l"(v)
                 : "l"(p)
                 : "memory");
    return v;
}

struct Group {
    char *own, *at[RANKS];            /* arenas of this rank and of all */
    int64_t words;
    int me;
    const volatile uint32_t *stop; /* set by the host */
    uint64_t times;
};

struct Counts { /* rows to and from each rank, of one block */
    int failed, sent[RANKS], came[RANKS];
};

FN uint64_t *word_of(const Group &g, char *arena, int meeting, int from)
{
    const int b = (int)blockIdx.x * MEETINGS + meeting;
    return (uint64_t *)(arena + g.words) + b * RANKS + from;
}

FN uint64_t *times_of(const Group &g)
{
    return (uint64_t *)(g.own + g.words) + MAXBLOCKS * MEETINGS * RANKS +
           blockIdx.x;
}

/* Address in `rank`'s arena that corresponds to p in this rank's arena. */
FN char *there(const Group &g, const void *p, int rank)
{
    return g.at[rank] + ((const char *)p - g.own);
}

/* Waits for the word of rank r at this barrier and returns it; 0: the run
 * failed. */
FN uint64_t wait_word(const Group &g, int meeting, int r)
{
    enum { OFTEN = 4096 };
    const uint64_t *w = word_of(g, g.own, meeting, r);

    for (unsigned n = 1;; n++) {
        const uint64_t v = read_word(w);
        if (v >> 32 == g.times)
            return v;
        if (n % OFTEN == 0 && *g.stop)
            return 0;
    }
}

/* Barrier with the same block of all ranks. Returns 0 if the run failed. */
FN int meet(const Group &g, int meeting, Counts &c)
{
    for (int r = TID; r < RANKS; r += THREADS) {
        const int rows = meeting == AFTER ? c.sent[r] : 0;
        write_word(word_of(g, g.at[r], meeting, g.me),
                   g.times << 32 | (uint64_t)(unsigned)rows);
        const uint64_t v = wait_word(g, meeting, r);
        c.came[r] = (int)(uint32_t)v;
        if (!v)
            c.failed = 1;
    }
    __syncthreads();
    return !c.failed;
}

FN void leave(const Group &g)
{
    if (TID == 0)
        *times_of(g) = g.times;
}

/* Parts of a routing map (ir/plan/row_map.c): the token of each row, and the rows
 * of each token. */
FN const int32_t *pairs_at(const int32_t *map)
{
    return map + RANKS + 1;
}

FN const int32_t *rows_at(const int32_t *map)
{
    return map + RANKS + 1 + RANKS * PAIR;
}

FN int lane()
{
    return TID % WARP;
}

/* Number of rows in a block of the map: rows without a token are at its end. Search
 * by a whole warp. */
FN int rows_in(const int32_t *pair)
{
    int from = 0, to = PAIR;

    while (from < to) {
        const int step = (to - from + WARP - 1) / WARP;
        const int at = from + (lane() + 1) * step - 1;
        const int there = at < to && pair[at] >= 0;
        from += __popc(__ballot_sync(~0u, there)) * step;
        to = min(to, from + step - 1);
    }
    return from;
}

/* Adds a piece to fp32 sums; rounds sums to a piece. bf16 is converted in pairs,
 * one 32-bit word each: few multiprocessors run this kernel, so instructions
 * count. */
enum { TWOS = sizeof(T) == 2 && PIECE % 2 == 0 };

FN void add_piece(TC (&sum)[PIECE], const Piece &v)
{
    const uint32_t *const word = (const uint32_t *)&v;
#pragma unroll
    for (int l = 0; l < PIECE; l += 1 + TWOS) {
        sum[l] += TWOS ? (TC)from_bf16(word[l / 2]) : up(v.x[l]);
        if (TWOS)
            sum[l + TWOS] += (TC)__uint_as_float(word[l / 2] & 0xffff0000u);
    }
}

FN Piece rounded(const TC (&sum)[PIECE])
{
    Piece all;
    uint32_t *const word = (uint32_t *)&all;
#pragma unroll
    for (int l = 0; l < PIECE; l += 1 + TWOS)
        if (TWOS)
            word[l / 2] = two_bf16((float)sum[l], (float)sum[l + TWOS]);
        else
            put_to(&all.x[l], sum[l]);
    return all;
}

/* Counts the rows to each rank. The last warps do this while the first one waits at
 * the barrier. */
FN void count_rows(const int32_t *pair, Counts &c)
{
    for (int r = WARPS - 1 - TID / WARP; r < RANKS; r += WARPS) {
        const int n = rows_in(pair + r * PAIR);
        if (lane() == 0)
            c.sent[r] = n;
    }
}

/* A team of TEAM threads has one row at a time. All offsets in the row follow from
 * the thread, so loads do not depend on each other. */
#define EACH_PIECE _Pragma("unroll") for (int k = 0; k < EACH; k++)
#define EACH_RANK _Pragma("unroll") for (int r = 0; r < RANKS; r++)
#define CHUNKS \
    for (int c = TID % TEAM; c < ROWPIECES; c += TEAM * EACH)

FN int first_row()
{
    return (int)(blockIdx.x * (THREADS / TEAM)) + TID / TEAM;
}

FN int teams()
{
    return (int)gridDim.x * (THREADS / TEAM);
}

FN void clear_rows(Piece *block, int from)
{
    const Piece zero = {};
    for (int i = from + first_row(); i < PAIR; i += teams())
        CHUNKS EACH_PIECE block[(int64_t)i * ROWPIECES + c + k * TEAM] = zero;
}

#if BULK
/* ---- rings ------------------------------------------------------------------- */

enum {
    PARTS = ROWPIECES / PART,
    UNITS = TOKENS * PARTS, /* parts of all tokens */
    PARTBYTES = PART * PIECE * (int)sizeof(T),
    PLACE = PARTBYTES * (SENDS ? 1 : RANKS) /* bytes of a buffer */
};

/* Ring of a warp: it moves the units first + k * step; unit k uses buffer k %
 * STAGES. */
struct Ring {
    char *place;
    uint32_t bar;
    int first, step, many;
};

FN Ring make_ring(char *places)
{
    __shared__ uint64_t bars[WARPS * STAGES];
    const int w = TID / WARP;
    Ring o = { places + w * STAGES * PLACE, shared_at(bars + w * STAGES),
               w * (int)gridDim.x + (int)blockIdx.x, WARPS * (int)gridDim.x };

    o.many = UNITS > o.first ? (UNITS - o.first + o.step - 1) / o.step : 0;
    if (TID < WARPS * STAGES)
        bar_init(shared_at(bars + TID), 1);
    bars_ready();
    return o;
}

FN uint32_t bar_of(const Ring &o, int k)
{
    return o.bar + k % STAGES * 8;
}

FN char *place_of(const Ring &o, int k)
{
    return o.place + k % STAGES * PLACE;
}

FN int unit_of(const Ring &o, int k)
{
    return o.first + k * o.step;
}

/* First piece of unit k in an array of tokens. */
FN int64_t own_piece(const Ring &o, int k)
{
    const int u = unit_of(o, k);
    return (int64_t)(u / PARTS) * ROWPIECES + u % PARTS * PART;
}

/* First piece of this rank's rows in the blocks of `rank`'s arena. */
FN Piece *block_of(const Group &g, const void *blocks, int rank)
{
    return (Piece *)there(g, blocks, rank) + (int64_t)g.me * PAIR * ROWPIECES;
}

/* Row of unit k's token on rank r, for lane r; < 0: none. */
FN int row_of(const Ring &o, const int32_t *row, int k)
{
    return k < o.many && lane() < RANKS
               ? row[unit_of(o, k) / PARTS * RANKS + lane()] - lane() * PAIR
               : -1;
}

FN int64_t far_piece(const Ring &o, int row, int k)
{
    return (int64_t)row * ROWPIECES + unit_of(o, k) % PARTS * PART;
}

#if SENDS
FN void fetch(const Ring &o, const Piece *x, int k)
{
    if (lane() || k >= o.many)
        return;
    bar_expect(bar_of(o, k), PARTBYTES);
    bulk_load(shared_at(place_of(o, k)), x + own_piece(o, k), PARTBYTES,
              bar_of(o, k));
}

/* Starts the loads of this rank's rows; they need no barrier. */
FN void start(const Ring &o, const Piece *x)
{
    for (int k = 0; k < STAGES - UNREAD; k++)
        fetch(o, x, k);
}

/* Waits for the loads that start() issued, after a failed barrier. */
FN void drop(const Ring &o)
{
    for (int k = 0; k < STAGES - UNREAD && k < o.many; k++)
        bar_wait(bar_of(o, k), 0);
}

/* Lane r stores to rank r. A buffer is free once all but the last UNREAD store
 * groups have read theirs. */
FN void move(const Group &g, const Ring &o, const Piece *x, Piece *to,
             const int32_t *map)
{
    const int32_t *const row = rows_at(map);
    Piece *const block = lane() < RANKS ? block_of(g, to, lane()) : to;
    int now = row_of(o, row, 0), next = row_of(o, row, 1);

    asm volatile("fence.proxy.async.global;" ::: "memory");
    for (int k = 0; k < o.many; k++) {
        const int later = row_of(o, row, k + 2);
        bar_wait(bar_of(o, k), k / STAGES & 1);
        if (now >= 0)
            bulk_store(block + far_piece(o, now, k), shared_at(place_of(o, k)),
                       PARTBYTES);
        bulk_commit();
        stores_read<UNREAD>();
        __syncwarp();
        fetch(o, x, k + STAGES - UNREAD);
        now = next;
        next = later;
    }
    stores_done();
}
#else
FN void start(const Ring &, const Piece *)
{
}

FN void drop(const Ring &)
{
}

/* Loads unit k's part from every rank that has one; lane k % STAGES keeps the mask
 * of these ranks. */
FN void fetch(const Ring &o, const Piece *block, int row, int k, unsigned &held)
{
    const unsigned mask = __ballot_sync(~0u, row >= 0);

    if (k >= o.many)
        return;
    if (lane() == k % STAGES)
        held = mask;
    if (lane() == 0)
        bar_expect(bar_of(o, k), __popc(mask) * PARTBYTES);
    __syncwarp();
    if (row >= 0)
        bulk_load(shared_at(place_of(o, k)) + lane() * PARTBYTES,
                  block + far_piece(o, row, k), PARTBYTES, bar_of(o, k));
}

/* Sums the parts of the ranks in `mask`, in order of ranks. They are consecutive in
 * the buffer. */
FN void sum_part(const char *place, unsigned mask, Piece *to)
{
#pragma unroll 4
    for (int c = lane(); c < PART; c += WARP) {
        Piece v[RANKS];
        EACH_RANK v[r] = ((const Piece *)(place + r * PARTBYTES))[c];
        TC sum[PIECE] = {};
        EACH_RANK if (mask >> r & 1) add_piece(sum, v[r]);
        to[c] = rounded(sum);
    }
}

FN void move(const Group &g, const Ring &o, const Piece *x, Piece *to,
             const int32_t *map)
{
    const int32_t *const row = rows_at(map);
    const Piece *const block = lane() < RANKS ? block_of(g, x, lane()) : x;
    unsigned held = 0;

    asm volatile("fence.proxy.async.global;" ::: "memory");
    for (int k = 0; k < STAGES; k++)
        fetch(o, block, row_of(o, row, k), k, held);
    int next = row_of(o, row, STAGES);
    for (int k = 0; k < o.many; k++) {
        const int later = row_of(o, row, k + STAGES + 1);
        bar_wait(bar_of(o, k), k / STAGES & 1);
        sum_part(place_of(o, k), __shfl_sync(~0u, held, k % STAGES),
                 to + own_piece(o, k));
        __syncwarp();
        fetch(o, block, next, k + STAGES, held);
        next = later;
    }
}
#endif
#else
/* ---- teams ------------------------------------------------------------------- */

struct Ring { };

FN Ring make_ring(char *)
{
    return Ring();
}

FN void start(const Ring &, const Piece *)
{
}

FN void drop(const Ring &)
{
}

struct Slots {
    int row[RANKS]; /* row of a token in each rank's block; < 0: none */
};

FN Slots slots_of(const int32_t *row, int token)
{
    Slots s;
    EACH_RANK s.row[r] =
        token < TOKENS ? row[token * RANKS + r] - r * PAIR : -1;
    return s;
}

FN Piece *row_at(const Group &g, const void *blocks, int rank, int row)
{
    return (Piece *)there(g, blocks, rank) +
           ((int64_t)g.me * PAIR + row) * ROWPIECES;
}

#if SENDS
FN void move_row(const Group &g, const Slots &s, const Piece *x, Piece *to,
                 int token)
{
    x += (int64_t)token * ROWPIECES;
    CHUNKS
    {
        Piece v[EACH];
        EACH_PIECE v[k] = x[c + k * TEAM];
        EACH_RANK
        {
            Piece *const at = row_at(g, to, r, s.row[r]);
            if (s.row[r] >= 0)
                EACH_PIECE at[c + k * TEAM] = v[k];
        }
    }
}
#else
FN Piece sum_of(const Piece (&v)[RANKS][EACH], int k)
{
    TC sum[PIECE] = {};
    EACH_RANK add_piece(sum, v[r][k]);
    return rounded(sum);
}

/* Issues all remote loads before the first addition, since their latency is
 * long. */
FN void move_row(const Group &g, const Slots &s, const Piece *x, Piece *to,
                 int token)
{
    to += (int64_t)token * ROWPIECES;
    CHUNKS
    {
        Piece v[RANKS][EACH] = {};
        EACH_RANK
        {
            const Piece *const from = row_at(g, x, r, s.row[r]);
            if (s.row[r] >= 0)
                EACH_PIECE v[r][k] = from[c + k * TEAM];
        }
        EACH_PIECE to[c + k * TEAM] = sum_of(v, k);
    }
}
#endif

FN void move(const Group &g, const Ring &, const Piece *x, Piece *to,
             const int32_t *map)
{
    const int32_t *const row = rows_at(map);
    Slots now = slots_of(row, first_row());

    for (int t = first_row(); t < TOKENS; t += teams()) {
        const Slots next = slots_of(row, t + teams());
        move_row(g, now, x, to, t);
        now = next;
    }
}
#endif
/* ---- the exchange ------------------------------------------------------------ */

FN void exchange(Group &g, const Piece *x, Piece *to, const int32_t *map)
{
    extern __shared__ __align__(128) char places[];
    __shared__ Counts c;
    Ring o = make_ring(places);

    if (TID == 0)
        c.failed = 0;
    for (int r = TID; r < RANKS; r += THREADS)
        c.sent[r] = 0;
    __syncthreads();
    start(o, x);
    if (SENDS)
        count_rows(pairs_at(map), c);
    if (!meet(g, BEFORE, c)) {
        drop(o);
        return;
    }
    move(g, o, x, to, map);
    __syncthreads();
    if (!meet(g, AFTER, c))
        return;
    for (int r = 0; SENDS && r < RANKS; r++)
        clear_rows(to + (int64_t)r * PAIR * ROWPIECES, c.came[r]);
    leave(g);
}
