/* commands.c: what check, compile, run, eval, show and generate do. A model
 * file is traced, and compiled, in a process of its own; a plan comes back as
 * text. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontend.h"

/* ---- files --------------------------------------------------------------- */

void write_all(const char *path, const char *s, size_t n)
{
    FILE *out = fopen(path, "wb");

    if (!out || fwrite(s, 1, n, out) != n || fclose(out))
        err(NULL, "cannot write %s: %s", path, strerror(errno));
}

static Plan *read_plan(const char *path)
{
    size_t n;
    char *s = file_need(forever, path, &n);

    return plan_parse(forever, s, n, path);
}

/* Of a plan's file, or a run's folder. */
static Plan *plan_at(const char *word)
{
    const char *dir = folder_of(word);

    return read_plan(dir ? strf(forever, "%s/plan", dir) : word);
}

/* ---- from a model to a plan ---------------------------------------------- */

const Target *target_of(const Opts *o)
{
    const char *name = opts_str(o, "target");
    const Target *t = target_named(name ? name : "host");

    if (!t)
        err(opts_loc(o, "target"), "target '%s' is not in this build", name);
    return t;
}

/* The file is a model, or what -x wrote: the model's graph, then programs. */
static Trace read_model(Args *a, Graph ***stage)
{
    FileKind kind = file_kind(a->file);
    size_t n;

    if (a->past)
        return trace_sources(a->past->source, a->past->nsource, a->keys);
    if (kind == FILEplan)
        err(NULL, "%s is a plan, not a model; pleat show tells what is in it",
            a->file);
    if (kind == FILEmodel)
        return trace(a->file, a->keys, 0);
    char *s = file_need(forever, a->file, &n);
    Arena *arena = arena_new();
    Source *source = NULL;
    Graph **v = graphs_parse(arena, s, n, a->file, a->keys, &source);
    for (size_t i = 1; i < vec_len(v); i++)
        vec_push(arena, *stage, v[i]);
    if (v[0]->after)
        err(NULL, "%s: begins after pass %s, not with the model's graph",
            a->file, v[0]->after);
    check_whole(v[0]);
    return (
        Trace){ .g = v[0], .source = source, .nsource = (int)vec_len(source) };
}

/* Pictures of graphs, as one that `dot` takes. */
static void write_graphs(const char *path, const Text *graphs)
{
    Text out = { .arena = forever };

    put(&out,
        "digraph pleat {\n  graph [fontname=\"Helvetica\", fontsize=12];\n"
        "  node [fontname=\"Helvetica\", fontsize=10, shape=box];\n"
        "  edge [fontname=\"Helvetica\", fontsize=8];\n");
    putn(&out, graphs->s ? graphs->s : "", graphs->len);
    put(&out, "}\n");
    write_all(path, out.s, out.len);
}

static ProgramKind program_of(const char *name, ProgramKind usual)
{
    ProgramKind k = name ? program_kind(name) : usual;

    if (k == NPROGRAM)
        err(NULL, "-p %s: there is no such program", name);
    return k;
}

/* A stated limit holds; one that is only the target's usual machine's may not
 * be that of the machine it will run on. */
static void check_memory(const Args *a, const Plan *p)
{
    const char *wrong = memory_wrong(p);
    Text t = { .arena = forever };

    if (!wrong)
        return;
    put(&t, "%s", wrong);
    if (!opts_given(p->opts, "memory") &&
        !opts_given(p->opts, "cluster.chip")) {
        warn(NULL, "%s", t.s);
        return;
    }
    if (file_kind(a->file) == FILEmodel && !a->past)
        put_fixes(&t, a, p);
    err(NULL, "%s", t.s);
}

/* Null when -x stopped it. */
static Plan *make_plan(Args *a, FILE *out)
{
    Graph **stage = NULL;
    Trace t = read_model(a, &stage);
    Text dot = { .arena = forever };
    CompileOptions o = { .stage = stage,
                         .dump = a->dump,
                         .stop = a->stop,
                         .prog = program_of(a->prog, PGstep),
                         .out = out,
                         .source = t.source,
                         .nsource = t.nsource };

    if (a->dot) {
        o.dot = &dot;
        o.dump = a->dump ? a->dump : "sharding";
        o.prog = program_of(a->prog, PGeval);
    }
    if (a->runs && !opts_given(t.g->opts, "train.expert_metrics"))
        opts_set(t.g->opts, "train.expert_metrics", "1", NULL);
    Plan *p = compile(t.g, target_of(t.g->opts), &o);
    if (a->dot && !dot.len)
        err(NULL,
            "%s: nothing to draw: it has no program '%s', or that does not go "
            "through %s",
            a->dot, programnames[o.prog], o.dump);
    if (a->dot)
        write_graphs(a->dot, &dot);
    if (p)
        check_memory(a, p);
    return p;
}

/* ---- check, compile, show ------------------------------------------------ */

static int check_job(void *arg, FILE *out)
{
    Args *a = arg;
    Graph **stage = NULL;
    Trace t = read_model(a, &stage);
    Text dot = { .arena = forever };

    if (a->dot) {
        graph_dot(&dot, t.g, 0, 1);
        write_graphs(a->dot, &dot);
    }
    (a->json ? report_json : report_model)(out, t.g);
    return 0;
}

static int check(Args *a)
{
    return guarded(check_job, a, NULL);
}

int cmd_check(Args *a)
{
    return a->json ? check_as_json(check, a) : check(a);
}

static const char *plan_name(const Args *a)
{
    const char *slash = strrchr(a->file, '/'), *s = slash ? slash + 1 : a->file;
    const char *dot = strrchr(s, '.');

    return a->out ? a->out
                  : strf(forever, "%.*s.plan",
                         (int)(dot ? dot - s : (long)strlen(s)), s);
}

static int compile_job(void *arg, FILE *out)
{
    Args *a = arg;
    Plan *p = make_plan(a, out);
    size_t n;

    if (!p)
        return 0;
    char *s = plan_print(forever, p, &n);
    write_all(plan_name(a), s, n);
    report_line(out, plan_name(a), p);
    return 0;
}

int cmd_compile(Args *a)
{
    return guarded(compile_job, a, NULL);
}

static void show_page(const Args *a, const Plan *p)
{
    const Plan *v[2] = { p, NULL };
    int n = (int)vec_len(a->word);

    if (n == 2)
        v[1] = plan_at(a->word[1]);
    draw_plans(a->html, v, a->word, n);
}

static void show_schedule(const Args *a, const Plan *p)
{
    const Schedule *s = plan_schedule(p, a->file);

    if (a->csv) {
        char *table = schedule_print(forever, s);
        write_all(a->csv, table, strlen(table));
    }
    if (a->schedule)
        fputs(draw_schedule(s), stdout);
}

static int fold_job(void *arg, FILE *out)
{
    Args *a = arg;

    report_fold(out, file_kind(a->file) == FILEplan ? read_plan(a->file)
                                                    : make_plan(a, out));
    return 0;
}

int cmd_show(Args *a)
{
    size_t n;

    if (a->fold)
        return guarded(fold_job, a, NULL);
    const char *key, *value;
    if (vec_len(a->word) > 1 && !a->html)
        err_usage("two plans are shown beside each other by --html FILE only");
    if (opts_each(a->keys, 0, &key, &value))
        err(NULL, "%s=%s: what a plan does is compiled in; --fold takes keys",
            key, value);
    Plan *p = plan_at(a->file);

    if (a->html)
        show_page(a, p);
    if (a->trace) {
        char *events = draw_time(p, &n);
        write_all(a->trace, events, n);
    }
    if (a->snapshot) {
        char *snapshot = draw_snapshot(p, &n);
        write_all(a->snapshot, snapshot, n);
    }
    if (a->schedule || a->csv)
        show_schedule(a, p);
    if (a->rank >= 0)
        report_rank(stdout, p, a->rank);
    if (a->memory)
        report_memory(stdout, p);
    else if (!a->html && !a->trace && !a->snapshot && !a->schedule && !a->csv &&
             a->rank < 0)
        report_plan(stdout, p);
    return 0;
}

/* ---- run, eval, bench ---------------------------------------------------- */

static int plan_job(void *arg, FILE *out)
{
    size_t n;

    char *s = plan_print(forever, make_plan(arg, stderr), &n);

    return fwrite(s, 1, n, out) != n;
}

/* In a process of its own, so that a mistake is one rank's to tell. */
static Text made(Args *a)
{
    Text out = { .arena = forever };

    if (a->ready.s)
        return a->ready;
    int status = guarded(plan_job, a, &out);

    if (status)
        exit(status);
    return out;
}

static int counts_only(const Args *a)
{
    const char *target = opts_str(a->keys, "target");
    const Device *d = target ? device_named(target) : NULL;

    return d && d->report;
}

void set_keys(Opts *o, const char *keys)
{
    char *text = strf(forever, "%s", keys), *next;

    for (char *key = strtok_r(text, " ", &next); key;
         key = strtok_r(NULL, " ", &next)) {
        char *value = strchr(key, '=');
        *value++ = 0;
        if (!opts_given(o, key))
            opts_set(o, key, value, NULL);
    }
}

static const char *run_of_model(const Args *a)
{
    const Plan p = { .model = a->file, .opts = a->keys };

    return run_dir(forever, &p);
}

/* The fold with which the run in a folder began, if on as many ranks. */
static int take_fold(Args *a)
{
    const char *path = strf(forever, "%s/config.lua", run_of_model(a));
    const Settings *c =
        opts_int(a->keys, "resume") ? config_read(forever, path) : NULL;
    const char *key, *value;

    if (!c || opts_int(c->given, "world") != launch_world())
        return 0;
    for (int i = 0; opts_each(c->given, i, &key, &value); i++)
        if (!strncmp(key, "fold.", 5))
            opts_set(a->keys, key, value, NULL);
    return 1;
}

/* Ranks that a launcher started for a model that states no fold. */
static void choose_fold(Args *a)
{
    int64_t world = launch_world();

    if (a->runs && !a->past && world > 1 && !launch_rank() &&
        opts_int(a->keys, "world") == world &&
        file_kind(a->file) == FILEmodel && !states_fold(a->keys) &&
        !take_fold(a))
        set_keys(a->keys, search_fold(a));
}

/* Plans of a model file as text: of the whole batch, then of train.ramp's
 * smaller ones. Rank 0 makes all before MPI starts, which no fork survives; the
 * other ranks get the bytes. */
static Text *plan_texts(Args *a, int ramps, Plan **p)
{
    int share = launched() && !counts_only(a), here = !launch_rank();
    int64_t until, batch = 1;
    Text *v = NULL, none = { .arena = forever };

    for (int i = 0; here && batch > 0; i++) {
        Text out = made(a);
        vec_push(forever, v, out);
        if (!i)
            *p = plan_parse(forever, out.s, out.len, a->file);
        batch = ramps ? ramp((*p)->opts, i, &until) : 0;
        if (batch > 0)
            opts_set(a->keys, "train.batch",
                     strf(forever, "%lld", (long long)batch), NULL);
    }
    for (int i = 0; share && (here ? i < (int)vec_len(v) : batch > 0); i++) {
        if (!here)
            vec_push(forever, v, none);
        comm_plan(&v[i]);
        if (!here && !i)
            *p = plan_parse(forever, v->s, v->len, a->file);
        batch = ramps ? ramp((*p)->opts, i, &until) : 0;
    }
    return v;
}

/* The plan, and with `ramps` one for each smaller batch of train.ramp. */
static Plan *compiled(Args *a, RunArgs *r, int ramps)
{
    RampStage *v = NULL;
    Plan *p = NULL;

    take_launch(a->keys, a->keys);
    if (counts_only(a) && launch_rank())
        exit(0);
    choose_fold(a);
    Text *text = plan_texts(a, ramps, &p);
    for (size_t i = 1; i < vec_len(text); i++) {
        RampStage g = { .plan = plan_parse(forever, text[i].s, text[i].len,
                                           a->file) };
        ramp(p->opts, (int)i - 1, &g.until);
        vec_push(forever, v, g);
    }
    *r = (RunArgs){
        .text = text->s, .len = text->len, .ramp = v, .nramp = (int)vec_len(v)
    };
    return p;
}

/* Keys given beside a plan change what the plan does not depend on. */
static void change_keys(Plan *p, const Args *a)
{
    const char *key, *value;

    for (int i = 0; opts_each(a->keys, i, &key, &value); i++) {
        const Device *d = strcmp(key, "target") ? NULL : device_named(value);
        if (d && d->report) {
            p->target = d->name;
            continue;
        }
        if (!run_key(key))
            err(NULL,
                "key '%s' is compiled into %s; compile again to change it", key,
                a->file);
        opts_set(p->opts, key, value, NULL);
    }
    tokenizer_from(p->opts);
}

/* A model file's data.valid need not be there when data.train is another. */
static void drop_valid(Plan *p, const Args *a)
{
    const char *path = opts_str(p->opts, "data.valid");

    if (!path || !opts_given(a->keys, "data.train") ||
        opts_given(a->keys, "data.valid") || strpbrk(path, "*?[{:= ") ||
        !access(path, F_OK) || !access(strf(forever, "%s.idx", path), F_OK))
        return;
    if (!launch_rank())
        warn(NULL,
             "data.valid: no file %s; there will be no validation "
             "(data.valid=path sets it)",
             path);
    opts_set(p->opts, "data.valid", "", NULL);
}

static int run_or_count(Plan *p, const RunArgs *r)
{
    const Device *d = device_named(p->target);

    if (!d || !d->report)
        return run_plan(p, r);
    if (!launch_rank())
        d->report(stdout, p);
    return 0;
}

/* `run` of a model is for the best device that is here; rank 0 compiles for
 * all. */
static void choose_target(Args *a)
{
    const char *here = device_here()->name;

    if (file_kind(a->file) != FILEplan && !folder_of(a->file) &&
        !opts_str(a->keys, "target") && !launch_rank() && target_named(here) &&
        strcmp(target_of(a->keys)->name, here))
        opts_set(a->keys, "target", here, NULL);
}

static Plan *plan_of(Args *a, RunArgs *r, int ramps)
{
    const char *dir = folder_of(a->file);
    Text over = { .arena = forever };
    Plan *p;

    if (file_kind(a->file) == FILEplan) {
        p = read_plan(a->file);
        change_keys(p, a);
        check_model(&(Args){ .file = a->file, .past = p, .keys = p->opts },
                    run_dir(forever, p));
        return p;
    }
    if (dir)
        over = take_folder(a, dir);
    else
        check_model(a, run_of_model(a));
    p = compiled(a, r, ramps);
    if (dir)
        share_settings(p, &over);
    return p;
}

static int execute(Args *a, int (*f)(Plan *p, const RunArgs *r))
{
    RunArgs r = { 0 };

    launch_errors();
    accept_other_plans();
    start_phase("plan");
    Plan *p = plan_of(a, &r, f == run_or_count);
    r.replay = a->replay;
    r.begun = a->begun;
    drop_valid(p, a);
    for (int i = 0; i < r.nramp; i++)
        drop_valid(r.ramp[i].plan, a);
    return f(p, &r);
}

int cmd_run(Args *a)
{
    if (a->replay && !folder_of(a->file))
        err(NULL, "--replay takes a run's folder, and %s is none", a->file);
    choose_target(a);
    a->runs = !counts_only(a);
    return execute(a, run_or_count);
}

static int eval_only(Plan *p, const RunArgs *r)
{
    (void)r;
    if (!launch_rank() && !opts_int(p->opts, "resume") &&
        !opts_str(p->opts, "from"))
        puts("of initial values: neither from=... nor a run's folder is given");
    return eval_plan(p);
}

static int bench(Plan *p, const RunArgs *r)
{
    (void)r;
    return bench_plan(p, 5, stdout);
}

int cmd_bench(Args *a)
{
    return a->calibrate ? calibrate(a) : execute(a, bench);
}

/* ---- generate ------------------------------------------------------------ */

static Plan *plan_of_run(const char *folder)
{
    const char *path = run_file_near(forever, folder, "plan");

    if (!path)
        err(NULL, "%s is neither a run's folder nor a checkpoint of one",
            folder);
    return read_plan(path);
}

/* What a text may come from: the model, its numbers, how text is read. */
static int is_of_text(const char *key)
{
    static const char *const begin[] = { "axes.",          "precision.",
                                         "route.",         "seed",
                                         "target",         "data.eod",
                                         "data.tokenizer", "data.template" };

    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++)
        if (!strncmp(key, begin[i], strlen(begin[i])))
            return 1;
    return 0;
}

/* The keys of the run p, or null, that shape the model, and those typed now: on
 * one rank, one sequence at a time. */
static Opts *generate_keys(const Args *a, const Plan *p)
{
    /* clang-format off */
    static const char *const fixed[][2] = {
        { "fold.tp", "1" }, { "fold.cp", "1" }, { "fold.dp", "1" },
        { "fold.pp", "1" }, { "fold.ep", "1" }, { "fold.etp", "1" },
        { "world", "1" }, { "axes.batch", "1" }, { "train.batch", "1" },
    };
    /* clang-format on */
    Opts *o = opts_new(forever);
    const char *key, *value;

    for (int i = 0; p && opts_each(p->opts, i, &key, &value); i++)
        if (!strncmp(key, "axes.", 5) || !strncmp(key, "precision.", 10) ||
            !strcmp(key, "data.tokenizer") || !strcmp(key, "data.template") ||
            !strcmp(key, "data.eod"))
            opts_set(o, key, value, NULL);
    if (opts_text_tokenizer(o) != TOKENIZERbytes &&
        (value = run_file_near(forever, a->file, "tokenizer.json")))
        opts_set(o, "data.tokenizer", value, NULL);
    for (int i = 0; opts_each(a->keys, i, &key, &value); i++) {
        if ((!is_of_text(key) && (p || strcmp(key, "from"))) ||
            !strcmp(key, "axes.batch"))
            err(NULL,
                "%s=%s: a text does not depend on it (generate runs one "
                "sequence on one rank)",
                key, value);
        opts_set(o, key, value, NULL);
    }
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        opts_set(o, fixed[i][0], fixed[i][1], NULL);
    return o;
}

typedef struct ForwardJob {
    const Plan *plan; /* whose sources are the model; null: the file */
    const char *file;
    Opts *keys;
} ForwardJob;

/* The model, its outputs only. */
static int forward_job(void *arg, FILE *out)
{
    const ForwardJob *w = arg;
    size_t n = 0;
    Trace t = w->plan
                  ? trace_sources(w->plan->source, w->plan->nsource, w->keys)
                  : trace(w->file, w->keys, 0);
    Node **v = t.g->node;

    for (size_t i = 0; i < vec_len(v); i++)
        if (optab[v[i]->op].cls != SINK || v[i]->op == Ooutput)
            v[n++] = v[i];
    vec_cut(v, n);
    g_tidy(t.g);
    CompileOptions o = { .source = t.source, .nsource = t.nsource };
    char *s = plan_print(forever, compile(t.g, target_of(t.g->opts), &o), &n);
    return fwrite(s, 1, n, out) != n;
}

static Plan *forward_plan(const ForwardJob *w, const Args *a)
{
    Text text = { .arena = forever };
    int status = guarded(forward_job, (void *)(uintptr_t)w, &text);

    if (status)
        exit(status);
    Plan *p = plan_parse(forever, text.s, text.len, a->file);
    if (w->plan)
        opts_set(p->opts, "from", a->file, NULL);
    return p;
}

/* Of a run, or of a model file with `from`. */
static ForwardJob forward_of(const Args *a)
{
    struct stat st;
    int file = !stat(a->file, &st) && S_ISREG(st.st_mode);

    accept_other_plans();
    Plan *p = file ? NULL : plan_of_run(a->file);
    ForwardJob w = { p, a->file, generate_keys(a, p) };
    if (file && !opts_given(w.keys, "from"))
        err(NULL, "%s: from= says which weights (a Hugging Face folder, a run)",
            a->file);
    return w;
}

static GenArgs gen_args(const Args *a)
{
    return (GenArgs){ .prompt = a->prompt ? a->prompt : "",
                      .n = a->n,
                      .temperature = a->temperature,
                      .topk = a->topk,
                      .seed = (uint64_t)opts_int(a->keys, "seed"),
                      .choices = a->choices,
                      .perplexity = a->perplexity };
}

int cmd_generate(Args *a)
{
    ForwardJob w = forward_of(a);
    GenArgs g = gen_args(a);

    return generate_plan(forward_plan(&w, a), &g, stdout);
}

int cmd_logits(Args *a)
{
    ForwardJob w = forward_of(a);
    GenArgs g = gen_args(a);

    return logits_plan(forward_plan(&w, a), &g, stdout);
}

/* What was asked decides the sizes of its batches. */
static int eval_texts(const Args *a)
{
    ForwardJob w = forward_of(a);
    GenArgs g = gen_args(a);
    Plan *p = forward_plan(&w, a);
    ScoreJob *job = score_open(p, &g);

    if (score_sizes(job, p, w.keys))
        p = forward_plan(&w, a);
    return score_plan(job, p, stdout);
}

int cmd_eval(Args *a)
{
    if (a->choices || a->perplexity)
        return eval_texts(a);
    if (folder_of(a->file) && !opts_given(a->keys, "from"))
        opts_set(a->keys, "resume", "1", NULL);
    return execute(a, eval_only);
}

int cmd_doctor(Args *a)
{
    (void)a;
    doctor(stdout);
    return 0;
}

int cmd_data(Args *a)
{
    return data_command((int)vec_len(a->word), a->word, a->keys, a->out);
}

int cmd_export(Args *a)
{
    accept_other_plans();
    vec_push(forever, a->word, NULL);
    return ckpt_export(a->word);
}

int cmd_ckpt(Args *a)
{
    accept_other_plans();
    return ckpt_command((int)vec_len(a->word), a->word);
}
