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
    int spare;   /* a further result, no argument of a function that takes no
                    more */
} LuaTensor;

/* An entry of hf{}, read when all parameters are known. */
typedef struct HfEntry {
    const char *param, *hf, *axes;
    const Loc *loc;
    int found; /* parameters it names */
} HfEntry;

/* optimizer(): f is its function in Lua's registry. */
typedef struct Optimizer {
    const char *name;
    const char **state; /* vec */
    const char **kind;  /* vec: of each state, "fp32 of rows" */
    const char *states; /* "m z:fp32" */
    const char *params; /* a pattern; null: those of train.optimizer */
    const char *others; /* it takes matrices, that optimizer the others; null:
                           it takes all */
    int f;
    const Loc *loc;
} Optimizer;

/* The parameters of low rank that lora() adds to a weight. */
typedef struct Adapter {
    const Param *weight;
    Dim rank;
    double alpha;
} Adapter;

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

/* again(name, ..): paths of parameters begin with `name` where those of scopes
 * begin with `scope`. */
typedef struct Again {
    const char *name, *scope;
    int call; /* from 1 */
} Again;

typedef struct Front {
    lua_State *L;
    Stated *stated; /* vec */
    CutList *cuts;  /* vec */
    Graph *g;
    Body *body;     /* being traced, or null */
    Graph **bodies; /* vec: of all composites */
    const Scope *scope;
    const Again *again;     /* null: outside of again() */
    const char *file, *dir; /* of the model */
    const Opts *cmdline;
    const Loc *loc;                /* of the call being served */
    const char *fn;                /* and its name */
    Table *locs, *places, *onehot; /* onehot: nodes of one_hot() */
    Source *source;                /* vec: every file read */
    const Source *given;
    int ngiven;           /* read these instead of files */
    HfEntry *hf;          /* vec */
    Optimizer *optimizer; /* vec */
    Table *lookups;       /* parameters that an index looks up, by path */
    Adapter *adapter;     /* vec */
    size_t heap;          /* bytes Lua holds */
    int64_t hooks;        /* of HOOKSTEP instructions each */
    const Loc *full;      /* where memory ran out */
    int ndropout, nagain, quiet;
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
int push_spare(lua_State *L, Node *n);
void drop_spare(lua_State *L, int most); /* of more arguments than that */
Graph *current(Front *front);
/* The node v stands for in the graph being traced; outer ones are operands. */
/* a at index e of its axis, which e may have too. */
Node *gathered(Front *front, Node *a, Node *e, Axis *axis);
void find_roles(Front *front); /* roles.c */
void bound_ids(Front *front);  /* ids.c */
void check_whole(Graph *g);    /* settings.c */
/* err() at loc where the pattern matches no parameter. */
void check_pattern(const Graph *g, const char *what, const char *pattern,
                   const Loc *loc);
int state_role(lua_State *L); /* role(axis, name) */
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

/* A parameter or state of that path, kind, dims and first value. */
Node *declare_lasting(Front *front, const Param *like);
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
int lua_optimizer(lua_State *L);
int optimizers_finish(lua_State *L); /* once the model is known */
Body *open_body(Front *front);       /* what is traced from now on goes there */
int lua_adapters(lua_State *L);      /* for the prelude */
void peft_maps(
    Front *front); /* rows of hf{} for adapters, the key hf.adapter */
void hf_finish(Front *front);
/* The place of an axis, by n bytes of its name; -1: p has none. */
int param_axis(const Param *p, const char *s, size_t n);
void hf_config(lua_State *L, Front *front); /* of the table on top */
void hf_config_check(Front *front);
/* Marks nodes that a sink needs; the number of losses and outputs. */
int mark_used(Graph *g);
void decl_finish(Front *front);
void compose_finish(Front *front);
/* Sorted keys of the table at arg (strings only), so that nothing depends on
 * Lua's order. */
const char **sorted_keys(lua_State *L, int arg, int *n);

extern const char prelude_lua[];

/* ---- report.c ------------------------------------------------------------ */

void report_model(FILE *out, const Graph *g);
/* "optimizer muon; adamw: embed norm.weight": those that train.optimizer does
 * not update. Nothing: it updates all. */
void report_optimizers(FILE *out, const Graph *g);
void report_json(FILE *out, const Graph *g); /* the numbers of --json */
/* ---- commands.c new.c ---------------------------------------------------- */

const Target *target_of(const Opts *opts);
/* What editors and luacheck read of the language. */
const char *editor_text(Arena *a), *luacheck_text(Arena *a);

/* ---- search/search.c ----------------------------------------------------- */

/* search.c: the keys of the fold of a run on the ranks that args->keys say,
 * which it prints; empty where the model or its keys state one. */
const char *search_fold(const Args *args);
int is_fold_key(const KeyInfo *key); /* of fold, and no launcher sets it */
int states_fold(const Opts *opts);   /* one of them */
void copy_fold(Opts *to, const Opts *from); /* all such keys that are given */
/* The keys with which a plan that does not fit does and computes the same;
 * null: there are none. Prints folds and settings next to it that fit to
 * `out`. */
const char *search_fix(Text *out, const Args *args, const Plan *p);

/* ---- calibrate.c --------------------------------------------------------- */

extern const char calibrate_lua[];
int calibrate(Args *args); /* args->calibrate: the machine file it writes */

#endif
