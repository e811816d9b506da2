/* passes.h: graph -> graph -> plan. One file and one row of passes.def each. */
#ifndef PLEAT_PASSES_H
#define PLEAT_PASSES_H

#include "../ir/ir.h"

/* ---- passes.def, passtab.c, run.c ---------------------------------------- */

#define PASS(name, ...) void pass_##name(Graph *g);
#define KERNELS(name, ...)
#include "passes.def"
#undef KERNELS
#undef PASS

typedef struct CompileOptions {
    const char *dump; /* "-d": comma list of passes, all, why, +all,
                                     +loc; null: none */
    const char *stop; /* "-x": print this stage's graph and stop */
    const char *skip; /* a pass that is left out, for tests */
    ProgramKind prog; /* the one that -d and -x show */
    FILE *out;        /* where dumps go */
    Text *dot;        /* not null: graphs go there, as Graphviz */
    Source *source;
    int nsource;   /* Lua sources for the plan */
    Graph **stage; /* vec: programs that -x wrote and that go on
                                     from there; null: all start anew */
} CompileOptions;

typedef struct PassInfo {
    const char *name;
    void (*run)(Graph *g); /* null: works on groups, run.c calls it */
    unsigned programs;     /* those it runs in, as bits of ProgramKind */
    unsigned needs, makes, breaks; /* facts.def, as bits */
    Level level;                   /* what check_graph holds after it */
    const char *sentence;
} PassInfo;
extern const PassInfo passtab[]; /* passtab.c */
extern const int npass;

/* The first row of tab that finds something missing in program k, if `skip` is
 * left out (null: nothing is), as a sentence in a; null: none does. */
const char *pass_order_wrong(Arena *a, const PassInfo *tab, int n,
                             ProgramKind k, const char *skip);

/* ---- context.c: one compile; its graphs point at it ---------------------- */

typedef struct Compile {
    CompileOptions options;
    const Target *target;
    const char *pass; /* under way */
    int ndot;         /* pictures drawn */
    Table *said;      /* plain_products.c: axes warned of */
} Compile;

void compile_begin(Graph *g, const Target *T, const CompileOptions *o);
const Target *pass_target(const Graph *g); /* the one compiled for */
FILE *compile_out(const Compile *c);
/* One line per decision, shown by -d why. n: what it is about, or null. */
void why(const Graph *g, const Node *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* After the pass under way, where -d asks for it. */
void show_graph(Graph *g);
void show_groups(const Graph *g, Group *const *k);

/* ---- run.c --------------------------------------------------------------- */

/* Every program of a logical graph as one plan. With o->stop: null, and the
 * logical graph, all programs after that pass and the sources are written to
 * o->out; read back as `stage`, they make the same plan. */
Plan *compile(Graph *logical, const Target *T, const CompileOptions *o);

/* initial.c: what gives all of g's parameters their first values. */
Graph *initial_graph(Graph *g);

/* One pass on g, checked; for tests and tools. err() when there is none of
 * that name. */
void run_pass(Graph *g, const Target *T, const char *name);
/* Rows that make g legal for T's kernels, unchecked (a graph of a test has no
 * mesh), and its kernels: as fuse. */
Group **run_fuse(Graph *g, const Target *T, Arena *a);
/* kernel_listing.c: groups as text, a line each; fold: repeated scopes once. */
char *groups_print(Arena *a, Group *const *k, int fold);

void attn_bwd_apart(Graph *g); /* attn_bwd.c, whatever the target is */

/* ---- rewrite.c ----------------------------------------------------------- */

/* Rebuild g in order: f gets each node with its operands already replaced and
 * returns what stands for it from now on (itself to keep it, a node that exists
 * or that it has just built). New nodes land where f builds them. */
void rewrite(Graph *g, Node *(*f)(Graph *g, Node *n, void *ctx), void *ctx);
int *use_counts(const Graph *g, Arena *a); /* by node id */
/* Result `index` of a node that has several, with the dims of `like`. */
Node *new_part(Graph *g, Node *of, int index, Dtype dt, const Node *like);
/* Copy body (a composite's meaning) into g with its args bound to `in`; returns
 * its last node. */
Node *inline_body(Graph *g, const Graph *body, Node *const *in,
                  const Scope *scope, const Loc *l);

/* ---- micro.c ------------------------------------------------------------- */

Node *g_total(Graph *g, Node *n); /* sum over all its axes */
/* n with the axis micro: what is the same for all micro-batches (a loss of
 * parameters only) counts once in each, whoever runs it. */
Node *g_per_micro(Graph *g, Node *n);
Node *g_accum(Graph *g, Node *n, Reduce op);   /* fp32, in n's region */
int axis_covers(const Axis *a, AxisRole role); /* it or a factor of it */
double micro_batches(const Graph *g);          /* of a step, all ranks */
int64_t micro_turns(const Graph *g); /* of them those that a rank runs, err()
                                         where dp's ranks cannot share evenly */

/* ---- expert_capacity.c --------------------------------------------------- */

const Node *choice_of(const Node *e); /* the router's own index, behind e */
/* route.policy=dropless with route.factor: a rank has room for so many times
 * its equal share of rows. When more come, `step` does nothing and says so, and
 * the program step.fallback takes them in rounds (overflow_fallback.c). */
int limits_rows(const Graph *g);
int rounds_of(const Graph *g, const Node *route); /* 1: never too many */
/* Operands first, otherwise in the order there is. */
void g_sort(Graph *g);
/* Appends n to the vec, behind its operands, unless it is marked. */
void g_visit(Node *n, Node ***out, Arena *a);

/* ---- stages.c ------------------------------------------------------------ */

/* The chunks of a pipeline, from the traced model; null: one stage. err() when
 * fold.layout does not fit it. */
Stages *stages_cut(Graph *logical);
/* Chunk of the unit that a scope lies in; -1: of no unit. */
int stage_of(const Stages *st, const Scope *scope);
int unit_at(const Stages *st, const Scope *scope); /* index of the unit */

/* ---- pipe*.c: what they share -------------------------------------------- */

/* Where a node of the body runs; chunk -1: in each call that reads it. */
typedef struct Assignment {
    int chunk;
    WorkKind w;
} Assignment;

/* A value that another stage reads: at the start of its F, or else B or I, of
 * the chunk that is the first to need it. */
typedef struct StageRead {
    Node *n;
    int stage, edge, chan;
} StageRead;

/* The graph of a stage being made: nodes of the same id in the graph that is
 * cut, and lists that become its nodes. */
typedef struct StagePart {
    Graph *g;
    Node **at;   /* by id: the value on this stage */
    Node **all;  /* by id: after it went to all stages */
    Table *anew; /* (call, id) -> made anew for that call */
    Node **source, **before, **body, **post; /* vecs; body: calls in the
                                     order of time */
} StagePart;

/* Which stages have a parameter or state. */
typedef struct Holders {
    char *has;  /* by stage: a body there reads it */
    int *owner; /* who writes it; -1: not known yet. Shared with all that the
                                     optimizer takes together. */
} Holders;

typedef struct Pipe {
    Graph *g; /* what is cut */
    Arena *a;
    const Schedule *s;
    int splits, stages, chunks;
    Assignment *spot;    /* by id */
    int *first;          /* by id and stage: the first moment at which the
                                     stage needs it, INT_MAX: never */
    Table *held;         /* path -> Holders, the same for all programs */
    StageTransfer *edge; /* vec */
    StageRead *cross;    /* vec */
    int chan;            /* next free channel, and place in the order
                                     of what all stages do */
    StagePart *part;     /* by stage */
    int *home;           /* by id: see pipe_post.c */
} Pipe;

/* All programs of a model, from LOCAL on: `next` of each becomes the graph of
 * the next stage. */
void pipe_programs(Graph *const *g);

/* pipe_own.c. A moment: a place in the order of the calls of a micro-batch. */
/* The k-th value that n reads, its row map behind the operands; or null. */
Node *read_by(const Node *n, int k);
int pipe_stage_at(const Pipe *p, const Node *n); /* -1: of no call */
Assignment pipe_moment(const Pipe *p, int moment);
void pipe_needs(Pipe *p); /* first */
void pipe_hold(Pipe *p);  /* adds to held what the bodies of p need */
Holders *pipe_held(const Table *held, const char *path);
int pipe_owner(const Table *held, const char *path); /* -1: none yet */

/* held of g alone; from grad on. */
Table *pipe_alone(Graph *g);

const Schedule *pipe_schedule(Graph *g, int *splits);
void pipe_assign(Pipe *p); /* spot, first */
void pipe_post(Pipe *p);   /* what follows the bodies */
/* A copy of n, with operands in, at the end of a list of stage s. */
Node *pipe_copy(Pipe *p, int s, Node ***list, const Node *n, Node *const *in);
/* n, of den or pre or standing ready, on stage s. */
Node *pipe_shared(Pipe *p, int s, Node *n);

/* ---- step.c post.c optimize.c: what stands in post ----------------------- */

typedef struct TrainStep {
    Graph *g;
    const Loc *l;
    const Scope *scope;     /* of what is being built */
    Node *total;            /* the step's loss */
    Node *ok;               /* everything is finite */
    Node *scale;            /* clipping factor, null: none */
    Node *lr, *rate, *root; /* lr/bc1, 1/sqrt(bc2) */
    double b1, b2;
    Table *post;   /* a node -> its value in post */
    Table *bucket; /* a trained parameter's path -> its Bucket */
} TrainStep;

/* fp32 arithmetic of post, in s->scope; values of the step block by name; what
 * the step reports. */
Node *post_op1(TrainStep *s, Op op, Node *a);
Node *post_op2(TrainStep *s, Op op, Node *a, Node *b);
Node *post_num(TrainStep *s, double v);
Node *post_scalar(TrainStep *s, StepValue v);
void post_result(TrainStep *s, const char *name, Node *n);
Node *in_post(Node *n);
void post_set(TrainStep *s, Node *state, Node *value);
Node *post_if_ok(TrainStep *s, Node *value, Node *old); /* finite: all is */
/* Writes the value, or the old one when something is not finite. */
void post_write(TrainStep *s, Node *state, Node *value);

/* Fills s->bucket; param: those that have gradients, in order. How many. */
size_t step_buckets(TrainStep *s, Node **node, size_t count, Node **param);
void step_clip(TrainStep *s); /* sets ok and scale */
void step_optimize(TrainStep *s, Node **param, size_t n);

/* ---- logits_sites.c: what logits_chunks.c cuts --------------------------- */

/* What becomes of a node: it stays, there is one a slice, it is dx, dw. */
enum { SLICEnot, SLICEeach, SLICEdx, SLICEdw };

typedef struct Slices { /* of one head */
    Graph *g;
    Arena *a;                 /* of this head */
    Node *head, *x;           /* the product, its operand with tokens */
    Axis *axis, *part, *rest; /* of tokens; what it is split into, or null*/
    int64_t parts, len;       /* len: of axis (or rest) in a slice */
    int n, id;                /* slices; of the first, for fuse */
    char *is;                 /* by id */
    char *late;               /* by id: not is, but reads it */
    Node ***copy;             /* by id: of each slice */
    Node ***piece;            /* by id: slices of an operand */
    Node **whole;             /* by id: the results together again */
    Node **early;             /* by id: what it is in the head's call */
} Slices;

/* The operand of n with tokens, if n may be a head; or null. */
Node *head_tokens(Graph *g, const Node *n);
/* In how many slices s->head is made; s has g, a, head and x and gets the rest
 * but what slices are. err() when train.slices divides no axis. */
int cut_head(Slices *s);

/* ---- fold.c sharding.c bucket.c: what is known before they run ----------- */

Mesh *fold_mesh(Graph *g);   /* by the options alone */
void fold_experts(Graph *g); /* fills Param.expert; needs g->mesh */
/* A parameter lies on one grid in all programs, whichever of them picks experts
 * of it: by the model, before they are made, and by what step found. */
void fold_model(Graph *g);
void experts_like(Graph *g, const Graph *step);
void param_type(Graph *g, const Param *p, Shard *sh); /* needs g->mesh */

/* Parameters whose optimizer works on a shard of them all. Or one parameter
 * that no group shares: then flat is null, pack and unpack do nothing. */
typedef struct Bucket {
    const char *name;    /* "zero.0", or the parameter's path */
    Axis *own, *flat;    /* own null: no atom cuts the members */
    int64_t ranks, size; /* size of own; elements of flat */
    Param **param;       /* vec; as the following by member */
    Node **node, **grad;
    Axis **order, **cut; /* vecs: attributes of pack */
    int norder, ncut;
    const Scope *unit; /* ZeRO-2, 3: gradients are cut where this
                                     unit runs backward; null: in post */
    int shards;        /* ZeRO-3: ranks keep shards of it only */
    Node *sum;         /* for step: the gradients, packed */
    int seen;
} Bucket;

/* The buckets of trained parameters and their accumulators, in order of the
 * first member; by[i] that of node i. rule[i]: only equal ones share one. */
Bucket **buckets_of(Graph *g, Node **param, Node **grad, const double *rule,
                    size_t n, Bucket **by);
Bucket *bucket_named(Graph *g, const char *name); /* from its parameters */
Node *bucket_pack(Graph *g, const Bucket *b, Node *const *in);
Node *bucket_unpack(Graph *g, const Bucket *b, size_t k, Node *x);

/* ---- zero3.c ------------------------------------------------------------- */

/* b->sum becomes the bucket's accumulator in place of its members'. If ranks
 * keep shards of parameters, members are read from the bucket's own, which
 * becomes b->node[0]. */
void bucket_scatter(Graph *g, Bucket *b);
/* Other programs keep the same shards as `step`. */
void shards_like(Graph *g, const Graph *step);

/* ---- versions.c: values in the types that users ask for ------------------ */

/* A type a value exists in besides its own, and where. */
typedef struct Version {
    Shard sh[MAXATOM];
    Region reg;
    Node *node; /* null where nodes are not made */
    struct Version *next;
} Version;

typedef struct Partitioner {
    Graph *g;
    Arena *a;
    int build;      /* make nodes; else only note types */
    Version **have; /* by node id, in order of making */
    int *uses;
    char *free; /* made anew in any type at no cost */
    char *grid; /* 1: on the expert grid */
} Partitioner;

typedef Shard OperandShards[MAXIN][MAXATOM]; /* types asked of operands */

Partitioner *partitioner_new(Graph *g, int build);
/* Operand k of n in the type asked for. */
Node *demand(Partitioner *p, const Node *n, int k, const Shard *want);
/* What operand k of a node that is made anew must be for the node to be
 * want. */
void type_through(const Partitioner *p, const Node *n, int k, const Shard *want,
                  Shard *out);
Shard shard_through(const Node *n, int k, const Shard *want); /* of one atom */

/* ---- sharding.c sharding_report.c ---------------------------------------- */

/* Choose n's type and what it asks of its operands; when n has its type already
 * (level PLACED), only the latter. */
void choose_strategy(Partitioner *p, Node *n, OperandShards need);
void report_sharding(const Partitioner *p);

/* ---- grad.c -------------------------------------------------------------- */

/* Append to g the gradients of the nodes in `seed` (dseed[i] their given
 * gradients); returns, by node id before the call, each node's gradient or
 * null. Only nodes that lead to `want` (marked n->mark = 1) are visited. */
Node **backward(Graph *g, Node **seed, Node **dseed, int n);

/* Part 1 of an attn whose part 0 is `out`, fp32. */
Node *logsumexp_part(Graph *g, Node *attn, const Node *out);

/* ---- legalize.c fuse.c (codegen lowers what they make) ------------------- */

/* Does product n, whose only user x is, add to accumulator x itself? What it
 * adds is not rounded, so both have one dtype. */
int feeds(const Graph *g, const Node *n, const Node *x);

/* Of a graph that is legal: a vec, in executable order. */
Group **fuse(Graph *g, const Target *T, Arena *a);

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
    Node *alone;              /* products: what the instruction stores */
    struct FuseUnit **before; /* vec: read what it overwrites */
    int wait;                 /* (ordering) units before it */
    struct FuseUnit **next;
} FuseUnit;

/* An operand as a member sees it: through views and clear nodes, with the axes
 * along which it is not read at the member's own index, and a number for the
 * moves on the way, 0 without any. */
typedef struct Operand {
    Node *n;
    Axis **moved;
    uint64_t path;
} Operand;

typedef struct Fuse {
    Graph *g;
    const Target *T;
    Arena *a;
    int n;
    Node ***user;           /* by id: vec of direct users */
    Node **before, **after; /* by id: what stages do together, in order */
    char *clear;            /* by id: rebuilt where it is used */
    char *costly;           /* by id: worth storing rather than repeating */
    FuseUnit **unit;        /* by id */
    Operand **operand;      /* by id: vec, found when first asked for */
    int *seen;              /* by id: stamp of the last walk */
    FuseUnit **all;         /* vec */
    int stamp;
} Fuse;

enum { MOSTNODES = 48 }; /* of a kernel */

/* Members that would be one kernel, the new one last: nodes of units whose
 * `seen` is the stamp. */
typedef struct FuseSet {
    Fuse *f;
    Node **node; /* vec */
    int stamp;
} FuseSet;

typedef struct AxisSet {
    int n;
    Axis *a[MAXD];
} AxisSet;

int is_reduction(const Node *n);
int is_source(const Node *n);                /* in memory before any kernel */
int passes_by(const Fuse *f, const Node *n); /* belongs to no kernel */
void find_clear(Fuse *f);
Operand *operands_of(Fuse *f, const Node *n);
FuseUnit *unit_root(FuseUnit *u);
FuseUnit *unit_of(const Fuse *f, const Node *n);
int set_has(const FuseSet *s, const Node *n);
int is_stored(const FuseSet *s, const Node *n); /* needed outside the set */
const Node *space_of(const Node *n);            /* whose dims n's loops have */
const Node *layout_of(const Node *n);           /* whose dims n stores */
AxisSet axes_here(const Graph *g, const Node *n); /* of more than one element */
int axes_lead(const Graph *g, const AxisSet *O,
              const Node *n);     /* slowest of n */
const char *one_nest(FuseSet *s); /* null: yes; else why not */
int is_large(const FuseSet *s);   /* kernel_size.c: too large for one kernel */

/* ---- sched.c alloc.c pack.c emit.c: see their heads ---------------------- */

Group **sched(Graph *g, Group **k);

typedef struct Used {
    int phase, first, last;
} Used; /* instructions of a call */

/* One value of a program, or a kernel's work space, before it is a Buf. */
typedef struct Live {
    Node *n; /* the value; null: work space of `instr` */
    int instr;
    int64_t bytes, offset; /* offset: above the persistent part, or in
                                     its frame */
    int born, dies;        /* instructions, both included */
    int first;             /* instruction that makes it: born, or in a table
                                     the one that runs first */
    int last;              /* after it the place is free, or -1 */
    int kept;              /* to the end of the program */
    int same;              /* index of the value whose buffer this one
                                     took over, or -1 */
    Used *used;            /* vec: calls that name it, in phase order */
    int outside;           /* named outside of calls too */
    int frame;             /* 1 + its frame; 0: one place */
    int within;            /* index of the bucket where it lies at byte
                                     offset, or -1 */
    int start;             /* its place is taken from this instruction on */
} Live;

typedef struct Layout {
    Live *live;
    int n;            /* vec */
    Table *of;        /* stored value -> index + 1 */
    SlotGroup *frame; /* vec */
    int64_t height, bound;
} Layout;

int is_persistent(const Node *stored);
/* Places all that lives within one program, whose phases and turns are known.
 * k: the group of each instruction. */
Layout *layout(Graph *g, Group *const *k, const Program *p);
int layout_root(const Layout *l, int i); /* whose buffer i lies in */

/* A buffer to be placed: alive at the times born..dies, both included. */
typedef struct Rect {
    int born, dies;
    int64_t bytes;
    int64_t fixed;  /* the offset it must have, or -1 */
    int64_t offset; /* the result */
} Rect;

typedef struct Packed {
    int64_t height, bound; /* bytes; bound: the largest load */
    int64_t work;          /* units spent, about 10 ns each */
    const char *how;       /* what found it */
} Packed;

enum { PACKWORK = 30000000 }; /* default limit of work */
Packed pack(Arena *a, Rect *r, int n, int64_t work);
/* pack_search.c: offsets under cap, by search; born and dies are sections,
 * bytes multiples of the alignment, none fixed. The order of r is the order of
 * trial. Takes from *work; zero when it found none (r's offsets are then
 * undefined). */
int pack_under(Arena *a, Rect *r, int n, int64_t cap, int64_t *work);
/* Null when no two rectangles overlap, all lie in [0, height) and are aligned;
 * otherwise what is wrong. Knows nothing of how they were placed. */
const char *pack_wrong(Arena *a, const Rect *r, int n, int64_t height);

/* ---- activation_slots.c: what a stage's calls have, what they keep ------- */

/* When each call of each micro-batch runs. */
typedef struct CallTimes {
    Arena *arena;
    const Program *p;
    int call, ncall; /* phases */
    int from, to;    /* instructions of all calls */
    int micros;
    int *at; /* [call][micro] -> row */
} CallTimes;

CallTimes *rows_of(Arena *a, const Program *p); /* null: no table */
/* How long x lives, now that all who name it are known: in one call, through
 * the whole table, or from row to row. */
void rows_settle(const CallTimes *t, Live *x);
/* x took over y's place: y's life becomes both. */
void rows_join(const CallTimes *t, Live *y, const Live *x);
/* Places what is private to calls and what frames hold, both from 0 on. */
typedef struct TableMemory {
    int64_t priv, pool; /* bytes of each part */
    int64_t bound;      /* most bytes of both alive in a row */
} TableMemory;
TableMemory rows_place(const CallTimes *t, Layout *l);
void rows_move(Layout *l, int64_t priv, int64_t pool); /* to these offsets */

/* ---- emit.c program_layout.c --------------------------------------------- */

/* instr_cost.c: sets s->flops, bytes (unless they are known), again, secs. */
void predict(const Graph *g, const Group *k, Instr *s);
/* plain_products.c: once for each axis. The seconds that k takes, and
 * would take on tensor cores. */
void warn_plain(const Graph *g, const Group *k, double secs, double fast);
typedef struct Emit Emit;
typedef struct Shapes Shapes; /* of values, each once */
typedef struct Signatures Signatures;

typedef struct ProgramBuilder { /* one program being made */
    Arena *arena;
    Emit *e;
    Graph *g;
    const Target *T;
    Group **group;      /* vec: of each instruction */
    Phase *phase;       /* vec */
    ScheduleSlot *turn; /* vec */
    int64_t repeat;     /* of den and body */
    int once;           /* each instruction runs once */
    Layout *l;
    int *work; /* instruction -> buffer of its work space, or -1 */
    Table *value;
    int nvalue;     /* instr_values.c: numbers of values */
    int *shape;     /* vec: of value i + 1 */
    Shapes *shapes; /* the plan's, as those */
    Signatures *sigs;
} ProgramBuilder;

void make_phases(ProgramBuilder *m,
                 Group **k); /* fills group, phase, turn, repeat */
void make_joins(
    ProgramBuilder *m); /* grad_buckets.c: packs that need no copy are joins */
int64_t join_at(const Node *pack, int i); /* byte where member i lies */

/* instr_values.c: what instruction s of group k reads and makes, and what must
 * be there at the end. Buffers have numbers. */
void flow_instr(ProgramBuilder *m, const Group *k, Instr *s);
const Node *made_in(const Group *k, const Node *n); /* what k leaves in n's
                                     buffer; null: nothing */
void flow_ends(ProgramBuilder *m, Program *p);
/* signatures.c: what kernel s of group k declares. Buffers have numbers, and s
 * its words, which the plan has with its signatures. */
Signatures *signatures_new(Arena *a);
void signatures_give(const Signatures *x, Plan *p);
void sign_call(ProgramBuilder *m, const Group *k, Instr *s);
Shapes *shapes_new(Arena *a);
ValueShape *shapes_all(const Shapes *x);                   /* vec */
int shape_index(Shapes *x, const Graph *g, const Node *n); /* its index */
int accumulates(const Group *k, const Node *n); /* adds to what n holds */

Emit *emit_new(Arena *a, Graph *g, const Target *T);
void emit_program(Emit *e, Graph *g, Group **groups);
Plan *emit_finish(Emit *e, const CompileOptions *o);

#endif
