/* fuzz.c: libFuzzer's target. PLEAT_FUZZ names the reader; PLEAT_SEEDS, if set,
 * is a folder that gets its good files before anything else. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "readers.h"

enum { SLACK = 64 };

static const FuzzReader *reader;
static char dir[] = "/tmp/pleat-fuzz.XXXXXX";

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void remove_dir(void)
{
    char line[64];

    snprintf(line, sizeof line, "rm -rf %s", dir);
    if (system(line))
        fprintf(stderr, "%s stays\n", dir);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *name = getenv("PLEAT_FUZZ"), *to = getenv("PLEAT_SEEDS");

    (void)argc, (void)argv;
    reader = name ? fuzz_reader(name) : NULL;
    if (!reader || !mkdtemp(dir))
        err(NULL, "PLEAT_FUZZ: no reader '%s'", name ? name : "");
    atexit(remove_dir);
    if (reader->beside)
        reader->beside(forever, dir);
    Seed *v = to ? fuzz_seeds(forever, reader) : NULL;
    for (size_t i = 0; i < vec_len(v); i++)
        fuzz_write(strf(forever, "%s/seed-%zu", to, i), v[i].s, v[i].n);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    Arena *a = arena_new();
    char *s = malloc(n + SLACK);

    memcpy(s, data, n);
    fuzz_read(a, reader, dir, s, n);
    free(s);
    arena_free(a);
    return 0;
}
