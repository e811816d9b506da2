/* machine.c: program, libraries and machine, as stored in a run's folder and
 * printed by `--version`. Each line begins with a word. */
#include <jansson.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <sys/utsname.h>
#include <utf8proc.h>
#define XXH_INLINE_ALL
#include <xxhash.h>
#include <zlib.h>

#include "train.h"

enum { WORD = 10 }; /* columns of a line's first word */

#if defined __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static void put_linked(Text *out)
{
    char pcre[64] = "";
    unsigned x = XXH_versionNumber();

    pcre2_config(PCRE2_CONFIG_VERSION, pcre);
    put(out,
        "%-*s %s; jansson %s, zlib %s, PCRE2 %.*s, utf8proc %s, xxHash "
        "%u.%u.%u\n",
        WORD, "built with", COMPILER, JANSSON_VERSION, zlibVersion(),
        (int)strcspn(pcre, " "), pcre, utf8proc_version(), x / 10000,
        x / 100 % 100, x % 100);
}

/* Appends the output of f. */
static void put_printed(Text *text, void (*f)(FILE *out, int all), int all)
{
    char *s = NULL;
    size_t n;
    FILE *out = open_memstream(&s, &n);

    if (!out)
        err(NULL, "out of memory");
    f(out, all);
    fclose(out);
    putn(text, s, n);
    free(s);
}

void put_version(Text *out, int all)
{
    const char *commit = *program_commit ? program_commit : "unknown";

    put(out, "%-*s %s (commit %s)\n%-*s", WORD, "pleat", program_version,
        commit, WORD, "formats");
    for (Format f = FMTplan; f <= FMTcheckpoint; f++)
        put(out, "%s %s %d", f ? "," : "", format_name(f), format_now(f));
    put(out, "\n");
    put_linked(out);
    put_printed(out, dl_list, all);
}

/* ---- the machine --------------------------------------------------------- */

static void put_gpus(FILE *f, int all)
{
    (void)all;
    gpu_list(f);
}

void put_machine(Text *out)
{
    double bytes =
        (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    struct utsname u;

    if (!uname(&u))
        put(out, "%-*s %s\n%-*s %s %s %s\n", WORD, "host", u.nodename, WORD,
            "system", u.sysname, u.release, u.machine);
    put(out, "%-*s %ld x %s\n", WORD, "processor",
        sysconf(_SC_NPROCESSORS_ONLN), host_processor(out->arena));
    put(out, "%-*s %.1f GiB\n", WORD, "memory", bytes / (1 << 30));
    put_printed(out, put_gpus, 0);
}
