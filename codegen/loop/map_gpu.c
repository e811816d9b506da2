/* map_gpu.c: maps a loop kernel to the threads of a GPU.
 *
 *   a thread an item   the contiguous loop is one of the items': elementwise
 *                      kernels and column sums. A thread has one iteration of
 *                      the other loops and some adjacent elements of this one.
 *                      Long sums into few columns: the threads of a block form
 *                      groups, and each group sums a share of the rows.
 *   a square a thread  a transpose (transpose_gpu.c)
 *   a team an item     rows. A team is 1 to 32 threads (several teams a block),
 *                      a block, or all blocks of a cluster. A row that fits
 *                      into the team's registers is held there, so memory is
 *                      read once; else the team divides each pass over the
 *                      row.
 *
 * The mapping depends on sizes only, so results do not depend on the GPU. */
#include "loop.h"

enum {
    BLOCKMAP = THREADMAP,
    BLOCKTEAMS = 128,
    MOSTTEAM = 1024,
    FEWITEMS = 2 * GPUBLOCKS,
    SERIAL = 64,     /* longest sum of a single thread */
    LARGETEAM = 256, /* larger teams stream rows if possible */
    FEWROUNDS = 4,   /* least iterations per group of a shared loop */
    UNDERWAY = 4,    /* loads of a thread in flight */
    BUSY = 1 << 17   /* threads that saturate the GPU */
};

static void set_blocks(KernelPrinter *printer, int64_t blocks, int threads)
{
    printer->group->instr.launch =
        (Launch){ .items = blocks, .threads = threads };
}

static void stop_at_end(KernelPrinter *printer, int u, const char *index)
{
    if (printer->kernel->loop[u].map)
        text_line(printer, "if (%s%d >= %s) return;", index, u,
                  loop_end(printer, u));
}

/* Threads beyond the end of a ragged loop of the item return. */
static void stop_at_ends(KernelPrinter *printer, const int *u, int k)
{
    for (int i = 0; i < k; i++)
        stop_at_end(printer, u[i], "i");
}

static int power_of_two(int64_t x, int most)
{
    int p = 1;

    while (p < x && p < most)
        p *= 2;
    return p;
}

/* ---- a thread an item ---------------------------------------------------- */

/* The loop that groups of threads divide: the longest that all sums run over,
 * if sums are long, threads are few and no sum is nested; else -1. */
static int shared_loop(KernelPrinter *printer, Expr *const *red,
                       int64_t threads)
{
    uint64_t all = ~0ull;
    double most = 0;
    int u = -1;

    for (size_t i = 0; i < vec_len(red); i++) {
        double e = loop_elements(printer, red[i]->K);
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

/* Groups per block of `team` threads each. If there are few blocks, more groups
 * are used, until each has only a few iterations of the shared loop:
 * decisions/thread-mapping.md. */
static int groups_per_block(const KernelPrinter *printer, int64_t blocks)
{
    int64_t rounds = printer->kernel->loop[printer->shared].extent->v;
    int groups = BLOCKMAP / printer->team;

    while (blocks < GPUBLOCKS && groups * printer->team < MOSTTEAM &&
           groups * FEWROUNDS < rounds)
        groups *= 2;
    return groups;
}

/* A block has groups of `team` threads along v. */
static void print_grouped_items(KernelPrinter *printer, int v, int w,
                                const int *u, int k)
{
    int64_t per = printer->kernel->loop[v].extent->v / w;
    const char *limit = loop_end(printer, v), *name = w > 1 ? "v" : "i";

    printer->team = power_of_two(per, 32);
    int64_t tiles = divide_up(per, printer->team);
    int64_t blocks = loop_product(printer, u, 0, k)->v * tiles;
    printer->groups = groups_per_block(printer, blocks);
    text_line(printer, "const int group = TID / %d;", printer->team);
    text_line(printer, "const ix p = blockIdx.x;");
    text_line(printer, "const ix at = (p %% %ld * %d + TID %% %d) * %d;", tiles,
              printer->team, printer->team, w);
    text_line(printer, "const bool on = group == 0 && at < %s;", limit);
    text_line(printer, "const ix %s%d = at < %s ? at : 0;", name, v, limit);
    put_indices(printer, u, k, strf(printer->arena, "p / %ld", tiles));
    stop_at_ends(printer, u, k);
    printer->active = "on";
    set_blocks(printer, blocks, printer->team * printer->groups);
}

static void print_single_items(KernelPrinter *printer, int v, int w,
                               const int *u, int k)
{
    int64_t per = v < 0 ? 1 : printer->kernel->loop[v].extent->v / w;
    int64_t items = loop_product(printer, u, 0, k)->v * per;

    text_line(printer, "const ix p = (ix)blockIdx.x * %d + TID;", BLOCKMAP);
    if (items % BLOCKMAP)
        text_line(printer, "if (p >= %ld) return;", items);
    if (v >= 0)
        text_line(printer, "const ix %s%d = p %% %ld * %d;", w > 1 ? "v" : "i",
                  v, per, w);
    put_indices(printer, u, k,
                per == 1 ? "p" : strf(printer->arena, "p / %ld", per));
    stop_at_ends(printer, u, k);
    if (v >= 0)
        stop_at_end(printer, v, w > 1 ? "v" : "i");
    set_blocks(printer, divide_up(items, BLOCKMAP), BLOCKMAP);
}

static void map_to_threads(KernelPrinter *printer, Expr *const *red)
{
    int v = printer->v >= 0 && (printer->items & BIT(printer->v)) ? printer->v
                                                                  : -1,
        u[MAXLOOP];
    int w = v < 0 ? 1 : lane_width(printer, v);
    int k = item_loops(printer,
                       v < 0 ? printer->items : printer->items & ~BIT(v), u);

    printer->per_thread = 1;
    printer->shared =
        v < 0
            ? -1
            : shared_loop(printer, red,
                          (int64_t)loop_elements(printer, printer->items) / w);
    if (printer->shared >= 0)
        print_grouped_items(printer, v, w, u, k);
    else
        print_single_items(printer, v, w, u, k);
    text_line(printer, "{");
    Braces s = scope_enter(printer, printer->items);
    if (v >= 0)
        lanes_open(printer, v, w, -1);
    print_stages(printer);
    scope_leave(printer, s);
}

/* ---- a team an item ------------------------------------------------------ */

/* The loops of a row: those that results have inside an item; if there are
 * none, those of a sum over v. */
static uint64_t loops_of_rows(KernelPrinter *printer, Expr *const *red)
{
    uint64_t m = 0;

    for (size_t i = 0; i < vec_len(printer->kernel->st); i++)
        m |= printer->kernel->st[i].loops & ~printer->items;
    for (size_t i = 0; !m && i < vec_len(red); i++)
        m |= printer->v >= 0 && (red[i]->K & BIT(printer->v)) ? red[i]->K : 0;
    return m;
}

/* Are all rows read by sums only, none of which needs another? */
static int reads_rows_once(KernelPrinter *printer, Expr *const *red)
{
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++)
        if (printer->kernel->st[i].loops & ~printer->items)
            return 0;
    for (size_t i = 0; i < vec_len(red); i++) {
        Expr **x = needed_values(printer, red[i]->arg, 1);
        for (size_t k = 0; k < vec_len(x); k++)
            if (x[k]->kind == Xred)
                return 0;
    }
    return 1;
}

/* Threads that hold a row of loop v in registers: a power of two up to 32, then
 * whole warps. Long rows are held in strips: a thread has one vector in each.
 * Returns 0 if the row is too long. Rows in several strips by one warp need no
 * block barrier: decisions/thread-mapping.md. */
static int threads_holding_row(KernelPrinter *printer, int beside, int *strips)
{
    enum { MOSTSTRIPS = 4, MOSTLANES = 32, WARP = 32 };
    const Loop *loop = &printer->kernel->loop[printer->v];
    int w = lane_width(printer, printer->v);
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
    return pieces <= MOSTTEAM ? (int)divide_up(pieces, WARP) * WARP : 0;
}

/* Can a team hold the item's rows in registers? All results and sums must run
 * over the whole row or none of it. *x is the loop beside v, or -1. */
static int can_hold_row(KernelPrinter *printer, Expr *const *red, uint64_t row,
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
             loop_elements(printer, red[i]->K & ~row) > SERIAL))
            return 0;
    }
    int strips, team = threads_holding_row(printer, *x, &strips);
    return team && (team <= 32 || !reads_rows_once(printer, red));
}

static int depends_on_sum(KernelPrinter *printer, Expr *expr)
{
    Expr **x = needed_values(printer, &expr, 1);

    for (size_t i = 0; i < vec_len(x); i++)
        if (x[i]->kind == Xred)
            return 1;
    return 0;
}

/* Are all sums and results computable in one pass along the row, without a sum
 * among the results' operands? Then a large team streams the row instead of
 * holding it: decisions/thread-mapping.md. */
static int can_stream(KernelPrinter *printer, Expr *const *red, uint64_t row)
{
    int results = 0;

    for (size_t i = 0; i < vec_len(red); i++)
        if (red[i]->K != row || depends_on_sum(printer, red[i]->arg[0]))
            return 0;
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        const Store *store = &printer->kernel->st[i];
        if (!(store->loops & ~printer->items))
            continue;
        if (store->loops != (printer->items | row) ||
            depends_on_sum(printer, store->val))
            return 0;
        results++;
    }
    return results && vec_len(red);
}

/* Threads of a team that passes over rows. A row that is read once gets fewer
 * threads with several loads in flight each, as does a short row that is read
 * again. A long row that is read again gets the most threads of a block, so
 * that fewer rows are active and more of each stays in L2; two such rows per
 * multiprocessor overlap loads and computation. decisions/row-passes.md has the
 * measurements, also of rows kept in shared memory and in clusters. */
static int threads_passing_row(KernelPrinter *printer, Expr *const *red,
                               int64_t items)
{
    enum { LONGROW = 16, SHORTROW = 64, SHORTPIECES = 4 };
    int few = items < FEWITEMS;
    int once = printer->streams || reads_rows_once(printer, red);
    int64_t work = 1;

    printer->team = few ? MOSTTEAM : MOSTTEAM / 2;
    for (size_t i = 0; i < vec_len(printer->kernel->st) + vec_len(red); i++) {
        size_t k = vec_len(printer->kernel->st);
        uint64_t m = i < k ? printer->kernel->st[i].loops & ~printer->items
                           : red[i - k]->K;
        int64_t w = m ? team_vectors(printer, m) : 1;
        work = w > work ? w : work;
    }
    if (once && !few && work > 32)
        work = work > 64 * UNDERWAY ? work / UNDERWAY / 2 : 32;
    if (!once && !few && work > SHORTROW && work <= MOSTTEAM / 2)
        work = divide_up(work, SHORTPIECES);
    if (!once && work >= LONGROW * MOSTTEAM)
        printer->team = MOSTTEAM;
    return power_of_two(work, printer->team);
}

/* The only load along rows if there is one, of at most 4 bytes an element; else
 * null. */
static const Expr *only_row_load(KernelPrinter *printer)
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

/* Do all passes run along v with the same threads, and does more than one
 * read? */
static int passes_match(KernelPrinter *printer, Expr *const *red, uint64_t row)
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

/* bytes of shared memory for rows, of 227 KiB; reductions use the rest */
enum { KEPT = 225 << 10 };

/* Divides a row over the blocks of a cluster. Threads depend on the number of
 * such blocks that fit on a multiprocessor. */
static void divide_row_over_cluster(KernelPrinter *printer, const Expr *one,
                                    int w)
{
    enum { BLOCKS = 8, MOSTBLOCKS = 5 };
    int64_t n = printer->kernel->loop[printer->v].extent->v;
    int64_t fit = KEPT * BLOCKS / (n * dtypes[one->buf->dt].bytes);
    int threads = fit > 3 ? 256 : fit > 1 ? 512 : 1024;

    printer->team = BLOCKS * threads;
    printer->blocks = printer->group->cluster = BLOCKS;
    printer->keep = divide_up(n, (int64_t)printer->team * w) * threads * w;
    printer->group->together = fit < MOSTBLOCKS ? (int)fit : MOSTBLOCKS;
}

/* Keeps a row that several passes read in shared memory: two rows per
 * multiprocessor, or one row in a cluster. */
static void keep_rows_in_shared(KernelPrinter *printer, const Expr *one)
{
    enum { MOST = 6 * KEPT };
    int w = lane_width(printer, printer->v);
    int64_t n = printer->kernel->loop[printer->v].extent->v;
    int64_t size = dtypes[one->buf->dt].bytes;

    if (w * size < 4 || one->arg[0] || n * size > MOST)
        return;
    printer->kept = one;
    printer->keep = n;
    if (2 * n * size > KEPT)
        divide_row_over_cluster(printer, one, w);
    text_line(printer, "extern __shared__ __align__(16) %s kept[];",
              dtypes[one->buf->dt].store);
}

static void hold_row(KernelPrinter *printer, uint64_t row, int x, int strips)
{
    int v = printer->v, w = lane_width(printer, v);
    const char *name =
        w * strips > 1 || (x >= 0 && printer->kernel->loop[x].extent->v > 1)
            ? "v"
            : "i";

    if (printer->kernel->loop[v].map ||
        printer->kernel->loop[v].extent->v !=
            (int64_t)printer->team * strips * w) {
        text_line(printer, "const bool on = lane * %d < %s;", w,
                  loop_end(printer, v));
        text_line(printer, "const ix %s%d = on ? lane * %d : 0;", name, v, w);
        printer->active = "on";
    } else {
        text_line(printer, "const ix %s%d = lane * %d;", name, v, w);
    }
    printer->row = row;
    printer->bound |= row;
    lanes_open(printer, v, w, x);
    if (strips > 1) {
        printer->beside = strips;
        printer->stride = printer->team * w;
    }
}

static void map_to_teams(KernelPrinter *printer, Expr *const *red)
{
    int u[MAXLOOP], k = item_loops(printer, printer->items, u), x, strips = 1;
    int64_t items = loop_product(printer, u, 0, k)->v;
    uint64_t row = loops_of_rows(printer, red);
    int held = can_hold_row(printer, red, row, &x);

    if (held && threads_holding_row(printer, x, &strips) > LARGETEAM &&
        can_stream(printer, red, row))
        held = 0, strips = 1, printer->streams = 1;
    printer->team = held ? threads_holding_row(printer, x, &strips)
                         : threads_passing_row(printer, red, items);
    int threads = printer->team > 32 ? printer->team : BLOCKTEAMS,
        per = threads / printer->team;
    const Expr *one =
        !held && threads == MOSTTEAM ? only_row_load(printer) : NULL;
    if (one)
        printer->group->together = 2;
    if (one && passes_match(printer, red, row))
        keep_rows_in_shared(printer, one);
    if (printer->blocks > 1) {
        threads = printer->team / printer->blocks;
        text_line(printer, "cluster_arrive();");
        text_line(printer, "const int lane = blockIdx.x %% %d * %d + TID;",
                  printer->blocks, threads);
        text_line(printer, "const ix p = blockIdx.x / %d;", printer->blocks);
    } else {
        text_line(printer, "const int lane = TID %% %d;", printer->team);
        text_line(printer, "const ix p = (ix)blockIdx.x * %d + TID / %d;", per,
                  printer->team);
    }
    if (items % per)
        text_line(printer, "if (p >= %ld) return;", items);
    put_indices(printer, u, k, "p");
    stop_at_ends(printer, u, k);
    set_blocks(printer, divide_up(items, per) * printer->blocks, threads);
    if (printer->kept)
        printer->group->instr.launch.shared =
            printer->keep * dtypes[one->buf->dt].bytes;
    text_line(printer, "{");
    Braces s = scope_enter(printer, printer->items);
    if (held)
        hold_row(printer, row, x, strips);
    print_stages(printer);
    scope_leave(printer, s);
}

void map_to_gpu(KernelPrinter *printer, Expr *const *red, int whole)
{
    printer->shared = -1;
    printer->width = printer->beside = printer->blocks = 1;
    if (printer->kernel->tile)
        print_tiles(printer);
    else if (whole && print_transpose(printer))
        return;
    else if (whole || printer->kernel->form == STAGEalone)
        map_to_threads(printer, red);
    else
        map_to_teams(printer, red);
}
