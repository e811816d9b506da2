/* search_jobs.c: what `search` compiles, each plan in a process of its own: a
 * fold that a pass refuses ends only that process. Whole models; and short ones
 * on one pipeline stage, where of units that are alike, one after another, a
 * few are left, so that what a unit costs is the difference of two plans. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "frontend.h"

enum { POLL = 2000 }; /* microseconds */

double search_clock(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef int SearchJob(void *ctx, int i, void *out);

/* ---- processes ----------------------------------------------------------- */

typedef struct Jobs {
    int n;
    size_t size;
    char *out, *done;
    pid_t *pid;
    int running;
} Jobs;

static _Noreturn void run_job(const Jobs *x, int i, SearchJob *f, void *ctx)
{
    int null = open("/dev/null", O_WRONLY);

    dup2(null, STDERR_FILENO);
    dup2(null, STDOUT_FILENO);
    x->done[i] = f(ctx, i, x->out + x->size * (size_t)i) ? JOBdone : JOBrefused;
    _exit(0);
}

/* One of them has ended: which? -1: none has yet. */
static int reap(Jobs *x, int flags)
{
    int status;
    pid_t pid = waitpid(-1, &status, flags);

    for (int i = 0; i < x->n && pid > 0; i++)
        if (x->pid[i] == pid) {
            x->pid[i] = 0;
            x->running--;
            if (x->done[i] == JOBnot)
                x->done[i] = JOBrefused;
            return i;
        }
    return -1;
}

static void stop_jobs(Jobs *x)
{
    for (int i = 0; i < x->n; i++)
        if (x->pid[i] > 0)
            kill(x->pid[i], SIGKILL);
    while (x->running) {
        int i = reap(x, 0);
        if (i >= 0 && x->done[i] == JOBrefused)
            x->done[i] = JOBnot;
    }
}

/* f(ctx, i, out of size bytes) of each i < n in a process of its own, as many
 * at once as there are processors, until search_clock() is `end`. Which of them
 * returned 1, which ended otherwise, which were not or not wholly run. */
static char *search_run(int n, size_t size, void *out, double end, SearchJob *f,
                        void *ctx)
{
    size_t bytes = (size_t)n * (size + 1) + 1;
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    Jobs x = { .n = n, .size = size };

    x.out = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (x.out == MAP_FAILED)
        err(NULL, "cannot start a process: %s", strerror(errno));
    x.done = x.out + (size_t)n * size;
    x.pid = alloc(forever, (size_t)(n + 1) * sizeof *x.pid);
    fflush(NULL);
    for (int i = 0; i < n && search_clock() < end;) {
        if (x.running < (cores > 0 ? cores : 1)) {
            x.pid[i] = fork();
            if (!x.pid[i])
                run_job(&x, i, f, ctx);
            x.running += x.pid[i] > 0;
            i++;
        } else if (reap(&x, WNOHANG) < 0) {
            usleep(POLL);
        }
    }
    while (x.running && search_clock() < end)
        if (reap(&x, WNOHANG) < 0)
            usleep(POLL);
    stop_jobs(&x);
    memcpy(out, x.out, (size_t)n * size);
    char *done = alloc(forever, (size_t)n + 1);
    memcpy(done, x.done, (size_t)n);
    munmap(x.out, bytes);
    return done;
}

/* ---- units that are alike ------------------------------------------------ */

static int layer_of(const SearchModel *m, const Node *n)
{
    for (int i = 0; i < m->nunit && n->scope->unit; i++)
        if (m->unit[i].scope == n->scope->unit)
            return i;
    return -1;
}

static double flops_in(const Graph *g, const Node *n)
{
    double f = n->op == Opick ? 0 : cost_of(g, n).flops;

    for (size_t i = 0; n->body && i < vec_len(n->body->node); i++)
        f += flops_in(n->body, n->body->node[i]);
    return f;
}

/* Same ops of the same sizes on the same values of their own. */
static int same_node(const SearchModel *m, const Node *a, const Node *b)
{
    int same =
        a->op == b->op && a->dt == b->dt && a->nd == b->nd && a->nin == b->nin;

    for (int i = 0; i < a->nd && same; i++)
        same = a->dim[i].n == b->dim[i].n;
    for (int i = 0; i < a->nin && same; i++) {
        int x = layer_of(m, a->in[i]) == layer_of(m, a);
        int y = layer_of(m, b->in[i]) == layer_of(m, b);
        same = x == y && (!x || a->in[i]->mark == b->in[i]->mark);
    }
    return same;
}

static int alike(const SearchModel *m, const SearchUnit *a, const SearchUnit *b)
{
    size_t n = vec_len(a->node);
    int same = n == vec_len(b->node) && a->scope->kind == b->scope->kind;

    for (size_t i = 0; i < n && same; i++)
        same = same_node(m, a->node[i], b->node[i]);
    return same;
}

static void find_model_units(SearchModel *m, Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (!n->scope->unit)
            continue;
        int u = layer_of(m, n);
        if (u < 0) {
            SearchUnit unit = { .scope = n->scope->unit };
            vec_push(forever, m->unit, unit);
            u = m->nunit++;
        }
        n->mark = (int)vec_len(m->unit[u].node);
        vec_push(forever, m->unit[u].node, n);
        m->unit[u].flops += flops_in(g, n);
    }
}

/* Elements of the parameters that unit u reads, -1: those of no unit; what the
 * units behind it read of it. */
static UnitShape shape_of(const SearchModel *m, Graph *g, int u)
{
    UnitShape s = { 0 };
    Table *picked = table_new(forever);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        int in = layer_of(m, n) == u;
        if (n->op == Opick && in) {
            *table_at(picked, KEYP(n->in[0])) = g->node[i];
            const Node *e = choice_of(n->in[1]);
            s.chosen = e->op == Otopk ? (double)e->at.topk.k : 1;
        }
        for (int k = 0; k < n->nin && !in && u >= 0; k++)
            if (layer_of(m, n->in[k]) == u && !is_lasting(n->in[k]) &&
                s.row < (double)g_elems(n->in[k]))
                s.row = (double)g_elems(n->in[k]);
    }
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        double *to = table_get(picked, KEYP(n)) ? &s.expert : &s.dense;
        if (n->op == Oparam && layer_of(m, n) == u)
            *to += (double)g_elems(n);
    }
    return s;
}

void search_units(SearchModel *m, Graph *g)
{
    *m = (SearchModel){ 0 };
    g_renumber(g);
    find_model_units(m, g);
    for (int u = 0; u < m->nunit; u++) {
        if (!u || !alike(m, &m->unit[u - 1], &m->unit[u]))
            m->nrun++;
        m->unit[u].run = m->nrun - 1;
    }
    m->left = alloc(forever, (size_t)(m->nrun + 1) * sizeof *m->left);
    for (int u = 0; u < m->nunit; u++)
        m->left[m->unit[u].run]++;
}

void search_shapes(SearchModel *m, Graph *g)
{
    m->shape = alloc(forever, (size_t)(m->nrun + 1) * sizeof *m->shape);
    for (int u = 0; u < m->nunit; u++)
        if (!u || m->unit[u].run != m->unit[u - 1].run)
            m->shape[m->unit[u].run] = shape_of(m, g, u);
    m->ends = shape_of(m, g, -1);
}

/* g with keep[r] units of each run r, the first ones; what others make, the
 * last of these stands for. */
static void shorten(Graph *g, const SearchModel *m, const int *keep)
{
    Node **to = alloc(g->arena, (vec_len(g->node) + 1) * sizeof *to),
         **v = NULL;
    Table *there = table_new(g->arena);
    Param **params = NULL;

    for (int u = 0, at = 0, last = 0; u < m->nunit; u++) {
        at = u && m->unit[u].run == m->unit[u - 1].run ? at + 1 : 0;
        last = at < keep[m->unit[u].run] ? u : last;
        for (size_t j = 0; last != u && j < vec_len(m->unit[u].node); j++)
            to[m->unit[u].node[j]->id] = m->unit[last].node[j];
    }
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (to[n->id])
            continue;
        for (int k = 0; k < n->nin; k++)
            n->in[k] = to[n->in[k]->id] ? to[n->in[k]->id] : n->in[k];
        if (n->map && to[n->map->id])
            n->map = to[n->map->id];
        if (is_lasting(n))
            *table_at(there, KEYP(n_name(n))) = n;
        vec_push(g->arena, v, n);
    }
    g->node = v;
    for (size_t i = 0; i < vec_len(g->param); i++)
        if (table_get(there, KEYP(g->param[i]->path)))
            vec_push(g->arena, params, g->param[i]);
    g->param = params;
    g->bypath = NULL;
    g->nbypath = 0;
    g->nhf = 0;
    g_renumber(g);
}

/* ---- plans --------------------------------------------------------------- */

static void set_key(Opts *o, const char *key, int64_t v)
{
    opts_set(o, key, strf(forever, "%lld", (long long)v), NULL);
}

void search_keys(Opts *o, const Point *p)
{
    static const MeshAxis axis[] = { Mtp, Mcp, Mdp, Mpp, Metp, Mep };

    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        set_key(o, strf(forever, "fold.%s", meshnames[axis[i]]),
                p->size[axis[i]]);
    set_key(o, "fold.vpp", p->vpp);
    set_key(o, "fold.zero", p->zero);
    opts_set(o, "fold.schedule", key_word_text("fold.schedule", p->schedule),
             NULL);
    set_key(o, "axes.batch", p->batch);
}

static Graph *graph_of(const Search *s, const Point *p)
{
    for (size_t i = 0; i < vec_len(s->model); i++)
        if (s->model[i].batch == p->batch)
            return s->model[i].g;
    die("search: no model has a batch of %lld", (long long)p->batch);
}

static Plan *compile_point(const Search *s, Graph *g, const Point *p,
                           unsigned without)
{
    CompileOptions o = { .out = stdout, .prices = 1, .without = without };

    search_keys(g->opts, p);
    opts_check(g->opts);
    return compile(g, s->target, &o);
}

/* Seconds of a step that has n micro-batches on one stage; of them those in
 * which transfers are not hidden. */
static double secs_of_micros(Plan *p, int64_t n, double *open)
{
    const Role *r = p->role;
    Program *step = &r->prog[role_prog(r, PGstep)];

    for (int f = 0; f < step->nphase; f++)
        if (step->phase[f].reg == REGbody || step->phase[f].reg == REGden)
            step->phase[f].repeat = n;
    double secs = plan_secs(p, PGstep);
    *open = secs - plan_bare(p, PGstep);
    return secs;
}

/* Bytes alive in each region of program k, body and post. */
static void peaks_of(const Role *r, int k, double peak[2], double *accum)
{
    const Program *step = &r->prog[k];
    double *more = alloc(forever, ((size_t)step->ninstr + 2) * sizeof *more);
    double now = 0;
    int last = 0;

    for (int f = 0; f < step->nphase; f++)
        if (step->phase[f].reg == REGbody)
            last = step->phase[f].first + step->phase[f].n - 1;
    for (int i = 0; i < r->nbuf; i++) {
        const Buf *b = &r->buf[i];
        if (b->prog != k || b->stack || in_host(r, b))
            continue;
        more[b->born] += (double)b->bytes;
        more[b->dies + 1] -= (double)b->bytes;
        if (b->born <= last && b->dies > last)
            *accum += (double)b->bytes;
    }
    for (int i = 0; i < step->ninstr; i++) {
        now += more[i];
        peak[i > last] = now > peak[i > last] ? now : peak[i > last];
    }
}

static void measure(const Plan *p, UnitCost *out)
{
    const Role *r = p->role;
    int k = role_prog(r, PGstep), other = role_prog(r, PGfallback);
    double peak[2] = { 0 }, rare[2] = { 0 }, accum = 0;

    peaks_of(r, k, peak, &out->accum);
    if (other >= 0)
        peaks_of(r, other, rare, &accum);
    for (int f = 0; f < r->prog[k].nphase; f++)
        if (r->prog[k].phase[f].reg == REGbody)
            out->calls = r->prog[k].phase[f].n;
    out->body_bytes = peak[0];
    out->post_bytes = peak[1];
    out->fallback_bytes = rare[0];
    out->persist = (double)r->persist;
}

static int short_job(void *ctx, int i, void *result)
{
    const ShortJobs *x = ctx;
    const ShortPlan *want = &x->want[i];
    const Search *s = x->search;
    const SearchModel *m = &s->units;
    Graph *g = graph_of(s, &want->point);
    Point p = want->point;
    UnitCost *out = result;
    SearchModel own;
    double open1, open2;

    int *keep = alloc(forever, (size_t)(m->nrun + 1) * sizeof *keep);
    for (int r = 0; r < m->nrun; r++)
        keep[r] = r == want->run ? 2 : 1;
    search_units(&own, g);
    shorten(g, &own, keep);
    set_key(g->opts, "world", want->world);
    set_key(g->opts, "train.recompute", 0);
    if (want->rebuild)
        opts_set(g->opts, "train.recompute", "1e12", NULL);
    p.size[Mpp] = p.vpp = 1;
    p.schedule = 0;
    Plan *plan =
        compile_point(s, g, &p, 1u << PGeval | 1u << PGforward | 1u << PGinit);
    measure(plan, out);
    double one = secs_of_micros(plan, 1, &open1);
    double two = secs_of_micros(plan, 2, &open2);
    out->body = two - one;
    out->open = open2 - open1;
    out->rest = one - out->body;
    return 1;
}

char *search_short(ShortJobs *x, int n, UnitCost *out, double end)
{
    return search_run(n, sizeof *out, out, end, short_job, x);
}

/* ---- whole plans --------------------------------------------------------- */

static double rebuilt_in(const Plan *p)
{
    double most = 0;

    for (int i = 0; i < p->nrole; i++) {
        int k = role_prog(&p->role[i], PGstep);
        most = k >= 0 && p->role[i].prog[k].rebuilt > most
                   ? p->role[i].prog[k].rebuilt
                   : most;
    }
    return most;
}

static Forecast search_forecast(const Plan *p)
{
    Planned t = plan_time(forever, p, PGstep);
    Forecast f = { .secs = t.makespan, .again = rebuilt_in(p) };
    double busy = 0;

    for (int i = 0; i < p->nrole; i++) {
        f.bytes = (double)p->role[i].arena > f.bytes ? (double)p->role[i].arena
                                                     : f.bytes;
        busy = t.busy[i] > busy ? t.busy[i] : busy;
    }
    f.open = t.makespan - plan_bare(p, PGstep);
    f.idle = p->nrole > 1 ? t.makespan - busy : 0;
    return f;
}

typedef struct WholeJobs {
    const Search *search;
    const Point *const *point;
} WholeJobs;

static int whole_job(void *ctx, int i, void *result)
{
    const WholeJobs *x = ctx;
    const Search *s = x->search;
    Plan *p = compile_point(s, graph_of(s, x->point[i]), x->point[i], 0);

    *(Forecast *)result = search_forecast(p);
    return plan_time(forever, p, PGstep).stuck == NULL;
}

char *search_whole(const Search *s, const Point *const *p, int n, Forecast *out,
                   double end)
{
    WholeJobs x = { s, p };

    return search_run(n, sizeof *out, out, end, whole_job, &x);
}
