/* search.h: points of the space of folds, their estimates and plans. */
#ifndef PLEAT_SEARCH_H
#define PLEAT_SEARCH_H

#include "../frontend.h"

/* ---- search.c search_cost.c search_jobs.c -------------------------------- */

/* A point of the space that `search` goes through. */
typedef struct Point {
    int64_t size[NMESH], vpp, batch, zero;
    int schedule;     /* word of fold.schedule */
    const char *more; /* keys beside these; null: none */
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
    int64_t seq, experts;
    double tokens, flops; /* of a step, all ranks */
    double weight;        /* bytes of an element that kernels read */
    Arena *scratch;       /* of one estimate */
    Table *cuts;          /* chunks -> Stages; with stages: where units are */
    Table *alive;         /* of a schedule: see search_alive */
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
/* Nodes of short plans that the default budget makes, twice as many above WIDE
 * ranks. */
enum { BUDGET = 370000, WIDE = 64 };
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
    struct NearPin *near;              /* search_space.c */
    Ratio slow[2 * (MAXSCHEDULE + 1)]; /* time of compiled plans over what it
                                          was estimated: of a schedule, of one
                                          stage; of each, ZeRO <= 1 and more */
    Ratio more[MAXSCHEDULE]; /* memory of compiled plans over what it was
                                estimated, of a schedule */
    double begun, end;
    double enough; /* seconds: the search ends at a plan that takes no more, or
                      where none can; 0: at the best */
    const char *less;                /* a key to paste, too; null: none */
    Ratio ratio[MAXRATIO][MAXRATIO]; /* of short to scaled prices, by log2 of
                                        tp and of cp */
    double work, most; /* nodes of the plans made, and how many may be */
    double said;       /* seconds of the plan that search_say named last */
    int runs;          /* for a run that states no fold */
    int proven;
    int stopped; /* by the clock or the budget: with more of it the answer may
                    be another */
} Space;
double search_estimate(const Space *space,
                       const Candidate *candidate); /* seconds */
/* A whole plan in nodes of short ones; null: one that is made to fit. */
double search_whole_work(const Space *space, const Candidate *candidate);
double search_bytes(const Space *space, const Candidate *candidate);
int search_fits(const Space *space, const Candidate *candidate);
int forecast_fits(const Space *space, const Forecast *forecast);
void search_sizes(Space *space, Graph *g); /* reads them of the model */
double search_least(const Space *space);   /* below which no plan takes */
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
/* search_shorts.c: of n folds what became of their short plans (JOBdone ..), of
 * those made the costs; one rank's, 0: the model has no such plan; all of
 * space->plain, and that of a point's ep, null: there is none. */
const char *search_price_shorts(Space *space, const ShortFold *fold, int n,
                                ModelCost *cost);
int search_reference(Space *space, ModelCost ref[2]);
void search_price_plain(Space *space);
const ModelCost *search_plain(const Space *space, const Point *point);
/* The jobs of a fold behind those of `want`: with what costs no time rebuilt,
 * and if asked, with all, and in pairs; then what they say, of their costs. */
FoldPrice search_add_jobs(ShortFold **want, Point p, int64_t world, int all,
                          int pairs);
void search_take_costs(FoldPrice *fold, const char *done,
                       const ModelCost *cost);
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
/* Name on standard error a candidate that is faster than the one named before,
 * and what is estimated first; how much of the budget is used, on a terminal.
 * Neither says anything of a run, of -d space or with --json. */
void search_say(Space *space, const Candidate *candidate);
void search_progress(const Space *space);
/* Of -d space: a line each point that is not far too large, best first. */
void search_print_points(FILE *out, const Space *space);

/* Of each plan: was it made, refused, or not wholly tried before `end`? */
enum { JOBnot, JOBdone, JOBrefused };
/* The best compiled plan that fits; err() where there is none. Returns it. */
const Candidate *search_space(Space *space);
/* Writes the points or the report of a search by Args. Returns the status. */
int search_job(void *arg, FILE *out);
double search_clock(void);                       /* seconds */
int search_cores(void);                          /* plans made at once */
void search_units(SearchModel *model, Graph *g); /* all but the shapes, */
void search_shapes(SearchModel *model, Graph *g);
void search_keys(Opts *opts, const Point *point);
/* out: nrun + 1 costs of plans for each fold, of which search_costs has what
 * units cost. */
char *search_short(const Search *search, const ShortFold *fold, int n,
                   UnitCost *out, double end);
/* Nodes of the plans of a fold by search_short. */
double search_short_work(const Search *search);
char *search_whole(const Search *search, const Point *const *p, int n,
                   Forecast *out, double end);
/* What units cost, from short plans. */
ModelCost search_costs(const SearchModel *model, const UnitCost *plan);
/* The cost of a point, scaled from costs of units on one rank (ref) with the
 * sequences of the first model;
 * plain: with these and the point's ep, and no other ranks (null: not known).
 */
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

#endif
