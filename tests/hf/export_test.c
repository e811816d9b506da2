/* export_test: what goes to Hugging Face folders and comes from them, without
 * Python. A run's folder made from each case's weights is exported; then
 *
 *     every tensor is byte for byte the one that transformers wrote (make.py),
 *     and no other is there;
 *     fused, experts lie as transformers holds them: [expert, gate and up, ..];
 *     logits that we compute from the exported folder, of the last positions,
 *     are those that transformers computed from such a folder (logits.py), in
 *     float64: as in hf_test, 1e-12 of the largest fails for any float32;
 *     so are those of the model that `pleat import` makes from config.json; of
 *     what families have beside, too (`imports`).
 *
 * The last one knows nothing of the names in hf{}, where an import and an
 * export can be wrong together. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"

static const char *const cases[] = {
    "mixtral", "mixtral-aux", "qwen2", "qwen3",
    "olmoe",   "dsv2",        "dsv3",  "dsv3-mtp",
};

static const char *const imports[] = {
    "llama", "mixtral-window", "qwen3-yarn", "dsv2-latent", "dsv3-plain",
};

static int failed;

static void report(const char *name, const char *what, const char *why)
{
    failed += why != NULL;
    printf("%sok - export: %s %s%s%s\n", why ? "not " : "", name, what,
           why ? ": " : "", why ? why : "");
}

static StFile *open_file(const char *path)
{
    StFile *f;
    const char *why = st_open(forever, path, &f);

    if (why)
        err(NULL, "%s", why);
    return f;
}

static Opts *keys(void)
{
    Opts *o = opts_new(forever);

    opts_set(o, "precision.policy", "fp64", NULL);
    opts_set(o, "world", "1", NULL);
    return o;
}

static Plan *make_plan(const char *file, const Opts *o)
{
    Trace t = trace(file, o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    return compile(t.g, &T_host, &co);
}

/* ---- tensors ------------------------------------------------------------- */

static const void *bytes_of(const StFile *f, const StTensor *t)
{
    return f->data + t->begin;
}

/* Null, or the first tensor of f that g has not, or another. */
static const char *differs(const StFile *f, const StFile *g)
{
    for (int i = 0; i < f->n; i++) {
        const StTensor *t = &f->t[i], *u = st_find(g, t->name);
        if (!u)
            return strf(forever, "'%s' is only in %s", t->name, f->path);
        if (t->dt != u->dt || t->nd != u->nd || memcmp(t->n, u->n, sizeof t->n))
            return strf(forever, "'%s' has another shape or dtype", t->name);
        if (memcmp(bytes_of(f, t), bytes_of(g, u), (size_t)(t->end - t->begin)))
            return strf(forever, "'%s' has other bytes", t->name);
    }
    return NULL;
}

/* Where row `row` of expert e's matrix is among all fused ones. */
static const uint8_t *fused_row(const StFile *g, const char *name, int64_t e,
                                int64_t row)
{
    const StTensor *t = st_find(g, name);

    if (!t || t->nd != 3 || e >= t->n[0] || row >= t->n[1])
        return NULL;
    return (const uint8_t *)bytes_of(g, t) +
           (e * t->n[1] + row) * t->n[2] * t->bytes;
}

/* One expert's matrix t, named head "experts.E." part, among the fused. */
static const char *check_expert(const StFile *f, const StTensor *t,
                                const StFile *g)
{
    /* clang-format off */
    static const struct { const char *part, *fused; int second; } parts[] = {
        {"gate_proj.weight", "gate_up_proj", 0},
        {"up_proj.weight", "gate_up_proj", 1},
        {"down_proj.weight", "down_proj", 0},
        {"w1.weight", "gate_up_proj", 0}, {"w3.weight", "gate_up_proj", 1},
        {"w2.weight", "down_proj", 0},
    };
    /* clang-format on */
    const char *at = strstr(t->name, "experts."), *block;
    char *part;
    int64_t e = strtoll(at + 8, &part, 10), row = t->n[1] * t->bytes;
    int k = 0;

    while (k < 6 && strcmp(parts[k].part, part + 1))
        k++;
    if (k == 6)
        return strf(forever, "what is '%s'?", t->name);
    block = strstr(t->name, "block_sparse_moe.");
    const char *name =
        strf(forever, "%.*s%sexperts.%s", (int)((block ? block : at) - t->name),
             t->name, block ? "mlp." : "", parts[k].fused);
    for (int64_t i = 0; i < t->n[0]; i++) {
        const uint8_t *to =
            fused_row(g, name, e, parts[k].second * t->n[0] + i);
        const uint8_t *from = bytes_of(f, t);
        if (!to || memcmp(to, from + i * row, (size_t)row))
            return strf(forever, "'%s' is not in '%s'", t->name, name);
    }
    return NULL;
}

static int is_expert(const StTensor *t)
{
    const char *at = strstr(t->name, "experts.");

    return at && at[8] >= '0' && at[8] <= '9';
}

static const char *check_fused(const StFile *f, const StFile *g)
{
    const char *why = NULL;

    for (int i = 0; i < f->n && !why; i++)
        if (is_expert(&f->t[i]))
            why = check_expert(f, &f->t[i], g);
    for (int i = 0; i < g->n && !why; i++)
        if (is_expert(&g->t[i]))
            why = strf(forever, "'%s' is not fused", g->t[i].name);
    return why;
}

/* ---- logits -------------------------------------------------------------- */

static const Tensor *tensor_named(const Plan *p, const char *name)
{
    int i = role_tensor(&p->role[0], name);

    if (i < 0)
        err(NULL, "the model has no '%s'", name);
    return &p->role[0].tensor[i];
}

/* Of what is computed, [.. batch seq vocab], against the file's last
 * positions; null, or how they differ. */
static const char *check_logits(const char *name, Plan *p, const char *folder)
{
    Exec *x = exec_open(p, comm_open(forever, 1));
    StFile *f = open_file(strf(forever, "%s.logits.safetensors", name));
    const StTensor *want = st_find(f, "logits");
    Data *d = data_open(forever, p, "data.train", 0);
    Feed feed = data_feed(d, 0);
    const Tensor *t = tensor_named(p, "logits");
    double worst = 0, top = 0;

    exec_run(x, PGinit, NULL, NULL);
    ckpt_from(x, folder);
    exec_run(x, PGforward, &(StepValues){ 0 }, &feed);
    const void *got = exec_fetch(x, 0, t->buf);
    int64_t kept = want->n[1], vocab = want->n[2];
    int64_t seq = tensor_elems(t) / want->n[0] / vocab;
    for (int64_t i = 0; i < st_elems(want); i++) {
        int64_t b = i / vocab / kept, at = seq - kept + i / vocab % kept;
        double w = st_get(want->dt, bytes_of(f, want), i);
        double g = elem_get(t->dt, got, (b * seq + at) * vocab + i % vocab);
        worst = fabs(g - w) > worst || g != g ? fabs(g - w) : worst;
        top = fabs(w) > top ? fabs(w) : top;
    }
    exec_close(x);
    st_close(f);
    if (worst <= 1e-12 * top)
        return NULL;
    return strf(forever, "they differ by %.2g, the largest is %.3f", worst,
                top);
}

/* ---- folders ------------------------------------------------------------- */

/* A folder as the Hub has it: the case's config.json and weights. */
static const char *make_folder(const char *name, const char *run)
{
    const char *dir = strf(forever, "%s/folder", run);
    char *weights = realpath(strf(forever, "%s.safetensors", name), NULL);
    json_t *j = json_load_file(strf(forever, "%s.json", name), 0, NULL);

    if (mkdir(dir, 0755) ||
        symlink(weights, strf(forever, "%s/model.safetensors", dir)) ||
        json_dump_file(json_object_get(j, "config"),
                       strf(forever, "%s/config.json", dir), 0))
        err(NULL, "%s: not made", dir);
    json_decref(j);
    free(weights);
    return dir;
}

/* The model that `pleat import` makes of it computes what transformers does. */
static const char *check_import(const char *name, const char *run)
{
    const char *dir = make_folder(name, run);
    const char *model = strf(forever, "%s/%s.lua", run, name);
    Args a = { .file = dir };
    Opts *o = keys();

    vec_push(forever, a.word, (char *)(uintptr_t)dir);
    vec_push(forever, a.word, (char *)(uintptr_t)model);
    if (cmd_import(&a))
        return "it is refused";
    opts_set(o, "axes.batch", "2", NULL);
    opts_set(o, "axes.seq", "32", NULL);
    opts_set(o, "data.train", "tokens.npy", NULL);
    opts_set(o, "train.batch", "2", NULL);
    return check_logits(name, make_plan(model, o), dir);
}

static void one_case(const char *name, const char *tmp)
{
    const char *run = strf(forever, "%s/%s", tmp, name);
    const char *hub = strf(forever, "%s/hub", run);
    const char *fused = strf(forever, "%s/fused", run);
    Plan *p = make_plan(strf(forever, "%s.lua", name), keys());
    const char *from = strf(forever, "%s.safetensors", name);

    mkdir(run, 0755);
    if (convert_import(p, from, run) ||
        convert_export(p, run, hub, FTnone, 0, 5000000000) ||
        convert_export(p, run, fused, FTnone, 1, 5000000000))
        err(NULL, "%s: not exported", name);
    StFile *f = open_file(from);
    StFile *g = open_file(strf(forever, "%s/model.safetensors", hub));
    StFile *h = open_file(strf(forever, "%s/model.safetensors", fused));
    const char *why = differs(f, g);
    report(name, "tensors, byte for byte", why ? why : differs(g, f));
    report(name, "fused experts", check_fused(f, h));
    report(name, "logits", check_logits(name, p, hub));
    report(name, "logits, fused", check_logits(name, p, fused));
    report(name, "logits, imported", check_import(name, run));
}

int main(int argc, char **argv)
{
    const char *tmp = getenv("TMPDIR");
    char *dir = strf(forever, "%s/pleat.export.XXXXXX", tmp ? tmp : "/tmp");

    if (chdir(argc > 1 ? argv[1] : "tests/hf") || !mkdtemp(dir))
        err(NULL, "run me in the repository, or give the folder of the cases");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        one_case(cases[i], dir);
    for (size_t i = 0; i < sizeof imports / sizeof *imports; i++) {
        const char *run = strf(forever, "%s/%s", dir, imports[i]);
        mkdir(run, 0755);
        report(imports[i], "logits, imported", check_import(imports[i], run));
    }
    if (system(strf(forever, "rm -r '%s'", dir)))
        warn(NULL, "%s stays", dir);
    return failed != 0;
}
