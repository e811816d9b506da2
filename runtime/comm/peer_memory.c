/* peer_memory.c: memory that all ranks of one machine read and write: pages of
 * an anonymous file, which a rank opens by its owner's descriptor number. The
 * owner's token, stored there until all ranks have mapped it, shows that it is
 * the right file. */
#include "comm.h"

int comm_near(const Comm *comm, int64_t rank)
{
    return comm->n == comm->world ||
           !strcmp(comm->peer[rank].host, comm->peer[comm->first].host);
}

static void *map_file(int fd, int64_t bytes)
{
    void *p = fd < 0 ? MAP_FAILED
                     : mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Maps the file that is descriptor `number` of a rank's process. Returns null
 * if that fails. */
static void *map_peer(const Peer *peer, int number, int64_t bytes)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)peer->pid, number);
    int fd = number < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
    void *at = map_file(fd, bytes);
    if (at && memcmp(at, &peer->token, sizeof peer->token)) {
        munmap(at, (size_t)bytes);
        at = NULL;
    }
    if (fd >= 0)
        close(fd);
    return at;
}

void comm_agree(Comm *comm, int bad, const char *what)
{
    int64_t any = comm_max(comm, bad ? comm->first : -1);

    if (any >= 0 && comm_speaks(comm, any == comm->first))
        err(NULL,
            "rank %ld cannot share memory with the others of %s: %s "
            "(route.dispatcher=alltoall needs none)",
            any, comm->peer[any].host, what);
}

/* Shares memory under MPI, with one rank a process. */
static void share(Comm *comm, void **at, int64_t bytes, const char *what)
{
    int64_t me = comm->first;
    int fd = memfd_create("pleat", MFD_CLOEXEC), bad = 0;
    int *number = alloc(forever, (size_t)comm->world * sizeof *number);

    if (fd >= 0 && ftruncate(fd, bytes)) {
        close(fd);
        fd = -1;
    }
    at[me] = map_file(fd, bytes);
    if (at[me])
        memcpy(at[me], &comm->peer[me].token, sizeof comm->peer[me].token);
    comm_gather(comm, &fd, number, sizeof fd);
    for (int64_t r = 0; r < comm->world; r++) {
        if (r != me && comm_near(comm, r))
            at[r] = map_peer(&comm->peer[r], number[r], bytes);
        bad |= comm_near(comm, r) && !at[r];
    }
    comm_agree(comm, bad, what);
    memset(at[me], 0, sizeof comm->peer[me].token);
    poison_pages(at[me], bytes);
    comm_barrier(comm);
    close(fd);
}

/* Returns bytes rounded up to pages, at least those of a token. */
static int64_t rounded(int64_t bytes)
{
    enum { PAGE = 4096 };

    return bytes / PAGE * PAGE + PAGE;
}

void **comm_peers(Arena *a, Comm *comm, int64_t bytes, const char *what)
{
    void **at = alloc(a, (size_t)comm->world * sizeof *at);

    if (comm->n < comm->world)
        share(comm, at, rounded(bytes), what);
    for (int64_t r = 0; r < comm->world && comm->n == comm->world; r++)
        at[r] = poison_pages(pages(bytes, what), bytes);
    return at;
}

void comm_drop_peers(Comm *comm, void **at, int64_t bytes)
{
    for (int64_t r = 0; r < comm->world; r++)
        drop_pages(at[r], comm->n < comm->world ? rounded(bytes) : bytes);
}
