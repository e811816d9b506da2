/* text.h: what all generators share. A family of kernels has one generator,
 * `<family>_lower(g, k, a)`, which fills k->instr (kind, kernel, ints, flops,
 * bytes), k->arg, k->text and k->scratch. */
#ifndef PLEAT_TEXT_H
#define PLEAT_TEXT_H

#include "../../ir/graph/graph.h"

/* ---- text.c: what all generators share ----------------------------------- */

/* Arguments of a kernel: both return the index to use in the text. */
int add_arg(Group *group, Arena *a,
            Node *n); /* buf[]: n's buffer; merges equal */
int add_word(Group *group, Arena *a, Word x); /* iv[] */
int add_int(Group *group, Arena *a, RankAffine x);
int add_size(Group *group, Arena *a, int64_t x);
/* Declares `name`, a pointer to elements of `type`, so many bytes each, of
 * argument i. Rows of a stash begin where the map says. */
void put_pointer(Text *out, const Graph *g, Group *group, Arena *a, int i,
                 const char *type, int bytes, const char *name);
void set_items(Group *group, int64_t items, int64_t grain); /* of a host */
/* A body "{ ... }" becomes group->text with the fixed signature, and the
 * kernel's name is made of the text's hash. */
void set_text(Group *group, Arena *a, const char *body);
void set_text_named(Group *group, Arena *a, const char *text);
/* Label and place of the instruction from the group's main node. */
void set_label(Group *group, Arena *a, const Node *n);
/* A line, four blanks a depth before it: what all generators write texts by. */
void put_line(Text *out, int depth, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void vput_line(Text *out, int depth, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));
/* What stands in C for the leaves of an expression, and the type of its
 * functions and fractions: f32 f64. */
typedef struct ScalarNames {
    const char *const *operand, *result, *grad;
    Dtype dt;
} ScalarNames;
void put_scalar(Text *out, const ScalarExpr *scalar, const ScalarNames *names);
const ScalarExpr *scalar_of(const char *text); /* over a b c d; parsed once */
RankAffine aff_add(RankAffine x, RankAffine y);
RankAffine aff_scale(RankAffine x, int64_t k);
int aff_zero(const RankAffine *affine);
Dtype compute_type(Dtype t); /* f32 f64 i32 i64 */
/* Element x of dt as it is in registers; x of registers as it is stored. */
const char *text_load(Arena *a, Dtype dt, const char *x);
const char *text_save(Arena *a, Dtype dt, const char *x);
/* float q[n], of lane l x / y, made side by side (divide, cuda.pre). */
const char *text_quotients(Arena *a, const char *q, int n, const char *x,
                           const char *y);

/* ---- launch_grid.c: kernels for GPUs ------------------------------------- */

/* Multiprocessors of an H100 or H200 (SXM): no GPU of their architecture has
 * more. What is dealt out by this number is right on any other. */
enum { GPUBLOCKS = 132 };

/* A kernel's parameters and the arrays they become; its grid. The parameters
 * are its buffers, then those words that depend on the rank; the others are
 * constants of the text, and go. y, z: 1 where the launch says 0. */
void cuda_put_parameters(Text *out, const Group *group);
void cuda_set_launch(Group *group, Arena *a, Launch l);

enum { THREADMAP = 256 }; /* threads of a block whose items are blocks */

/* ---- files that the build embeds ----------------------------------------- */

extern const char host_pre[]; /* host.pre, math.pre */
extern const char cuda_pre[]; /* cuda.pre, math.pre */
extern const char hopper_pre[];

#endif
