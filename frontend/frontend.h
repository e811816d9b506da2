/* frontend.h: Lua in, command line out. A model file runs once; every op it
 * calls adds a node to the logical graph. The only header that sees Lua. */
#ifndef PLEAT_FRONTEND_H
#define PLEAT_FRONTEND_H

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "../passes/passes.h"
#include "commands.h"

/* The graph a composite's body is traced into, and the nodes outside of it that
 * its args stand for, in order. */
typedef struct Body Body;
struct Body {
    Graph *g;
    Body *up;
    Node **outer, **arg; /* vecs, same length */
};

/* What Lua holds for a tensor. */
typedef struct LuaTensor {
    Node *n;
    Body *in;    /* body it lives in; null: the model's */
    Axis *of;    /* index tensors: the axis they index, */
    int64_t ofn; /* and its size there */
} LuaTensor;

/* An entry of hf{}, read when all parameters are known. */
typedef struct HfEntry {
    const char *param, *hf, *axes;
    const Loc *loc;
    int found; /* parameters it names */
} HfEntry;

/* An axis whose role a layer of the prelude knows. */
typedef struct Stated {
    Axis *a;
    AxisRole role;
} Stated;

/* fold{ tp="x y" }, read when all axes are declared. */
typedef struct CutList {
    MeshAxis m;
    const char *axes;
    const Loc *loc;
} CutList;

typedef struct Front {
    lua_State *L;
    Stated *stated; /* vec */
    CutList *cuts;  /* vec */
    Graph *g;
    Body *body;     /* being traced, or null */
    Graph **bodies; /* vec: of all composites */
    const Scope *scope;
    const char *file, *dir; /* of the model */
    const Opts *cmdline;
    const Loc *loc; /* of the call being served */
    const char *fn; /* and its name */
    Table *locs, *places;
    Source *source; /* vec: every file read */
    const Source *given;
    int ngiven;      /* read these instead of files */
    HfEntry *hf;     /* vec */
    size_t heap;     /* bytes Lua holds */
    int64_t hooks;   /* of HOOKSTEP instructions each */
    const Loc *full; /* where memory ran out */
    int ndropout, quiet;
    Watch *watch; /* null: nobody watches */
} Front;

Front *front_of(lua_State *L);

/* ---- model.c ------------------------------------------------------------- */

/* Run a model file: its logical graph, with options (the command line's win)
 * and the sources read. err() for everything wrong in the file. */
typedef struct Trace {
    Graph *g;
    Source *source;
    int nsource;
} Trace;
enum { TRACEquiet = 1 }; /* print() prints nothing */
Trace trace(const char *file, const Opts *cmdline, int flags);
/* The same from texts instead of files; the first is the model. */
Trace trace_sources(const Source *source, int n, const Opts *cmdline);
int lua_require(lua_State *L);
void look(Front *front, const Loc *loc); /* tells who watches */

/* ---- env.c --------------------------------------------------------------- */

void env_open(Front *front);
extern const char environment[]; /* registry: the globals of model files */

/* ---- library.c ----------------------------------------------------------- */

void library_open(lua_State *L);
int has_upvalues(lua_State *L, int i);      /* the function at i */
extern const char *const library_removed[]; /* ends with null */

/* ---- language.c: the language's functions for people --------------------- */

extern const char editor_lua[];
void print_language(void);
/* Call, meaning, and indented shapes, gradient, example; null: no function. */
const char *language_entry(Arena *a, const char *name);

/* ---- cond.c -------------------------------------------------------------- */

/* Lua's text with every condition wrapped in a check that it is no tensor, same
 * lines; null when nothing had to change or the text is beyond it. */
char *guard_conditions(Arena *a, const char *text, size_t len, size_t *outlen);
/* The line where the text nests deeper than Lua takes; 0: nowhere. */
int too_deep_line(Arena *a, const char *text, size_t len);
int lua_condition(lua_State *L);
#define CONDITION "__condition"
#define CHOICE    "__choice"

/* ---- loc.c --------------------------------------------------------------- */

/* The first stack frame inside a model file, with its callers. */
const Loc *here(lua_State *L);

/* ---- tensor.c ------------------------------------------------------------ */

void tensor_open(lua_State *L);
LuaTensor *value_at(lua_State *L, int arg); /* null: not a tensor */
LuaTensor *need_value(lua_State *L, int arg, const char *what);
int push_node(lua_State *L, Node *n); /* returns 1, as Lua asks */
int push_index(lua_State *L, Node *n, Axis *of, int64_t size);
Graph *current(Front *front);
/* The node v stands for in the graph being traced; outer ones are operands. */
/* a at index e of its axis, which e may have too. */
Node *gathered(Front *front, Node *a, Node *e, Axis *axis);
void find_roles(Front *front); /* roles.c */
void check_whole(Graph *g);    /* settings.c */
int state_role(lua_State *L);  /* role(axis, name) */
void known_role(Front *front, Axis *a, AxisRole role);
Node *use(Front *front, const LuaTensor *tensor);
Node *use_any(Front *front, const LuaTensor *tensor); /* indexed weights too */
Node *operand(lua_State *L, int arg, const char *what);
Front *enter(lua_State *L, const char *fn); /* notes place and name */
Node *make(Front *front, Op op, int nin, Node *const *in);
Node *ew(Front *front, Op op, Node *a, Node *b, Node *c);
Node *constant(Front *front, Dtype dt, double v);
Node *cast_to(Front *front, Node *a, Dtype dt);
Node *reduce(Front *front, Op op, Node *a, Axis *const *A, int nA);
Node *iota_of(Front *front, Axis *a, int64_t n);
/* Operands of an elementwise op from arguments first.., numbers included. */
int ew_operands(lua_State *L, Op op, int first, int n, Node **in);
const char *dims_text(Front *front, const Node *n);
const char *kind_of(lua_State *L, int arg); /* "a number", for messages */

/* ---- axes.c -------------------------------------------------------------- */

/* "a b c" -> axes. Known: declared or made before, else err, suggesting one. */
void axes_order(Front *front); /* when all nodes are there */
int axes_known(Front *front, const char *s, Axis **out, int max);
int axes_any(Front *front, const char *s, Axis **out, int max); /* makes them */
int64_t axis_size(Front *front, const Axis *a, const char *s);  /* err: none */
const char *axis_meant(Front *front, const char *name); /* did_you_mean() */
int axis_arg(lua_State *L, int arg, const char *what, Axis **out, int max);
Axis *one_axis(lua_State *L, int arg, const char *what);
/* An operation made axis a with n; err when axes{} says otherwise. */
void grow_axis(Front *front, Axis *a, int64_t n);
int lua_axes(lua_State *L);
int lua_own_axis(lua_State *L); /* for the prelude */

/* ---- cuts.c -------------------------------------------------------------- */

/* What shard="tp etp" of an axis says. */
void cuts_of_axis(Front *front, Axis *a, const char *words);
/* Takes fold{ tp="x y" } from the value at the top of the stack. 1: that was
 * all of it; 0: what is at the top now is the size. */
int cuts_of_fold(lua_State *L, Front *front, const char *table,
                 const char *name);
void cuts_finish(Front *front);

/* ---- takes.c: what functions take ---------------------------------------- */

/* The function on top becomes one that checks its calls against takes.def; 0:
 * it has no row there. */
int takes_wrap(lua_State *L, const char *name);

/* ---- ops.c index.c decl.c compose.c hf.c: what the language offers ------- */

/* normal(std), ..: how a parameter begins. */
typedef struct Init {
    InitKind kind;
    double arg;
} Init;
const Init *init_at(lua_State *L, int arg); /* null: none */

void need_axes(Front *front, const Node *x, Axis *const *a, int n);
/* n, one for each micro-batch where x differs between them. */
Node *micro_like(Front *front, Node *n, const Node *x);
int64_t integer_arg(lua_State *L, int arg, const char *name);
/* Slot for where a name of that kind was first used; name is interned. */
void **place_of(Front *front, const char *kind, const char *name);
void index_open(lua_State *L);
void ops_open(lua_State *L); /* each: functions into the table on top */
void decl_open(lua_State *L);
void options_open(lua_State *L);
void ops_inside(lua_State *L); /* these two for the prelude only */
void compose_open(lua_State *L);
int lua_hf(lua_State *L);
void hf_finish(Front *front);
void hf_config(lua_State *L, Front *front); /* of the table on top */
void hf_config_check(Front *front);
void decl_finish(Front *front);
void compose_finish(Front *front);
/* Sorted keys of the table at arg (strings only), so that nothing depends on
 * Lua's order. */
const char **sorted_keys(lua_State *L, int arg, int *n);

extern const char prelude_lua[];

/* ---- report.c ------------------------------------------------------------ */

void report_model(FILE *out, const Graph *g);
void report_json(FILE *out, const Graph *g); /* the numbers of --json */
/* ---- commands.c new.c ---------------------------------------------------- */

const Target *target_of(const Opts *opts);
/* What editors and luacheck read of the language. */
const char *editor_text(Arena *a), *luacheck_text(Arena *a);

/* ---- search.c search_cost.c search_jobs.c -------------------------------- */

/* A point of the space that `search` goes through. */
typedef struct Point {
    int64_t size[NMESH], vpp, batch, zero;
    int schedule; /* word of fold.schedule */
} Point;

/* Of a step, predicted: seconds; bytes of the rank that needs most. */
typedef struct Forecast {
    double secs;  /* the makespan: */
    double open;  /*   transfers that nothing hides, */
    double idle;  /*   stages that wait, */
    double again; /*  what is made again for the backward, */
    double bytes;
    double optim; /* of these the optimizer's, which the host may hold */
} Forecast;

typedef struct SearchUnit { /* of a pipeline: a layer */
    const Scope *scope;
    Node **node; /* vec */
    int run;     /* of units that are alike */
    double flops;
} SearchUnit;

/* Of one unit: elements of parameters, those that an index picks and others;
 * bytes of what others read of it, of one sequence; experts of a token. */
typedef struct UnitShape {
    double dense, expert, row, chosen;
} UnitShape;

typedef struct SearchModel {
    SearchUnit *unit; /* vec */
    int nunit, nrun;
    int *left;        /* by run: its units */
    UnitShape *shape; /* by run */
    UnitShape ends;   /* of what is in no unit */
} SearchModel;

/* What a short plan's step takes, or the unit that it has more than another:
 * seconds of a micro-batch, of them transfers that nothing hides, and of what
 * is done once a step; launches of a micro-batch; bytes of what lives always,
 * of these the optimizer's, and at most in post; of the body's, and of the
 * fallback's, what is there once is no sum but the most of any unit, or of what
 * is in none. */
typedef struct UnitCost {
    double body, open, rest, calls, persist, optim, post_bytes;
    KeptBytes step, fallback;
} UnitCost;
typedef struct ModelCost {
    UnitCost *unit, ends; /* by run: of one unit; of what is in none */
} ModelCost;

typedef struct SearchTrace { /* the model with that many sequences */
    int64_t batch;
    Graph *g;
    const char **text; /* graphs of one unit of each run; [1 + run]: of two of
                          that run, null: it has one. null: not yet made */
} SearchTrace;

typedef struct Search {
    const Target *target;
    SearchTrace *model; /* vec */
    SearchModel units;  /* of the first */
    MachineSpeeds machine;
    const char *batch_key;             /* "axes.batch" */
    int64_t world, host, batch, limit; /* sequences of a step; bytes */
    int64_t seq, experts, tensor;      /* tensor: the most ranks of tp */
    double tokens, flops;              /* of a step, all ranks */
    double weight;  /* bytes of an element that kernels read */
    Arena *scratch; /* of one estimate */
    Table *cuts;    /* chunks -> Stages; with stages: where units are */
    Table *alive;   /* of a schedule: see search_alive */
} Search;

typedef struct ShortFold { /* whose short plans are made */
    Point point;
    int64_t world;
    int rebuild;   /* all that can be */
    int step_only; /* the fallback that counts rebuilds all, this does not */
    int pair;      /* micro-batches go in pairs */
} ShortFold;

enum {
    SHOWN = 10,
    MAXSCHEDULE = 8,
    MAXRATIO = 12
};                   /* rows of a table; words of its key */
enum { EXACT = 16 }; /* ranks of a world whose points are all compiled */
/* How a point has its price: see search.c. */
typedef enum PriceKind {
    PRICEscaled,
    PRICEshort,
    PRICEcompiled,
    PRICErefused,
    NPRICE
} PriceKind;

typedef struct Candidate {
    Point p;
    Forecast f, guess; /* guess: the price before this one */
    PriceKind known;
} Candidate;

/* search_from.c: a run that was measured. */
typedef struct MeasuredRun {
    const char *dir;
    const Plan *plan;
    Point point;
    size_t steps;
    double secs, predicted;    /* of a step: the median; by the plan */
    double kernels, transfers; /* measured over predicted, of each part */
    int here; /* its ranks and its batch are those of the search */
} MeasuredRun;

/* With what costs no time rebuilt; with all rebuilt; in pairs of micro-batches,
 * if pairs are possible (else without units). */
enum { COSTfree, COSTall, COSTpairs, NCOST };

/* What units cost in short plans of a fold; its schedule does not matter. */
typedef struct FoldPrice {
    Point point;
    int job[NCOST], done; /* 1 + the job of each, 0: none; JOBdone ..: of all */
    ModelCost cost[NCOST];
} FoldPrice;

/* Of several ratios the geometric mean. */
typedef struct Ratio {
    double log; /* sum of logs */
    int n;
} Ratio;

typedef struct Space {
    Search s;
    MeasuredRun *from; /* null: no run corrects what is predicted */
    const Args *args;
    Candidate *at;    /* vec, best first */
    FoldPrice *fold;  /* vec: those priced */
    FoldPrice *plain; /* vec: of one stage, with ranks of dp and ep only */
    size_t legal;     /* all points, also those left out as far too large */
    Candidate least;  /* of all of these the one of fewest bytes, as scaled */
    Point pin;        /* what is given; 0 (schedule and zero: -1): it is free */
    struct NearPin *near;    /* search_space.c */
    Ratio more[MAXSCHEDULE]; /* memory of compiled plans over what it was
                                estimated, of a schedule */
    double begun, end;
    Ratio ratio[MAXRATIO][MAXRATIO]; /* of short to scaled prices, by log2 of
                                        tp and of cp */
    int proven;
    int stopped; /* by the clock: with more time the answer may be another */
} Space;
double search_estimate(const Space *space,
                       const Candidate *candidate); /* seconds */
double search_bytes(const Space *space, const Candidate *candidate);
int search_fits(const Space *space, const Candidate *candidate);
double search_least(const Space *space); /* below which no plan takes */
/* Keys of from=runs/x that args->keys do not state; then, of the searched model
 * and machine, what its steps took. */
MeasuredRun *search_from(const Args *args);
void search_measure(Space *space);
int was_measured(const Space *space, const Candidate *candidate);
Forecast search_corrected(const Space *space, Forecast predicted);
double search_predicted(const Space *space, const Candidate *candidate);
/* search.c: the model with so many sequences in a micro-batch, 0: as it says; a
 * point's price; a fallback that rebuilds all. */
Graph *search_traced(const Space *space, int64_t batch);
Forecast search_priced(Space *space, const Point *p,
                       const ModelCost cost[NCOST]);
void finish_costs(const Space *space, ModelCost cost[NCOST]);
const ModelCost *search_plain(const Space *space, const Point *point);
/* search_space.c: reads space->pin; all points to space->at, priced from what
 * units cost on one rank (null: counted only). err() with the nearest choice
 * where there is no point, or none that fits. */
void search_pins(Space *space);
void search_list(Space *space, const ModelCost ref[2]);
_Noreturn void no_point(Space *space);
_Noreturn void nothing_fits(Space *space);
/* search_report.c: keys to paste; the best, its neighbours, why others lost. */
void put_fold(Text *out, const Point *point);
void put_point(Text *out, const Space *space, const Point *point);
void search_report(FILE *out, const Space *space, const Candidate *best);
/* Of -d space: a line each point that is not far too large, best first. */
void search_print_points(FILE *out, const Space *space);

/* Of each plan: was it made, refused, or not wholly tried before `end`? */
enum { JOBnot, JOBdone, JOBrefused };
double search_clock(void);                       /* seconds */
int search_cores(void);                          /* plans made at once */
void search_units(SearchModel *model, Graph *g); /* all but the shapes, */
void search_shapes(SearchModel *model, Graph *g);
void search_keys(Opts *opts, const Point *point);
/* out: nrun + 1 costs of plans for each fold, of which search_costs has what
 * units cost. */
char *search_short(const Search *search, const ShortFold *fold, int n,
                   UnitCost *out, double end);
char *search_whole(const Search *search, const Point *const *p, int n,
                   Forecast *out, double end);
/* What units cost, from short plans. */
ModelCost search_costs(const SearchModel *model, const UnitCost *plan);
/* search.c: the keys of the fold of a run on the ranks that args->keys say,
 * which it prints; empty where the model or its keys state one. Folds next to
 * that of a plan whose plans fit, with their keys. */
const char *search_fold(const Args *args);
int is_fold_key(const KeyInfo *key); /* of fold, and no launcher sets it */
int states_fold(const Opts *opts);   /* one of them */
void copy_fold(Opts *to, const Opts *from); /* all such keys that are given */
void put_fixes(Text *out, const Args *args, const Plan *p);
/* From what units cost on one rank with one sequence; plain: with the point's
 * sequences and ep, and no other ranks (null: not known). */
ModelCost search_scaled(const Search *search, const Point *point,
                        const ModelCost *ref, const ModelCost *plain);
Forecast search_combine(Search *search, const Point *point,
                        const ModelCost *cost);
/* search_memory.c: by stage of the point's schedule, made once; bytes of a rank
 * of it, whose units cost that, and what is in none. */
typedef struct StageAlive StageAlive;
const StageAlive *search_alive(Search *search, const Point *point,
                               int64_t micros);
double search_stage_bytes(const StageAlive *alive, int stage,
                          const Point *point, const UnitCost *units,
                          const UnitCost *ends);

/* ---- calibrate.c --------------------------------------------------------- */

extern const char calibrate_lua[];
int calibrate(Args *args); /* args->calibrate: the machine file it writes */

#endif
