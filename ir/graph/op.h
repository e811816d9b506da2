/* op.h: the op table, scalar expressions */
#ifndef PLEAT_OP_H
#define PLEAT_OP_H

/* ---- op.c: the op table -------------------------------------------------- */

typedef enum Op {
    NOP = -1,
#include "op_names.h" /* O<op> of each row; the build expands op_names.in */
    NNAMED,           /* from here on: ops of functions.def, up to op_count */
#ifdef FUNCTION       /* tests name them */
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

/* Of kernels: one generator each. */
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
    FAMcopy, /* between the memories of device and host */
    FAMnone, /* none: a view, costs nothing */
    NFAMILY
} Family;

/* What an attribute is; its text is of that form. */
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

/* Must it be said; and an axis, has it a meaning for every op? See ops.def. */
typedef enum AttrUse { ATmay, ATmust, ATwhole, ATnew } AttrUse;

typedef struct AttrInfo {
    const char *name;
    AttrType type;
    AttrUse use;
    size_t at; /* in Attrs */
} AttrInfo;

/* Attributes that several ops have, for attr.c. */
typedef enum SharedAttr {
    SHaxis,
    SHaxes,
    SHatoms,
    SHchan,
    SHname,
    NSHARED
} SharedAttr;

enum { MAXIN = 24 };

/* ---- scalar_expr.c: what an elementwise op computes of an element -------- */

/* What stands between operands in C: an operator, or a function of kernels that
 * is no op. */
typedef struct ScalarWord {
    const char *text;
    int level; /* how closely it binds: 1 ?:, 2 || .. 9 unary, SCALARCALL */
    int nin;
    Op op; /* NOP: of kernels only */
} ScalarWord;

typedef enum ScalarKind {
    SCoperand,
    SCresult, /* in gradients: the op's result, */
    SCgrad,   /* and the gradient of it */
    SCnumber,
    SCop
} ScalarKind;

/* A tree; equal ones are one object, which nothing changes. */
enum { SCALARIN = 4, SCALARCALL = 10 };
typedef struct ScalarExpr ScalarExpr;
struct ScalarExpr {
    ScalarKind kind;
    int operand;         /* its number */
    const char *literal; /* a number as it was written, and its value */
    double number;
    Op op; /* NOP: only kernels have it */
    int n;
    const ScalarWord *word; /* null: a call of op */
    const ScalarExpr *in[SCALARIN];
};

/* names: of operands, one letter each, "c a b". */
const ScalarExpr *scalar_parse(const char *text, const char *names);
/* With what every op in it computes in its place, down to operators of C and
 * primitives: ops of which kernels have a function. */
const ScalarExpr *scalar_open(const ScalarExpr *scalar);
int scalar_is_primitive(Op op);
/* The gradient of operand k of an op; null: none. By the chain rule where the
 * op's row leaves it to its expression. */
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
    const AttrInfo *shared[NSHARED]; /* null: it has none such */
    unsigned special;                /* OpTrait: see ops.def */
    char gradkind;             /* 'E' expressions, 'A' auto, 'F' function, 0 */
    const ScalarExpr *grad[3]; /* 'E': by operand; null: none */
    const ScalarExpr *expr;    /* elementwise: opened; null: no expression */
    const char *grad_text, *value_text; /* as in the row, for help */
    Family fam;
} OpInfo;

extern const int op_count;
extern OpInfo optab[];          /* read only; made from the rows at start */
int op_named(const char *name); /* -1: none */
static inline int op_is(Op op, OpTrait trait)
{
    return (optab[op].special & trait) != 0;
}
int op_calls(Op op); /* it is made of a function, dearer than a load */

#endif
