/* blendtool.c: `data blend` prints the composition of a blend: documents,
 * tokens and samples of each part, samples drawn, and repetitions. */
#include "../../ir/settings/keys.h"
#include "data.h"

typedef struct Tool {
    const Samples *s;
    int64_t drawn;  /* samples drawn from all parts */
    int64_t *count; /* [part]: samples drawn */
} Tool;

/* Returns "0.7 a 0.3 b" from one word or several; paths without weights are
 * weighted by size. */
static const char *spec_of(int n, char **word, const Opts *opts)
{
    Text out = { .arena = forever };
    int bare = n > 1 && !opts_blend(strf(forever, "%s ", word[0]));
    Opts *checked = opts_new(forever);

    for (int i = 0; i < n; i++)
        put(&out, "%s%s%s", i ? " " : "", bare ? "size " : "", word[i]);
    if (!n)
        return opts_str(opts, "data.train");
    opts_set(checked, "data.train", out.s, NULL);
    return opts_str(checked, "data.train");
}

static Samples *open_samples(const char *spec, const Opts *opts, int64_t asked)
{
    enum sample_order order = opts_sample_order(opts);
    TextArgs *text = alloc(forever, sizeof *text);
    SampleWant w = {
        .key = "data.train",
        .spec = spec,
        .format = opts_data_format(opts),
        .seq = opts_int(opts, "axes.seq"),
        .share = { 0, 1 },
        .samples = asked,
        .seed = (uint64_t)opts_int(opts, "seed"),
        .shuffle = order == ORDERshuffle,
        .megatron = order == ORDERmegatron,
    };
    const char *split = opts_str(opts, "data.split");

    if (split && w.megatron && split_share(split, 0, w.share) < 1)
        err(NULL, "data.split: '%s' is not like 969,30,1", split);
    w.split = split && w.megatron;
    *text = text_args(opts);
    w.text = text->t ? text : NULL;
    w.vocab = text->t ? text->t->vocab : 0;
    w.seq = w.seq ? w.seq : 1024;
    return samples_open(forever, &w);
}

static void count_parts(Tool *tool)
{
    int64_t within;

    tool->count = alloc(forever, vec_len(tool->s->part) * sizeof *tool->count);
    for (int64_t i = 0; i < tool->drawn; i++)
        tool->count[tool->s->blend ? blend_at(tool->s->blend, i, &within)
                                   : 0]++;
}

/* Returns the samples of one epoch; Megatron's order covers the whole run. */
static int64_t epoch_of(const Samples *samples, const Corpus *corpus)
{
    int64_t tokens = corpus->file[0].t.n;

    return corpus->order ? (tokens - 1) / samples->want.seq : corpus->n;
}

static void print_part(const Tool *tool, int i)
{
    const Corpus *corpus = &tool->s->part[i];
    int64_t docs = 0, tokens = 0, epoch = epoch_of(tool->s, corpus);

    for (size_t k = 0; k < vec_len(corpus->file); k++) {
        docs += corpus->file[k].t.docs;
        tokens += corpus->file[k].t.n;
    }
    printf("%6.2f %% %12ld %14ld %12ld %12ld %8.3f  %s\n",
           tool->drawn ? 100 * (double)tool->count[i] / (double)tool->drawn : 0,
           docs, tokens, epoch, tool->count[i],
           epoch ? (double)tool->count[i] / (double)epoch : 0, corpus->path);
}

/* ---- the order in BlendedDataset's format -------------------------------- */

static Output *write_npy(const char *path, const char *type, size_t size,
                         const void *v, int64_t n)
{
    char head[128];
    Output *out = output_open(forever, path, OUTorder);
    int len =
        snprintf(head, sizeof head,
                 "%c%s%c%c%c%c{'descr': '%s', 'fortran_order': False, "
                 "'shape': (%ld,), }",
                 '\x93', "NUMPY", 1, 0, (int)sizeof head - 10, 0, type, n);

    if (!out)
        return NULL;
    memset(head + len, ' ', sizeof head - (size_t)len);
    head[sizeof head - 1] = '\n';
    fwrite(head, 1, sizeof head, out->file);
    fwrite(v, size, (size_t)n, out->file);
    return out;
}

/* Names the two output files, which must not replace a file of the blend. */
static void order_paths(const Samples *samples, const char *out,
                        const char *path[2])
{
    const char **input = NULL; /* vec */

    for (size_t i = 0; i < vec_len(samples->part); i++)
        for (size_t k = 0; k < vec_len(samples->part[i].file); k++)
            vec_push(forever, input, samples->part[i].file[k].t.path);
    path[0] = strf(forever, "%s-dataset_index.npy", out);
    path[1] = strf(forever, "%s-dataset_sample_index.npy", out);
    for (int i = 0; i < 2; i++)
        output_need(path[i], OUTorder, input, vec_len(input));
}

static void write_order(const Tool *tool, const char *const *path)
{
    size_t n = (size_t)tool->drawn;
    int16_t *set = calloc(n + 1, sizeof *set);
    int64_t *within = calloc(n + 1, sizeof *within);

    if (!set || !within)
        err(NULL, "out of memory: an order of %zu samples", n);
    for (size_t i = 0; i < n; i++) {
        within[i] = (int64_t)i;
        if (tool->s->blend)
            set[i] = (int16_t)blend_at(tool->s->blend, (int64_t)i, &within[i]);
    }
    Output *file[2] = { write_npy(path[0], "<i2", sizeof *set, set,
                                  tool->drawn) };
    if (file[0])
        file[1] =
            write_npy(path[1], "<i8", sizeof *within, within, tool->drawn);
    if (output_commit(file, 2))
        err(NULL, "cannot write %s: %s", path[1], strerror(errno));
    printf("%s\n%s\n", path[0], path[1]);
    free(set);
    free(within);
}

int blend_command(int n, char **word, const Opts *opts, const char *out)
{
    const char *spec = spec_of(n, word, opts);
    int64_t batch = opts_int(opts, "train.batch");
    int64_t asked = opts_given(opts, "train.steps")
                        ? opts_int(opts, "train.steps") * (batch ? batch : 1)
                        : 0;

    if (!spec)
        err(NULL, "data blend: which files? (0.7 books 0.3 code axes.seq=4096 "
                  "train.steps=1000 train.batch=64)");
    Tool t = { .s = open_samples(spec, opts, asked) };
    const char *path[2] = { NULL };
    if (out)
        order_paths(t.s, out, path);
    t.drawn = asked ? asked : t.s->n;
    count_parts(&t);
    printf("%ld samples of %ld tokens%s, order %s, seed %ld\n", t.drawn,
           t.s->want.seq,
           asked ? "" : " (one epoch; train.steps and train.batch set others)",
           opts_str(opts, "data.order"), t.s->want.seed);
    printf("%8s %12s %14s %12s %12s %8s\n", "share", "documents", "tokens",
           "samples", "drawn", "epochs");
    for (size_t i = 0; i < vec_len(t.s->part); i++)
        print_part(&t, (int)i);
    if (out)
        write_order(&t, path);
    return 0;
}
