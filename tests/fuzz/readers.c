/* readers.c: a row for each reader of files: what good ones are, and how one is
 * read to the last byte. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "../../ir/settings/keys.h"
#include "readers.h"
#include "../unit/mend.h"
#include "../unit/tinyplan.h"

enum { SEQ = 8, SAMPLES = 50, VOCAB = 16, LONGEST = 1 << 20 };

static volatile double sink; /* what is read must be read */

/* ---- files --------------------------------------------------------------- */

static char *read_file(Arena *a, const char *path, size_t *n)
{
    char *s = file_read(a, path, n);

    if (!s || *n > LONGEST)
        die("%s: %s", path, s ? "too long" : strerror(errno));
    return s;
}

/* Written over, then cut: some file systems sync a file that was emptied. */
void fuzz_write(const char *path, const char *s, size_t n)
{
    int fd = open(path, O_RDWR | O_CREAT, 0644);

    if (fd < 0 || write(fd, s, n) != (ssize_t)n || ftruncate(fd, (off_t)n))
        die("%s: %s", path, strerror(errno));
    close(fd);
}

/* ---- tokens and samples -------------------------------------------------- */

static void read_samples(Arena *a, const char *path, int megatron)
{
    SampleWant w = { .key = "data.train",
                     .spec = path,
                     .format = FORMATauto,
                     .seq = SEQ,
                     .vocab = VOCAB,
                     .shuffle = 1,
                     .megatron = megatron,
                     .share = { 0, 1 },
                     .samples = SAMPLES };
    Samples *s = samples_open(a, &w);
    int64_t at, n;

    for (int64_t i = 0; i < SAMPLES; i++) {
        SampleReader r = samples_read(s, i, 0, "");
        for (int64_t left = SEQ + 1; left > 0; left -= n) {
            n = reader_next(&r, &at);
            if (n <= 0)
                break;
            n = n < left ? n : left;
            for (int64_t j = 0; j < n; j++)
                sink += tokens_at(r.t, at + j);
        }
    }
    for (size_t i = 0; i < vec_len(s->part[0].file); i++)
        tokens_close(&s->part[0].file[i].t);
}

static const char *read_tokens(Arena *a, const char *path)
{
    Tokens t;
    int64_t at;
    const char *why = tokens_open(a, path, FORMATauto, VOCAB, NULL, &t);

    if (why)
        return why;
    for (int64_t i = 0; i < t.n; i++)
        sink += tokens_at(&t, i);
    for (int64_t i = 0; i < t.docs; i++) {
        int64_t len = tokens_doc(&t, i, &at);
        for (int64_t j = 0; j<len; j += len> 1 ? len - 1 : 1)
            sink += tokens_at(&t, at + j);
    }
    int rows = t.rows > 0;
    tokens_close(&t);
    read_samples(a, path, 0);
    if (!rows)
        read_samples(a, path, 1);
    return NULL;
}

/* csv has no mark: the format is asked for. */
static const char *read_csv(Arena *a, const char *path)
{
    Tokens t;
    const char *why = tokens_open(a, path, FORMATcsv, VOCAB, NULL, &t);

    for (int64_t i = 0; !why && i < t.n; i++)
        sink += tokens_at(&t, i);
    if (!why)
        tokens_close(&t);
    return why;
}

static const char *read_questions(Arena *a, const char *path)
{
    const Question *q = questions_read(a, path);

    for (size_t i = 0; i < vec_len(q); i++)
        sink += (double)strlen(q[i].ending[q[i].right]);
    return NULL;
}

static void beside_idx(Arena *a, const char *dir)
{
    enum { BYTES = 16384 };
    char *s = alloc(a, BYTES);

    for (int i = 0; i < BYTES; i++)
        s[i] = (char)(i % 16);
    fuzz_write(strf(a, "%s/x.bin", dir), s, BYTES);
}

static const char *read_idx(Arena *a, const char *path)
{
    return read_tokens(a, strf(a, "%.*sbin", (int)strlen(path) - 3, path));
}

/* ---- checkpoints --------------------------------------------------------- */

static const char *read_tensors(Arena *a, const char *path)
{
    StFile *f;
    const char *why = st_open(a, path, &f);

    if (why)
        return why;
    for (int i = 0; i < f->n; i++) {
        const StTensor *t = &f->t[i];
        int64_t n = t->bytes ? (t->end - t->begin) / t->bytes : 0;
        for (int64_t k = 0; k < n; k++)
            sink += st_get(t->dt, f->data + t->begin, k);
    }
    st_close(f);
    return NULL;
}

static char *put_hash(Arena *a, const void *s, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(s, n);

    return strf(a, "%016llx%016llx", (unsigned long long)h.high64,
                (unsigned long long)h.low64);
}

static const char state_text[] =
    "{\"format\": \"pleat 1\", \"step\": 7, "
    "\"tokens\": 4096, \"samples\": 56, \"skipped\": 0, \"seed\": 1, "
    "\"plan\": \"0123456789abcdef\"}\n";

static char *make_state(Arena *a, size_t *n)
{
    *n = sizeof state_text - 1;
    return strf(a, "%s", state_text);
}

/* The index of the files in dir, state.json being s. */
static char *make_index_of(Arena *a, const char *dir, const char *s, size_t n)
{
    static const char *const files[] = { "model.safetensors",
                                         "optim.safetensors" };
    Text t = { .arena = a };

    for (int i = 0; i < 2; i++) {
        size_t k;
        char *p = read_file(a, strf(a, "%s/%s", dir, files[i]), &k);
        put(&t, "%s %zu %s\n", put_hash(a, p, k), k, files[i]);
    }
    put(&t, "%s %zu state.json\n", put_hash(a, s, n), n);
    put(&t, "%s\n", put_hash(a, t.s, t.len));
    return t.s;
}

static void beside_ckpt(Arena *a, const char *dir)
{
    size_t n;
    char *s = read_file(a, "tests/data/files/small.safetensors", &n);

    fuzz_write(strf(a, "%s/model.safetensors", dir), s, n);
    fuzz_write(strf(a, "%s/optim.safetensors", dir), s, n);
    s = make_state(a, &n);
    fuzz_write(strf(a, "%s/state.json", dir), s, n);
}

static char *make_index(Arena *a, size_t *n)
{
    char dir[] = "/tmp/pleat-index.XXXXXX";
    char *s;

    if (!mkdtemp(dir))
        die("%s: %s", dir, strerror(errno));
    beside_ckpt(a, dir);
    s = make_index_of(a, dir, state_text, sizeof state_text - 1);
    *n = strlen(s);
    if (system(strf(a, "rm -r %s", dir)))
        die("%s stays", dir);
    return s;
}

static size_t mend_state(const char *dir, char *s, size_t n)
{
    Arena *a = arena_new();
    char *index = make_index_of(a, dir, s, n);

    fuzz_write(strf(a, "%s/index", dir), index, strlen(index));
    arena_free(a);
    return n;
}

static const char *read_ckpt(Arena *a, const char *path)
{
    const char *slash = strrchr(path, '/');
    State s;

    return ckpt_verify(a, strf(a, "%.*s", (int)(slash - path), path), &s);
}

/* ---- weights ------------------------------------------------------------- */

/* A run with the small plan, opened in the process that reads: its threads do
 * not survive a fork. */
static Exec *small_run(void)
{
    return exec_open(tiny_plan(1, ""), comm_open(forever, 1));
}

/* Its checkpoint, as the files of dir. */
static void beside_weights(Arena *a, const char *dir)
{
    State s = { .step = 7, .plan = "" };
    Exec *x = small_run();

    exec_run(x, PGinit, NULL, NULL);
    if (ckpt_save(x, dir, &s) ||
        system(strf(a, "cd %s && mv step-*/* . && rm -r step-* latest", dir)))
        die("%s: no checkpoint", dir);
    exec_close(x);
}

static char *make_weights(Arena *a, size_t *n)
{
    char dir[] = "/tmp/pleat-weights.XXXXXX";

    if (!mkdtemp(dir))
        die("%s: %s", dir, strerror(errno));
    beside_weights(a, dir);
    char *s = read_file(a, strf(a, "%s/model.safetensors", dir), n);
    if (system(strf(a, "rm -r %s", dir)))
        die("%s stays", dir);
    return s;
}

static size_t mend_weights(const char *dir, char *s, size_t n)
{
    Arena *a = arena_new();
    size_t k;

    fuzz_write(strf(a, "%s/model.safetensors", dir), s, n);
    char *state = read_file(a, strf(a, "%s/state.json", dir), &k);
    s = make_index_of(a, dir, state, k);
    fuzz_write(strf(a, "%s/index", dir), s, strlen(s));
    arena_free(a);
    return n;
}

static const char *read_weights(Arena *a, const char *path)
{
    static Exec *x;

    if (!x)
        x = small_run();
    ckpt_from(x, strf(a, "%.*s", (int)(strrchr(path, '/') - path), path));
    return NULL;
}

/* Hugging Face's files for a model with FP8 weights. */
static Plan *fp8_plan(void)
{
    static Plan *p;
    Opts *keys = opts_new(forever);

    if (p)
        return p;
    opts_set(keys, "precision", "fp32", NULL);
    Trace t = trace("tests/hf/fp8.lua", keys, TRACEquiet);
    CompileOptions o = { .source = t.source, .nsource = t.nsource };
    return p = compile(t.g, target_named("host"), &o);
}

static void beside_hub(Arena *a, const char *dir)
{
    size_t n;
    char *s = read_file(a, "tests/hf/fp8.safetensors", &n);

    fp8_plan();
    fuzz_write(strf(a, "%s/part.safetensors", dir), s, n);
}

/* Every element that an import would take. */
static const char *read_hub(Arena *a, const char *path)
{
    static StFile **file;
    size_t dir = (size_t)(strrchr(path, '/') - path);

    for (size_t i = 0; i < vec_len(file); i++)
        st_close(file[i]); /* what an error left open */
    file = NULL;
    file = ckpt_files(forever, strf(a, "%.*s", (int)dir, path));
    HfRow *row = hf_rows(fp8_plan(), file, (int)vec_len(file), path, 0, NULL);
    for (size_t i = 0; i < vec_len(row); i++)
        for (int64_t k = 0; row[i].s && k < row[i].elems; k++)
            sink += view_get(&row[i].v, k);
    return NULL;
}

/* What a GPU was tuned to. What is no line of it is left out. */
static const char *read_tuned(Arena *a, const char *path)
{
    size_t n;
    TunedAlgo *v = NULL;

    tune_read(a, &v, read_file(a, path, &n));
    for (size_t i = 0; i < vec_len(v); i++)
        sink += (double)v[i].algo[ALGOWORDS - 1];
    return vec_len(v) ? NULL : "has no whole line";
}

/* ---- plans, graphs, schedules, models, tokenizers ------------------------ */

static char *make_plan(Arena *a, size_t *n)
{
    return plan_print(a, tiny_plan(2, ""), n);
}

static size_t mend_hashes(const char *dir, char *s, size_t n)
{
    (void)dir;
    mend_plan(s, n, 1);
    return n;
}

static const char *read_plan(Arena *a, const char *path)
{
    size_t n;
    char *s = read_file(a, path, &n);

    plan_parse(a, s, n, "x.plan");
    return NULL;
}

/* Of any format: its keys and sources. */
static const char *read_rest(Arena *a, const char *path)
{
    size_t n;
    char *s = read_file(a, path, &n);

    sink += (double)plan_format(s, n) + plan_rest(a, s, n, "x.plan")->nsource;
    return NULL;
}

static char *make_config(Arena *a, size_t *n)
{
    Text t = { .arena = a };

    config_put(&t,
               tiny_plan(2, "data.train=a train.lr=0.5 precision=bf16 "
                            "train.betas=0.9,0.99 data.valid=w=a"),
               ".", 3);
    *n = t.len;
    return t.s;
}

static const char *read_config(Arena *a, const char *path)
{
    const Settings *c = config_read(a, path);
    const char *key, *value;

    for (int i = 0; opts_each(c->given, i, &key, &value); i++)
        sink += (double)strlen(config_value(a, key, value));
    return NULL;
}

static const char *read_graph(Arena *a, const char *path)
{
    size_t n;
    char *s = read_file(a, path, &n);
    Source *source = NULL;
    Opts *keys = opts_new(a);

    graphs_parse(a, s, n, "x.ir", keys, &source);
    return NULL;
}

static const char *read_schedule(Arena *a, const char *path)
{
    return schedule_read(a, path) ? NULL : "cannot be read";
}

/* What takes the place of tokens in mutants of models. */
static const char hostile_words[] =
    "nil true 0 -1 1.5 0/0 1/0 -1/0 2^63 math.mininteger math.maxinteger 1e300 "
    "\"\" \"hidden\" \"batch\" \"seq\" \"a\\0b\" \"\\xff\" \"nope\" {} {1} "
    "{a={}} "
    "{[x]=1} print x e ids w param input state topk dot sum mean rename split "
    "merge slice concat shift gather scatter_add softmax rmsnorm rope "
    "attention "
    "causal scope loss metric output update hf train data fold precision route "
    "axes normal(1) function()end (function(...)return...end) setmetatable "
    "pairs next ipairs select error assert require string.rep table.concat "
    "string.format math.random .. == ~= < <= // % ^ # - not and or ( ) { } [ ] "
    "= "
    ", ; : :: ... end do then return goto break while for in repeat until "
    "local "
    "if else elseif <close> <const> --[[ ]] [[";

static const char *read_model(Arena *a, const char *path)
{
    trace(path, opts_new(a), TRACEquiet);
    return NULL;
}

static const char *read_tokenizer(Arena *a, const char *path)
{
    static const char text[] = "Hello  World's 123\n\tgr\xc3\xb6\xc3\x9f"
                               "e \xe4\xb8\xad\xe6\x96\x87<|endoftext|> x";
    Encoder *e = encoder_new(tokenizer_open(path, NULL));
    const char *why = encode(e, text, sizeof text - 1, ENCtemplate);

    (void)a;
    for (int64_t i = 0; !why && i < e->n; i++)
        sink += e->id[i];
    encoder_free(e);
    return why;
}

static void beside_eos(Arena *a, const char *dir)
{
    size_t n;
    char *s = read_file(a, "tests/data/tokenizer/small.json", &n);

    fuzz_write(strf(a, "%s/tokenizer.json", dir), s, n);
}

/* tokenizer_config.json, which names the token that ends a text. */
static const char *read_eos(Arena *a, const char *path)
{
    Opts *o = opts_new(a);

    opts_set(
        o, "data.tokenizer",
        strf(a, "%.*s/tokenizer.json", (int)(strrchr(path, '/') - path), path),
        NULL);
    sink += text_args(o).eod;
    return NULL;
}

/* All values of a JSON text, to a depth. */
static void walk_json(Arena *a, JsonValue in, int depth)
{
    JsonValue key, v;
    int64_t x = 0;
    char *s = jv_text(a, in, NULL);

    sink += (s ? (double)strlen(s) : 0) + jv_real(in) + jv_int(in, &x);
    for (size_t at = 0; depth && jv_next(in, &at, &key, &v);) {
        walk_json(a, key, 0);
        walk_json(a, v, depth - 1);
        sink += jv_same(a, key, v) + (double)x;
    }
}

static const char *read_json(Arena *a, const char *path)
{
    JsonValue v;
    JsonError e;

    if (jv_load(a, path, &v, &e))
        return strf(a, "line %ld, column %ld: %s", e.line, e.column, e.why);
    walk_json(a, v, 6);
    return NULL;
}

static const char *const kinds[] = { "gpt2",     "llama3",  "qwen2",
                                     "deepseek", "mixtral", "metaspace",
                                     "flags" };
enum { KINDS = sizeof kinds / sizeof *kinds };
static Encoder *encoder[KINDS];

static void beside_text(Arena *a, const char *dir)
{
    (void)dir;
    for (int k = 0; k < KINDS && !encoder[k]; k++)
        encoder[k] = encoder_new(tokenizer_open(
            strf(a, "tests/data/tokenizer/%s.json", kinds[k]), NULL));
}

/* Any text, through tokenizers of every kind, and back. */
static const char *read_text(Arena *a, const char *path)
{
    size_t n;
    char *s = read_file(a, path, &n);
    const char *why = NULL;

    if (utf8_bad(s, n) >= 0)
        return "is not UTF-8";
    for (int k = 0; k < KINDS && !why; k++) {
        Text t = { .arena = a };
        Encoder *e = encoder[k];
        why = encode(e, s, n, ENCtemplate);
        if (!why)
            decode(e->t, e->id, e->n, &t);
        sink += (double)t.len;
    }
    return why;
}

/* ---- the table ----------------------------------------------------------- */

#define FILES "tests/data/files/"
/* clang-format off */
const FuzzReader fuzz_readers[] = {
    {"jsonl", "x.jsonl", FILES "t*.jsonl", .read = read_tokens, .cost = 1},
    {"gz", "x.jsonl.gz", FILES "*.jsonl.gz", .read = read_tokens, .cost = 1},
    {"array", "x.json", FILES "texts.json", .read = read_tokens, .cost = 1},
    {"wide", "x.jsonl", FILES "wide.jsonl", .read = read_tokens, .cost = 1},
    {"bz2", "x.bz2", FILES "*.bz2", .read = read_tokens, .cost = 1},
    {"xz", "x.xz", FILES "*.xz", .read = read_tokens, .cost = 1},
    {"csv", "x.csv", FILES "texts.csv", .read = read_csv, .cost = 1},
    {"arrow", "x.arrow", FILES "*.arrow", .read = read_tokens, .cost = 1},
    {"parquet", "x.parquet", FILES "*.parquet", .read = read_tokens, .cost = 2},
    {"questions", "q.jsonl", FILES "hellaswag*.jsonl", .read = read_questions, .cost = 1},
    {"idx", "x.idx", "tests/data/indexed/*.idx", .beside = beside_idx, .read = read_idx, .cost = 2},
    {"llmc", "x.bin", FILES "llmc*.bin", .read = read_tokens, .cost = 1},
    {"nanogpt", "y.bin", FILES "nano.bin", .read = read_tokens, .cost = 1},
    {"npy", "x.npy", FILES "*.npy", .read = read_tokens, .cost = 1},
    {"safetensors", "x.safetensors", FILES "*.safetensors", .read = read_tensors, .cost = 1},
    {"index", "index", .make = make_index, .beside = beside_ckpt, .read = read_ckpt, .strict = 1, .cost = 1},
    {"state", "state.json", .make = make_state, .beside = beside_ckpt, .mend = mend_state, .read = read_ckpt, .cost = 2},
    {"weights", "model.safetensors", .make = make_weights, .beside = beside_weights, .mend = mend_weights, .read = read_weights, .cost = 10},
    {"hub", "model.safetensors", "tests/hf/fp8.safetensors", .beside = beside_hub, .read = read_hub, .cost = 20},
    {"hubindex", "model.safetensors.index.json", "tests/fuzz/seeds/*.index.json", .beside = beside_hub, .read = read_hub, .cost = 10},
    {"tuned", "tuned", "tests/fuzz/seeds/tuned", .read = read_tuned, .cost = 1},
    {"plan", "x.plan", .make = make_plan, .read = read_plan, .strict = 1, .cost = 1},
    {"planhash", "x.plan", .make = make_plan, .mend = mend_hashes, .read = read_plan, .cost = 2},
    {"rest", "x.plan", .make = make_plan, .mend = mend_hashes, .read = read_rest, .cost = 1},
    {"config", "config.lua", .make = make_config, .read = read_config, .cost = 1},
    {"config1", "config.lua", "tests/fuzz/seeds/config1.lua", .read = read_config, .cost = 1},
    {"graph", "x.ir", "tests/ir/*.ir", .read = read_graph, .cost = 2},
    {"schedule", "x.csv", "tests/fuzz/seeds/*.csv", .read = read_schedule, .cost = 1},
    {"json", "x.json", "tests/fuzz/seeds/*.json tests/data/tokenizer/small.json", .read = read_json, .cost = 1},
    {"tokenizer", "tokenizer.json", "tests/data/tokenizer/*.json", .read = read_tokenizer, .cost = 20},
    {"eos", "tokenizer_config.json", "tests/fuzz/seeds/tokenizer_config*.json", .beside = beside_eos, .read = read_eos, .cost = 1},
    {"text", "x.txt", "tests/fuzz/seeds/*.txt tests/data/tokenizer/newer.txt", .beside = beside_text, .read = read_text, .cost = 5},
    {"model", "x.lua", "models/tiny.lua tests/fuzz/seeds/*.lua tests/models/*.lua tests/hf/*.lua tests/err/[a-k]*.lua tests/err/[m-z]*.lua", .read = read_model, .cost = 20, .words = hostile_words},
    {0}
};
/* clang-format on */

const FuzzReader *fuzz_reader(const char *name)
{
    for (const FuzzReader *r = fuzz_readers; r->name; r++)
        if (!strcmp(r->name, name))
            return r;
    return NULL;
}

static void add_seeds(Arena *a, const char *pattern, Seed **v)
{
    glob_t g = { 0 };

    if (glob(pattern, 0, NULL, &g))
        return;
    for (size_t i = 0; i < g.gl_pathc; i++) {
        Seed x = { .name = strf(a, "%s", g.gl_pathv[i]) };
        x.s = read_file(a, x.name, &x.n);
        vec_push(a, *v, x);
    }
    globfree(&g);
}

Seed *fuzz_seeds(Arena *a, const FuzzReader *r)
{
    Seed *v = NULL;

    if (r->make) {
        Seed x = { .name = r->name };
        x.s = r->make(a, &x.n);
        vec_push(a, v, x);
    }
    for (const char *s = r->seeds; s && *s; s += strspn(s, " ")) {
        size_t n = strcspn(s, " ");
        add_seeds(a, strf(a, "%.*s", (int)n, s), &v);
        s += n;
    }
    return v;
}

/* ---- reading ------------------------------------------------------------- */

static jmp_buf back;
static char said[4096];

static void hear(const char *msg)
{
    snprintf(said, sizeof said, "%s", *msg ? msg : "nothing said");
    longjmp(back, 1);
}

const char *fuzz_read(Arena *a, const FuzzReader *r, const char *dir, char *s,
                      size_t n)
{
    const char *path = strf(a, "%s/%s", dir, r->file);

    if (r->mend)
        n = r->mend(dir, s, n);
    fuzz_write(path, s, n);
    err_hook = hear;
    const char *why = setjmp(back) ? said : r->read(a, path);
    err_hook = NULL;
    return why;
}
