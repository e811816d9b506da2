/* pieces.c: files of checkpoints, written and hashed by threads in pieces.
 *
 * A thread gathers a piece from what the ranks of this process hold, hashes it,
 * and writes it past the page cache, which would cost as much again as the
 * disk. A piece of which other processes hold a part is written run by run,
 * through the cache. Hashes of pieces wait in a file beside (<file>.pieces, 16
 * bytes a piece, zeros where nobody had it whole) until the index is made; what
 * is missing there is read back. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime.h"

/* The hash of a file: as long as one piece or shorter, its XXH3-128; else that
 * of the hashes of its pieces, high half first, big-endian. Checkpoints of
 * before have the hash of the whole file. */
enum { PIECE = 4 << 20, PAGE = 4096 };

typedef XXH128_canonical_t Hash;

static int64_t count_of(int64_t bytes)
{
    return (bytes + PIECE - 1) / PIECE;
}

static char *beside(Arena *a, const char *path)
{
    return strf(a, "%s.pieces", path);
}

void pieces_remove(Arena *a, const char *path)
{
    unlink(beside(a, path));
}

/* ---- writing ------------------------------------------------------------- */

typedef struct Writer {
    const Mesh *mesh;
    const Box *box;         /* vec */
    int64_t bytes;          /* of the file */
    int fd, direct, hashes; /* direct: past the cache, or fd */
    _Atomic int error;      /* errno of the first failure */
} Writer;

/* A box's runs as far as they lie in a piece. */
typedef struct Fill {
    Writer *w;
    const Box *box;
    int64_t lo, hi; /* bytes of the file */
    uint8_t *piece;
    int64_t filled;
    int write; /* write the runs instead */
} Fill;

static void put_at(Writer *w, int fd, const void *p, int64_t n, int64_t at)
{
    for (const char *s = p; n && !w->error;) {
        ssize_t k = pwrite(fd, s, (size_t)n, at);
        if (k < 0 && errno == EINVAL && fd == w->direct && fd != w->fd)
            fd = w->fd;
        else if (k <= 0 && errno != EINTR)
            w->error = k ? errno : EIO;
        s += k > 0 ? k : 0;
        at += k > 0 ? k : 0;
        n -= k > 0 ? k : 0;
    }
}

static void one_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    Fill *f = ctx;
    int64_t size = f->box->size, at = f->box->at + global * size;
    int64_t lo = at > f->lo ? at : f->lo, end = at + n * size;
    int64_t hi = end < f->hi ? end : f->hi;

    if (lo >= hi)
        return;
    const uint8_t *from =
        (const uint8_t *)f->box->from + local * size + (lo - at);
    if (f->write)
        put_at(f->w, f->w->fd, from, hi - lo, lo);
    else
        memcpy(f->piece + (lo - f->lo), from, (size_t)(hi - lo));
    f->filled += hi - lo;
}

static void all_runs(Fill *f)
{
    for (size_t i = 0; i < vec_len(f->w->box); i++) {
        f->box = &f->w->box[i];
        if (f->box->at >= f->hi || f->box->at + f->box->bytes <= f->lo)
            continue;
        if (f->box->t)
            tensor_runs(f->w->mesh, f->box->t, f->box->rank, one_run, f);
        else
            one_run(f, 0, 0, f->box->bytes);
    }
}

static void one_piece(Writer *w, int64_t i, uint8_t *piece)
{
    int64_t lo = i * PIECE, hi = lo + PIECE < w->bytes ? lo + PIECE : w->bytes;
    Fill f = { .w = w, .lo = lo, .hi = hi, .piece = piece };
    Hash h;

    all_runs(&f);
    if (f.filled == hi - lo) {
        XXH128_canonicalFromHash(&h, XXH3_128bits(piece, (size_t)(hi - lo)));
        put_at(w, w->hashes, &h, sizeof h, i * (int64_t)sizeof h);
        put_at(w, (hi - lo) % PAGE ? w->fd : w->direct, piece, hi - lo, lo);
    } else if (f.filled) {
        f.write = 1;
        all_runs(&f);
    }
}

static void some_pieces(void *ctx, int64_t from, int64_t to)
{
    Writer *w = ctx;
    void *piece = NULL;

    if (posix_memalign(&piece, PAGE, PIECE))
        w->error = ENOMEM;
    for (int64_t i = from; i < to && !w->error; i++)
        one_piece(w, i, piece);
    free(piece);
}

int pieces_layout(Arena *a, const char *path, const char *head, size_t len,
                  int64_t total)
{
    int fd =
        open(beside(a, path), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int bad = fd < 0 || ftruncate(fd, count_of(total) * (int64_t)sizeof(Hash));

    if (fd >= 0)
        close(fd);
    if (bad)
        return ckpt_complain("cannot make", beside(a, path));
    return ckpt_layout(path, head, len, total);
}

int pieces_write(Arena *a, Pool *pool, const char *path, const Mesh *m,
                 const Box *box, int64_t bytes)
{
    Writer w = { .mesh = m, .box = box, .bytes = bytes };

    w.fd = open(path, O_RDWR | O_CLOEXEC);
    w.hashes = open(beside(a, path), O_RDWR | O_CLOEXEC);
    w.direct = open(path, O_RDWR | O_CLOEXEC | O_DIRECT);
    w.direct = w.direct < 0 ? w.fd : w.direct;
    if (w.fd < 0 || w.hashes < 0)
        w.error = errno;
    else
        pool_run(pool, some_pieces, &w, count_of(bytes), 1);
    if (!w.error && fsync(w.fd))
        w.error = errno;
    if (w.direct != w.fd)
        close(w.direct);
    if (w.fd >= 0)
        close(w.fd);
    if (w.hashes >= 0)
        close(w.hashes);
    errno = w.error;
    return w.error ? ckpt_complain("cannot write", path) : 0;
}

/* ---- hashing ------------------------------------------------------------- */

typedef struct Reader {
    uint8_t *map;
    int64_t bytes;
    Hash *hash; /* by piece; zeros: unknown */
} Reader;

static size_t piece_bytes(const Reader *r, int64_t i)
{
    int64_t left = r->bytes - i * PIECE;

    return (size_t)(left < PIECE ? left : PIECE);
}

/* The disk reads the next piece while one is hashed; what was read need not
 * stay mapped. */
static void hash_pieces(void *ctx, int64_t lo, int64_t hi)
{
    static const Hash unknown;
    Reader *r = ctx;

    for (int64_t i = lo; i < hi; i++) {
        uint8_t *from = r->map + i * PIECE;
        if (memcmp(&r->hash[i], &unknown, sizeof unknown))
            continue;
        if (i == lo)
            madvise(from, piece_bytes(r, i), MADV_WILLNEED);
        if (i + 1 < hi)
            madvise(from + PIECE, piece_bytes(r, i + 1), MADV_WILLNEED);
        XXH128_canonicalFromHash(&r->hash[i],
                                 XXH3_128bits(from, piece_bytes(r, i)));
        madvise(from, piece_bytes(r, i), MADV_DONTNEED);
    }
}

const void *pieces_kept(Arena *a, const char *path, int64_t bytes)
{
    int fd = open(beside(a, path), O_RDONLY | O_CLOEXEC);
    size_t n = (size_t)count_of(bytes) * sizeof(Hash);
    void *hash = fd < 0 ? NULL : alloc(a, n);

    if (fd >= 0 && read(fd, hash, n) != (ssize_t)n)
        hash = NULL;
    if (fd >= 0)
        close(fd);
    return hash;
}

/* Who cannot read its part, or sees another file, leaves it unknown. */
const void *pieces_shared(Arena *a, Pool *pool, Comm *c, const char *path)
{
    int64_t bytes = 0, size = 0;
    uint8_t *map = ckpt_map(path, &size, 0);

    bytes = map ? size : 0;
    comm_share(c, &bytes, sizeof bytes);
    int64_t n = count_of(bytes), each = (n + c->world - 1) / c->world;
    int64_t lo = c->first * each < n ? c->first * each : n;
    int64_t hi = lo + each < n ? lo + each : n;
    Hash *all = alloc(a, (size_t)((each + 1) * c->world) * sizeof *all);
    Hash *mine = alloc(a, (size_t)(each + 1) * sizeof *mine);
    Reader r = { map + lo * PIECE, size - lo * PIECE, mine };
    if (map && size == bytes)
        pool_run(pool, hash_pieces, &r, hi - lo, 1);
    if (map)
        munmap(map, (size_t)size);
    comm_gather(c, mine, all, each * (int64_t)sizeof *mine);
    return all;
}

char *pieces_hash(Arena *a, Pool *pool, uint8_t *map, int64_t bytes,
                  const void *known)
{
    int64_t n = count_of(bytes);
    size_t size = (size_t)n * sizeof(Hash);

    if (n < 2)
        return hash_text(a, map, (size_t)bytes);
    Reader r = { map, bytes, alloc(a, size) };
    if (known)
        memcpy(r.hash, known, size);
    pool_run(pool, hash_pieces, &r, n, 1);
    return hash_text(a, r.hash, size);
}

char *pieces_whole(Arena *a, uint8_t *map, int64_t bytes)
{
    Reader r = { .map = map, .bytes = bytes };
    XXH3_state_t *s = XXH3_createState();

    XXH3_128bits_reset(s);
    for (int64_t i = 0; i < count_of(bytes); i++) {
        XXH3_128bits_update(s, map + i * PIECE, piece_bytes(&r, i));
        madvise(map + i * PIECE, piece_bytes(&r, i), MADV_DONTNEED);
    }
    XXH128_hash_t h = XXH3_128bits_digest(s);
    XXH3_freeState(s);
    return strf(a, "%016llx%016llx", (unsigned long long)h.high64,
                (unsigned long long)h.low64);
}
