/* model.h: the model made simpler and explicit. */
#ifndef PLEAT_MODEL_H
#define PLEAT_MODEL_H

#include "../core/core.h"

/* ---- expert_capacity.c --------------------------------------------------- */

/* route.policy=dropless: a rank has room for route.factor times its equal share
 * of rows. When more come, `step` does nothing and says so, and the program
 * step.fallback takes them in rounds (overflow_fallback.c). */
int may_overflow(const Graph *g, const Node *route);
double budget_of(const Graph *g, const Node *route); /* of a round */
int of_batch(const Node *e); /* does it differ between sequences? */
/* The index by which a router chooses experts for n. Null: n is no pick, or one
 * of a batch of experts, whose index has their axis (fold.c). */
Node *router_choice(const Node *n);

/* ---- simplify.c ---------------------------------------------------------- */

/* An elementwise n, folded: a constant, one of its operands, or n. */
Node *g_folded(Graph *g, Node *n);

/* ---- forced_choices.c ---------------------------------------------------- */

void force_choices(Graph *g); /* as route.balance says */
/* i32 [tokens]: a token's number in its micro-batch, row-major, of the choices
 * e, which top counts (null: one each), where `by` stands; *tokens: how many.
 */
Node *token_number(Graph *g, const Node *by, const Node *e, const Axis *top,
                   int64_t *tokens);

/* ---- row_copies.c -------------------------------------------------------- */

/* Of a graph whose nodes are numbered. */
typedef struct RowCopies {
    Graph *graph;
    Arena *arena;
    Node ***user; /* vec, by id: vecs of users, one for each operand */
} RowCopies;

/* What rows of map[0] become as tokens has the terms of rows of the n - 1 other
 * maps added, which are made likewise. instead: from values that are no rows to
 * what the others read in their stead; null: the same. */
void sum_rows_of_maps(RowCopies *copies, Node *const *map, int n,
                      Table *instead);

/* ---- expert_metrics.c ---------------------------------------------------- */

void expert_metrics(Graph *g);
/* In the value's scope, by this name or one with a number behind it. */
void add_metric(Graph *g, const char *name, Node *value);
/* One of that size, of the compiler's own. */
Axis *own_axis(Graph *g, const char *name, int64_t n);

/* ---- clone_plan.c: for clones.c ------------------------------------------ */

enum { CLONESHARES = 1024 }; /* parts of an expert's rows, a power of two */
/* Most rows of a rank's clones, and least of a clone, in equal shares of all
 * rows of ranks. */
static const double CLONEROOM = 0.5, CLONELEAST = 1.0 / 32;

/* Experts of a map, and slots for clones of them on all ranks. Axes with a 2
 * are as long as those without. */
typedef struct CloneSite {
    Graph *graph;
    Node *map;
    Cursor b; /* at the map */
    Axis *expert, *expert2, *rank, *rank2, *copy, *clone, *clone2;
    int64_t each; /* places for experts on a rank */
} CloneSite;

/* Of each slot, i32 [clone]: the expert, -1: none; the shares of its rows that
 * the clone takes, from .. to - 1. */
typedef struct ClonePlan {
    Node *expert, *from, *to;
} ClonePlan;

ClonePlan plan_clones(const CloneSite *site);
/* i32, as the map's choices: the slot that takes each, -1: none. token: their
 * token's number. */
Node *clone_of(const CloneSite *site, const ClonePlan *plan, Node *token);
Node *clone_load(const CloneSite *site, Node *slot); /* metric, see there */

/* ---- clone_model.c ------------------------------------------------------- */

/* Rows of the rank that has most, in equal shares of all: without clones, with
 * them, then of its own experts, of clones. */
typedef struct CloneLoad {
    double before, after, home, clones;
} CloneLoad;

CloneLoad expected_clones(const CloneSite *site); /* by route.assume */
/* A line of -d why; elements: of an expert's weights. */
void report_clones(const CloneSite *site, const CloneLoad *load,
                   double elements);

/* ---- rules.c ------------------------------------------------------------- */

/* Arguments of an optimizer's body, all fp32: the parameter, its gradient, the
 * learning rate, that times weight decay, states from UPDATEstates on. */
enum { UPDATEparam, UPDATEgrad, UPDATErate, UPDATEdecay, UPDATEstates };
enum { MOSTSTATES = 8 };

/* How a parameter is updated. Parameters share a bucket only under one. */
typedef struct UpdateRule {
    const Node *optimizer; /* null: the parameter is frozen */
    double lr;             /* factor of the schedule's learning rate */
    double decay;          /* weight decay */
} UpdateRule;

/* The i-th result of an optimizer's body: new states, then the parameter. */
const Node *optimizer_result(const Node *optimizer, int i);
/* Is n an optimizer for that parameter, by pattern and axes? */
int optimizer_fits(const Node *n, const Param *param);
/* By train.freeze, or below the scope of a key from.SCOPE? */
int is_frozen(const Graph *g, const char *path);
int is_frozen_rule(const UpdateRule *rule);
/* Is an element's update that element's alone? */
int is_elementwise_rule(const UpdateRule *rule);
const Node **optimizers_of(const Graph *g); /* vec, in order */
/* By the last of the optimizers that fits; err(): none does. */
UpdateRule update_rule(const Graph *g, const Node *const *optimizers,
                       const Param *param);
int same_rule(const UpdateRule *x, const UpdateRule *y);

#endif
