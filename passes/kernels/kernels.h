/* kernels.h: legalization, groups of nodes that become kernels, their order. */
#ifndef PLEAT_KERNELS_H
#define PLEAT_KERNELS_H

#include "../quant/quant.h"

/* ---- grad_norm.c groups.c sched.c ---------------------------------------- */

/* Does product n, whose only user is accumulator x, add to x itself? The term
 * is not rounded, so both must have one dtype. */
int feeds(const Graph *g, const Node *n, const Node *x);
/* Is it a gradient that is stored once, not accumulated (low_gradients.c)? */
int is_low_gradient(const Node *n);

/* Returns the kernels of a graph after fuse, by number: a vec. */
Group **groups_of(Graph *g, Arena *a);
/* Checks kernel numbers that were read from a file: err() for an impossible
 * kernel. */
void check_kernels(Graph *g);
/* Returns the kernels in execution order. */
Group **sched(Graph *g, Group *const *k, Arena *a);

/* ---- fusible.c: rules of fuse -------------------------------------------- */

typedef struct FuseUnit {  /* a kernel under construction */
    struct FuseUnit *into; /* merged into another */
    Family fam;
    Region reg;
    int call;    /* call of all its nodes */
    Node **node; /* vec, operands first */
    int last;    /* id of its last node */
    int reach;   /* largest id of a node that it waits for */
    int again;   /* has recomputed members */
    int seen;
    struct FuseUnit **before; /* vec: units that read values it overwrites */
    int wait;                 /* ordering: number of units before it */
    int due;                  /* ordering: id + 1 of the node that waits */
    struct FuseUnit **next;
} FuseUnit;

/* An operand of a member through views and rebuilt nodes, with the axes along
 * which it is not read at the member's own index, and a number for the moves in
 * between, 0 without any. */
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
    Node ***user;           /* [id]: vec of direct users */
    Node **before, **after; /* [id]: neighbours in the order between stages */
    int *place;             /* [id]: nodes up to it that are not scalars */
    char *clear;            /* [id]: rebuilt at each use */
    char *exchange;         /* [id]: part of a row exchange */
    Node **partner;         /* [id of its first part]: the last part */
    char *costly;           /* [id]: worth storing rather than repeating */
    FuseUnit **unit;        /* [id] */
    Operand **operand;      /* [id]: vec, computed at its first use */
    struct AxisSet **here;  /* [id]: axes of more than one local element,
                               computed at the first use */
    int *seen;              /* [id]: stamp of the last walk */
    FuseUnit **all;         /* vec */
    int stamp;
} Fuse;

enum { MOSTNODES = 48 }; /* limit of a kernel's nodes */

/* Members of a possible kernel, the new one last: nodes of units whose `seen`
 * is the stamp. */
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
int passes_by(const Fuse *fuse,
              const Node *n); /* does it belong to no kernel? */
Fuse fuse_begin(Graph *g, Arena *a);
Fuse fuse_again(Graph *g, Arena *a); /* rebuilt from Node.kernel */
Family family_of(const Fuse *fuse, const Node *n); /* FAMnone: in no kernel */
Node *made_by(Node *n); /* part: the node with several results; others: n */
Operand *operands_of(Fuse *fuse, const Node *n);
FuseUnit *unit_root(FuseUnit *unit);
FuseUnit *unit_of(const Fuse *fuse, const Node *n);
int set_has(const FuseSet *set, const Node *n);
int is_stored(const FuseSet *set,
              const Node *n);         /* has users outside the set */
const Node *space_of(const Node *n);  /* the node with the dims of n's loops */
const Node *layout_of(const Node *n); /* the node with the stored dims */
/* Returns n's axes of more than one local element. */
const AxisSet *axes_here(const Fuse *fuse, const Node *n);
int axes_lead(const Fuse *fuse, const AxisSet *set,
              const Node *n);       /* are they n's slowest axes? */
const char *one_nest(FuseSet *set); /* null: one nest; otherwise the reason */
int is_large(const FuseSet *set); /* kernel_size.c: too large for one kernel? */

/* ---- product_update.c ---------------------------------------------------- */

/* Returns the nodes of the update that is fused with the kernel of gradient n,
 * an accumulator (unordered vec); null: none, n is stored. */
Node **product_update(Fuse *fuse, const Node *n);

/* ---- fuse.c -------------------------------------------------------------- */

/* Returns the sum of gmm n and another one that one kernel computes; null:
 * none. */
Node *joint_sum(const Fuse *fuse, const Node *n);

/* ---- join_rounding.c ----------------------------------------------------- */

/* Can the unit, which computes the value that n quantizes, quantize it too? */
int may_round(Fuse *fuse, FuseUnit *unit, const Node *n);
void join_rounding(Fuse *fuse);

/* ---- lower.c ------------------------------------------------------------- */

/* Sets the group's instruction, operands and text by the target. */
void lower_group(Graph *g, Group *group);

/* ---- kernel_listing.c ---------------------------------------------------- */

/* Returns groups as text, a line each; fold: prints repeated scopes once. */
char *groups_print(Arena *a, Group *const *k, int fold);

#endif
