/* node.h: axes, attributes, nodes, parameters, graphs */
#ifndef PLEAT_NODE_H
#define PLEAT_NODE_H

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

/* struct <op>_attrs of each op and union Attrs of all, which the build expands
 * from op_attrs.in. */
#include "op_attrs.h"

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
    TensorKind kind;  /* up to moment */
    Dtype dt;         /* `real` until precision */
    int nd;
    Dim dim[MAXD];
    InitKind init;
    double arg;         /* std, half width, value */
    const char *of;     /* master, moment: of this parameter; null: of all
                                     of a bucket */
    Axis *expert;       /* on the expert grid: its axis over ep. Set
                                     by fold for all programs; null: dense */
    const char *bucket; /* ZeRO: a member of it, or its master, moment;
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

/* Cursor: a node of op with operands, appended to g->node. Set attributes, then
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
Node *g_iota(Graph *g, Axis *a, const Node *by); /* i32, where `by` stands */
Node *g_cast(Graph *g, Node *a, Dtype dt);       /* a itself when it has dt */
Node *g_red(Graph *g, Op op, Node *a, Axis **ax, int n);
Node *g_sumto(Graph *g, Node *a, const Node *like); /* sum axes `like` lacks */
Node *g_broadcast(Graph *g, Node *a, const Node *like); /* to like's dims */
Node *g_dot(Graph *g, const Loc *loc, Node *a, Node *b, Axis **ax, int n,
            const Node *order); /* order: null, or whose axis order to take */
Node *g_copyof(Graph *g, const Node *n, Node *const *in); /* op and attrs */

/* build.c. A cursor: nodes stand where `at` does, but in region reg. b_node: as
 * g_node; the others build and infer, and return x where nothing changes. */
typedef struct Cursor {
    Graph *g;
    const Node *at;
    Region reg;
    int again;
} Cursor;

Cursor cursor_at(Graph *g, const Node *at);
Node *b_here(Cursor b, Node *n); /* moves n to the cursor */
Node *b_node(Cursor b, Op op, int nin, Node *const *in);
Node *b_op1(Cursor b, Op op, Node *x);
Node *b_op2(Cursor b, Op op, Node *x, Node *y);
Node *b_op3(Cursor b, Op op, Node *x, Node *y, Node *z);
Node *b_const(Cursor b, Dtype dt, double v);
Node *b_iota(Cursor b, Axis *a);
Node *b_cast(Cursor b, Node *x, Dtype dt);
Node *b_red(Cursor b, Op op, Node *x, Axis **a, int n);
Node *b_rename(Cursor b, Node *x, Axis *from, Axis *to);
Node *b_gather(Cursor b, Node *x, Node *e, Axis *a); /* x at place e along a */

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
int has_body(Op op);            /* composites and optimizers */
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

#endif
