/* schedule.h: pipeline schedules: schedule.c, csv.c, schedule_transfers.c.
 * plan.h includes it. */
#ifndef PLEAT_SCHEDULE_H
#define PLEAT_SCHEDULE_H

typedef struct ScheduleEntry {
    WorkKind w;
    int chunk, micro, pair;
} ScheduleEntry; /* pair: see Turn */

/* A schedule: F and (B, or I and W) of each chunk and micro-batch once, in
 * order. Chunk c's F follows F of c-1, its B or I that of c+1. */
typedef struct Schedule {
    const char *name;
    int ranks, chunks, micros;
    int *rank;           /* chunk -> pipeline rank */
    ScheduleEntry **row; /* [rank]: vec */
} Schedule;

/* Returns a schedule. kind: a word of fold.schedule (zerobubble is ZB-H1), or a
 * CSV file in PyTorch's format (a row per rank, cells 0F0 2B1 3I0 3W0, pairs
 * "(0F1;3B1)OVERLAP_F_B"). chunks = ranks * vpp. Calls err() if the kind does
 * not support these numbers, with the nearest ones. */
Schedule *schedule_make(Arena *a, const char *kind, int ranks, int vpp,
                        int micros, const Loc *loc);
/* For eval: only the forwards, with the placement of chunks of `like`. */
Schedule *schedule_forward(Arena *a, const Schedule *like, int micros);
Schedule *schedule_csv(Arena *a, const char *text, size_t len,
                       const char *name);            /* err() with the line */
Schedule *schedule_read(Arena *a, const char *path); /* null: no such file */
char *schedule_print(Arena *a, const Schedule *schedule); /* the same CSV */
/* Returns null, or the error, and (rank not null) the rank of the row. */
const char *schedule_wrong(Arena *a, const Schedule *schedule, int *rank);
int schedule_splits(const Schedule *schedule); /* has it I and W rows? */

/* Simulated times. Seconds of work w on chunk c: cost[w * chunks + c] (B: I + W
 * if 0); of a transfer between ranks: hop. Rows that overlap start and end
 * together. */
typedef struct Timing {
    double makespan;
    double *busy;   /* [rank] */
    int *peak;      /* [rank]: most live micro-batches of chunks, from F to
                                     the end of B or W (of F without them) */
    double **start; /* [rank][row] */
} Timing;
Timing schedule_time(Arena *a, const Schedule *schedule, const double *cost,
                     double hop);

/* A value of `from` on chunk a that `to` on chunk b of another rank reads.
 * Transfers add three kinds of rows: a send right after the producer's row, a
 * recv right before the reader's row, a wait where the peer must have received
 * (by schedule_time with unit costs), so that no order of arrival can block:
 * send -> recv -> wait and each rank's row order together have no cycle. */
typedef struct StageTransfer {
    WorkKind from;
    int a;
    WorkKind to;
    int b;
} StageTransfer;
typedef struct PipeRow {
    RowKind k;
    WorkKind w;
    int chunk; /* a B of a schedule that splits is I, then W;
                                     transfers: the producer's */
    int edge;  /* transfers: index; -1: none */
    int micro, pair;
} PipeRow;
/* Returns [rank]: vec of rows. Edges between chunks of one rank have no
 * rows. */
PipeRow **schedule_rows(Arena *a, const Schedule *schedule,
                        const StageTransfer *transfer, int n);

#endif
