/* plan.h: the border between compiler and runtime. What both sides share:
 * arenas, strings, errors, dtypes, meshes, options, and the execution plan.
 * The runtime sees this header only.                                       */
#ifndef PLEAT_PLAN_H
#define PLEAT_PLAN_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- arena.c: memory by lifetime ----------------------------------------- */

typedef struct Arena Arena;

extern Arena *forever;            /* interned strings, tables, the plan       */

Arena *arena_new(void);
void arena_reset(Arena *a);       /* forget all, keep the first block         */
void arena_free(Arena *a);
size_t arena_used(const Arena *a);
void *alloc(Arena *a, size_t bytes);          /* zeroed, 16-byte aligned      */

/* Growable arrays: a plain pointer with its length in a hidden header.
 * vec_push(arena, v, x) may move v. A null pointer is an empty vector.       */
typedef struct VecHead { size_t len, cap; } VecHead;
void *vec_grow(Arena *a, void *v, size_t elem);   /* room for one more        */
#define vec_len(v) ((v) ? ((VecHead *)(void *)(v))[-1].len : 0)
#define vec_push(a, v, x)                                                      \
    ((v) = vec_grow((a), (v), sizeof *(v)),                                    \
     (v)[((VecHead *)(void *)(v))[-1].len++] = (x))

/* ---- str.c: interned strings are equal when their pointers are ----------- */

const char *intern(const char *s);
const char *internn(const char *s, size_t n);
char *strf(Arena *a, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
char *vstrf(Arena *a, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));
/* Nearest of n names by edit distance, or null when none is close.           */
const char *nearest(const char *s, const char *const *names, size_t n);

/* A growing text, NUL-terminated at every moment.                            */
typedef struct Text { Arena *arena; char *s; size_t len, cap; } Text;
void put(Text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void putn(Text *t, const char *s, size_t n);

/* ---- err.c: two kinds of failure ----------------------------------------- */

typedef struct Loc Loc;           /* a place in the user's source             */
struct Loc {
    const char *file;             /* interned; null: unknown                  */
    int line;                     /* from 1                                   */
    const Loc *up;                /* the caller's place, or null              */
};

/* Keep a source text so that messages can show its lines.                    */
void source_add(const char *file, const char *text, size_t len);
/* The user's fault: `file:line: error: ...`, the source line, then every note
 * given since the last message; exit status 1.                               */
_Noreturn void err(const Loc *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void note(const Loc *l, const char *fmt, ...)    /* printed with the next err */
    __attribute__((format(printf, 2, 3)));
void warn(const Loc *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Our fault: says so and aborts.                                             */
_Noreturn void die(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));
extern int err_status;            /* exit status of err: 1; 3 once steps run  */
extern void (*err_hook)(const char *msg); /* when set: called instead of exit */

/* ---- dtype.c ------------------------------------------------------------- */

typedef enum Dtype {
#define DT(name, bytes, kind, store, compute, st) D##name,
#include "types.def"
#undef DT
    NDTYPE
} Dtype;

typedef struct DtypeInfo {
    const char *name;
    int bytes;                    /* in memory                                */
    char kind;                    /* f float, i integer, b bool               */
    const char *store, *compute;  /* C types in memory and in registers       */
    const char *st;               /* safetensors name                         */
} DtypeInfo;

extern const DtypeInfo dtypes[NDTYPE];
int dtype_named(const char *name);            /* -1: no such dtype            */
float bf16_to_f32(uint16_t x);
uint16_t f32_to_bf16(float x);                /* to nearest even, NaN kept    */

/* ---- mesh.c: ranks, both grids, atoms (DESIGN section 4) ----------------- */

enum { MAXATOM = 16 };

typedef enum MeshAxis {         /* first the dense grid, then the expert grid */
    Mtp, Mcp, Mdp, Mpp, Metp, Mep, Medp, NMESH
} MeshAxis;

/* rank's coordinate on an atom: (rank / stride) % size. Atom 0 varies
 * fastest.                                                                   */
typedef struct Atom { int64_t size, stride; } Atom;

typedef struct Mesh {
    int64_t world;
    int64_t size[NMESH];
    const char *order;            /* "tp-cp-dp-pp", first fastest             */
    int natom;
    Atom atom[MAXATOM];
    uint32_t mask[NMESH];         /* the atoms each mesh axis is made of      */
} Mesh;

extern const char *const meshnames[NMESH];    /* "tp" ... "edp"               */
/* Cut the radices of both grids to their common refinement. sizes not given
 * are 0 and get their defaults; err() when something does not divide.        */
Mesh *mesh_new(Arena *a, int64_t world, const int64_t size[NMESH],
               const char *order, const Loc *l);
int64_t mesh_coord(const Mesh *m, int64_t rank, int atom);
int64_t mesh_extent(const Mesh *m, uint32_t atoms);   /* product of sizes     */
/* Position of rank in its group over atoms, later atoms major; the group's
 * ranks in that order go to ranks[mesh_extent].                              */
int64_t mesh_pos(const Mesh *m, uint32_t atoms, int64_t rank);
void mesh_group(const Mesh *m, uint32_t atoms, int64_t rank, int64_t *ranks);

/* An integer that may depend on the rank: c + sum of k[i] * coordinate i.    */
typedef struct Aff { int64_t c, k[MAXATOM]; } Aff;
Aff aff(int64_t c);
int64_t aff_at(const Mesh *m, const Aff *x, int64_t rank);

/* ---- opts.c: keys of fold{}, train{}, data{}, precision{}, route{} ------- */

/* A row of keys.def; keytab ends with a row of nulls.                        */
typedef struct KeyInfo {
    const char *table, *name, *kind, *dflt, *doc;
} KeyInfo;
extern const KeyInfo keytab[];

typedef struct Opts Opts;         /* key -> text; defaults come from keys.def */
Opts *opts_new(Arena *a);
/* Set by full name ("fold.ep"). Unknown key or value of the wrong kind: err()
 * with a suggestion. `axes.<name>` is accepted for any name.                 */
void opts_set(Opts *o, const char *key, const char *value, const Loc *l);
const char *opts_str(const Opts *o, const char *key);     /* null: not given  */
int64_t opts_int(const Opts *o, const char *key);
double opts_num(const Opts *o, const char *key);
int opts_given(const Opts *o, const char *key);           /* set, not default */
const Loc *opts_loc(const Opts *o, const char *key);      /* where it was set */
void opts_pair(const Opts *o, const char *key, double v[2]);  /* train.betas  */
/* Does one of the key's patterns ("*.bias norm.*") match s?                  */
int opts_match(const Opts *o, const char *key, const char *s);
/* In keys.def's order, then axes: the i-th key that was set; 0: past the
 * end.                                                                       */
int opts_each(const Opts *o, int i, const char **key, const char **value);

/* ---- lex.c: words of the text forms -------------------------------------- */

typedef struct Lex {
    Arena *arena;
    const char *p, *end;          /* what is left                             */
    const char *file;
    int line;                     /* 0: before the first                      */
} Lex;

void put_word(Text *t, const char *s);        /* bare, or as a "string"       */
void put_int(Text *t, int64_t v);
void put_hex(Text *t, double v);              /* %a                           */
_Noreturn void lex_err(const Lex *x, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Every reader skips blanks; none but lex_next leaves the line.              */
int lex_next(Lex *x);             /* to the next line with words; 0: the end  */
int lex_more(Lex *x);             /* is there more on this line?              */
int lex_mark(Lex *x, char c);     /* take this mark if it is next             */
void lex_need(Lex *x, char c);
const char *lex_word(Lex *x);     /* interned                                 */
int lex_take(Lex *x, const char *word);       /* take this word if it is next */
int64_t lex_int(Lex *x);
int64_t lex_range(Lex *x, const char *what, int64_t min, int64_t max);
double lex_num(Lex *x);
/* A text as it is, behind its length: `what [name] length`, then its bytes.  */
void put_text(Text *t, const char *what, const char *name, const char *text);
const char *lex_text(Lex *x);     /* from the length on; without zero bytes   */

/* ---- plan.c -------------------------------------------------------------- */

enum { MAXD = 10 };               /* axes of a tensor                         */

typedef enum BufClass {
    Bparam,                       /* weights the model computes with          */
    Bstate,                       /* model states (router bias ...)           */
    Boptim,                       /* masters and moments                      */
    Bio,                          /* inputs, step block, results              */
    Btemp,                        /* gradients, activations, everything else  */
    Bscratch,                     /* kernels' and collectives' work space     */
    NBUFCLASS
} BufClass;
extern const char *const bufclasses[NBUFCLASS];

/* Buffers live in one arena. Persistent classes never overlap anything; the
 * others are alive in one program from step `born` to step `dies` inclusive
 * (indices into that program's steps; the body repeats).                     */
typedef struct Buf {
    const char *name;
    BufClass cls;
    Dtype dt;
    int64_t offset, bytes;        /* bytes in the arena; offset % 256 == 0    */
    int prog;                     /* program index; -1: alive always          */
    int born, dies;
    const char *file; int line;   /* the Lua line that made it; null: none    */
} Buf;

typedef enum StepKind {
#define STEP(name, nbuf, nint, doc) S##name,
#include "steps.def"
#undef STEP
    NSTEPKIND
} StepKind;

typedef struct StepInfo {
    const char *name;
    int nbuf, nint;               /* exact counts; -1: as the kernel wants    */
    const char *doc;
} StepInfo;
extern const StepInfo stepinfo[NSTEPKIND];

typedef struct Step {
    StepKind kind;
    const char *kernel;           /* Skernel: name in the plan's kernel text  */
    const char *label;            /* scope path and op, for people            */
    int nbuf; int *buf;           /* buffer indices; -1: none                 */
    int nint; Aff *iv;            /* integer arguments                        */
    uint32_t atoms;               /* collectives: the group                   */
    const char *file; int line;
    double flops, bytes, secs;    /* predicted, for one rank                  */
} Step;

typedef struct Phase {
    const char *name;             /* den pre body post                        */
    int first, n;                 /* steps                                    */
    int64_t repeat;               /* 1, or micro-batches a rank runs in turn  */
} Phase;

typedef struct Program {
    const char *name;             /* init step eval forward                   */
    int nphase; Phase *phase;
    int nstep; Step *step;
    int64_t transient, bound;     /* height and lower bound of non-persistent
                                     buffers that are not alive all the time  */
} Program;

/* One axis of a stored or exchanged tensor: this rank holds the pieces
 * [start, start+len) in global indices, one after another.                   */
typedef struct Piece { Aff start; int64_t len; } Piece;
typedef struct PlanDim {
    const char *axis;
    int64_t n;                    /* global                                   */
    int npiece; Piece *piece;
} PlanDim;

/* A tensor the runtime moves in or out: params, states, moments (saved in
 * checkpoints under `name`), inputs, outputs.                                */
typedef struct Tensor {
    const char *name;             /* "layers.0.moe.w1", "optim.m.<path>"      */
    const char *kind;             /* param master m v state input output      */
    Dtype dt;
    int nd; PlanDim dim[MAXD];
    int buf;
    const char *file; int line;
} Tensor;

/* Scalars of the step block (written by the runtime before a step) and of the
 * result block (read after it).                                              */
typedef struct Scalar { const char *name; int buf; Dtype dt; } Scalar;

/* One Hugging Face tensor, or part of one, as it maps to a parameter. Each HF
 * dim is a mixed radix of factors, major first; a factor is an axis of the
 * parameter at an offset inside its total ("(nope|rot)"), or a fixed index
 * (axis null, n 1, at start).                                                */
typedef struct HfFactor { const char *axis; int64_t total, start, n; } HfFactor;
typedef struct HfDim { int nf; HfFactor f[4]; } HfDim;
typedef struct HfMap {
    const char *hf, *param;
    /* Unrolled axes. fixat -1: every index; `hf` then holds "{axis}" where the
       index stands, and the row speaks of that many tensors.                 */
    int nfix; const char *fixaxis[4]; int64_t fixat[4];
    int nd; HfDim dim[MAXD];
} HfMap;

typedef struct Kernel { const char *name, *text; } Kernel;
typedef struct Source { const char *file, *text; } Source;

typedef struct Role {             /* what the ranks of one pipeline stage run */
    int nbuf; Buf *buf;
    int64_t arena;                /* bytes of the arena                       */
    int64_t persist;              /* bytes of it that are alive always        */
    int nprog; Program *prog;
    int ntensor; Tensor *tensor;
    int nin; Scalar *in;          /* step block                               */
    int nout; Scalar *out;        /* result block                             */
} Role;

typedef struct Plan {
    const char *model, *target;   /* model file's name; "host" "cuda" "null"  */
    Mesh *mesh;
    Opts *opts;
    int64_t tokens;               /* of one step, all ranks                   */
    int64_t params, active;       /* of the model                             */
    double flops;                 /* of one step by formula C3, all ranks     */
    int nrole; Role *role;
    const char *prelude;          /* kernel text before all kernels           */
    int nkernel; Kernel *kernel;
    int nhf; HfMap *hf;
    int nsource; Source *source;
} Plan;

void put_hf(Text *t, const HfMap *h);         /* one line of words            */
void lex_hf(Lex *x, HfMap *h);
char *plan_print(Arena *a, const Plan *p, size_t *len); /* with its hash line */
/* Parse and validate (every count, index, offset and size). err() when not a
 * plan, damaged, or inconsistent; `name` is what messages call the file.     */
Plan *plan_parse(Arena *a, const char *text, size_t len, const char *name);
/* Null, or what is wrong with it: written to be right about hostile plans
 * too.                                                                       */
const char *plan_wrong(Arena *a, const Plan *p);
void plan_check(const Plan *p);                           /* die() when wrong */
/* work.c: bytes of work space (the step's last buffer) that a product or a
 * collective over `ranks` needs on the host; iv as in steps.def.             */
int64_t step_work(StepKind k, const int64_t *iv, int nint, int64_t ranks);
int role_of(const Plan *p, int64_t rank);
int role_tensor(const Role *r, const char *name);         /* -1: none         */
int role_prog(const Role *r, const char *name);           /* -1: none         */

/* ---- live.c: which bytes matter when ------------------------------------- */

/* Null, or where the steps contradict the buffers: worked out again from the
 * steps' arguments, knowing nothing of how buffers were placed.              */
const char *lives_wrong(Arena *a, const Role *r);
/* After step `step` nothing reads these bytes before they are written again;
 * with `last` only after the last turn of the step's phase. Step -1: before the
 * first. By step; what is alive at the end stays. A runtime may fill them with
 * 0xff (NaN in every float type): no number may change.                      */
typedef struct Death { int step; int64_t offset, bytes; int last; } Death;
Death *deaths(Arena *a, const Role *r, int prog);             /* vec          */
/* Bytes by class; each program's height, bound and their ratio.              */
void memory_report(FILE *f, const Role *r);

#endif
