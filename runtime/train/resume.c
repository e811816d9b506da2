/* resume.c: compares a resumed run with its earlier starts. The folder holds
 * their settings, data and machine. Differences are reported; those that would
 * change the meaning of the checkpoint are refused. */
#include "train.h"

/* Use of a key. An unlisted key is compiled into the plan and may change by
 * compiling again: folds, batches, the optimizer's numbers. */
typedef enum KeyUse {
    FREE,  /* read by the runtime */
    APART, /* belongs to one start, not to the run */
    ONCE,  /* read only when the run begins; why: the reason */
    FIXED, /* must not change; why: the reason */
} KeyUse;

static const struct KeyRow {
    const char *key;
    KeyUse use;
    const char *why;
} keyrows[] = {
    /* clang-format off */
    { "train.steps", FREE, NULL },          { "train.lr", FREE, NULL },
    { "train.hours", FREE, NULL },
    { "train.min_lr", FREE, NULL },         { "train.schedule", FREE, NULL },
    { "train.warmup", FREE, NULL },         { "train.decay", FREE, NULL },
    { "train.decay_style", FREE, NULL },    { "train.eval_every", FREE, NULL },
    { "train.eval_steps", FREE, NULL },     { "train.save_every", FREE, NULL },
    { "train.keep", FREE, NULL },           { "train.snapshot", FREE, NULL },
    { "train.log_every", FREE, NULL },
    { "train.sample_every", FREE, NULL },   { "train.sample_prompt", FREE, NULL },
    { "train.sample_tokens", FREE, NULL },  { "data.train", FREE, NULL },
    { "data.valid", FREE, NULL },           { "data.format", FREE, NULL },
    { "data.tokenizer", FREE, NULL },       { "data.eod", FREE, NULL },
    { "data.template", FREE, NULL },        { "data.field", FREE, NULL },
    { "data.order", FREE, NULL },           { "data.split", FREE, NULL },
    { "train.spike", FREE, NULL }, { "train.check_every", FREE, NULL },
    { "hf.except", FREE, NULL },
    { "name", APART, NULL },                { "resume", APART, NULL },
    { "from", ONCE, "a run goes on from its own checkpoint" },
    { "adapter", ONCE, "a run goes on from its own checkpoint" },
    { "new", ONCE, "a run goes on from its own checkpoint" },
    { "seed", FIXED, "initial values, dropout and the order of samples come from it" },
    { "precision.policy", FIXED, "parameters would be rounded" },
    { "precision.history", FIXED, "amax histories are as long" },
    { "precision.compare", APART, NULL },
    { "precision.moments", FIXED, "moments would be rounded" },
    /* clang-format on */
};

static const struct KeyRow *row_of(const char *key)
{
    for (int i = 0; i < countof(keyrows); i++)
        if (!strcmp(keyrows[i].key, key))
            return &keyrows[i];
    return NULL;
}

int run_key(const char *key)
{
    const struct KeyRow *r = row_of(key);

    return r && r->use != FIXED;
}

/* ---- settings ------------------------------------------------------------ */

/* Returns the run's earlier value of a key; null: not set. */
static const char *value_then(const Settings *settings, const char *key)
{
    const char *s = opts_given(settings->given, key)
                        ? opts_str(settings->given, key)
                        : NULL;

    return s ? s
           : opts_given(settings->defaults, key)
               ? opts_str(settings->defaults, key)
           : key_of_model(key) ? NULL
                               : opts_str(settings->given, key);
}

/* Returns the size of an axis without a key, from a plan's tensors. */
static const char *axis_in(Arena *a, const Plan *p, const char *name)
{
    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++)
            for (int d = 0; d < p->role[r].tensor[i].nd; d++) {
                const PlanDim *dim = &p->role[r].tensor[i].dim[d];
                if (!strcmp(dim->axis, name))
                    return strf(a, "%ld", dim->n);
            }
    return NULL;
}

/* Returns the plan of the last start; null: another format. */
static const Plan *plan_then(Arena *a, const char *config)
{
    const char *path = strf(a, "%s/plan", file_folder(a, config));
    size_t n;
    char *s = file_read(a, path, &n);

    return s && plan_format(s, n) == format_now(FMTplan)
               ? plan_parse(a, s, n, path)
               : NULL;
}

static const char *value_now(const Plan *p, const char *key)
{
    return !strcmp(key, "target")  ? p->target
           : !strcmp(key, "world") ? strf(forever, "%ld", p->mesh->world)
                                   : opts_str(p->opts, key);
}

int value_same(const char *key, const char *a, const char *b)
{
    char *end, *last;

    if (!a || !b)
        return (!a || !*a) && (!b || !*b);
    double x = strtod(a, &end), y = strtod(b, &last);
    if (end > a && last > b && !*end && !*last)
        return x == y;
    Arena *arena = arena_new();
    int same =
        !strcmp(config_value(arena, key, a), config_value(arena, key, b));
    arena_free(arena);
    return same;
}

int key_same(const Settings *settings, const Plan *p, const char *key)
{
    /* Format 1 did not store the device. */
    if (settings->format == 1 &&
        (!strcmp(key, "target") || !strcmp(key, "world")) &&
        !opts_given(settings->given, key))
        return 1;
    return value_same(key, value_then(settings, key), value_now(p, key));
}

static void compare_key(Text *out, const Settings *settings, const Plan *p,
                        const char *key)
{
    const char *then = value_then(settings, key), *now = value_now(p, key);
    const struct KeyRow *r = row_of(key);

    if ((r && r->use == APART) || key_same(settings, p, key))
        return;
    if (r && r->use == ONCE && !now)
        return;
    if (!strncmp(key, "axes.", 5)) {
        const Plan *past = then ? NULL : plan_then(out->arena, settings->path);
        then = past ? axis_in(out->arena, past, key + 5) : then;
        now = now ? now : axis_in(out->arena, p, key + 5);
        if (then && now && !strcmp(then, now))
            return;
    }
    then = then && *then ? then : "(not set)";
    now = now && *now ? now : "(not set)";
    if (r && r->why)
        err(NULL,
            "%s is %s in %s and %s now: %s; it cannot change in a run "
            "(from=... name=... starts another with its weights)",
            key, then, settings->path, now, r->why);
    put(out, "%s %s -> %s\n", key, then, now);
}

/* Compares axes that either side sets. */
static void compare_axes(Text *out, const Settings *settings, const Plan *p)
{
    const Opts *side[] = { settings->given, p->opts };
    const char *key, *value;

    for (int s = 0; s < 2; s++)
        for (int i = 0; opts_each(side[s], i, &key, &value); i++)
            if (key_of_model(key) && !(s && opts_given(settings->given, key)))
                compare_key(out, settings, p, key);
}

void resume_name(const char *dir, const Opts *typed)
{
    const char *name = opts_str(typed, "name");
    struct stat is, was;

    if (!name || (!stat(name, &is) && !stat(dir, &was) &&
                  is.st_dev == was.st_dev && is.st_ino == was.st_ino))
        return;
    err(NULL,
        "name=%s: a run that goes on stays in its folder, %s (from=%s name=%s "
        "without resume starts another with its weights)",
        name, dir, dir, name);
}

void resume_settings(Text *out, const char *dir, const Plan *p)
{
    const Settings *c =
        config_read(out->arena, strf(out->arena, "%s/config.lua", dir));

    for (const KeyInfo *k = keytab; c && k->name; k++)
        compare_key(out, c, p, key_name(k));
    if (c)
        compare_axes(out, c, p);
}

/* ---- lines of a text ----------------------------------------------------- */

/* Returns the rest of the line that begins with `word`; null: none. */
static const char *line_of(const char *text, const char *word, size_t n,
                           size_t *len)
{
    for (const char *s = text; *s; s += *s == '\n') {
        size_t all = strcspn(s, "\n");
        if (all > n && !strncmp(s, word, n) && s[n] == ' ') {
            *len = all;
            return s;
        }
        s += all;
    }
    return NULL;
}

/* Can results depend on this line? The host's name and memory do not matter. */
static int matters(const char *line)
{
    static const char *const not [] = { "host ", "system ", "memory ",
                                        "formats " };

    for (int i = 0; i < countof(not ); i++)
        if (!strncmp(line, not [i], strlen(not [i])))
            return 0;
    return 1;
}

void resume_machine(Text *out, const char *dir, const char *now)
{
    size_t n, len, old;
    const char *then =
        file_read(out->arena, strf(out->arena, "%s/machine", dir), &n);

    for (const char *s = now; then && *s; s += *s == '\n') {
        len = strcspn(s, "\n");
        const char *was = line_of(then, s, strcspn(s, " "), &old);
        if (matters(s) && was && (old != len || strncmp(was, s, len)))
            put(out, "%.*s\n  was %.*s\n", (int)len, s, (int)old, was);
        s += len;
    }
}

/* Returns the first line of `now` with `word` that differs from the same line
 * of `then`; null: none. Paths, which follow " ", are not compared. */
static const char *differs(Arena *a, const char *then, const char *now,
                           const char *word)
{
    size_t n = strlen(word);

    for (;;) {
        while (*then && strncmp(then, word, n))
            then += strcspn(then, "\n"), then += *then == '\n';
        while (*now && strncmp(now, word, n))
            now += strcspn(now, "\n"), now += *now == '\n';
        if (!*then && !*now)
            return NULL;
        size_t i = strcspn(then, "\n"), k = strcspn(now, "\n");
        char *x = strf(a, "%.*s", (int)i, then),
             *y = strf(a, "%.*s", (int)k, now);
        char *p = strstr(x, "  "), *q = strstr(y, "  ");
        size_t xn = p ? (size_t)(p - x) : strlen(x);
        size_t yn = q ? (size_t)(q - y) : strlen(y);
        if (xn != yn || strncmp(x, y, xn))
            return strf(a, "%s (it was: %s)", *y ? y + n : "nothing",
                        *x ? x + n : "nothing");
        then += i + (then[i] == '\n');
        now += k + (now[k] == '\n');
    }
}

/* Returns the next line that begins with `word`, and moves *text after it;
 * null: none. */
static const char *next_line(const char **text, const char *word)
{
    const char *s = *text;

    while (*s && strncmp(s, word, strlen(word))) {
        s += strcspn(s, "\n");
        s += *s == '\n';
    }
    *text = s + strcspn(s, "\n");
    return *s ? s : NULL;
}

/* Returns the samples of the only part, if it is used from its beginning; else
 * -1. */
static int64_t whole_part(const char *text, const char *word)
{
    const char *line = next_line(&text, word);
    long long n, from;

    return line && !next_line(&text, word) &&
                   sscanf(line + strlen(word), "%lld from %lld", &n, &from) ==
                       2 &&
                   !from
               ? n
               : -1;
}

/* Were files only appended, and had the run read at most the earlier ones?
 * Samples read in file order keep their indices, except those of a held-out
 * tail. */
static int only_grew(const char *then, const char *now, int64_t samples)
{
    const char *x = then, *y = now, *a, *b, *valid = then;

    while ((a = next_line(&x, "train file "))) {
        const char *end = strstr(a, "  ");
        b = next_line(&y, "train file ");
        if (!b || !end || strncmp(a, b, (size_t)(end - a) + 2))
            return 0;
    }
    return next_line(&y, "train file ") &&
           samples <= whole_part(then, "train samples ") &&
           whole_part(now, "train samples ") >= 0 &&
           (!next_line(&valid, "valid samples ") ||
            whole_part(then, "valid samples ") >= 0);
}

void resume_data(Text *out, const char *dir, const char *now, int64_t samples)
{
    size_t n;
    const char *path = strf(out->arena, "%s/data", dir);
    const char *then = file_read(out->arena, path, &n), *what;

    if (!then)
        return;
    what = differs(out->arena, then, now, "train ");
    if (what && samples >= 0 && only_grew(then, now, samples))
        put(out, "the training data grew: %s\n", what);
    else if (what)
        err(NULL,
            "the training data are others than those of %s: %s; a position in "
            "them would mean something else (from=... name=... starts another "
            "run with its weights; with data.order=files files may be added "
            "behind those that are there, before all are read)",
            dir, what);
    if ((what = differs(out->arena, then, now, "valid ")))
        put(out, "the validation data changed: %s\n", what);
}
