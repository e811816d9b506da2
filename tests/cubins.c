/* cubins: compile kernels that two builds of pleat print, and compare the
 * machine code.
 *
 *     cubins arch N ...
 *
 * Each N names two files, N.old.cu and N.new.cu (tests/replay). A cubin has no
 * names but the kernel's, so equal code makes equal files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/graph/graph.h"
#include "../runtime/runtime.h"

static const char *text_of(const char *kernel, const char *build)
{
    size_t n = 0;
    const char *name = strf(forever, "%s.%s.cu", kernel, build);
    char *text = file_read(forever, name, &n);

    if (!text)
        err(NULL, "cannot read %s", name);
    return text;
}

static int same(const Cubin *a, const Cubin *b)
{
    return a->n == b->n && !memcmp(a->image, b->image, a->n);
}

int main(int argc, char **argv)
{
    Plan p = { .prelude = "" };
    int bad = 0;

    if (argc < 3) {
        fprintf(stderr, "usage: cubins arch N ...\n");
        return 2;
    }
    p.kernel = alloc(forever, 2 * (size_t)argc * sizeof *p.kernel);
    for (int i = 2; i < argc; i++) {
        p.kernel[p.nkernel++] = (Kernel){ "k", text_of(argv[i], "old") };
        p.kernel[p.nkernel++] = (Kernel){ "k", text_of(argv[i], "new") };
    }
    Cubin *c = nvrtc_all(forever, &p, pool_open(2), argv[1], NULL);
    for (int i = 0; i < p.nkernel; i += 2) {
        int equal = same(&c[i], &c[i + 1]);
        printf("%s - cubins: %s\n", equal ? "ok" : "not ok", argv[2 + i / 2]);
        bad |= !equal;
    }
    return bad;
}
