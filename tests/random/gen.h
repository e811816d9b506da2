/* gen.h: what the parts of the generator share. A model is written statement by
 * statement; of every tensor its axes are known, and roughly how large its
 * elements may be, so that what is written is valid and stays finite. */
#ifndef PLEAT_RANDOM_GEN_H
#define PLEAT_RANDOM_GEN_H

#include "ref.h"

/* A model from a seed: Lua text. */
char *gen_model(Arena *a, uint64_t seed);

enum { GENDIM = 6, GENELEMS = 1200, GENWORK = 20000 };

typedef enum Kind { REAL, INTEGER, TRUTH } Kind;

typedef struct GDim {
    const char *a; /* interned */
    int64_t n;
} GDim;

typedef struct Tens {
    const char *name; /* of the Lua local */
    Kind kind;
    int nd;
    GDim dim[GENDIM];
    const char *of; /* indices: the axis they index, and its size */
    int64_t ofn;
    double most;      /* |element| is about this at most */
    int uses, closed; /* closed: no later statement reads it */
    int data;         /* depends on an input */
    const char *text; /* of its statement; null: the same as the one after */
    int live;         /* a loss depends on it */
} Tens;

typedef struct Gen {
    Arena *a;
    uint64_t seed;
    GDim *axis, *made; /* vecs: declared; by statements, as they were then */
    Text body;
    Tens **t; /* vec; a block's are forgotten at its end */
    int names, params, axes, losses, states, depth;
    int inputs;         /* tokens is there */
    const char *indent; /* of statements */
} Gen;

/* ---- gen.c --------------------------------------------------------------- */

int64_t below(Gen *g, int64_t n); /* 0 .. n-1 */
int chance(Gen *g, int percent);
const char *one_of(Gen *g, const char *const *list, int n);
#define ONE_OF(g, ...)                                          \
    one_of(g, (const char *const[]){ __VA_ARGS__ },             \
           (int)(sizeof((const char *const[]){ __VA_ARGS__ }) / \
                 sizeof(const char *)))

/* A statement "local tN = ..." whose value has the axes and kind of `like`. */
Tens *emit(Gen *g, const Tens *like, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void line(Gen *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
GDim new_axis(Gen *g, const char *stem, int64_t n); /* "top7" */
const char *new_param(Gen *g);                      /* "w7" */

Tens real(double most); /* no axes yet */
void add_dim(Tens *t, GDim d);
int dim_at(const Tens *t, const char *a); /* -1: none */
void drop_dim(Tens *t, int at);
int64_t elems(const Tens *t);
Tens united(const Tens *a, const Tens *b); /* nd -1: they do not fit */
const char *names_of(Gen *g, const Tens *t);
int64_t work(const Tens *a, const Tens *b); /* of a product */

/* A tensor of the pool: null when there is none. `fits` may be null. */
typedef int Fits(const Tens *t, const void *with);
Tens *pick(Gen *g, Kind k, Fits *fits, const void *with);
Tens *any_real(Gen *g); /* made when there is none */
const char *tame(Gen *g, const Tens *t, double most); /* its text, scaled */
/* A parameter of that shape; init null: any. Null: its axes are declared with
 * other sizes. */
Tens *make_param(Gen *g, const Tens *shape, const char *init);
int declarable(Gen *g, GDim d); /* then it is declared */
GDim some_axis(Gen *g, int64_t atleast);

Tens *add_tensor(Gen *g, const char *name, const Tens *like, const char *text);
/* Some statements, into g->body. */
void statements(Gen *g, int64_t n);
/* Every real of the pool from `from` on that no other leads to, as terms of a
 * sum; then all that was declared is used. */
typedef void Term(Gen *g, const Tens *t, void *ctx);
void each_open(Gen *g, size_t from, Term *f, void *ctx);
void declare(Gen *g, const char *name, int64_t n);

/* ---- gennet.c: tokens, layers, a head ------------------------------------ */

void gen_net(Gen *g);

/* ---- genops.c genrows.c genattn.c ...: statements ------------------------ */

/* Writes statements; 0: nothing in the pool suits. */
typedef int Production(Gen *g);
typedef struct GenRow {
    int weight;
    Production *f;
} GenRow;
extern const GenRow genops[], genrows[], genattn[], genmoe[], genstep[];

#endif
