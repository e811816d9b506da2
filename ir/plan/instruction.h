/* instruction.h: what an instruction of a plan is: its kind, operands and
 * fields, by the rows of instructions.def. A part of plan.h. */
#ifndef PLEAT_INSTRUCTION_H
#define PLEAT_INSTRUCTION_H

/* ---- fields and operands: structs ---------------------------------------- */

/* Rlast: of accumulators only, the last micro-batch's value. */
typedef enum Reduce { Radd, Rmax, Rmin, Rlast, NREDUCE } Reduce;
extern const char *const reduces[NREDUCE];
typedef struct BatchLoop {
    int64_t n, a, b, c; /* of a loop, and its stride in each operand */
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

/* OPERAND(gemm, c): which of its operands that is. */
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
    int typed;  /* its dtype is the field at `dtype` */
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

/* ---- one of them --------------------------------------------------------- */

/* What an instruction does to one of its buffers: the values of its program
 * have numbers from 1. read: the number of the value it needs there, ~b: what
 * buffer b held when the program began (parameters, inputs ...), 0: it reads
 * nothing. as: the shape in which it reads that; -1: as it was made. make: the
 * number of the value it leaves there, 0: it writes nothing. Of what it makes:
 * its shape, and part[op], atoms over whose ranks op (Reduce) is still to be
 * done. Over atoms that are neither in these nor cut its shape the ranks of a
 * stage hold the same. */
typedef struct ValueUse {
    int read, make;
    int as, shape; /* indices of the plan's shapes */
    uint32_t part[3];
} ValueUse;

/* A word that a kernel gets: an integer, which may depend on the rank; whether
 * it adds to what its result holds, 0 or 1; a key of random numbers, all 64
 * bits of it; a double, as its bits. */
typedef enum WordType { WORDint, WORDadd, WORDkey, WORDreal } WordType;
typedef struct Word {
    WordType type;
    RankAffine at; /* integer, key */
    double real;
} Word;
Word word_int(int64_t x);
/* As the kernel gets it; m null: the integer on the first rank. */
int64_t word_value(const Mesh *m, const Word *word, int64_t rank);

/* How a kernel takes one of its buffers: elements that lie row-major, the last
 * extent fastest. A row map has one extent, work space is bytes. Ragged rows
 * begin at the row of a stack that the word behind a map's offsets says; the
 * first extent is how many there is room for. */
typedef struct KernelOperand {
    Dtype dt; /* Dnone: there is no buffer */
    int nd;
    const int64_t *n;
    int base; /* 1 + the operand that is that map; 0: at its place */
} KernelOperand;

/* What a kernel declares of a call: how it uses its operands and what its
 * words are. A text that serves several sizes has a signature for each. */
typedef struct KernelSignature {
    const char *kernel;
    uint64_t expr; /* hash of what it computes of its operands, whatever
                        axes and values are called: passes/emit/signatures.c */
    Launch launch;
    const char *use; /* of each operand: r, w, b (both), - (there is none) */
    KernelOperand *op;
    int nword;
    Word *word;
    uint64_t hash; /* of all of these, as the plan says them */
} KernelSignature;

/* What a device runs side by side: calls of one stream run in the order in
 * which they were given, those of others behind events. */
typedef enum StreamKind {
    STREAMcompute,
    STREAMcomm,
    STREAMcopy,
    STREAMp2p,
    STREAMreload, /* from the host's memory; copy: to it */
    STREAMhost,   /* its processors */
    NSTREAM
} StreamKind;
extern const char *const streamnames[NSTREAM];

/* How an instruction is launched: streams.c. The events of a program have
 * numbers from 1; each has one that records it and some that wait. */
typedef struct Issue {
    StreamKind stream;
    int nwait;
    int *wait;    /* events */
    int record;   /* event; 0: none */
    int priority; /* kernels; 1: its blocks start before others' that wait */
    int sms;      /* kernels: multiprocessors it may hold; 0: any number */
} Issue;
void issue_text(Codec *codec, Issue *issue);

/* What predicts its seconds: the larger of its FLOPs by one number of the
 * machine and its bytes by another; size: of the first. Only while a plan is
 * compiled: no text has it. */
typedef struct InstrSpeeds {
    Speed work, move;
    double size;
    double added; /* bytes of results that it reads to add to them, beside
                     Instr.bytes: a mean over its runs */
} InstrSpeeds;

typedef struct Instr {
    InstrKind kind;
    union { /* what it has beside operands: instructions.def */
        NoArgs none;
#define ARGS(type, member, fields) type member;
#define INSTR(name, cls, type, member, operands, doc)
#include "instructions.def"
    };
    const char *label; /* scope path and op, for people */
    int nbuf;
    int *buf; /* buffer indices; -1: none */
    /* Kernels, by their signature: name in the plan's kernel text; launch;
       words; for each buffer what any operand does to it: r, w, b, -; null:
       unknown */
    const char *kernel;
    Launch launch;
    int nword;
    Word *word;
    const char *rw;
    ValueUse *flow;  /* for each buffer; null: plan without */
    uint32_t inner;  /* atoms that cut an axis which it makes and sums itself:
                       no operand has it, each rank sums its part */
    uint32_t spread; /* atoms that cut an axis of what it makes all along which
                        that is the same, though an operand has the name */
    int store_first; /* in the first run of its phase it stores what it adds in
                        the others: no instruction clears what it adds to */
    int last_only;   /* it runs in the last run of its phase, and in no other */
    uint32_t atoms;  /* collectives: the group */
    Issue issue;
    const char *file;
    int line;
    double flops, bytes, secs; /* predicted, for one rank */
    InstrSpeeds speeds;
    KernelWork work;
    double again; /* of the FLOPs: its share of what ranks of
                                     the stage do more than once */
    int experts;  /* takes tokens to experts, or back */
} Instr;

/* Bytes of a body (passes/plan/kept.c): alive all through it; from forward to
 * backward; of them, by themselves, what the gradients of inputs read last, and
 * those of weights; from the former to the latter; at most beside these, in
 * layers and outside of them. */
typedef struct KeptBytes {
    double through, kept, input, weights, between, once_inside, once_outside;
} KeptBytes;
const char *instr_label(const Instr *instr); /* for people; never null */
const OperandInfo *instr_operand(const Instr *instr, int i);
/* How it uses its i-th operand: r, w, b for both, - for work space. */
char instr_use(const Instr *instr, int i);
/* Of its i-th operand, as it says; Dnone: it does not. */
Dtype instr_dtype(const Instr *instr, int i);
void instr_store(Instr *instr); /* what it would add to what is there */
/* Is i the operand that store_first is of: read and written? */
int stores_first(const Instr *instr, int i);
int same_args(const Instr *x, const Instr *y);
const char *args_wrong(Arena *a, const Instr *instr); /* null, or what is */
void args_text(Codec *codec, Instr *instr);
void launch_text(Codec *codec, Launch *launch);
const char *launch_wrong(const Launch *launch); /* null, or the field */

#endif
