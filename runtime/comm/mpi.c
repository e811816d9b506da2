/* mpi.c: ranks in several processes, by Open MPI, which is opened at run time
 * under a launcher. Each set of ranks has a communicator, created at start in
 * one order on all ranks. MPI's counts are ints: longer messages are sent
 * pairwise, in pieces. */
#define _POSIX_C_SOURCE 200809L
#include <time.h>

#include "comm.h"

enum { FUNNELED = 1, PIECE = 1 << 30, TAG = 7 };
#define EAGER 1e-3    /* s */
enum { NAP = 50000 }; /* ns */

#define IN_PLACE ((void *)1) /* MPI_IN_PLACE of Open MPI */

static int running;

int mpi_running(void)
{
    return running;
}

/* A rank that fails alone would leave the others waiting for it. */
static void abort_others(void)
{
    if (running == 1 && err_status)
        mpi_abort(err_status);
}

void mpi_start(Comm *comm)
{
    int got, rank, size;

    if (!dl_open(LIBmpi))
        err(NULL, "started by mpirun, but Open MPI's library is unusable: %s",
            dl_why(LIBmpi));
    if (!running)
        segments_sweep();
    if (!running && dl.MPI_Init_thread(NULL, NULL, FUNNELED, &got))
        err(NULL, "MPI does not start");
    if (!running)
        atexit(abort_others);
    running = 1;
    dl.MPI_Comm_rank(dl.ompi_mpi_comm_world, &rank);
    dl.MPI_Comm_size(dl.ompi_mpi_comm_world, &size);
    *comm = (Comm){ .name = "mpi", .world = size, .first = rank, .n = 1 };
}

void mpi_stop(void)
{
    if (running == 1)
        dl.MPI_Finalize();
    running = 2;
}

void mpi_abort(int status)
{
    fflush(NULL);
    running = 2;
    dl.MPI_Abort(dl.ompi_mpi_comm_world, status);
    _exit(status);
}

/* Waits for a request. MPI_Wait polls until the end, and with more ranks than
 * processors takes time from the ranks it waits for. This function polls for
 * EAGER seconds, then sleeps NAP between tests. */
static void finish(void **request)
{
    double since = monotonic();

    for (int done = 0; !done;) {
        if (dl.MPI_Test(request, &done, NULL))
            err(NULL, "a message of this rank failed");
        if (!done && monotonic() - since > EAGER)
            nanosleep(&(struct timespec){ 0, NAP }, NULL);
    }
}

/* Sends nout elements of otype to `dest` while receiving from `src`. */
static void swap(const void *out, int nout, void *otype, int64_t dest, void *in,
                 int nin, void *itype, int64_t src)
{
    void *world = dl.ompi_mpi_comm_world, *got, *sent;

    if (dl.MPI_Irecv(in, nin, itype, (int)src, TAG, world, &got) ||
        dl.MPI_Isend(out, nout, otype, (int)dest, TAG, world, &sent))
        err(NULL, "a message from rank %ld failed", src);
    finish(&got);
    finish(&sent);
}

void mpi_sendrecv(const uint8_t *out, int64_t dest, uint8_t *in, int64_t src,
                  int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += PIECE) {
        int n = (int)(bytes - at < PIECE ? bytes - at : PIECE);
        swap(out + at, n, dl.ompi_mpi_byte, dest, in + at, n, dl.ompi_mpi_byte,
             src);
    }
}

void *mpi_strided(int64_t bytes, const int64_t *n, const int64_t *stride,
                  int dims)
{
    void *t = dl.ompi_mpi_byte, *next;
    int bad = dl.MPI_Type_contiguous((int)bytes, t, &next);

    for (int i = dims - 1; i >= 0 && !bad; i--) {
        if (n[i] == 1)
            continue;
        t = next;
        bad = dl.MPI_Type_create_hvector((int)n[i], 1, stride[i], t, &next);
        dl.MPI_Type_free(&t);
    }
    if (bad || dl.MPI_Type_commit(&next))
        err(NULL, "MPI makes no type of these strides");
    return next;
}

void mpi_forget(void *type)
{
    dl.MPI_Type_free(&type);
}

void mpi_swap(const void *out, void *otype, int64_t dest, void *in, void *itype,
              int64_t src)
{
    swap(out, 1, otype, dest, in, 1, itype, src);
}

/* Sends block i of `out` (outstep bytes apart; 0: one block to all) to rank i
 * of the group and receives block i of `in` from it. */
static void pairwise(const Coll *coll, const uint8_t *out, int64_t outstep,
                     uint8_t *in, int64_t bytes)
{
    int64_t g = coll->size, me = coll->me;

    memmove(in + me * bytes, out + me * outstep, (size_t)bytes);
    for (int64_t i = 1; i < g; i++) {
        int64_t to = (me + i) % g, from = (me + g - i) % g;
        mpi_sendrecv(out + to * outstep, coll->ranks[to], in + from * bytes,
                     coll->ranks[from], bytes);
    }
}

void mpi_blocks(const Coll *coll, const uint8_t *out, int64_t outstep,
                uint8_t *in, int64_t bytes, void **later)
{
    void *byte = dl.ompi_mpi_byte, *soon, **request = later ? later : &soon;
    int n = (int)bytes;

    if (bytes * coll->size > PIECE) {
        pairwise(coll, out, outstep, in, bytes);
        return;
    }
    if (!outstep && out == in + coll->me * bytes)
        out = IN_PLACE;
    if ((outstep ? dl.MPI_Ialltoall : dl.MPI_Iallgather)(
            out, n, byte, in, n, byte, coll->group, request))
        err(NULL, "MPI_I%s failed", outstep ? "alltoall" : "allgather");
    if (!later)
        finish(&soon);
}

/* Only the members call this. */
void *mpi_group(const int64_t *ranks, int64_t n)
{
    void *world, *group, *comm;
    int *r = malloc((size_t)n * sizeof *r);

    for (int64_t i = 0; r && i < n; i++)
        r[i] = (int)ranks[i];
    if (!r || dl.MPI_Comm_group(dl.ompi_mpi_comm_world, &world) ||
        dl.MPI_Group_incl(world, (int)n, r, &group) ||
        dl.MPI_Comm_create_group(dl.ompi_mpi_comm_world, group, TAG, &comm))
        err(NULL, "MPI makes no communicator of %ld ranks", n);
    free(r);
    return comm;
}

void mpi_bcast(void *p, int64_t bytes, int64_t from)
{
    for (int64_t at = 0; at < bytes; at += PIECE) {
        int n = (int)(bytes - at < PIECE ? bytes - at : PIECE);
        dl.MPI_Bcast((char *)p + at, n, dl.ompi_mpi_byte, (int)from,
                     dl.ompi_mpi_comm_world);
    }
}

/* Gathers `bytes` of every rank in order. */
void mpi_gather(const void *mine, void *all, int64_t bytes)
{
    void *soon;

    if (dl.MPI_Iallgather(mine, (int)bytes, dl.ompi_mpi_byte, all, (int)bytes,
                          dl.ompi_mpi_byte, dl.ompi_mpi_comm_world, &soon))
        err(NULL, "MPI_Iallgather failed");
    finish(&soon);
}

void mpi_barrier(void)
{
    dl.MPI_Barrier(dl.ompi_mpi_comm_world);
}

int64_t mpi_max(int64_t v)
{
    static int64_t all[4096];
    int64_t best = v;
    int n;

    dl.MPI_Comm_size(dl.ompi_mpi_comm_world, &n);
    if (n > 4096)
        err(NULL, "%d ranks, at most 4096 on the host", n);
    mpi_gather(&v, all, sizeof v);
    for (int i = 0; i < n; i++)
        best = all[i] > best ? all[i] : best;
    return best;
}

/* Pending maximum (comm_ask). It has its own communicator: ranks start it at
 * different points among their other collectives. */
static struct {
    void *comm, *request;
    int64_t mine, *all;
    int n;
} asked;

void mpi_questions(void)
{
    if (asked.comm)
        return;
    dl.MPI_Comm_size(dl.ompi_mpi_comm_world, &asked.n);
    int64_t *rank = malloc((size_t)asked.n * sizeof *rank);
    asked.all = malloc((size_t)asked.n * sizeof *asked.all);
    if (!rank || !asked.all)
        err(NULL, "out of memory for %d ranks", asked.n);
    for (int i = 0; i < asked.n; i++)
        rank[i] = i;
    asked.comm = mpi_group(rank, asked.n);
    free(rank);
}

void mpi_ask(int64_t v)
{
    asked.mine = v;
    if (dl.MPI_Iallgather(&asked.mine, sizeof v, dl.ompi_mpi_byte, asked.all,
                          sizeof v, dl.ompi_mpi_byte, asked.comm,
                          &asked.request))
        err(NULL, "MPI_Iallgather failed");
}

int mpi_answer(int64_t *most)
{
    int done = 0;

    if (dl.MPI_Test(&asked.request, &done, NULL))
        err(NULL, "MPI_Test failed");
    for (int i = 0; i < asked.n && done; i++)
        *most = i && *most > asked.all[i] ? *most : asked.all[i];
    return done;
}

/* ---- transfers between stages -------------------------------------------- */

enum { FIRSTTAG = 16 };

int64_t mpi_pieces(int64_t bytes)
{
    return bytes > PIECE ? (bytes + PIECE - 1) / PIECE : 1;
}

void mpi_send(const void *p, int64_t bytes, int64_t to, int64_t tag,
              void **request)
{
    for (int64_t i = 0, at = 0; i < mpi_pieces(bytes); i++, at += PIECE) {
        int n = (int)(bytes - at < PIECE ? bytes - at : PIECE);
        if (dl.MPI_Isend((const char *)p + at, n, dl.ompi_mpi_byte, (int)to,
                         FIRSTTAG + (int)tag, dl.ompi_mpi_comm_world,
                         &request[i]))
            err(NULL, "a message to rank %ld failed", to);
    }
}

void mpi_recv(void *p, int64_t bytes, int64_t from, int64_t tag)
{
    for (int64_t i = 0, at = 0; i < mpi_pieces(bytes); i++, at += PIECE) {
        int n = (int)(bytes - at < PIECE ? bytes - at : PIECE);
        void *got;
        if (dl.MPI_Irecv((char *)p + at, n, dl.ompi_mpi_byte, (int)from,
                         FIRSTTAG + (int)tag, dl.ompi_mpi_comm_world, &got))
            err(NULL, "a message from rank %ld failed", from);
        finish(&got);
    }
}

void mpi_wait(void **request, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        finish(&request[i]);
}
