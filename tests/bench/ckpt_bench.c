/* ckpt_bench: import-hf and export-hf against cp of the same bytes, in turns,
 * the shortest of several each.
 *
 *     ckpt_bench FOLDER model.lua [key=value ..]
 *
 * FOLDER gets a Hugging Face folder of the model's shape, bf16, with numbers
 * that mean nothing. cp is timed alone and with the sync that a checkpoint gets
 * too. Memory: the most that import and export held, mapped files included.  */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../frontend/frontend.h"
#include "../../runtime/runtime.h"

enum { ROUNDS = 3 };

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

/* Their tensors, each once. A vec.                                           */
static StTensor *tensors(const Plan *p)
{
    HfRow *r = hf_rows(p, NULL, 0, "", 0);
    StTensor *v = NULL, *once = NULL;

    for (size_t i = 0; i < vec_len(r); i++) {
        StTensor s = { .name = r[i].h->hf, .dt = "BF16", .bytes = 2,
                       .nd = r[i].h->nd };
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

static double least(double best, double from)
{
    double t = monotonic() - from;

    return best == 0 || t < best ? t : best;
}

int main(int argc, char **argv)
{
    double cp = 0, synced = 0, in = 0, out = 0;

    if (argc < 3)
        err(NULL, "ckpt_bench FOLDER model.lua [key=value ..]");
    const char *dir = argv[1];
    Plan *p = make_plan(argv[2], argv + 3, argc - 3);
    sh(strf(forever, "mkdir -p %s/hf %s/run", dir, dir));
    double gb = (double)write_folder(p, strf(forever,
        "%s/hf/model.safetensors", dir)) / 1e9, before = peak();
    for (int k = 0; k < ROUNDS; k++) {
        sh(strf(forever, "cd %s && rm -rf copy run/* out; sync", dir));
        double t = monotonic();
        sh(strf(forever, "cp %s/hf/model.safetensors %s/copy", dir, dir));
        cp = least(cp, t);
        sh(strf(forever, "sync %s/copy", dir));
        synced = least(synced, t);
        sh(strf(forever, "rm %s/copy; sync", dir));
        t = monotonic();
        convert_import(p, strf(forever, "%s/hf", dir), strf(forever, "%s/run",
                                                            dir));
        in = least(in, t);
        sh("sync");
        t = monotonic();
        convert_export(p, strf(forever, "%s/run", dir), strf(forever, "%s/out",
                       dir), NULL, 0, 5000000000);
        out = least(out, t);
    }
    printf("%-44s %9.2f GB/s\n", strf(forever, "cp, %.2f GB", gb), gb / cp);
    printf("%-44s %9.2f GB/s  %.2f of cp, goal >= 0.8\n", "export-hf",
           gb / out, cp / out);
    printf("%-44s %9.2f GB/s\n", "cp and sync", gb / synced);
    printf("%-44s %9.2f GB/s  %.2f of them, goal >= 0.8\n",
           "import-hf (synced, hashed)", gb / in, synced / in);
    printf("%-44s %9.2f GB\n", "memory, most", peak() - before);
    return 0;
}
