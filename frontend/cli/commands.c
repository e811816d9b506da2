/* commands.c: what check, compile, run, eval, show and generate do. A model
 * file is traced, and compiled, in a process of its own; a plan comes back as
 * text. */
#include "../../ir/settings/keys.h"
#include "../frontend.h"

/* ---- files --------------------------------------------------------------- */

void need_output(const Args *args, const char *path, OutputKind kind)
{
    static const char **named; /* vec: the outputs of this command */
    const char **input = NULL, *key, *value, *word; /* input: vec */

    for (size_t i = 0; path && i < vec_len(named); i++)
        if (!strcmp(named[i], path) && strncmp(path, "/dev/", 5))
            err(NULL, "%s is named for two outputs: name another one", path);
    if (path)
        vec_push(forever, named, path);
    for (size_t i = 0; i < vec_len(args->word); i++)
        vec_push(forever, input, args->word[i]);
    for (int i = 0; opts_each(args->keys, i, &key, &value); i++)
        while ((word = next_word(&value, " ")))
            vec_push(forever, input, word);
    if (path)
        output_need(path, kind, input, vec_len(input));
}

void write_all(const char *path, OutputKind kind, const char *s, size_t n)
{
    if (file_replace(path, kind, s, n))
        err(NULL, "cannot write %s: %s", path, strerror(errno));
}

static Plan *read_plan(const char *path)
{
    size_t n;
    char *s = file_need(forever, path, &n);

    return plan_parse(forever, s, n, path);
}

Plan *plan_at(const char *word)
{
    const char *dir = folder_of(word);

    return read_plan(dir ? strf(forever, "%s/plan", dir) : word);
}

/* ---- from a model to a plan ---------------------------------------------- */

/* What target plans are for where none is stated: a chip of cluster{} whose
 * memory is not its host's is a GPU. */
static const char *usual_target(const Opts *opts)
{
    int on_chip = opts_given(opts, "cluster.chip") &&
                  machine_speeds(opts, MACHINEserver).offload > 0;

    return on_chip ? "cuda" : "host";
}

const Target *target_of(const Opts *opts)
{
    const char *name = opts_str(opts, "target");
    const Target *t = target_named(name ? name : usual_target(opts));

    if (!t)
        err(opts_loc(opts, "target"), "target '%s' is not in this build", name);
    return t;
}

/* The file is a model, or what -x wrote: the model's graph, then programs. */
static Trace read_model(Args *args, Graph ***stage)
{
    FileKind kind = file_kind(args->file);
    size_t n;

    if (args->past)
        return trace_sources(args->past->source, args->past->nsource,
                             args->keys);
    need_model(args->file);
    if (kind == FILEmodel)
        return trace(args->file, args->keys, 0);
    char *s = file_need(forever, args->file, &n);
    Arena *arena = arena_new();
    Source *source = NULL;
    Graph **v = graphs_parse(arena, s, n, args->file, args->keys, &source);
    for (size_t i = 1; i < vec_len(v); i++)
        vec_push(arena, *stage, v[i]);
    if (v[0]->after)
        err(NULL, "%s: begins after pass %s, not with the model's graph",
            args->file, v[0]->after);
    check_whole(v[0]);
    return (
        Trace){ .g = v[0], .source = source, .nsource = (int)vec_len(source) };
}

/* Pictures of graphs, as one that `dot` takes. */
static void write_graphs(const char *path, const Text *graphs)
{
    Text out = { .arena = forever };

    put(&out,
        "%s\n  graph [fontname=\"Helvetica\", fontsize=12];\n"
        "  node [fontname=\"Helvetica\", fontsize=10, shape=box];\n"
        "  edge [fontname=\"Helvetica\", fontsize=8];\n",
        output_start(OUTgraphs));
    putn(&out, graphs->s ? graphs->s : "", graphs->len);
    put(&out, "}\n");
    write_all(path, OUTgraphs, out.s, out.len);
}

static ProgramKind program_of(const char *name, ProgramKind usual)
{
    ProgramKind k = name ? program_kind(name) : usual;

    if (k == NPROGRAM)
        err(NULL, "-p %s: there is no such program", name);
    return k;
}

/* A stated limit holds; one that is only the target's usual machine's may not
 * be that of the machine it will run on. Keys that make the plan fit and change
 * no number of a step; null: it fits without. */
static const char *check_memory(const Args *args, const Plan *p)
{
    const char *wrong = memory_wrong(p);
    Text t = { .arena = forever };

    if (!wrong)
        return NULL;
    put(&t, "%s", wrong);
    if (!opts_given(p->opts, "memory") &&
        !opts_given(p->opts, "cluster.chip")) {
        warn(NULL, "%s", t.s);
        return NULL;
    }
    const char *keys = file_kind(args->file) == FILEmodel && !args->past
                           ? search_fix(&t, args, p)
                           : NULL;
    if (!keys)
        err(NULL, "%s", t.s);
    fprintf(stderr, "%s; it fits with %s, which is taken\n", t.s, keys);
    return keys;
}

/* Null when -x stopped it. */
static Plan *make_plan(Args *args, FILE *out)
{
    Graph **stage = NULL;
    Trace t = read_model(args, &stage);
    Text dot = { .arena = forever };
    CompileOptions o = { .stage = stage,
                         .dump = args->dump,
                         .stop = args->stop,
                         .prog = program_of(args->prog, PGstep),
                         .out = out,
                         .again = args->again,
                         .source = t.source,
                         .nsource = t.nsource };

    if (args->dot) {
        o.dot = &dot;
        o.dump = args->dump ? args->dump : "sharding";
        o.prog = program_of(args->prog, PGeval);
    }
    if (args->runs && !opts_given(t.g->opts, "train.expert_metrics"))
        opts_set(t.g->opts, "train.expert_metrics", "1", NULL);
    if (args->runs && !args->again) {
        report_optimizers(stdout, t.g);
        fflush(stdout);
    }
    Plan *p = compile(t.g, target_of(t.g->opts), &o);
    if (args->dot && !dot.len)
        err(NULL,
            "%s: nothing to draw: it has no program '%s', or that does not go "
            "through %s",
            args->dot, programnames[o.prog], o.dump);
    if (args->dot)
        write_graphs(args->dot, &dot);
    const char *keys = p ? check_memory(args, p) : NULL;
    if (!keys)
        return p;
    set_keys(args->keys, keys);
    return make_plan(args, out);
}

/* ---- check, compile, show ------------------------------------------------ */

static int check_job(void *arg, FILE *out)
{
    Args *args = arg;
    Graph **stage = NULL;
    Trace t = read_model(args, &stage);
    Text dot = { .arena = forever };

    if (args->dot) {
        graph_dot(&dot, t.g, 0, 1);
        write_graphs(args->dot, &dot);
    }
    (args->json ? report_json : report_model)(out, t.g);
    return 0;
}

static int check(Args *args)
{
    return guarded(check_job, args, NULL);
}

int cmd_check(Args *args)
{
    need_output(args, args->dot, OUTgraphs);
    return args->json ? check_as_json(check, args) : check(args);
}

static const char *plan_name(const Args *args)
{
    const char *s = file_name(args->file);

    return args->out ? args->out : strf(forever, "%.*s.plan", file_stem(s), s);
}

static int compile_job(void *arg, FILE *out)
{
    Args *args = arg;
    Plan *p = make_plan(args, out);
    size_t n;

    if (!p)
        return 0;
    char *s = plan_print(forever, p, &n);
    write_all(plan_name(args), OUTplan, s, n);
    report_line(out, plan_name(args), p);
    return 0;
}

int cmd_compile(Args *args)
{
    if (args->file)
        need_model(args->file);
    need_output(args, args->dot, OUTgraphs);
    need_output(args, args->stop ? NULL : plan_name(args), OUTplan);
    return guarded(compile_job, args, NULL);
}

static void show_page(const Args *args, const Plan *p)
{
    const Plan *v[2] = { p, NULL };
    int n = (int)vec_len(args->word);

    if (n == 2)
        v[1] = plan_at(args->word[1]);
    draw_plans(args->html, v, args->word, n);
}

static void show_schedule(const Args *args, const Plan *p)
{
    const Schedule *s = plan_schedule(p, args->file);

    if (args->csv) {
        char *table = schedule_print(forever, s);
        write_all(args->csv, OUTschedule, table, strlen(table));
    }
    if (args->schedule)
        fputs(draw_schedule(s), stdout);
}

static int fold_job(void *arg, FILE *out)
{
    Args *args = arg;

    report_fold(out, file_kind(args->file) == FILEplan ? read_plan(args->file)
                                                       : make_plan(args, out));
    return 0;
}

int cmd_show(Args *args)
{
    static const OutputKind kinds[] = { OUTpage, OUTtrace, OUTsnapshot,
                                        OUTschedule };
    const char *out[] = { args->html, args->trace, args->snapshot, args->csv };
    size_t n;

    for (int i = 0; i < countof(out); i++)
        need_output(args, out[i], kinds[i]);
    if (args->fold)
        return guarded(fold_job, args, NULL);
    const char *key, *value;
    if (vec_len(args->word) > 1 && !args->html)
        err_usage("two plans are shown beside each other by --html FILE only");
    if (opts_each(args->keys, 0, &key, &value))
        err(NULL, "%s=%s: what a plan does is compiled in; --fold takes keys",
            key, value);
    Plan *p = plan_at(args->file);

    if (args->html)
        show_page(args, p);
    if (args->trace) {
        char *events = draw_time(p, &n);
        write_all(args->trace, OUTtrace, events, n);
    }
    if (args->snapshot) {
        char *snapshot = draw_snapshot(p, &n);
        write_all(args->snapshot, OUTsnapshot, snapshot, n);
    }
    if (args->schedule || args->csv)
        show_schedule(args, p);
    if (args->rank >= 0)
        report_rank(stdout, p, args->rank);
    if (args->memory)
        report_memory(stdout, p);
    if (args->kernel)
        report_kernel(stdout, p, args->kernel);
    else if (!args->memory && !args->html && !args->trace && !args->snapshot &&
             !args->schedule && !args->csv && args->rank < 0)
        report_plan(stdout, p);
    for (int i = 0; i < countof(out); i++)
        if (out[i])
            printf("wrote %s\n", out[i]);
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
static Text made(Args *args)
{
    Text out = { .arena = forever };

    if (args->ready.s)
        return args->ready;
    int status = guarded(plan_job, args, &out);

    if (status)
        exit(status);
    return out;
}

static int counts_only(const Args *args)
{
    const char *target = opts_str(args->keys, "target");
    const Device *device = target ? device_named(target) : NULL;

    return device && device->report;
}

void set_keys(Opts *opts, const char *keys)
{
    char *text = strf(forever, "%s", keys), *next;

    for (char *key = strtok_r(text, " ", &next); key;
         key = strtok_r(NULL, " ", &next)) {
        char *value = strchr(key, '=');
        *value++ = 0;
        if (!opts_given(opts, key))
            opts_set(opts, key, value, NULL);
    }
}

static const char *run_of_model(const Args *args)
{
    const Plan p = { .model = args->file, .opts = args->keys };

    return run_dir(forever, &p);
}

/* The fold with which the run in a folder began, if on as many ranks. */
static int take_fold(Args *args)
{
    const char *path = strf(forever, "%s/config.lua", run_of_model(args));
    const Settings *past =
        opts_int(args->keys, "resume") ? config_read(forever, path) : NULL;

    if (!past || opts_int(past->given, "world") != launch_world())
        return 0;
    copy_fold(args->keys, past->given);
    return 1;
}

/* Ranks that a launcher started for a model that states no fold. */
static void choose_fold(Args *args)
{
    int64_t world = launch_world();

    if (args->runs && !args->past && world > 1 && !launch_rank() &&
        opts_int(args->keys, "world") == world &&
        file_kind(args->file) == FILEmodel && !states_fold(args->keys) &&
        !take_fold(args))
        set_keys(args->keys, search_fold(args));
}

enum { MAXCOMPARED = 100000 };

/* How many steps precision.compare=POLICY:STEPS asks for; 0: for none. */
static int64_t compared_steps(const Opts *opts, const char **policy)
{
    const char *asked = opts_str(opts, "precision.compare");
    const char *colon = asked ? strchr(asked, ':') : NULL;
    char *end = NULL;
    int64_t steps = colon ? strtoll(colon + 1, &end, 10) : 0;

    if (!asked)
        return 0;
    if (steps < 1 || steps > MAXCOMPARED || *end || colon == asked)
        err(opts_loc(opts, "precision.compare"),
            "precision.compare is a policy and up to %d steps, bf16:50; got "
            "'%s'",
            MAXCOMPARED, asked);
    *policy = strf(forever, "%.*s", (int)(colon - asked), asked);
    return steps;
}

/* The same model in the precision to compare with; one without few bits has
 * none of the recipe's. */
static Text made_other(Args *args, const char *policy)
{
    opts_set(args->keys, "precision.policy", policy, NULL);
    if (opts_real_dtype(args->keys) != REALfp8)
        opts_set(args->keys, "precision.keep", "*", NULL);
    opts_set(args->keys, "precision.watch", "0", NULL);
    args->again = 1;
    return made(args);
}

/* The next plan's text, made here or told by rank 0. */
static Plan *told(const Args *args, Text *text)
{
    comm_plan(text);
    return plan_parse(forever, text->s, text->len, args->file);
}

typedef struct PlanTexts {
    Text *plan; /* vec: of the whole batch, then of train.ramp's smaller ones */
    Text other; /* to compare with */
    int64_t compared;
    const char *policy;
} PlanTexts;

/* On rank 0. */
static PlanTexts make_texts(Args *args, int ramps, Plan **p)
{
    PlanTexts texts = { 0 };
    int64_t until, batch = 1;

    for (int i = 0; batch > 0; i++) {
        Text out = made(args);
        vec_push(forever, texts.plan, out);
        args->again = 1;
        if (!i)
            *p = plan_parse(forever, out.s, out.len, args->file);
        if (!i && ramps)
            texts.compared = compared_steps((*p)->opts, &texts.policy);
        if (texts.compared)
            break;
        batch = ramps ? ramp((*p)->opts, i, &until) : 0;
        if (batch > 0)
            opts_set(args->keys, "train.batch", strf(forever, "%ld", batch),
                     NULL);
    }
    if (texts.compared)
        texts.other = made_other(args, texts.policy);
    return texts;
}

/* On the others, from rank 0, as make_texts makes them. */
static PlanTexts take_texts(const Args *args, int ramps, Plan **p)
{
    PlanTexts texts = { .other = { .arena = forever } };
    int64_t until, batch = 1;

    for (int i = 0; batch > 0; i++) {
        Text text = { .arena = forever };
        Plan *at = told(args, &text);
        vec_push(forever, texts.plan, text);
        *p = i ? *p : at;
        if (!i && ramps)
            texts.compared = compared_steps(at->opts, &texts.policy);
        if (texts.compared)
            break;
        batch = ramps ? ramp((*p)->opts, i, &until) : 0;
    }
    if (texts.compared)
        comm_plan(&texts.other);
    return texts;
}

/* Plans of a model file as text. Rank 0 makes all before MPI starts, which no
 * fork survives; the other ranks get the bytes. */
static PlanTexts plan_texts(Args *args, int ramps, Plan **p)
{
    int share = launched() && !counts_only(args);

    if (launch_rank())
        return take_texts(args, ramps, p);
    PlanTexts texts = make_texts(args, ramps, p);
    for (size_t i = 0; share && i < vec_len(texts.plan); i++)
        comm_plan(&texts.plan[i]);
    if (share && texts.compared)
        comm_plan(&texts.other);
    return texts;
}

/* The plan, and with `ramps` one for each smaller batch of train.ramp. */
static Plan *compiled(Args *args, RunArgs *run_args, int ramps)
{
    RampStage *v = NULL;
    Plan *p = NULL;

    take_launch(args->keys, args->keys);
    if (counts_only(args) && launch_rank())
        exit(0);
    choose_fold(args);
    PlanTexts texts = plan_texts(args, ramps, &p);
    Text *text = texts.plan;
    for (size_t i = 1; i < vec_len(text); i++) {
        RampStage g = { .plan = plan_parse(forever, text[i].s, text[i].len,
                                           args->file) };
        ramp(p->opts, (int)i - 1, &g.until);
        vec_push(forever, v, g);
    }
    *run_args = (RunArgs){
        .text = text->s, .len = text->len, .ramp = v, .nramp = (int)vec_len(v)
    };
    if (texts.compared) {
        run_args->compared = texts.compared;
        run_args->other =
            plan_parse(forever, texts.other.s, texts.other.len, args->file);
        run_args->other_name = texts.policy;
    }
    return p;
}

/* Keys given beside a plan change what the plan does not depend on. */
static void change_keys(Plan *p, const Args *args)
{
    const char *key, *value;

    for (int i = 0; opts_each(args->keys, i, &key, &value); i++) {
        const Device *d = strcmp(key, "target") ? NULL : device_named(value);
        if (d && d->report) {
            p->target = d->name;
            continue;
        }
        if (!run_key(key))
            err(NULL,
                "key '%s' is compiled into %s; compile again to change it", key,
                args->file);
        opts_set(p->opts, key, value, NULL);
    }
    settle_from(p->opts);
}

/* A model file's data.valid need not be there when data.train is another. */
static void drop_valid(Plan *p, const Args *args)
{
    const char *path = opts_str(p->opts, "data.valid");

    if (!path || !opts_given(args->keys, "data.train") ||
        opts_given(args->keys, "data.valid") || strpbrk(path, "*?[{:= ") ||
        !access(path, F_OK) || !access(strf(forever, "%s.idx", path), F_OK))
        return;
    if (!launch_rank())
        warn(NULL,
             "data.valid: no file %s; there will be no validation "
             "(data.valid=path sets it)",
             path);
    opts_set(p->opts, "data.valid", "", NULL);
}

static int run_or_count(Plan *p, const RunArgs *args)
{
    const Device *device = device_named(p->target);

    if (!device || !device->report)
        return (args->other ? compare_plan : run_plan)(p, args);
    if (!launch_rank())
        device->report(stdout, p);
    return 0;
}

/* `run` of a model is for the best device that is here, whatever cluster{} is
 * priced; rank 0 compiles for all. */
static void choose_target(Args *args)
{
    if (file_kind(args->file) == FILEplan || folder_of(args->file) ||
        opts_str(args->keys, "target") || launch_rank())
        return;
    const char *here = device_here()->name;
    if (target_named(here))
        opts_set(args->keys, "target", here, NULL);
}

static const Device *waking;

static int wake(int part)
{
    start_phase(part ? "GPU" : "driver");
    int more = waking->wake(part);
    start_phase("plan");
    return more;
}

/* A device takes tenths of a second to open, and needs no plan at first. */
static void wake_beside(const Args *args)
{
    const char *target = opts_str(args->keys, "target");

    waking = target ? device_named(target) : NULL;
    if (waking && waking->wake)
        guard_beside(wake);
}

/* Of what is compiled already. */
static void refuse_compared(const Opts *opts)
{
    if (opts_given(opts, "precision.compare"))
        err(opts_loc(opts, "precision.compare"),
            "precision.compare compiles a second plan: run the model file, not "
            "a plan or a run's folder");
}

static Plan *plan_of(Args *args, RunArgs *run_args, int ramps)
{
    const char *dir = folder_of(args->file);
    Text over = { .arena = forever };
    Plan *p;

    if (file_kind(args->file) == FILEplan) {
        p = read_plan(args->file);
        change_keys(p, args);
        if (ramps)
            refuse_compared(p->opts);
        check_model(&(Args){ .file = args->file, .past = p, .keys = p->opts },
                    run_dir(forever, p));
        return p;
    }
    if (dir && ramps)
        refuse_compared(args->keys);
    if (dir)
        over = take_folder(args, dir);
    else
        check_model(args, run_of_model(args));
    p = compiled(args, run_args, ramps);
    if (dir)
        share_settings(p, &over);
    return p;
}

static int execute(Args *args, int (*f)(Plan *p, const RunArgs *r))
{
    RunArgs r = { 0 };

    launch_errors();
    accept_other_plans();
    start_phase("plan");
    wake_beside(args);
    Plan *p = plan_of(args, &r, f == run_or_count);
    r.replay = args->replay;
    r.begun = args->begun;
    drop_valid(p, args);
    for (int i = 0; i < r.nramp; i++)
        drop_valid(r.ramp[i].plan, args);
    return f(p, &r);
}

int cmd_run(Args *args)
{
    if (args->replay && !folder_of(args->file))
        err(NULL, "--replay takes a run's folder, and %s is none", args->file);
    start_phase("driver");
    choose_target(args);
    args->runs = !counts_only(args);
    return execute(args, run_or_count);
}

static int eval_only(Plan *p, const RunArgs *args)
{
    (void)args;
    if (!launch_rank() && !opts_int(p->opts, "resume") &&
        !opts_str(p->opts, "from"))
        puts("of initial values: neither from=... nor a run's folder is given");
    return eval_plan(p);
}

static int bench(Plan *p, const RunArgs *args)
{
    (void)args;
    return bench_plan(p, 5, stdout);
}

int cmd_bench(Args *args)
{
    return args->calibrate ? calibrate(args) : execute(args, bench);
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
    static const char *const begin[] = {
        "axes.",  "option.",  "route.",         "precision.",   "seed",
        "target", "data.eod", "data.tokenizer", "data.template"
    };

    for (int i = 0; i < countof(begin); i++)
        if (!strncmp(key, begin[i], strlen(begin[i])))
            return 1;
    return 0;
}

/* The keys of the run p, or null, that shape the model, and those typed now: on
 * one rank, one sequence at a time. */
static Opts *generate_keys(const Args *args, const Plan *p)
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
        if (key_of_model(key) || !strncmp(key, "precision.", 10) ||
            !strcmp(key, "data.tokenizer") || !strcmp(key, "data.template") ||
            !strcmp(key, "data.eod"))
            opts_set(o, key, value, NULL);
    if (opts_text_tokenizer(o) != TOKENIZERbytes &&
        (value = run_file_near(forever, args->file, "tokenizer.json")))
        opts_set(o, "data.tokenizer", value, NULL);
    for (int i = 0; opts_each(args->keys, i, &key, &value); i++) {
        if (p && !strcmp(key, "from"))
            err(NULL, "from=%s: %s has weights of its own", value, args->file);
        if ((!is_of_text(key) &&
             (p || (strcmp(key, "from") && strcmp(key, "adapter")))) ||
            !strcmp(key, "axes.batch"))
            err(NULL,
                "%s=%s: a text does not depend on it (generate runs one "
                "sequence on one rank)",
                key, value);
        opts_set(o, key, value, NULL);
    }
    for (int i = 0; i < countof(fixed); i++)
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
    const ForwardJob *job = arg;
    size_t n = 0;
    Trace t = job->plan ? trace_sources(job->plan->source, job->plan->nsource,
                                        job->keys)
                        : trace(job->file, job->keys, 0);
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

static Plan *forward_plan(const ForwardJob *job, const Args *args)
{
    Text text = { .arena = forever };
    int status = guarded(forward_job, (void *)(uintptr_t)job, &text);

    if (status)
        exit(status);
    Plan *p = plan_parse(forever, text.s, text.len, args->file);
    if (job->plan)
        opts_set(p->opts, "from", args->file, NULL);
    return p;
}

/* Of a run, or of a model file with `from`. */
static ForwardJob forward_of(const Args *args)
{
    struct stat st;
    int file = !stat(args->file, &st) && S_ISREG(st.st_mode);

    accept_other_plans();
    Plan *p = file ? NULL : plan_of_run(args->file);
    ForwardJob w = { p, args->file, generate_keys(args, p) };
    if (file && !opts_given(w.keys, "from"))
        err(NULL, "%s: from= says which weights (a Hugging Face folder, a run)",
            args->file);
    return w;
}

static GenArgs gen_args(const Args *args)
{
    return (GenArgs){ .prompt = args->prompt ? args->prompt : "",
                      .n = args->n,
                      .temperature = args->temperature,
                      .topk = args->topk,
                      .seed = (uint64_t)opts_int(args->keys, "seed"),
                      .choices = args->choices,
                      .perplexity = args->perplexity };
}

int cmd_generate(Args *args)
{
    ForwardJob w = forward_of(args);
    GenArgs g = gen_args(args);

    return generate_plan(forward_plan(&w, args), &g, stdout);
}

int cmd_logits(Args *args)
{
    ForwardJob w = forward_of(args);
    GenArgs g = gen_args(args);

    return logits_plan(forward_plan(&w, args), &g, stdout);
}

/* What was asked decides the sizes of its batches. */
static int eval_texts(const Args *args)
{
    ForwardJob w = forward_of(args);
    GenArgs g = gen_args(args);
    Plan *p = forward_plan(&w, args);
    ScoreJob *job = score_open(p, &g);

    if (score_sizes(job, p, w.keys))
        p = forward_plan(&w, args);
    return score_plan(job, p, stdout);
}

int cmd_eval(Args *args)
{
    if (args->choices || args->perplexity)
        return eval_texts(args);
    if (folder_of(args->file) && !opts_given(args->keys, "from"))
        opts_set(args->keys, "resume", "1", NULL);
    return execute(args, eval_only);
}

int cmd_doctor(Args *args)
{
    (void)args;
    doctor(stdout);
    return 0;
}

int cmd_data(Args *args)
{
    return data_command((int)vec_len(args->word), args->word, args->keys,
                        args->out);
}

int cmd_export(Args *args)
{
    accept_other_plans();
    vec_push(forever, args->word, NULL);
    return ckpt_export(args->word);
}

int cmd_ckpt(Args *args)
{
    accept_other_plans();
    return ckpt_command((int)vec_len(args->word), args->word);
}
