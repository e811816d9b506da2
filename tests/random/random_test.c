/* random_test: random models. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include "gen.h"
#include "random.h"

static void show(const char *name, const Report *r)
{
    printf("%s\n", name);
    for (int c = 0; c < NCHECK; c++)
        printf("    %-10s %s %.3g %s\n", checknames[c], verdicts[r->o[c].v],
               r->o[c].apart, r->o[c].what);
}

int main(int argc, char **argv)
{
    Report *r = shared_memory(sizeof *r);
    int a, b, count[NCHECK][NVERDICT] = { 0 };

    setenv("PLEAT_OPT", "0", 0);
    if (argc > 2 && sscanf(argv[1], "%d-%d", &a, &b) == 2) {
        for (int s = a; s <= b; s++) {
            const char *file = strf(forever, "%s/g%d.lua", argv[2], s);
            const char *text = gen_model(forever, (uint64_t)s);
            write_all(file, text, strlen(text));
            examine(file, ALLCHECKS, r);
            int bad = 0;
            for (int c = 0; c < NCHECK; c++) {
                count[c][r->o[c].v]++;
                bad |= r->o[c].v > FINE;
            }
            if (bad)
                show(file, r);
        }
        for (int c = 0; c < NCHECK; c++) {
            printf("%-10s", checknames[c]);
            for (int v = 0; v < NVERDICT; v++)
                printf(" %s %d", verdicts[v], count[c][v]);
            printf("\n");
        }
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        examine(argv[i], ALLCHECKS, r);
        show(argv[i], r);
    }
    return 0;
}
