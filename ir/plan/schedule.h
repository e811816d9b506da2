/* schedule.h: pipeline schedules: schedule.c, csv.c, schedule_transfers.c. A
 * part of plan.h. */
#ifndef PLEAT_SCHEDULE_H
#define PLEAT_SCHEDULE_H

typedef struct ScheduleEntry {
    WorkKind w;
    int chunk, micro, pair;
} ScheduleEntry; /* pair: see Turn */

/* Who does what in which order: F and (B, or I and W) of each chunk and
 * micro-batch once. Chunk c's F follows F of c-1, its B or I that of c+1. */
typedef struct Schedule {
    const char *name;
    int ranks, chunks, micros;
    int *rank;           /* chunk -> pipeline rank */
    ScheduleEntry **row; /* by rank: vec */
} Schedule;

/* kind: a word of fold.schedule (zerobubble is ZB-H1), or a CSV file as PyTorch
 * writes it (a row a rank, cells 0F0 2B1 3I0 3W0, pairs
 * "(0F1;3B1)OVERLAP_F_B"). chunks = ranks * vpp. err() when the kind
 * cannot have these numbers, with the nearest that it can. */
Schedule *schedule_make(Arena *a, const char *kind, int ranks, int vpp,
                        int micros, const Loc *loc);
/* For eval: only the forwards, with the chunks where `like` has them. */
Schedule *schedule_forward(Arena *a, const Schedule *like, int micros);
Schedule *schedule_csv(Arena *a, const char *text, size_t len,
                       const char *name);            /* err() with the line */
Schedule *schedule_read(Arena *a, const char *path); /* null: no such file */
char *schedule_print(Arena *a, const Schedule *schedule); /* the same CSV */
/* Null, or what is wrong, and (rank not null) with whose row. */
const char *schedule_wrong(Arena *a, const Schedule *schedule, int *rank);
int schedule_splits(const Schedule *schedule); /* has I and W rows */

/* Seconds of work w on chunk c at cost[w * chunks + c] (B: I + W when 0), of a
 * transfer between ranks `hop`. Rows that overlap start and end together. */
typedef struct Timing {
    double makespan;
    double *busy;   /* by rank */
    int *peak;      /* by rank: micro-batches of chunks alive, F
                                     to the end of B or W (of F without them) */
    double **start; /* by rank and row */
} Timing;
Timing schedule_time(Arena *a, const Schedule *schedule, const double *cost,
                     double hop);

/* A value made by `from` on chunk a that `to` on chunk b of another rank reads.
 * With them the table has four kinds of rows. A send is started right after
 * the row that made the value, a recv stands right before the row that needs
 * it, a wait where the peer must have received (by schedule_time with unit
 * costs), so that no order of arrival can block: send -> recv -> wait and each
 * rank's row order together have no cycle. */
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
                                     transfers: what made the value */
    int edge;  /* transfers: index; -1 */
    int micro, pair;
} PipeRow;
/* By rank: vec. Edges between chunks of one rank make no rows. */
PipeRow **schedule_rows(Arena *a, const Schedule *schedule,
                        const StageTransfer *transfer, int n);

#endif
