/* mutants_test: the verifier against damaged plans. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "mutantrun.h"

#define MIX "tests/hf/mixtral-aux.lua"
/* clang-format off */
static Base bases[] = {
    { .model = MIX, .keys = "fold.dp=2 fold.ep=2 train.batch=8" },
    { .model = MIX, .keys = "fold.tp=2 fold.ep=2 train.batch=4" },
    { .model = MIX, .keys = "fold.tp=2 fold.dp=2 fold.ep=4 fold.zero=0 train.batch=8" },
    { .model = MIX, .keys = "fold.dp=4 fold.ep=2 fold.zero=3 train.batch=16" },
    { .model = MIX, .keys = "fold.cp=2 fold.tp=2 train.batch=2" },
    { .model = MIX, .keys = "fold.pp=2 train.batch=8" },
    { .model = MIX, .keys = "fold.pp=2 fold.dp=2 fold.schedule=zerobubble train.batch=16" },
    { .model = MIX, .keys = "fold.pp=2 fold.tp=2 fold.cp=2 train.batch=8" },
    { .model = MIX, .keys = "fold.tp=2 fold.dp=2 fold.pp=2 fold.ep=4 train.batch=16" },
    { .model = MIX, .keys = "fold.cp=2 fold.dp=2 fold.ep=2 fold.etp=2 train.batch=8" },
    { .model = "tests/models/apart.lua", .keys = "fold.cp=4 fold.ring=1 fold.ep=2 train.batch=4 route.factor=0.6" },
    { .model = "tests/models/tied.lua", .keys = "fold.pp=2 fold.cp=2 fold.dp=2 fold.ep=4 train.batch=16 fold.vpp=2 fold.schedule=interleaved" },
    { .model = "tests/models/zoo.lua", .keys = "fold.tp=2 fold.cp=2 fold.dp=2 fold.ep=4 train.batch=8" },
    { .model = "tests/models/window.lua", .keys = "fold.tp=2 fold.cp=2 train.batch=4 axes.hidden=16 axes.seq=16 axes.ffn=16" },
};
/* clang-format on */
enum { NBASE = sizeof bases / sizeof *bases };

static const char *const verdicts[] = { "refused", "same", "OTHER", "STOPPED",
                                        "CRASHED" };

int main(int argc, char **argv)
{
    int tries = argc > 1 ? atoi(argv[1]) : 1, all[NVERDICT] = { 0 };

    bases_make(bases, NBASE);
    for (int i = 0; i < NBASE; i++) {
        Arena *a = arena_new();
        if (!base_parse(a, bases[i].text, bases[i].len))
            printf("# %s\n", base_message);
        arena_free(a);
    }
    printf("# made\n");
    for (int k = 0; k < field_kinds(); k++)
        for (int i = 0; i < NBASE; i++)
            for (int t = 0; t < tries; t++) {
                Base *b = &bases[i];
                Arena *a = arena_new();
                Mutant m = { .arena = a,
                             .seed = mix64((uint64_t)k,
                                           (uint64_t)(i * tries + t)) };
                size_t len;
                m.p = plan_parse(a, b->text, b->len, "base");
                if (field_damage(&m, k)) {
                    char *text = plan_print(a, m.p, &len);
                    Verdict v = base_verdict(b, text, len);
                    all[v]++;
                    printf("%s | %s | %s | %s\n", verdicts[v],
                           field_kind(a, k), b->keys,
                           v == REFUSED || v == STOPPED ? base_message : "");
                    if (v > SAME) {
                        printf("DIFF %d %d %d\n", k, i, t);
                        if (getenv("PLEAT_SAVE")) {
                            FILE *f = fopen(strf(a, "%s/%d-%d-%d.plan", getenv("PLEAT_SAVE"), k, i, t), "w");
                            fwrite(text, 1, len, f);
                            fclose(f);
                        }
                    }
                }
                arena_free(a);
            }
    for (int i = 0; i < NBASE && getenv("PLEAT_SAVE"); i++) {
        FILE *f = fopen(strf(forever, "%s/base-%d.plan", getenv("PLEAT_SAVE"), i), "w");
        fwrite(bases[i].text, 1, bases[i].len, f);
        fclose(f);
    }
    for (int v = 0; v < NVERDICT; v++)
        printf("# %d %s\n", all[v], verdicts[v]);
    return 0;
}
