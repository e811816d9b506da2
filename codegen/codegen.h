/* codegen.h: kernel text for a target. A family of kernels has one generator,
 * `<family>_lower(g, k, a)`, which fills k->instr (kind, kernel, ints, flops,
 * bytes), k->arg, k->text and k->scratch. Targets are rows in targets.c. */
#ifndef PLEAT_CODEGEN_H
#define PLEAT_CODEGEN_H

#include "../ir/ir.h"

/* ---- text.c: what all generators share ----------------------------------- */

/* Arguments of a kernel: both return the index to use in the text. */
int add_arg(Group *k, Arena *a, Node *n); /* buf[]: n's buffer; merges equal */
int add_word(Group *k, Arena *a, Word x); /* iv[] */
int add_int(Group *k, Arena *a, RankAffine x);
int add_size(Group *k, Arena *a, int64_t x);
/* A body "{ ... }" becomes k->text with the fixed signature, and the kernel's
 * name is made of the text's hash. */
void set_text(Group *k, Arena *a, const char *body);
void set_text_named(Group *k, Arena *a, const char *text);
/* Label and place of the instruction from the group's main node. */
void set_label(Group *k, Arena *a, const Node *n);
/* A line, four blanks a depth before it: what all generators write texts by. */
void put_line(Text *t, int depth, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void vput_line(Text *t, int depth, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));
/* What stands in C for the leaves of an expression, and the type of its
 * functions and fractions: f32 f64. */
typedef struct ScalarNames {
    const char *const *operand, *result, *grad;
    Dtype dt;
} ScalarNames;
void put_scalar(Text *t, const ScalarExpr *e, const ScalarNames *v);
const ScalarExpr *scalar_of(const char *text); /* over a b c d; parsed once */
RankAffine aff_add(RankAffine x, RankAffine y);
RankAffine aff_scale(RankAffine x, int64_t k);
int aff_zero(const RankAffine *x);
Dtype compute_type(Dtype t); /* f32 f64 i32 i64 */

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
    const Axis *a;
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
    Term *t;
} AffineExpr;

typedef struct SizePool { /* interned monos and lins of one kernel */
    Arena *a;
    Size *size; /* vecs */
    const SizeProduct **mono;
    const AffineExpr **lin;
    Table *of;
} SizePool;

SizePool *pool_new(Arena *a);
const SizeProduct *mono_one(SizePool *p);
const SizeProduct *mono_size(SizePool *p, const Axis *a, int64_t n);
const SizeProduct *mono_mul(SizePool *p, const SizeProduct *x,
                            const SizeProduct *y);
/* Null when y does not divide x. */
const SizeProduct *mono_div(SizePool *p, const SizeProduct *x,
                            const SizeProduct *y);
/* Axis a of size n is the product m. */
void mono_same(SizePool *p, const Axis *a, int64_t n, const SizeProduct *m);
const AffineExpr *lin_var(SizePool *p, int var);
const AffineExpr *lin_const(SizePool *p, RankAffine off);
const AffineExpr *lin_add(SizePool *p, const AffineExpr *x,
                          const AffineExpr *y);
const AffineExpr *lin_mul(SizePool *p, const AffineExpr *x,
                          const SizeProduct *k);
const AffineExpr *lin_make(SizePool *p, RankAffine off, int hasoff,
                           const Term *t, int nt);
/* (x / div) % mod (mod null: no remainder), or null when that is not linear.
 * extent gives a variable's size (null: unknown). */
const AffineExpr *lin_digit(SizePool *p, const AffineExpr *x,
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

typedef struct Expr Expr;
struct Expr {
    int id;
    ExprKind kind;
    Dtype dt;             /* Df32 Df64 Di32 Di64 */
    const ScalarExpr *of; /* Xexpr */
    Dtype calls;          /* Df32 or Df64: of the functions in it */
    int raw;              /* operands that keep their own types, a bit each */
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
     * over; passes of a team that read it (a load). */
    int local, array, seen;
    uint64_t passes;
};

typedef struct Loop {
    const Axis *a;
    int copy; /* further loops over the same axis */
    const SizeProduct *n;
    const Node *map;        /* ragged: the route node with the extent */
    const SizeProduct *per; /* ragged: loop steps per row; null: 1 */
    int gone;               /* merged or cut */
    int other; /* another like it, for sums inside (sum_loops.c); 0: none */
} Loop;

typedef struct Store {
    Node *n;
    Expr *val;
    const AffineExpr *addr;
    uint64_t loops; /* that run over its elements */
    int done;       /* (printing) stored for the present item */
    int stage;      /* its number in the text; 0: by a reduction's pass */
    int flat;       /* by no thread that can be named */
    int seen;       /* by all threads of the team */
    uint64_t apart; /* passes that other threads may still be in */
} Store;

typedef struct LoopKernel {
    Graph *g;
    Group *k;
    Arena *a;
    SizePool *pool;
    int nstage;         /* stages of stores printed */
    Table *memo, *exof; /* values by node and index; expressions */
    Table *member;      /* nodes that are loaded */
    Expr **ex;          /* vec, operands before users */
    Loop loop[MAXLOOP];
    int nloop;
    Store *st; /* vec */
    int gpu;   /* text for cuda */
} LoopKernel;

/* The place of an element: an expression for each dim of its node. */
typedef struct Index {
    const AffineExpr *at[MAXD];
} Index;

/* What n holds at ix; where guard is false it is not read, and 0. */
Expr *kern_value(LoopKernel *c, Node *n, const Index *ix, Expr *guard);
const SizeProduct *kern_size(LoopKernel *c, const Node *n, int d);

/* move.c */
Expr *move_value(LoopKernel *c, Node *n, const Index *ix,
                 Expr *guard); /* null: none */
/* The index of operand a under the result's index, axes matched by name. */
Index by_axis(LoopKernel *c, const Node *a, const Node *n, const Index *ix);
/* The global index at the local index l along dim d of n. */
const AffineExpr *global_at(LoopKernel *c, const Node *n, int d,
                            const AffineExpr *l);

/* expr.c: each returns the one object that is equal. Integers 1 stand for
 * truth. */
Expr *ex_make(LoopKernel *c, Expr *e);
Expr *ex_scalar(LoopKernel *c, Dtype dt, const ScalarExpr *of, int raw, int na,
                Expr *const *arg);
Expr *ex_expr(LoopKernel *c, Dtype dt, const char *text, int na,
              Expr *const *arg); /* text: over a b c d */
Expr *ex_op(LoopKernel *c, Dtype dt, const char *text, Expr *a, Expr *b,
            Expr *d);
Expr *ex_num(LoopKernel *c, Dtype dt, double f);
Expr *ex_int(LoopKernel *c, RankAffine x);
Expr *ex_key(LoopKernel *c, int64_t x);
Expr *ex_lin(LoopKernel *c, Dtype dt, const AffineExpr *l);
Expr *ex_load(LoopKernel *c, Node *buf, Dtype dt, const AffineExpr *at,
              Expr *guard);
Expr *ex_as(LoopKernel *c, Dtype dt, Expr *x); /* converted */
Expr *ex_rounded(LoopKernel *c, Dtype dt,
                 Expr *x); /* to a value that dt holds */
Expr *ex_select(LoopKernel *c, Expr *guard, Expr *yes, Expr *no);
Expr *ex_both(LoopKernel *c, Expr *x, Expr *y); /* null: true */
Expr *ex_within(LoopKernel *c, const AffineExpr *l,
                RankAffine n); /* 0 <= l < n */
const AffineExpr *ex_index(LoopKernel *c,
                           Expr *x); /* an integer as a variable */
uint64_t lin_deps(const LoopKernel *c, const AffineExpr *l); /* loops */
void kern_tidy(LoopKernel *c);    /* canonicalize.c: cuts and merges loops */
void kern_print(LoopKernel *c);   /* loop_schedule.c: fills instr and text */
void find_inplace(LoopKernel *c); /* inplace.c: fills the group's pairs */

/* ---- loop_print.c value_print.c: text of a loop kernel ------------------- */

#define BIT(loop) (1ull << (loop))
enum { LANES = 16, BLOCK = 128, THREADMAP = 256 };

typedef struct KernelPrinter {
    LoopKernel *c;
    Group *k;
    Arena *a;
    Text t;
    int depth;
    uint64_t bound;             /* loops that are open */
    uint64_t items;             /* loops of an item */
    int order[MAXLOOP], norder; /* outermost first */
    int v;                      /* the contiguous loop, or -1 */
    int nlocal, stamp;
    int gpu;            /* cuda: see map_gpu.c, vectorize_gpu.c */
    uint64_t lane;      /* loops that a thread's lanes are open in: */
    int lv, width;      /* the contiguous one, lanes along it, ... */
    int beside, step;   /* times all elements of another, or pieces
                                     of the same loop that are step apart */
    int whole;          /* (printing) indices of a piece, not of l */
    uint64_t row;       /* loops of a row that a team holds */
    int team;           /* threads of an item */
    int passes;         /* that they have dealt out, ... */
    uint64_t apart;     /* those since they met, a bit each */
    int streams;        /* a row's results are stored as it is read */
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
const char *nest_ref(KernelPrinter *n, Expr *e);
const char *nest_value(KernelPrinter *n, Expr *e);
const char *nest_lin(KernelPrinter *n, const AffineExpr *l);
const char *nest_element(KernelPrinter *n, Node *buf, const AffineExpr *at);
const char *nest_load(KernelPrinter *n, Node *buf, const AffineExpr *at);
const char *nest_first(const Expr *r); /* what a reduction starts from */
int nest_inline(const Expr *e);
int nest_local(KernelPrinter *n, Expr *e);    /* e gets a number */
void nest_compute(KernelPrinter *n, Expr *e); /* as a scalar */
/* The store of e that was done for this item, if its element can be named. */
Store *nest_saved(KernelPrinter *n, const Expr *e);
/* Values not at hand that the roots need, operands first. */
Expr **nest_reached(KernelPrinter *n, Expr *const *root, int nroot);
/* Reductions among them that can be done once the loops in `open` are. */
Expr **nest_pending(KernelPrinter *n, Expr *const *root, int nroot,
                    uint64_t open, uint64_t with);
/* The same, none of which has a loop that is open: sum_loops.c. */
Expr **nest_apart(KernelPrinter *n, Expr *const *root, int nroot, uint64_t open,
                  uint64_t with);
/* Stores that can be done on the way of a reduction over K in an item. */
void nest_ride(KernelPrinter *n, uint64_t K, LoopBody *b);

void nest_line(KernelPrinter *n, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int nest_size(KernelPrinter *n, const SizeProduct *m); /* its index in iv */
const char *nest_limit(KernelPrinter *n, int loop);    /* where a loop ends */
Braces nest_enter(KernelPrinter *n,
                  uint64_t loops); /* after a line that ends in "{" */
void nest_leave(KernelPrinter *n, Braces s);
/* What the roots need of the loops open now, operands first: values one by one,
 * reductions that share a pass together. nest_need and wide_need compute it. */
void nest_walk(KernelPrinter *n, Expr *const *root, int nroot,
               void (*value)(KernelPrinter *n, Expr *e),
               void (*sums)(KernelPrinter *n, Expr **r, int nr));
void nest_need(KernelPrinter *n, Expr *const *root, int nroot);
void nest_store(KernelPrinter *n, Store *s);
void nest_body(KernelPrinter *n, const LoopBody *b, const char *lane);
void nest_plain(KernelPrinter *n, int u, const LoopBody *b, const char *from,
                const char *to);
void nest_inner(KernelPrinter *n, int u, const LoopBody *b); /* all of loop u */
void nest_block(KernelPrinter *n, int u,
                const LoopBody *b); /* elements v<u> .. w<u> */
/* Opens all loops of K but the last; returns the last, the scopes in s. */
int nest_outer(KernelPrinter *n, uint64_t K, const LoopBody *b, Braces *s,
               int *ns);

/* ---- loop_schedule.c map_gpu.c vectorize_gpu.c --------------------------- */

Expr **form_values(KernelPrinter *n); /* of all stores */
const SizeProduct *form_stride(const AffineExpr *l, int loop);
int form_items(KernelPrinter *n, uint64_t m,
               int *u); /* loops, ragged one first */
const SizeProduct *form_count(KernelPrinter *n, const int *u, int from, int to);
/* Index variables of the loops u[0..k), set from the number q of their
 * setting. */
void form_decode(KernelPrinter *n, const int *u, int k, const char *q);
double form_elements(KernelPrinter *n, uint64_t loops);
LoopBody form_stage(KernelPrinter *n,
                    uint64_t loops); /* stores over them not done */
/* For a GPU; whole: the contiguous loop is one of the items'. Fills iv[0]
 * with blocks, iv[1] with the threads of one. */
void threads_form(KernelPrinter *n, Expr *const *red, int whole);
int wide_width(KernelPrinter *n, int u); /* lanes that loop u is worth */
/* Open lanes: width elements of loop u; x >= 0: all of loop x beside them. */
void wide_open(KernelPrinter *n, int u, int width, int x);
int64_t wide_pieces(KernelPrinter *n, uint64_t K); /* that a team would share */
void wide_stages(KernelPrinter *n); /* what is left to store for an item */

/* ---- row_kernels.c route.c scatter.c: along one whole axis --------------- */

/* Axes of up to three tensors, from the outermost: size, strides. */
typedef struct RowWalk {
    int64_t n, s[3];
} RowWalk;
typedef struct RowWalks {
    int n;
    RowWalk at[2 * MAXD];
} RowWalks;
typedef struct RowText {
    Group *k;
    Arena *a;
    Text t;
} RowText;

int64_t row_stride(const Graph *g, const Node *n, const Axis *a);
/* One more: axis d of `of`, with its strides in t. */
void row_walk(const Graph *g, RowWalks *w, const Node *of, int d,
              const Node *const t[3]);
int64_t row_count(const RowWalks *w);
RowText row_begin(Group *k, Arena *a);
void row_line(RowText *o, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int row_size(RowText *o, int64_t v); /* its index in iv */
void row_buffer(RowText *o, const char *name, Node *n, Dtype dt);
void row_finish(RowText *o, const Graph *g, int64_t items, int64_t work);
/* Declare <name>0 <name>1 ..: offsets of the setting number q of the walks. */
void row_decode(RowText *o, const RowWalks *w, const char *q, const char *name,
                int tensors);
const char *row_load(Arena *a, Dtype dt, const char *x);
const char *row_save(Arena *a, Dtype dt, const char *x);
extern const char row_before[]; /* #define BEFORE(x, i, y, j): see topk */

/* ---- attn*.c score.c: attention without stored scores -------------------- */

enum {
    ATROWS = 48,
    ATKEYS = 64, /* a tile: queries, keys; as in attn.pre */
    ATLD = 80,
    ATKEYPAD = 66, /* row of a score tile; keys, rounded up */
    ATDOTS = 8,
    ATAXES = 24
};

/* A dot of operands q and k, and the term it is part of. */
typedef struct AttnDot {
    const Node *n;
    int q, k, term;
} AttnDot;

/* An attention read from its body, and the text being written for it. */
typedef struct Attn {
    const Graph *g, *body;
    const Node *n; /* call, attn or attn_bwd */
    int nop;       /* operands of the attention itself */
    Axis *query, *key;
    const Node *score; /* [.. query key] before the softmax */
    unsigned leaf;     /* operands that the score reads itself, */
    unsigned wanted;   /* and those whose gradient is wanted */
    int v;             /* which operand holds the values */
    int ndot;
    AttnDot dot[ATDOTS];
    int nterm;
    const Node *term[ATDOTS]; /* sums of dots: a tile each */
    int nx;
    Axis *x[MAXD]; /* the score's axes but query and key */
    int naxis;
    struct {
        Axis *a;
        const char *code;
    } axis[ATAXES];
    Group *k;
    Arena *arena;
    Dtype dt;          /* of values: f32 f64, */
    const char *t;     /* and its name */
    int gpu, open;     /* score texts: of one pair, of open tiles, */
    int scaled;        /* without the factor attn_unit */
    const char **name; /* vec: declared names */
    Text decl, o;
    int64_t work; /* elements of work space on the stack */
} Attn;

typedef enum AttnWhere { AToperand, ATresult, ATscratch } AttnWhere;
typedef struct AttnView { /* a tensor and its name in the text */
    const char *name;
    Node *n;
    AttnWhere kind;
    int64_t at; /* elements into scratch */
} AttnView;

typedef enum AttnHow { ATpack, ATput, ATadd } AttnHow;
typedef struct AttnMove {
    AttnHow how;
    AttnView v;
    Axis *row;
    const char *row0, *rows;
    Axis *const *in;
    int nin;               /* inner axes */
    const char *tile, *ld; /* tile's address, length of its rows */
} AttnMove;

int attn_read(Attn *t, const Graph *g, const Node *n);
int attn_node(const Attn *t, const Node *n); /* number in the body */
int attn_isposition(const Node *n);
int attn_inner(const Attn *t, const Node *n, Axis **out);
int attn_keyside(const Attn *t, int op);
const char *attn_code(const Attn *t, const Axis *a);

void attn_begin(Attn *t, Group *k, Arena *a);
void attn_finish(Attn *t);
const char *attn_int(Attn *t, const char *name, RankAffine x);
int64_t attn_count(const Attn *t, const Axis *a);
int64_t attn_product(const Attn *t, Axis *const *a, int n);
const char *attn_size(Attn *t, const Axis *a);
/* Names of what leads from local to global indices along an axis. */
typedef struct AttnPlace {
    int two;
    const char *at, *half, *to;
} AttnPlace;
AttnPlace attn_place(Attn *t, const Axis *a);
const char *attn_global(Attn *t, const Axis *a, const char *i);
int64_t attn_width(const Attn *t, int op);
const char *attn_widthname(Attn *t, int op);
AttnView attn_operand(Attn *t, int i);
const char *attn_base(Attn *t, AttnView v);
const char *attn_stride(Attn *t, AttnView v, const Axis *a);
const char *attn_at(Attn *t, AttnView v);
void attn_coords(Attn *t, int depth, const char *from, Axis *const *a, int n);
void attn_tile(Attn *t, const char *name, const char *size, int64_t n);
void attn_move(Attn *t, int depth, AttnMove m);
int attn_contracted(const Attn *t, int op);
void attn_keytiles(Attn *t, int flipall);
void attn_packkeys(Attn *t, int depth, int op, int flip);
void attn_packqueries(Attn *t, int depth);
void attn_visible(Attn *t, int depth);
void attn_products(Attn *t, int depth);
Node *attn_main(const Group *k);
Node *attn_part(const Attn *t, int i);

/* score.c: scores of row r, columns j < cols of a tile, from the terms' tiles
 * t0 t1 ...; `z` is the score. With gradient: p the weight, then the gradient
 * of each term in place of its tile, from ds. */
void attn_score(Attn *t, int depth, int grad);
void attn_score1(Attn *t, int depth, int grad);
/* The score is `unit` times its term where no condition hides it; 0: is not. */
double attn_unit(const Attn *t);

/* mask.c: conditions as text, on queries [q0, q1) and keys [k0, k1), all local:
 * no query sees a key (null: cannot be told); every exact condition holds for
 * all pairs (null: there is none). */
const char *attn_unseen(Attn *t, const char *q0, const char *q1, const char *k0,
                        const char *k1);
const char *attn_allseen(Attn *t, const char *q0, const char *q1,
                         const char *k0, const char *k1);
/* With t->open the text is for tiles in which every exact condition holds: is n
 * such a condition? Can anything else hide a pair? */
int attn_isopen(const Attn *t, const Node *n);
int attn_hides(const Attn *t);

/* attn_gpu.c: kernels of attention for GPUs, in jobs of rows and columns. */
enum { ATJOBS = 16, ATWARPS = 8, ATWGROWS = 128 }; /* rows of a block */
typedef struct AttnJob {
    int keys; /* rows are keys, columns are queries */
    int nover;
    Axis *over[MAXD]; /* score axes of the job's results */
    int nloop;
    Axis *loop[MAXD]; /* the others */
    int nout;
    int out[MAXIN]; /* operands whose gradients it makes */
    int64_t split;  /* blocks that share an item */
} AttnJob;

typedef struct AttnGpu {
    Attn t;
    int back, tensor; /* backward; on tensor cores */
    AttnView out, lse, dout, delta;
    Node *grad[MAXIN];
    AttnJob job[ATJOBS];
    int njob;
    int64_t shared;  /* bytes of shared memory a block */
    int64_t cluster; /* blocks of a cluster */
    int64_t blocks;  /* forward: of the grid */
} AttnGpu;

int attn_can_cuda(const Graph *g, const Node *n);
void attn_lower_cuda(Graph *g, Group *k, Arena *a); /* and backward */
/* attn_jobs.c */
int64_t attn_inner_count(const Attn *t, int op);
void attn_make_jobs(AttnGpu *x);
int64_t attn_job_width(const AttnGpu *x, const AttnJob *j); /* of its sums */
int64_t attn_most(const AttnGpu *x);
AttnView attn_grad(const AttnGpu *x, int op);
void attn_warp_job(AttnGpu *x, const AttnJob *j); /* attn_warp.c */
void attn_wg_job(AttnGpu *x, const AttnJob *j);   /* attn_consumer.c */
void attn_wg_fetch(AttnGpu *x, const AttnJob *j); /* what the job reads */
void attn_wg_open(AttnGpu *x); /* forward: around a block's items */
void attn_wg_close(AttnGpu *x);
int attn_wg_fits(AttnGpu *x); /* also fills x->shared */
void attn_cost(Attn *t);      /* flops and bytes of the group's instruction */

/* attn_producer.c: how a job lies in shared memory, what its two roles both
 * say. */
enum { ATSLABS = ATDOTS + 2 };
/* An operand in shared memory: `n` rows along axis `a`, W columns, w of them
 * real, at byte `at` of its place. */
typedef struct AttnSlab {
    AttnView v;
    Axis *a, *in;
    int64_t w, W, at;
} AttnSlab;

/* A place of the ring is handed over in parts: forward, keys, then values. */
typedef struct AttnWg {
    AttnGpu *x;
    const AttnJob *j;
    int nrow, ncol;
    AttnSlab row[ATSLABS], col[ATSLABS]; /* of dots, then v or dout */
    int64_t cols;                        /* columns of a tile */
    int64_t stages, lines;               /* places of tiles; forward, of rows */
    int64_t rowbytes, colbytes;
    int64_t tiles, total; /* of one combination, of all */
} AttnWg;

AttnWg attn_wg(AttnGpu *x, const AttnJob *j);
AttnSlab attn_slab(const Attn *t, AttnView v, Axis *a, Axis *in);
int attn_straight(const Attn *t, const AttnSlab *s, int64_t k);
int64_t attn_wg_sums(const AttnGpu *x, const AttnJob *j);
int64_t attn_wg_tiles(const AttnWg *w); /* byte where tiles begin */
int attn_wg_turns(const AttnWg *w);
void attn_wg_line(AttnWg *w);
void attn_wg_over(AttnWg *w);
void attn_wg_place(AttnWg *w, int depth);
void attn_wg_first(AttnWg *w);
void attn_wg_follow(AttnWg *w);
void attn_wg_next(AttnWg *w, int depth);
/* Multiprocessors of an H100 or H200 (SXM): no GPU of their architecture has
 * more. What is dealt out by this number is right on any other; a kernel whose
 * blocks take work one after another says INTURNS for z, and the runtime
 * launches no more of them than the GPU has multiprocessors: the others would
 * begin when these end. */
enum { GPUBLOCKS = 132, INTURNS = -1 };

/* cuda.c: a kernel's parameters and the arrays they become; its grid. */
void cuda_put_parameters(Text *t, const Group *k);
void cuda_set_grid(Group *k, Arena *a, int64_t x, int64_t threads, int64_t y,
                   int64_t z);

/* grouped.c: a grouped product's instruction of the host becomes a kernel. */
typedef struct GroupedTile {
    int64_t rows, cols; /* of the result a block makes at once */
    int turns;          /* a warpgroup makes a tile alone */
} GroupedTile;
void grouped_lower_cuda(Graph *g, Group *k, Arena *a);
int grouped_is_plain(const Group *k); /* Group.plain */
/* Of the instruction's integers v (instructions.def): the text of a tile (@ for
 * its name), the bytes of shared memory it takes. */
char *grouped_text(Arena *a, const GmmArgs *v, int weight, int squares,
                   GroupedTile tile, int64_t *shared);
int64_t grouped_squares(const Graph *g, const Node *n); /* Target.squares */

/* ---- generators ---------------------------------------------------------- */

void loop_lower(Graph *g, Group *k, Arena *a);
void loop_lower_cuda(Graph *g, Group *k, Arena *a);
void topk_lower(Graph *g, Group *k, Arena *a); /* row_kernels.c */
void zero_lower(Graph *g, Group *k, Arena *a); /* row_kernels.c */
void cumsum_lower(Graph *g, Group *k, Arena *a);
void drop_to_capacity_lower(Graph *g, Group *k, Arena *a);
void route_lower(Graph *g, Group *k, Arena *a);
/* For a GPU; 1: an item is a block of 256 threads, 0: a thread. */
int topk_lower_cuda(Graph *g, Group *k, Arena *a);
int cumsum_lower_cuda(Graph *g, Group *k, Arena *a);
int keep_lower_cuda(Graph *g, Group *k, Arena *a);
int route_lower_cuda(Graph *g, Group *k, Arena *a);
int scatter_lower_cuda(Graph *g, Group *k, Arena *a);
/* 1: the group is a dispatch of whole rows, and lowered; 0: nothing done. */
int dispatch_lower_cuda(Graph *g, Group *k, Arena *a);
void scatter_lower(Graph *g, Group *k, Arena *a);
void gemm_lower(Graph *g, Group *k, Arena *a); /* gemm.c */
void gmm_lower(Graph *g, Group *k, Arena *a);
void gmm_wgrad_lower(Graph *g, Group *k, Arena *a);
void comm_lower(Graph *g, Group *k, Arena *a); /* comm.c */
int attn_can(const Graph *g, const Node *n);   /* attn.c */
void attn_lower(Graph *g, Group *k, Arena *a);
void attn_bwd_lower(Graph *g, Group *k, Arena *a);

/* cuda.c: a kernel's text for a GPU. Its parameters are its buffers, then those
 * integers that depend on the rank; the others are constants of the text. iv:
 * blocks threads blocks.y blocks.z bytes (of shared memory), then the latter.*/
void cuda_loop_lower(Graph *g, Group *k, Arena *a);
void cuda_row_lower(Graph *g, Group *k, Arena *a); /* topk .. scatter */

extern const char host_pre[];             /* host.pre, embedded by the build */
extern const char gmm_pre[], wgmma_pre[]; /* in the text that needs them */
extern const char attn_gpu_pre[], attn_warp_pre[], attn_wgmma_pre[],
    hopper_pre[];
extern const char cuda_pre[]; /* cuda.pre, then the same functions */
/* The whole translation unit: prelude and each distinct kernel once. */
char *unit_text(Arena *a, const Target *T, Group *const *k, int n);

#endif
