/* ir.h: what a program is before it is a plan: ops, nodes, graphs, sharding
 * types, kernels-to-be, targets. Passes and codegen see this header. */
#ifndef PLEAT_IR_H
#define PLEAT_IR_H

#include "plan.h"
#include "table.h"

/* ---- op.c: the op table -------------------------------------------------- */

typedef enum Op {
    NOP = -1,
#define OP(name, cls, operands, attrs, special, grad, lower) O##name,
#include "ops.def"
#undef OP
    NNAMED,     /* from here on: ops of functions.def, up to op_count */
#ifdef FUNCTION /* tests name them */
    BEFORE_FUNCTIONS = NNAMED - 1,
#include "functions.def"
    NALLOPS
#endif
} Op;

typedef enum OpClass {
    SRC,  /* no operands: inputs, parameters, constants, iota */
    EW,   /* elementwise, broadcasting by axis name */
    RED,  /* removes its axes */
    EIN,  /* products of two operands summed over its axes */
    ROW,  /* works along one whole axis */
    VIEW, /* the same bytes under other axes */
    MOVE, /* copies elements to other places */
    COMP, /* composites and their gradients */
    COMM, /* collectives; only after `comm` */
    SINK  /* accumulators, writes of state, results */
} OpClass;

/* Of kernels: one generator each. */
typedef enum Family {
    FAMloop, /* fused elementwise, views, moves, reductions */
    FAMgemm,
    FAMgmm,
    FAMgmm_wgrad, /* products: instructions without text */
    FAMblocks,    /* weights and their scales */
    FAMattn,
    FAMattn_bwd,
    FAMtopk,
    FAMcumsum,
    FAMdrop_to_capacity,
    FAMroute,
    FAMscatter,
    FAMfake_quantize,
    FAMcomm,
    FAMzero,
    FAMcopy, /* between the memories of device and host */
    FAMnone, /* none: a view, costs nothing */
    NFAMILY
} Family;

/* What an attribute is; its text is of that form. */
typedef enum AttrType {
    ATint,
    ATreal,
    ATflag,
    ATstr,
    ATaxis,
    ATaxes,
    ATatoms,
    ATdtype,
    ATscales,
    ATreduce,
    ATrandom,
    ATstepvalue
} AttrType;

/* Must it be said; and an axis, has it a meaning for every op? See ops.def. */
typedef enum AttrUse { ATmay, ATmust, ATwhole, ATnew } AttrUse;

typedef struct AttrInfo {
    const char *name;
    AttrType type;
    AttrUse use;
    size_t at; /* in Attrs */
} AttrInfo;

/* Attributes that several ops have, for attr.c. */
typedef enum SharedAttr {
    SHaxis,
    SHaxes,
    SHatoms,
    SHchan,
    SHname,
    NSHARED
} SharedAttr;

enum { MAXIN = 24 };

/* ---- scalar_expr.c: what an elementwise op computes of an element -------- */

/* What stands between operands in C: an operator, or a function of kernels that
 * is no op. */
typedef struct ScalarWord {
    const char *text;
    int level; /* how closely it binds: 1 ?:, 2 || .. 9 unary, SCALARCALL */
    int nin;
    Op op; /* NOP: of kernels only */
} ScalarWord;

typedef enum ScalarKind {
    SCoperand,
    SCresult, /* in gradients: the op's result, */
    SCgrad,   /* and the gradient of it */
    SCnumber,
    SCop
} ScalarKind;

/* A tree; equal ones are one object, which nothing changes. */
enum { SCALARIN = 4, SCALARCALL = 10 };
typedef struct ScalarExpr ScalarExpr;
struct ScalarExpr {
    ScalarKind kind;
    int operand;         /* its number */
    const char *literal; /* a number as it was written, and its value */
    double number;
    Op op; /* NOP: only kernels have it */
    int n;
    const ScalarWord *word; /* null: a call of op */
    const ScalarExpr *in[SCALARIN];
};

/* names: of operands, one letter each, "c a b". */
const ScalarExpr *scalar_parse(const char *text, const char *names);
/* With what every op in it computes in its place, down to operators of C and
 * primitives: ops of which kernels have a function. */
const ScalarExpr *scalar_open(const ScalarExpr *scalar);
int scalar_is_primitive(Op op);
/* The gradient of operand k of an op; null: none. By the chain rule where the
 * op's row leaves it to its expression. */
const ScalarExpr *scalar_grad(Op op, int k);

typedef enum OpTrait {
    OPlinear = 1,
    OPbilinear = 2,
    OPcmp = 4,
    OPhidden = 8,
    OPapprox = 16
} OpTrait;

typedef struct OpInfo {
    const char *name;
    OpClass cls;
    int nin;              /* operands; -1: any number */
    const char *operands; /* "a b" */
    int nattr;
    const AttrInfo *attr;
    const AttrInfo *shared[NSHARED]; /* null: it has none such */
    unsigned special;                /* OpTrait: see ops.def */
    char gradkind;             /* 'E' expressions, 'A' auto, 'F' function, 0 */
    const ScalarExpr *grad[3]; /* 'E': by operand; null: none */
    const ScalarExpr *expr;    /* elementwise: opened; null: no expression */
    const char *grad_text, *value_text; /* as in the row, for help */
    Family fam;
} OpInfo;

extern const int op_count;
extern OpInfo optab[];          /* read only; made from the rows at start */
int op_named(const char *name); /* -1: none */
static inline int op_is(Op op, OpTrait trait)
{
    return (optab[op].special & trait) != 0;
}
int op_calls(Op op); /* it is made of a function, dearer than a load */

/* ---- graph.c ------------------------------------------------------------- */

typedef struct Axis {
    const char *name; /* interned; axes are equal by pointer */
    AxisRole role;
    uint32_t atoms; /* an axis of a bucket: atoms it is made to be cut over */
    char taken[NMESH]; /* the model says that the mesh axis cuts it, as the
                                     first, second ..; 0: roles decide */
    int64_t n;         /* declared size; 0: not declared */
    struct Axis *root; /* renamed from (key -> seq), or itself */
    int zigzag;        /* a root: cp's ranks hold two pieces of it
                                     and of what is renamed from it (shard.c).
                                     Set by fold for all programs */
    int64_t parts;     /* its root with padding, so that so many ranks hold
                                     equal parts (shard.c); 0: not so */
    int nfactor;       /* merged from these, major first */
    struct Axis *factor[4];
    const Loc *loc;
} Axis;

#define MOSTELEMS ((int64_t)1 << 53) /* of a tensor: counts stay exact */

typedef struct Dim {
    Axis *a;
    int64_t n;
} Dim; /* n is the global size */

/* Sharding over one atom of the ranks (mesh.c): R whole, S a part of axis a, P
 * terms of a sum (maximum, minimum), F a run of the flattened tensor (ZeRO). */
typedef enum ShardKind { R, S, P, F } ShardKind;
typedef struct Shard {
    ShardKind k;
    Reduce op;
    Axis *a;
} Shard;

/* ---- attr.c: what a node is told besides its operands -------------------- */

typedef struct Axes {
    int n;
    Axis **v;
} Axes;

typedef enum RandomKind { RANDnormal, RANDuniform, NRANDOM } RandomKind;
extern const char *const randomkinds[NRANDOM];

/* A struct an op, slice_attrs and so on, and the union of all. */
#define ATTR(ctype, type, name, use) ctype name;
#define OP(name, cls, operands, attrs, special, grad, lower) \
    __extension__ struct name##_attrs {                      \
        attrs                                                \
    };
#include "ops.def"
#undef OP
#undef ATTR
#define const constant /* a member cannot be called const */
typedef union Attrs {
#define OP(name, cls, operands, attrs, special, grad, lower) \
    struct name##_attrs name;
#include "ops.def"
#undef OP
} Attrs;
#undef const

/* ---- graphs -------------------------------------------------------------- */

typedef struct Node Node;
typedef struct Graph Graph;

/* Where in a program a node stands (scope.c): one object a part, path and set
 * of marks, equal by pointer. A unit is what a pipeline is cut into: the
 * outermost scope that was given an integer. */
typedef enum ProgramPart {
    PARTmodel,    /* what the model says: a Lua scope */
    PARTbackward, /* the backward of one */
    PARTgrad,     /* accumulators of gradients */
    PARTpost,     /* the optimizer */
    NPART
} ProgramPart;
extern const char *const programparts[];
typedef enum UnitKind { UNITnone, UNITlayer, UNITmtp, NUNITKIND } UnitKind;
extern const char *const unitkinds[];
/* What a model says of values: that recompute is to keep one, or to make it
 * again; the other bits are modules that they belong to, enum module (keys.h),
 * the words of train.recompute. */
enum { MARKkeep = 1 << 30, MARKagain = 1 << 29, MARKSONE = 3 << 29 };
typedef struct Scope Scope;
struct Scope {
    const char *path;  /* "layers.3.attn"; "": the model's own; for people */
    unsigned marks;    /* of all values here */
    const Scope *base; /* the same place without marks; itself: it is that */
    Scope *marked;     /* a base's: list of the same place with marks, */
    Scope *next;       /* linked so */
    const Scope *up;   /* around it; null: the model's own, or a backward */
    const Scope *unit; /* it or the unit around it; null: none */
    ProgramPart part;
    UnitKind kind;     /* of a unit */
    const Scope *twin; /* a model's: its backward, null: none was asked for; a
                          backward's: what it is the backward of */
};

/* What every walk reads stands first, in 64 bytes. */
struct Node {
    int id; /* index in g->node after g_renumber */
    Op op;
    Dtype dt;
    Region reg;
    int mark, buf; /* facts kept by passes while they run; the buffer after
                          alloc */
    int nin, nd;
    Node **in;
    Node *map; /* rows layout: the route node of the row axis */
    const Scope *scope;
    const char *name; /* unique: scope path, op, ordinal */
    int call;         /* body of a stage: 1 + index of Graph.call */
    int kernel;       /* from fuse on: of which kernel, from 1, in the order
                          they run; 0: of none */
    int again;        /* recomputed copy number; never merged */
    int piece;        /* elementwise and reductions: of which piece of work done
                          in pieces (rounds of rows, chunks of logits), from 1;
                          0: of none. No kernel is of two */
    int host;         /* from offload on: its kernel runs on the host's
                          processors, in the host's memory */
    Dim dim[MAXD];    /* order is the memory layout, last fastest */
    Attrs at;         /* only the member of its op: n->at.slice.start */
    Graph *body;      /* composites: what they mean */
    const char *of;   /* an accumulator: path of the parameter (ZeRO-2, 3: of
                          the bucket) whose gradient it is; null: of none */
    const Loc *loc;
    void *tmp;       /* kept by passes while they run */
    int stash;       /* 1 + the stack where its rows lie; 0: in none */
    const Shard *sh; /* after place, [MAXATOM]: of all nodes of a type one */
};

/* What a value begins with. */
typedef enum InitKind {
    INITnone,
    INITnormal,
    INITuniform,
    INITconst,
    INITcopy, /* of the parameter it belongs to */
    INITpack, /* of a bucket's members */
    NINIT
} InitKind;
extern const char *const initkinds[NINIT];

/* Everything with a value across steps. A parameter's node is Oparam, every
 * other kind's is Ostate; node->s is the path. */
typedef struct Param {
    const char *path; /* "layers.0.moe.w1", "optim.m.<path>" */
    TensorKind kind;  /* up to v */
    Dtype dt;         /* `real` until precision */
    int nd;
    Dim dim[MAXD];
    InitKind init;
    double arg;         /* std, half width, value */
    const char *of;     /* master, m, v: of this parameter; null: of all
                                     of a bucket */
    Axis *expert;       /* on the expert grid: its axis over ep. Set
                                     by fold for all programs; null: dense */
    const char *bucket; /* ZeRO: a member of it, or its master, m, v;
                                     null: none (passes/training/bucket.c) */
    int64_t at;         /* member: its first element there */
    double before;      /* of the optimizer: share of its stage's
                                     elements before it (goes_to_host) */
    int copy;           /* this stage's copy; an earlier one owns it*/
    const Loc *loc;
} Param;

/* How the model is cut into chunks (passes/pipe/stages.c). */
typedef struct Stages {
    int nchunk;
    const char *text; /* as a layout string, "Et|t|t|tL" */
    int nunit;
    const Scope **unit;    /* in program order */
    int *chunk;            /* of each unit */
    int first, last;       /* chunks of E and of L */
    const Scope **between; /* vec: scopes of no unit that read one and
                                     that one reads: a norm before mtp */
} Stages;

/* What of a stage waits in the host's memory. */
enum { OFFLOADPARTS = 64 };
typedef struct Offloads {
    unsigned classes; /* of train.offload; of activations what copies hide */
    int stay; /* of the optimizer's elements, in the order of its parameters,
               * the first so many OFFLOADPARTSths stay all the same */
} Offloads;

/* LEGAL: of nodes that kernels exist for; what legalize made of one is a rank's
 * own, and no rule of sharding made its types. */
typedef enum Level { LOGICAL, PLACED, LOCAL, LEGAL, NLEVEL } Level;
extern const char *const levels[];

/* How den and body take a rank's micro-batches: as fold.pair says, nothing is
 * decided; one by one; in pairs, which pair.c is to make; in pairs. */
typedef enum Turns {
    TURNSopen,
    TURNSalone,
    TURNSpairs,
    TURNSpaired,
    NTURNS
} Turns;
extern const char *const turnwords[NTURNS];

/* What recompute chose, as it weighs it: bytes kept for the backward, seconds
 * of a micro-batch for what is made again by choice, and the least that any
 * choice costs, in bytes at Graph.price. */
typedef struct Rebuilding {
    double kept, secs, cost;
} Rebuilding;

struct Graph {
    const char *name; /* model's name */
    ProgramKind prog;
    Level level;
    int passed;        /* rows of passes.def that it went through */
    const char *after; /* their last, for its text; null: none */
    Arena *arena;
    Mesh *mesh; /* set by fold; null before */
    Opts *opts;
    struct Compile *compile; /* passes.h; null: outside of a compile */
    const Stages *stages;    /* set by the driver before all passes; null:
                                     one stage */
    double price;            /* seconds of a micro-batch that a byte of a rank's
                                     memory is worth; 0: none */
    double dear_price;       /* the same in the units of dear */
    const Table *dear;       /* null: none */
    Rebuilding rebuilding;   /* set by recompute */
    Turns turns;             /* of den and body */
    Offloads offloads;       /* unasked */
    int64_t enough;          /* bytes that its temporaries may take for
                                     nothing, as another program's do */
    int role, nrole;         /* after pipe: this stage, of so many; 0 0 */
    Call *call;              /* vec, after pipe */
    ScheduleSlot *slot;      /* vec: the stage's table; phase: index of
                                     call */
    struct Graph *next;      /* after pipe: the next stage's graph */
    int naxis;
    Axis **axis;          /* vec, in order of first use */
    Param **param;        /* vec */
    Table *scopes[NPART]; /* path -> Scope; g_like's graphs share it */
    Table *types;         /* of g_type; shared so */
    const Scope *top;     /* of what stands in no scope */
    Table *bypath;
    size_t nbypath;       /* g_param's index of the first nbypath */
    size_t nbefore;       /* vec_len(param) where Param.before is set */
    Node **node;          /* vec, operands before users */
    struct Group **group; /* vec: after sched, its kernels; null: nodes' numbers
                             say which there are (groups_of) */
    HfMap *hf;
    int nhf; /* set by the front end, carried to the plan */
};

Graph *g_new(Arena *a, const char *name);
Graph *g_like(const Graph *g); /* same arena, axes, params, options; no nodes */
/* Find or make. Names of axes that passes make have a ', no model's has. */
Axis *g_axis(Graph *g, const char *name);
/* Another axis like it, that nothing has yet: "k'2" of "k". Where two axes of
 * one name meet (an index over k into k), one of them becomes such. */
Axis *g_instance(Graph *g, const Axis *of);
/* shard.c: a, which so many parts do not divide, with padding: find or make. */
Axis *g_padded(Graph *g, Axis *a, int64_t parts);
Axis *unpadded(Axis *a); /* what a pads; itself: it pads nothing */
/* Where in padded axis a the element stands that integer x numbers without the
 * padding, below 0 where x is; and the number of what stands at x, -1 where
 * that is padding. x itself where a pads nothing. Nodes stand where x does. */
Node *g_to_padded(Graph *g, const Axis *a, Node *x);
Node *g_from_padded(Graph *g, const Axis *a, Node *x);
Param *g_param(Graph *g, const char *path); /* null: none */
int64_t param_elems(const Param *param);
/* Is it a parameter that lies in a bucket: in that one, an interned path; null:
 * in any? */
int is_member(const Param *param, const char *bucket);
/* COMPANIONS: what is kept beside a parameter, or all of its bucket; null:
 * none. */
Param *param_companion(const Graph *g, const Param *param, TensorKind kind);

/* Build: a node of op with operands, appended to g->node. Set attributes, then
 * call infer(), which checks them and fills dt, dim, map (err() at n->loc). */
Node *g_node(Graph *g, Op op, const Loc *loc, int nin, Node *const *in);
Node *infer(Graph *g, Node *n);
Dtype infer_dtype(const Node *n); /* promote.c */
/* amax, quantize, dequantize: elements of a block along the i-th of its axes,
 * 0: all; the axis of pairs, which may be null. */
int64_t block_size(const Node *n, int i);
Axis *n_pairs(const Node *n);
Dtype promoted(Dtype a, Dtype b); /* of both together; Dnone: none yet */
Dtype arithmetic_dtype(Dtype t);  /* in which values of t are computed with */
/* For messages: "[batch=2 seq=8]", without the implicit micro axis. */
const char *shape_text(const Graph *g, const Node *n);
/* Do these axes of a stand side by side, in this order? */
int are_neighbours(const Node *a, const Axes *axes);
/* What infer would set: dims by the op's class and rule, without touching
 * n->dim when the text form or a pass fixed another order of the same axes. */

/* attr.c. For code that knows the op only by its table: */
void *attr_at(const Node *n, const AttrInfo *info);
size_t attr_width(AttrType t);                        /* bytes of one */
int attr_unsaid(const Node *n, const AttrInfo *info); /* 0, none, empty */
const AttrInfo *attr_named(Op op, const char *name);  /* null: it has none */
Axes attr_axes(const Node *n,
               const AttrInfo *info);         /* of one: a list; in place */
int same_attrs(const Node *a, const Node *b); /* of one op */
uint64_t attrs_hash(uint64_t h, const Node *n);
void attrs_like(Node *n, const Node *from);   /* those of one name and type */
int attrs_name(const Node *n, const Axis *a); /* does one name the axis? */
void attrs_replace(Graph *g, Node *n, const Axis *a, Axis *by);
Axis *whole_axis(const Node *n); /* WHOLE_AXIS of its row; null: none */
/* For code that serves several ops; a fault of ours when n's op has none. */
Axis *n_axis(const Node *n);
Axes *n_axes(const Node *n); /* in place */
/* A product whose operands are numbers of 8 bits; behind them, and its map, the
 * scales of each. Its product is of numbers times scales. Of a gmm_wgrad these
 * are blocks of rows of an expert, [block column row] and [block column]. */
int is_scaled_product(const Node *n);
uint32_t n_atoms(const Node *n);
int64_t n_chan(const Node *n);
const char *n_name(const Node *n); /* name or path */
void set_name(Node *n, const char *name);
Axes g_axes(Graph *g, Axis *const *v, int n); /* a copy */

/* n, which stands where `by` does: scope, region and call; place, if it has
 * none. */
Node *g_placed(Node *n, const Node *by);
/* Shorthands: build and infer. */
Node *g_ew(Graph *g, Op op, const Loc *loc, Node *a, Node *b, Node *c);
Node *g_const(Graph *g, const Loc *loc, Dtype dt, double v);
Node *g_cast(Graph *g, Node *a, Dtype dt); /* a itself when it has dt */
Node *g_red(Graph *g, Op op, Node *a, Axis **ax, int n);
Node *g_sumto(Graph *g, Node *a, const Node *like); /* sum axes `like` lacks */
Node *g_broadcast(Graph *g, Node *a, const Node *like); /* to like's dims */
Node *g_dot(Graph *g, const Loc *loc, Node *a, Node *b, Axis **ax, int n,
            const Node *order); /* order: null, or whose axis order to take */
Node *g_copyof(Graph *g, const Node *n, Node *const *in); /* op and attrs */

void g_renumber(Graph *g); /* ids = positions */
void g_tidy(Graph *g);     /* merge equal nodes, drop dead ones, renumber */
void g_names(Graph *g);    /* give every unnamed node its unique name */
/* Position of an axis, or -1. */
static inline int dim_of(const Node *n, const Axis *a)
{
    for (int i = 0; i < n->nd; i++)
        if (n->dim[i].a == a)
            return i;
    return -1;
}
static inline int has_dim(const Node *n, const Axis *a)
{
    return dim_of(n, a) >= 0;
}
int axes_lacking(const Node *n, const Node *of,
                 Axis **out);                 /* of's: how many */
int same_order(const Node *a, const Node *b); /* same axes in the same order */
int64_t g_elems(const Node *n);               /* product of global sizes */
int same_dims(const Node *a, const Node *b);  /* same axes and sizes */
int has_dims(const Node *n, const Dim *d, int nd); /* the same as these */
int same_section(const Node *a, const Node *b);    /* region and call */
int is_transfer(const Node *n); /* send, recv, pp_sum: between stages */
int axis_at(Axis *const *v, int n, const Axis *a); /* in a list; -1: not */
int axes_at(const Axes *axes, const Axis *a);
static inline int g_isrow(const Axis *a) /* the ragged axis */
{
    return a->role == ROLErow;
}
int g_ismicro(const Axis *a);
int axis_covers(const Axis *a, AxisRole role); /* it or a factor of it */
Axis *g_role(const Graph *g, AxisRole role);   /* the first, or null */
Axis *g_micro(Graph *g);                       /* find or make */
int g_is_data(Graph *g, const Node *n); /* does it depend on the micro-batch? */
/* Does n reduce over the sequences of the batch, or contract them in data? An
 * update or a metric takes data only through such a node. */
int g_over_batch(Graph *g, const Node *n);
int is_backward(const Node *n); /* made by grad */
int any_region(const Node *n);  /* a source that every region may read */
int is_lasting(const Node *n);  /* a parameter or state */
int constant_is(const Node *n, double v);
int is_hosted(const Node *n);   /* a state of the host's memory */
int lies_in_host(Node *n);      /* is what n is, or is a view of, there? */
int is_position(const Node *n); /* an iota, under whatever names of its axis */

/* ---- scope.c ------------------------------------------------------------- */

void scopes_init(Graph *g);
/* Find or make, without marks; what stands before the last dot is around it. */
const Scope *g_scope(Graph *g, const char *path);
/* The same; it becomes a unit unless it is in one. */
const Scope *g_unit(Graph *g, const char *path, UnitKind kind);
const Scope *
g_backward(Graph *g, const Scope *scope); /* of scope; itself: scope is one */
/* In scope, whose modules it is of. */
const Scope *g_inner(Graph *g, const Scope *scope, const char *name);
/* Where scope is, of a model or a backward, with these marks for its own. */
const Scope *g_marked(Graph *g, const Scope *scope, unsigned marks);
/* Words of marks, "layernorm,keep", and back; 0: there is no such word. */
const char *marks_text(Arena *a, unsigned marks);
unsigned mark_named(const char *word);
int in_scope(const Scope *scope, const Scope *outer); /* forward or backward */
const Scope *g_partscope(Graph *g, ProgramPart part, const char *path);
/* The part that a path in text means unless it is told otherwise: "d" and
 * "d.<path>" are backwards, "grad" gradients, "post" and "post.<path>" post. */
ProgramPart part_of_text(const char *path);

/* ---- shard.c: what a rank holds ------------------------------------------ */

/* Size on one rank of dim d of n (capacity for the row axis). */
int64_t local_n(const Graph *g, const Node *n, int d);
int64_t local_elems(const Graph *g, const Node *n);
int64_t local_bytes(const Graph *g, const Node *n);
/* Elements between neighbours along the axis there; 0: n lacks it. */
int64_t local_stride(const Graph *g, const Node *n, const Axis *a);
/* The pieces of dim d of n on one rank, in the order they lie: one, or two of
 * one length when cp's atoms cut a zigzag axis. Returns how many. */
int pieces(const Graph *g, const Node *n, int d, Piece out[MAXPIECE]);
/* Global index of this rank's first element along a dim of one piece. */
RankAffine local_start(const Graph *g, const Node *n, int d);
/* Atoms that cut the axis in pieces: cp's, or none. */
uint32_t zigzag_atoms(const Mesh *m, const Axis *a);
/* A set of atoms as numbers in which what is slower along the axis is greater:
 * pieces before runs, later atoms before earlier ones. */
uint32_t stride_order(const Mesh *m, const Axis *a, uint32_t atoms);
/* Parts that n elements of an axis must divide into when `atoms` cut it. */
int64_t cut_parts(const Mesh *m, const Axis *a, uint32_t atoms);
uint32_t atoms_of(const Graph *g, const Node *n, ShardKind k); /* typed k */
int is_partial(const Node *n); /* over any atom */
/* Atoms that cut axis a of n. Where a route map is cut its rows are, and none
 * of their other axes. */
uint32_t cut_atoms(const Mesh *m, const Node *n, const Axis *a);
/* Where operand k of a pack begins, in elements of its last axis; k = nin:
 * where they end. Each begins at a multiple of PACKALIGN. */
int64_t bucket_at(const Node *pack, int k);
/* A route node's value, int32, one buffer: offsets[E+1] of local experts, then
 * pair[cap] (token * top + slot of each row, -1: padding), then row[pairs]
 * (-1: not here), then, with a budget, the number of rows if there were room
 * for all. In a stash the row of the stacks that row 0 is stands behind the
 * offsets, and the number of rows is INT32_MAX where that was too far up. each:
 * rows of every expert when padded, else 0. first: the rank's row that row 0
 * is. */
typedef struct MapLayout {
    int64_t experts, cap, each, first, pairs;
    int64_t offset, base, pair, row, total, n; /* base: if there is one */
} MapLayout;
MapLayout map_layout(const Graph *g, const Node *route);
/* Blocks of 128 rows that `cap` rows may lie in, where each of the experts
 * begins with a block of its own. */
int64_t row_blocks(int64_t cap, int64_t experts);
/* Of a rank, by a router that treats all experts alike. */
double expected_rows(const Node *route, const MapLayout *layout);
/* Of one of its experts, of which there is room for. */
double rows_of_expert(const Graph *g, const Node *route);
/* The axis of its index that counts the choices of a token; null: one each. */
const Axis *route_slot(const Node *route);
/* Does the axis number rows of the route: ragged ones, or those in blocks? */
int is_rows(const Node *route, const Axis *a);
Axis *axis_cut_over(const Axes *axes,
                    int atom); /* one cut over it; null: none */
/* Over an atom where the route's tokens are cut, the axis that is cut in their
 * stead where they stand in blocks; null: they keep their own. */
Axis *block_axis(const Node *route, int atom);

/* ---- row_exchange.c: exchanges of rows by peer memory -------------------- */

typedef struct RowExchange {
    const Node *alltoall, *member, *map; /* member: dispatch or combine */
    Node *rows;                          /* what is sent */
    int64_t tokens, pair, width;         /* of a rank, a block, a row */
} RowExchange;
/* Is all-to-all n one that takes rows to their ranks, sum n one of rows that
 * came back? */
int sends_rows(const Graph *g, const Node *n, RowExchange *exchange);
int returns_rows(const Graph *g, const Node *n, RowExchange *exchange);

/* ---- route_model.c: which experts tokens choose, before they do ---------- */

typedef struct RouteModel {
    int64_t experts, parts; /* parts: ranks that may hold unequal numbers of
                                     them; 1: none */
    double chosen;          /* of experts, on average */
    int64_t groups, kept;   /* of groups */
    double *odds;           /* of each expert */
} RouteModel;

/* The router's own index, behind e, which may leave choices out (-1); the mean
 * that route.mean says of one that does, else 0. */
const Node *choice_of(const Node *e);
double mean_choices(const Graph *g, const Node *e);
double map_choices(const Node *map); /* of a token, expected */

void find_groups(Node *map); /* attributes groups and kept, from its index */
/* By the router, which may be limited to groups, and by route.assume; even: all
 * experts are as likely whatever that says. */
RouteModel route_model(Arena *a, const Graph *g, const Node *map, int even);
/* Does route.assume say odds of 1/i^*power of the i-th expert? uniform: 0; a
 * file of odds: no. */
int assumed_power(const Opts *opts, double *power);
int routes_even(const Opts *opts);             /* of equal odds? */
int64_t route_places(const RouteModel *model); /* for experts, on all parts */
/* Probability that a token has one of the experts at n places from `first`, how
 * many of them it is expected to have, and the rows of the rank that has most
 * of them over an equal share. */
double route_hit(const RouteModel *model, int64_t first, int64_t n);
double route_pairs(const RouteModel *model, int64_t first, int64_t n);
double route_skew(const RouteModel *model, int64_t ranks);

/* ---- shard.c sharding_rules.c reshard.c: sharding types ------------------ */

#include "shard.h"

/* ---- aliasing.c: whose buffer holds a value ------------------------------ */

/* A view (rename split merge, stop_gradient, cast to its own dtype) whose dims
 * lie as its operand's do: same bytes. */
int is_view(const Node *n);
Node *viewed(Node *n);  /* through views; a write's is its state */
Node *storage(Node *n); /* and a sum's that goes on (accumulate.c): where it
                                     began */

/* ---- matrix.c: a dot as matrix products ---------------------------------- */

/* C[M,N] = A[M,K] x B[K,N] in a loop over up to three axes outside. swap: A is
 * the dot's second operand. ta, tb: that matrix is stored transposed.
 * Elements. */
typedef struct Matrix {
    int64_t M, N, K, lda, ldb, ldc;
    int ta, tb, swap;
    int nbatch;
    int64_t batch[3], sa[3], sb[3], sc[3];
} Matrix;
/* Operands a and b to a result laid out like c; 0: some layout does not allow
 * it. */
int as_matrix(const Graph *g, const Node *a, const Node *b, const Node *c,
              Matrix *matrix);

/* ---- composite.c --------------------------------------------------------- */

int is_attention(const Node *n);      /* a call that is one */
const Node *unrounded(const Node *n); /* the value behind casts */
/* The scores s of y = exp(s - max s) / sum, along one axis; null: y is none. */
const Node *softmax_scores(const Node *y, const Axis **axis);

/* ---- cost.c -------------------------------------------------------------- */

typedef struct Cost {
    double flops, bytes;
} Cost;
Cost cost_of(const Graph *g, const Node *n);    /* on one rank */
double flops_of(const Graph *g, const Node *n); /* with those of its body */
double g_tokens(const Graph *g); /* elements of the input of tokens */
/* Training FLOPs per token from the graph, as papers count them: 6 times the
 * multiply-adds of dots with parameters and of attention (causal: half). */
double flops_per_token(const Graph *g, int64_t *params, int64_t *active);

/* ---- columns.c: lines in columns ----------------------------------------- */

typedef struct ListingLine {
    const char *name, *what, *type, *shard, *loc; /* columns; null: empty */
    Region reg;
    const char *path; /* the scope, which may repeat */
    const char *note; /* not null: this line says only that */
} ListingLine;

/* Where repeated scopes stand there once: the line that stands for a line, one
 * of the second repeat or itself; in which of the repeats the line is; which
 * repeats, "layers.0 .. layers.31: x32", one pointer for all of their lines;
 * null: it does not repeat. */
typedef struct StandIn {
    size_t line, turn;
    const char *repeat;
} StandIn;
void stand_ins(Arena *a, const ListingLine *line, size_t n, StandIn *in);

/* With `fold` scopes that repeat with a number stand there once. */
void put_lines(Text *out, const ListingLine *line, size_t n, const char *indent,
               const char *eq, int fold);

/* ---- print.c parse.c parsenode.c shardtext.c check.c dot.c --------------- */

/* parse(print(g)) prints the same bytes. Flags: with places, all repeats. */
enum { PRINTloc = 1, PRINTfold = 2 }; /* fold: repeated scopes once, to read */
char *graph_print(Arena *a, const Graph *g, int flags);
/* The lines of its nodes, in order. */
ListingLine *graph_lines(Arena *a, const Graph *g);
/* The graph as the k-th cluster of a Graphviz digraph, whose braces are the
 * caller's. fold: repeated scopes once. */
void graph_dot(Text *out, Graph *g, int k, int fold);
Graph *graph_parse(Arena *a, const char *text, size_t len, const char *name,
                   Opts *opts);
/* A stage of a whole compile: the programs' graphs (vec), then the Lua sources
 * as put_text(t, "source", file, text) writes them (vec). */
Graph **graphs_parse(Arena *a, const char *text, size_t len, const char *name,
                     Opts *opts, Source **sources);
void print_dims(Text *out, const Node *n); /* "[batch=2 seq=8]" */
int takes(Op op, int nin);                 /* may op have that many operands? */
/* Null, or what n lacks before infer may look at it. */
const char *attrs_wrong(Arena *a, const Node *n);
/* What the text leaves out when it is so: a name's scope, a node's row map. */
const char *text_scope(const char *name);
Node *text_map(const Node *n);
/* "@ dp:batch tp:+"; null: n is whole, or types are not known yet. */
const char *shard_text(Arena *a, const Graph *g, const Node *n);
void put_atoms(Text *out, const Mesh *m, uint32_t set); /* "tp,dp" */
void lex_shards(Lex *lex, Graph *g, Node *n);           /* into n->sh */
int64_t lex_atoms(Lex *lex, const Mesh *m);
Axis *lex_axis(const Lex *lex, const Graph *g, const char *name);

typedef struct GraphReader {
    Lex x;
    Graph *g;     /* being filled: the graph, or a body */
    Table *node;  /* name -> node of g */
    Table *body;  /* name -> graph */
    Table *usual; /* undeclared axis -> size where none stands */
    Table *axis;  /* name -> axis, of all graphs of the text */
    Region reg;
    int call; /* 1 + index: of what stands below "F0:" */
} GraphReader;

void parse_nodes(
    GraphReader *reader); /* a line: a node, or where nodes belong */
Axis *parse_axis(GraphReader *reader);
int parse_type(GraphReader *reader, Dtype *dt, Dim *dim,
               int *nd); /* 0: none there */
const Loc *parse_places(GraphReader *reader);
/* Index of the graph's call that the n bytes at s name; -1: none. */
int parse_call(const GraphReader *reader, const char *s, size_t n);

void check_graph(const Graph *g); /* the level's own rules; die() when broken */
char *graph_wrong(Arena *a, const Graph *g); /* null, or which is broken */

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

enum { MOSTROUNDED = 2, ROUNDEDCOLUMNS = 128 };

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
    /* Has kernels, forward and backward, for this composite node? */
    int (*keeps)(const Graph *g, const Node *n);
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
