/* machine.h: machines and clusters of them: machine.c. A part of plan.h. */
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

/* Of a rank; units stand in machines.def. A number that depends on the size of
 * the work is that of the largest, and has points: size ascending, 0 ends. */
typedef struct MachineSpeeds {
#define SPEED(name, doc) double name;
#include "machines.def"
    const SpeedPoint *points[NSPEEDS]; /* null: one number for all sizes */
} MachineSpeeds;

const char *machine_name(Machine m);
const char *speed_name(Speed s);
/* The chip of cluster{}, or m without one. */
Machine machine_row(const Opts *opts, Machine m);
/* What cluster{} says, over the numbers of its chip, or of m without one. */
MachineSpeeds machine_speeds(const Opts *opts, Machine m);
/* For work of that size: between two points by the logarithms of both, beyond
 * the last ones as at them. */
double speed_at(const MachineSpeeds *speeds, Speed s, double size);
/* Of a product by tensor cores, beside its launch: neither multiplying nor
 * moving bytes hides all of the other, the less the nearer both are. */
double product_secs(const MachineSpeeds *speeds, Speed work, double size,
                    double flops, double bytes);
/* Of a collective of `all` ranks, `here` of them on a host, in which a rank
 * sends so many bytes to the others: of an all-to-all those rows leave the host
 * whose ranks are on others; of others each byte once for all ranks of a host,
 * which share that work. */
double transfer_secs(const MachineSpeeds *speeds, double all, double here,
                     double bytes, int alltoall);
/* cluster=h100x64, or =FILE, as what it stands for: cluster.chip a row,
 * cluster.ranks, other numbers of the file, and where they are not given world
 * and fold.host. err() where they do not go together. */
void cluster_settle(Opts *opts);
/* All rows, a line a column, with a letter for where each number is from. */
void put_machines(Text *out);

#endif
