/* plans.c: the plan of each check. */
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "../fold/rename.h"
#include "want.h"

const char *more_keys = "";

static void set_words(Opts *o, const char *words)
{
    char *next, *all = strf(forever, "%s", words);

    for (char *w = strtok_r(all, " ", &next); w;
         w = strtok_r(NULL, " ", &next)) {
        size_t n = strcspn(w, "=");
        opts_set(o, internn(w, n), intern(w + n + 1), NULL);
    }
}

/* Gradients are read off the first moment: no clipping. */
static Opts *keys_of(const char *words)
{
    Opts *o = opts_new(forever);

    set_words(o, words);
    set_words(o, more_keys);
    set_words(o, "train.clip=0");
    return o;
}

static Trace trace_with(const char *file, const char *words, int64_t batch)
{
    Opts *o = keys_of(words);

    if (batch)
        set_words(o, strf(forever, "train.batch=%lld", (long long)batch));
    return trace(file, o, TRACEquiet);
}

/* Words but those of fold, train and target. */
static const char *of_one_rank(const char *words)
{
    char *all = strf(forever, "%s", words), *next;
    const char *kept = "";

    for (char *w = strtok_r(all, " ", &next); w; w = strtok_r(NULL, " ", &next))
        if (strncmp(w, "fold.", 5) && strncmp(w, "train.", 6) &&
            strncmp(w, "target=", 7))
            kept = strf(forever, "%s %s", kept, w);
    return kept;
}

Trace traced(const char *file, Check c, Ranks r)
{
    const CheckInfo *k = &checktab[c];
    const char *keys = r == RANKSone ? of_one_rank(k->keys) : k->keys;
    Trace t = trace_with(file, keys, 0);
    const Axis *a = g_role(t.g, ROLEbatch);
    int64_t micro = micro_of(t.g), batch = a && a->n ? a->n : 1;

    if (micro % k->micro == 0)
        return t;
    return trace_with(file, keys, micro * k->micro * batch);
}

static uint64_t hash(const char *s)
{
    uint64_t h = 5;

    for (; s && *s; s++)
        h = mix64(h, (unsigned char)*s);
    return h;
}

static const Target *plan_target(const Trace *t)
{
    const char *s = opts_str(t->g->opts, "target");

    return target_named(s ? s : "host");
}

static char *compiled(const Trace *t, const CompileOptions *more)
{
    CompileOptions co = *more;
    size_t len;

    co.source = t->source;
    co.nsource = t->nsource;
    return plan_print(forever, compile(t->g, plan_target(t), &co), &len);
}

/* ---- stages -------------------------------------------------------------- */

/* What -x writes after a pass. */
static char *stopped(const Trace *t, const char *pass)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    CompileOptions co = {
        .source = t->source, .nsource = t->nsource, .stop = pass, .out = out
    };

    compile(t->g, plan_target(t), &co);
    fclose(out);
    return text;
}

/* The plan made by going on from that. */
static char *gone_on(const char *text, const char *file, const Opts *o)
{
    Source *source = NULL;
    Graph **v = graphs_parse(forever, text, strlen(text), file,
                             (Opts *)(uintptr_t)o, &source);
    Graph **stage = NULL;

    for (size_t i = 1; i < vec_len(v); i++)
        vec_push(forever, stage, v[i]);
    Trace t = { v[0], source, (int)vec_len(source) };
    return compiled(&t, &(CompileOptions){ .stage = stage });
}

static const char *a_pass(uint64_t h)
{
    const PassInfo *p = passtab;
    int n = 0;

    while (p[n].run)
        n++;
    return p[h % (uint64_t)n].name;
}

/* Passes change the graph they are given, so each compile has its own. */
static void make_stages(const Making *m)
{
    Trace t = traced(m->file, m->c, m->ranks);
    char *want = compiled(&t, &(CompileOptions){ 0 });
    const char *pass = a_pass(hash(want));

    t = traced(m->file, m->c, m->ranks);
    char *text = stopped(&t, pass);
    char *got = gone_on(text, m->file, t.g->opts);
    if (strcmp(got, want))
        die("going on after %s makes another plan", pass);
    fputs(want, m->out);
}

/* ---- names --------------------------------------------------------------- */

/* The plan of the text under other names; *but: without names. */
static char *renamed(const Making *m, const Source *s, NewName *name,
                     Names *ctx, char **but)
{
    Source other = { s->file, lua_rename(forever, s->text, name, ctx) };
    Trace t = trace_sources(&other, 1, keys_of(checktab[m->c].keys));
    char *plan = compiled(&t, &(CompileOptions){ 0 });

    *but = plan_without_names(plan_parse(forever, plan, strlen(plan), s->file));
    return plan;
}

/* Words of the compiler's own for half of the models. */
static void make_renamed(const Making *m)
{
    const Source *s = &traced(m->file, m->c, m->ranks).source[0];
    Names n = { .word = hash(s->text) % 2 ? usual_words : NULL,
                .text = s->text };
    char *one, *two, *plan = renamed(m, s, same_word, NULL, &one);

    renamed(m, s, new_word, &n, &two);
    const char *differ = first_difference(one, two);
    if (differ)
        die("under other names the plan is another: %s", differ);
    fputs(plan, m->out);
}

void make_plan(void *making)
{
    const Making *m = making;
    CompileOptions co = { .skip = m->c == CKrecompute ? "recompute" : NULL };

    if (checktab[m->c].how == STAGES) {
        make_stages(m);
        return;
    }
    if (checktab[m->c].how == NAMES) {
        make_renamed(m);
        return;
    }
    Trace t = traced(m->file, m->c, m->ranks);
    if (m->c == CKagain)
        roundabout(t.g, hash(t.source[0].text));
    fputs(compiled(&t, &co), m->out);
}
