/* value.h: buffers and the shapes of values in them */
#ifndef PLEAT_VALUE_H
#define PLEAT_VALUE_H

/* ---- plan.c -------------------------------------------------------------- */

enum { MAXD = 10 }; /* axes of a tensor */
#define HUGEBYTES ((int64_t)1 << 56)

typedef enum BufClass {
    Bparam,   /* weights the model computes with */
    Bstate,   /* model states (router bias ...) */
    Boptim,   /* masters and moments */
    Bio,      /* inputs, step block, results */
    Btemp,    /* gradients, activations, everything else */
    Bscratch, /* kernels' and collectives' work space */
    Bstash,   /* stacks of rows */
    NBUFCLASS
} BufClass;
extern const char *const bufclasses[NBUFCLASS];

/* Buffers live in one arena of the device, and what is offloaded in one of the
 * host's memory, whose addresses begin at HOSTSPACE. Persistent classes never
 * overlap anything; the others are alive in one program from instruction `born`
 * to instruction `dies` inclusive (indices into that program's instructions;
 * the body repeats). */
#define HOSTSPACE ((int64_t)1 << 52)
typedef struct Buf {
    const char *name;
    BufClass cls;
    Dtype dt;
    int64_t offset, bytes; /* address in the arenas; offset % 256 == 0 */
    int prog;              /* program index; -1: alive always */
    int frame;             /* 1 + index of that program's frame: offset
                                     is inside each slot of it; 0: one place */
    int stack; /* 1 + index of the buffer in which its rows lie, at a row
                             that a word of the device says; 0: offset says */
    int born, dies;
    const char *file;
    int line; /* the Lua line that made it; null: none */
} Buf;

/* How a value lies on a rank: row-major, the last axis fastest. Axes of one
 * name in the shapes of an instruction are one axis. What is no product of its
 * axes (a row map) names those that cut it, and says its elements. */
typedef struct ValueDim {
    const char *axis;
    int64_t n;    /* on a rank */
    uint32_t cut; /* atoms over which ranks hold parts of it */
    int zigzag;   /* two pieces on each: see axis_pieces */
} ValueDim;
typedef struct ValueShape {
    Dtype dt;
    ScaleLayout scale;
    int map;       /* is it a row map */
    int64_t elems; /* on a rank; the product of its axes, but of a map */
    int nd;
    ValueDim dim[MAXD];
} ValueShape;
/* "flat.a1.a2": an axis that buckets have, cut over the atoms. */
const char *bucket_axis(Arena *a, const char *what, uint32_t atoms);
uint32_t shape_cut(const ValueShape *shape);  /* over all axes */
int64_t shape_elems(const ValueShape *shape); /* the product of its axes */
int64_t shape_bytes(const ValueShape *shape);
/* How many scales lie beside it; -1: a block would not be whole. */
int64_t shape_scales(const ValueShape *shape);
int shapes_equal(const ValueShape *x, const ValueShape *y);
int shape_dim(const ValueShape *shape, const char *axis); /* -1: none */

#endif
