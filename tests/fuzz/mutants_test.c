/* mutants_test: good files with flipped bits, cut off, and with absurd numbers,
 * at 4,000 places for each reader. Each is refused with a reason or read, in
 * bounded memory and time. What a hash covers is refused always. Mutants are
 * read in child processes, so that a crash is a failure that names its mutant,
 * which stays in build/mutant.<reader>. Dear readers also keep what they read,
 * and get a process each. Under sanitizers, which cost ten times as much, there
 * are fewer of each. */
#include <ctype.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "readers.h"

enum {
    ROUNDS = 1500,
    ALLROUNDS = 10000, /* with PLEAT_ALL */
    BATCH = 250,
    SECONDS = 60,
    ROOM = 1 << 20,
    AFFORDED = 2
}; /* dearer readers: fewer, without PLEAT_ALL */

typedef struct Count { /* shared with the child */
    int round, refused, taken;
    char wrong[256];
} Count;

static Count *count;
static uint64_t random_state = 88172645463325252u;

static uint32_t chance(uint32_t below)
{
    uint64_t *x = &random_state;

    *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
    return (uint32_t)(*x >> 32) % below;
}

static void mutate(char *s, size_t *n)
{
    static const uint8_t absurd[] = { 0, 1, 0x7f, 0x80, 0xff, '9', '{', '"' };
    size_t at = chance((uint32_t)*n), len = 1 + chance(16);

    len = len < *n - at ? len : *n - at;
    switch (chance(8)) {
    case 0: *n = at ? at : 1; break;
    case 1: memset(s + at, absurd[chance(sizeof absurd)], len); break;
    case 2:
        memmove(s + at, s + at + len, *n - at - len);
        *n -= len < *n ? len : 0;
        break;
    case 3:
        memmove(s + at + len, s + at, *n - at);
        *n += len;
        break;
    default: s[at] ^= (char)(1 << chance(8));
    }
}

/* From p on: a name or number, or another byte; spaces go before it. */
static size_t word_at(const char *s, size_t n, size_t p, size_t *len)
{
    while (p < n && isspace((unsigned char)s[p]))
        p++;
    size_t end = p;
    while (end < n && (isalnum((unsigned char)s[end]) || s[end] == '_'))
        end++;
    *len = end > p ? end - p : p < n;
    return p;
}

/* A word of the text goes, comes twice, or another takes its place. */
static void mutate_words(const char *words, char *s, size_t *n)
{
    size_t len, at = word_at(s, *n, chance((uint32_t)*n), &len), new = len;
    const char *with = words + chance((uint32_t)strlen(words));
    char copy[64];

    with += strcspn(with, " ");
    with += strspn(with, " ");
    switch (chance(4)) {
    case 0: new = 0; break;
    case 1:
        with = memcpy(copy, s + at, len < sizeof copy ? len : sizeof copy);
        new = len = len < sizeof copy ? len : sizeof copy;
        at += len;
        len = 0;
        break;
    default: new = strcspn(with, " ");
    }
    memmove(s + at + new, s + at + len, *n - at - len);
    memcpy(s + at, with, new);
    *n += new - len;
}

static void one(const FuzzReader *r, const Seed *seeds, const char *dir,
                char *s)
{
    const Seed *x = &seeds[chance((uint32_t)vec_len(seeds))];
    Arena *a = arena_new();
    size_t n = x->n;

    memcpy(s, x->s, n);
    int words = r->words && chance(2);
    for (uint32_t k = 1 + chance(3); k--;)
        if (words)
            mutate_words(r->words, s, &n);
        else
            mutate(s, &n);
    int same = n == x->n && !memcmp(s, x->s, n);
    const char *why = fuzz_read(a, r, dir, s, n);
    if (why && strstr(why, "out of memory"))
        snprintf(count->wrong, sizeof count->wrong, "of %s: %s", x->name, why);
    if (!why && r->strict && !same)
        snprintf(count->wrong, sizeof count->wrong, "of %s: was taken",
                 x->name);
    if (why && !*why)
        snprintf(count->wrong, sizeof count->wrong, "of %s: no reason",
                 x->name);
    count->refused += why != NULL;
    count->taken += !why;
    arena_free(a);
}

/* From here on absurd amounts of memory are refused, and hangs end. */
static void limits(void)
{
#ifndef __SANITIZE_ADDRESS__
    rlim_t room = (rlim_t)1 << 30;
    setrlimit(RLIMIT_AS, &(struct rlimit){ room, room });
#endif
    alarm(SECONDS);
    if (!freopen("/dev/null", "w", stderr))
        _exit(1);
}

static int batch(const FuzzReader *r, const Seed *seeds, const char *dir,
                 int rounds)
{
    int status;
    pid_t pid = fork();

    if (!pid) {
        char *s = malloc(ROOM + 64 * 16);
        limits();
        random_state += (uint64_t)count->round * 0x9e3779b97f4a7c15u;
        for (int end = count->round + rounds;
             count->round < end && !*count->wrong; count->round++)
            one(r, seeds, dir, s);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status))
        snprintf(count->wrong, sizeof count->wrong, "ended by signal %d (%s)",
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status))
        snprintf(count->wrong, sizeof count->wrong, "exit status %d",
                 WEXITSTATUS(status));
    return *count->wrong == 0;
}

static void keep(const FuzzReader *r, const char *dir)
{
    char *line = strf(forever, "mkdir -p build && cp %s/%s build/mutant.%s",
                      dir, r->file, r->name);

    if (system(line))
        printf("# the mutant could not be kept\n");
}

/* Is a seed taken as it is? Some of the folders' files are bad on purpose. */
static int good_seed(const FuzzReader *r, const Seed *v, const char *dir)
{
    int status;
    pid_t pid = fork();

    if (!pid) {
        Arena *a = arena_new();
        limits();
        for (size_t i = 0; i < vec_len(v); i++) {
            char *s = alloc(a, v[i].n + 1);
            memcpy(s, v[i].s, v[i].n);
            if (!fuzz_read(a, r, dir, s, v[i].n))
                _exit(0);
        }
        _exit(1);
    }
    waitpid(pid, &status, 0);
    return status == 0;
}

static int test(const FuzzReader *r)
{
    Arena *a = arena_new();
    char dir[] = "/tmp/pleat-mutants.XXXXXX";
    int all = getenv("PLEAT_ALL") != NULL, rounds = all ? ALLROUNDS : ROUNDS;

    if (!mkdtemp(dir))
        return 1;
    memset(count, 0, sizeof *count);
    if (r->cost > AFFORDED && !all)
        rounds = ROUNDS * AFFORDED / r->cost;
    if (r->beside)
        r->beside(a, dir);
    Seed *v = fuzz_seeds(a, r);
    int good = good_seed(r, v, dir);
    while (good && count->round < rounds &&
           batch(r, v, dir, r->cost > AFFORDED ? 1 : BATCH))
        ;
    int bad = !good || *count->wrong;
    if (bad)
        keep(r, dir);
    printf("%s - mutants of %s: ", bad ? "not ok" : "ok", r->name);
    if (!good)
        printf("no good file of %zu\n", vec_len(v));
    else if (bad)
        printf("%d %s\n", count->round, count->wrong);
    else
        printf("%d, %d refused, %d read\n", count->round, count->refused,
               count->taken);
    fflush(stdout);
    if (system(strf(a, "rm -rf %s", dir)))
        bad = 1;
    arena_free(a);
    return bad;
}

int main(int argc, char **argv)
{
    int bad = 0;

    count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (const FuzzReader *r = fuzz_readers; r->name; r++)
        if (argc < 2 || !strcmp(argv[1], r->name))
            bad += test(r);
    return bad != 0;
}
