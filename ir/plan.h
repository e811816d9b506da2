/* plan.h: the border between compiler and runtime. What both sides share:
 * arenas, strings, errors, dtypes, meshes, options, and the execution plan.
 * The runtime sees this header only. */
#ifndef PLEAT_PLAN_H
#define PLEAT_PLAN_H

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arena.c: memory by lifetime ----------------------------------------- */

typedef struct Arena Arena;

extern Arena *forever; /* interned strings, tables, the plan */

Arena *arena_new(void);
void arena_reset(Arena *a); /* forget all, keep the first block */
void arena_free(Arena *a);
size_t arena_used(const Arena *a);
/* Bytes of an arena that nobody reads again, for a sanitizer. */
void arena_forget(void *p, size_t bytes);
void *alloc(Arena *a, size_t bytes); /* zeroed, 16-byte aligned */

/* Growable arrays: a plain pointer with its length in a hidden header.
 * vec_push(arena, v, x) may move v. A null pointer is an empty vector. */
typedef struct VecHead {
    size_t len, cap;
} VecHead;
void *vec_grow(Arena *a, void *v, size_t elem); /* room for one more */
#define vec_len(v) ((v) ? ((VecHead *)(void *)(v))[-1].len : 0)
#define vec_full(v) \
    (!(v) ||        \
     ((VecHead *)(void *)(v))[-1].len == ((VecHead *)(void *)(v))[-1].cap)
#define vec_push(a, v, x)                                       \
    ((v) = vec_full(v) ? vec_grow((a), (v), sizeof *(v)) : (v), \
     (v)[((VecHead *)(void *)(v))[-1].len++] = (x))
/* The first n are left, of no fewer; in order, by a function for qsort. */
#define vec_cut(v, n) ((v) ? ((VecHead *)(void *)(v))[-1].len = (n) : 0)
#define vec_sort(v, f) \
    ((v) ? qsort((v), vec_len(v), sizeof *(v), (f)) : (void)0)

#define countof(array) ((int)(sizeof(array) / sizeof *(array)))

#include "heap.h"

/* ---- str.c: interned strings are equal when their pointers are ----------- */

const char *intern(const char *s);
const char *internn(const char *s, size_t n);
/* What stands before the next of these characters, and *s behind it; null: no
 * more words. */
const char *next_word(const char **s, const char *between);
char *strf(Arena *a, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
char *vstrf(Arena *a, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));
/* Does w stand in a list with that mark between words? Null: no list. */
int has_word(const char *list, char mark, const char *w);
/* Nearest of n names by edit distance, or null when none is close. */
const char *nearest(const char *s, const char *const *names, size_t n);
/* " (did you mean 'x'?)" of it; "". */
const char *did_you_mean(const char *s, const char *const *all, size_t n);

/* bytes in GiB: three digits, more where other would look the same. */
char *gib_text(Arena *a, int64_t bytes, int64_t other);

/* A growing text, NUL-terminated at every moment. */
typedef struct Text {
    Arena *arena;
    char *s;
    size_t len, cap;
} Text;
void put(Text *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void putn(Text *out, const char *s, size_t n);
int ends_with(const char *s, const char *end);
int word_index(const char *s, const char *const *word, int n); /* -1: none */
int64_t utf8_bad(const char *s, size_t n); /* first bad byte; -1: none */

/* ---- version.c: this program, and the formats it knows ------------------- */

typedef enum Format { FMTplan, FMTrun, FMTcheckpoint } Format;
typedef struct FormatInfo { /* a row of formats.def */
    Format format;
    const char *name;
    int number;
    const char *since, *what;
} FormatInfo;
extern const FormatInfo formattab[];
extern const int nformat;
extern const char program_version[], *program_commit; /* "0.3"; or "" */
int format_now(Format f); /* the one that is written */
const char *format_name(Format f);
/* Null, or "is of run format 3; ...": no format that is read. */
const char *format_wrong(Arena *a, Format f, int64_t number);

#include "file.h"

/* ---- err.c: two kinds of failure ----------------------------------------- */

typedef struct Loc Loc; /* a place in the user's source */
struct Loc {
    const char *file; /* interned; null: unknown */
    int line;         /* from 1 */
    const Loc *up;    /* the caller's place, or null */
};

/* Keep a source text so that messages can show its lines. */
void source_add(const char *file, const char *text, size_t len);
/* The user's fault: `file:line: error: ...`, the source line, then every note
 * given since the last message; exit status 1. */
_Noreturn void err(const Loc *loc, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void note(const Loc *loc, const char *fmt, ...) /* printed with the next err */
    __attribute__((format(printf, 2, 3)));
void warn(const Loc *loc, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The command line is wrong: as err, with exit status 2. */
_Noreturn void err_usage(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));
/* Our fault: says so and aborts. */
_Noreturn void die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
extern int err_status; /* exit status of err: 1; 3 once steps run */
extern void (*err_hook)(const char *msg); /* when set: called instead of exit */
/* A note after errors of a place that name 'word'; text stays. */
void err_hint(const char *word, const char *text);

/* ---- dtype.c ------------------------------------------------------------- */

typedef enum Dtype {
#define DT(name, ...) D##name,
#define SCALE(id, name, rows, cols, dt)
#include "types.def"
    NDTYPE
} Dtype;

typedef enum ScaleLayout {
#define DT(...)
#define SCALE(id, name, rows, cols, dt) SCALE##id,
#include "types.def"
    NSCALE
} ScaleLayout;
typedef struct ScaleInfo {
    int64_t rows, cols; /* of a block; 0: all of that axis */
    Dtype dt;
} ScaleInfo;
extern const char *const scalenames[NSCALE];
extern const ScaleInfo scales[NSCALE];

typedef struct DtypeInfo {
    const char *name;
    int bytes;                   /* in memory */
    char kind;                   /* f float, i integer, b bool, p packed */
    const char *store, *compute; /* C types in memory and in registers */
    const char *load, *save;     /* kernels' functions between; "": casts */
    const char *round;           /* in registers, of a; "": all are held */
    const char *st;              /* safetensors name */
} DtypeInfo;

extern const DtypeInfo dtypes[NDTYPE];
int dtype_named(const char *name); /* -1: no such dtype */
float bf16_to_f32(uint16_t x);
uint16_t f32_to_bf16(float x);  /* to nearest even, NaN kept */
int16_t f32_remainder(float x); /* beyond that (narrow.pre) */
float f32_joined(uint16_t rounded, int16_t remainder);
/* Floats of one byte (narrow.pre), by their codes; others: no such. */
int is_narrow(Dtype dt);
float narrow_value(Dtype dt, uint8_t code);
uint8_t narrow_nearest(Dtype dt, float x);
float dtype_rounded(Dtype dt, float x); /* to what a float dtype holds */

/* ---- mesh.c: ranks, both grids, the atoms that both are made of ---------- */

enum { MAXATOM = 16 };

typedef enum MeshAxis { /* first the dense grid, then the expert grid */
                        Mtp,
                        Mcp,
                        Mdp,
                        Mpp,
                        Metp,
                        Mep,
                        Medp,
                        NMESH
} MeshAxis;

/* rank's coordinate on an atom: (rank / stride) % size; atom 0 is fastest. */
typedef struct Atom {
    int64_t size, stride;
} Atom;

typedef struct Mesh {
    int64_t world;
    int64_t size[NMESH];
    const char *order; /* "tp-cp-dp-pp", first fastest */
    int natom;
    Atom atom[MAXATOM];
    uint32_t mask[NMESH]; /* the atoms each mesh axis is made of */
} Mesh;

extern const char *const meshnames[NMESH]; /* "tp" ... "edp" */
/* Cut the radices of both grids to their common refinement. sizes not given
 * are 0 and get their defaults; err() when something does not divide. */
Mesh *mesh_new(Arena *a, int64_t world, const int64_t size[NMESH],
               const char *order, const Loc *loc);
/* Would mesh_new make it, of a right order? */
int mesh_legal(int64_t world, const int64_t size[NMESH], const char *order);
/* err() where fold.order is none. */
void order_check(const char *s, const Loc *loc);
int64_t mesh_coord(const Mesh *m, int64_t rank, int atom);
int64_t mesh_extent(const Mesh *m, uint32_t atoms); /* product of sizes */
/* Position of rank in its group over atoms, later atoms major; the group's
 * ranks in that order go to ranks[mesh_extent]. */
int64_t mesh_pos(const Mesh *m, uint32_t atoms, int64_t rank);
void mesh_group(const Mesh *m, uint32_t atoms, int64_t rank, int64_t *ranks);
/* grid.c, for people: ranks by their coordinates in both grids, the groups of
 * each axis (put_groups: those alone), the atoms. */
void put_grids(Text *out, const Mesh *m);
void put_groups(Text *out, const Mesh *m);
void put_ranks(Text *out, const int64_t *ranks, int64_t n); /* " {0-3}" */
/* A set of atoms for people: "tp", "cp*dp", "ep"; "part of dp". */
void mesh_words(const Mesh *m, uint32_t atoms, char *s, size_t size);

/* An integer that may depend on the rank: c + sum of k[i] * coordinate i. */
typedef struct RankAffine {
    int64_t c, k[MAXATOM];
    int64_t place; /* what it is to a kernel: see rank_offsets.c */
} RankAffine;
RankAffine aff(int64_t c);
int64_t aff_at(const Mesh *m, const RankAffine *affine, int64_t rank);
/* Part of an axis: [start, start+len) in global indices. */
typedef struct Piece {
    RankAffine start;
    int64_t len;
} Piece;
/* What each rank holds of an axis that `atoms` cut into equal parts of len: one
 * piece. The slower an atom, the larger its steps. Where C ranks over the atoms
 * `zigzag` hold two pieces, the axis is in 2 C runs, and rank p of them has
 * runs p and 2 C - 1 - p: under a causal mask, as much to do as any other.
 * Other atoms cut each of the two again:
 *
 *     C = 2, T = 2    p=0 t=0   [0 ..]  [6 ..]      in eighths
 *                     p=0 t=1   [1 ..]  [7 ..]
 *                     p=1 t=0   [2 ..]  [4 ..]
 *                     p=1 t=1   [3 ..]  [5 ..]
 *
 * Returns how many pieces. */
enum { MAXPIECE = 2 };
int axis_pieces(const Mesh *m, int64_t len, uint32_t atoms, uint32_t zigzag,
                Piece out[MAXPIECE]);
/* What each of R ranks over `atoms` holds of n elements that R does not divide,
 * n > R: rank r has n / R from n / R * r on, then element n - n % R + r, which
 * is padding where it is not below n.
 *
 *     n = 8, R = 3    r=0  [0 1] [6]    r=1  [2 3] [7]    r=2  [4 5] [8]
 */
void uneven_pieces(const Mesh *m, int64_t n, uint32_t atoms, Piece out[2]);
int64_t uneven_place(int64_t n, int64_t parts, int64_t i); /* of element i */

/* ---- opts.c: keys of fold{}, train{}, data{}, precision{}, route{} ------- */

/* A row of keys.def; keytab ends with a row of nulls. */
typedef struct KeyInfo {
    const char *table, *name, *kind, *dflt, *doc;
} KeyInfo;
extern const KeyInfo keytab[];
const char *key_name(const KeyInfo *info); /* "train.lr" */
/* Which of the key's words s is, counted as in its enum (keys.h); -1: none. */
int key_word(const char *key, const char *s);
const char *key_word_text(const char *key, int i);

typedef struct Opts Opts; /* key -> text; defaults come from keys.def */
Opts *opts_new(Arena *a);
/* Set by full name ("fold.ep"). Unknown key or value of the wrong kind: err()
 * with a suggestion. `axes.<name>` is accepted for any name. */
void opts_set(Opts *opts, const char *key, const char *value, const Loc *loc);
const char *opts_str(const Opts *opts, const char *key); /* null: not given */
int64_t opts_int(const Opts *opts, const char *key);
int64_t opts_int_given(const Opts *opts, const char *key); /* 0: default */
double opts_num(const Opts *opts, const char *key);
int64_t opts_bytes(const Opts *opts, const char *key);
/* The key's words in its value, a bit each; 0: none, as of a number. */
unsigned opts_words(const Opts *opts, const char *key);
int opts_given(const Opts *opts, const char *key);      /* set, not default */
int opts_asks(const Opts *opts, const char *key);       /* for another value */
const Loc *opts_loc(const Opts *opts, const char *key); /* where it was set */
/* The i-th of "wiki=a.bin code=b.bin"; 0: there is none. */
int opts_named(const char *s, int i, const char **name, const char **path);
int opts_blend(const char *s); /* is it "0.7 a 0.3 b", or one path? */
void opts_pair(const Opts *opts, const char *key, double v[2]); /* "0.9,0.95" */
/* "gnorm 10": 1 and the number for such a word; 0 and infinity. */
int opts_limit(const Opts *opts, const char *key, const char *what, double *v);
/* The i-th of a key's patterns ("*.bias norm.*"); null: past the end. */
const char *opts_pattern(const Opts *opts, const char *key, int i);
int pattern_match(const char *p, const char *s); /* * is any text */
int opts_match(const Opts *opts, const char *key,
               const char *s); /* one of them */
/* The key's value with f of each path in it; other values as they are. */
typedef const char *PathFn(Arena *a, const char *path, void *ctx);
const char *opts_paths(Arena *a, const char *key, const char *value, PathFn *fn,
                       void *ctx);
/* In keys.def's order, then axes: the i-th key that was set; 0: none. */
int opts_each(const Opts *opts, int i, const char **key, const char **value);
void opts_copy(Opts *to, const Opts *from); /* all that were set */
/* The key that is meant by a name of other programs ("--learning-rate"), or by
 * one without its table; null: none. */
const char *key_meant(const char *typed);

/* ---- kinds.c: what the kinds of keys.def allow -------------------------- */

int is_kind(const char *kind, const char *word); /* "num 0" is "num" */
/* Which of the words after the first s is; -1: none. */
int kind_word(const char *kind, const char *s);
unsigned kind_words(const char *kind, const char *s); /* "A,B": a bit each */
/* The value as it is kept; err() names the key and what is allowed. */
const char *kind_check(Arena *a, const char *key, const char *kind,
                       const char *s, const Loc *loc);
const char *kind_paths(Arena *a, const char *key, const char *kind,
                       const char *s, const Loc *loc, PathFn *fn, void *ctx);
/* When all keys are set: what keys ask of others; files a compiler reads. */
void opts_check(const Opts *opts);
void opts_files(const Opts *opts);

#include "lex.h"
#include "machine.h"

/* ---- plan.c -------------------------------------------------------------- */

enum { MAXD = 10 }; /* axes of a tensor */
#define HUGEBYTES ((int64_t)1 << 56)

typedef enum BufClass {
    Bparam,   /* weights the model computes with */
    Bstate,   /* model states (router bias ...) */
    Boptim,   /* masters and moments */
    Bio,      /* inputs, step block, results */
    Btemp,    /* gradients, activations, everything else */
    Bscratch, /* kernels' and collectives' work space */
    Bstash,   /* stacks of rows */
    NBUFCLASS
} BufClass;
extern const char *const bufclasses[NBUFCLASS];

/* Buffers live in one arena of the device, and what is offloaded in one of the
 * host's memory, whose addresses begin at HOSTSPACE. Persistent classes never
 * overlap anything; the others are alive in one program from instruction `born`
 * to instruction `dies` inclusive (indices into that program's instructions;
 * the body repeats). */
#define HOSTSPACE ((int64_t)1 << 52)
typedef struct Buf {
    const char *name;
    BufClass cls;
    Dtype dt;
    int64_t offset, bytes; /* address in the arenas; offset % 256 == 0 */
    int prog;              /* program index; -1: alive always */
    int frame;             /* 1 + index of that program's frame: offset
                                     is inside each slot of it; 0: one place */
    int stack; /* 1 + index of the buffer in which its rows lie, at a row
                             that a word of the device says; 0: offset says */
    int born, dies;
    const char *file;
    int line; /* the Lua line that made it; null: none */
} Buf;

/* How a value lies on a rank: row-major, the last axis fastest. Axes of one
 * name in the shapes of an instruction are one axis. What is no product of its
 * axes (a row map) names those that cut it, and says its elements. */
typedef struct ValueDim {
    const char *axis;
    int64_t n;    /* on a rank */
    uint32_t cut; /* atoms over which ranks hold parts of it */
    int zigzag;   /* two pieces on each: see axis_pieces */
} ValueDim;
typedef struct ValueShape {
    Dtype dt;
    ScaleLayout scale;
    int map;       /* is it a row map */
    int64_t elems; /* on a rank; the product of its axes, but of a map */
    int nd;
    ValueDim dim[MAXD];
} ValueShape;
/* "flat.a1.a2": an axis that buckets have, cut over the atoms. */
const char *bucket_axis(Arena *a, const char *what, uint32_t atoms);
uint32_t shape_cut(const ValueShape *shape);  /* over all axes */
int64_t shape_elems(const ValueShape *shape); /* the product of its axes */
int64_t shape_bytes(const ValueShape *shape);
/* How many scales lie beside it; -1: a block would not be whole. */
int64_t shape_scales(const ValueShape *shape);
int shapes_equal(const ValueShape *x, const ValueShape *y);
int shape_dim(const ValueShape *shape, const char *axis); /* -1: none */

#include "instruction.h"

enum { MAXMICROS = 1 << 20 }; /* of a step: lists of its rows stay small */

typedef enum Region {
    REGden,  /* once a micro-batch, before pre: loss dens */
    REGpre,  /* once a step */
    REGbody, /* once a micro-batch */
    REGpost, /* once a step, after the bodies */
    NREGION
} Region;
extern const char *const regions[NREGION];

typedef enum WorkKind {
    WF, /* forward of a chunk */
    WB, /* all of its backward */
    WI, /* what earlier chunks wait for (dgrad) */
    WW, /* the rest of the backward (wgrad) */
    NJOB
} WorkKind;
extern const char jobnames[]; /* "FBIW" */

typedef enum RowKind { ROWwork, ROWsend, ROWrecv, ROWwait } RowKind;

/* A call of a pipeline stage: one work on one chunk, or one transfer: "F0" "B0"
 * "I0" "W0", "send.F0.F1" "recv.F0.F1" "wait.F0.F1". */
typedef struct Call {
    RowKind k;
    WorkKind w;
    int chunk;
    WorkKind to; /* of a transfer: who reads what w of chunk makes, */
    int other;   /* and in which chunk */
} Call;
const char *call_name(Arena *a, const Call *call);
int call_named(Arena *a, const char *s, Call *call); /* 0: no call */

/* Phases run in order. Calls follow each other, and in their place the
 * program's rows run. */
typedef struct Phase {
    const char *name; /* of its region, of its call; "start" */
    int first, n;     /* instructions */
    int64_t repeat;   /* 1, or how often a rank runs it in turn; 0: a call */
    int pair;         /* a run takes two micro-batches, not one */
    Region reg;       /* start: pre, before den */
    Call call;
} Phase;
/* Of those that a rank runs in a step, the one that a run of phase has first,
 * or second. */
int64_t phase_micro(const Phase *phase, int64_t run, int second);
Phase phase_of_region(Region r, int start);
Phase phase_of_call(Arena *a, const Call *call);
int phase_named(Arena *a, const char *name, Phase *phase); /* 0: no phase */

/* One row of a stage's table: that phase for the micro-th micro-batch that its
 * ranks run. pair: it may overlap with the next row (F with B). */
typedef struct ScheduleSlot {
    int phase, micro, pair;
} ScheduleSlot;

/* What one chunk's micro-batch keeps from one row to a later one: buffers that
 * live from the first to the last row of that micro-batch whose phase names
 * one. Micro-batch m has them at slot[of[m]]; slots in use together never
 * overlap. Addresses in the arenas, multiples of 256; all slots in one. */
typedef struct SlotGroup {
    const char *name; /* "F0-B0": first and last call */
    int64_t bytes;
    int nslot;
    int64_t *slot;
    int nof;
    int *of; /* by micro-batch: plan_micros of them */
} SlotGroup;

/* What a buffer must hold at a program's end: outputs, what lasts of it. */
typedef struct FinalValue {
    int buf, value;
} FinalValue;

/* What a program is for (programs.c). */
typedef enum ProgramKind {
#define PROGRAM(id, name, may, must) PG##id,
#include "programs.def"
    NPROGRAM
} ProgramKind;
extern const char *const programnames[];    /* their names */
ProgramKind program_kind(const char *name); /* NPROGRAM: none */
int program_trains(ProgramKind k);          /* a step, whichever */
int program_budgeted(ProgramKind k);        /* one, not its fallback */

typedef struct Program {
    ProgramKind kind;
    int nphase;
    Phase *phase;
    int nslot;
    ScheduleSlot *slot; /* pp > 1: the stage's table */
    int nframe;
    SlotGroup *frame;
    int ninstr;
    Instr *instr;
    int nend;
    FinalValue *end;          /* plans with flow */
    int64_t transient, bound; /* height and lower bound of non-persistent
                                     buffers that are not alive all the time */
    double rebuilt;           /* seconds of a run for what is made again */
    KeptBytes kept;           /* only while a plan without stages is compiled */
} Program;
int program_writes(const Program *prog, int buf); /* does it end with it? */
int phase_names(const Program *prog, const Phase *phase,
                int buf); /* any instr */
/* All rows in the order in which they run; of phases that repeat, one for each
 * micro-batch. A vec. */
ScheduleSlot *program_rows(Arena *a, const Program *prog);
/* Does an instruction run in this row of its phase? */
int runs_in(const Program *prog, const Instr *instr, const ScheduleSlot *row);
int program_streams(const Program *prog); /* are there others than compute? */
/* By instruction: the first of compute behind it, else ninstr; all writers. */
int *instrs_behind(Arena *a, const Program *prog);
int *writers_behind(Arena *a, const Program *prog, const char *writes);

/* One axis of a stored or exchanged tensor, of which a rank holds pieces. */
/* What an axis is for (frontend/roles.c): which mesh axes may cut it. */
typedef enum AxisRole {
    ROLEnone,
    ROLEmicro, /* micro-batches that run at once: implicit in all data */
    ROLErow,   /* token rows in order of their experts; ragged */
    ROLEbatch,
    ROLEseq,
    ROLEkey,
    ROLEheads,
    ROLEgroup, /* heads that only queries have */
    ROLEffn,
    ROLEvocab,
    ROLEchoice, /* experts */
    ROLEother,  /* no mesh axis takes it */
    NROLE
} AxisRole;
extern const char *const axisroles[NROLE];
int role_named(const char *s); /* -1: none */

typedef struct PlanDim {
    const char *axis;
    AxisRole role;
    int64_t n; /* global */
    int npiece;
    Piece *piece;
} PlanDim;

typedef enum TensorKind { /* rows of tensors.def */
#define TENSOR(id, cls, prefix) TK##id,
#include "tensors.def"
                          NTENSORKIND
} TensorKind;
typedef struct TensorInfo {
    const char *name;
    BufClass cls;       /* of its buffer; NBUFCLASS: any */
    const char *prefix; /* of its name */
} TensorInfo;
extern const TensorInfo tensor_kinds[NTENSORKIND];
#define HISTORYPREFIX "fp8." /* of names of histories */
enum {
    PARAMETERS = 1 << TKparam | 1 << TKnumbers, /* sets, for tensor_is */
    MODELTENSORS = PARAMETERS | 1 << TKstate | 1 << TKhistory,
    COPIEDTENSORS = 1 << TKcopy | 1 << TKcopied,
    MASTERS = 1 << TKmaster | 1 << TKremainder,
    MOMENTS = 1 << TKm | 1 << TKv,
    COMPANIONS = 1 << TKscales | MASTERS | MOMENTS /* kept beside one */
};

/* A tensor the runtime moves in or out: params, states, moments (saved in
 * checkpoints under `name`), inputs, outputs. */
typedef struct Tensor {
    const char *name; /* "layers.0.moe.w1", "optim.m.<path>" */
    TensorKind kind;
    Dtype dt;
    int nd;
    PlanDim dim[MAXD];
    int buf;
    int second; /* input: of a pair's second micro-batch */
    int of;     /* COMPANIONS: of this parameter, a tensor of the role */
    /* A run of a bucket (ZeRO). Of the local part that dim[] describes, row
     * major, this rank has the elements that fall into [pos*run, (pos+1)*run)
     * when its first is element `at` of the bucket; they lie in buf from
     * element max(0, at - pos*run) on. pos: mesh_pos over `shard`. run 0: the
     * rank has all of the local part, from element `at` of buf on. */
    int64_t at, run;
    uint32_t shard;
    const char *file;
    int line;
} Tensor;

/* scalars.c: the step block, written by the runtime before a step */
typedef enum StepValue {
    STEPlr,
    STEPbc1, /* 1 - beta^(step + 1) of Adam's moments */
    STEPbc2,
    STEPstep,
    STEPmicro,     /* before each micro-batch: its number in the step */
    STEPhold,      /* nothing is to be written */
    STEPskip_loss, /* limits of train.skip_above */
    STEPskip_gnorm,
    NSTEPVALUE
} StepValue;
extern const char *const stepvalues[NSTEPVALUE];

/* ... and the result block, read after it */
typedef enum ResultKind {
    RESULTloss,
    RESULTgrad_norm,
    RESULTok,       /* 0: the step changed nothing */
    RESULToverflow, /* rows did not fit */
    RESULTterm,     /* of the loss, which the model names: "loss.lm" */
    RESULTmetric,   /* "metric.balance" */
    RESULTreach,    /* "reach.<history>": a tensor's largest magnitude over what
                       its scale allows (passes/training/delayed.c) */
    NRESULT
} ResultKind;

typedef struct Scalar {
    const char *name;
    int buf;
    Dtype dt;
    ValueDim dim;      /* of a vector; n 0: it is a number */
    StepValue value;   /* of the step block */
    ResultKind result; /* of the result block */
    const char *own;   /* ... "lm" of "loss.lm" */
} Scalar;
int64_t scalar_elems(const Scalar *scalar);
int result_named(Scalar *scalar); /* from its name; 0: there is none such */

/* One Hugging Face tensor, or part of one, as it maps to a parameter. Each dim
 * is a mixed radix of factors, major first: an axis of the parameter at an
 * offset inside its total, or a fixed index (axis null, n 1, at start). */
typedef struct HfFactor {
    const char *axis;
    int64_t total, start, n;
} HfFactor;
typedef struct HfDim {
    int nf;
    HfFactor f[4];
} HfDim;
typedef struct HfMap {
    const char *hf, *param;
    /* Unrolled axes. fixat -1: every index, a tensor each, with it in `hf`. */
    int nfix;
    const char *fixaxis[4];
    int64_t fixat[4];
    int nd;
    HfDim dim[MAXD];
} HfMap;

typedef struct Kernel {
    const char *name, *text;
} Kernel;
typedef struct Source {
    const char *file, *text;
} Source;

typedef struct Role { /* what the ranks of one pipeline stage run;
                                     role i: those with position i over pp */
    int nbuf;
    Buf *buf;
    int64_t arena;   /* bytes of the arena */
    int64_t persist; /* bytes of it that are alive always */
    int64_t host;    /* bytes of the host's arena */
    int nprog;
    Program *prog;
    int ntensor;
    Tensor *tensor;
    int nin;
    Scalar *in; /* step block */
    int nout;
    Scalar *out; /* result block */
} Role;

typedef struct Plan {
    const char *model, *target; /* model file's name; "host" "cuda" "null" */
    Mesh *mesh;
    Opts *opts;
    int64_t tokens;         /* of one step, all ranks */
    int64_t params, active; /* of the model */
    double flops;           /* of one step by formula C3, all ranks */
    int nshape;
    ValueShape *shape; /* of the values of all programs */
    int nrole;
    Role *role;
    int nsig;
    KernelSignature *sig; /* of the kernels' calls */
    const char *prelude;  /* kernel text before all kernels */
    const char *host; /* ... of the host's, where others are no such; null */
    int nkernel;
    Kernel *kernel;
    int nhf;
    HfMap *hf;
    int nsource;
    Source *source;
} Plan;

/* signature.c: a line behind "sig"; words of a kernel's instruction from it. */
void signature_text(Codec *codec, KernelSignature *signature);
void set_signature_hash(KernelSignature *signature);
void bind_signature(Arena *a, const KernelSignature *signature, Instr *instr);
char *kernels_of_host(Arena *a, const Plan *p); /* by kernel */
void put_hf(Text *out, const HfMap *map);       /* one line of words */
void lex_hf(Lex *lex, HfMap *map);
void program_text(Codec *codec, Program *prog);         /* behind "program" */
char *plan_print(Arena *a, const Plan *p, size_t *len); /* with its hash line */
/* Parse and validate (every count, index, offset and size). err() when not a
 * plan, damaged, or inconsistent; `name` is what messages call the file. */
Plan *plan_parse(Arena *a, const char *text, size_t len, const char *name);
/* A plan of another format that plan_parse meets, when set: a plan of this one,
 * made from its rest. Else err() names both. */
extern Plan *(*plan_anew)(const Plan *rest, int64_t format, const char *name);
/* Length without the hash line; err() when that is not there or not right. */
size_t plan_verify(const char *text, size_t len, const Loc *loc);
/* planold.c: of any format. 0: not a plan. Model, target, keys and sources. */
int64_t plan_format(const char *text, size_t len);
Plan *plan_rest(Arena *a, const char *text, size_t len, const char *name);
/* Null, or what is wrong with it: right about hostile plans too. */
const char *plan_wrong(Arena *a, const Plan *p);
void plan_check(const Plan *p); /* die() when wrong */

/* ---- plancheck.c instr_check.c tablecheck.c tensorcheck.c spans.c: what they
 * share -------------------------------------------------------------------- */

enum {
    BUFALIGN = 256,  /* bytes: of buffers and slots of frames */
    PACKALIGN = 128, /* elements: of members of a bucket */
    PACKRUN = 64     /* elements: of a rank's run of a bucket */
};

/* What is proved, by name. law() is asked where a law is broken, and says
 * whether it holds all the same: a test may leave one out, to see that a plan
 * is refused by it alone. */
typedef enum Law {
#define LAW(id, text) L##id,
#include "laws.def"
#undef LAW
    NLAW
} Law;
extern int law_off;    /* -1: none */
extern int law_broken; /* the last that was asked for; -1: none */
int law(Law x);

typedef struct PlanCheck {
    Arena *arena;
    const Plan *p;
    const Role *r;
    int role;
    const char **kernels; /* names, sorted by pointer */
    ValueShape **lasting; /* by buffer: how what lives there always
                                     lies; null: it does not */
} PlanCheck;

/* Sums and products saturate. */
int64_t sat_mul(int64_t a, int64_t b);
int64_t sat_add(int64_t a, int64_t b);
int aff_stray(const Mesh *m,
              const RankAffine *affine); /* atoms the mesh lacks? */
/* Why, said of a program or of an instruction in it. */
const char *program_told(const PlanCheck *check, ProgramKind k,
                         const char *why);
const char *instr_told(const PlanCheck *check, const Program *program,
                       int instr, const char *why);
const char *place_text(Arena *a, const char *file,
                       int line); /* "" or " (..)" */
const char *instr_wrong(const PlanCheck *check, int prog, int instr);
const char *table_wrong(const PlanCheck *check, int prog);
const char *tensors_wrong(const PlanCheck *check);
const char *tensors_loose(const PlanCheck *check); /* plans with flow */
const char *shared_wrong(Arena *a, const Plan *p);
const char *purposes_wrong(const PlanCheck *check);
const char *hf_wrong(Arena *a, const Plan *p);
/* The rows of each tensor fill it and share nothing; *at: the row that is
 * wrong. */
const char *hf_tensors_wrong(Arena *a, const HfMap *map, int n,
                             const HfMap **at);

typedef struct Span { /* bytes alive at times from..to, both */
    int id;           /*   included */
    int64_t offset, bytes;
    int from, to;
    int lo, hi; /* spans_meet's own */
} Span;
/* value_check.c value_types.c extent_check.c stage_match.c: of plans whose
 * instructions say what they read and make. */
int has_flow(const Role *role);
/* By number: who makes it (-1: nobody) and of what type, when all is well. */
typedef struct ValueOrigin {
    int instr;
    const ValueUse *f;
} ValueOrigin;
const char *values_wrong(const PlanCheck *check, int prog, ValueOrigin **made);
const char *shapes_wrong(const PlanCheck *check);
const char *signatures_wrong(const PlanCheck *check);
int64_t operand_bytes(const KernelOperand *operand);
/* The operand, a row map, that says at which row of a stack operand i begins;
 * -1: it begins at its place. */
int rows_from(const Plan *p, const Instr *instr, int i);
void tensor_shape(const Tensor *tensor,
                  ValueShape *shape);      /* not of a bucket */
uint32_t plan_dim_cut(const PlanDim *dim); /* atoms that cut it */
int is_zigzag(const PlanDim *dim);         /* its second pieces go backwards */
/* By buffer: how what lives there always lies, from its tensors. */
ValueShape **lasting_shapes(const PlanCheck *check);
/* May what lies like x be read like y, without a byte moved? */
int is_view_of(const ValueShape *y, const ValueShape *x);
/* Shapes by slot, null: it reads, or makes, nothing there. */
const char *places_wrong(const PlanCheck *check, const Instr *instr,
                         const ValueShape *const *in,
                         const ValueShape *const *out);
/* Say of a kernel's integers which places they are. */
void mark_places(Arena *a, const Mesh *m, Instr *instr,
                 const ValueShape *const *in, const ValueShape *const *out);
const char *operands_wrong(const PlanCheck *check, const Instr *instr,
                           const ValueShape *const *in,
                           const ValueShape *const *out);
const char *flow_wrong(const PlanCheck *check, int prog);
const char *streams_wrong(const PlanCheck *check, int prog);
const char *sizes_wrong(const PlanCheck *check);
const char *meets_wrong(Arena *a, const Plan *p); /* stages with each other */
/* Do any two overlap while both are alive? Then their ids. Sorts span. */
int spans_meet(Span *span, int n, int *one, int *two);
/* Append the bytes of prog's frames as spans that do not overlap, id -1. */
void frame_runs(const PlanCheck *check, int prog, Span **v);

/* workspace.c: bytes of work space (operand `work`) that a product or a
 * collective over `ranks` needs on the host. An all-reduce of up to GATHERSUM
 * bytes of all ranks gathers them all on each rank. */
enum { GATHERSUM = 1 << 16 };
int64_t instr_work(const Instr *instr, int64_t ranks);

/* row_map.c: where words of the map of an exchange of rows begin, and how many
 * there are. pair[slot]: token * ranks + rank of what stands in that row of all
 * blocks, -1: nothing, nor behind it in its block; row[token * ranks + rank]:
 * its row among all blocks', -1: none. */
typedef struct RowsMap {
    int64_t pair, row, n;
} RowsMap;
RowsMap rows_map(const RowsArgs *args, int64_t ranks);
int moves_rows(InstrKind k);    /* is it such an exchange? */
int plan_shares(const Plan *p); /* do rows go through memory of several? */
int role_of(const Plan *p, int64_t rank);
int in_host(const Role *role, const Buf *b); /* in the host's arena? */
int frame_in_host(const SlotGroup *group);
/* Of such instructions the sets of atoms, in the order of the plan: a vec. */
uint32_t *plan_groups(Arena *a, const Plan *p, int is(InstrKind));
int role_tensor(const Role *role, const char *name); /* -1: none */
const Tensor *tensor_companion(const Role *role, const Tensor *of,
                               TensorKind kind);     /* null: none */
int tensor_is(const Tensor *tensor, unsigned kinds); /* of one of a set */
int is_copy(const Tensor *tensor); /* an earlier stage owns it */
/* The first axis of that role; null: none. */
const PlanDim *tensor_axis(const Tensor *tensor, AxisRole k);
/* Is the input (name, dt) rather that of a step's tokens than (was, of)? It is
 * named so, else it is the first of integers, else the first. */
int names_tokens(const char *was, Dtype of, const char *name, Dtype dt);
int64_t plan_tokens(const Plan *p); /* that run at once; 0: no inputs */
ProgramKind program_of_step(const Plan *p, int64_t step);     /* step: from 1 */
int role_prog(const Role *role, ProgramKind k);               /* -1: none */
const Program *role_program(const Role *role, ProgramKind k); /* or null */
int role_value(const Role *role, StepValue v);   /* of `in`; -1: none */
int role_result(const Role *role, ResultKind k); /* of `out`; -1: none */

#include "schedule.h"

/* ---- time_model.c: how long a plan takes, predicted ---------------------- */

typedef struct Planned {
    double makespan;   /* seconds of one run of the program */
    double *busy;      /* by stage: of them not spent waiting */
    const char *stuck; /* null, or which instructions wait for each other */
} Planned;
Planned plan_time(Arena *a, const Plan *p, ProgramKind k);
double plan_secs(const Plan *p, ProgramKind k); /* the makespan */
/* When each instruction of each row runs, in seconds of the program; in time
 * order on each stream of a stage. Receives and waits are no work: they show as
 * the gap before what comes next. */
typedef struct InstrSpan {
    int stage;
    const ScheduleSlot *row; /* of program_rows */
    const Instr *instr;
    double from, end;
} InstrSpan;
typedef void PlanWatch(void *context, const InstrSpan *s);
void plan_watch(const Plan *p, ProgramKind k, PlanWatch *watch, void *context);
/* If transfers and collectives took no time. */
double plan_bare(const Plan *p, ProgramKind k);
int64_t plan_micros(const Plan *p, ProgramKind k);  /* that a rank runs */
int64_t phase_runs(const Program *prog, int phase); /* how often it runs*/
/* ... an instruction of it. */
int64_t instr_runs(const Program *prog, int phase, const Instr *instr);
/* Bytes that a rank sends to experts and back in a run: as many rows as routes
 * are expected to choose, else the plan's blocks and gathers. */
double expert_bytes(const Program *prog, int routed);

#include "live.h"

#endif
