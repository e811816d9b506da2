/* loop.h: loop kernels: graph nodes to expressions over loops to text. */
#ifndef PLEAT_LOOP_H
#define PLEAT_LOOP_H

#include "../text/text.h"

/* A value that a GPU kernel quantizes in blocks where it is computed: the
 * quantize_blocks node and its results `part` (null: unused). LoopTile: the n
 * such values of a kernel; each has lines of `columns` elements. The device
 * functions are in blocks.cuh, which precedes the kernel. */
typedef struct Rounded {
    const Node *node;
    Node *part[4];
} Rounded;
typedef struct LoopTile {
    Rounded of[MOSTROUNDED];
    int n;
    int64_t columns;
} LoopTile;

void loop_lower(Graph *g, Group *group, Arena *a);
void loop_lower_cuda(Graph *g, Group *group, Arena *a);
/* loop_lower, loop_lower_cuda: fill the group's instruction and text.
 * loop_lower_tiles: the same for a GPU kernel that quantizes the tile's values;
 * the parts of the tile are stored by blocks.cuh, the group's other results as
 * usual. Sums run over 128 columns. */
void loop_lower_tiles(Graph *g, Group *group, Arena *a, const LoopTile *tile);

/* ---- affine.c: sizes and affine index expressions ------------------------ */

/* A product of sizes. Sizes are identified by axis, so common factors of two
 * strides are found without their values, and the text depends on structure
 * only. */
enum { MAXFACTOR = 4 * MAXD };
typedef struct SizeProduct {
    int id;
    int64_t v; /* value in this kernel */
    int n;
    int f[MAXFACTOR]; /* ids of sizes, ascending */
} SizeProduct;

typedef struct Size {
    const Axis *axis;
    int64_t n;
    const SizeProduct *def;
} Size;

/* ((var / div) % mod) * k. Variables below MAXLOOP are loops; MAXLOOP + id is
 * the integer Expr with this id. mod null: no remainder. */
enum { MAXLOOP = 64 };
typedef struct Term {
    int var;
    const SizeProduct *div, *mod, *k;
} Term;
typedef struct AffineExpr {
    int id;
    RankAffine off;
    int hasoff; /* has a constant part */
    int nt;
    Term *term;
} AffineExpr;

/* interned products and affine expressions of one kernel */
typedef struct SizePool {
    Arena *arena;
    Size *size; /* vecs */
    const SizeProduct **product;
    const AffineExpr **affine;
    Table *of;
} SizePool;

SizePool *pool_new(Arena *a);
const SizeProduct *size_one(SizePool *pool);
const SizeProduct *size_axis(SizePool *pool, const Axis *a, int64_t n);
const SizeProduct *size_mul(SizePool *pool, const SizeProduct *x,
                            const SizeProduct *y);
/* Returns null if y does not divide x. */
const SizeProduct *size_div(SizePool *pool, const SizeProduct *x,
                            const SizeProduct *y);
/* Declares that axis a of size n equals the product (a merged axis). */
void size_define(SizePool *pool, const Axis *a, int64_t n,
                 const SizeProduct *product);
const AffineExpr *affine_var(SizePool *pool, int var);
const AffineExpr *affine_const(SizePool *pool, RankAffine off);
const AffineExpr *affine_add(SizePool *pool, const AffineExpr *x,
                             const AffineExpr *y);
const AffineExpr *affine_mul(SizePool *pool, const AffineExpr *affine,
                             const SizeProduct *product);
const AffineExpr *affine_make(SizePool *pool, RankAffine off, int hasoff,
                              const Term *term, int nt);
/* (affine / div) % mod (mod null: no remainder) as an affine expression; null
 * if it is not one. extent returns the size of a variable, null if unknown. */
const AffineExpr *affine_digit(SizePool *pool, const AffineExpr *affine,
                               const SizeProduct *div, const SizeProduct *mod,
                               const SizeProduct *(*extent)(void *ctx, int var),
                               void *ctx);

/* ---- loop.c: nodes to expressions over loops ----------------------------- */

typedef enum ExprKind {
    Xload, /* buf[lin], or 0 where guard arg[0] is false */
    Xnum,  /* the number f */
    Xint,  /* the integer argument iv */
    Xkey,  /* the random key iv */
    Xlin,  /* lin as an integer */
    Xexpr, /* scalar expression `of` over arg[] */
    Xred   /* reduction of arg[0] over the loops K */
} ExprKind;

enum { RAWROUGH = 1 << 8 };

typedef struct Expr Expr;
struct Expr {
    int id;
    ExprKind kind;
    Dtype dt;             /* Df32 Df64 Di32 Di64 */
    const ScalarExpr *of; /* Xexpr */
    Dtype calls;          /* Df32 or Df64: type of its functions */
    /* bit i: operand i keeps its own type; RAWROUGH: an exponential of a
     * low-precision exponent */
    int raw;
    int na;
    Expr *arg[4];
    const AffineExpr *lin;
    Node *buf; /* Xload */
    Op op;
    uint64_t K;
    double f;
    RankAffine iv;
    uint64_t deps; /* loops that the value depends on */
    /* Printing state: the number of its C local (0: none) and 1 + the loop it
     * is an array over; the traversal that visited it; passes of a team that
     * read it (Xload); loops that were open where it was computed. */
    int local, array, seen;
    uint64_t passes, open;
    int summed; /* SumOrder of the printed sum; 0: not printed */
};

/* The threads that add the elements of a sum. They fix the order of additions
 * and so the rounding. */
typedef enum SumOrder {
    SUMteam = 1, /* the threads of an item */
    /* the same threads, rescaled as the maximum grows (online softmax) */
    SUMscaled,
    SUMthread /* one thread */
} SumOrder;

/* How a stage of stores that needs sums is mapped to a GPU. Two stages that
 * print the same sum must add in the same order; where they do not, the kernel
 * is printed again in the next form. */
typedef enum StageForm {
    STAGEdealt, /* the stage's elements are divided among the team's threads */
    STAGEtogether, /* the team computes the sums of each element together */
    STAGEalone,    /* one thread per item */
    STAGEFORMS
} StageForm;

typedef struct Loop {
    const Axis *axis;
    int copy; /* 0; n: the n-th further loop over the same axis */
    const SizeProduct *extent;
    const Node *map;        /* ragged: the route node that gives the extent */
    const SizeProduct *per; /* ragged: iterations per row; null: 1 */
    int gone;               /* merged or cut */
    int other; /* a duplicate for nested sums (sum_loops.c); 0: none */
} Loop;

typedef struct Store {
    Node *node;
    Expr *val;
    const AffineExpr *addr;
    uint64_t loops; /* loops over its elements */
    int done;       /* printed: stored for the current item */
    /* printed: number of its stage; 0: stored by a reduction's pass */
    int stage;
    /* stored by a flattened pass: the thread of an element is unknown */
    int flat;
    int seen;          /* visible to all threads of the team */
    uint64_t unsynced; /* passes since the barrier before it, a bit each */
    int held;          /* 1 + index of the tile value it stores; 0: none */
    int unstored;      /* stored in the tile only */
} Store;

typedef struct LoopKernel {
    Graph *graph;
    Group *group;
    Arena *arena;
    SizePool *pool;
    int nstage;     /* stages printed */
    uint64_t held;  /* loops of the item and of the row in a team's registers */
    StageForm form; /* form of stages on a GPU */
    int uneven;     /* a sum was printed in two orders */
    Table *memo, *exof; /* values by node and index; interned expressions */
    Table *member;      /* nodes that are loaded */
    Expr **ex;          /* vec, operands before users */
    Loop loop[MAXLOOP];
    int nloop;
    Store *st;            /* vec */
    int gpu;              /* GPU text */
    const LoopTile *tile; /* quantized values; null: none */
} LoopKernel;

/* Index of an element: an affine expression for each dim of its node. */
typedef struct Index {
    const AffineExpr *at[MAXD];
} Index;

/* The value of n at ix. Where guard is false, memory is not read and the value
 * is 0. */
Expr *kernel_value(LoopKernel *kernel, Node *n, const Index *ix, Expr *guard);
const SizeProduct *dim_size(LoopKernel *kernel, const Node *n, int d);

/* move.c. Null: n is not a view or move. */
Expr *move_value(LoopKernel *kernel, Node *n, const Index *ix, Expr *guard);
/* The index of operand a at index ix of n; axes are matched by name. */
Index by_axis(LoopKernel *kernel, const Node *a, const Node *n,
              const Index *ix);
/* Global index of local index `affine` along dim d of n. */
const AffineExpr *global_at(LoopKernel *kernel, const Node *n, int d,
                            const AffineExpr *affine);

/* expr.c: constructors of interned expressions. Booleans are 0 and 1. */
Expr *ex_make(LoopKernel *kernel, Expr *expr);
Expr *ex_scalar(LoopKernel *kernel, Dtype dt, const ScalarExpr *of, int raw,
                int na, Expr *const *arg);
Expr *ex_expr(LoopKernel *kernel, Dtype dt, const char *text, int na,
              Expr *const *arg); /* text: over a b c d */
Expr *ex_op(LoopKernel *kernel, Dtype dt, const char *text, Expr *a, Expr *b,
            Expr *d);
Expr *ex_num(LoopKernel *kernel, Dtype dt, double f);
Expr *ex_int(LoopKernel *kernel, RankAffine x);
Expr *ex_key(LoopKernel *kernel, int64_t x);
Expr *ex_aff(LoopKernel *kernel, Dtype dt, const AffineExpr *affine);
Expr *ex_load(LoopKernel *kernel, Node *buf, Dtype dt, const AffineExpr *at,
              Expr *guard);
Expr *ex_as(LoopKernel *kernel, Dtype dt, Expr *expr); /* convert to dt */
Expr *ex_integer(Expr *expr);
Expr *ex_rounded(LoopKernel *kernel, Dtype dt, Expr *expr); /* round to dt */
/* the operand of a rounding to dt; else expr */
Expr *ex_unrounded(Dtype dt, Expr *expr);
Expr *ex_select(LoopKernel *kernel, Expr *guard, Expr *yes, Expr *no);
Expr *ex_both(LoopKernel *kernel, Expr *x, Expr *y); /* x and y, null: true */
/* 0 <= affine < n; an integer as a variable; the loops of an expression. */
Expr *ex_within(LoopKernel *kernel, const AffineExpr *affine, RankAffine n);
const AffineExpr *ex_index(LoopKernel *kernel, Expr *expr);
uint64_t affine_loops(const LoopKernel *kernel, const AffineExpr *affine);
/* Merges expressions that became equal when loops were cut. */
void ex_unify(LoopKernel *kernel);
/* canonicalize.c: cuts and merges loops. loop_schedule.c: fills instr and text.
 * inplace.c: fills the group's inplace pairs. */
void canonicalize_loops(LoopKernel *kernel);
void print_kernel(LoopKernel *kernel);
void find_inplace(LoopKernel *kernel);

/* ---- loop_print.c value_print.c needed_values.c: text of a loop kernel --- */

#define BIT(loop) (1ull << (loop))
/* Host kernels: lanes of a reduction, elements of an array over v. */
enum { LANES = 16, BLOCK = 128 };

typedef struct KernelPrinter {
    LoopKernel *kernel;
    Group *group;
    Arena *arena;
    Text text;
    int depth;
    uint64_t bound;             /* open loops */
    uint64_t items;             /* loops of an item */
    int order[MAXLOOP], norder; /* outermost first */
    int v;                      /* the contiguous loop, or -1 */
    int nlocal, stamp;
    int gpu;       /* GPU text: map_gpu.c */
    uint64_t lane; /* loops whose elements are lanes of a thread: */
    int lv, width; /* the contiguous one and its lanes, */
    /* times the elements of another loop, or parts of lv `stride` apart */
    int beside, stride;
    int whole;         /* indices are of a whole vector access, not of lane l */
    uint64_t row;      /* loops of a row in registers */
    int team;          /* threads of an item, */
    int blocks, folds; /* blocks of its cluster; cluster reductions printed */
    int passes;        /* passes printed */
    uint64_t unsynced; /* passes since the team's last barrier, a bit each */
    int streams; /* results of a row are stored in the pass that reads it */
    /* the load that is kept in shared memory between passes, */
    const Expr *kept;
    int64_t keep;         /* its elements per block, */
    int fills, filled;    /* stored there by this pass, by an earlier pass */
    int per_thread, flat; /* the open loops are one thread's; are flattened */
    /* online softmax: the running maximum and the rescaled sum */
    Expr *max, *sum;
    const char *active; /* condition of threads that have elements */
    int shared, groups; /* loop divided among thread groups, -1: none; groups */
    Expr **done;        /* vec: values printed in the open scopes */
    const SizeProduct **size;
    int *sizeat; /* vecs: size arguments */
    const AffineExpr **off;
    int *offat; /* constant parts */
    Expr **num;
    int *numat; /* numbers, keys, integers */
    const Node **ext;
    int *extat; /* ragged extents */
} KernelPrinter;

/* The innermost lines of a loop nest: they use computed values. */
typedef struct LoopBody {
    Expr **root;
    int nroot; /* values needed */
    Expr **acc;
    int nacc; /* reductions to accumulate */
    Store **st;
    int nst;      /* stores */
    int vertical; /* acc are arrays over v, not over lanes */
    int block;    /* 1 + the loop whose blocks arrays cover */
} LoopBody;

typedef struct Braces {
    size_t done;
    uint64_t bound;
} Braces;

/* value_print.c: text of values. value_name: a computed value. expr_text: the
 * expression that computes it. affine_text, element_text, load_text,
 * converted_operand: indices, elements in memory, converted operands. */
const char *value_name(KernelPrinter *printer, Expr *expr);
const char *expr_text(KernelPrinter *printer, Expr *expr);
/* Name of the exp function that expr calls. */
const char *exp_function(const KernelPrinter *printer, const Expr *expr);
const char *affine_text(KernelPrinter *printer, const AffineExpr *affine);
const char *element_text(KernelPrinter *printer, Node *buf,
                         const AffineExpr *at);
const char *load_text(KernelPrinter *printer, Node *buf, const AffineExpr *at);
const char *converted_operand(KernelPrinter *printer, const Expr *expr, int i);
const char *identity(const Expr *expr);
/* The value that a store rounds to its type. */
Expr *value_to_store(const Store *store);
int is_inline(const Expr *expr); /* needs no local: a number, key or index */
/* A sum that adds a number at one element of a row and 0 elsewhere, as the
 * label does in the gradient of a cross entropy: base + (at == index ? number :
 * 0); index is that of the contiguous loop. */
typedef struct OneHot {
    Expr *base, *at, *index, *number;
    Expr *equal, *choice; /* the comparison; the selected summand */
} OneHot;
int is_one_hot_sum(const KernelPrinter *printer, const Expr *expr, OneHot *hot);
int declare_local(KernelPrinter *printer, Expr *expr); /* gives expr a local */
void print_value(KernelPrinter *printer, Expr *expr);  /* a scalar */
/* The finished store of expr for this item if its element has a known address
 * and thread; else null. */
Store *finished_store(KernelPrinter *printer, const Expr *expr);
/* Values that the roots need and that are not yet computed, operands first. */
Expr **needed_values(KernelPrinter *printer, Expr *const *root, int nroot);
/* Those of them that are reductions, computable once the loops `open` are open,
 * and depend on all loops of `with`. */
Expr **pending_reductions(KernelPrinter *printer, Expr *const *root, int nroot,
                          uint64_t open, uint64_t with);
/* The same; reductions over open loops get loops of their own first
 * (sum_loops.c). */
Expr **separated_reductions(KernelPrinter *printer, Expr *const *root,
                            int nroot, uint64_t open, uint64_t with);
/* Adds to body the stores that the pass of a reduction over K can do. */
void store_while_reducing(KernelPrinter *printer, uint64_t K, LoopBody *body);

void text_line(KernelPrinter *printer, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Index of a size in iv; the end of a loop as C text. */
int size_arg(KernelPrinter *printer, const SizeProduct *product);
const char *loop_end(KernelPrinter *printer, int loop);
/* scope_enter: opens `loops`, after a line that ends in "{". scope_open_loop:
 * prints the loop u over its whole extent and opens it. */
Braces scope_enter(KernelPrinter *printer, uint64_t loops);
Braces scope_open_loop(KernelPrinter *printer, int u);
void scope_leave(KernelPrinter *printer, Braces s);
void scope_leave_all(KernelPrinter *printer, const Braces *out, int ns);
/* reduction_body: the body that accumulates r. body_add_store: adds a store.
 * print_accumulate: prints the accumulation of x into t, behind the prefix
 * `how`. */
LoopBody reduction_body(KernelPrinter *printer, Expr **r, int nr);
void body_add_store(KernelPrinter *printer, LoopBody *body, Store *store);
void print_accumulate(KernelPrinter *printer, const Expr *expr, const char *how,
                      const char *t, const char *x);
/* Computes the values that the roots need and that depend on open loops only,
 * operands first: `value` for single values, `sums` for reductions that share a
 * pass. print_needed does so for hosts. */
void compute_needed(KernelPrinter *printer, Expr *const *root, int nroot,
                    void (*value)(KernelPrinter *printer, Expr *e),
                    void (*sums)(KernelPrinter *printer, Expr **r, int nr));
void print_needed(KernelPrinter *printer, Expr *const *root, int nroot);
void print_store(KernelPrinter *printer, Store *store);
void print_body(KernelPrinter *printer, const LoopBody *body, const char *lane);
/* Loop u around the body: from `from` to `to`, the whole extent, and elements
 * v<u> .. w<u>. */
void print_plain_loop(KernelPrinter *printer, int u, const LoopBody *body,
                      const char *from, const char *to);
void print_inner_loop(KernelPrinter *printer, int u, const LoopBody *body);
void print_block_loop(KernelPrinter *printer, int u, const LoopBody *body);
/* Opens all loops of K but the last. Returns the last; `out` gets the ns
 * scopes. */
int open_outer_loops(KernelPrinter *printer, uint64_t K, const LoopBody *body,
                     Braces *out, int *ns);

/* ---- loop_items.c loop_schedule.c and *_gpu.c: kernels as a whole -------- */

/* The values of all stores. */
Expr **stored_values(KernelPrinter *printer);
/* Stride of a loop in an expression; null: the loop is not in it. */
const SizeProduct *affine_stride(const AffineExpr *affine, int loop);
/* Fills u with the loops m, ragged one first; returns their number. */
int item_loops(KernelPrinter *printer, uint64_t m, int *u);
/* Product of the extents of loops u[from..to). */
const SizeProduct *loop_product(KernelPrinter *printer, const int *u, int from,
                                int to);
/* Prints the index variables of loops u[0..k) from their flat index q. */
void put_indices(KernelPrinter *printer, const int *u, int k, const char *q);
double loop_elements(KernelPrinter *printer, uint64_t loops);
/* Starts a stage: the body with the unfinished stores over `loops`. */
LoopBody begin_stage(KernelPrinter *printer, uint64_t loops);
/* Prints the kernel for a GPU and sets the launch's items (blocks) and threads.
 * whole: the contiguous loop is one of the items'. */
void map_to_gpu(KernelPrinter *printer, Expr *const *red, int whole);
/* print_tiles: prints an elementwise kernel by tiles that are quantized.
 * tile_store: writes a value into its tile. */
void print_tiles(KernelPrinter *printer);
void tile_store(KernelPrinter *printer, const Store *store, const Expr *val);
/* Prints the kernel if it is a transpose and returns 1; else returns 0. */
int print_transpose(KernelPrinter *printer);
/* Lanes for loop u: 1, 2, 4 or 8. */
int lane_width(KernelPrinter *printer, int u);
/* Opens lanes: `width` elements of loop u, for each element of loop x if
 * x >= 0. */
void lanes_open(KernelPrinter *printer, int u, int width, int x);
int lane_count(const KernelPrinter *printer); /* open lanes */
int has_lanes(const KernelPrinter *printer, const Expr *expr);
/* Prefix of a line that is executed for each lane. */
const char *each_lane(KernelPrinter *printer);
uint64_t pass_bit(const KernelPrinter *printer); /* bit of the current pass */
/* Computes a value, not a reduction; stores a value; on all lanes. */
void print_lane_value(KernelPrinter *printer, Expr *expr);
void print_lane_store(KernelPrinter *printer, Store *store);
/* Vectors over loops K that a team divides among its threads. */
int64_t team_vectors(KernelPrinter *printer, uint64_t K);
void print_stages(KernelPrinter *printer); /* the remaining stores of an item */

#endif
