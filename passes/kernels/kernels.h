/* kernels.h: nodes that kernels exist for, kernels of nodes, their order. */
#ifndef PLEAT_KERNELS_H
#define PLEAT_KERNELS_H

#include "../quant/quant.h"

/* ---- grad_norm.c groups.c sched.c ---------------------------------------- */

/* Does product n, whose only user x is, add to accumulator x itself? What it
 * adds is not rounded, so both have one dtype. */
int feeds(const Graph *g, const Node *n, const Node *x);
/* Is it a gradient that is stored, not added to, as low_gradients.c makes? */
int is_low_gradient(const Node *n);

/* The kernels of a graph that went through fuse, by their numbers: a vec. */
Group **groups_of(Graph *g, Arena *a);
/* Of numbers that were read from a file: err() where one kernel cannot be. */
void check_kernels(Graph *g);
/* The kernels in the order in which they run. */
Group **sched(Graph *g, Group *const *k, Arena *a);

/* ---- fusible.c: what fuse asks ------------------------------------------- */

typedef struct FuseUnit {  /* a kernel in the making */
    struct FuseUnit *into; /* tied to another */
    Family fam;
    Region reg;
    int call;    /* no kernel has nodes of two */
    Node **node; /* vec, operands first */
    int last;    /* id of its last node */
    int reach;   /* no node it waits for has a greater id */
    int again;   /* has recomputed members */
    int seen;
    struct FuseUnit **before; /* vec: read what it overwrites */
    int wait;                 /* (ordering) units before it */
    int due;                  /* (ordering) id + 1 of the node that waits */
    struct FuseUnit **next;
} FuseUnit;

/* An operand as a member sees it: through views and clear nodes, with the axes
 * along which it is not read at the member's own index, and a number for the
 * moves on the way, 0 without any. */
typedef struct Operand {
    Node *node;
    Axis **moved;
    uint64_t path;
} Operand;

typedef struct Fuse {
    Graph *graph;
    const Target *target;
    Arena *arena;
    int count;
    Node ***user;           /* by id: vec of direct users */
    Node **before, **after; /* by id: what stages do together, in order */
    int *place;             /* by id: nodes up to it that are no scalars */
    char *clear;            /* by id: rebuilt where it is used */
    char *exchange;         /* by id: part of an exchange of rows */
    Node **partner;         /* by id: of its first part the last one */
    char *costly;           /* by id: worth storing rather than repeating */
    FuseUnit **unit;        /* by id */
    Operand **operand;      /* by id: vec, found when first asked for */
    struct AxisSet **here;  /* by id: axes of more than one element here, found
                               when first asked for */
    int *seen;              /* by id: stamp of the last walk */
    FuseUnit **all;         /* vec */
    int stamp;
} Fuse;

enum { MOSTNODES = 48 }; /* of a kernel */

/* Members that would be one kernel, the new one last: nodes of units whose
 * `seen` is the stamp. */
typedef struct FuseSet {
    Fuse *fuse;
    Node **node; /* vec */
    int stamp;
} FuseSet;

typedef struct AxisSet {
    int n;
    Axis *a[MAXD];
} AxisSet;

int is_reduction(const Node *n);
int passes_by(const Fuse *fuse, const Node *n); /* belongs to no kernel */
Fuse fuse_begin(Graph *g, Arena *a);
Fuse fuse_again(Graph *g, Arena *a); /* by the kernels that nodes have */
Family family_of(const Fuse *fuse, const Node *n); /* FAMnone: of no kernel */
Node *made_by(Node *n); /* of a part the node with several results, else n */
Operand *operands_of(Fuse *fuse, const Node *n);
FuseUnit *unit_root(FuseUnit *unit);
FuseUnit *unit_of(const Fuse *fuse, const Node *n);
int set_has(const FuseSet *set, const Node *n);
int is_stored(const FuseSet *set, const Node *n); /* needed outside the set */
const Node *space_of(const Node *n);  /* whose dims n's loops have */
const Node *layout_of(const Node *n); /* whose dims n stores */
/* Those that have more than one element here. */
const AxisSet *axes_here(const Fuse *fuse, const Node *n);
int axes_lead(const Fuse *fuse, const AxisSet *set,
              const Node *n);       /* slowest of n */
const char *one_nest(FuseSet *set); /* null: yes; else why not */
int is_large(const FuseSet *set); /* kernel_size.c: too large for one kernel */

/* ---- product_update.c ---------------------------------------------------- */

/* All nodes of the update that the kernel of gradient n, an accumulator, makes
 * too (a vec in no order); null: none, n is stored. */
Node **product_update(Fuse *fuse, const Node *n);

/* ---- fuse.c -------------------------------------------------------------- */

/* The sum that one kernel makes of gmm n and another; null: none. */
Node *joint_sum(const Fuse *fuse, const Node *n);

/* ---- join_rounding.c ----------------------------------------------------- */

/* Can the unit, which makes what n rounds in blocks, do that too? */
int may_round(Fuse *fuse, FuseUnit *unit, const Node *n);
void join_rounding(Fuse *fuse);

/* ---- lower.c ------------------------------------------------------------- */

/* What the target makes of the group: instruction, operands, text. */
void lower_group(Graph *g, Group *group);

/* ---- kernel_listing.c ---------------------------------------------------- */

/* Groups as text, a line each; fold: repeated scopes once. */
char *groups_print(Arena *a, Group *const *k, int fold);

#endif
