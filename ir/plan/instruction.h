/* instruction.h: instructions of plans: kind, operands and fields, by the rows
 * of instructions.def. plan.h includes it. */
#ifndef PLEAT_INSTRUCTION_H
#define PLEAT_INSTRUCTION_H

/* ---- fields and operands: structs ---------------------------------------- */

/* Rlast: only for accumulators: the last micro-batch's value. */
typedef enum Reduce { Radd, Rmax, Rmin, Rlast, NREDUCE } Reduce;
extern const char *const reduces[NREDUCE];
typedef struct BatchLoop {
    int64_t n, a, b, c; /* extent of a loop, its stride in each operand */
} BatchLoop;
typedef struct BatchLoops {
    int n;
    BatchLoop *at;
} BatchLoops;
typedef struct Gap {
    int64_t from, bytes;
} Gap;
typedef struct GapList {
    int n;
    Gap *at;
} GapList;
enum { MAXBATCH = 3 };

typedef struct NoArgs {
    char none;
} NoArgs;
#define DTYPE(x)         Dtype x;
#define REDUCE(x)        Reduce x;
#define FLAG(x)          int x;
#define SIZE(x)          int64_t x;
#define INT(x, min, max) int64_t x;
#define HASH(x)          uint64_t x;
#define BATCH(x)         BatchLoops x;
#define GAPS(x)          GapList x;
#define ARGS(type, member, fields) \
    typedef struct type {          \
        fields                     \
    } type;
#define PART ARGS
#define INSTR(name, cls, type, member, operands, doc)
#include "instructions.def"

/* OPERAND(gemm, c): index of an operand. */
#define OP(access, x, dt) int x;
#define RAW(access, x)    int x;
#define ARGS(type, member, fields)
#define INSTR(name, cls, type, member, operands, doc) \
    struct name##_operands {                          \
        operands                                      \
    };
#include "instructions.def"
#define OPERAND(kind, x) \
    ((int)(offsetof(struct kind##_operands, x) / sizeof(int)))

/* ---- kinds --------------------------------------------------------------- */

typedef enum InstrKind {
#define ARGS(type, member, fields)
#define INSTR(name, cls, type, member, operands, doc) I##name,
#include "instructions.def"
    NINSTR
} InstrKind;

typedef enum InstrClass {
    CLASScompute,
    CLASSmemory,
    CLASSproduct,
    CLASScollective,
    CLASStransfer
} InstrClass;

typedef enum KernelWork { /* more of a class, of kernels and products */
                          WORKother,
                          WORKattention,
                          WORKgrouped,
                          NKERNELWORK
} KernelWork;

typedef enum FieldType {
    FIELDdtype,
    FIELDreduce,
    FIELDflag,
    FIELDint,
    FIELDhash,
    FIELDlist /* of tuples of integers, none negative */
} FieldType;
typedef struct Field {
    const char *name; /* null: the end */
    FieldType type;
    size_t at;        /* in the struct of arguments */
    int64_t min, max; /* list: how many integers a tuple, how many tuples */
} Field;

typedef enum Access {
    USEread,
    USEwrite,
    USEadd,
    USEwork,
    USEeach,
    USEown
} Access;
typedef struct OperandInfo {
    const char *name;
    Access use; /* each, own: any number of them, at the end */
    int typed;  /* the field at `dtype` has its dtype */
    size_t dtype;
} OperandInfo;

typedef struct InstrInfo {
    const char *name, *doc;
    InstrClass cls;
    const Field *(*fields)(void);
    int nop;
    const OperandInfo *op;
} InstrInfo;
const InstrInfo *instr_info(InstrKind k);
int instr_many(const InstrInfo *info); /* any number of its last operand? */

/* ---- an instruction ------------------------------------------------------ */

/* Use of a buffer by an instruction. Values of a program have numbers from 1.
 * read: the value that it reads, ~b: the contents of buffer b at the start of
 * the program (parameters, inputs ..), 0: none. as: shape in which it reads the
 * value; -1: that of its definition. make: the value that it writes, 0: none;
 * its shape, and part[op]: atoms over which reduction op is still pending. Over
 * atoms that are neither in part nor shard the shape, the ranks of a stage hold
 * equal values. */
typedef struct ValueUse {
    int read, make;
    int as, shape; /* indices in the plan's shapes */
    uint32_t part[3];
} ValueUse;

/* An argument of a kernel beside buffers: an integer, which may depend on the
 * rank; 0 or 1, whether it accumulates; a 64-bit key of random numbers; the
 * bits of a double. */
typedef enum WordType { WORDint, WORDadd, WORDkey, WORDreal } WordType;
typedef struct Word {
    WordType type;
    RankAffine at; /* integer, key */
    double real;
} Word;
Word word_int(int64_t x);
/* Returns the word of a rank; m null: that of the first rank. */
int64_t word_value(const Mesh *m, const Word *word, int64_t rank);

/* A kernel's view of a buffer: row-major elements, the last extent fastest. A
 * row map has one extent; a workspace is bytes. Ragged rows start at the row of
 * a stack stored after a map's offsets; the first extent is their capacity. */
typedef struct KernelOperand {
    Dtype dt; /* Dnone: no buffer */
    int nd;
    const int64_t *n;
    int base; /* 1 + the operand with that map; 0: no stack */
} KernelOperand;

/* Declaration of a call of a kernel: uses of its operands, and its words. A
 * text for several sizes has a signature for each. */
typedef struct KernelSignature {
    const char *kernel;
    uint64_t expr; /* hash of its expression in its operands, without names of
                        axes and values: passes/emit/signatures.c */
    Launch launch;
    const char *use; /* [operand]: r, w, b (both), - (no buffer) */
    KernelOperand *op;
    int nword;
    Word *word;
    uint64_t hash; /* hash of all these fields */
} KernelSignature;

/* Streams of a device: calls of one stream run in order, those of other streams
 * after events. */
typedef enum StreamKind {
    STREAMcompute,
    STREAMcomm,
    STREAMcopy,
    STREAMp2p,
    STREAMreload, /* copies from host memory; STREAMcopy: to it */
    STREAMhost,   /* the host's processors */
    NSTREAM
} StreamKind;
extern const char *const streamnames[NSTREAM];

/* Launch of an instruction: streams.c. Events of a program have numbers from 1;
 * one instruction records an event, others wait for it. */
typedef struct Issue {
    StreamKind stream;
    int nwait;
    int *wait;    /* vec: events */
    int record;   /* event; 0: none */
    int priority; /* kernels; 1: its blocks start before waiting ones */
    int sms;      /* kernels: most multiprocessors; 0: any number */
} Issue;
void issue_text(Codec *codec, Issue *issue);

/* Prediction of its seconds: the larger of its FLOPs at one speed of the
 * machine and its bytes at another; size: for the first. Only during a compile,
 * not in the text. */
typedef struct InstrSpeeds {
    Speed work, move;
    double size;
    double added; /* bytes of accumulators read, beside Instr.bytes: a mean over
                     its runs */
} InstrSpeeds;

typedef struct Instr {
    InstrKind kind;
    union { /* fields beside operands: instructions.def */
        NoArgs none;
#define ARGS(type, member, fields) type member;
#define INSTR(name, cls, type, member, operands, doc)
#include "instructions.def"
    };
    const char *label; /* scope path and op, for messages */
    int nbuf;
    int *buf; /* buffer indices; -1: none */
    /* Kernels, by their signature: name of the kernel; launch; words; for each
       buffer the use by any operand: r, w, b, -; null: unknown */
    const char *kernel;
    Launch launch;
    int nword;
    Word *word;
    const char *rw;
    ValueUse *flow;  /* [buffer]; null: a plan without values */
    uint32_t inner;  /* atoms that shard an axis that only this instruction
                        creates and sums: each rank sums its part */
    uint32_t spread; /* atoms that shard an axis along which the result is
                        constant, though an operand has the axis */
    int store_first; /* stores in the first run of its phase, accumulates in
                        the others: no instruction clears its result */
    int last_only;   /* runs only in the last run of its phase */
    uint32_t atoms;  /* collectives: the group */
    Issue issue;
    const char *file;
    int line;
    double flops, bytes, secs; /* predicted, for one rank */
    InstrSpeeds speeds;
    KernelWork work;
    double again; /* its share of FLOPs that ranks of the stage
                                     do redundantly */
    int experts;  /* moves tokens to experts, or back */
} Instr;

/* Bytes of a body (passes/plan/kept.c): live through all of it; from forward to
 * backward; of these, separately, bytes whose last reader is a gradient of
 * inputs, and of weights; from the former to the latter; the largest rest, in
 * layers and outside layers. */
typedef struct KeptBytes {
    double through, kept, input, weights, between, once_inside, once_outside;
} KeptBytes;
const char *instr_label(const Instr *instr); /* for messages; never null */
const OperandInfo *instr_operand(const Instr *instr, int i);
/* Returns the use of operand i: r, w, b for both, - for workspace. */
char instr_use(const Instr *instr, int i);
/* Returns the stated dtype of operand i; Dnone: none. */
Dtype instr_dtype(const Instr *instr, int i);
void instr_store(Instr *instr); /* makes it store instead of accumulate */
/* Is operand i, read and written, the one of store_first? */
int stores_first(const Instr *instr, int i);
int same_args(const Instr *x, const Instr *y);
const char *args_wrong(Arena *a, const Instr *instr); /* null, or the error */
void args_text(Codec *codec, Instr *instr);
void launch_text(Codec *codec, Launch *launch);
const char *launch_wrong(const Launch *launch); /* null, or the wrong field */

#endif
