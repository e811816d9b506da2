/* map_gpu.c: a loop kernel on a GPU: which thread does what.
 *
 *   a thread an item   the contiguous loop is one of the items': a map, or sums
 *                      that leave it alone (columns). A thread has a setting of
 *                      the other loops and some neighbours along this one.
 *                      Long sums into few columns: the block's threads are
 *                      groups, each of which adds up its share of the rows.
 *   a square a thread  a transpose (transpose_gpu.c)
 *   a team an item     rows. 1 to 32 threads, several teams a block, a whole
 *                      block, or all blocks of a cluster. When a row fits into
 *                      a team's registers all of it is held there, so memory is
 *                      read once; else the passes over the row are loops dealt
 *                      out to the team.
 *
 * No result depends on anything but sizes: the split is fixed. */
#include "loop.h"

enum {
    BLOCKMAP = THREADMAP,
    BLOCKTEAMS = 128,
    MOSTTEAM = 1024,
    FEWITEMS = 2 * GPUBLOCKS,
    SERIAL = 64,     /* elements that a thread adds up alone */
    LARGETEAM = 256, /* of which few hold rows side by side */
    FEWROUNDS = 4,   /* of a loop that groups share */
    UNDERWAY = 4,    /* pieces that a thread waits for at a time */
    BUSY = 1 << 17   /* threads that keep the chip busy */
};

static void set_grid(KernelPrinter *printer, int64_t blocks, int threads)
{
    printer->group->instr.launch =
        (Launch){ .items = blocks, .threads = threads };
}

static void stop_at_end(KernelPrinter *printer, int u, const char *index)
{
    if (printer->kernel->loop[u].map)
        nest_line(printer, "if (%s%d >= %s) return;", index, u,
                  nest_limit(printer, u));
}

/* Ragged loops of an item end where their rows do. */
static void stop_at_ends(KernelPrinter *printer, const int *u, int k)
{
    for (int i = 0; i < k; i++)
        stop_at_end(printer, u[i], "i");
}

static int64_t ceil_of(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

static int power_of_two(int64_t x, int most)
{
    int p = 1;

    while (p < x && p < most)
        p *= 2;
    return p;
}

/* ---- a thread an item ---------------------------------------------------- */

/* The loop whose rounds groups of threads share: the longest that all sums run
 * over, when they are long, threads are few and no sum is inside another; -1:
 * none. */
static int shared_loop(KernelPrinter *printer, Expr *const *red,
                       int64_t threads)
{
    uint64_t all = ~0ull;
    double most = 0;
    int u = -1;

    for (size_t i = 0; i < vec_len(red); i++) {
        double e = form_elements(printer, red[i]->K);
        if (red[i]->deps & ~printer->items)
            return -1;
        all &= red[i]->K;
        most = e > most ? e : most;
    }
    if (most < SERIAL || threads >= BUSY)
        return -1;
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++)
        if (printer->kernel->st[i].loops != printer->items)
            return -1;
    for (int i = 0; i < printer->norder; i++) {
        int x = printer->order[i];
        if ((all & BIT(x)) && !printer->kernel->loop[x].map &&
            (u < 0 || printer->kernel->loop[x].extent->v >
                          printer->kernel->loop[u].extent->v))
            u = x;
    }
    return u;
}

/* Groups of a block that has `team` threads in each: where blocks are few, so
 * many that none has more than a few rounds of the shared loop (512 rows of 128
 * in one block: 44 us by 16 threads alone, 9 by 1024). */
static int groups_of(const KernelPrinter *printer, int64_t blocks)
{
    int64_t rounds = printer->kernel->loop[printer->shared].extent->v;
    int groups = BLOCKMAP / printer->team;

    while (blocks < GPUBLOCKS && groups * printer->team < MOSTTEAM &&
           groups * FEWROUNDS < rounds)
        groups *= 2;
    return groups;
}

/* A block has `team` threads along v, and groups of as many. */
static void grouped_items(KernelPrinter *printer, int v, int w, const int *u,
                          int k)
{
    int64_t per = printer->kernel->loop[v].extent->v / w;
    const char *limit = nest_limit(printer, v), *name = w > 1 ? "v" : "i";

    printer->team = power_of_two(per, 32);
    int64_t tiles = ceil_of(per, printer->team);
    int64_t blocks = form_count(printer, u, 0, k)->v * tiles;
    printer->groups = groups_of(printer, blocks);
    nest_line(printer, "const int group = TID / %d;", printer->team);
    nest_line(printer, "const ix p = blockIdx.x;");
    nest_line(printer, "const ix at = (p %% %ld * %d + TID %% %d) * %d;", tiles,
              printer->team, printer->team, w);
    nest_line(printer, "const bool on = group == 0 && at < %s;", limit);
    nest_line(printer, "const ix %s%d = at < %s ? at : 0;", name, v, limit);
    form_decode(printer, u, k, strf(printer->arena, "p / %ld", tiles));
    stop_at_ends(printer, u, k);
    printer->on = "on";
    set_grid(printer, blocks, printer->team * printer->groups);
}

static void single_items(KernelPrinter *printer, int v, int w, const int *u,
                         int k)
{
    int64_t per = v < 0 ? 1 : printer->kernel->loop[v].extent->v / w;
    int64_t items = form_count(printer, u, 0, k)->v * per;

    nest_line(printer, "const ix p = (ix)blockIdx.x * %d + TID;", BLOCKMAP);
    if (items % BLOCKMAP)
        nest_line(printer, "if (p >= %ld) return;", items);
    if (v >= 0)
        nest_line(printer, "const ix %s%d = p %% %ld * %d;", w > 1 ? "v" : "i",
                  v, per, w);
    form_decode(printer, u, k,
                per == 1 ? "p" : strf(printer->arena, "p / %ld", per));
    stop_at_ends(printer, u, k);
    if (v >= 0)
        stop_at_end(printer, v, w > 1 ? "v" : "i");
    set_grid(printer, ceil_of(items, BLOCKMAP), BLOCKMAP);
}

static void by_thread(KernelPrinter *printer, Expr *const *red)
{
    int v = printer->v >= 0 && (printer->items & BIT(printer->v)) ? printer->v
                                                                  : -1,
        u[MAXLOOP];
    int w = v < 0 ? 1 : wide_width(printer, v);
    int k = form_items(printer,
                       v < 0 ? printer->items : printer->items & ~BIT(v), u);

    printer->own = 1;
    printer->shared =
        v < 0
            ? -1
            : shared_loop(printer, red,
                          (int64_t)form_elements(printer, printer->items) / w);
    if (printer->shared >= 0)
        grouped_items(printer, v, w, u, k);
    else
        single_items(printer, v, w, u, k);
    nest_line(printer, "{");
    Braces s = nest_enter(printer, printer->items);
    if (v >= 0)
        wide_open(printer, v, w, -1);
    wide_stages(printer);
    nest_leave(printer, s);
}

/* ---- a team an item ------------------------------------------------------ */

/* What a team would hold: the loops that results have inside an item, or when
 * there are none those of a sum over v. */
static uint64_t row_loops(KernelPrinter *printer, Expr *const *red)
{
    uint64_t m = 0;

    for (size_t i = 0; i < vec_len(printer->kernel->st); i++)
        m |= printer->kernel->st[i].loops & ~printer->items;
    for (size_t i = 0; !m && i < vec_len(red); i++)
        m |= printer->v >= 0 && (red[i]->K & BIT(printer->v)) ? red[i]->K : 0;
    return m;
}

/* Sums, none of which needs another, and nothing else of the rows. */
static int reads_once(KernelPrinter *printer, Expr *const *red)
{
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++)
        if (printer->kernel->st[i].loops & ~printer->items)
            return 0;
    for (size_t i = 0; i < vec_len(red); i++) {
        Expr **x = nest_reached(printer, red[i]->arg, 1);
        for (size_t k = 0; k < vec_len(x); k++)
            if (x[k]->kind == Xred)
                return 0;
    }
    return 1;
}

/* Threads that hold a row of loop v: up to 32 a power of two, then whole warps.
 * A long row is held in strips that each of the team's threads has a piece of:
 * as many pieces as fill them. 0: it is too long. (Rows of 768 in three pieces
 * by a warp, which meets nobody: a kernel of 4.9 ms a step takes 4.7, the step
 * no less.) */
static int team_of_row(KernelPrinter *printer, int beside, int *strips)
{
    enum { MOSTSTRIPS = 4, MOSTLANES = 32, WARP = 32 };
    const Loop *loop = &printer->kernel->loop[printer->v];
    int w = wide_width(printer, printer->v);
    int64_t pieces = loop->extent->v / w;

    *strips = 1;
    if (pieces <= WARP)
        return power_of_two(pieces, WARP);
    for (int s = 1; s <= MOSTSTRIPS && s * w <= MOSTLANES; s++)
        if ((s == 1 || (beside < 0 && !loop->map)) &&
            pieces % (s * WARP) == 0 && pieces / s <= MOSTTEAM) {
            *strips = s;
            return (int)(pieces / s);
        }
    return pieces <= MOSTTEAM ? (int)ceil_of(pieces, WARP) * WARP : 0;
}

/* May the item's rows be held by a team? All results and sums run over the
 * whole row or none of it; *x: the loop beside v, -1: none. */
static int can_hold(KernelPrinter *printer, Expr *const *red, uint64_t row,
                    int *x)
{
    enum { MOSTBESIDE = 4 };

    *x = -1;
    if (printer->v < 0 || !(row & BIT(printer->v)))
        return 0;
    for (int u = 0; u < printer->kernel->nloop; u++)
        if ((row & BIT(u)) && u != printer->v) {
            if (*x >= 0 || printer->kernel->loop[u].map ||
                printer->kernel->loop[u].extent->v > MOSTBESIDE)
                return 0;
            *x = u;
        }
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        uint64_t m = printer->kernel->st[i].loops & ~printer->items;
        if (m && m != row)
            return 0;
    }
    for (size_t i = 0; i < vec_len(red); i++) {
        uint64_t m = red[i]->K & row;
        if ((m && m != row) ||
            (!(red[i]->deps & row) &&
             form_elements(printer, red[i]->K & ~row) > SERIAL))
            return 0;
    }
    int strips, team = team_of_row(printer, *x, &strips);
    return team && (team <= 32 || !reads_once(printer, red));
}

static int needs_sum(KernelPrinter *printer, Expr *expr)
{
    Expr **x = nest_reached(printer, &expr, 1);

    for (size_t i = 0; i < vec_len(x); i++)
        if (x[i]->kind == Xred)
            return 1;
    return 0;
}

/* Sums over all of the row, and results of it that need none of them: all are
 * made on one way along it, and nothing is held, where a team would be large
 * (three rows of 14336 in and two out, on an H200: 2.0 to 2.85 TB/store). */
static int streams(KernelPrinter *printer, Expr *const *red, uint64_t row)
{
    int results = 0;

    for (size_t i = 0; i < vec_len(red); i++)
        if (red[i]->K != row || needs_sum(printer, red[i]->arg[0]))
            return 0;
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        const Store *store = &printer->kernel->st[i];
        if (!(store->loops & ~printer->items))
            continue;
        if (store->loops != (printer->items | row) ||
            needs_sum(printer, store->val))
            return 0;
        results++;
    }
    return results && vec_len(red);
}

/* Threads for passes over parts of the row. When it is read but once they are
 * fewer, and each has several pieces on the way before it waits for others. So
 * they are for a short row that is read again (OLMoE's norm of all heads of q,
 * then its rotation, 2,048 fp32: 4.95 to 2.28 ms of a step of 178 on an H100 by
 * 128 threads for 512). Of a long row that is read again they are the most a
 * block can have: fewer rows are underway, and more of them still in the L2
 * cache (4096 rows of 151936 bf16, softmax and its gradient, on an H200: 0.90
 * ms by 512 threads, 0.82 by
 * 1024). Two such rows at once, one of which reads while the other computes,
 * are worth more where 32 registers are enough (alone, on a warm chip, 1.05 to
 * 0.89 ms; in a step, whose clock is lower, 1.01 to 0.90 together with
 * exponentials of one instruction, nothing without). What a thread reads again
 * kept in shared memory: 0.88 ms with 208 KiB of one row, 0.85 with 96 of two.
 * On an H100, whose memory is slower, in a step: 1.26 ms with nothing kept,
 * 1.24 read again backwards, 1.10 with 112 KiB of two rows, 1.00 with 224 of
 * one, of which the rest is in L2 (1.05 where a thread has one piece underway).
 * All of a row in a cluster's, blocks of a multiprocessor x threads: 8 blocks
 * 5 x 256 0.95, 4 x 512 1.04, 3 x 512 1.13; 4 blocks 2 x 512 1.06, 2 x 1024
 * 1.18 (each met twice a sum, now once): few threads, of several rows that do
 * not wait for each other, are worth more than many of one. On an H200, which
 * met once, 0.833 by one block and 0.806 so (0.840 with 5 x 128; 0.807 with 8
 * pieces of a thread underway for 4, 0.826 with 4 for 2 in the second pass). */
static int team_of(KernelPrinter *printer, Expr *const *red, int64_t items)
{
    enum { LONGROW = 16, SHORTROW = 64, SHORTPIECES = 4 };
    int few = items < FEWITEMS;
    int once = printer->streams || reads_once(printer, red);
    int64_t work = 1;

    printer->team = few ? MOSTTEAM : MOSTTEAM / 2;
    for (size_t i = 0; i < vec_len(printer->kernel->st) + vec_len(red); i++) {
        size_t k = vec_len(printer->kernel->st);
        uint64_t m = i < k ? printer->kernel->st[i].loops & ~printer->items
                           : red[i - k]->K;
        int64_t w = m ? wide_pieces(printer, m) : 1;
        work = w > work ? w : work;
    }
    if (once && !few && work > 32)
        work = work > 64 * UNDERWAY ? work / UNDERWAY / 2 : 32;
    if (!once && !few && work > SHORTROW && work <= MOSTTEAM / 2)
        work = ceil_of(work, SHORTPIECES);
    if (!once && work >= LONGROW * MOSTTEAM)
        printer->team = MOSTTEAM;
    return power_of_two(work, printer->team);
}

/* All that is read along rows, if it is one operand of at most 4 bytes. */
static const Expr *only_read(KernelPrinter *printer)
{
    const Expr *one = NULL;

    for (size_t i = 0; i < vec_len(printer->kernel->ex); i++) {
        const Expr *expr = printer->kernel->ex[i];
        if (!expr->seen || expr->kind != Xload ||
            !(expr->deps & ~printer->items))
            continue;
        if (dtypes[expr->buf->dt].bytes > 4 ||
            (one && (one->buf != expr->buf || one->lin != expr->lin)))
            return NULL;
        one = expr;
    }
    return one;
}

/* Do all passes run along v, by the same threads, and more than one reads? */
static int passes_alike(KernelPrinter *printer, Expr *const *red, uint64_t row)
{
    int stores = 0;

    for (size_t i = 0; i < vec_len(red); i++)
        if (red[i]->K != row || (red[i]->deps & row))
            return 0;
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        uint64_t m = printer->kernel->st[i].loops & ~printer->items;
        if (m && m != row)
            return 0;
        stores |= m != 0;
    }
    return row == BIT(printer->v) && vec_len(red) && stores;
}

enum { KEPT = 225 << 10 }; /* with what teams meet in: 227 KiB */

/* A row of which each block of a cluster has a part, threads by how many of
 * these a multiprocessor has at a time. */
static void spread_row(KernelPrinter *printer, const Expr *one, int w)
{
    enum { BLOCKS = 8, MOSTBLOCKS = 5 };
    int64_t n = printer->kernel->loop[printer->v].extent->v;
    int64_t fit = KEPT * BLOCKS / (n * dtypes[one->buf->dt].bytes);
    int threads = fit > 3 ? 256 : fit > 1 ? 512 : 1024;

    printer->team = BLOCKS * threads;
    printer->blocks = printer->group->cluster = BLOCKS;
    printer->keep = ceil_of(n, (int64_t)printer->team * w) * threads * w;
    printer->group->together = fit < MOSTBLOCKS ? (int)fit : MOSTBLOCKS;
}

/* What several passes read of rows stays in shared memory: two rows at a time,
 * or one in that of a cluster. */
static void keep_rows(KernelPrinter *printer, const Expr *one)
{
    enum { MOST = 6 * KEPT };
    int w = wide_width(printer, printer->v);
    int64_t n = printer->kernel->loop[printer->v].extent->v;
    int64_t size = dtypes[one->buf->dt].bytes;

    if (w * size < 4 || one->arg[0] || n * size > MOST)
        return;
    printer->kept = one;
    printer->keep = n;
    if (2 * n * size > KEPT)
        spread_row(printer, one, w);
    nest_line(printer, "extern __shared__ __align__(16) %s kept[];",
              dtypes[one->buf->dt].store);
}

static void hold_row(KernelPrinter *printer, uint64_t row, int x, int strips)
{
    int v = printer->v, w = wide_width(printer, v);
    const char *name =
        w * strips > 1 || (x >= 0 && printer->kernel->loop[x].extent->v > 1)
            ? "v"
            : "i";

    if (printer->kernel->loop[v].map ||
        printer->kernel->loop[v].extent->v !=
            (int64_t)printer->team * strips * w) {
        nest_line(printer, "const bool on = lane * %d < %s;", w,
                  nest_limit(printer, v));
        nest_line(printer, "const ix %s%d = on ? lane * %d : 0;", name, v, w);
        printer->on = "on";
    } else {
        nest_line(printer, "const ix %s%d = lane * %d;", name, v, w);
    }
    printer->row = row;
    printer->bound |= row;
    wide_open(printer, v, w, x);
    if (strips > 1) {
        printer->beside = strips;
        printer->stride = printer->team * w;
    }
}

static void by_team(KernelPrinter *printer, Expr *const *red)
{
    int u[MAXLOOP], k = form_items(printer, printer->items, u), x, strips = 1;
    int64_t items = form_count(printer, u, 0, k)->v;
    uint64_t row = row_loops(printer, red);
    int held = can_hold(printer, red, row, &x);

    if (held && team_of_row(printer, x, &strips) > LARGETEAM &&
        streams(printer, red, row))
        held = 0, strips = 1, printer->streams = 1;
    printer->team =
        held ? team_of_row(printer, x, &strips) : team_of(printer, red, items);
    int threads = printer->team > 32 ? printer->team : BLOCKTEAMS,
        per = threads / printer->team;
    const Expr *one = !held && threads == MOSTTEAM ? only_read(printer) : NULL;
    if (one)
        printer->group->together = 2;
    if (one && passes_alike(printer, red, row))
        keep_rows(printer, one);
    if (printer->blocks > 1) {
        threads = printer->team / printer->blocks;
        nest_line(printer, "cluster_arrive();");
        nest_line(printer, "const int lane = blockIdx.x %% %d * %d + TID;",
                  printer->blocks, threads);
        nest_line(printer, "const ix p = blockIdx.x / %d;", printer->blocks);
    } else {
        nest_line(printer, "const int lane = TID %% %d;", printer->team);
        nest_line(printer, "const ix p = (ix)blockIdx.x * %d + TID / %d;", per,
                  printer->team);
    }
    if (items % per)
        nest_line(printer, "if (p >= %ld) return;", items);
    form_decode(printer, u, k, "p");
    stop_at_ends(printer, u, k);
    set_grid(printer, ceil_of(items, per) * printer->blocks, threads);
    if (printer->kept)
        printer->group->instr.launch.shared =
            printer->keep * dtypes[one->buf->dt].bytes;
    nest_line(printer, "{");
    Braces s = nest_enter(printer, printer->items);
    if (held)
        hold_row(printer, row, x, strips);
    wide_stages(printer);
    nest_leave(printer, s);
}

void threads_form(KernelPrinter *printer, Expr *const *red, int whole)
{
    printer->shared = -1;
    printer->width = printer->beside = printer->blocks = 1;
    if (printer->kernel->tile)
        tile_form(printer);
    else if (whole && transpose_form(printer))
        return;
    else if (whole || printer->kernel->form == STAGEalone)
        by_thread(printer, red);
    else
        by_team(printer, red);
}
