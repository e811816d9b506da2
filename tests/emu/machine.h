/* machine.h: what the files of the emulation share. A launch has one Machine:
 * the blocks of a cluster that are on it, their threads, what is under way. */
#ifndef PLEAT_EMU_MACHINE_H
#define PLEAT_EMU_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "emu.h"

/* ---- text: rewrite.c ----------------------------------------------------- */

typedef struct Out {
    char *s; /* malloc'ed */
    size_t n, cap;
} Out;

void out_add(Out *o, const char *s, size_t n);
void out_put(Out *o, const char *format, ...);
/* malloc'ed; null and a line in log: not understood. */
char *emu_rewrite(const char *preprocessed, Out *log);

/* ---- what a module has: words.hh has the same ---------------------------- */

typedef struct Arg { /* of an asm statement */
    void *at;        /* its variable; null: a value without one */
    uint64_t bits;   /* an input's */
} Arg;

typedef struct Site { /* an asm statement */
    const char *text, *constraints;
    struct Ptx *program;
} Site;

typedef struct Slot { /* a variable in shared memory */
    unsigned size, align, launch, at;
} Slot;

typedef struct Api {
    void (*ptx)(Site *, const Arg *);
    void *(*shared)(Slot *);
    void *(*dynamic)(void);
    size_t (*to_shared)(const void *);
    void *(*from_shared)(size_t);
} Api;

typedef struct KernelInfo {
    void (*call)(void *const *);
    int params, threads, cluster[3];
} KernelInfo;

typedef struct Place {
    unsigned x, y, z;
} Place;
typedef struct Here {
    Place thread, block, threads, blocks;
} Here;

struct EmuModule {
    void *lib;
    Here *here;
    Site *sites;
    EmuKernel *kernels;
};
struct EmuKernel {
    EmuModule *module;
    const KernelInfo *info;
    EmuKernel *next;
    unsigned allowed; /* shared memory; 0: as much as there is */
    char name[];
};

/* ---- PTX: parse.c, a text once a site ------------------------------------ */

enum { MAXOPERAND = 8, MAXREG = 32, MAXTYPE = 4 };

/* clang-format off */
typedef enum Kind { Karg, Kreg, Kimm, Kspecial, Ksink, Kvec, Kmem } Kind;

/* [a + off, {c0, c1}] has part[0] = a and part[1] = {c0, c1}; a vector has its
 * elements. */
typedef struct Operand {
    Kind kind;
    int i, negated; /* argument, register or special; !p */
    int64_t imm;    /* value; a memory operand's offset */
    int n;
    struct Operand *part;
} Operand;

typedef enum Type {
    Tnone, Tb8, Tb16, Tb32, Tb64, Tb128, Tb1024, Tu8, Tu16, Tu32, Tu64, Ts8,
    Ts16, Ts32, Ts64, Tf16, Tbf16, Tf16x2, Tbf16x2, Tf32, Ttf32, Tf64, Te4m3,
    Te5m2, Te4m3x2, Te5m2x2, Tpred, NTYPE
} Type;
typedef struct TypeInfo {
    const char *name;
    int bits;
    char kind; /* b u s f p */
} TypeInfo;
extern const TypeInfo ptx_types[NTYPE];

typedef enum Space { Sgeneric, Sglobal, Sshared, Scluster } Space;

/* Sets of modifiers; all but flags are one of a set. */
typedef enum Field {
    Fspace, Ftype, Fvec, Fsem, Fscope, Fcache, Fround, Fcmp, Fhow, Fdim, Fflag,
    Fshape, NFIELD
} Field;
enum { /* Fsem, Fscope, Fcmp */
    SMnone, SMweak, SMvolatile, SMrelaxed, SMacquire, SMrelease, SMacqrel
};
enum { SCnone, SCcta, SCcluster, SCgpu, SCsys };
enum { Ceq = 1, Cne, Clt, Cle, Cgt, Cge };
enum How {
    Hnone, Hadd, Hmin, Hmax, Hand, Hor, Hxor, Hexch, Hcas, Hinc, Hdec,
    Hidx, Hup, Hdown, Hbfly, Hballot, Hany, Hall,
    Haddress, Hrank, Hbox, Hdims, Hstride, Helement, Helemtype, Hinterleave,
    Hswizzle, Hfill
};
enum { /* Fflag: 1 << */
    FLftz, FLapprox, FLsync, FLaligned, FLread, FLparity, FLexpect, FLnoinc,
    FLsat, FLwide, FLhi, FLlo, FLtrans, FLgroup, FLbytes, FLtile, FLmulticast,
    FLgeneric, FLinc, FLcg, FLrelu, FLnan
};
/* clang-format on */
#define FLAG(f) (1u << FL##f)

typedef struct Insn Insn;
typedef struct Thread Thread;

/* A site executed by a thread. */
typedef struct SlotGroup {
    Thread *t;
    const Arg *arg;
    const char *constraints; /* two letters an argument: + = or _; its type */
    uint64_t reg[MAXREG];
} SlotGroup;

typedef struct OpRow {
    const char *name; /* its first words */
    void (*run)(SlotGroup *, const Insn *);
    unsigned fields, flags; /* 1 << Field, 1 << flag that it takes */
    int least, most;        /* operands */
    const char *(*check)(const Insn *); /* null, or: why it is wrong */
} OpRow;
extern const OpRow ptx_rows[]; /* rows.c; ends with no name */

struct Insn {
    const OpRow *row;
    char text[112];    /* its words, for messages */
    int guard, unless; /* register of @p, or -1; @!p */
    int n;
    Operand o[MAXOPERAND];
    int nspace, ntype;
    Space space[3];
    Type type[MAXTYPE];
    int vec, sem, scope, round, cmp, how, dim, cache;
    unsigned flags;
    int shape[3]; /* m n k */
};

typedef struct Ptx {
    int n, nreg;
    Insn *insn;
} Ptx;

/* Null and a line in log: not understood. */
Ptx *ptx_parse(const char *text, const char *constraints, Out *log);
void ptx_free(Ptx *p);
/* Executes a site's text. */
void ptx_run(Site *s, const Arg *arg);

/* ---- values: value.c ----------------------------------------------------- */

uint64_t get_value(const SlotGroup *f, const Operand *o);
void put_value(SlotGroup *f, const Operand *o, uint64_t v);
int64_t get_int(const SlotGroup *f, const Operand *o,
                Type t); /* as t extends it */
float as_f32(uint64_t v);
double as_f64(uint64_t v);
uint64_t bits_f32(float x);
uint64_t bits_f64(double x);
uint16_t round_bf16(float x);
float wide_bf16(uint16_t h);

/* ---- threads: threads.c -------------------------------------------------- */

enum {
    WARP = 32,
    MAXTHREAD = 1024,
    MAXCLUSTER = 8,
    MAXALL = MAXTHREAD * MAXCLUSTER,
    RESERVED = 1024,   /* bytes of the shared window before a block's own */
    STATIC = 48 << 10, /* most of variables of a fixed size */
    DYNAMIC = RESERVED + STATIC + 128, /* the last place of a launch's */
    MOSTSHARED = 227 << 10,
    WINDOW = 256 << 10, /* addresses of a matrix descriptor */
    NBAR = 16
};

typedef struct Warp Warp;
typedef void MeetAll(Warp *w, unsigned mask, const Insn *i);
typedef struct StageMatch { /* threads of a warp that do one thing together */
    unsigned mask, arrived;
    const Insn *insn;
    MeetAll *all;
} StageMatch;

struct Warp {
    Thread *thread; /* the first */
    int n;
    unsigned over; /* lanes that have ended */
    int meetings;  /* that someone waits in */
    StageMatch meet[WARP];
};

typedef struct Bar { /* of bar.sync */
    int expected, arrived;
    unsigned round;
} Bar;

typedef struct StepValues {
    Place at;
    unsigned rank;   /* in its cluster */
    uint8_t *shared; /* WINDOW bytes: shared address -> memory */
    Thread *thread;
    int nthread, alive;
    Warp warp[MAXTHREAD / WARP];
    Bar bar[NBAR];
    int met;                        /* has used one */
    int registers;                  /* that no thread has */
    struct Wg *wg[MAXTHREAD / 128]; /* wgmma.c */
    struct Proxy *proxy;            /* copies.c */
} StepValues;

struct Thread {
    StepValues *b;
    Warp *w;
    void *sp;
    int index, id, lane; /* in the machine, the block, the warp */
    int over;
    Place place;
    const void *on;    /* what it waits for; null: nothing */
    const Insn *insn;  /* what it is in */
    uint64_t value[3]; /* what it brings to a meeting, and takes away */
    int met;
    unsigned cluster_round;
    int cluster_arrived, registers;
    struct Copies *copies; /* copies.c */
};

typedef struct Machine {
    EmuKernel *k;
    unsigned grid[3], dims[3], dynamic;
    void *const *params;
    unsigned begin;          /* where the launch's bytes begin */
    unsigned launch, placed; /* number of the launch; bytes of its slots */
    unsigned order;
    uint64_t random;
    StepValues *block[MAXCLUSTER];
    int nblock;
    Thread *thread;
    int nthread, alive;
    uint64_t ready[MAXALL / 64], idle[MAXALL / 64]; /* idle: polls */
    int at; /* where the search for a thread begins */
    Thread *now;
    void *home;
    int error;
    Bar cluster;
} Machine;
extern Machine machine;

enum { /* CUDA's numbers */
       EINVALIDVALUE = 1,
       EILLEGALADDRESS = 700,
       ETIMEOUT = 702,
       EILLEGALINSTRUCTION = 715,
       EMISALIGNED = 716,
       EFAILED = 719
};

/* Ends the launch from one of its threads, or from between them. */
_Noreturn void fail(int error, const char *format, ...);
/* Until wake(on): what was waited for is to be looked at again then. */
void wait_on(Thread *t, const void *on);
void wake(const void *on);                   /* all that wait on it */
void wake_thread(Thread *t, const void *on); /* if it waits on it */
void give_way(Thread *t);                    /* others first */
int threads_start(void);                     /* 0: no memory */
int threads_run(void); /* until all have ended; an error number */
void threads_free(void);
void thread_over(Thread *t); /* launch.c: t has ended */
uint64_t chance(void);       /* a random number */

/* ---- threads that do one thing together: meet.c -------------------------- */

/* Waits for the warp's lanes in mask; when all have come `all` is called once,
 * by the last. */
void meet(SlotGroup *f, const Insn *i, unsigned mask, MeetAll *all);
void meet_over(Thread *t); /* t has ended: does anyone wait for it? */

/* ---- memory: memory.c ---------------------------------------------------- */

/* A shared address of the block, or of its cluster: bits 24 .. are 1 + rank. */
uint8_t *shared_bytes(const Thread *t, uint32_t at, size_t n,
                      StepValues **whose);
/* An instruction's address operand: where it is in memory. */
uint8_t *address(SlotGroup *f, const Insn *i, const Operand *o, Space s,
                 size_t n);
uint8_t *global_bytes(uint64_t at, size_t n);

/* ---- barriers in shared memory: mbarrier.c ------------------------------- */

void bar_arrive(uint8_t *bar, int n);
void bar_bytes(uint8_t *bar, int64_t n); /* expected: > 0; there: < 0 */

/* ---- what is under way: copies.c ----------------------------------------- */

/* A generic write of shared memory; what the asynchronous proxy may read of it
 * is known by who wrote it and who fenced. */
void proxy_wrote(Thread *t, uint32_t at, size_t n);
void proxy_loaded(Thread *t, uint32_t at, size_t n); /* ... and a load */
void proxy_filled(StepValues *b, uint32_t at,
                  size_t n); /* by the proxy itself */
/* n bytes of 16-byte pieces as the proxy sees them, the reader's last fence. */
void proxy_reads(const StepValues *b, uint32_t at, size_t n, unsigned fence,
                 uint8_t *to);
unsigned proxy_fence_of(const Thread *t);
void proxy_start(StepValues *b);

void copies_start(Thread *t);
int copies_land(void);           /* something lands; 0: nothing is under way */
void copies_over(StepValues *b); /* at its end */

/* ---- boxes of tensors: tensor.c ------------------------------------------ */

typedef struct Box {
    Thread *t;
    StepValues *b; /* whose shared memory */
    uint32_t at;   /* in it */
    uint64_t map[16];
    int rank, coord[5];
} Box;

size_t box_bytes(const Box *x);
void box_load(const Box *x);
void box_take(const Box *x, uint8_t *to);        /* shared memory -> to */
void box_put(const Box *x, const uint8_t *from); /* -> the tensor */
void box_add(const Box *x, const uint8_t *from);
void box_read(SlotGroup *f, const Insn *i, const Operand *map, Box *to);
void maps_start(void); /* of a launch */

/* ---- products of warpgroups: wgmma.c ------------------------------------- */

void wgmma_start(StepValues *b);
void wgmma_over(StepValues *b); /* fails where one is under way */

#endif
