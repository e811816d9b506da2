/* target.h: groups of nodes that become kernels, and targets that have them */
#ifndef PLEAT_TARGET_H
#define PLEAT_TARGET_H

/* ---- groups: made by fuse, lowered to kernels by codegen ----------------- */

extern const char *const families[NFAMILY];

/* Kernel of a product: for its dtype; for any number of rows; for any dtype. */
typedef enum ProductPath {
    PATHfast,
    PATHunaligned,
    PATHthreads,
    NPRODUCTPATH
} ProductPath;

typedef struct Group {
    Family fam;
    Region reg;
    int call; /* its nodes' call */
    int host; /* its nodes' host: it runs on the host's processors */
    Node **node;
    int n; /* members, operands first */
    Node **in;
    int nin; /* inputs read from memory (after views) */
    Node **out;
    int nout;                    /* stored members */
    Node *map;                   /* ragged outer loop: map with its extents */
    int64_t scratch;             /* bytes, set by the target. If not 0, the
                                     workspace is the instruction's last
                                     buffer: after arg[] for kernels, in place
                                     of the last (null) arg for instructions
                                     with a fixed count */
    int ninplace, (*inplace)[2]; /* pairs (index in out, index in in): the
                                     result may share that input's buffer.
                                     Element e of the input is read only by the
                                     iteration that writes element e of the
                                     result, not later */
    Instr instr;                 /* set by the target: kind kernel ints */
    int together;                /* blocks per multiprocessor, which limits
                                    the registers of a block; 0: any */
    int cluster;                 /* blocks of a cluster (sm_90a); 0: none */
    int maystore, stores;        /* may it store, does it store, a sum that
                                     starts at zero? */
    ProductPath path;            /* kernel that its sizes allow */
    const char *text;            /* kernel text, or null */
    const char *shared;          /* text that kernels of its kind share, once
                                     before them in the plan; null: none */
    Node **arg;
    int narg; /* buffers of the instruction, in order; null: none */
    struct NamedValue *named;   /* per arg, from emit on: memory.h */
    const struct Group *behind; /* must run after this one: update_order.c */
    uint64_t *expr;             /* hash of the shape's expression; 0: none */
    Node **view; /* products: per buffer, the node with the product's
                                     view of it; null: the buffers' nodes */
} Group;

/* SCALEBLOCK: rows and columns that share a quantization scale. E4M3MAX: the
 * largest e4m3. MOSTROUNDED: most values that one kernel quantizes. */
enum { SCALEBLOCK = 128, E4M3MAX = 448, MOSTROUNDED = 2 };

/* Is it a gmm_wgrad fused with the optimizer update, which does not store its
 * result? Members: the product, its accumulator, perhaps sum_sq, the update,
 * whose writes are last. */
static inline int group_updates(const Group *group)
{
    return group->fam == FAMgmm_wgrad &&
           group->node[group->n - 1]->op == Owrite;
}

typedef struct Target {
    const char *name;
    const char *prelude; /* text before all kernels of any plan */
    Machine machine;     /* speeds for predicted times */
    int64_t items;       /* parallel items that keep it busy */
    int grid;            /* is an item a block of threads? */
    /* Has it a kernel for gmm n with block scales (1x128 by 128x128, e4m3)?
     * null: for none. */
    int (*scaled)(const Graph *g, const Node *n);
    /* Why it has no kernels, forward and backward, for attention n, and the way
     * out; null: it has. */
    const char *(*refuses)(const Graph *g, const Node *n);
    /* May n join a loop kernel? (the test `recompute` shares with `fuse`) */
    int (*loops)(const Graph *g, const Node *n);
    /* Returns how many partial sums of squares of its result gmm_wgrad's kernel
     * stores beside the accumulator; 0, or null: it cannot. updates: for one
     * fused with the optimizer update. */
    int64_t (*squares)(const Graph *g, const Node *gmm_wgrad, int updates);
    /* Can gmm_wgrad's kernel run the optimizer update on its result, and the
     * quantize_blocks `rounded` (or null) of the weights? Null: no. */
    int (*updates)(const Graph *g, const Node *gmm_wgrad, const Node *rounded);
    /* Can the loop kernel of its operand run quantize_blocks n too, with sums
     * of 128 columns each; at most MOSTROUNDED of a row's columns? Null: no. */
    int (*rounds)(const Graph *g, const Node *n);
    /* Can one kernel compute the sum of two gmm of one layout? Null: no. */
    int (*sums)(const Graph *g, const Node *gmm, const Node *other);
    /* Sets the parts that depend on the family: instr, arg, text, scratch. */
    void (*lower)(Graph *g, Group *k, Arena *a);
    const struct Target *host; /* target of kernels on its host's processors;
                                  null: itself */
} Target;
extern const Target T_host, T_null, T_cuda;
const Target *target_named(const char *name); /* codegen/targets.c; or null */

#endif
