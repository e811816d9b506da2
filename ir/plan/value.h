/* value.h: buffers and the shapes of values in them */
#ifndef PLEAT_VALUE_H
#define PLEAT_VALUE_H

/* ---- plan.c -------------------------------------------------------------- */

enum { MAXD = 10 }; /* most axes of a tensor */
#define HUGEBYTES ((int64_t)1 << 56)

typedef enum BufClass {
    Bparam,   /* weights of the model */
    Bstate,   /* model states (router bias ..) */
    Boptim,   /* masters and moments */
    Bio,      /* inputs, step block, results */
    Btemp,    /* gradients, activations, everything else */
    Bscratch, /* workspace of kernels and collectives */
    Bstash,   /* stacks of rows */
    NBUFCLASS
} BufClass;
extern const char *const bufclasses[NBUFCLASS];

/* Buffers are in an arena of the device, offloaded ones in an arena of host
 * memory, whose addresses begin at HOSTSPACE. Buffers of persistent classes
 * never overlap others; transient ones are live in one program from instruction
 * `born` to instruction `dies` inclusive (indices of that program's
 * instructions; the body repeats). */
#define HOSTSPACE ((int64_t)1 << 52)
typedef struct Buf {
    const char *name;
    BufClass cls;
    Dtype dt;
    int64_t offset, bytes; /* address in the arenas; offset % 256 == 0 */
    int prog;              /* program index; -1: persistent */
    int frame;             /* 1 + index of the program's frame: offset is
                                     inside each of its slots; 0: fixed place */
    int stack; /* 1 + index of the buffer with its rows, at a row stored in
                             device memory; 0: at offset */
    int born, dies;
    const char *file;
    int line; /* the Lua line that made it; null: none */
} Buf;

/* Layout of a value on a rank: row-major, the last axis fastest. Axes of one
 * name in the shapes of an instruction are one axis. A row map, which is not a
 * product of axes, has the axes that shard it and its number of elements. */
typedef struct ValueDim {
    const char *axis;
    int64_t n;    /* local size */
    uint32_t cut; /* atoms that shard it */
    int zigzag;   /* two pieces a rank: see axis_pieces */
} ValueDim;
typedef struct ValueShape {
    Dtype dt;
    ScaleLayout scale;
    int map; /* is it a row map? */
    int64_t
        elems; /* local elements; the product of its axes except for a map */
    int nd;
    ValueDim dim[MAXD];
} ValueShape;
/* Returns "flat.a1.a2": an axis of buckets, sharded over the atoms. */
const char *bucket_axis(Arena *a, const char *what, uint32_t atoms);
uint32_t shape_cut(const ValueShape *shape);  /* atoms of all axes */
int64_t shape_elems(const ValueShape *shape); /* the product of its axes */
int64_t shape_bytes(const ValueShape *shape);
/* Returns the number of its scales; -1: a block would not be whole. */
int64_t shape_scales(const ValueShape *shape);
int shapes_equal(const ValueShape *x, const ValueShape *y);
int shape_dim(const ValueShape *shape, const char *axis); /* -1: none */

#endif
