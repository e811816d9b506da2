/* hostmem.c: allocates host memory in pages and finds how much a process can
 * still allocate: the kernel's MemAvailable, limited by its control group and
 * that group's parents (container, batch job). */
#include "process.h"

/* Both versions of control groups: prefix of its line in /proc/self/cgroup,
 * root folder, files of limit, use and statistics, and the key of the page
 * cache, which the kernel can drop. */
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

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, NOTNUMBER = 0xff };
/* Returns the rest of the line of a file that begins with `key`. */
static const char *line_of(Arena *a, const char *path, const char *key)
{
    FILE *f = file_stream(path);
    char line[8192], *found = NULL;
    size_t n = strlen(key);

    while (f && !found && fgets(line, sizeof line, f))
        if (!strncmp(line, key, n))
            found = strf(a, "%.*s", (int)strcspn(line + n, "\n"), line + n);
    if (f)
        fclose(f);
    return found;
}

/* Returns the number in a file; -1: no such file, or not a number ("max"). */
static int64_t number_in(Arena *a, const char *path, const char *key)
{
    const char *s = line_of(a, path, key);

    s += s ? strspn(s, " ") : 0;
    return s && *s >= '0' && *s <= '9' ? strtoll(s, NULL, 10) : -1;
}

/* Returns the bytes that one group's limit leaves. */
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

/* Returns the least of the bytes left by this process's group and its
 * parents. */
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
    for (int v = 0; v < countof(versions); v++) {
        int64_t n = left_by_groups(a, v);
        least = n < least ? n : least;
    }
    arena_free(a);
    return least;
}

/* ---- allocation ---------------------------------------------------------- */

/* Large arenas are aligned to a huge page so that the kernel can use them. */
void *pages(int64_t bytes, const char *what)
{
    int64_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    int64_t size = (bytes + PAGE - 1) / PAGE * PAGE;
    uint8_t *p = mmap(NULL, (size_t)(size + align), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        err(NULL, "out of memory: %s needs %.1f MiB", what,
            (double)bytes / 1048576);
    uint8_t *q = (uint8_t *)(((uintptr_t)p + (uintptr_t)align - 1) /
                             (uintptr_t)align * (uintptr_t)align);
    if (q > p)
        munmap(p, (size_t)(q - p));
    if (p + align > q)
        munmap(q + size, (size_t)(p + align - q));
    madvise(q, (size_t)size, MADV_HUGEPAGE);
    return q;
}

void drop_pages(void *p, int64_t bytes)
{
    if (p)
        munmap(p, (size_t)((bytes + PAGE - 1) / PAGE * PAGE));
}

const char *processor_text(Arena *a)
{
    const char *path = "/proc/cpuinfo", *name = line_of(a, path, "model name");
    const char *flags = line_of(a, path, "flags");

    return strf(a, "model name%s flags%s ", name ? name : "",
                flags ? flags : "");
}

const char *host_processor(Arena *a)
{
    const char *name = line_of(a, "/proc/cpuinfo", "model name\t: ");

    return name ? name : "unknown";
}

int64_t host_memory(void)
{
    return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

int poison_asked(void)
{
    const char *s = getenv("PLEAT_POISON");

    return s && atoi(s) > 0;
}

void *poison_pages(void *p, int64_t bytes)
{
    return poison_asked() ? memset(p, NOTNUMBER, (size_t)bytes) : p;
}

const char *map_whole(Arena *a, const char *path, const uint8_t **p, int64_t *n)
{
    int fd = file_open(path);
    struct stat st;
    const char *why = NULL;

    *p = NULL;
    *n = 0;
    if (fd < 0 || fstat(fd, &st))
        why = strf(a, "cannot be read: %s", file_why());
    else if (!st.st_size)
        why = "is empty";
    if (!why) {
        void *m = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (m == MAP_FAILED)
            why = strf(a, "cannot be mapped: %s", strerror(errno));
        else
            *p = m, *n = st.st_size;
    }
    if (fd >= 0)
        close(fd);
    return why;
}
