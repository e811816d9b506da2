/* data_bench: what reading costs a step.
 *
 *     data_bench plan
 *
 * Writes a Megatron dataset of 1 GB (500 million u16 tokens, 500,000 documents)
 * beside the plan, and fills the inputs of the plan's steps from it: the time
 * to open it, then ms a step, with its pages dropped from memory and with them
 * there, in our order and in Megatron's. Between steps it sleeps, as a run
 * computes: pages of the next step are on their way. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../runtime/runtime.h"

enum { DOCS = 500000, LONG = 1000, STEPS = 100, BETWEEN = 50000 };

static double ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static void write_set(const char *prefix, int64_t vocab)
{
    BinIdx *b = binidx_create(prefix, vocab);
    static int32_t doc[LONG];
    uint32_t x = 1;

    for (int d = 0; d < DOCS; d++) {
        for (int i = 0; i < LONG; i++) {
            x = x * 1664525 + 1013904223;
            doc[i] = (int32_t)((x >> 8) % (uint32_t)vocab);
        }
        binidx_add(b, doc, LONG);
    }
    binidx_close(b);
}

static void leave_memory(const char *path)
{
    int fd = open(path, O_RDONLY);

    if (fd < 0 || fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
        err(NULL, "%s cannot be dropped from memory", path);
    close(fd);
}

/* Mean ms of steps [from, from + STEPS). */
static double fill_steps(const Plan *p, Data *d, int64_t from, void *dst)
{
    const Role *r = &p->role[0];
    double sum = 0;

    for (int64_t s = from; s < from + STEPS; s++) {
        double start = ms();
        Feed f = data_feed(d, s * data_perstep(d));
        for (int64_t micro = 0; micro < plan_micros(p, PGstep); micro++)
            for (int i = 0; i < r->ntensor; i++)
                if (r->tensor[i].kind == TKinput)
                    f.fill(f.self, &r->tensor[i], 0, micro, dst);
        sum += ms() - start;
        usleep(BETWEEN);
    }
    return sum / STEPS;
}

int main(int argc, char **argv)
{
    static const char *const orders[] = { "shuffle", "megatron" };
    size_t n;
    char *text = argc == 2 ? file_read(forever, argv[1], &n) : NULL;

    if (!text)
        err(NULL, "data_bench: which plan?");
    Plan *p = plan_parse(forever, text, n, argv[1]);
    char *prefix = strf(forever, "%s.data", argv[1]);
    char *bin = strf(forever, "%s.bin", prefix);
    void *dst = alloc(forever, (size_t)p->tokens * 8);
    write_set(prefix, 256);
    opts_set(p->opts, "data.train", prefix, NULL);
    opts_set(p->opts, "train.steps", "100000", NULL);
    for (int k = 0; k < 2; k++) {
        opts_set(p->opts, "data.order", orders[k], NULL);
        double start = ms();
        Data *d = data_open(forever, p, "data.train", DATAshuffle);
        double opened = ms() - start;
        leave_memory(bin);
        double cold = fill_steps(p, d, 0, dst);
        double warm = fill_steps(p, d, 0, dst);
        printf("%s %.1f %.3f %.3f\n", orders[k], opened, cold, warm);
    }
    unlink(bin);
    unlink(strf(forever, "%s.idx", prefix));
    return 0;
}
