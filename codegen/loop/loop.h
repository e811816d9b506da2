/* loop.h: loop kernels, from nodes to text. */
#ifndef PLEAT_LOOP_H
#define PLEAT_LOOP_H

#include "../text/text.h"

/* What a kernel for GPUs rounds of what it makes: n nodes quantize_blocks, of
 * lines of so many columns, whose parts lie at `part`, null: nobody reads it.
 * Functions of blocks.pre do it, which stands before the kernel. */
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
/* Stores what the group has out, but for the tile's parts. What of it are sums
 * is of 128 columns each. */
void loop_lower_tiles(Graph *g, Group *group, Arena *a, const LoopTile *tile);

/* ---- affine.c: sizes and linear index expressions ------------------------ */

/* A product of sizes. Sizes are known by their axis, so that what two strides
 * have in common shows without looking at numbers; text depends on
 * structure. */
enum { MAXFACTOR = 4 * MAXD };
typedef struct SizeProduct {
    int id;
    int64_t v; /* its value in this kernel */
    int n;
    int f[MAXFACTOR]; /* ids of sizes, ascending */
} SizeProduct;

typedef struct Size {
    const Axis *axis;
    int64_t n;
    const SizeProduct *def;
} Size;

/* ((var / div) % mod) * k. Variables below MAXLOOP are loops, the others
 * MAXLOOP + id of an integer Ex. mod null: no remainder taken. */
enum { MAXLOOP = 64 };
typedef struct Term {
    int var;
    const SizeProduct *div, *mod, *k;
} Term;
typedef struct AffineExpr {
    int id;
    RankAffine off;
    int hasoff; /* constant part */
    int nt;
    Term *term;
} AffineExpr;

typedef struct SizePool { /* interned monos and lins of one kernel */
    Arena *arena;
    Size *size; /* vecs */
    const SizeProduct **mono;
    const AffineExpr **lin;
    Table *of;
} SizePool;

SizePool *pool_new(Arena *a);
const SizeProduct *mono_one(SizePool *pool);
const SizeProduct *mono_size(SizePool *pool, const Axis *a, int64_t n);
const SizeProduct *mono_mul(SizePool *pool, const SizeProduct *x,
                            const SizeProduct *y);
/* Null when y does not divide x. */
const SizeProduct *mono_div(SizePool *pool, const SizeProduct *x,
                            const SizeProduct *y);
/* Axis a of size n is the product. */
void mono_same(SizePool *pool, const Axis *a, int64_t n,
               const SizeProduct *product);
const AffineExpr *lin_var(SizePool *pool, int var);
const AffineExpr *lin_const(SizePool *pool, RankAffine off);
const AffineExpr *lin_add(SizePool *pool, const AffineExpr *x,
                          const AffineExpr *y);
const AffineExpr *lin_mul(SizePool *pool, const AffineExpr *affine,
                          const SizeProduct *product);
const AffineExpr *lin_make(SizePool *pool, RankAffine off, int hasoff,
                           const Term *term, int nt);
/* (affine / div) % mod (mod null: no remainder), or null when that is not
 * linear. extent gives a variable's size (null: unknown). */
const AffineExpr *lin_digit(SizePool *pool, const AffineExpr *affine,
                            const SizeProduct *div, const SizeProduct *mod,
                            const SizeProduct *(*extent)(void *ctx, int var),
                            void *ctx);

/* ---- loop.c: from nodes to expressions over loops ------------------------ */

typedef enum ExprKind {
    Xload, /* buffer at lin, 0 where guard arg[0] fails */
    Xnum,  /* number f */
    Xint,  /* integer argument iv */
    Xkey,  /* a key of random numbers, iv */
    Xlin,  /* lin as an integer */
    Xexpr, /* of arg[] */
    Xred   /* reduction of arg[0] over the loops K */
} ExprKind;

enum { RAWROUGH = 1 << 8 };

typedef struct Expr Expr;
struct Expr {
    int id;
    ExprKind kind;
    Dtype dt;             /* Df32 Df64 Di32 Di64 */
    const ScalarExpr *of; /* Xexpr */
    Dtype calls;          /* Df32 or Df64: of the functions in it */
    int raw;              /* operands that keep their own types, a bit each;
                             RAWROUGH of an exponential: of few bits */
    int na;
    Expr *arg[4];
    const AffineExpr *lin;
    Node *buf; /* loads */
    Op op;
    uint64_t K;
    double f;
    RankAffine iv;
    uint64_t deps; /* loops its value depends on */
    /* While printing: its C local (0: none), and the loop + 1 it is an array
     * over; passes of a team that read it (a load); loops that were open where
     * it was made. */
    int local, array, seen;
    uint64_t passes, open;
    int summed; /* (printing) the SumOrder it was made in, 0: not yet */
};

/* Who adds up the elements of a sum, so in which order: the rounding of its
 * value follows. */
typedef enum SumOrder {
    SUMteam = 1, /* the threads of an item */
    SUMscaled,   /* they too, scaled as the largest element grows */
    SUMthread    /* one thread */
} SumOrder;

/* How stages of stores that need sums of their own share them out on a GPU. A
 * sum that two stages make is one value, so both must make it in one order; the
 * next is tried where they do not. */
typedef enum StageForm {
    STAGEdealt,    /* a team's threads take elements of the stage */
    STAGEtogether, /* they make the sums of each element together */
    STAGEalone,    /* each item has one thread */
    STAGEFORMS
} StageForm;

typedef struct Loop {
    const Axis *axis;
    int copy; /* further loops over the same axis */
    const SizeProduct *extent;
    const Node *map;        /* ragged: the route node with the extent */
    const SizeProduct *per; /* ragged: rounds per row; null: 1 */
    int gone;               /* merged or cut */
    int other; /* another like it, for sums inside (sum_loops.c); 0: none */
} Loop;

typedef struct Store {
    Node *node;
    Expr *val;
    const AffineExpr *addr;
    uint64_t loops; /* that run over its elements */
    int done;       /* (printing) stored for the present item */
    int stage;      /* its number in the text; 0: by a reduction's pass */
    int flat;       /* by no thread that can be named */
    int seen;       /* by all threads of the team */
    uint64_t apart; /* passes that other threads may still be in */
    int held;       /* for the tile, as its number from 1 */
    int unstored;   /* it is there only */
} Store;

typedef struct LoopKernel {
    Graph *graph;
    Group *group;
    Arena *arena;
    SizePool *pool;
    int nstage;         /* stages of stores printed */
    uint64_t held;      /* loops of the item and of the row that a team holds */
    StageForm form;     /* of them, on a GPU */
    int uneven;         /* a sum was made in two orders */
    Table *memo, *exof; /* values by node and index; expressions */
    Table *member;      /* nodes that are loaded */
    Expr **ex;          /* vec, operands before users */
    Loop loop[MAXLOOP];
    int nloop;
    Store *st;            /* vec */
    int gpu;              /* text for cuda */
    const LoopTile *tile; /* what is rounded; null: nothing */
} LoopKernel;

/* The place of an element: an expression for each dim of its node. */
typedef struct Index {
    const AffineExpr *at[MAXD];
} Index;

/* What n holds at ix; where guard is false it is not read, and 0. */
Expr *kern_value(LoopKernel *kernel, Node *n, const Index *ix, Expr *guard);
const SizeProduct *kern_size(LoopKernel *kernel, const Node *n, int d);

/* move.c */
Expr *move_value(LoopKernel *kernel, Node *n, const Index *ix,
                 Expr *guard); /* null: none */
/* The index of operand a under the result's index, axes matched by name. */
Index by_axis(LoopKernel *kernel, const Node *a, const Node *n,
              const Index *ix);
/* The global index at the local index affine along dim d of n. */
const AffineExpr *global_at(LoopKernel *kernel, const Node *n, int d,
                            const AffineExpr *affine);

/* expr.c: each returns the one object that is equal. Integers 1 stand for
 * truth. */
Expr *ex_make(LoopKernel *kernel, Expr *expr);
Expr *ex_scalar(LoopKernel *kernel, Dtype dt, const ScalarExpr *of, int raw,
                int na, Expr *const *arg);
Expr *ex_expr(LoopKernel *kernel, Dtype dt, const char *text, int na,
              Expr *const *arg); /* text: over a b kernel d */
Expr *ex_op(LoopKernel *kernel, Dtype dt, const char *text, Expr *a, Expr *b,
            Expr *d);
Expr *ex_num(LoopKernel *kernel, Dtype dt, double f);
Expr *ex_int(LoopKernel *kernel, RankAffine x);
Expr *ex_key(LoopKernel *kernel, int64_t x);
Expr *ex_lin(LoopKernel *kernel, Dtype dt, const AffineExpr *affine);
Expr *ex_load(LoopKernel *kernel, Node *buf, Dtype dt, const AffineExpr *at,
              Expr *guard);
Expr *ex_as(LoopKernel *kernel, Dtype dt, Expr *expr); /* converted */
Expr *ex_integer(Expr *expr);
Expr *ex_rounded(LoopKernel *kernel, Dtype dt,
                 Expr *expr);             /* to a value that dt holds */
Expr *ex_unrounded(Dtype dt, Expr *expr); /* of y rounded to dt: y */
Expr *ex_select(LoopKernel *kernel, Expr *guard, Expr *yes, Expr *no);
Expr *ex_both(LoopKernel *kernel, Expr *x, Expr *y); /* null: true */
Expr *ex_within(LoopKernel *kernel, const AffineExpr *affine,
                RankAffine n); /* 0 <= affine < n */
const AffineExpr *ex_index(LoopKernel *kernel,
                           Expr *expr); /* an integer as a variable */
uint64_t lin_deps(const LoopKernel *kernel,
                  const AffineExpr *affine); /* loops */
/* Those in use that have become equal, as loops were cut, are one again. */
void ex_unify(LoopKernel *kernel);
void kern_tidy(LoopKernel *kernel);  /* canonicalize.c: cuts and merges loops */
void kern_print(LoopKernel *kernel); /* loop_schedule.c: fills instr and text */
void find_inplace(LoopKernel *kernel); /* inplace.c: fills the group's pairs */

/* ---- loop_print.c value_print.c: text of a loop kernel ------------------- */

#define BIT(loop) (1ull << (loop))
enum { LANES = 16, BLOCK = 128 };

typedef struct KernelPrinter {
    LoopKernel *kernel;
    Group *group;
    Arena *arena;
    Text text;
    int depth;
    uint64_t bound;             /* loops that are open */
    uint64_t items;             /* loops of an item */
    int order[MAXLOOP], norder; /* outermost first */
    int v;                      /* the contiguous loop, or -1 */
    int nlocal, stamp;
    int gpu;            /* cuda: see map_gpu.c */
    uint64_t lane;      /* loops that a thread's lanes are open in: */
    int lv, width;      /* the contiguous one, lanes along it, ... */
    int beside, stride; /* times all elements of another, or pieces
                                     of the same loop that are stride apart */
    int whole;          /* (printing) indices of a piece, not of l */
    uint64_t row;       /* loops of a row that a team holds */
    int team;           /* threads of an item, */
    int blocks, folds;  /* in so many blocks of a cluster; they meet */
    int passes;         /* that they have dealt out, ... */
    uint64_t apart;     /* those since they met, a bit each */
    int streams;        /* a row's results are stored as it is read */
    const Expr *kept;   /* what is read along a row stays in shared */
    int64_t keep;       /* memory, so many elements of a block, */
    int fills, filled;  /* where this pass leaves them, one before has */
    int own, flat;      /* what is open now belongs to a thread; is
                                     dealt out as one loop */
    Expr *top, *soft;   /* a largest value being found, and the sum of
                                     exp(x - it) that grows along with it */
    const char *on;     /* condition of a thread with elements */
    int shared, groups; /* loop dealt out to groups of threads, -1 */
    Expr **done;        /* vec: values printed in the open scopes */
    const SizeProduct **size;
    int *sizeat; /* vecs: arguments that are sizes */
    const AffineExpr **off;
    int *offat; /* ... and constant parts */
    Expr **num;
    int *numat; /* ... and numbers, integers */
    const Node **ext;
    int *extat; /* ragged extents */
} KernelPrinter;

/* What the innermost lines do with the values they computed. */
typedef struct LoopBody {
    Expr **root;
    int nroot; /* values needed */
    Expr **acc;
    int nacc; /* reductions to add to */
    Store **st;
    int nst;      /* stores to do */
    int vertical; /* acc are arrays over v, not lanes */
    int block;    /* 1 + the loop over whose blocks arrays go */
} LoopBody;

typedef struct Braces {
    size_t done;
    uint64_t bound;
} Braces;

/* value_print.c: how values are written: operands at hand, an expression,
 * addresses and what is there. */
const char *nest_ref(KernelPrinter *printer, Expr *expr);
const char *nest_value(KernelPrinter *printer, Expr *expr);
/* The function that exp expr calls. */
const char *nest_exp(const KernelPrinter *printer, const Expr *expr);
const char *nest_lin(KernelPrinter *printer, const AffineExpr *affine);
const char *nest_element(KernelPrinter *printer, Node *buf,
                         const AffineExpr *at);
const char *nest_load(KernelPrinter *printer, Node *buf, const AffineExpr *at);
const char *nest_operand(KernelPrinter *printer, const Expr *expr, int i);
const char *nest_first(const Expr *expr); /* what a reduction starts from */
/* What a store rounds: its value, or what that was rounded from. */
Expr *nest_stored(const Store *store);
int nest_inline(const Expr *expr);
/* A sum that adds a number at one element of a row and 0 at all others, as a
 * label does in the gradient of a cross entropy: base + (at == index ? number :
 * 0), where index is that of the contiguous loop. */
typedef struct OneHot {
    Expr *base, *at, *index, *number;
    Expr *equal, *choice; /* what is compared, what is added */
} OneHot;
int nest_one_hot(const KernelPrinter *printer, const Expr *expr, OneHot *hot);
int nest_local(KernelPrinter *printer, Expr *expr);    /* expr gets a number */
void nest_compute(KernelPrinter *printer, Expr *expr); /* as a scalar */
/* The store of expr that was done for this item, if its element can be named.
 * */
Store *nest_saved(KernelPrinter *printer, const Expr *expr);
/* Values not at hand that the roots need, operands first. */
Expr **nest_reached(KernelPrinter *printer, Expr *const *root, int nroot);
/* Reductions among them that can be done once the loops in `open` are. */
Expr **nest_pending(KernelPrinter *printer, Expr *const *root, int nroot,
                    uint64_t open, uint64_t with);
/* The same, none of which has a loop that is open: sum_loops.c. */
Expr **nest_apart(KernelPrinter *printer, Expr *const *root, int nroot,
                  uint64_t open, uint64_t with);
/* Stores that can be done on the way of a reduction over K in an item. */
void nest_ride(KernelPrinter *printer, uint64_t K, LoopBody *body);

void nest_line(KernelPrinter *printer, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int nest_size(KernelPrinter *printer,
              const SizeProduct *product); /* its index in iv */
const char *nest_limit(KernelPrinter *printer,
                       int loop); /* where a loop ends */
Braces nest_enter(KernelPrinter *printer,
                  uint64_t loops); /* after a line that ends in "{" */
Braces nest_open(KernelPrinter *printer, int u); /* all of loop u */
void nest_leave(KernelPrinter *printer, Braces s);
void nest_leave_all(KernelPrinter *printer, const Braces *out, int ns);
/* Reductions of one pass; a store that is done on its way; `how` x goes into
 * what r has gathered in t. */
LoopBody nest_sums(KernelPrinter *printer, Expr **r, int nr);
void nest_add_store(KernelPrinter *printer, LoopBody *body, Store *store);
void nest_gather(KernelPrinter *printer, const Expr *expr, const char *how,
                 const char *t, const char *x);
/* What the roots need of the loops open now, operands first: values one by one,
 * reductions that share a pass together. nest_need and wide_need compute it. */
void nest_walk(KernelPrinter *printer, Expr *const *root, int nroot,
               void (*value)(KernelPrinter *printer, Expr *e),
               void (*sums)(KernelPrinter *printer, Expr **r, int nr));
void nest_need(KernelPrinter *printer, Expr *const *root, int nroot);
void nest_store(KernelPrinter *printer, Store *store);
void nest_body(KernelPrinter *printer, const LoopBody *body, const char *lane);
void nest_plain(KernelPrinter *printer, int u, const LoopBody *body,
                const char *from, const char *to);
void nest_inner(KernelPrinter *printer, int u,
                const LoopBody *body); /* all of loop u */
void nest_block(KernelPrinter *printer, int u,
                const LoopBody *body); /* elements v<u> .. w<u> */
/* Opens all loops of K but the last; returns the last, the scopes in out. */
int nest_outer(KernelPrinter *printer, uint64_t K, const LoopBody *body,
               Braces *out, int *ns);

/* ---- loop_schedule.c map_gpu.c tile_gpu.c transpose_gpu.c lanes_gpu.c
 * vectorize_gpu.c */

Expr **form_values(KernelPrinter *printer); /* of all stores */
const SizeProduct *form_stride(const AffineExpr *affine, int loop);
int form_items(KernelPrinter *printer, uint64_t m,
               int *u); /* loops, ragged one first */
const SizeProduct *form_count(KernelPrinter *printer, const int *u, int from,
                              int to);
/* Index variables of the loops u[0..k), set from the number q of their
 * setting. */
void form_decode(KernelPrinter *printer, const int *u, int k, const char *q);
double form_elements(KernelPrinter *printer, uint64_t loops);
LoopBody form_stage(KernelPrinter *printer,
                    uint64_t loops); /* stores over them not done */
/* For a GPU; whole: the contiguous loop is one of the items'. Fills
 * items (blocks) and threads of the launch. */
void threads_form(KernelPrinter *printer, Expr *const *red, int whole);
/* Prints a map in tiles, which round what they hold; a store into one. */
void tile_form(KernelPrinter *printer);
void tile_hold(KernelPrinter *printer, const Store *store, const Expr *val);
/* Prints a transpose; 0: the kernel is none. */
int transpose_form(KernelPrinter *printer);
int wide_width(KernelPrinter *printer, int u); /* lanes that loop u is worth */
/* Open lanes: width elements of loop u; x >= 0: all of loop x beside them. */
void wide_open(KernelPrinter *printer, int u, int width, int x);
int wide_count(const KernelPrinter *printer); /* lanes that are open */
int wide_has(const KernelPrinter *printer,
             const Expr *expr);                /* an element for each lane */
const char *wide_each(KernelPrinter *printer); /* before a line for each lane */
uint64_t
wide_pass(const KernelPrinter *printer); /* the bit of the present pass */
void wide_compute(KernelPrinter *printer, Expr *expr); /* not a reduction */
void wide_store(KernelPrinter *printer, Store *store);
int64_t wide_pieces(KernelPrinter *printer,
                    uint64_t K); /* that a team would share */
void wide_stages(
    KernelPrinter *printer); /* what is left to store for an item */

#endif
