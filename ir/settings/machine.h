/* machine.h: machines and clusters: machine.c. plan.h includes it. */
#ifndef PLEAT_MACHINE_H
#define PLEAT_MACHINE_H

typedef enum Machine { /* rows of machines.def */
#define MACHINE(name, ...) MACHINE##name,
#include "machines.def"
                       NMACHINE
} Machine;

typedef enum Speed { /* columns of machines.def */
#define SPEED(name, doc) SPEED##name,
#include "machines.def"
                     NSPEEDS
} Speed;

typedef struct SpeedPoint {
    double size, value;
} SpeedPoint;

/* Speeds of a rank; units: machines.def. A number that depends on the size of
 * the work is that of the largest size, and has points, ascending by size; 0
 * ends. */
typedef struct MachineSpeeds {
#define SPEED(name, doc) double name;
#include "machines.def"
    const SpeedPoint *points[NSPEEDS]; /* null: one number for all sizes */
} MachineSpeeds;

const char *machine_name(Machine m);
const char *speed_name(Speed s);
/* Returns the chip of cluster{}, or m without one. */
Machine machine_row(const Opts *opts, Machine m);
/* Returns the numbers of cluster{}'s chip, or of m, overridden by cluster{}. */
MachineSpeeds machine_speeds(const Opts *opts, Machine m);
/* Returns the speed for work of a size, interpolated in logarithms; constant
 * beyond the first and last points. */
double speed_at(const MachineSpeeds *speeds, Speed s, double size);
/* Returns the seconds of a product on tensor cores without its launch.
 * Multiplication and memory traffic overlap incompletely, the less the nearer
 * both are. */
double product_secs(const MachineSpeeds *speeds, Speed work, double size,
                    double flops, double bytes);
/* Returns the seconds of a collective of `all` ranks, `here` of them on a host,
 * in which a rank sends `bytes` to the others. In an all-to-all, rows for ranks
 * on other hosts leave the host; in others each byte leaves once for all ranks
 * of a host, which share that work. */
double transfer_secs(const MachineSpeeds *speeds, double all, double here,
                     double bytes, int alltoall);
/* Expands cluster=h100x64 or cluster=FILE: sets cluster.chip, cluster.ranks,
 * other numbers of the file, and world and fold.host if they are not given.
 * Calls err() if they contradict each other. */
void cluster_settle(Opts *opts);
/* Prints all rows, a line per column, with a letter for the source of each
 * number. */
void put_machines(Text *out);

#endif
