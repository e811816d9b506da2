/* machine.h: machines and clusters of them: machine.c. A part of plan.h. */
#ifndef PLEAT_MACHINE_H
#define PLEAT_MACHINE_H

typedef enum Machine { /* rows of machines.def */
#define SPEED(name, doc)
#define MACHINE(name, ...) MACHINE##name,
#include "machines.def"
                       NMACHINE
#undef SPEED
#undef MACHINE
} Machine;

/* Of a rank; units stand in machines.def. */
typedef struct MachineSpeeds {
#define SPEED(name, doc) double name;
#define MACHINE(name, ...)
#include "machines.def"
#undef SPEED
#undef MACHINE
} MachineSpeeds;

/* What cluster{} says, over the numbers of its chip, or of m without one. */
MachineSpeeds machine_speeds(const Opts *o, Machine m);
/* cluster=h100x64, or =FILE, as what it stands for: cluster.chip a row,
 * cluster.ranks, other numbers of the file, and where they are not given world
 * and fold.host. err() where they do not go together. */
void cluster_settle(Opts *o);
/* All rows, a line a column, with a letter for where each number is from. */
void put_machines(Text *out);

#endif
