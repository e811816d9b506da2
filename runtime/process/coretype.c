/* coretype.c: selects OpenBLAS's core type. OpenBLAS detects the core type by
 * the processor's family and model and treats a processor newer than the
 * library as the oldest type: 0.3.21 (Debian 12) takes an Emerald Rapids for a
 * Prescott, at a third of the speed. Other versions have wrong kernels for some
 * processors.
 *
 * Before the library is loaded, a child process tries its own choice: the core
 * type, and whether products are right. If the processor's flags allow a better
 * type, or products are wrong, types are tried from the best down, and
 * OPENBLAS_CORETYPE is set to the first one with right products. The verdict is
 * stored in the cache folder per processor and depends on nothing else, so
 * equal machines choose the same type. A user's OPENBLAS_CORETYPE is left
 * alone. */
#include <dlfcn.h>
#include <strings.h>
#include <sys/wait.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "process.h"

enum { PATHS = 1024, CORE = 32, SECONDS = 20 };

/* Core types, best first. `speed` ranks them, including the types without
 * flags, which are never tried. Zen has Haswell's kernels with other
 * blocking. */
/* clang-format off */
static const struct { const char *name, *flags; int speed; } types[] = {
    { "Cooperlake", "avx512f avx512dq avx512bw avx512vl avx512cd avx512_bf16", 4 },
    { "SkylakeX", "avx512f avx512dq avx512bw avx512vl avx512cd", 4 },
    { "Zen", "avx2 fma sse4a", 3 },
    { "Haswell", "avx2 fma", 3 },
    { "Sandybridge", "avx", 2 },
    { "Nehalem", "sse4_2", 1 },
    { "Sapphirerapids", NULL, 4 }, { "Excavator", NULL, 3 },
    { "Steamroller", NULL, 2 }, { "Piledriver", NULL, 2 }, { "Bulldozer", NULL, 2 },
};
/* clang-format on */

/* Result of a child process that loaded the library. */
typedef struct Trial {
    int right; /* are products right? */
    char core[CORE], path[PATHS];
    int64_t size, mtime; /* size and time of the library's file */
} Trial;

typedef struct Verdict {
    Trial own;      /* without OPENBLAS_CORETYPE */
    char use[CORE]; /* core type to set; empty: none */
} Verdict;

static Verdict chosen;
static int trying, wrong;

/* ---- the processor ------------------------------------------------------- */

static int has_all(const char *cpu, const char *flags)
{
    for (const char *flag; flags && (flag = next_word(&flags, " "));)
        if (!has_word(cpu, ' ', flag))
            return 0;
    return flags != NULL;
}

static int speed_of(const char *core)
{
    for (int i = 0; i < countof(types); i++)
        if (!strcasecmp(types[i].name, core))
            return types[i].speed;
    return 0;
}

/* ---- check of products --------------------------------------------------- */

static uint64_t draw(uint64_t seed, int64_t i)
{
    return XXH3_64bits_withSeed(&i, sizeof i, seed);
}

/* Whole numbers below 8: products of a few hundred of them are exact in fp32,
 * in any order. */
static void fill(double *v, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++)
        v[i] = (double)(draw(seed, i) % 15) - 7;
}

/* C[m x n] = A[m x k] x B[k x n] + beta C0 */
typedef struct Shape {
    int m, n, k, beta;
} Shape;

enum { MOST = 224, PAD = 3 };

/* Stores x [rows cols] at p with leading dimension ld, transposed if t. */
static void lay(Dtype dt, void *p, const double *x, int rows, int cols, int t)
{
    int ld = (t ? rows : cols) + PAD;

    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            elem_set(dt, p, t ? j * ld + i : i * ld + j, x[i * cols + j]);
}

typedef struct ProductCheck {
    double *a, *b, *c0, *want; /* dense */
    void *pa, *pb, *pc;        /* operands in the library's layout */
} ProductCheck;

static int one_product(ProductCheck *check, Dtype dt, Shape s, int ta, int tb)
{
    const int code[] = { 111, 112 };
    int la = (ta ? s.m : s.k) + PAD, lb = (tb ? s.k : s.n) + PAD;
    int lc = s.n + PAD;

    lay(dt, check->pa, check->a, s.m, s.k, ta);
    lay(dt, check->pb, check->b, s.k, s.n, tb);
    for (int i = 0; i < s.m * lc; i++) /* without beta C is not read */
        elem_set(dt, check->pc, i, s.beta ? 1e6 : (double)NAN);
    for (int i = 0; s.beta && i < s.m; i++)
        for (int j = 0; j < s.n; j++)
            elem_set(dt, check->pc, i * lc + j, check->c0[i * s.n + j]);
    if (dt == Df64)
        dl.cblas_dgemm(101, code[ta], code[tb], s.m, s.n, s.k, 1, check->pa, la,
                       check->pb, lb, s.beta, check->pc, lc);
    else
        dl.cblas_sgemm(101, code[ta], code[tb], s.m, s.n, s.k, 1, check->pa, la,
                       check->pb, lb, (float)s.beta, check->pc, lc);
    for (int i = 0; i < s.m; i++)
        for (int j = 0; j < s.n; j++)
            if (elem_get(dt, check->pc, i * lc + j) != check->want[i * s.n + j])
                return 0;
    return 1;
}

static void reference(ProductCheck *check, Shape s)
{
    for (int i = 0; i < s.m; i++)
        for (int j = 0; j < s.n; j++)
            check->want[i * s.n + j] = s.beta ? check->c0[i * s.n + j] : 0;
    for (int i = 0; i < s.m; i++)
        for (int k = 0; k < s.k; k++)
            for (int j = 0; j < s.n; j++)
                check->want[i * s.n + j] +=
                    check->a[i * s.k + k] * check->b[k * s.n + j];
}

static Shape shape(int i)
{
    static const int size[] = { 1, 2, 3, 4, 7, 8, 13, 16, 17, 31, 32, 48, 65 };
    const uint64_t n = countof(size);
    uint64_t h = draw(11, i);

    if (i == 0)
        return (Shape){ MOST, MOST - 1, MOST - 31, 1 };
    return (Shape){ size[h % n], size[h / n % n], size[h / n / n % n], i % 2 };
}

/* Checks about 30 sizes, one of them larger than a block, in all four layouts
 * and both precisions; takes about 15 ms. */
static int products_right(void)
{
    enum { ROOM = MOST * (MOST + PAD), SHAPES = 30 };
    ProductCheck c = { .a = alloc(forever, ROOM * sizeof(double)) };

    c.b = alloc(forever, ROOM * sizeof(double));
    c.c0 = alloc(forever, ROOM * sizeof(double));
    c.want = alloc(forever, ROOM * sizeof(double));
    c.pa = alloc(forever, ROOM * sizeof(double));
    c.pb = alloc(forever, ROOM * sizeof(double));
    c.pc = alloc(forever, ROOM * sizeof(double));
    fill(c.a, ROOM, 1);
    fill(c.b, ROOM, 2);
    fill(c.c0, ROOM, 3);
    for (int i = 0; i < SHAPES; i++) {
        Shape s = shape(i);
        reference(&c, s);
        for (int way = 0; way < 8; way++)
            if (!one_product(&c, way & 4 ? Df64 : Df32, s, way & 1,
                             way >> 1 & 1))
                return 0;
    }
    return 1;
}

/* ---- trials -------------------------------------------------------------- */

static void look(Trial *trial)
{
    Dl_info in;
    struct stat st;

    if (!dl_open(LIBblas))
        return;
    dl.openblas_set_num_threads(1);
    snprintf(trial->core, sizeof trial->core, "%s", dl.openblas_get_corename());
    if (dladdr((void *)(uintptr_t)dl.cblas_sgemm, &in) && in.dli_fname &&
        !stat(in.dli_fname, &st)) {
        snprintf(trial->path, sizeof trial->path, "%s", in.dli_fname);
        trial->size = st.st_size;
        trial->mtime = st.st_mtime;
    }
    trial->right = products_right();
}

/* Tries a core type in a child process, which a wrong kernel may crash. core
 * null: the library's own choice. */
static Trial try(const char *core)
{
    Trial t = { .right = 0 };
    int fd[2];

    if (pipe(fd))
        return t;
    dl_settle();
    pid_t pid = fork();
    if (!pid) {
        if (core)
            setenv("OPENBLAS_CORETYPE", core, 1);
        trying = 1;
        alarm(SECONDS);
        look(&t);
        _exit(write(fd[1], &t, sizeof t) != sizeof t);
    }
    close(fd[1]);
    if (pid < 0 || read(fd[0], &t, sizeof t) != sizeof t)
        t = (Trial){ .right = 0 };
    close(fd[0]);
    if (pid > 0)
        waitpid(pid, NULL, 0);
    return t;
}

/* Tries the types that are faster than the library's choice, or all if its
 * products are wrong. The verdict is "wrong" if no type has right products. */
static Verdict judge(const char *cpu)
{
    Verdict v = { .own = try(NULL) };
    int least = v.own.right ? speed_of(v.own.core) + 1 : 0;

    for (int i = 0; i < countof(types) && v.own.path[0]; i++) {
        if (types[i].speed < least || !has_all(cpu, types[i].flags) ||
            (!v.own.right && !strcasecmp(types[i].name, v.own.core)))
            continue;
        Trial t = try(types[i].name);
        if (t.right && !strcasecmp(t.core, types[i].name)) {
            snprintf(v.use, sizeof v.use, "%s", types[i].name);
            break;
        }
    }
    return v;
}

/* ---- the cache ----------------------------------------------------------- */

static char *cache_path(const char *cpu)
{
    const char *paths = getenv("LD_LIBRARY_PATH");
    char *s = strf(forever, "1 %s %s", cpu, paths ? paths : "");

    return strf(forever, "%s/blas-%016lx", cache_folder(),
                XXH3_64bits(s, strlen(s)));
}

/* Reads the stored verdict if it is about the library's present file. Returns 0
 * if there is none. */
static int recall(const char *path, Verdict *verdict)
{
    FILE *f = file_stream(path);
    struct stat st;
    char use[CORE] = "";
    long long size = 0, mtime = 0;
    int n =
        f ? fscanf(f, "%1023s %lld %lld %31s %d %31s", verdict->own.path, &size,
                   &mtime, verdict->own.core, &verdict->own.right, use)
          : 0;

    if (f)
        fclose(f);
    if (n != 6 || stat(verdict->own.path, &st) || st.st_size != size ||
        st.st_mtime != mtime)
        return 0;
    snprintf(verdict->use, sizeof verdict->use, "%s",
             strcmp(use, "-") ? use : "");
    return 1;
}

static void keep(const char *path, const Verdict *verdict)
{
    char *s = strf(forever, "%s %ld %ld %s %d %s\n", verdict->own.path,
                   verdict->own.size, verdict->own.mtime, verdict->own.core,
                   verdict->own.right, verdict->use[0] ? verdict->use : "-");

    if (verdict->own.path[0])
        cache_keep(path, s, strlen(s));
}

/* ---- interface ----------------------------------------------------------- */

void coretype_choose(void)
{
    if (trying || getenv("OPENBLAS_CORETYPE"))
        return;
    const char *cpu = processor_text(forever), *path = cache_path(cpu);
    if (!recall(path, &chosen)) {
        chosen = judge(cpu);
        keep(path, &chosen);
    }
    wrong = chosen.own.path[0] && !chosen.own.right && !chosen.use[0];
    if (chosen.use[0])
        setenv("OPENBLAS_CORETYPE", chosen.use, 1);
}

/* Returns a hash of the library's version and core type: equal hashes give
 * bit-equal products. */
int64_t blas_hash(void)
{
    const char *s = blas_kind();

    return (int64_t)(XXH3_64bits(s, strlen(s)) >> 1);
}

const char *blas_kind(void)
{
    const char *s = dl_open(LIBblas) ? dl.openblas_get_config() : "";
    size_t n = strcspn(s, " ");

    n += s[n] ? 1 + strcspn(s + n + 1, " ") : 0;
    return strf(forever, "%.*s, kernels for %s", (int)n, s,
                *s ? dl.openblas_get_corename() : "no processor");
}

int blas_wrong(void)
{
    return wrong;
}

const char *blas_note(void)
{
    if (wrong)
        return strf(forever, "OpenBLAS computes wrong products on this "
                             "processor, with every type that it has");
    if (!chosen.use[0])
        return NULL;
    if (!chosen.own.right)
        return strf(forever,
                    "products use OpenBLAS's kernels for %s: those for %s, "
                    "which it takes by itself, compute wrong products",
                    chosen.use, chosen.own.core);
    return strf(forever,
                "products use OpenBLAS's kernels for %s: by itself it takes "
                "this processor for a %s, which is slower",
                chosen.use, chosen.own.core);
}
