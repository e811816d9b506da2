/* query.h: questions about plans: values, tensors, roles, overlap of buffers */
#ifndef PLEAT_QUERY_H
#define PLEAT_QUERY_H

enum {
    BUFALIGN = 256,  /* bytes: of buffers and slots of frames */
    PACKALIGN = 128, /* elements: of members of a bucket */
    PACKRUN = 64     /* elements: of a rank's run of a bucket */
};

typedef struct Span { /* bytes alive at times from..to, both */
    int id;           /*   included */
    int64_t offset, bytes;
    int from, to;
    int lo, hi; /* spans_meet's own */
} Span;
/* value_check.c value_types.c extent_check.c stage_match.c: of plans whose
 * instructions say what they read and make. */
int has_flow(const Role *role);
int64_t operand_bytes(const KernelOperand *operand);
/* The operand, a row map, that says at which row of a stack operand i begins;
 * -1: it begins at its place. */
int rows_from(const Plan *p, const Instr *instr, int i);
void tensor_shape(const Tensor *tensor,
                  ValueShape *shape);      /* not of a bucket */
uint32_t plan_dim_cut(const PlanDim *dim); /* atoms that cut it */
int is_zigzag(const PlanDim *dim);         /* its second pieces go backwards */
/* May what lies like x be read like y, without a byte moved? */
int is_view_of(const ValueShape *y, const ValueShape *x);
int shapes_renamed(const ValueShape *x, const ValueShape *y); /* ... in place */
/* Say of a kernel's integers which places they are. */
void mark_places(Arena *a, const Mesh *m, Instr *instr,
                 const ValueShape *const *in, const ValueShape *const *out);
/* The rows of each tensor fill it and share nothing; *at: the row that is
 * wrong. */
const char *hf_tensors_wrong(Arena *a, const HfMap *map, int n,
                             const HfMap **at);
/* Do any two overlap while both are alive? Then their ids. Sorts span. */
int spans_meet(Span *span, int n, int *one, int *two);

/* workspace.c: bytes of work space (operand `work`) that a product or a
 * collective over `ranks` needs on the host. An all-reduce of up to GATHERSUM
 * bytes of all ranks gathers them all on each rank. */
enum { GATHERSUM = 1 << 16 };
int64_t instr_work(const Instr *instr, int64_t ranks);

/* row_map.c: where words of the map of an exchange of rows begin, and how many
 * there are. pair[slot]: token * ranks + rank of what stands in that row of all
 * blocks, -1: nothing, nor behind it in its block; row[token * ranks + rank]:
 * its row among all blocks', -1: none. */
typedef struct RowsMap {
    int64_t pair, row, n;
} RowsMap;
RowsMap rows_map(const RowsArgs *args, int64_t ranks);
/* Sets the operands and words of the signature of an exchange's kernel. */
void declare_rows(Arena *a, const Instr *instr, int64_t ranks,
                  KernelSignature *signature);
enum { PEERBLOCKS = 64 };       /* such a kernel has no more of them */
int moves_rows(InstrKind k);    /* is it such an exchange? */
int plan_shares(const Plan *p); /* do rows go through memory of several? */
int role_of(const Plan *p, int64_t rank);
int in_host(const Role *role, const Buf *b); /* in the host's arena? */
int frame_in_host(const SlotGroup *group);
/* Of such instructions the sets of atoms, in the order of the plan: a vec. */
uint32_t *plan_groups(Arena *a, const Plan *p, int is(InstrKind));
int role_tensor(const Role *role, const char *name); /* -1: none */
const Tensor *tensor_companion(const Role *role, const Tensor *of,
                               TensorKind kind);     /* null: none */
int tensor_is(const Tensor *tensor, unsigned kinds); /* of one of a set */
int is_copy(const Tensor *tensor); /* an earlier stage owns it */
/* The first axis of that role; null: none. */
const PlanDim *tensor_axis(const Tensor *tensor, AxisRole k);
/* Is the input (name, dt) rather that of a step's tokens than (was, of)? It is
 * named so, else it is the first of integers, else the first. */
int names_tokens(const char *was, Dtype of, const char *name, Dtype dt);
int64_t plan_tokens(const Plan *p); /* that run at once; 0: no inputs */
ProgramKind program_of_step(const Plan *p, int64_t step);     /* step: from 1 */
int role_prog(const Role *role, ProgramKind k);               /* -1: none */
const Program *role_program(const Role *role, ProgramKind k); /* or null */
int role_value(const Role *role, StepValue v);   /* of `in`; -1: none */
int role_result(const Role *role, ResultKind k); /* of `out`; -1: none */
/* Sums and products of sizes; they saturate at HUGEBYTES. */
int64_t sat_mul(int64_t a, int64_t b);
int64_t sat_add(int64_t a, int64_t b);
/* " (file:line)"; "" without a file. */
const char *place_text(Arena *a, const char *file, int line);

#endif
