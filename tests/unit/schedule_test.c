/* schedule_test: pipeline schedules against published numbers, against a
 * machine that runs their rows where a send ends only when it is received, and
 * against damage. Layout strings against the stages they mean. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "../../frontend/frontend.h"

static jmp_buf heard;
static char message[4096];

static void hear(const char *msg)
{
    snprintf(message, sizeof message, "%s", msg);
    longjmp(heard, 1);
}

static Schedule *try_make(Arena *a, const char *kind, int p, int v, int m)
{
    Schedule *volatile s = NULL;

    err_hook = hear;
    if (!setjmp(heard))
        s = schedule_make(a, kind, p, v, m, NULL);
    err_hook = NULL;
    return s;
}

static Schedule *try_csv(Arena *a, const char *text, size_t n)
{
    Schedule *volatile s = NULL;

    err_hook = hear;
    if (!setjmp(heard))
        s = schedule_csv(a, text, n, "x.csv");
    err_hook = NULL;
    return s;
}

static Timing time_of(Arena *a, const Schedule *s)
{
    static const double unit[NJOB] = { [WF] = 1, [WI] = 1, [WW] = 1 };
    double *cost = alloc(a, sizeof *cost * NJOB * (size_t)s->chunks);

    for (int i = 0; i < NJOB * s->chunks; i++)
        cost[i] = unit[i / s->chunks];
    return schedule_time(a, s, cost, 0);
}

/* ---- published ----------------------------------------------------------- */

/* F = I = W = 1, B = 2, no transfers. */
static void published(void **state)
{
    static const struct Row {
        const char *kind;
        int p, v, m;
        double makespan;
        /* clang-format off */
        int peak[8];
    } rows[] = {
        { "1f1b", 4, 1, 8, 33, { 4, 3, 2, 1 } },
        { "1f1b", 8, 1, 24, 93, { 8, 7, 6, 5, 4, 3, 2, 1 } },
        { "1f1b", 8, 1, 64, 213, { 8, 7, 6, 5, 4, 3, 2, 1 } },
        { "zerobubble", 4, 1, 8, 27, { 4, 4, 4, 4 } },
        { "zerobubble", 8, 1, 24, 79, { 8, 8, 8, 8, 8, 8, 8, 8 } },
        { "zerobubble", 8, 1, 64, 199, { 8, 8, 8, 8, 8, 8, 8, 8 } },
        { "dualpipev", 4, 2, 10, 66, { 9, 9, 9, 9 } },
    };
    /* clang-format on */
    (void)state;
    Arena *a = arena_new();

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct Row *w = &rows[i];
        Timing t = time_of(a, try_make(a, w->kind, w->p, w->v, w->m));
        assert_true(t.makespan == w->makespan);
        for (int r = 0; r < w->p; r++) {
            assert_int_equal(t.peak[r], w->peak[r]);
            assert_true(t.busy[r] == 3.0 * w->m * w->v);
        }
    }
    arena_free(a);
}

/* Warm-up and in flight on rank r, N = p: the first steady F comes on top. */
static void interleaved(void **state)
{
    (void)state;
    Arena *a = arena_new();

    for (int p = 2; p <= 8; p++)
        for (int v = 2; v <= 4; v++)
            for (int k = 1; k <= 4; k++) {
                int m = k * p;
                Schedule *s = try_make(a, "interleaved", p, v, m);
                Timing t = time_of(a, s);
                for (int r = 0; r < p; r++) {
                    int warm = 0, want = 2 * (p - r - 1) + (v - 1) * p;
                    while (s->row[r][warm].w == WF)
                        warm++;
                    want = want < m * v ? want + 1 : m * v;
                    assert_int_equal(warm, want);
                    assert_int_equal(t.peak[r], want);
                }
                if (k > 2) /* bubble (p-1)/(v m) */
                    assert_true(t.makespan == 3 * (v * m + p - 1));
            }
    arena_free(a);
}

/* DualPipeV: bubble (p-1)(F&B + B - 3W) with F&B = 3, peak 2p + 1 (A8.5,
 * DeepSeek's table), for even p as DeepSeek's has. */
static void dualpipev(void **state)
{
    (void)state;
    Arena *a = arena_new();

    for (int p = 2; p <= 16; p += 2)
        for (int m = 2 * p + 2; m <= 4 * p; m++) {
            Schedule *s = try_make(a, "dualpipev", p, 2, m);
            Timing t = time_of(a, s);
            assert_true(t.makespan == 6 * m + 2 * (p - 1));
            for (int r = 0; r < p; r++)
                assert_int_equal(t.peak[r], 2 * p + 1);
            for (int c = 0; c < 2 * p; c++)
                assert_int_equal(s->rank[c], c < p ? c : 2 * p - 1 - c);
        }
    arena_free(a);
}

/* ---- rows under rendezvous ----------------------------------------------- */

typedef struct TableWalk {
    const Schedule *s;
    const StageTransfer *e;
    int n;
    PipeRow **row;
    size_t *at;
    char *done;               /* by job, chunk, micro-batch */
    char *here;               /* by edge, micro-batch: sent 1, received 2,
                                     waited for 4 */
    int *queue, *head, *tail; /* by edge: micro-batches under way */
    int *waited;              /* by edge */
} TableWalk;

static char *done_at(const TableWalk *x, WorkKind w, int c, int m)
{
    return &x->done[((int)w * x->s->chunks + c) * x->s->micros + m];
}

static char *here_at(const TableWalk *x, int e, int m)
{
    return &x->here[e * x->s->micros + m];
}

/* Work may run when the rule of the table and every value allow it. */
static void work(TableWalk *x, const PipeRow *w)
{
    int c = w->chunk, m = w->micro, last = x->s->chunks - 1;
    WorkKind back = schedule_splits(x->s) ? WI : WB;

    assert_false(*done_at(x, w->w, c, m));
    if (w->w != WF)
        assert_true(*done_at(x, WF, c, m));
    if (w->w == WF && c)
        assert_true(*done_at(x, WF, c - 1, m));
    if ((w->w == WB || w->w == WI) && c < last)
        assert_true(*done_at(x, back, c + 1, m));
    if (w->w == WW)
        assert_true(*done_at(x, WI, c, m));
    for (int e = 0; e < x->n; e++)
        if (x->e[e].to == w->w && x->e[e].b == c)
            assert_true(x->s->rank[x->e[e].a] == x->s->rank[c]
                            ? *done_at(x, x->e[e].from, x->e[e].a, m)
                            : *here_at(x, e, m) & 2);
    *done_at(x, w->w, c, m) = 1;
}

/* A recv returns when its value was sent, a wait when it was received. */
static int goes(TableWalk *x, const PipeRow *w)
{
    int *q = x->queue + (w->k == ROWwork ? 0 : w->edge * x->s->micros);
    char *h = w->k == ROWwork ? NULL : here_at(x, w->edge, w->micro);

    switch (w->k) {
    case ROWwork: work(x, w); return 1;
    case ROWsend:
        assert_true(*done_at(x, x->e[w->edge].from, x->e[w->edge].a, w->micro));
        assert_int_equal(*h, 0);
        q[x->tail[w->edge]++] = w->micro;
        *h = 1;
        return 1;
    case ROWrecv:
        if (x->head[w->edge] == x->tail[w->edge])
            return 0;
        assert_int_equal(q[x->head[w->edge]++], w->micro);
        *h |= 2;
        return 1;
    default:
        if (!(*h & 2))
            return 0;
        assert_int_equal(q[x->waited[w->edge]++], w->micro);
        assert_int_equal(*h, 3);
        *h |= 4;
        return 1;
    }
}

static void runs_to_the_end(Arena *a, const Schedule *s, const StageTransfer *e,
                            int n)
{
    size_t m = (size_t)s->micros, in = (size_t)n + 1;
    TableWalk x = { .s = s, .e = e, .n = n };

    x.row = schedule_rows(a, s, e, n);
    x.at = alloc(a, (size_t)s->ranks * sizeof *x.at);
    x.done = alloc(a, NJOB * (size_t)s->chunks * m);
    x.here = alloc(a, in * m);
    x.queue = alloc(a, in * m * sizeof *x.queue);
    x.head = alloc(a, in * sizeof *x.head);
    x.tail = alloc(a, in * sizeof *x.tail);
    x.waited = alloc(a, in * sizeof *x.waited);
    for (int moved = 1; moved;) {
        moved = 0;
        for (int r = s->ranks; r-- > 0;)
            for (; x.at[r] < vec_len(x.row[r]) && goes(&x, &x.row[r][x.at[r]]);
                 x.at[r]++)
                moved = 1;
    }
    for (int r = 0; r < s->ranks; r++) {
        assert_int_equal(x.at[r], vec_len(x.row[r]));
        for (size_t i = 0; i < x.at[r]; i++)
            if (x.row[r][i].pair)
                assert_int_equal(x.row[r][i + 1].k, ROWwork);
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < s->micros; k++)
            assert_int_equal(*here_at(&x, i, k),
                             s->rank[e[i].a] == s->rank[e[i].b] ? 0 : 7);
}

/* What chunks hand on: to the neighbours, and some values further: from F to
 * any later F or any backward, from a backward to an earlier one and its W. */
static int handoffs(const Schedule *s, StageTransfer *e, unsigned seed)
{
    int n = 0, C = s->chunks, split = schedule_splits(s);
    int forward = !strcmp(s->name, "forward");
    WorkKind back = split ? WI : WB;

    for (int c = 0; c + 1 < C; c++) {
        e[n++] = (StageTransfer){ WF, c, WF, c + 1 };
        if (!forward)
            e[n++] = (StageTransfer){ back, c + 1, back, c };
    }
    for (int i = 0; i < 8 && C > 1; i++) {
        seed = seed * 1103515245u + 12345u;
        int u = (int)(seed >> 8) % C, v = (int)(seed >> 20) % C;
        int low = u < v ? u : v, high = u < v ? v : u;
        if (low < high)
            e[n++] = (StageTransfer){ WF, low, WF, high };
        if (u != v && !forward)
            e[n++] = (StageTransfer){ WF, u, back, v };
        if (low < high && !forward)
            e[n++] = (StageTransfer){ back, high, back, low };
        if (low < high && split)
            e[n++] = (StageTransfer){ WI, high, WW, low };
    }
    return n;
}

static const char *const every[] = { "1f1b", "zerobubble", "dualpipev" };

/* The k-th of every, and after them only the forwards. */
static Schedule *try_every(Arena *a, int k, int p, int v, int m)
{
    return k < 3 ? try_make(a, every[k], p, v, m)
                 : schedule_forward(a, try_make(a, every[0], p, v, m), m);
}

/* Every table that can be made runs; what cannot names what can. */
static void all_numbers(void **state)
{
    (void)state;
    Arena *a = arena_new();
    StageTransfer *e = malloc(1024 * sizeof *e);
    int made = 0, refused = 0;

    for (int k = 0; k < 4; k++)
        for (int p = 1; p <= 16; p++)
            for (int v = 1; v <= 4; v++)
                for (int m = 1; m <= 64; m++) {
                    Schedule *s = try_every(a, k, p, v, m);
                    made += s != NULL;
                    refused += !s;
                    if (!s)
                        assert_non_null(strstr(message, "nearest legal: "));
                    else if (m < 6 || (m + p + v) % 13 == 0)
                        runs_to_the_end(a, s, e, handoffs(s, e, (unsigned)m));
                    arena_reset(a);
                }
    int dual = 0;
    for (int p = 1; p <= 16; p++)
        dual += 64 - 2 * p + 1;
    assert_int_equal(made, 4096 + 1024 + dual + 4096);
    assert_int_equal(refused, 4 * 4096 - made);
    free(e);
    arena_free(a);
}

/* ---- CSV ----------------------------------------------------------------- */

static void round_trip(void **state)
{
    (void)state;
    Arena *a = arena_new();

    for (int k = 0; k < 4; k++)
        for (int p = 1; p <= 5; p++)
            for (int m = 1; m <= 12; m++) {
                int v = k == 1 ? 1 : 2;
                Schedule *s = try_every(a, k, p, v, m);
                if (!s)
                    continue;
                char *one = schedule_print(a, s);
                Schedule *again = try_csv(a, one, strlen(one));
                assert_non_null(again);
                assert_string_equal(schedule_print(a, again), one);
                assert_memory_equal(again->rank, s->rank,
                                    sizeof(int) * (size_t)s->chunks);
            }
    arena_free(a);
}

/* As other writers put it: ends of lines, idle moments, transfers, gathers. */
static void dialects(void **state)
{
    (void)state;
    static const char plain[] = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
    static const char other[] =
        "0UNSHARD,0F0,0SEND_F0, 0F1,0SEND_F1,,,0RECV_B0,0B0,0B1,0RESHARD\r\n"
        ",1F0,1B0,1SEND_B0,1F1,1B1,1REDUCE_GRAD\r\n\r\n";
    Arena *a = arena_new();
    Schedule *s = try_csv(a, other, strlen(other));

    assert_non_null(s);
    assert_string_equal(schedule_print(a, s), plain);
    arena_free(a);
}

static void messages(void **state)
{
    /* clang-format off */
    static const char *const rows[][2] = {
        { "0F0,0B0\n1F0,1X0\n", "x.csv:2: error: '1X0' is not a cell" },
        { "0F0,0B0\n1F0\n", "x.csv:2: error: rank 1: 1B0 is not there" },
        { "0F0,0F0\n", "x.csv:1: error: rank 0: 0F0 stands there twice" },
        { "0B0,0F0\n", "x.csv:1: error: rank 0: 0B0 stands before its F" },
        { "0F0,0W0,0I0\n", "x.csv:1: error: rank 0: 0W0 stands before its I" },
        { "0F0,0I0\n", "x.csv:1: error: rank 0: 0W0 is not there" },
        { "0F0,0B0,0W0\n", "x.csv:1: error: rank 0: 0W0: a backward is" },
        { "0F0,1F0\n1B0,0B0\n", "x.csv:2: error: rank 1: 1B0: chunk 1 is on" },
        { "0F0,0B0\n\n1F0,1B0\n", "x.csv:2: error: rank 1 has nothing to do" },
        { "", "x.csv:1: error: a schedule without ranks" },
        { "1F0,1B0\n", "x.csv:1: error: no rank has chunk 0" },
        { "0F0,1F1\n", "x.csv:1: error: 2 cells are too few" },
        { "(0F0;0F1)OVERLAP_F_B\n", "x.csv:1: error: rank 0: 0F0: only F" },
        { "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
          "x.csv:1: error: rank 0: waits for ever at 0B0" },
        { "9999999999F0\n", "x.csv:1: error: '9999999999F0' is not a cell" },
    };
    /* clang-format on */
    (void)state;
    Arena *a = arena_new();

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_null(try_csv(a, rows[i][0], strlen(rows[i][0])));
        if (!strstr(message, rows[i][1]))
            fail_msg("%s\nand not\n%s", message, rows[i][1]);
    }
    arena_free(a);
}

/* One byte changed, removed or added: refused with a line, or another table
 * that runs. */
static void damage(void **state)
{
    static const char bytes[] = "0123456789FBIW,;()\n OVERLAP_\r#-";
    (void)state;
    Arena *a = arena_new();
    StageTransfer e[64];
    unsigned seed = 7;
    int refused = 0, same = 0, rounds = 20000;

    for (int i = 0; i < rounds; i++) {
        Schedule *s = try_make(a, every[i % 3], 3, i % 3 == 1 ? 1 : 2, 7);
        char *one = schedule_print(a, s), *t = strf(a, "%s ", one);
        size_t n = strlen(one), at;
        seed = seed * 1103515245u + 12345u;
        at = (seed >> 8) % n;
        seed = seed * 1103515245u + 12345u;
        char c = bytes[(seed >> 8) % (sizeof bytes - 1)];
        memmove(t + at + (seed >> 28) % 3, t + at + 1, n - at - 1);
        n = n + (seed >> 28) % 3 - 1;
        if ((seed >> 28) % 3)
            t[at] = c;
        Schedule *x = try_csv(a, t, n);
        int line = 0;
        if (!x) {
            assert_int_equal(sscanf(message, "x.csv:%d: error:", &line), 1);
            assert_in_range(line, 1, 5);
            refused++;
        } else if (!strcmp(schedule_print(a, x), one)) {
            same++;
        } else {
            runs_to_the_end(a, x, e, handoffs(x, e, (unsigned)i));
        }
        arena_reset(a);
    }
    printf("# damaged tables: %d of %d refused, %d mean the same\n", refused,
           rounds, same);
    assert_true(refused > rounds * 8 / 10);
    arena_free(a);
}

/* ---- pictures ------------------------------------------------------------ */

static int phase_at(Program *p, const Call *c)
{
    Phase f = phase_of_call(forever, c);
    for (int i = 0; i < p->nphase; i++)
        if (!strcmp(p->phase[i].name, f.name))
            return i;
    vec_push(forever, p->phase, f);
    return p->nphase++;
}

/* A plan with nothing but the tables of its stages. */
static Plan *bare_plan(Arena *a, const Schedule *s)
{
    StageTransfer e[64];
    int n = handoffs(s, e, 5);
    PipeRow **row = schedule_rows(a, s, e, n);
    Plan *p = alloc(a, sizeof *p);

    p->nrole = s->ranks;
    p->role = alloc(a, (size_t)s->ranks * sizeof *p->role);
    for (int r = 0; r < s->ranks; r++) {
        Program *step = alloc(a, sizeof *step);
        p->role[r] = (Role){ .nprog = 1, .prog = step };
        step->kind = PGstep;
        for (size_t i = 0; i < vec_len(row[r]); i++) {
            const PipeRow *w = &row[r][i];
            Call c = { w->k, w->w, w->chunk, w->edge < 0 ? WF : e[w->edge].to,
                       w->edge < 0 ? 0 : e[w->edge].b };
            ScheduleSlot t = { phase_at(step, &c), w->micro, w->pair };
            vec_push(a, step->slot, t);
            step->nslot++;
        }
    }
    return p;
}

static void from_turns(void **state)
{
    (void)state;
    Arena *a = arena_new();

    for (int k = 0; k < 3; k++) {
        Schedule *s = try_make(a, every[k], 3, k == 1 ? 1 : 2, 7), *again;
        again = plan_schedule(bare_plan(a, s), "x.plan");
        if (!schedule_splits(s))
            assert_string_equal(schedule_print(a, again), schedule_print(a, s));
        assert_true(time_of(a, again).makespan <= time_of(a, s).makespan);
        assert_int_equal(schedule_splits(again), schedule_splits(s));
    }
    arena_free(a);
}

static void picture(void **state)
{
    (void)state;
    static const char want[] =
        "time     0           4           8\n"
        "stage 0  F0 F1 .  .  B0 -- F2 B1 -- .  B2 --\n"
        "stage 1  .  F0 B0 -- F1 B1 -- F2 B2 --\n"
        "2 stages, 2 chunks, 3 micro-batches: 12 units, 25.0 % of them idle\n"
        "micro-batches alive at most, by stage: 2 1\n";
    Arena *a = arena_new();
    Schedule *s = try_make(a, "1f1b", 2, 1, 3);
    Plan none = { .nrole = 1, .role = alloc(a, sizeof(Role)) };

    char *got = draw_schedule(plan_schedule(bare_plan(a, s), "x.plan"));
    assert_string_equal(got, want);
    err_hook = hear;
    if (!setjmp(heard)) {
        plan_schedule(&none, "x.plan");
        fail();
    }
    err_hook = NULL;
    assert_non_null(strstr(message, "x.plan has no schedule"));
    arena_free(a);
}

/* ---- cuts ---------------------------------------------------------------- */

static void some_work(Graph *g, const Scope *scope, int64_t flops)
{
    Node *c = g_node(g, Oconst, NULL, 0, NULL), *n;

    n = g_node(g, Oexp, NULL, 1, &c);
    n->nd = 1;
    n->dim[0] = (Dim){ g_axis(g, "x"), flops };
    n->scope = scope;
}

/* layers of cost[i]; then mtp ones. */
static Graph *model(Arena *a, int layers, int mtp, const int *cost)
{
    Graph *g = g_new(a, "m");

    g->opts = opts_new(a);
    some_work(g, g->top, cost ? cost[0] : 1);
    for (int i = 0; i < layers; i++) {
        const Scope *s = g_unit(g, strf(a, "layers.%d", i), UNITlayer);
        some_work(g, g_inner(g, s, "attn"), cost ? cost[1 + i] : 7);
        some_work(g, g_unit(g, strf(a, "%s.moe.3", s->path), UNITlayer), 1);
    }
    for (int i = 0; i < mtp; i++) {
        const Scope *s = g_unit(g, strf(a, "ahead.%d", i), UNITmtp);
        some_work(g, g_inner(g, s, "proj"), 7);
    }
    some_work(g, g_scope(g, "norm"), cost ? cost[layers + 1] : 1);
    return g;
}

static Stages *try_cut(Graph *g, int pp, int vpp, const char *layout)
{
    Stages *volatile st = NULL;
    Loc l = { "m.lua", 3, NULL };

    err_hook = hear;
    if (!setjmp(heard)) {
        opts_set(g->opts, "fold.pp", strf(g->arena, "%d", pp), &l);
        opts_set(g->opts, "fold.vpp", strf(g->arena, "%d", vpp), &l);
        if (layout)
            opts_set(g->opts, "fold.layout", layout, &l);
        st = stages_cut(g);
    }
    err_hook = NULL;
    return st;
}

/* Chunk of the unit that a scope lies in; -1: of no unit. */
static int stage_of(const Stages *st, const Scope *scope)
{
    int i = unit_at(st, scope);

    return i < 0 ? -1 : st->chunk[i];
}

static void layouts(void **state)
{
    static const struct Row {
        int layers, mtp, pp, vpp;
        /* clang-format off */
        const char *text, *printed;
    } rows[] = {
        { 61, 0, 8, 4, "Et*3|(tt|)*29m|L", "Et*3|(tt|)*29|L" },
        { 61, 0, 8, 4, "Et*3|(tt|)*29,m|L", "Et*3|(tt|)*29|L" },
        { 61, 1, 8, 4, "Et*3|(tt|)*29m|L", "Et*3|(tt|)*29m|L" },
        { 61, 1, 4, 4, "Et*4|(tttt|)*14tmL", "Et*4|(t*4|)*14tmL" },
        { 4, 0, 2, 2, "E|tt|tt|L", "E|tt|tt|L" },
        { 4, 0, 2, 2, "|E||t*4L", "|E||t*4L" },
        { 4, 0, 4, 2, "Et*2||||(t)*2L|||", "Ett||||ttL|||" },
        { 4, 0, 2, 2, "((t)*1,E)*1", NULL },
        { 6, 2, 2, 1, "E(t*2)*3|m*2L", "Et*6|mmL" },
    };
    /* clang-format on */
    (void)state;
    Arena *a = arena_new();

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct Row *w = &rows[i];
        Graph *g = model(a, w->layers, w->mtp, NULL);
        Stages *st = try_cut(g, w->pp, w->vpp, w->text), *again;
        if (!w->printed) {
            assert_null(st);
            continue;
        }
        assert_non_null(st);
        assert_string_equal(st->text, w->printed);
        again = try_cut(g, w->pp, w->vpp, st->text);
        assert_memory_equal(again->chunk, st->chunk,
                            sizeof(int) * (size_t)st->nunit);
        assert_int_equal(again->first, st->first);
        assert_int_equal(again->last, st->last);
    }
    Graph *g = model(a, 61, 1, NULL);
    Stages *st = try_cut(g, 8, 4, rows[0].text);
    static const struct Where {
        const char *path;
        int stage;
    } where[] = { { "layers.2.attn.norm", 0 },
                  { "layers.60", 29 },
                  { "ahead.0.proj", 30 },
                  { "norm", -1 },
                  { "layers.61", -1 },
                  { "layers.6", 2 },
                  { "d", -1 } };
    for (size_t i = 0; i < sizeof where / sizeof *where; i++)
        assert_int_equal(stage_of(st, g_scope(g, where[i].path)),
                         where[i].stage);
    const Scope *moe = g_scope(g, "layers.3.moe");
    assert_int_equal(stage_of(st, g_backward(g, moe)), 1);
    assert_int_equal(st->last, 31);
    assert_null(try_cut(model(a, 4, 0, NULL), 1, 4, NULL));
    arena_free(a);
}

static void bad_layouts(void **state)
{
    /* clang-format off */
    static const char *const rows[][2] = {
        { "Et*4|L", "has 2 chunks, and fold.pp=2 fold.vpp=2 make 4" },
        { "Et|t|t|L", "has 3 t, and the model has 4: layers.0 to layers.3" },
        { "t|t|t|tL", "has 0 E, and needs one" },
        { "EEt|t|t|tL", "has 2 E, and needs one" },
        { "Et|t|t|t", "has 0 L, and needs one" },
        { "Et|T|t|tL", "position 4: 'T' is none of E t m L | (did you mean" },
        { "Et|x|t|tL", "position 4: 'x' is none of E t m L |" },
        { "tE|t|t|tL", "position 2: E stands behind what needs it" },
        { "Et|t|L|tt", "position 8: 't' stands behind L" },
        { "Et|(t|*2tL", "position 4: '(' without ')'" },
        { "Et|t|)*2tL", "position 6: ')' without '('" },
        { "E*|t|t|tL", "position 2: '*' stands between" },
        { "Et*99999999|L", "position 3: more than 65536 letters" },
        { "Et|t|t|tmmL", NULL },               /* no mtp: the places are empty */
    };
    /* clang-format on */
    (void)state;
    Arena *a = arena_new();

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Stages *st = try_cut(model(a, 4, 0, NULL), 2, 2, rows[i][0]);
        assert_int_equal(!st, rows[i][1] != NULL);
        if (st)
            continue;
        assert_non_null(strstr(message, "m.lua:3: error: fold.layout"));
        if (!strstr(message, rows[i][1]))
            fail_msg("%s\nand not\n%s", message, rows[i][1]);
    }
    assert_null(try_cut(model(a, 4, 2, NULL), 2, 2, "Et|t|t|tmL"));
    assert_non_null(strstr(message, "the model has 2: ahead.0 to ahead.1"));
    assert_null(try_cut(model(a, 2, 1, NULL), 2, 1, "Em|ttL"));
    assert_non_null(strstr(message, "puts ahead.0 before layers.1"));
    assert_null(try_cut(model(a, 0, 0, NULL), 2, 1, NULL));
    assert_non_null(strstr(message, "no layers to cut"));
    arena_free(a);
}

/* Largest chunk and sum of squares of a cut, by the chunk of each item. */
static void weigh(const int *cost, const int *chunk, int n, int chunks,
                  int64_t *max, int64_t *squares)
{
    *max = *squares = 0;
    for (int c = 0; c < chunks; c++) {
        int64_t sum = 0;
        for (int i = 0; i < n; i++)
            sum += chunk[i] == c ? cost[i] : 0;
        *max = sum > *max ? sum : *max;
        *squares += sum * sum;
    }
}

/* The best of all cuts, by trying them. */
static void try_all(const int *cost, int *chunk, int i, int n, int chunks,
                    int64_t best[2])
{
    int64_t max, squares;

    if (i == n - 1) {
        chunk[i] = chunks - 1;
        weigh(cost, chunk, n, chunks, &max, &squares);
        if (max < best[0] || (max == best[0] && squares < best[1])) {
            best[0] = max;
            best[1] = squares;
        }
        return;
    }
    for (int c = i ? chunk[i - 1] : 0; c < (i ? chunks : 1); c++) {
        chunk[i] = c;
        try_all(cost, chunk, i + 1, n, chunks, best);
    }
}

static void by_cost(void **state)
{
    (void)state;
    Arena *a = arena_new();
    unsigned seed = 3;

    for (int round = 0; round < 300; round++) {
        int cost[10], chunk[10], mine[10];
        int layers = 1 + round % 7, n = layers + 2;
        int pp = 2 + round % 2, vpp = 1 + round % 3 % 2;
        int64_t best[2] = { INT64_MAX, INT64_MAX }, max, squares;
        for (int i = 0; i < n; i++) {
            seed = seed * 1103515245u + 12345u;
            cost[i] = 1 + (int)((seed >> 16) % 20);
        }
        Stages *st = try_cut(model(a, layers, 0, cost), pp, vpp, NULL);
        assert_non_null(st);
        for (int i = 1; i < n - 1; i++)
            cost[i]++; /* the second node */
        try_all(cost, chunk, 0, n, pp * vpp, best);
        mine[0] = st->first;
        mine[n - 1] = st->last;
        memcpy(mine + 1, st->chunk, sizeof(int) * (size_t)layers);
        weigh(cost, mine, n, pp * vpp, &max, &squares);
        assert_int_equal(max, best[0]);
        assert_int_equal(squares, best[1]);
        for (int i = 1; i < n; i++)
            assert_true(mine[i] >= mine[i - 1]);
        arena_reset(a);
    }
    arena_free(a);
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published),   cmocka_unit_test(interleaved),
        cmocka_unit_test(dualpipev),   cmocka_unit_test(all_numbers),
        cmocka_unit_test(round_trip),  cmocka_unit_test(dialects),
        cmocka_unit_test(messages),    cmocka_unit_test(damage),
        cmocka_unit_test(layouts),     cmocka_unit_test(bad_layouts),
        cmocka_unit_test(by_cost),     cmocka_unit_test(from_turns),
        cmocka_unit_test(picture),
    };
    /* clang-format on */

    return cmocka_run_group_tests(tests, NULL, NULL);
}
