/* text.h: kernel text and launch data, shared by all generators. A kernel
 * family has one generator, `<family>_lower(g, group, a)`. It fills
 * group->instr (kind, kernel, words, flops, bytes), group->arg, group->text and
 * group->scratch. */
#ifndef PLEAT_TEXT_H
#define PLEAT_TEXT_H

#include "../../ir/graph/graph.h"

/* ---- text.c -------------------------------------------------------------- */

/* Each function returns the index by which the text names the argument.
 * add_arg: index in buf[] of n's buffer; a buffer that is already an argument
 * keeps its index. The others: index in iv[] of a new word. */
int add_arg(Group *group, Arena *a, Node *n);
int add_word(Group *group, Arena *a, Word x);
int add_int(Group *group, Arena *a, RankAffine x);
int add_size(Group *group, Arena *a, int64_t x);
/* Declares `name`, a pointer to elements of C type `type` (`bytes` each), for
 * argument i. A stashed buffer starts at the row that its routing map gives. */
void put_pointer(Text *out, const Graph *g, Group *group, Arena *a, int i,
                 const char *type, int bytes, const char *name);
/* Sets the launch of a host kernel: `items` items, at least `grain` of them per
 * thread. */
void set_items(Group *group, int64_t items, int64_t grain);
/* set_text: makes group->text from a body "{ ... }" and the fixed signature of
 * host kernels. The kernel is named after the hash of the body. set_text_named:
 * the same for a complete function, in which "@(" marks the place of the
 * name. */
void set_text(Group *group, Arena *a, const char *body);
void set_text_named(Group *group, Arena *a, const char *text);
/* Sets the instruction's label, file and line from node n. */
void set_label(Group *group, Arena *a, const Node *n);
/* Appends a line indented by 4 * depth blanks. */
void put_line(Text *out, int depth, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A line "#define NAME v". */
void put_define(Text *out, const char *name, int64_t v);
int64_t divide_up(int64_t n, int64_t d); /* n / d, rounded up */
void vput_line(Text *out, int depth, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));
/* C names of the leaves of a scalar expression, and the type (Df32 or Df64) of
 * its functions and fractions. */
typedef struct ScalarNames {
    const char *const *operand, *result, *grad;
    Dtype dt;
} ScalarNames;
/* Prints an expression in C. */
void put_scalar(Text *out, const ScalarExpr *scalar, const ScalarNames *names);
/* The expression `text` over the operands a b c d; cached for the process. */
const ScalarExpr *scalar_of(const char *text);
/* x + y, x * k, and whether x is zero on every rank. */
RankAffine aff_add(RankAffine x, RankAffine y);
RankAffine aff_scale(RankAffine x, int64_t k);
int aff_zero(const RankAffine *affine);
/* Type of values of t in registers: f32 f64 i32 i64. */
Dtype compute_type(Dtype t);
/* text_load: C expression that converts x, an element of dt in memory, to its
 * type in registers. text_save: the reverse. */
const char *text_load(Arena *a, Dtype dt, const char *x);
const char *text_save(Arena *a, Dtype dt, const char *x);
/* C statement that declares float q[n] and sets q[l] = x / y for all lanes l
 * (divide() of cuda.pre); x and y are expressions in l. */
const char *text_quotients(Arena *a, const char *q, int n, const char *x,
                           const char *y);

/* ---- launch_grid.c: parameters and grid of GPU kernels ------------------- */

/* Multiprocessors of an H100 or H200 (SXM), the most of any Hopper GPU. Grids
 * that are divided by this number are correct on every GPU. */
enum { GPUBLOCKS = 132 };

/* cuda_put_parameters: prints the parameter list of a kernel and the arrays
 * buf[] and iv[]. Parameters are the buffers, then the words that depend on the
 * rank, keys and doubles; other words become constants of the text.
 * cuda_set_launch: sets the grid (y, z: 0 means 1) and removes the constant
 * words from the instruction. */
void cuda_put_parameters(Text *out, const Group *group);
void cuda_set_launch(Group *group, Arena *a, Launch l);

enum { THREADMAP = 256 }; /* threads of a block that computes one item */

/* ---- embedded files ------------------------------------------------------ */

extern const char host_pre[];
extern const char cuda_pre[];
extern const char hopper_cuh[];

#endif
