/* target.h: groups of nodes that become kernels, and targets that have them */
#ifndef PLEAT_TARGET_H
#define PLEAT_TARGET_H

/* ---- kernels-to-be: what fuse makes and codegen writes ------------------- */

extern const char *const families[NFAMILY];

/* The kernels that a product has: made for its dtype; for any rows of it; for
 * any dtype. */
typedef enum ProductPath {
    PATHfast,
    PATHunaligned,
    PATHthreads,
    NPRODUCTPATH
} ProductPath;

typedef struct Group {
    Family fam;
    Region reg;
    int call; /* as its nodes' */
    int host; /* so too: it runs on the host's processors */
    Node **node;
    int n; /* members, operands first */
    Node **in;
    int nin; /* read from memory (after views) */
    Node **out;
    int nout;                    /* members that are stored */
    Node *map;                   /* ragged outer loop: whose extents */
    int64_t scratch;             /* bytes, filled by the target. When not 0 the
                                     work space is the instruction's last
                                     buffer: after arg[] for kernels, in place
                                     of the last (null) arg for instructions
                                     with a fixed count */
    int ninplace, (*inplace)[2]; /* pairs (index in out, index in in): the
                                     result may lie in that input's buffer.
                                     Element e of the input is read only by the
                                     iteration that writes element e of the
                                     result, not after */
    Instr instr;                 /* filled by the target: kind kernel ints */
    int together;                /* blocks that a multiprocessor shall hold at
                                    once, of which its registers are; 0: any */
    int cluster;                 /* blocks of a cluster (of sm_90a); 0: none */
    int maystore, stores;        /* it may store, stores what it would add to
                                     zero */
    ProductPath path;            /* what its sizes allow */
    const char *text;            /* kernel text, or null */
    const char *shared;          /* what kernels of its kind need before them in
                                     the plan's text, once; null: nothing */
    Node **arg;
    int narg; /* buffers of the instruction, in order; null: none */
    struct NamedValue *named;   /* by arg, from emit on: memory.h */
    const struct Group *behind; /* it has to be behind that: update_order.c */
    uint64_t *expr;             /* hash of what its shape computes; 0: none */
    Node **view; /* of products: what it reads and makes there, as
                                     it sees it; null: as the buffers' nodes */
} Group;

/* SCALEBLOCK: rows and columns that share a quantization scale. E4M3MAX: the
 * largest e4m3. MOSTROUNDED: values that one kernel quantizes. */
enum { SCALEBLOCK = 128, E4M3MAX = 448, MOSTROUNDED = 2 };

/* Is it a gmm_wgrad that updates with its result, which then is not stored?
 * Members: the product, its accumulator, perhaps sum_sq, the update, whose
 * writes stand last. */
static inline int group_updates(const Group *group)
{
    return group->fam == FAMgmm_wgrad &&
           group->node[group->n - 1]->op == Owrite;
}

typedef struct Target {
    const char *name;
    const char *prelude; /* text before all kernels of any plan */
    Machine machine;     /* whose speeds times are predicted by */
    int64_t items;       /* parallel items that keep it busy */
    int grid;            /* an item is a block of threads */
    /* Has it a kernel for gmm n with scales of blocks (1x128 by 128x128, e4m3)?
     * null: for none. */
    int (*scaled)(const Graph *g, const Node *n);
    /* Why it has no kernels, forward and backward, for attention n, and the way
     * out; null: it has. */
    const char *(*refuses)(const Graph *g, const Node *n);
    /* May n join a loop kernel? (the test `recompute` shares with `fuse`) */
    int (*loops)(const Graph *g, const Node *n);
    /* Numbers that gmm_wgrad's kernel can leave beside its accumulator, whose
     * sum is that of the squares of what it holds; 0, or null: it cannot.
     * updates: of one that updates with what it makes. */
    int64_t (*squares)(const Graph *g, const Node *gmm_wgrad, int updates);
    /* Can gmm_wgrad's kernel read and write what lies as its result in its
     * place, and do quantize_blocks `rounded` (or null) of that? Null: no. */
    int (*updates)(const Graph *g, const Node *gmm_wgrad, const Node *rounded);
    /* Can the loop kernel that makes its operand do quantize_blocks n too, and
     * sums of 128 columns each; of rows' columns MOSTROUNDED of them? Null:
     * no. */
    int (*rounds)(const Graph *g, const Node *n);
    /* Can one kernel make the sum of two gmm that lie alike? Null: no. */
    int (*sums)(const Graph *g, const Node *gmm, const Node *other);
    /* Fill fam-dependent parts: instr, arg, text, scratch. */
    void (*lower)(Graph *g, Group *k, Arena *a);
    const struct Target *host; /* whose kernels its host's processors run; null:
                                  its own */
} Target;
extern const Target T_host, T_null, T_cuda;
const Target *target_named(const char *name); /* codegen/targets.c; or null */

#endif
