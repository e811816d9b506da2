/* cache.c: a folder that only its owner can read, for compiled kernels,
 * measured choices and tokenizer tables, which later runs use again. */
#include "process.h"

/* Returns null if the folder exists, belongs to this user and can be written;
 * otherwise the reason. */
static const char *folder_wrong(Arena *a, char *dir)
{
    struct stat st;

    for (char *s = dir + 1;; s++) {
        char c = *s;
        if (c && c != '/')
            continue;
        *s = 0;
        if (mkdir(dir, 0700) && errno != EEXIST)
            return strf(a, "cannot make the folder %s: %s", dir,
                        strerror(errno));
        *s = c;
        if (!c)
            break;
    }
    if (lstat(dir, &st) || !S_ISDIR(st.st_mode) || st.st_uid != getuid())
        return strf(a, "%s is not a folder of yours", dir);
    if ((st.st_mode & 077) && chmod(dir, 0700))
        return strf(a, "%s is open to others", dir);
    if (access(dir, W_OK | X_OK))
        return strf(a, "cannot write in %s: %s", dir, strerror(errno));
    return NULL;
}

/* Returns a folder below the user's cache folder, or below /tmp if that fails:
 * only processes of this machine share it. */
static const char *choose_folder(void)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *last = strf(forever, "/tmp/pleat-%ld", (long)getuid()),
         *dir = xdg && *xdg     ? strf(forever, "%s/pleat", xdg)
                : home && *home ? strf(forever, "%s/.cache/pleat", home)
                                : last;
    const char *why = folder_wrong(forever, dir), *then = why;

    if (!why)
        return dir;
    if (dir != last)
        then = folder_wrong(forever, last);
    if (then)
        err(NULL,
            "no folder for compiled kernels: %s (XDG_CACHE_HOME names one that "
            "you can write)",
            why);
    if (!launch_rank())
        warn(NULL,
             "%s; compiled kernels are kept in %s (XDG_CACHE_HOME names "
             "another folder)",
             why, last);
    return last;
}

const char *cache_folder(void)
{
    static const char *dir;

    if (!dir)
        dir = choose_folder();
    return dir;
}

void cache_keep(const char *path, const void *p, size_t n)
{
    /* A failed write only costs the next run the same work. */
    file_replace(path, OUTown, p, n);
}
