/* page.c: `show --html`: writes one or two plans as a self-contained page:
 * page.html followed by a JSON object that its script draws. Names have * in
 * place of layer numbers, so that layers share rows. */
#include <jansson.h>

#include "../frontend.h"

extern const char page_html[];

enum { OPERATIONS = 60, DECISIONS = 2500 };

/* Appends a JSON string that is safe inside a script. */
void put_page(Text *out, const char *s)
{
    Text quoted = { .arena = out->arena };

    put_json(&quoted, s);
    for (const char *c = quoted.s; *c; c++)
        if (*c == '<')
            put(out, "\\u003c");
        else
            putn(out, c, 1);
}

void put_page_number(Text *out, const char *key, double x)
{
    put(out, ",\"%s\":", key);
    put(out, isfinite(x) ? "%.15g" : "null", x);
}

static void put_words(Text *out, const char *key, const char *const *v, int n)
{
    put(out, ",\"%s\":[", key);
    for (int i = 0; i < n; i++) {
        put(out, i ? "," : "");
        put_page(out, v[i]);
    }
    put(out, "]");
}

/* ---- numbers of a plan --------------------------------------------------- */

double page_peak(const Plan *p)
{
    const Target *target = target_named(p->target);

    return target ? machine_speeds(p->opts, target->machine).peak : 0;
}

static void put_numbers(Text *out, const Plan *p, const PageTime *time)
{
    const char *key, *value;

    put_page_number(out, "world", (double)p->mesh->world);
    put_page_number(out, "tokens", (double)p->tokens);
    put_page_number(out, "flops", p->flops);
    put_page_number(out, "peak", page_peak(p));
    put_page_number(out, "limit",
                    (double)memory_limit(p->opts, target_named(p->target)));
    put_page_number(out, "step", time->makespan);
    put(out, ",\"target\":");
    put_page(out, p->target);
    put(out, ",\"keys\":[");
    for (int i = 0; opts_each(p->opts, i, &key, &value); i++) {
        put(out, i ? ",[" : "[");
        put_page(out, key);
        put(out, ",");
        put_page(out, value);
        put(out, "]");
    }
    put(out, "]");
}

static void put_mesh(Text *out, const Plan *p)
{
    const Mesh *m = p->mesh;
    int64_t host = opts_int(p->opts, "fold.host");

    put(out, ",\"mesh\":{\"order\":");
    put_page(out, m->order);
    put(out, ",\"host\":%ld,\"atom\":[", host ? host : m->world);
    for (int i = 0; i < m->natom; i++)
        put(out, "%s[%ld,%ld]", i ? "," : "", m->atom[i].size,
            m->atom[i].stride);
    put(out, "],\"axes\":[");
    for (int i = 0; i < NMESH; i++)
        put(out, "%s[\"%s\",%ld,%u]", i ? "," : "", meshnames[i], m->size[i],
            (unsigned)m->mask[i]);
    put(out, "]}");
}

/* ---- time ---------------------------------------------------------------- */

typedef struct PageOp {
    int name;
    double times, secs, flops, bytes;
} PageOp;

static int by_secs(const void *x, const void *y)
{
    const PageOp *a = x, *b = y;

    if (a->secs != b->secs)
        return a->secs < b->secs ? 1 : -1;
    return a->name - b->name;
}

/* Returns a vec of a stage's instructions grouped by name, most time first. */
static PageOp *operations(PageTime *time, int stage)
{
    const Program *program = time->stage[stage].program;
    PageOp *v = NULL;

    for (int f = 0; f < program->nphase; f++)
        for (int i = 0; i < program->phase[f].n; i++) {
            const Instr *instr = &program->instr[program->phase[f].first + i];
            double runs = (double)instr_runs(program, f, instr);
            int name = page_instr_name(time, instr);
            for (int n = (int)vec_len(v); n <= name; n++)
                vec_push(time->arena, v, ((PageOp){ .name = n }));
            v[name].times += runs;
            v[name].secs += runs * instr->secs;
            v[name].flops += runs * instr->flops;
            v[name].bytes += runs * instr->bytes;
        }
    vec_sort(v, by_secs);
    return v;
}

static void put_operations(Text *out, PageTime *time)
{
    int busiest = 0;

    for (int i = 1; i < time->plan->nrole; i++)
        busiest = time->busy[i] > time->busy[busiest] ? i : busiest;
    PageOp *v = operations(time, busiest);
    put(out, ",\"ops\":[");
    for (size_t i = 0; i < vec_len(v) && i < OPERATIONS && v[i].times > 0; i++)
        put(out, "%s[%d,%.9g,%.9g,%.9g,%.9g]", i ? "," : "", v[i].name,
            v[i].times, v[i].secs, v[i].flops, v[i].bytes);
    put(out, "]");
}

/* Appends the seconds of a stage's compute stream by class. */
static void put_work(Text *out, const Program *program)
{
    double secs[PAGECLASSES] = { 0 };

    for (int f = 0; f < program->nphase; f++)
        for (int i = 0; i < program->phase[f].n; i++) {
            const Instr *instr = &program->instr[program->phase[f].first + i];
            if (instr->issue.stream == STREAMcompute)
                secs[page_class(instr)] +=
                    instr->secs * (double)instr_runs(program, f, instr);
        }
    put(out, "\"work\":[");
    for (int c = 0; c < PAGECLASSES; c++)
        put(out, "%s%.9g", c ? "," : "", secs[c]);
    put(out, "],");
}

/* ---- costs of the model's lines ------------------------------------------ */

typedef struct LineCost {
    double secs;
    int64_t bytes;
} LineCost;

static LineCost *cost_of_line(Arena *a, LineCost **v, const Plan *p,
                              const char *file, int line)
{
    for (int i = 0; i < p->nsource && file; i++) {
        if (strcmp(p->source[i].file, file))
            continue;
        while (vec_len(v[i]) <= (size_t)line)
            vec_push(a, v[i], ((LineCost){ 0, 0 }));
        return &v[i][line];
    }
    return NULL;
}

static void add_stage(LineCost **v, const PageTime *time, int stage)
{
    const Program *program = time->stage[stage].program;

    for (int f = 0; f < program->nphase; f++)
        for (int i = 0; i < program->phase[f].n; i++) {
            const Instr *instr = &program->instr[program->phase[f].first + i];
            LineCost *x = cost_of_line(time->arena, v, time->plan, instr->file,
                                       instr->line);
            if (x)
                x->secs += instr->secs * (double)instr_runs(program, f, instr);
        }
}

static void put_line_costs(Text *out, const PageTime *time,
                           const PageAlive *alive)
{
    const Plan *p = time->plan;
    LineCost **v = alloc(time->arena, sizeof *v * (size_t)(p->nsource + 1));
    int n = 0;

    for (int i = 0; i < p->nrole; i++)
        add_stage(v, time, i);
    for (size_t i = 0; i < vec_len(alive); i++) {
        LineCost *x =
            cost_of_line(time->arena, v, p, alive[i].file, alive[i].number);
        if (x)
            x->bytes += alive[i].bytes;
    }
    put(out, ",\"lines\":[");
    for (int i = 0; i < p->nsource; i++)
        for (size_t k = 0; k < vec_len(v[i]); k++)
            if (v[i][k].secs > 0 || v[i][k].bytes)
                put(out, "%s[%d,%zu,%.6g,%ld]", n++ ? "," : "", i, k,
                    v[i][k].secs, v[i][k].bytes);
    put(out, "],\"sources\":[");
    for (int i = 0; i < p->nsource; i++) {
        put(out, i ? ",[" : "[");
        put_page(out, page_path(p, p->source[i].file));
        put(out, ",");
        put_page(out, p->source[i].text);
        put(out, "]");
    }
    put(out, "]");
}

/* ---- decisions ----------------------------------------------------------- */

typedef struct Decision {
    const char *pass, *where, *line, *text;
    int times;
} Decision;

/* Replaces numbers in names of nodes by *, "%layers.3.attn". */
static const char *without_numbers(Arena *a, const char *s)
{
    Text out = { .arena = a };
    int64_t number;

    for (size_t n; *s; s += n) {
        n = *s == '%' ? strcspn(s, " ,;:)") : 1;
        const char *word = strf(a, "%.*s", (int)n, s);
        put(&out, "%s", n > 1 ? pattern_of(word, &number) : word);
    }
    return out.s ? out.s : "";
}

/* Parses "pass: %node (file:line): text" or "pass: text". */
static Decision decision_of(Arena *a, const char *s, size_t n)
{
    char *line = strf(a, "%.*s", (int)n, s), *text = strstr(line, ": ");
    Decision d = { line, "", "", "", 1 };
    int64_t number;

    if (!text)
        return d;
    *text = 0;
    const char *node_text = text += 2;
    d.text = without_numbers(a, text);
    if (*text != '%' || !(text = strstr(text, ": ")))
        return d;
    char *node = strf(a, "%.*s", (int)(text - node_text - 1), node_text + 1);
    char *at = strstr(node, " (");
    if (at) {
        *at = 0;
        d.line = strf(a, "%.*s", (int)strlen(at + 2) - 1, at + 2);
    }
    d.where = pattern_of(node, &number);
    d.text = without_numbers(a, text + 2);
    return d;
}

static void put_decisions(Text *out, const Plan *p)
{
    Table *at = table_new(out->arena);
    Decision *v = NULL;
    Text said = p->nsource ? decisions(p) : (Text){ 0 };

    for (const char *s = said.s; s && *s;) {
        size_t n = strcspn(s, "\n");
        Decision d = decision_of(out->arena, s, n);
        void **slot =
            table_at(at, KEYP(intern(strf(out->arena, "%s\n%s\n%s\n%s", d.pass,
                                          d.where, d.line, d.text))));
        if (*slot)
            v[(uintptr_t)*slot - 1].times++;
        else if (vec_len(v) < DECISIONS) {
            vec_push(out->arena, v, d);
            *slot = (void *)(uintptr_t)vec_len(v);
        }
        s += n + (s[n] == '\n');
    }
    put(out, ",\"why\":[");
    for (size_t i = 0; i < vec_len(v); i++) {
        const char *word[] = { v[i].pass, v[i].where, page_path(p, v[i].line),
                               v[i].text };
        put(out, i ? ",[" : "[");
        for (int k = 0; k < 4; k++) {
            put_page(out, word[k]);
            put(out, ",");
        }
        put(out, "%d]", v[i].times);
    }
    put(out, "]");
    if (!said.s)
        put(out, ",\"whyNot\":\"The plan carries no sources to compile anew, "
                 "by which its decisions would be known.\"");
}

/* ---- measured ------------------------------------------------------------ */

/* An operation of a run's trace: predicted and measured seconds of a step. */
typedef struct Measured {
    const char *name, *line;
    double planned, secs;
} Measured;

static int by_difference(const void *x, const void *y)
{
    const Measured *a = x, *b = y;
    double one = fabs(a->secs - a->planned), two = fabs(b->secs - b->planned);

    return (one < two) - (one > two);
}

static void add_event(Arena *a, Measured **v, Table *at, const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    double planned = json_number_value(json_object_get(args, "planned us"));
    const char *name = json_string_value(json_object_get(event, "name"));
    const char *line = json_string_value(json_object_get(args, "at"));
    int64_t number;

    if (json_integer_value(json_object_get(event, "tid")) != 1 || !name)
        return;
    name = pattern_of(name, &number);
    line = intern(line ? line : "");
    void **slot = table_at(at, KEYP(intern(strf(a, "%s\n%s", name, line))));
    if (!*slot) {
        vec_push(a, *v, ((Measured){ name, line, 0, 0 }));
        *slot = (void *)(uintptr_t)vec_len(*v);
    }
    Measured *measured = &(*v)[(uintptr_t)*slot - 1];
    measured->planned += 1e-6 * planned;
    measured->secs += 1e-6 * json_number_value(json_object_get(event, "dur"));
}

static void put_measured(Text *out, const Plan *p, const char *dir)
{
    Arena *a = out->arena;
    const RunLog *run = run_log(a, dir);
    size_t n = 0;
    char *s = file_read(a, strf(a, "%s/trace.0.json", dir), &n);
    json_t *trace = s ? json_loadb(s, n, 0, NULL) : NULL;
    Measured *measured = NULL;
    Table *at = table_new(a);

    for (size_t i = 0; i < json_array_size(trace); i++)
        add_event(a, &measured, at, json_array_get(trace, i));
    json_decref(trace);
    vec_sort(measured, by_difference);
    put(out, ",\"measured\":{\"steps\":%zu", series_length(run, "step_ms"));
    put_page_number(out, "step", 1e-3 * series_median(run, "step_ms", 0, NULL));
    put(out, ",\"ops\":[");
    for (size_t i = 0; i < vec_len(measured) && i < OPERATIONS; i++) {
        put(out, i ? ",[" : "[");
        put_page(out, measured[i].name);
        put(out, ",");
        put_page(out, page_path(p, measured[i].line));
        put(out, ",%.9g,%.9g]", measured[i].planned, measured[i].secs);
    }
    put(out, "]}");
}

/* ---- the page ------------------------------------------------------------ */

static PageAlive *put_stages(Text *out, PageTime *time)
{
    const Plan *p = time->plan;
    double shortest, coarse;
    int64_t most = -1;
    char **lanes = page_lanes(time, &shortest, &coarse);
    PageAlive *alive = NULL;

    put_page_number(out, "shortest", shortest);
    put_page_number(out, "coarse", coarse);
    put(out, ",\"stages\":[");
    for (int i = 0; i < p->nrole; i++) {
        PageMemory m = page_memory(out->arena, time, i);
        put(out, "%s{\"arena\":%ld,\"persist\":%ld,\"busy\":%.9g,",
            i ? "," : "", p->role[i].arena, p->role[i].persist, time->busy[i]);
        put_work(out, time->stage[i].program);
        put(out, "%s,%s}", lanes[i], m.text);
        alive = p->role[i].arena > most ? m.alive : alive;
        most = p->role[i].arena > most ? p->role[i].arena : most;
    }
    put(out, "]");
    return alive;
}

static void put_names(Text *out, const PageTime *time)
{
    put(out, ",\"names\":[");
    for (size_t i = 0; i < vec_len(time->name); i++) {
        put(out, i ? ",[" : "[");
        put_page(out, time->name[i].text);
        put(out, ",%d,", time->name[i].cls);
        put_page(out, time->name[i].line);
        put(out, "]");
    }
    put(out, "]");
    put_words(out, "phases", time->phase, (int)vec_len(time->phase));
    put_words(out, "streams", streamnames, NSTREAM);
    put_words(out, "classes", bufclasses, NBUFCLASS);
}

/* Appends a plan. dir: its run's folder, or null. */
static void put_plan(Text *out, const Plan *p, const char *name,
                     const char *dir)
{
    if (role_prog(p->role, PGstep) < 0)
        err(NULL, "%s has no program that trains: there is nothing to draw",
            name);
    PageTime *t = page_time(out->arena, p);

    put(out, "{\"name\":");
    put_page(out, page_path(p, name));
    put_numbers(out, p, t);
    put_mesh(out, p);
    put_line_costs(out, t, put_stages(out, t));
    put_operations(out, t);
    put_names(out, t);
    put_decisions(out, p);
    if (dir)
        put_measured(out, p, dir);
    put(out, "}");
}

void write_page(const char *path, const char *json)
{
    Text out = { .arena = forever };

    put(&out, "%s%s</script>\n</body></html>\n", page_html, json);
    write_all(path, OUTpage, out.s, out.len);
}

void draw_plans(const char *path, const Plan *const *p, char *const *word,
                int n)
{
    Text out = { .arena = arena_new() };

    put(&out, "{\"plans\":[");
    for (int i = 0; i < n; i++) {
        put(&out, i ? "," : "");
        put_plan(&out, p[i], word[i], folder_of(word[i]));
    }
    put(&out, "]}");
    write_page(path, out.s);
    arena_free(out.arena);
}
