/* ckpt_bench: import-hf and export-hf against cp of the same bytes.
 *
 *     ckpt_bench FOLDER model.lua [key=value ..]
 *
 * FOLDER gets a Hugging Face folder of the model's shape, bf16, with numbers
 * that mean nothing. Compared are, in turns: cp and export-hf, neither synced
 * (export verifies the checkpoint first); cp with sync, and import-hf, which
 * syncs and hashes. Before each the disk has nothing to do, what is read is in
 * the page cache, and a copy was just removed: memory that nobody touched yet
 * costs a virtual machine far more. Medians of ROUNDS, of seconds and of those
 * that processors worked, which other programs disturb less. Memory: the most
 * that import and export held, mapped files included. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"

enum { ROUNDS = 5 };

static void sh(const char *command)
{
    if (system(command))
        err(NULL, "failed: %s", command);
}

static Plan *make_plan(const char *model, char **key, int nkey)
{
    Opts *o = opts_new(forever);

    for (int i = 0; i < nkey; i++) {
        char *eq = strchr(key[i], '=');
        if (!eq)
            err(NULL, "'%s' is no key=value", key[i]);
        opts_set(o, internn(key[i], (size_t)(eq - key[i])), eq + 1, NULL);
    }
    Trace t = trace(model, o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    return compile(t.g, &T_host, &co);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const StTensor *)a)->name, ((const StTensor *)b)->name);
}

/* Their tensors, each once. A vec. */
static StTensor *tensors(const Plan *p)
{
    HfRow *r = hf_rows(p, NULL, 0, "", 0, NULL);
    StTensor *v = NULL, *once = NULL;

    for (size_t i = 0; i < vec_len(r); i++) {
        StTensor s = {
            .name = r[i].h->hf, .dt = FTBF16, .bytes = 2, .nd = r[i].h->nd
        };
        for (int d = 0; d < s.nd; d++)
            s.n[d] = hf_dim(&r[i].h->dim[d]);
        vec_push(forever, v, s);
    }
    qsort(v, vec_len(v), sizeof *v, by_name);
    for (size_t i = 0; i < vec_len(v); i++)
        if (i == 0 || strcmp(v[i].name, v[i - 1].name))
            vec_push(forever, once, v[i]);
    return once;
}

static int64_t write_folder(const Plan *p, const char *path)
{
    enum { CHUNK = 1 << 20 };
    static uint16_t buf[CHUNK / 2];
    StTensor *v = tensors(p);
    size_t len;
    int64_t total;
    char *head = st_header(forever, v, (int)vec_len(v), &len, &total);
    FILE *f = fopen(path, "wb");

    for (int i = 0; i < CHUNK / 2; i++)
        buf[i] = (uint16_t)(0x3c00 + mix64(1, (uint64_t)i) % 0x300);
    if (!f || fwrite(head, 1, len, f) != len)
        err(NULL, "cannot write %s", path);
    for (int64_t at = (int64_t)len; at < total; at += CHUNK) {
        size_t n = total - at < CHUNK ? (size_t)(total - at) : CHUNK;
        if (fwrite(buf, 1, n, f) != n)
            err(NULL, "cannot write %s", path);
    }
    fclose(f);
    return total;
}

static double peak(void)
{
    struct rusage r;

    getrusage(RUSAGE_SELF, &r);
    return (double)r.ru_maxrss / 1e6;
}

/* Of this process and those that it waited for. */
static double processor(void)
{
    double t = 0;

    for (int i = 0; i < 2; i++) {
        struct rusage r;
        getrusage(i ? RUSAGE_CHILDREN : RUSAGE_SELF, &r);
        t += (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
             (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
    }
    return t;
}

/* ---- what is compared ---------------------------------------------------- */

typedef struct Case {
    const Plan *p;
    const char *dir;
} Case;

static void copy(const Case *j)
{
    sh(strf(forever, "cp %s/hf/model.safetensors %s/copy", j->dir, j->dir));
}

static void copy_synced(const Case *j)
{
    copy(j);
    sh(strf(forever, "sync %s/copy", j->dir));
}

static void import(const Case *j)
{
    convert_import(j->p, strf(forever, "%s/hf", j->dir),
                   strf(forever, "%s/run", j->dir));
}

static void export(const Case *j)
{
    convert_export(j->p, strf(forever, "%s/run", j->dir),
                   strf(forever, "%s/out", j->dir), FTnone, 0, 5000000000);
}

static const struct {
    const char *name;
    void (*f)(const Case *);
    int peer;
    const char *before;
} rows[] = {
    /* clang-format off */
    {"cp", copy, 0, ""},
    {"export-hf", export, 0, "out"},
    {"cp and sync", copy_synced, 2, ""},
    {"import-hf", import, 2, "run/*"},
    /* clang-format on */
};

enum { NROW = sizeof rows / sizeof *rows };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double v[ROUNDS])
{
    qsort(v, ROUNDS, sizeof *v, by_size);
    return v[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    static double wall[NROW][ROUNDS], work[NROW][ROUNDS];

    if (argc < 3)
        err(NULL, "ckpt_bench FOLDER model.lua [key=value ..]");
    Case j = { make_plan(argv[2], argv + 3, argc - 3), argv[1] };
    sh(strf(forever, "mkdir -p %s/hf %s/run && rm -rf %s/run/*", j.dir, j.dir,
            j.dir));
    double gb = (double)write_folder(
                    j.p, strf(forever, "%s/hf/model.safetensors", j.dir)) /
                1e9,
           before = peak();
    import(&j);
    for (int k = 0; k < ROUNDS * NROW; k++) {
        int i = k % NROW;
        sh(strf(forever, "cd %s && rm -rf copy %s", j.dir, rows[i].before));
        copy_synced(&j);
        sh(strf(forever, "rm %s/copy; sync", j.dir));
        double t = monotonic(), w = processor();
        rows[i].f(&j);
        wall[i][k / NROW] = monotonic() - t;
        work[i][k / NROW] = processor() - w;
    }
    for (int i = 0; i < NROW; i++) {
        double t = median(wall[i]), w = median(work[i]);
        printf("%-20s %6.2f GB/s %6.2f s of processors", rows[i].name, gb / t,
               w);
        if (rows[i].peer == i)
            printf("\n");
        else
            printf("  %.2f of cp, goal >= 0.8 (processors %.2f)\n",
                   median(wall[rows[i].peer]) / t,
                   median(work[rows[i].peer]) / w);
    }
    printf("%-20s %6.2f GB, of %.2f GB moved\n", "memory, most",
           peak() - before, gb);
    return 0;
}
