/* memory.h: a place for every value of a program. */
#ifndef PLEAT_MEMORY_H
#define PLEAT_MEMORY_H

#include "../core/core.h"
#include "pack.h"

/* pack_known.c: what pack() makes of these; `known`, of a compile, has what was
 * asked before. */
Packed pack_known(Table *known, Rect *rect, int n, int64_t goal, int64_t work);

/* ---- alloc.c ------------------------------------------------------------- */

typedef struct Used {
    int phase, first, last;
} Used; /* instructions of a call */

/* One value of a program, or a kernel's work space, before it is a Buf. */
typedef struct Live {
    Node *node; /* the value; null: work space of `instr` */
    int instr;
    int64_t bytes, offset; /* offset: above the persistent part, or in
                                     its frame */
    int born, dies;        /* instructions, both included */
    int first;             /* instruction that makes it: born, or in a table
                                     the one that runs first */
    int last;              /* after it the place is free, or -1 */
    int busy;              /* on another stream until this instruction */
    int kept;              /* to the end of the program */
    int grows;             /* it has what runs of its phase add to */
    int same;              /* index of the value whose buffer this one
                                     took over, of the stack where it lies, or
                                     -1 */
    int stack;             /* Node.stash of the values of this one, of which n
                                     is the first; 0: it is no stack */
    int buf;               /* (emit) a stack's */
    Used *used;            /* vec: calls that name it, in phase order */
    int outside;           /* named outside of calls too */
    int frame;             /* 1 + its frame; 0: one place */
    int within;            /* index of the bucket where it lies at byte
                                     offset, or -1 */
    int start;             /* its place is taken from this instruction on */
    int host;              /* it lies in the host's arena */
} Live;

typedef struct Layout {
    Live *live; /* vec: a stored value's index is its mark - 1 */
    int n;
    SlotGroup *frame; /* vec */
    int64_t height, bound;
    int64_t host; /* height in the host's arena */
} Layout;

/* A value that an instruction names: an argument of its group. */
typedef struct NamedValue {
    Node *stored; /* null: none */
    int number;   /* the same for all nodes of a value */
    int writes;   /* the instruction stores it */
    int source;   /* number of the value of which this is a copy, from or in
                     the host's memory; or -1 */
    int kept;     /* to the end of the program: a gradient, or KEPTout */
    int persists; /* it lives across programs */
    int64_t bytes;
} NamedValue;
enum { KEPTout = 2 }; /* and it is read then */
/* Sets Group.named of g's n groups; returns how many numbers there are. */
int name_values(Arena *a, const Graph *g, Group *const *k, int n);

int is_persistent(const Node *stored);
int is_gradient(const Node *n); /* a sum that stays to the end */
/* Of the device: what the n graphs name of persistent values, each once. */
int64_t lasting_bytes(Arena *a, Graph *const *g, int n);
/* Places all that lives within one program, whose phases and slots are known.
 * k: the group of each instruction. */
Layout *layout(Graph *g, Group *const *k, const Program *prog);
/* By instruction: bytes alive, those that it is the last to need; of a table as
 * if its calls followed each other. */
typedef struct Load {
    int64_t *alive, *ends, most;
} Load;
Load layout_load(Arena *a, Graph *g, Group *const *k, const Program *prog);
int layout_root(const Layout *layout, int i); /* whose buffer i lies in */
int64_t join_at(const Node *pack, int i);     /* byte where member i lies */

/* ---- activation_slots.c: what a stage's calls have, what they keep ------- */

/* When each call of each micro-batch runs. */
typedef struct CallTimes {
    Arena *arena;
    const Program *prog;
    Table *packed;   /* of the compile: pack_known.c */
    int call, ncall; /* phases */
    int from, to;    /* instructions of all calls */
    int micros;
    int *at;      /* [call][micro] -> row */
    Table *spans; /* activation_slots.c: of calls that name a value */
} CallTimes;

/* null: no table. */
CallTimes *rows_of(Arena *a, const Program *prog, Table *packed);
/* How long live lives, now that all who name it are known: in one call, through
 * the whole table, or from row to row. */
void rows_settle(const CallTimes *times, Live *live);
/* x took over y's place: y's life becomes both. */
void rows_join(const CallTimes *times, Live *y, const Live *x);
/* Places what is private to calls and what frames hold, both from 0 on; of what
 * lies in the host's arena, or in the other. */
typedef struct TableMemory {
    int64_t priv, pool; /* bytes of each part */
    int64_t bound;      /* most bytes of both alive in a row */
    int host;
    size_t first; /* of its frames */
} TableMemory;
TableMemory rows_place(const CallTimes *times, Layout *layout, int host);
/* To these offsets. */
void rows_move(Layout *layout, const TableMemory *memory, int64_t priv,
               int64_t pool);

#endif
