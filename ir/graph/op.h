/* op.h: the op table, scalar expressions */
#ifndef PLEAT_OP_H
#define PLEAT_OP_H

/* ---- op.c: the op table -------------------------------------------------- */

typedef enum Op {
    NOP = -1,
#include "op_names.h" /* O<op> of each row; the build expands op_names.in */
    NNAMED,           /* then ops of functions.def, up to op_count */
#ifdef FUNCTION       /* names for tests */
    BEFORE_FUNCTIONS = NNAMED - 1,
#include "functions.def"
    NALLOPS
#endif
} Op;

typedef enum OpClass {
    SRC,  /* no operands: inputs, parameters, constants, iota */
    EW,   /* elementwise, broadcasting by axis name */
    RED,  /* removes its axes */
    EIN,  /* products of two operands summed over its axes */
    ROW,  /* works along one whole axis */
    VIEW, /* the same bytes under other axes */
    MOVE, /* copies elements to other places */
    COMP, /* composites and their gradients */
    COMM, /* collectives; only after `comm` */
    SINK  /* accumulators, writes of state, results */
} OpClass;

/* Families of kernels, one generator each. */
typedef enum Family {
    FAMloop, /* fused elementwise, views, moves, reductions */
    FAMgemm,
    FAMgmm,
    FAMgmm_wgrad, /* products: instructions without text */
    FAMblocks,    /* weights and their scales */
    FAMattn,
    FAMattn_bwd,
    FAMtopk,
    FAMcumsum,
    FAMdrop_to_capacity,
    FAMroute,
    FAMscatter,
    FAMfake_quantize,
    FAMcomm,
    FAMzero,
    FAMcopy, /* copies between device and host memory */
    FAMnone, /* none: a view, costs nothing */
    NFAMILY
} Family;

/* Type of an attribute, which determines its text form. */
typedef enum AttrType {
    ATint,
    ATreal,
    ATflag,
    ATstr,
    ATaxis,
    ATaxes,
    ATatoms,
    ATdtype,
    ATscales,
    ATreduce,
    ATrandom,
    ATstepvalue
} AttrType;

/* Is the attribute required? For an axis: its role in the op. See ops.def. */
typedef enum AttrUse { ATmay, ATmust, ATwhole, ATnew } AttrUse;

typedef struct AttrInfo {
    const char *name;
    AttrType type;
    AttrUse use;
    size_t at; /* offset in Attrs */
} AttrInfo;

/* Attributes of several ops, for attr.c. */
typedef enum SharedAttr {
    SHaxis,
    SHaxes,
    SHatoms,
    SHchan,
    SHname,
    NSHARED
} SharedAttr;

enum { MAXIN = 24 };

/* ---- scalar_expr.c: expressions of elementwise ops ----------------------- */

/* A C operator, or a function of kernels that is not an op. */
typedef struct ScalarWord {
    const char *text;
    int level; /* precedence: 1 ?:, 2 || .. 9 unary, SCALARCALL */
    int nin;
    Op op; /* NOP: only kernels have it */
} ScalarWord;

typedef enum ScalarKind {
    SCoperand,
    SCresult, /* gradients: the op's result, */
    SCgrad,   /* and the gradient of the result */
    SCnumber,
    SCop
} ScalarKind;

/* An immutable tree; equal trees are one object. */
enum { SCALARIN = 4, SCALARCALL = 10 };
typedef struct ScalarExpr ScalarExpr;
struct ScalarExpr {
    ScalarKind kind;
    int operand;         /* number of the operand */
    const char *literal; /* text of a number; its value */
    double number;
    Op op; /* NOP: only kernels have it */
    int n;
    const ScalarWord *word; /* null: a call of op */
    const ScalarExpr *in[SCALARIN];
};

/* Parses a text. names: one letter per operand, "c a b". */
const ScalarExpr *scalar_parse(const char *text, const char *names);
/* Expands every op to its expression, down to C operators and primitives, the
 * ops that kernels have as functions. */
const ScalarExpr *scalar_open(const ScalarExpr *scalar);
int scalar_is_primitive(Op op);
/* Returns the gradient of operand k of an op; null: none. AUTO rows use the
 * chain rule. */
const ScalarExpr *scalar_grad(Op op, int k);

typedef enum OpTrait {
    OPlinear = 1,
    OPbilinear = 2,
    OPcmp = 4,
    OPhidden = 8,
    OPapprox = 16
} OpTrait;

typedef struct OpInfo {
    const char *name;
    OpClass cls;
    int nin;              /* operands; -1: any number */
    const char *operands; /* "a b" */
    int nattr;
    const AttrInfo *attr;
    const AttrInfo *shared[NSHARED]; /* null: the op lacks it */
    unsigned special;                /* bit set of OpTrait: see ops.def */
    char gradkind;             /* 'E' expressions, 'A' auto, 'F' function, 0 */
    const ScalarExpr *grad[3]; /* 'E': per operand; null: none */
    const ScalarExpr *expr;    /* elementwise: expanded; null: no expression */
    const char *grad_text, *value_text; /* texts of the row, for help */
    Family fam;
} OpInfo;

extern const int op_count;
extern OpInfo optab[];          /* read-only after start */
int op_named(const char *name); /* -1: none */
static inline int op_is(Op op, OpTrait trait)
{
    return (optab[op].special & trait) != 0;
}
int op_calls(Op op); /* does it call a function, dearer than a load? */

#endif
