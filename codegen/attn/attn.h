/* attn.h: attention without stored scores: how it is read from its body, and
 * its text for hosts. */
#ifndef PLEAT_ATTN_H
#define PLEAT_ATTN_H

#include "../text/text.h"

extern const char attn_pre[];

/* attn_refused: why the attention (a call, attn or attn_bwd) has no kernel
 * without stored scores; null: it has. attn_lower, attn_bwd_lower: host kernels
 * of a group with one. */
const char *attn_refused(const Graph *g, const Node *n);
void attn_lower(Graph *g, Group *group, Arena *a);
void attn_bwd_lower(Graph *g, Group *group, Arena *a);

enum {
    ATROWS = 48,
    ATKEYS = 64, /* queries and keys of a tile; as in attn.pre */
    ATLD = 80,
    ATKEYPAD = 66, /* row of a score tile; keys rounded up */
    ATDOTS = 8,
    ATAXES = 24
};

/* A dot of query-side operand q and key-side operand k, and its term. */
typedef struct AttnDot {
    const Node *n;
    int q, k, term;
} AttnDot;

/* An attention read from its body, and the text being written for it. */
typedef struct Attn {
    const Graph *graph, *body;
    const Node *node; /* call, attn or attn_bwd */
    int nop;          /* operands of the attention itself */
    Axis *query, *key;
    const Node *score; /* [.. query key] before the softmax */
    unsigned leaf;     /* operands that the score reads outside of dots */
    unsigned wanted;   /* those of them whose gradient is wanted */
    int values;        /* the operand of the values */
    int ndot;
    AttnDot dot[ATDOTS];
    int nterm;
    const Node *term[ATDOTS]; /* sums of dots, one tile each */
    int nx;
    Axis *x[MAXD]; /* axes of the score other than query and key */
    int naxis;
    struct {
        Axis *a;
        const char *code;
    } axis[ATAXES];
    Group *group;
    Arena *arena;
    Dtype dt;          /* computation type, Df32 or Df64, */
    const char *type;  /* and its name */
    int gpu, open;     /* text of one pair; of tiles without masked pairs */
    int scaled;        /* without the factor attn_unit */
    const char *why;   /* attn_read returned 0 */
    const char **name; /* vec: declared names */
    Text decl, out;
    int64_t work; /* elements of workspace on the stack */
} Attn;

typedef enum AttnWhere { AToperand, ATresult, ATscratch } AttnWhere;
typedef struct AttnView { /* a tensor and its name in the text */
    const char *name;
    Node *n;
    AttnWhere kind;
    int64_t at; /* ATscratch: offset in elements */
} AttnView;

typedef enum AttnHow { ATpack, ATput, ATadd } AttnHow;

/* attn.c. attn_read: fills attn from the body of n; 0: there is no such kernel.
 * attn_node: number of a body's node. attn_body_users: its users in the body.
 * attn_inner_axes: fills `out` with the packed axes of a key-side tensor and
 * returns their number. attn_is_keyside: is operand op the values, or
 * contracted by a dot? attn_axis: name of an axis in the text. */
int attn_read(Attn *attn, const Graph *g, const Node *n);
int attn_node(const Attn *attn, const Node *n);
int attn_body_users(const Attn *attn, const Node *n);
int attn_inner_axes(const Attn *attn, const Node *n, Axis **out);
int attn_is_keyside(const Attn *attn, int op);
const char *attn_axis(const Attn *attn, const Axis *a);

/* attn_emit.c: appends a line to the text. */
void attn_line(Attn *attn, int depth, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* attn_begin: starts the group's text. attn_finish: makes it the kernel of a
 * host. attn_int: declares an integer and returns its name. */
void attn_begin(Attn *attn, Group *group, Arena *a);
void attn_finish(Attn *attn);
const char *attn_int(Attn *attn, const char *name, RankAffine x);
/* Elements of an axis on this rank, of n axes, and the name of such a size. */
int64_t attn_local_size(const Attn *attn, const Axis *a);
int64_t attn_local_product(const Attn *attn, Axis *const *a, int n);
const char *attn_size_name(Attn *attn, const Axis *a);
/* Names of the integers that map local to global indices of an axis; two: the
 * axis has two zigzag pieces. */
typedef struct AttnPlace {
    int two;
    const char *at, *half, *to;
} AttnPlace;
AttnPlace attn_index_map(Attn *attn, const Axis *a);
/* Text of the global index of local index i. */
const char *attn_global(Attn *attn, const Axis *a, const char *i);
/* Elements per row of operand op's tiles, and the name of that number. */
int64_t attn_row_width(const Attn *attn, int op);
const char *attn_width_name(Attn *attn, int op);
/* Operand i; names of a tensor's pointer, of its stride along a, and the
 * pointer at the current score axes. */
AttnView attn_operand(Attn *attn, int i);
const char *attn_pointer_name(Attn *attn, AttnView v);
const char *attn_stride_name(Attn *attn, AttnView v, const Axis *a);
const char *attn_row_pointer(Attn *attn, AttnView v);
/* Prints the coordinates along n axes from their row-major index `from`; a tile
 * of n elements, called `size` in the text, in the workspace. */
void attn_coords(Attn *attn, int depth, const char *from, Axis *const *a,
                 int n);
void attn_tile(Attn *attn, const char *name, const char *size, int64_t n);
/* Copies the current tile's rows along axis `row` (query or key) between tensor
 * v and a tile; the inner axes are those of operand op. */
void attn_move(Attn *attn, int depth, AttnHow how, AttnView v, const Axis *row,
               int op, const char *tile);
/* Clears `rows` rows (a constant of attn.pre) of the tile of operand op. */
void attn_clear(Attn *attn, int depth, const char *tile, const char *rows,
                int op);
/* Prints the position of a query tile: q0, rows, and the coordinates along axes
 * a. */
void attn_querytile(Attn *attn, int depth, Axis *const *a, int n);
/* Prints `continue` under the condition; null: never. */
void attn_skip(Attn *attn, int depth, const char *unseen);
/* Does a dot contract key-side operand op? */
int attn_contracted(const Attn *attn, int op);
/* Prints: tiles of key-side operands (b, transposed f); the copies into a key
 * tile and into the query tiles of all dots; the visible columns of a tile; the
 * products of all terms. */
void attn_keytiles(Attn *attn, int flipall);
void attn_packkeys(Attn *attn, int depth, int op, int flip);
void attn_packqueries(Attn *attn, int depth);
void attn_visible(Attn *attn, int depth);
void attn_products(Attn *attn, int depth);
/* The attention of a group; its result i, null: unused. */
Node *attn_of_group(const Group *group);
Node *attn_result(const Attn *attn, int i);

/* score.c: text of the scores of row r, columns j < cols of a tile, from the
 * tiles t0 t1 .. of the terms; `z` is the score. With grad: p becomes the
 * weight, and the gradient of each term, from ds, replaces its tile.
 * attn_score1: the same for one pair. */
void attn_score(Attn *attn, int depth, int grad);
void attn_score1(Attn *attn, int depth, int grad);
/* Positive if each unmasked score is this number times its only term; else
 * 0. */
double attn_unit(const Attn *attn);

/* mask.c: conditions as text. attn_tile_masked: no query of [q0, q1) sees a key
 * of the tile [k0, k0 + cols); null: unknown. attn_tile_unmasked: every exact
 * condition holds for all pairs of the tile; null: there is none. */
const char *attn_tile_masked(Attn *attn, const char *q0, const char *q1);
const char *attn_tile_unmasked(Attn *attn);
/* attn->open: the text is for tiles in which all exact conditions hold.
 * attn_is_exact_mask: is n such a condition? attn_may_mask: can another one
 * mask a pair? */
int attn_is_exact_mask(const Attn *attn, const Node *n);
int attn_may_mask(const Attn *attn);
/* Causal mask over equal queries and keys, all of them local? */
int attn_is_causal(const Attn *attn);
void attn_cost(Attn *attn); /* sets flops and bytes of the instruction */

#endif
