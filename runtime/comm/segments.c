/* segments.c: shared memory of Open MPI that killed runs have left, which a
 * machine keeps until it stops. */
#include <glob.h>
#include <time.h>

#include "comm.h"

enum { YOUNG = 60 }; /* seconds */

/* Does /proc list all processes of the machine? A container may share /dev/shm
 * with processes that it does not see. */
static int sees_all(void)
{
    static const char first[] = "pid:[4026531836]"; /* PROC_PID_INIT_INO */
    char is[64] = "";

    return readlink("/proc/self/ns/pid", is, sizeof is - 1) > 0 &&
           !strcmp(is, first);
}

static int is_old(const char *path)
{
    struct stat st;

    return !lstat(path, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
           time(NULL) - st.st_mtime > YOUNG;
}

/* Empties the names that the list of a process's mappings has. */
static void keep_mapped(const char *maps, glob_t *names)
{
    Arena *a = arena_new();
    size_t n;
    const char *s = file_read(a, maps, &n);

    for (size_t i = 0; s && i < names->gl_pathc; i++)
        if (strstr(s, names->gl_pathv[i]))
            *names->gl_pathv[i] = 0;
    arena_free(a);
}

void segments_sweep(void)
{
    char host[256] = "", pattern[sizeof host + 64];
    glob_t names, maps;

    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = 0;
    /* Open MPI 4 and 5 */
    snprintf(pattern, sizeof pattern, "/dev/shm/{vader,sm}_segment.%s.*", host);
    if (!sees_all() || glob(pattern, GLOB_BRACE, NULL, &names))
        return;
    if (!glob("/proc/[0-9]*/maps", 0, NULL, &maps)) {
        for (size_t i = 0; i < maps.gl_pathc; i++)
            keep_mapped(maps.gl_pathv[i], &names);
        for (size_t i = 0; i < names.gl_pathc; i++)
            if (is_old(names.gl_pathv[i]))
                unlink(names.gl_pathv[i]);
        globfree(&maps);
    }
    globfree(&names);
}
