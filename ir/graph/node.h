/* node.h: axes, attributes, nodes, parameters, graphs */
#ifndef PLEAT_NODE_H
#define PLEAT_NODE_H

/* ---- graph.c ------------------------------------------------------------- */

typedef struct Axis {
    const char *name; /* interned; axes are equal by pointer */
    AxisRole role;
    uint32_t atoms;    /* an axis of a bucket: atoms over which it is sharded */
    char taken[NMESH]; /* the model shards it over this mesh axis, as the
                                     first, second ..; 0: roles decide */
    int64_t n;         /* declared size; 0: not declared */
    struct Axis *root; /* renamed from (key -> seq), or itself */
    int zigzag;        /* a root: cp's ranks hold two pieces of it
                                     and of axes renamed from it (shard.c).
                                     Set by fold for all programs */
    int64_t parts;     /* its root padded so that this many ranks hold equal
                                     parts (shard.c); 0: not padded */
    int nfactor;       /* merged from these, major first */
    struct Axis *factor[4];
    const Loc *loc;
} Axis;

#define MOSTELEMS ((int64_t)1 << 53) /* limit of a tensor: counts stay exact */

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

/* ---- attr.c: attributes -------------------------------------------------- */

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

/* Place of a node in a program (scope.c): one object for each part, path and
 * set of marks, equal by pointer. A unit is the granularity of pipeline stages:
 * the outermost scope with a number. */
typedef enum ProgramPart {
    PARTmodel,    /* the model: a Lua scope */
    PARTbackward, /* the backward of a Lua scope */
    PARTgrad,     /* accumulators of gradients */
    PARTpost,     /* the optimizer */
    NPART
} ProgramPart;
extern const char *const programparts[];
typedef enum UnitKind { UNITnone, UNITlayer, UNITmtp, NUNITKIND } UnitKind;
extern const char *const unitkinds[];
/* A model's marks on values: recompute keeps the value, or recomputes it; the
 * other bits are the modules of the value, enum module (keys.h), the words of
 * train.recompute. */
enum { MARKkeep = 1 << 30, MARKagain = 1 << 29, MARKSONE = 3 << 29 };
typedef struct Scope Scope;
struct Scope {
    const char *path;  /* "layers.3.attn"; "": outermost scope; for messages */
    unsigned marks;    /* marks of all values here */
    const Scope *base; /* the same scope without marks; may be itself */
    Scope *marked;     /* base: list of the same scope with marks, */
    Scope *next;       /* linked by next */
    const Scope *up;   /* enclosing scope; null: outermost, or a backward */
    const Scope *unit; /* itself or the enclosing unit; null: none */
    ProgramPart part;
    UnitKind kind;     /* kind of a unit */
    const Scope *twin; /* a model's: its backward, null: not created; a
                          backward's: its forward scope */
};

/* Fields that every walk reads are in the first 64 bytes. */
struct Node {
    int id; /* index in g->node, set by g_renumber */
    Op op;
    Dtype dt;
    Region reg;
    int mark, buf; /* scratch of the running pass; buf: the buffer, from
                          alloc */
    int nin, nd;
    Node **in;
    Node *map; /* rows layout: the route node of the row axis */
    const Scope *scope;
    const char *name; /* unique: scope path, op, ordinal */
    int call;         /* body of a stage: 1 + index of Graph.call */
    int kernel;       /* number of its kernel, set by fuse: from 1, in execution
                          order; 0: none */
    int again;        /* number of the recomputed copy; never merged */
    int piece;        /* elementwise and reductions: number of its piece of work
                          (round of rows, chunk of logits), from 1; 0: none. A
                          kernel has nodes of one piece */
    int host;         /* set by offload: its kernel runs on the host's
                          processors, in host memory */
    Dim dim[MAXD];    /* order is the memory layout, last fastest */
    Attrs at;         /* only the member of its op: n->at.slice.start */
    Graph *body;      /* composites: definition in terms of other ops */
    const char *of;   /* an accumulator: path of the parameter (ZeRO-2, 3: of
                          the bucket) whose gradient it is; null: none */
    const Loc *loc;
    void *tmp;       /* scratch of the running pass */
    int stash;       /* 1 + number of the stack that has its rows; 0: none */
    const Shard *sh; /* after place, [MAXATOM]: one object per type */
};

/* Initial value. */
typedef enum InitKind {
    INITnone,
    INITnormal,
    INITuniform,
    INITconst,
    INITcopy, /* copy of its parameter */
    INITpack, /* pack of a bucket's members */
    NINIT
} InitKind;
extern const char *const initkinds[NINIT];

/* A persistent value. A parameter's node is Oparam, all others are Ostate;
 * node->s is the path. */
typedef struct Param {
    const char *path; /* "layers.0.moe.w1", "optim.m.<path>" */
    TensorKind kind;  /* one of the kinds up to moment */
    Dtype dt;         /* `real` until precision */
    int nd;
    Dim dim[MAXD];
    InitKind init;
    double arg;         /* std, half width, value */
    const char *of;     /* master, moment: its parameter; null: all of a
                                     bucket */
    Axis *expert;       /* expert grid: the axis sharded over ep. Set by
                                     fold for all programs; null: dense */
    const char *bucket; /* ZeRO: its bucket, for members, masters and
                                     moments; null: none
                                     (passes/training/bucket.c) */
    int64_t at;         /* member: first element in the bucket */
    double before;      /* optimizer: share of the stage's elements before
                                     it (goes_to_host) */
    int copy;           /* this stage's copy; an earlier stage owns it */
    const Loc *loc;
} Param;

/* Division of the model into chunks (passes/pipe/stages.c). */
typedef struct Stages {
    int nchunk;
    const char *text; /* layout string, "Et|t|t|tL" */
    int nunit;
    const Scope **unit;    /* units in program order */
    int *chunk;            /* per unit: its chunk */
    int first, last;       /* chunks of E and L */
    const Scope **between; /* vec: scopes outside units between two units, such
                                     as a norm before mtp */
} Stages;

/* Offloaded data of a stage. */
enum { OFFLOADPARTS = 64 };
typedef struct Offloads {
    unsigned classes; /* classes of train.offload; activations: those whose
                       * copies are hidden */
    int stay;         /* optimizer elements that stay on the device: the first
               * stay / OFFLOADPARTS of them in the order of parameters */
} Offloads;

/* LEGAL: all nodes have kernels; types of nodes made by legalize are local to a
 * rank and follow no sharding rule. */
typedef enum Level { LOGICAL, PLACED, LOCAL, LEGAL, NLEVEL } Level;
extern const char *const levels[];

/* Order of a rank's micro-batches in den and body: undecided (fold.pair), one
 * by one, pairs requested from pair.c, paired. */
typedef enum Turns {
    TURNSopen,
    TURNSalone,
    TURNSpairs,
    TURNSpaired,
    NTURNS
} Turns;
extern const char *const turnwords[NTURNS];

/* Result of recompute: bytes kept for the backward, seconds of a micro-batch
 * for values recomputed by choice, and the lower bound of any choice's cost, in
 * bytes at Graph.price. */
typedef struct Rebuilding {
    double kept, secs, cost;
} Rebuilding;

struct Graph {
    const char *name; /* model's name */
    ProgramKind prog;
    Level level;
    int passed;        /* completed rows of passes.def */
    const char *after; /* the last of these, for the text; null: none */
    Arena *arena;
    Mesh *mesh; /* set by fold; null before */
    Opts *opts;
    struct Compile *compile; /* passes.h; null: outside a compile */
    const Stages *stages;    /* set by the driver before all passes; null:
                                     one stage */
    double price;            /* seconds of a micro-batch per byte of a rank's
                                     memory; 0: memory costs nothing */
    double dear_price;       /* price in the units of dear */
    const Table *dear;       /* null: none */
    Rebuilding rebuilding;   /* set by recompute */
    Turns turns;             /* order of micro-batches in den and body */
    Offloads offloads;       /* offloads that no key asked for */
    int64_t enough;          /* bytes of temporaries that cost nothing: another
                                     program's peak */
    int role, nrole;         /* after pipe: this stage, number of stages; 0 0 */
    Call *call;              /* vec, after pipe */
    ScheduleSlot *slot;      /* vec: the stage's table; phase: index in call */
    struct Graph *next;      /* after pipe: the next stage's graph */
    int naxis;
    Axis **axis;          /* vec, in order of first use */
    Param **param;        /* vec */
    Table *scopes[NPART]; /* path -> Scope; shared by g_like's graphs */
    Table *types;         /* types of g_type; shared by g_like's graphs */
    const Scope *top;     /* outermost scope */
    Table *bypath;
    size_t nbypath;       /* parameters in g_param's index */
    size_t nbefore;       /* vec_len(param) when Param.before was set */
    Node **node;          /* vec, operands before users */
    struct Group **group; /* vec: after sched, its kernels; null: Node.kernel
                             defines them (groups_of) */
    HfMap *hf;
    int nhf; /* set by the front end, carried to the plan */
};

Graph *g_new(Arena *a, const char *name);
Graph *g_like(const Graph *g); /* same arena, axes, params, options; no nodes */
/* Finds or creates an axis. Names of passes' axes contain a ', a model's do
 * not. */
Axis *g_axis(Graph *g, const char *name);
/* Creates an unused axis like `of`: "k'2" for "k". If two axes of one name meet
 * (an index over k into k), one of them is replaced by such an axis. */
Axis *g_instance(Graph *g, const Axis *of);
/* shard.c: finds or creates a padded so that `parts` divides it. */
Axis *g_padded(Graph *g, Axis *a, int64_t parts);
Axis *
unpadded(Axis *a); /* the axis that a pads; a itself if it is not padded */
/* g_to_padded maps index x of the unpadded axis to padded axis a, negative for
 * negative x; g_from_padded maps back, -1 for padding. Both return x if a is
 * not padded. Nodes are placed at x. */
Node *g_to_padded(Graph *g, const Axis *a, Node *x);
Node *g_from_padded(Graph *g, const Axis *a, Node *x);
Param *g_param(Graph *g, const char *path); /* null: none */
int64_t param_elems(const Param *param);
/* Is it a parameter in this bucket (interned path; null: in any bucket)? */
int is_member(const Param *param, const char *bucket);
/* Returns the companion (COMPANIONS) of a parameter or of its bucket; null:
 * none. */
Param *param_companion(const Graph *g, const Param *param, TensorKind kind);

/* Appends a node of op with operands to g->node. The caller sets attributes,
 * then calls infer(), which checks them and fills dt, dim, map (err() at
 * n->loc). */
Node *g_node(Graph *g, Op op, const Loc *loc, int nin, Node *const *in);
Node *infer(Graph *g, Node *n);
Dtype infer_dtype(const Node *n); /* promote.c */
/* amax, quantize, dequantize: block_size returns the elements of a block along
 * its axis i, 0: all; pair_axis the axis of packed pairs, or null. */
int64_t block_size(const Node *n, int i);
Axis *n_pairs(const Node *n);
Dtype promoted(Dtype a, Dtype b); /* common dtype; Dnone: not known yet */
Dtype arithmetic_dtype(Dtype t);  /* dtype of arithmetic with values of t */
/* Returns "[batch=2 seq=8]", without the implicit micro axis, for messages. */
const char *shape_text(const Graph *g, const Node *n);
/* Are these axes of a adjacent, in this order? */
int are_neighbours(const Node *a, const Axes *axes);
/* Sets dt, dim and map by the op's class and rule; keeps the order of n->dim if
 * it has the same axes. */

/* attr.c: generic access by the op's table */
void *attr_at(const Node *n, const AttrInfo *info);
size_t attr_width(AttrType t); /* bytes of an attribute */
int attr_unsaid(const Node *n, const AttrInfo *info); /* 0, none, empty */
const AttrInfo *attr_named(Op op, const char *name);  /* null: unknown name */
Axes attr_axes(const Node *n,
               const AttrInfo *info); /* axes of an attribute, in place */
int same_attrs(const Node *a, const Node *b); /* a, b: of one op */
uint64_t attrs_hash(uint64_t h, const Node *n);
void attrs_like(Node *n,
                const Node *from); /* copies those of equal name, type */
int attrs_name(const Node *n,
               const Axis *a); /* does an attribute name the axis? */
void attrs_replace(Graph *g, Node *n, const Axis *a, Axis *by);
Axis *whole_axis(const Node *n); /* WHOLE_AXIS of its row; null: none */
/* Shared attributes; die() if n's op has none. */
Axis *n_axis(const Node *n);
Axes *n_axes(const Node *n); /* modifiable */
/* Is n a product of FP8 operands? Its operands are followed by the map and the
 * scales of each, and it multiplies dequantized values. The operands of a
 * gmm_wgrad are blocks of an expert's rows, [block column row], with scales
 * [block column]. */
int is_scaled_product(const Node *n);
uint32_t n_atoms(const Node *n);
int64_t n_chan(const Node *n);
const char *n_name(const Node *n); /* name or path */
void set_name(Node *n, const char *name);
Axes g_axes(Graph *g, Axis *const *v, int n); /* returns a copy */

/* Places n at `by`: scope, region, call, and source place if it has none.
 * Returns n. */
Node *g_placed(Node *n, const Node *by);
/* Functions that build a node and infer its type. */
Node *g_ew(Graph *g, Op op, const Loc *loc, Node *a, Node *b, Node *c);
Node *g_const(Graph *g, const Loc *loc, Dtype dt, double v);
Node *g_iota(Graph *g, Axis *a, const Node *by); /* i32, placed at `by` */
Node *g_cast(Graph *g, Node *a, Dtype dt);       /* a itself if it has dt */
Node *g_red(Graph *g, Op op, Node *a, Axis **ax, int n);
Node *g_sumto(Graph *g, Node *a,
              const Node *like); /* sums axes not in `like` */
Node *g_broadcast(Graph *g, Node *a,
                  const Node *like); /* result: like's dims */
Node *g_dot(Graph *g, const Loc *loc, Node *a, Node *b, Axis **ax, int n,
            const Node *order); /* order: null, or a node with the axis order */
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
                 Axis **out);                 /* returns their number */
int same_order(const Node *a, const Node *b); /* same axes in the same order */
int64_t g_elems(const Node *n);               /* product of global sizes */
int same_dims(const Node *a, const Node *b);  /* same axes and sizes */
int has_dims(const Node *n, const Dim *d, int nd); /* same as d [nd] */
int same_section(const Node *a, const Node *b);    /* region and call */
int is_transfer(const Node *n); /* send, recv, pp_sum: between stages */
int axis_at(Axis *const *v, int n, const Axis *a); /* index in v; -1: absent */
int axes_at(const Axes *axes, const Axis *a);
static inline int g_isrow(const Axis *a) /* the ragged axis */
{
    return a->role == ROLErow;
}
int g_ismicro(const Axis *a);
int axis_covers(const Axis *a,
                AxisRole role);              /* has a, or a factor, the role? */
Axis *g_role(const Graph *g, AxisRole role); /* first axis of a role, or null */
Axis *g_micro(Graph *g);                     /* finds or creates it */
int g_is_data(Graph *g, const Node *n); /* does it depend on the micro-batch? */
/* Does n reduce over the sequences of the batch, or contract them in data? An
 * update or a metric takes data only through such a node. */
int g_over_batch(Graph *g, const Node *n);
int is_backward(const Node *n); /* was it made by grad? */
int has_body(Op op);            /* is it a composite or optimizer? */
int any_region(const Node *n);  /* is it a source that every region may read? */
int is_lasting(const Node *n);  /* is it a parameter or state? */
int constant_is(const Node *n, double v);
int is_hosted(const Node *n); /* is it a state in host memory? */
int lies_in_host(Node *n);    /* is n, or the value it views, in host memory? */
int is_position(const Node *n); /* is it an iota, possibly renamed? */

/* ---- scope.c ------------------------------------------------------------- */

void scopes_init(Graph *g);
/* Finds or creates a scope without marks; its parent is the path before the
 * last dot. */
const Scope *g_scope(Graph *g, const char *path);
/* g_scope of a unit, unless it is inside one. */
const Scope *g_unit(Graph *g, const char *path, UnitKind kind);
const Scope *
g_backward(Graph *g, const Scope *scope); /* scope itself if it is a backward */
/* Returns the scope `name` inside scope, with its modules. */
const Scope *g_inner(Graph *g, const Scope *scope, const char *name);
/* Returns the same scope, of a model or a backward, with these marks. */
const Scope *g_marked(Graph *g, const Scope *scope, unsigned marks);
/* Convert marks to words, "layernorm,keep", and back; 0: unknown word. */
const char *marks_text(Arena *a, unsigned marks);
unsigned mark_named(const char *word);
int in_scope(const Scope *scope, const Scope *outer); /* forward or backward */
const Scope *g_partscope(Graph *g, ProgramPart part, const char *path);
/* Returns the default part of a path in text: "d" and "d.<path>" are backwards,
 * "grad" gradients, "post" and "post.<path>" post. */
ProgramPart part_of_text(const char *path);

#endif
