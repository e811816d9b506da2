/* comms.h: what communicators (comms.c) and collectives (group.c) share: memory
 * of all ranks of a communicator, in which each posts what it has for
 * others. */
#ifndef PLEAT_FAKE_COMMS_H
#define PLEAT_FAKE_COMMS_H

#include <stdatomic.h>

#include "fake.h"

enum { MAXRANKS = 16 };
enum { NCCLOK = 0, NCCLINVALID = 4, NCCLREMOTE = 6 };

/* A rank's posts for the others, one after another: a post is there from when
 * `posted` counts it until its readers have counted it as taken. Its bytes are
 * those of a file of the rank's process. */
typedef struct Box {
    _Atomic uint64_t posted, taken;
    _Atomic int file;
    _Atomic size_t bytes;
} Box;

typedef struct Choice { /* of a rank that splits a communicator */
    _Atomic uint64_t made, seen, opened;
    int color, key, file;
} Choice;

typedef struct Shared {
    _Atomic int joined;
    _Atomic int process[MAXRANKS];
    Box all[MAXRANKS];            /* to all; taken: by its own rank */
    Box pair[MAXRANKS][MAXRANKS]; /* from, to */
    Choice choice[MAXRANKS];
} Shared;

typedef struct Mapped { /* a box's file, here */
    char *p;
    size_t n;
    int file;
} Mapped;

typedef struct Comm {
    int ranks, rank, aborted, graphs;
    Shared *shared; /* NULL: an idle one, or one rank */
    uint64_t splits;
    Mapped all[MAXRANKS], pair[2][MAXRANKS]; /* sent, received */
    uint64_t rounds;                         /* of collectives, done here */
    int busy;                                /* one is under way */
    uint64_t sent[MAXRANKS], got[MAXRANKS];  /* posts */
    uint64_t taken[MAXRANKS];                /* messages of the next post */
} Comm;

/* Room for a post of n bytes; what rank posted. */
char *post_write(Box *b, Mapped *m, size_t n);
const char *post_read(const Comm *c, int rank, Box *b, Mapped *m);
int comms_aborted(void);

#endif
