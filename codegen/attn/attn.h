/* attn.h: attention without stored scores: how it is read from its body, and
 * its text for hosts. */
#ifndef PLEAT_ATTN_H
#define PLEAT_ATTN_H

#include "../text/text.h"

extern const char attn_pre[];

int attn_can(const Graph *g, const Node *n); /* attn.c */
void attn_lower(Graph *g, Group *group, Arena *a);
void attn_bwd_lower(Graph *g, Group *group, Arena *a);

enum {
    ATROWS = 48,
    ATKEYS = 64, /* a tile: queries, keys; as in attn.pre */
    ATLD = 80,
    ATKEYPAD = 66, /* row of a score tile; keys, rounded up */
    ATDOTS = 8,
    ATAXES = 24
};

/* A dot of operands q and k, and the term it is part of. */
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
    unsigned leaf;     /* operands that the score reads itself, */
    unsigned wanted;   /* and those whose gradient is wanted */
    int values;        /* which operand holds the values */
    int ndot;
    AttnDot dot[ATDOTS];
    int nterm;
    const Node *term[ATDOTS]; /* sums of dots: a tile each */
    int nx;
    Axis *x[MAXD]; /* the score's axes but query and key */
    int naxis;
    struct {
        Axis *a;
        const char *code;
    } axis[ATAXES];
    Group *group;
    Arena *arena;
    Dtype dt;          /* of values: f32 f64, */
    const char *type;  /* and its name */
    int gpu, open;     /* score texts: of one pair, of open tiles, */
    int scaled;        /* without the factor attn_unit */
    const char **name; /* vec: declared names */
    Text decl, out;
    int64_t work; /* elements of work space on the stack */
} Attn;

typedef enum AttnWhere { AToperand, ATresult, ATscratch } AttnWhere;
typedef struct AttnView { /* a tensor and its name in the text */
    const char *name;
    Node *n;
    AttnWhere kind;
    int64_t at; /* elements into scratch */
} AttnView;

typedef enum AttnHow { ATpack, ATput, ATadd } AttnHow;

int attn_read(Attn *attn, const Graph *g, const Node *n);
int attn_node(const Attn *attn, const Node *n); /* number in the body */
int attn_uses(const Attn *attn, const Node *n); /* as an operand there */
int attn_inner(const Attn *attn, const Node *n, Axis **out);
int attn_keyside(const Attn *attn, int op);
const char *attn_code(const Attn *attn, const Axis *a);

void attn_begin(Attn *attn, Group *group, Arena *a);
void attn_finish(Attn *attn);
const char *attn_int(Attn *attn, const char *name, RankAffine x);
int64_t attn_count(const Attn *attn, const Axis *a);
int64_t attn_product(const Attn *attn, Axis *const *a, int n);
const char *attn_size(Attn *attn, const Axis *a);
/* Names of what leads from local to global indices along an axis. */
typedef struct AttnPlace {
    int two;
    const char *at, *half, *to;
} AttnPlace;
AttnPlace attn_place(Attn *attn, const Axis *a);
const char *attn_global(Attn *attn, const Axis *a, const char *i);
int64_t attn_width(const Attn *attn, int op);
const char *attn_widthname(Attn *attn, int op);
AttnView attn_operand(Attn *attn, int i);
const char *attn_base(Attn *attn, AttnView v);
const char *attn_stride(Attn *attn, AttnView v, const Axis *a);
const char *attn_at(Attn *attn, AttnView v);
void attn_coords(Attn *attn, int depth, const char *from, Axis *const *a,
                 int n);
void attn_tile(Attn *attn, const char *name, const char *size, int64_t n);
/* Moves the present tile's rows along axis `row`, the query's or the key's,
 * between tensor v and a tile; inner axes are those of operand op. */
void attn_move(Attn *attn, int depth, AttnHow how, AttnView v, const Axis *row,
               int op, const char *tile);
/* `tile` of so many rows (a constant of attn.pre) of operand op is zero. */
void attn_clear(Attn *attn, int depth, const char *tile, const char *rows,
                int op);
/* What stands here for a query tile: q0, rows; coordinates along axes a. */
void attn_querytile(Attn *attn, int depth, Axis *const *a, int n);
/* `continue` under that condition; null: never. */
void attn_skip(Attn *attn, int depth, const char *unseen);
int attn_contracted(const Attn *attn, int op);
void attn_keytiles(Attn *attn, int flipall);
void attn_packkeys(Attn *attn, int depth, int op, int flip);
void attn_packqueries(Attn *attn, int depth);
void attn_visible(Attn *attn, int depth);
void attn_products(Attn *attn, int depth);
Node *attn_main(const Group *group);
Node *attn_part(const Attn *attn, int i);

/* score.c: scores of row r, columns j < cols of a tile, from the terms' tiles
 * t0 t1 ...; `z` is the score. With gradient: p the weight, then the gradient
 * of each term in place of its tile, from ds. */
void attn_score(Attn *attn, int depth, int grad);
void attn_score1(Attn *attn, int depth, int grad);
/* The score is `unit` times its term where no condition hides it; 0: is not. */
double attn_unit(const Attn *attn);

/* mask.c: conditions as text, on local queries [q0, q1) and the tile's keys
 * [k0, k0 + cols): no query sees a key (null: cannot be told); of the tile's
 * queries [q0, q0 + rows), every exact condition holds for all pairs (null:
 * there is none). */
const char *attn_unseen(Attn *attn, const char *q0, const char *q1);
const char *attn_allseen(Attn *attn);
/* With t->open the text is for tiles in which every exact condition holds: is n
 * such a condition? Can anything else hide a pair? */
int attn_isopen(const Attn *attn, const Node *n);
int attn_hides(const Attn *attn);
/* Keys see queries from their own place on, and all of both are here. */
int attn_is_causal(const Attn *attn);
void attn_cost(Attn *attn); /* flops and bytes of the group's instruction */

#endif
