/* hostmem.c: how much of the host's memory a process may still take: what the
 * kernel says is available, and what its control group and those above it (of
 * a container, of a batch job) leave. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

/* The two versions of control groups: files in the folder of one, and a key of
 * the last: bytes of files' caches, which can be dropped. */
static const struct {
    const char *mark, *root, *most, *used, *stat, *key;
} versions[] = {
    /* clang-format off */
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current",
     "memory.stat", "inactive_file "},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
     "memory.usage_in_bytes", "memory.stat", "total_inactive_file "},
    /* clang-format on */
};

enum { NVERSION = sizeof versions / sizeof *versions };

/* The line of a file that begins with `key`, without it. */
static const char *line_of(Arena *a, const char *path, const char *key)
{
    FILE *f = fopen(path, "r");
    char line[4096], *found = NULL;
    size_t n = strlen(key);

    while (f && !found && fgets(line, sizeof line, f))
        if (!strncmp(line, key, n))
            found = strf(a, "%.*s", (int)strcspn(line + n, "\n"), line + n);
    if (f)
        fclose(f);
    return found;
}

/* -1: it is not there, or is no number ("max"). */
static int64_t number_in(Arena *a, const char *path, const char *key)
{
    const char *s = line_of(a, path, key);

    s += s ? strspn(s, " ") : 0;
    return s && *s >= '0' && *s <= '9' ? strtoll(s, NULL, 10) : -1;
}

/* What one group leaves. */
static int64_t left_in(Arena *a, int v, const char *group)
{
    const char *in = strf(a, "%s%s", versions[v].root, group);
    int64_t most = number_in(a, strf(a, "%s/%s", in, versions[v].most), "");
    int64_t used = number_in(a, strf(a, "%s/%s", in, versions[v].used), "");
    int64_t cache =
        number_in(a, strf(a, "%s/%s", in, versions[v].stat), versions[v].key);

    if (most < 0 || used < 0)
        return INT64_MAX;
    return most - used + (cache > 0 ? cache : 0);
}

/* This process's group and those above it. */
static int64_t left_by_groups(Arena *a, int v)
{
    FILE *f = fopen("/proc/self/cgroup", "r");
    int64_t least = INT64_MAX;
    char line[4096], *group = NULL;

    while (f && !group && fgets(line, sizeof line, f)) {
        char *at = strstr(line, versions[v].mark);
        line[strcspn(line, "\n")] = 0;
        if (at)
            group = strf(a, "%s", at + strlen(versions[v].mark));
    }
    if (f)
        fclose(f);
    for (char *end = group; group && end;) {
        int64_t n = left_in(a, v, strcmp(group, "/") ? group : "");
        least = n < least ? n : least;
        end = strrchr(group, '/');
        if (end)
            *end = 0;
    }
    return least;
}

int64_t host_free(void)
{
    Arena *a = arena_new();
    int64_t least = number_in(a, "/proc/meminfo", "MemAvailable:");

    least = least < 0 ? INT64_MAX : least << 10;
    for (int v = 0; v < NVERSION; v++) {
        int64_t n = left_by_groups(a, v);
        least = n < least ? n : least;
    }
    arena_free(a);
    return least;
}
