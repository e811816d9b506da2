/* streams_test: instructions on several streams, behind events
 * (ir/verify/streams.c). A plan that was spread over streams prints as it was
 * read. What the verifier says when a wait is dropped is compared with all
 * pairs of accesses, looked at one by one in three turns of what repeats and in
 * its last: it refuses what may race and nothing else. Then each field with
 * what it does not take. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../fold/foldrun.h"
#include "../fold/spread.h"

enum { TURNS = 3 };

/* ---- all pairs ----------------------------------------------------------- */

/* An instruction of a row, or (instr -1) what comes before a row. */
typedef struct Visit {
    int instr, micro;
    const Phase *f;
    StreamKind on;
    uint8_t *behind; /* by node: is this one behind it */
} Visit;

typedef struct Pairs {
    Arena *arena;
    const Role *r;
    const Program *g;
    Visit *node; /* vec */
    int last[NSTREAM], *event;
    int lost; /* a wait for nothing, or a stream that begins by itself */
} Pairs;

static void put_behind(Pairs *x, Visit *n, int before)
{
    if (before < 0)
        return;
    for (int i = 0; i < before; i++)
        n->behind[i] |= x->node[before].behind[i];
    n->behind[before] = 1;
}

static void add_node(Pairs *x, Visit n)
{
    int at = (int)vec_len(x->node);
    const Issue *l = n.instr < 0 ? NULL : &x->g->instr[n.instr].issue;

    n.on = l ? l->stream : STREAMcompute;
    n.behind = alloc(x->arena, (size_t)at + 1);
    put_behind(x, &n, x->last[n.on]);
    for (int i = 0; l && i < l->nwait; i++) {
        x->lost |= x->event[l->wait[i]] < 0;
        put_behind(x, &n, x->event[l->wait[i]]);
    }
    x->lost |= at && !n.behind[0];
    x->last[n.on] = at;
    if (l && l->record)
        x->event[l->record] = at;
    vec_push(x->arena, x->node, n);
}

static int64_t place(const Pairs *x, const Buf *b, int micro)
{
    const SlotGroup *f = b->frame ? &x->g->frame[b->frame - 1] : NULL;
    return b->offset + (f ? f->slot[f->of[micro]] : 0);
}

/* Is the buffer given to a row before it begins? */
static int is_given(const Pairs *x, const Visit *n, int buf)
{
    int given = 0;
    for (int i = 0; i < x->r->ntensor; i++)
        given |= x->r->tensor[i].buf == buf && x->r->tensor[i].kind == TKinput;
    for (int i = 0; i < x->r->nin; i++)
        given |= x->r->in[i].buf == buf && x->r->in[i].value == STEPmicro;
    for (int k = n->f->first; given && k < n->f->first + n->f->n; k++)
        for (int i = 0; i < x->g->instr[k].nbuf; i++)
            if (x->g->instr[k].buf[i] == buf)
                return 1;
    return 0;
}

/* What a node does to a buffer: 0 nothing, 1 reads, 2 writes. */
static int use_of(const Pairs *x, const Visit *n, int buf)
{
    const Instr *s = n->instr < 0 ? NULL : &x->g->instr[n->instr];
    int use = s ? 0 : 2 * is_given(x, n, buf);
    for (int i = 0; s && i < s->nbuf; i++)
        if (s->buf[i] == buf)
            use |= instr_use(s, i) == 'r' ? 1 : 2;
    return use;
}

static int same_class(const Pairs *x, const Visit *a, const Visit *b)
{
    if (a->instr < 0 || b->instr < 0)
        return 0;
    InstrClass k = instr_info(x->g->instr[a->instr].kind)->cls;
    return k == instr_info(x->g->instr[b->instr].kind)->cls &&
           k >= CLASSproduct;
}

/* Buffers that a node touches: a vec. */
static int *touched(const Pairs *x, const Visit *n)
{
    int *v = NULL;
    for (int b = 0; b < x->r->nbuf; b++)
        if (use_of(x, n, b))
            vec_push(x->arena, v, b);
    return v;
}

static int collide(const Pairs *x, const Visit *a, const int *va,
                   const Visit *b, const int *vb)
{
    if (same_class(x, a, b))
        return 1;
    for (size_t i = 0; i < vec_len(va); i++)
        for (size_t k = 0; k < vec_len(vb); k++) {
            const Buf *p = &x->r->buf[va[i]], *q = &x->r->buf[vb[k]];
            int64_t from = place(x, p, a->micro), to = place(x, q, b->micro);
            if ((use_of(x, a, va[i]) | use_of(x, b, vb[k])) >= 2 &&
                from < to + q->bytes && to < from + p->bytes)
                return 1;
        }
    return 0;
}

/* May any two race, or does a stream begin or end alone? */
static int races(Arena *a, const Role *r, const Program *g)
{
    Pairs x = { .arena = a, .r = r, .g = g };
    const ScheduleSlot *row = program_rows(a, g);
    int **v = NULL, bad = 0;

    for (int s = 0; s < NSTREAM; s++)
        x.last[s] = -1;
    x.event = alloc(a, sizeof *x.event * (size_t)(g->ninstr + 2));
    for (int i = 0; i < g->ninstr + 2; i++)
        x.event[i] = -1;
    for (size_t t = 0; t < vec_len(row); t++) {
        const Phase *f = &g->phase[row[t].phase];
        if (f->repeat && row[t].micro >= TURNS && row[t].micro != f->repeat - 1)
            continue;
        for (int k = -1; k < f->n; k++)
            if (k < 0 || runs_in(g, &g->instr[f->first + k], &row[t]))
                add_node(&x, (Visit){ .instr = k < 0 ? -1 : f->first + k,
                                      .micro = row[t].micro,
                                      .f = f });
    }
    bad = x.lost;
    for (size_t i = 0; i < vec_len(x.node); i++) {
        const Visit *n = &x.node[i];
        vec_push(a, v, touched(&x, n));
        for (size_t k = 0; k < i && !bad; k++)
            bad = !n->behind[k] && collide(&x, &x.node[k], v[k], n, v[i]);
    }
    for (int s = 1; s < NSTREAM; s++)
        bad |= x.last[s] >= 0 && !x.node[x.last[0]].behind[x.last[s]];
    return bad;
}

/* ---- waits dropped ------------------------------------------------------- */

static int waiters(const Program *g, int event)
{
    int n = 0;
    for (int i = 0; i < g->ninstr; i++)
        for (int k = 0; k < g->instr[i].issue.nwait; k++)
            n += g->instr[i].issue.wait[k] == event;
    return n;
}

static Instr *recorder(const Program *g, int event)
{
    int i = 0;
    while (g->instr[i].issue.record != event)
        i++;
    return &g->instr[i];
}

/* Without the i-th wait of an instruction, and without its event when nobody
 * else waits for that. */
static int is_judged(const Plan *p, const Role *r, Program *g, Instr *s, int i,
                     int *refused)
{
    Arena *a = arena_new();
    Issue was = s->issue;
    int event = was.wait[i], *wait = alloc(a, sizeof *wait * 64);
    Instr *by = recorder(g, event);

    assert_true(was.nwait < 64);
    for (int k = 0; k < was.nwait - 1; k++)
        wait[k] = was.wait[k + (k >= i)];
    s->issue.wait = wait;
    s->issue.nwait--;
    if (!waiters(g, event))
        by->issue.record = 0;
    const char *why = plan_wrong(a, p);
    int bad = races(a, r, g);
    if (bad != (why != NULL))
        printf("# %s, wait %d: %s\n", instr_label(s), i,
               why ? why : "accepted, and races");
    *refused += bad;
    by->issue.record = event;
    s->issue = was;
    arena_free(a);
    return bad == (why != NULL);
}

static void drop_waits(const char *model, Plan *p)
{
    int tried = 0, refused = 0, right = 0;
    size_t len, again;

    plan_check(p);
    char *text = plan_print(forever, p, &len);
    Plan *q = plan_parse(forever, text, len, "spread");
    assert_string_equal(plan_print(forever, q, &again), text);
    Role *r = &q->role[0];
    Program *g = &r->prog[role_prog(r, PGstep)];
    assert_int_equal(races(forever, r, g), 0);
    for (int k = 0; k < g->ninstr; k++)
        for (int i = 0; i < g->instr[k].issue.nwait; i++, tried++)
            right += is_judged(q, r, g, &g->instr[k], i, &refused);
    printf("# %s: %d instructions, %d waits dropped, %d refused\n", model,
           g->ninstr, tried, refused);
    assert_true(refused > 25);
    assert_int_equal(right, tried);
}

#define SMALL                                                      \
    " axes.seq=8 axes.hidden=16 axes.kv=2 axes.dim=4 axes.ffn=16 " \
    "axes.expert=4 axes.batch=1"

static void drop_spread(const char *model, const char *keys)
{
    Plan *p = fold_words(model, strf(forever, "%s fold.overlap=0", keys));

    spread_streams(forever, p, 7);
    drop_waits(model, p);
}

static void waits_of_phases(void **state)
{
    (void)state;
    drop_spread("models/tiny.lua", "fold.ep=2 train.batch=6" SMALL);
}

/* As the compiler says them; of one micro-batch post begins under body, of
 * several its reductions stand in the last run, of a pipeline's first stage in
 * the last row of its backward. */
static const char *const folds[] = {
    "fold.tp=2 fold.ep=2 fold.zero=3 train.batch=6" SMALL,
    "fold.dp=2 fold.ep=2 train.batch=2" SMALL,
    "fold.dp=2 fold.ep=2 train.batch=6" SMALL,
    ("fold.pp=2 fold.dp=2 fold.ep=2 train.batch=16 axes.seq=64 axes.hidden=16 "
     "axes.kv=2 axes.dim=4 axes.ffn=16 axes.expert=4 axes.batch=4 "
     "axes.vocab=64")
};
enum { LASTS = 2 }; /* from this one on last runs have some of their own */

static void waits_of_passes(void **state)
{
    static const char model[] = "models/tiny.lua";

    (void)state;
    for (int i = 0; i < countof(folds); i++) {
        Plan *p = fold_words(model, folds[i]);
        const Program *g = &p->role[0].prog[role_prog(p->role, PGstep)];
        int last = 0;
        for (int k = 0; k < g->ninstr; k++)
            last |= g->instr[k].last_only;
        assert_int_equal(last, i >= LASTS);
        drop_waits(model, p);
    }
}

static void waits_of_tables(void **state)
{
    (void)state;
    drop_spread("tests/models/tied.lua",
                "fold.pp=2 fold.vpp=2 fold.schedule=interleaved train.batch=8");
}

/* The order that leaves collectives something to run beside changes no bit. */
static void same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < countof(folds); i++) {
        const char *where = "";
        Plan *p[2];
        for (int k = 0; k < 2; k++)
            p[k] = fold_words("models/tiny.lua",
                              strf(forever, "%s fold.overlap=%d", folds[i], k));
        assert_false(program_streams(p[0]->role[0].prog));
        assert_true(program_streams(p[1]->role[0].prog));
        fold_share(p, 2);
        Trained one = fold_train(p[0], 2), two = fold_train(p[1], 2);
        double far = fold_apart(&two, &one, &where);
        printf("# overlap on and off: largest difference %g %s\n", far, where);
        assert_true(far == 0);
    }
}

/* Orders by chance, of those that streams and events allow, change none. */
static void any_order(void **state)
{
    enum { ORDERS = 6 };

    (void)state;
    for (int i = 0; i < countof(folds); i++) {
        const char *where = "";
        Plan *p[ORDERS];
        int moved = 0;
        for (int k = 0; k < ORDERS; k++) {
            p[k] = fold_words(
                "models/tiny.lua",
                strf(forever, "%s fold.overlap=%d", folds[i], k % 2));
            if (k && k % 2 == 0)
                spread_streams(forever, p[k], (uint64_t)k);
            plan_check(p[k]);
            moved += shuffle_streams(forever, p[k], (uint64_t)k);
        }
        fold_share(p, ORDERS);
        Trained want = fold_train(p[0], 2);
        double far = 0;
        for (int k = 1; k < ORDERS; k++) {
            Trained got = fold_train(p[k], 2);
            far = fmax(far, fold_apart(&got, &want, &where));
        }
        printf("# %d instructions elsewhere: largest difference %g %s\n", moved,
               far, where);
        assert_true(moved > 500);
        assert_true(far == 0);
    }
}

/* ---- fields -------------------------------------------------------------- */

static jmp_buf heard;
static char message[512];

static void hear(const char *msg)
{
    snprintf(message, sizeof message, "%s", msg);
    longjmp(heard, 1);
}

static const char *told(const char *words)
{
    Lex x = { .arena = forever, .p = words, .end = words + strlen(words) };
    Text t = { .arena = forever };

    err_hook = hear;
    if (!setjmp(heard)) {
        Issue l = { 0 };
        issue_text(&(Codec){ .in = &x }, &l);
        issue_text(&(Codec){ .out = &t }, &l);
        snprintf(message, sizeof message, "%s", t.s ? t.s : "");
    }
    err_hook = NULL;
    return message;
}

static void fields(void **state)
{
    static const char *const good[] = {
        "", "stream=comm wait=e1,e22 record=e3 priority=1 sms=16",
        "stream=p2p wait=e4", "record=e1048576"
    };
    static const struct {
        const char *words, *says;
    } bad[] = {
        { " stream=fast", "fast" },    { " wait=3", "expected 'e'" },
        { " wait=e0", "event" },       { " record=e1048577", "event" },
        { " priority=2", "priority" }, { " sms=0", "multiprocessors" }
    };

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_string_equal(told(good[i]), good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!strstr(told(bad[i].words), bad[i].says))
            fail_msg("'%s': %s", bad[i].words, message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_of_phases), cmocka_unit_test(waits_of_tables),
        cmocka_unit_test(waits_of_passes), cmocka_unit_test(same_bits),
        cmocka_unit_test(any_order),       cmocka_unit_test(fields)
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
