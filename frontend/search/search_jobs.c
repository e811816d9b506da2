/* search_jobs.c: the compiles of `search`, each in a child process: an error in
 * a pass ends only that process. Plans are of the whole model, or short: one
 * pipeline stage with few of the consecutive equal units, so that the cost of a
 * unit is the difference of two plans. */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "search.h"

enum { POLL = 2000 }; /* microseconds */

double search_clock(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int search_cores(void)
{
    int n = (int)sysconf(_SC_NPROCESSORS_ONLN);

    return n > 0 ? n : 1;
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

static _Noreturn void run_job(const Jobs *jobs, int i, SearchJob *job,
                              void *ctx)
{
    int null = open("/dev/null", O_WRONLY);

    dup2(null, STDERR_FILENO);
    dup2(null, STDOUT_FILENO);
    jobs->done[i] =
        job(ctx, i, jobs->out + jobs->size * (size_t)i) ? JOBdone : JOBrefused;
    _exit(0);
}

/* Returns the index of a job whose process ended; -1: none has. */
static int reap(Jobs *jobs, int flags)
{
    int status;
    pid_t pid = waitpid(-1, &status, flags);

    for (int i = 0; i < jobs->n && pid > 0; i++)
        if (jobs->pid[i] == pid) {
            jobs->pid[i] = 0;
            jobs->running--;
            if (jobs->done[i] == JOBnot)
                jobs->done[i] = JOBrefused;
            return i;
        }
    return -1;
}

static void stop_jobs(Jobs *jobs)
{
    for (int i = 0; i < jobs->n; i++)
        if (jobs->pid[i] > 0)
            kill(jobs->pid[i], SIGKILL);
    while (jobs->running) {
        int i = reap(jobs, 0);
        if (i >= 0 && jobs->done[i] == JOBrefused)
            jobs->done[i] = JOBnot;
    }
}

/* Runs f(ctx, i, out + i * size) for each i < n in a child process, as many at
 * once as there are processors, until search_clock() is `end`. Returns the
 * state of each job: returned 1, failed, or not finished. */
static char *search_run(int n, size_t size, void *out, double end,
                        SearchJob *job, void *ctx)
{
    size_t bytes = (size_t)n * (size + 1) + 1;
    int cores = search_cores();
    Jobs x = { .n = n, .size = size };

    x.out = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (x.out == MAP_FAILED)
        err(NULL, "cannot start a process: %s", strerror(errno));
    x.done = x.out + (size_t)n * size;
    x.pid = alloc(forever, (size_t)(n + 1) * sizeof *x.pid);
    fflush(NULL);
    for (int i = 0; i < n && search_clock() < end;) {
        if (x.running < cores) {
            x.pid[i] = fork();
            if (!x.pid[i])
                run_job(&x, i, job, ctx);
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

/* ---- equal units --------------------------------------------------------- */

static int layer_of(const SearchModel *model, const Node *n)
{
    for (int i = 0; i < model->nunit && n->scope->unit; i++)
        if (model->unit[i].scope == n->scope->unit)
            return i;
    return -1;
}

/* Are a and b the same op, of the same sizes, on corresponding operands? */
static int same_node(const SearchModel *model, const Node *a, const Node *b)
{
    int same =
        a->op == b->op && a->dt == b->dt && a->nd == b->nd && a->nin == b->nin;

    for (int i = 0; i < a->nd && same; i++)
        same = a->dim[i].n == b->dim[i].n;
    for (int i = 0; i < a->nin && same; i++) {
        int x = layer_of(model, a->in[i]) == layer_of(model, a);
        int y = layer_of(model, b->in[i]) == layer_of(model, b);
        same = x == y && (!x || a->in[i]->mark == b->in[i]->mark);
    }
    return same;
}

static int alike(const SearchModel *model, const SearchUnit *a,
                 const SearchUnit *b)
{
    size_t n = vec_len(a->node);
    int same = n == vec_len(b->node) && a->scope->kind == b->scope->kind;

    for (size_t i = 0; i < n && same; i++)
        same = same_node(model, a->node[i], b->node[i]);
    return same;
}

static void find_model_units(SearchModel *model, Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (!n->scope->unit)
            continue;
        int u = layer_of(model, n);
        if (u < 0) {
            SearchUnit unit = { .scope = n->scope->unit };
            vec_push(forever, model->unit, unit);
            u = model->nunit++;
        }
        n->mark = (int)vec_len(model->unit[u].node);
        vec_push(forever, model->unit[u].node, n);
        model->unit[u].flops += flops_of(g, n);
    }
}

/* Elements of the parameters of unit u (-1: of no unit) and of its results that
 * later units read. */
static UnitShape shape_of(const SearchModel *model, Graph *g, int u)
{
    UnitShape s = { 0 };
    Table *picked = table_new(forever);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        int in = layer_of(model, n) == u;
        if (n->op == Opick && in) {
            *table_at(picked, KEYP(n->in[0])) = g->node[i];
            const Node *e = choice_of(n->in[1]);
            s.chosen = e->op == Otopk ? (double)e->at.topk.k : 1;
        }
        for (int k = 0; k < n->nin && !in && u >= 0; k++)
            if (layer_of(model, n->in[k]) == u && !is_lasting(n->in[k]) &&
                s.row < (double)g_elems(n->in[k]))
                s.row = (double)g_elems(n->in[k]);
    }
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        double *to = table_get(picked, KEYP(n)) ? &s.expert : &s.dense;
        if (n->op == Oparam && layer_of(model, n) == u)
            *to += (double)g_elems(n);
    }
    return s;
}

void search_units(SearchModel *model, Graph *g)
{
    *model = (SearchModel){ 0 };
    g_renumber(g);
    find_model_units(model, g);
    for (int u = 0; u < model->nunit; u++) {
        if (!u || !alike(model, &model->unit[u - 1], &model->unit[u]))
            model->nrun++;
        model->unit[u].run = model->nrun - 1;
    }
    model->left =
        alloc(forever, (size_t)(model->nrun + 1) * sizeof *model->left);
    for (int u = 0; u < model->nunit; u++)
        model->left[model->unit[u].run]++;
}

void search_shapes(SearchModel *model, Graph *g)
{
    model->shape =
        alloc(forever, (size_t)(model->nrun + 1) * sizeof *model->shape);
    for (int u = 0; u < model->nunit; u++)
        if (!u || model->unit[u].run != model->unit[u - 1].run)
            model->shape[model->unit[u].run] = shape_of(model, g, u);
    model->ends = shape_of(model, g, -1);
}

/* By id: the node of the last kept unit of the run that replaces a removed
 * node; null: the node is kept. keep[r]: number of first units of run r to
 * keep. */
static Node **left_out(Arena *a, const Graph *g, const SearchModel *model,
                       const int *keep)
{
    Node **to = alloc(a, (vec_len(g->node) + 1) * sizeof *to);

    for (int u = 0, at = 0, last = 0; u < model->nunit; u++) {
        at = u && model->unit[u].run == model->unit[u - 1].run ? at + 1 : 0;
        last = at < keep[model->unit[u].run] ? u : last;
        for (size_t j = 0; last != u && j < vec_len(model->unit[u].node); j++)
            to[model->unit[u].node[j]->id] = model->unit[last].node[j];
    }
    return to;
}

/* A copy of n for the short model, with operands from `copy`. */
static Node *short_copy(Arena *a, const Node *n, Node *const *to,
                        Node *const *copy)
{
    Node *c = alloc(a, sizeof *c);

    *c = *n;
    c->in = alloc(a, ((size_t)n->nin + 1) * sizeof *c->in);
    for (int k = 0; k < n->nin; k++) {
        const Node *x = to[n->in[k]->id] ? to[n->in[k]->id] : n->in[k];
        c->in[k] = copy[x->id];
    }
    if (n->map)
        c->map = copy[(to[n->map->id] ? to[n->map->id] : n->map)->id];
    return c;
}

/* The text of g with keep[r] units of each run r. */
static const char *short_text(const Graph *g, const SearchModel *model,
                              const int *keep)
{
    Arena *a = arena_new();
    Node **to = left_out(a, g, model, keep);
    Node **copy = alloc(a, (vec_len(g->node) + 1) * sizeof *copy);
    Table *there = table_new(a);
    Graph h = *g;

    h.node = NULL;
    h.param = NULL;
    h.nhf = 0;
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (to[i])
            continue;
        copy[i] = short_copy(a, n, to, copy);
        if (is_lasting(n))
            *table_at(there, KEYP(n_name(n))) = copy[i];
        vec_push(a, h.node, copy[i]);
    }
    for (size_t i = 0; i < vec_len(g->param); i++)
        if (table_get(there, KEYP(g->param[i]->path)))
            vec_push(a, h.param, g->param[i]);
    const char *text = graph_print(forever, &h, PRINTloc);
    arena_free(a);
    return text;
}

/* Makes the short texts of the model with this number of sequences, once. Units
 * correspond to those of the first trace; nodes do not. */
static void make_short_texts(const Search *search, SearchTrace *model)
{
    int n = search->units.nrun;
    int *keep = alloc(forever, (size_t)(n + 1) * sizeof *keep);
    SearchModel own;

    if (model->text)
        return;
    search_units(&own, model->g);
    model->text = alloc(forever, (size_t)(n + 1) * sizeof *model->text);
    for (int r = 0; r < n; r++)
        keep[r] = 1;
    model->text[0] = short_text(model->g, &own, keep);
    for (int r = 0; r < n; r++) {
        keep[r] = 2;
        if (own.left[r] > 1)
            model->text[r + 1] = short_text(model->g, &own, keep);
        keep[r] = 1;
    }
}

/* ---- plans --------------------------------------------------------------- */

static void set_key(Opts *opts, const char *key, int64_t v)
{
    opts_set(opts, key, strf(forever, "%lld", (long long)v), NULL);
}

static void set_words(Opts *opts, const char *words)
{
    char *next = NULL, *w = words ? strf(forever, "%s", words) : NULL;

    for (w = w ? strtok_r(w, " ", &next) : NULL; w;
         w = strtok_r(NULL, " ", &next)) {
        size_t n = strcspn(w, "=");
        opts_set(opts, internn(w, n), intern(w + n + 1), NULL);
    }
}

void search_keys(Opts *opts, const Point *point)
{
    static const MeshAxis axis[] = { Mtp, Mcp, Mdp, Mpp, Metp, Mep };

    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        set_key(opts, strf(forever, "fold.%s", meshnames[axis[i]]),
                point->size[axis[i]]);
    set_key(opts, "fold.vpp", point->vpp);
    set_key(opts, "fold.zero", point->zero);
    opts_set(opts, "fold.schedule",
             key_word_text("fold.schedule", point->schedule), NULL);
    set_key(opts, "axes.batch", point->batch);
    set_words(opts, point->more);
}

static SearchTrace *model_of(const Search *search, const Point *point)
{
    for (size_t i = 0; i < vec_len(search->model); i++)
        if (search->model[i].batch == point->batch)
            return &search->model[i];
    die("search: no model has a batch of %lld", (long long)point->batch);
}

static Plan *compile_point(const Search *search, Graph *g, const Point *point,
                           unsigned without, Table *lowered)
{
    CompileOptions o = {
        .out = stdout, .prices = 1, .without = without, .lowered = lowered
    };

    search_keys(g->opts, point);
    opts_check(g->opts);
    return compile(g, search->target, &o);
}

/* Seconds of a step with n micro-batches on one stage. *open: seconds of
 * exposed transfers. */
static double secs_of_micros(Plan *p, int64_t n, double *open)
{
    const Role *role = p->role;
    Program *step = &role->prog[role_prog(role, PGstep)];

    for (int f = 0; f < step->nphase; f++)
        if (step->phase[f].reg == REGbody || step->phase[f].reg == REGden)
            step->phase[f].repeat = n;
    double secs = plan_secs(p, PGstep);
    *open = secs - plan_bare(p, PGstep);
    return secs;
}

/* Peak bytes in post of program k. */
static double post_peak(const Role *role, int k)
{
    const Program *step = &role->prog[k];
    double *more = alloc(forever, ((size_t)step->ninstr + 2) * sizeof *more);
    double now = 0, peak = 0;
    int last = 0;

    for (int f = 0; f < step->nphase; f++)
        if (step->phase[f].reg == REGbody)
            last = step->phase[f].first + step->phase[f].n - 1;
    for (int i = 0; i < role->nbuf; i++) {
        const Buf *b = &role->buf[i];
        if (b->prog != k || b->stack || in_host(role, b))
            continue;
        more[b->born] += (double)b->bytes;
        more[b->dies + 1] -= (double)b->bytes;
    }
    for (int i = 0; i < step->ninstr; i++) {
        now += more[i];
        peak = i > last && now > peak ? now : peak;
    }
    return peak;
}

static void measure(const Plan *p, UnitCost *out)
{
    const Role *role = p->role;
    int k = role_prog(role, PGstep), other = role_prog(role, PGfallback);

    for (int f = 0; f < role->prog[k].nphase; f++)
        if (role->prog[k].phase[f].reg == REGbody)
            out->calls = role->prog[k].phase[f].n;
    out->step = role->prog[k].kept;
    if (other >= 0)
        out->fallback = role->prog[other].kept;
    out->post_bytes = post_peak(role, k);
    out->persist = (double)role->persist;
    for (int i = 0; i < role->nbuf; i++)
        if (role->buf[i].cls == Boptim && !in_host(role, &role->buf[i]))
            out->optim += (double)role->buf[i].bytes;
}

static int has_pairs(const Plan *p)
{
    const Program *step = role_program(p->role, PGstep);
    int pairs = 0;

    for (int f = 0; f < step->nphase; f++)
        pairs |= step->phase[f].reg == REGbody && step->phase[f].pair;
    return pairs;
}

/* Prices the short model of this text in this fold. */
static void price_short(const Search *search, const ShortFold *fold,
                        const char *text, Table *lowered, UnitCost *out)
{
    Arena *a = arena_new();
    Opts *opts = opts_new(a);
    Point p = fold->point;
    unsigned without = 1u << PGeval | 1u << PGforward | 1u << PGinit |
                       1u << PGwatched |
                       (fold->step_only ? 1u << PGfallback : 0);
    double open1, open2;

    opts_copy(opts, model_of(search, &p)->g->opts);
    set_key(opts, "world", fold->world);
    if (!states_price(opts))
        opts_set(opts, "train.recompute", fold->rebuild ? "1e12" : "0", NULL);
    set_key(opts, "fold.pair", fold->pair);
    p.size[Mpp] = p.vpp = 1;
    p.schedule = 0;
    Graph *g = graph_parse(a, text, strlen(text), "short model", opts);
    Plan *plan = compile_point(search, g, &p, without, lowered);
    measure(plan, out);
    double one = secs_of_micros(plan, 1, &open1);
    double two = secs_of_micros(plan, 2, &open2);
    int run = has_pairs(plan) ? 2 : 1;
    out->body = (two - one) / run;
    out->open = (open2 - open1) / run;
    out->rest = one - (two - one);
    arena_free(a);
}

typedef struct ShortJobs {
    const Search *search;
    const ShortFold *fold;
} ShortJobs;

/* Prices all short plans of a fold in one process: they share most kernels. */
static int short_job(void *ctx, int i, void *result)
{
    const ShortJobs *jobs = ctx;
    const Search *search = jobs->search;
    const ShortFold *fold = &jobs->fold[i];
    const char *const *text = model_of(search, &fold->point)->text;
    Table *lowered = table_new(forever);
    UnitCost *out = result;

    for (int r = 0; r <= search->units.nrun; r++)
        if (text[r])
            price_short(search, fold, text[r], lowered, out++);
    return 1;
}

double search_short_work(const Search *search)
{
    const SearchModel *model = &search->units;
    double all = (double)vec_len(search->model[0].g->node), one = all, sum = 0;
    int texts = 1;

    for (int u = 0; u < model->nunit; u++) {
        int first = !u || model->unit[u].run != model->unit[u - 1].run;
        double nodes = (double)vec_len(model->unit[u].node);
        one -= first ? 0 : nodes;
        if (first && model->left[model->unit[u].run] > 1) {
            sum += nodes;
            texts++;
        }
    }
    return texts * one + sum;
}

char *search_short(const Search *search, const ShortFold *fold, int n,
                   UnitCost *out, double end)
{
    ShortJobs jobs = { search, fold };
    size_t each = (size_t)(search->units.nrun + 1) * sizeof *out;

    for (int i = 0; i < n; i++)
        make_short_texts(search, model_of(search, &fold[i].point));
    return search_run(n, each, out, end, short_job, &jobs);
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
    const WholeJobs *jobs = ctx;
    const Search *search = jobs->search;
    Plan *p = compile_point(search, model_of(search, jobs->point[i])->g,
                            jobs->point[i], 0, NULL);

    *(Forecast *)result = search_forecast(p);
    return plan_time(forever, p, PGstep).stuck == NULL;
}

char *search_whole(const Search *search, const Point *const *p, int n,
                   Forecast *out, double end)
{
    WholeJobs x = { search, p };

    return search_run(n, sizeof *out, out, end, whole_job, &x);
}
