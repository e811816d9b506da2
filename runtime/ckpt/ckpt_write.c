/* ckpt_write.c: checkpoint files, written and hashed in pieces by threads.
 *
 * A thread gathers a piece from the ranks of this process, hashes it, and
 * writes it with O_DIRECT: the page cache would double the cost. A piece that
 * other processes share is written run by run through the cache. Hashes of
 * pieces are stored in <file>.pieces (16 bytes a piece, zeros where no process
 * held it whole) until the index is written. Missing hashes are computed from
 * the file, divided among all processes.
 *
 * Functions report errors by return values only: they may run on a thread
 * beside training. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ckpt.h"

/* The hash of a file of at most one piece is its XXH3-128; of a longer file,
 * the XXH3-128 of its pieces' hashes, high half first, big-endian. Older
 * checkpoints have the hash of the whole file. */
enum { PAGE = 4096 };

/* Pieces of read-ahead. */
enum { AHEAD = 4 };

typedef XXH128_canonical_t Hash;

static int64_t count_of(int64_t bytes)
{
    return (bytes + CKPTPIECE - 1) / CKPTPIECE;
}

static char *beside(Arena *a, const char *path)
{
    return strf(a, "%s.pieces", path);
}

/* A hash as 32 hexadecimal digits. */
static char *digits(Arena *a, XXH128_hash_t h)
{
    return strf(a, "%016lx%016lx", h.high64, h.low64);
}

void pieces_remove(Arena *a, const char *path)
{
    unlink(beside(a, path));
}

/* ---- writing ------------------------------------------------------------- */

typedef struct Writer {
    const Mesh *mesh;
    const FilePart *box;    /* vec */
    int64_t bytes;          /* of the file */
    int fd, direct, hashes; /* direct: O_DIRECT, or equal to fd; -1: none */
    _Atomic int error;      /* errno of the first failure */
} Writer;

/* The runs of a box that lie in a piece. */
typedef struct PieceFill {
    Writer *w;
    const FilePart *box;
    int64_t lo, hi;       /* bytes of the file */
    uint8_t *piece, *raw; /* raw: scratch, as large as a piece */
    int64_t filled;
    int write; /* write the runs to the file, do not gather */
} PieceFill;

static void put_at(Writer *writer, int fd, const void *p, int64_t n, int64_t at)
{
    for (const char *s = p; n && !writer->error;) {
        ssize_t k = pwrite(fd, s, (size_t)n, at);
        if (k < 0 && errno == EINVAL && fd == writer->direct &&
            fd != writer->fd)
            fd = writer->fd;
        else if (k == 0 || (k < 0 && errno != EINTR))
            writer->error = k ? errno : EIO;
        s += k > 0 ? k : 0;
        at += k > 0 ? k : 0;
        n -= k > 0 ? k : 0;
    }
}

/* Joins halves of fp32 elements in raw. Tensors and pieces begin at element
 * boundaries. */
static const uint8_t *join_run(PieceFill *fill, int64_t at, int64_t n)
{
    const uint16_t *rounded = (const uint16_t *)fill->box->from + at;
    const int16_t *remainder = (const int16_t *)fill->box->remainder + at;
    float *to = (float *)(void *)fill->raw;

    for (int64_t i = 0; i < n; i++)
        to[i] = f32_joined(rounded[i], remainder[i]);
    return fill->raw;
}

static void one_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    PieceFill *fill = ctx;
    int64_t size = fill->box->size, at = fill->box->at + global * size;
    int64_t lo = at > fill->lo ? at : fill->lo, end = at + n * size;
    int64_t hi = end < fill->hi ? end : fill->hi;

    if (lo >= hi)
        return;
    const uint8_t *from =
        fill->box->remainder
            ? join_run(fill, local + (lo - at) / size, (hi - lo) / size)
            : (const uint8_t *)fill->box->from + local * size + (lo - at);
    if (fill->write)
        put_at(fill->w, fill->w->fd, from, hi - lo, lo);
    else
        memcpy(fill->piece + (lo - fill->lo), from, (size_t)(hi - lo));
    fill->filled += hi - lo;
}

static int in_piece(const PieceFill *fill, const FilePart *box)
{
    return box->at < fill->hi && box->at + box->bytes > fill->lo;
}

/* Fills the runs that are converted from other files. */
static void one_made(PieceFill *fill)
{
    const FilePart *part = fill->box;
    int64_t lo = part->at > fill->lo ? part->at : fill->lo,
            end = part->at + part->bytes;
    int64_t hi = end < fill->hi ? end : fill->hi;

    tensor_gather(part->made, lo - part->at, hi - part->at,
                  fill->piece + (lo - fill->lo), fill->raw);
    fill->filled += hi - lo;
}

static void all_runs(PieceFill *fill)
{
    for (size_t i = 0; i < vec_len(fill->w->box); i++) {
        fill->box = &fill->w->box[i];
        if (!in_piece(fill, fill->box))
            continue;
        if (fill->box->made)
            one_made(fill);
        else if (fill->box->t)
            tensor_runs(fill->w->mesh, fill->box->t, fill->box->rank, one_run,
                        fill);
        else
            one_run(fill, 0, 0, fill->box->bytes);
    }
}

static PieceFill piece_at(Writer *writer, int64_t i)
{
    int64_t lo = i * CKPTPIECE, hi = lo + CKPTPIECE < writer->bytes
                                         ? lo + CKPTPIECE
                                         : writer->bytes;

    return (PieceFill){ .w = writer, .lo = lo, .hi = hi };
}

/* Starts read-ahead of the source files of piece i. */
static void read_ahead(Writer *writer, int64_t i)
{
    PieceFill f = piece_at(writer, i);

    for (size_t k = 0; k < vec_len(writer->box) && f.lo < f.hi; k++) {
        const FilePart *part = &writer->box[k];
        int64_t lo = f.lo - part->at, hi = f.hi - part->at;
        if (part->made && in_piece(&f, part))
            tensor_ahead(part->made, lo > 0 ? lo : 0,
                         hi < part->bytes ? hi : part->bytes);
    }
}

static void one_piece(Writer *writer, int64_t i, uint8_t *piece)
{
    PieceFill f = piece_at(writer, i);
    int64_t lo = f.lo, hi = f.hi;
    Hash h;

    f.piece = piece;
    f.raw = piece + CKPTPIECE;
    all_runs(&f);
    if (f.filled == hi - lo) {
        XXH128_canonicalFromHash(&h, XXH3_128bits(piece, (size_t)(hi - lo)));
        if (writer->hashes >= 0)
            put_at(writer, writer->hashes, &h, sizeof h, i * (int64_t)sizeof h);
        put_at(writer, (hi - lo) % PAGE ? writer->fd : writer->direct, piece,
               hi - lo, lo);
    } else if (f.filled) {
        f.write = 1;
        all_runs(&f);
    }
}

static void some_pieces(void *ctx, int64_t from, int64_t to)
{
    Writer *writer = ctx;
    void *piece = NULL;

    if (posix_memalign(&piece, PAGE, 2 * CKPTPIECE))
        writer->error = ENOMEM;
    for (int64_t i = from; i < from + AHEAD && !writer->error; i++)
        read_ahead(writer, i);
    for (int64_t i = from; i < to && !writer->error; i++) {
        read_ahead(writer, i + AHEAD);
        one_piece(writer, i, piece);
    }
    free(piece);
}

const char *pieces_layout(Arena *a, const char *path, const char *head,
                          size_t len, int64_t total)
{
    int fd = file_create(beside(a, path), O_TRUNC);
    int bad = fd < 0 || ftruncate(fd, count_of(total) * (int64_t)sizeof(Hash));
    const char *why = bad ? ckpt_why(a, "cannot make", beside(a, path)) : NULL;

    if (fd >= 0)
        close(fd);
    return why ? why : ckpt_layout(a, path, head, len, total);
}

/* Opens the file, its hashes, and the file again with O_DIRECT. */
static int open_all(Arena *a, Writer *writer, const char *path, PieceWrite how)
{
    writer->fd = open(path, O_RDWR | O_CLOEXEC);
    if (how == PWhashed)
        writer->hashes = open(beside(a, path), O_RDWR | O_CLOEXEC);
    if (writer->fd < 0 || (how == PWhashed && writer->hashes < 0)) {
        writer->error = errno;
        return errno;
    }
    writer->direct = open(path, O_RDWR | O_CLOEXEC | O_DIRECT);
    writer->direct = writer->direct < 0 ? writer->fd : writer->direct;
    return 0;
}

/* close() may return a deferred write error. */
static void close_all(Writer *writer)
{
    if (writer->direct >= 0 && writer->direct != writer->fd &&
        close(writer->direct) && !writer->error)
        writer->error = errno;
    if (writer->fd >= 0 && close(writer->fd) && !writer->error)
        writer->error = errno;
    if (writer->hashes >= 0 && close(writer->hashes) && !writer->error)
        writer->error = errno;
}

const char *pieces_write(Arena *a, Pool *pool, const char *path, const Mesh *m,
                         const FilePart *box, int64_t bytes, PieceWrite how)
{
    Writer w = { .mesh = m, .box = box, .bytes = bytes };

    w.direct = w.hashes = -1;
    if (!open_all(a, &w, path, how))
        pool_run(pool, some_pieces, &w, count_of(bytes), 1);
    if (!w.error && file_flush(w.fd))
        w.error = errno;
    close_all(&w);
    errno = w.error;
    return w.error ? ckpt_why(a, "cannot write", path) : NULL;
}

/* ---- hashing ------------------------------------------------------------- */

typedef struct PieceReader {
    int fd;
    int64_t bytes;       /* of the file */
    Hash *hash;          /* vec, by piece; zeros: unknown */
    int64_t first;       /* first piece to read */
    int64_t part, parts; /* reads every parts-th of them */
    _Atomic int error;
} PieceReader;

static int is_known(const Hash *hash)
{
    static const Hash unknown;

    return memcmp(hash, &unknown, sizeof unknown) != 0;
}

static int64_t piece_bytes(const PieceReader *reader, int64_t i)
{
    int64_t left = reader->bytes - i * CKPTPIECE;

    return left < CKPTPIECE ? left : CKPTPIECE;
}

static void read_piece(PieceReader *reader, int64_t i, uint8_t *to)
{
    int64_t at = i * CKPTPIECE, n = piece_bytes(reader, i);

    while (n && !reader->error) {
        ssize_t k = pread(reader->fd, to, (size_t)n, at);
        if (k == 0 || (k < 0 && errno != EINTR))
            reader->error = k ? errno : EIO;
        to += k > 0 ? k : 0;
        at += k > 0 ? k : 0;
        n -= k > 0 ? k : 0;
    }
}

/* Hashes pieces lo .. hi - 1; reads ahead by one piece. */
static void hash_pieces(void *ctx, int64_t lo, int64_t hi)
{
    PieceReader *reader = ctx;
    uint8_t *piece = malloc(CKPTPIECE);

    if (!piece)
        reader->error = ENOMEM;
    for (int64_t k = lo; k < hi && !reader->error; k++) {
        int64_t i = reader->first + k;
        if (is_known(&reader->hash[i]) || k % reader->parts != reader->part)
            continue;
        posix_fadvise(reader->fd, (i + 1) * CKPTPIECE, CKPTPIECE,
                      POSIX_FADV_WILLNEED);
        read_piece(reader, i, piece);
        if (!reader->error)
            XXH128_canonicalFromHash(
                &reader->hash[i],
                XXH3_128bits(piece, (size_t)piece_bytes(reader, i)));
    }
    free(piece);
}

static Hash *unknown_hashes(Arena *a, int64_t n)
{
    Hash *v = NULL;

    for (int64_t i = 0; i < n; i++)
        vec_push(a, v, (Hash){ 0 });
    return v;
}

/* Returns 0; -1 with errno. */
static int open_reader(Arena *a, PieceReader *reader, const char *path)
{
    struct stat st;

    *reader = (PieceReader){ .fd = file_open(path), .parts = 1 };
    if (reader->fd < 0 || fstat(reader->fd, &st))
        return -1;
    reader->bytes = st.st_size;
    reader->hash = unknown_hashes(a, count_of(reader->bytes));
    return 0;
}

static int close_reader(PieceReader *reader)
{
    int why = reader->error ? reader->error : errno;

    if (reader->fd >= 0)
        close(reader->fd);
    errno = why;
    return reader->error ? -1 : 0;
}

const void *pieces_kept(Arena *a, const char *path)
{
    int fd = file_open(beside(a, path));
    struct stat st = { 0 };
    Hash *hash = fd < 0 || fstat(fd, &st)
                     ? NULL
                     : unknown_hashes(a, st.st_size / (off_t)sizeof(Hash));
    size_t n = vec_len(hash) * sizeof *hash;

    if (n && pread(fd, hash, n, 0) != (ssize_t)n)
        hash = NULL;
    if (fd >= 0)
        close(fd);
    return hash;
}

static void take_known(PieceReader *reader, const void *known)
{
    if (vec_len(known) == vec_len(reader->hash) && known)
        memcpy(reader->hash, known, vec_len(known) * sizeof(Hash));
}

/* Writes the hashes that this process computed to its side file. */
static int keep_part(Arena *a, PieceReader *reader, const char *path,
                     const Hash *before)
{
    Writer w = { .fd = -1, .direct = -1 };

    w.hashes = open(beside(a, path), O_RDWR | O_CLOEXEC);
    if (w.hashes < 0)
        return -1;
    for (size_t i = 0; i < vec_len(reader->hash) && !w.error; i++)
        if (is_known(&reader->hash[i]) && !(before && is_known(&before[i])))
            put_at(&w, w.hashes, &reader->hash[i], sizeof(Hash),
                   (int64_t)(i * sizeof(Hash)));
    close_all(&w);
    errno = w.error;
    return w.error ? -1 : 0;
}

const char *pieces_rest(Arena *a, Pool *pool, const char *path, int64_t part,
                        int64_t parts)
{
    PieceReader r;
    int bad = open_reader(a, &r, path);
    const Hash *kept = bad ? NULL : pieces_kept(a, path);

    r.part = part;
    r.parts = parts;
    take_known(&r, kept);
    if (!bad)
        pool_run(pool, hash_pieces, &r, count_of(r.bytes), 1);
    bad = close_reader(&r) || bad || keep_part(a, &r, path, kept);
    return bad ? ckpt_why(a, "cannot read back", path) : NULL;
}

/* A process that cannot read its part, or sees another file, leaves its hashes
 * unknown. */
const void *pieces_shared(Arena *a, Pool *pool, Comm *comm, const char *path)
{
    PieceReader r;
    int bad = open_reader(a, &r, path);
    int64_t bytes = bad ? 0 : r.bytes;

    comm_share(comm, &bytes, sizeof bytes);
    int64_t n = count_of(bytes), each = (n + comm->world - 1) / comm->world;
    int64_t lo = comm->first * each < n ? comm->first * each : n;
    int64_t hi = lo + each < n ? lo + each : n;
    Hash *all = alloc(a, (size_t)((each + 1) * comm->world) * sizeof *all);
    Hash *mine = alloc(a, (size_t)(each + 1) * sizeof *mine);
    r.first = lo;
    if (!bad && r.bytes == bytes) {
        pool_run(pool, hash_pieces, &r, hi - lo, 1);
        if (!r.error)
            memcpy(mine, r.hash + lo, (size_t)(hi - lo) * sizeof *mine);
    }
    close_reader(&r);
    comm_gather(comm, mine, all, each * (int64_t)sizeof *mine);
    Hash *v = unknown_hashes(a, n);
    if (n)
        memcpy(v, all, (size_t)n * sizeof *v);
    return v;
}

char *pieces_hash(Arena *a, Pool *pool, const char *path, const void *known,
                  int64_t *bytes)
{
    PieceReader r;
    int bad = open_reader(a, &r, path);

    if (!bad) {
        take_known(&r, known);
        pool_run(pool, hash_pieces, &r, count_of(r.bytes), 1);
    }
    bad = close_reader(&r) || bad;
    if (bad || !r.bytes)
        return NULL;
    *bytes = r.bytes;
    return vec_len(r.hash) > 1
               ? hash_text(a, r.hash, vec_len(r.hash) * sizeof(Hash))
               : digits(a, XXH128_hashFromCanonical(r.hash));
}

char *pieces_whole(Arena *a, const char *path)
{
    PieceReader r;
    int bad = open_reader(a, &r, path);
    uint8_t *piece = malloc(CKPTPIECE);
    XXH3_state_t *x_x_h3_state_t = XXH3_createState();

    bad = bad || !piece || !x_x_h3_state_t;
    if (!bad)
        XXH3_128bits_reset(x_x_h3_state_t);
    for (int64_t i = 0; !bad && i < count_of(r.bytes) && !r.error; i++) {
        read_piece(&r, i, piece);
        XXH3_128bits_update(x_x_h3_state_t, piece, (size_t)piece_bytes(&r, i));
    }
    XXH128_hash_t h =
        bad ? (XXH128_hash_t){ 0 } : XXH3_128bits_digest(x_x_h3_state_t);
    XXH3_freeState(x_x_h3_state_t);
    free(piece);
    bad = close_reader(&r) || bad;
    return bad ? NULL : digits(a, h);
}
