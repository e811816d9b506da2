/* memory.h: lifetimes and places of a program's values. */
#ifndef PLEAT_MEMORY_H
#define PLEAT_MEMORY_H

#include "../core/core.h"
#include "pack.h"

/* pack_known.c: pack() with the compile's table `known` of earlier packings. */
Packed pack_known(Table *known, Rect *rect, int n, int64_t goal, int64_t work);

/* ---- alloc.c ------------------------------------------------------------- */

typedef struct Used {
    int phase, first, last;
} Used; /* first and last instruction of a call that names a value */

/* A value of a program, or a kernel's workspace, before it is a Buf. */
typedef struct Live {
    Node *node; /* the value; null: workspace of `instr` */
    int instr;
    int64_t bytes, offset; /* offset: above the persistent part, or in its
                                     frame */
    int born, dies;        /* instructions, inclusive */
    int first;             /* instruction that makes it: born, or in a table
                                     the one that runs first */
    int last;              /* its place is free after this one; -1: never */
    int busy;              /* used by another stream until this one */
    int kept;              /* lives to the end of the program */
    int grows;             /* runs of its phase accumulate in it */
    int same;              /* index of the value whose buffer it took, or of
                                     its stack; -1: none */
    int stack;             /* a stack: Node.stash of its values; 0: it is not
                                     a stack */
    int buf;               /* emit: buffer of a stack */
    Used *used;            /* vec: calls that name it, in phase order */
    int outside;           /* named outside calls too */
    int frame;             /* 1 + its frame; 0: fixed place */
    int within;            /* index of the bucket that contains it at byte
                                     offset; -1: none */
    int start;             /* its place is occupied from this one on */
    int host;              /* it is in the host's arena */
} Live;

typedef struct Layout {
    Live *live; /* vec: index of a stored value: its mark - 1 */
    int n;
    SlotGroup *frame; /* vec */
    int64_t height, bound;
    int64_t host; /* height of the host's arena */
} Layout;

/* A value that an instruction names: an argument of its group. */
typedef struct NamedValue {
    Node *stored; /* null: none */
    int number;   /* number of the value, equal for all its nodes */
    int writes;   /* the instruction stores it */
    int source;   /* number of the value of which it is a copy from or to host
                     memory; -1: none */
    int kept;     /* lives to the end of the program: a gradient, or KEPTout */
    int persists; /* it lives across programs */
    int64_t bytes;
} NamedValue;
enum { KEPTout = 2 }; /* an output, read after the program */
/* Sets Group.named of g's n groups. Returns the number of values. */
int name_values(Arena *a, const Graph *g, Group *const *k, int n);

int is_persistent(const Node *stored);
int is_gradient(const Node *n); /* is it an accumulator kept to the end? */
/* Returns the device bytes of persistent values that the n graphs name, each
 * once. */
int64_t lasting_bytes(Arena *a, Graph *const *g, int n);
/* Places the transient values of a program with known phases and slots. k: the
 * group of each instruction. */
Layout *layout(Graph *g, Group *const *k, const Program *prog);
/* [instruction]: live bytes, and bytes that it frees; calls of a table count as
 * consecutive. */
typedef struct Load {
    int64_t *alive, *ends, most;
} Load;
Load layout_load(Arena *a, Graph *g, Group *const *k, const Program *prog);
int layout_root(const Layout *layout, int i); /* the life with i's buffer */
int64_t join_at(const Node *pack, int i);     /* byte offset of member i */

/* ---- activation_slots.c: values of a stage's calls ----------------------- */

/* Rows of the calls of each micro-batch. */
typedef struct CallTimes {
    Arena *arena;
    const Program *prog;
    Table *packed;   /* table of the compile: pack_known.c */
    int call, ncall; /* phases */
    int from, to;    /* instructions of all calls */
    int micros;
    int *at;      /* [call][micro] -> row */
    Table *spans; /* list of calls that name a value -> CallSpans */
} CallTimes;

/* null: no table. */
CallTimes *rows_of(Arena *a, const Program *prog, Table *packed);
/* Determines the kind of live's lifetime once all its uses are known: in one
 * call, through the whole table, or between rows. */
void rows_settle(const CallTimes *times, Live *live);
/* x took y's place: extends y's lifetime by x's. */
void rows_join(const CallTimes *times, Live *y, const Live *x);
/* Places private values of calls and frames, both from 0 on, in the host's
 * arena or the device's. */
typedef struct TableMemory {
    int64_t priv, pool; /* bytes of each part */
    int64_t bound;      /* largest live bytes of both in a row */
    int host;
    size_t first; /* index of its first frame */
} TableMemory;
TableMemory rows_place(const CallTimes *times, Layout *layout, int host);
/* Moves both parts to these offsets. */
void rows_move(Layout *layout, const TableMemory *memory, int64_t priv,
               int64_t pool);

#endif
