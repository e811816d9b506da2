/* tensor.h: tensors that the runtime moves, step and result values */
#ifndef PLEAT_TENSOR_H
#define PLEAT_TENSOR_H

/* One axis of a stored or exchanged tensor, of which a rank holds pieces. */
/* What an axis is for (frontend/lang/roles.c): which mesh axes may cut it. */
typedef enum AxisRole {
    ROLEnone,
    ROLEmicro, /* micro-batches that run at once: implicit in all data */
    ROLErow,   /* token rows in order of their experts; ragged */
    ROLEbatch,
    ROLEseq,
    ROLEkey,
    ROLEheads,
    ROLEgroup, /* heads that only queries have */
    ROLEffn,
    ROLEvocab,
    ROLEchoice, /* experts */
    ROLEother,  /* no mesh axis takes it */
    NROLE
} AxisRole;
extern const char *const axisroles[NROLE];
int role_named(const char *s); /* -1: none */

typedef struct PlanDim {
    const char *axis;
    AxisRole role;
    int64_t n; /* global */
    int npiece;
    Piece *piece;
} PlanDim;

typedef enum TensorKind { /* rows of tensors.def */
#define TENSOR(id, cls, prefix) TK##id,
#include "tensors.def"
                          NTENSORKIND
} TensorKind;
typedef struct TensorInfo {
    const char *name;
    BufClass cls;       /* of its buffer; NBUFCLASS: any */
    const char *prefix; /* of its name */
} TensorInfo;
extern const TensorInfo tensor_kinds[NTENSORKIND];
/* Characters before the parameter or bucket in the name of what is of a kind:
 * of "optim.m.w", a moment, 8; -1: no name of that kind. */
int kind_prefix(TensorKind kind, const char *name);
#define HISTORYPREFIX "fp8." /* of names of histories */
enum {
    PARAMETERS = 1 << TKparam | 1 << TKnumbers, /* sets, for tensor_is */
    MODELTENSORS = PARAMETERS | 1 << TKstate | 1 << TKhistory,
    COPIEDTENSORS = 1 << TKcopy | 1 << TKcopied,
    MASTERS = 1 << TKmaster | 1 << TKremainder,
    MOMENTS = 1 << TKmoment,
    COMPANIONS = 1 << TKscales | MASTERS | MOMENTS /* kept beside one */
};

/* A tensor the runtime moves in or out: params, states, moments (saved in
 * checkpoints under `name`), inputs, outputs. */
typedef struct Tensor {
    const char *name; /* "layers.0.moe.w1", "optim.m.<path>" */
    TensorKind kind;
    Dtype dt;
    int nd;
    PlanDim dim[MAXD];
    int buf;
    int second;    /* input: of a pair's second micro-batch */
    int64_t below; /* input: integers are; 0: any */
    int of;        /* COMPANIONS: of this parameter, a tensor of the role */
    /* A run of a bucket (ZeRO). Of the local part that dim[] describes, row
     * major, this rank has the elements that fall into [pos*run, (pos+1)*run)
     * when its first is element `at` of the bucket; they lie in buf from
     * element max(0, at - pos*run) on. pos: mesh_pos over `shard`. run 0: the
     * rank has all of the local part, from element `at` of buf on. */
    int64_t at, run;
    uint32_t shard;
    const char *file;
    int line;
} Tensor;

/* scalars.c: the step block, written by the runtime before a step */
typedef enum StepValue {
    STEPlr,
    STEPbc1, /* 1 - beta^(optimizer_step + 1) of Adam's moments */
    STEPbc2,
    STEPstep,
    STEPmicro,     /* before each micro-batch: its number in the step */
    STEPhold,      /* nothing is to be written */
    STEPskip_loss, /* limits of train.skip_above */
    STEPskip_gnorm,
    STEPoptimizer_step, /* steps since the optimizer's states were 0 */
    NSTEPVALUE
} StepValue;
extern const char *const stepvalues[NSTEPVALUE];

/* ... and the result block, read after it */
typedef enum ResultKind {
    RESULTloss,
    RESULTgrad_norm,
    RESULTok,       /* 0: the step changed nothing */
    RESULToverflow, /* rows did not fit */
    RESULTterm,     /* of the loss, which the model names: "loss.lm" */
    RESULTmetric,   /* "metric.balance" */
    RESULTreach,    /* "reach.<history>": a tensor's largest magnitude over what
                       its scale allows (passes/quant/delayed.c) */
    RESULTbeyond, /* "beyond.<axis>'<n>": the largest index beyond its axis, or
                     0; '-<n>: the least below -1, negated */
    NRESULT
} ResultKind;

typedef struct Scalar {
    const char *name;
    int buf;
    Dtype dt;
    ValueDim dim;      /* of a vector; n 0: it is a number */
    StepValue value;   /* of the step block */
    ResultKind result; /* of the result block */
    const char *own;   /* ... "lm" of "loss.lm" */
} Scalar;
int64_t scalar_elems(const Scalar *scalar);
int result_named(Scalar *scalar); /* from its name; 0: there is none such */

/* One Hugging Face tensor, or part of one, as it maps to a parameter. Each dim
 * is a mixed radix of factors, major first: an axis of the parameter at an
 * offset inside its total, or a fixed index (axis null, n 1, at start). */
typedef struct HfFactor {
    const char *axis;
    int64_t total, start, n;
} HfFactor;
typedef struct HfDim {
    int nf;
    HfFactor f[4];
} HfDim;
typedef struct HfMap {
    const char *hf, *param;
    /* Unrolled axes. fixat -1: every index, a tensor each, with it in `hf`. */
    int nfix;
    const char *fixaxis[4];
    int64_t fixat[4];
    int nd;
    HfDim dim[MAXD];
} HfMap;

#endif
