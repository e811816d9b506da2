/* plan.h: execution plans: the interface of compiler and runtime */
#ifndef PLEAT_PLAN_H
#define PLEAT_PLAN_H

#include "../settings/settings.h"

#include "value.h"

#include "instruction.h"

#include "program.h"

#include "tensor.h"

typedef struct Kernel {
    const char *name, *text;
} Kernel;
typedef struct Source {
    const char *file, *text;
} Source;

typedef struct Role { /* what the ranks of one pipeline stage run;
                                     role i: those with position i over pp */
    int nbuf;
    Buf *buf;
    int64_t arena;   /* bytes of the arena */
    int64_t persist; /* bytes of it that are alive always */
    int64_t host;    /* bytes of the host's arena */
    int nprog;
    Program *prog;
    int ntensor;
    Tensor *tensor;
    int nin;
    Scalar *in; /* step block */
    int nout;
    Scalar *out; /* result block */
} Role;

typedef struct Plan {
    const char *model, *target; /* model file's name; "host" "cuda" "null" */
    Mesh *mesh;
    Opts *opts;
    int64_t tokens;         /* of one step, all ranks */
    int64_t params, active; /* of the model */
    double flops;           /* of one step by formula C3, all ranks */
    int nshape;
    ValueShape *shape; /* of the values of all programs */
    int nrole;
    Role *role;
    int nsig;
    KernelSignature *sig; /* of the kernels' calls */
    const char *prelude;  /* kernel text before all kernels */
    const char *host; /* ... of the host's, where others are no such; null */
    int nkernel;
    Kernel *kernel;
    int nhf;
    HfMap *hf;
    int nsource;
    Source *source;
} Plan;

/* signature.c: the kernel whose text this is, with its name in place of the @
 * of the first "@(". The name is k_ and the hash of the text. */
Kernel kernel_new(Arena *a, const char *text);
int kernel_is_named(const Kernel *kernel); /* by the hash of its text? */
/* A line behind "sig"; words of a kernel's instruction from it. */
void signature_text(Codec *codec, KernelSignature *signature);
void set_signature_hash(KernelSignature *signature);
/* The signature that a kernel or an exchange of rows calls; sig -1: none. */
KernelArgs instr_call(const Instr *instr);
void bind_signature(Arena *a, const KernelSignature *signature, Instr *instr);
char *kernels_of_host(Arena *a, const Plan *p); /* by kernel */
void put_hf(Text *out, const HfMap *map);       /* one line of words */
void lex_hf(Lex *lex, HfMap *map);
void program_text(Codec *codec, Program *prog);         /* behind "program" */
char *plan_print(Arena *a, const Plan *p, size_t *len); /* with its hash line */
/* Parse and validate (every count, index, offset and size). err() when not a
 * plan, damaged, or inconsistent; `name` is what messages call the file. */
Plan *plan_parse(Arena *a, const char *text, size_t len, const char *name);
/* A plan of another format that plan_parse meets, when set: a plan of this one,
 * made from its rest. Else err() names both. */
extern Plan *(*plan_anew)(const Plan *rest, int64_t format, const char *name);
/* Length without the hash line; err() when that is not there or not right. */
size_t plan_verify(const char *text, size_t len, const Loc *loc);
/* planold.c: of any format. 0: not a plan. Model, target, keys and sources. */
int64_t plan_format(const char *text, size_t len);
Plan *plan_rest(Arena *a, const char *text, size_t len, const char *name);
/* Null, or what is wrong with it: right about hostile plans too. */
const char *plan_wrong(Arena *a, const Plan *p);
void plan_check(const Plan *p); /* die() when wrong */

#include "query.h"

#include "schedule.h"

#include "time_model.h"

#endif
