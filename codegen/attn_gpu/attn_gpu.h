/* attn_gpu.h: kernels of attention for GPUs, in jobs of rows and columns. */
#ifndef PLEAT_ATTN_GPU_H
#define PLEAT_ATTN_GPU_H

#include "../attn/attn.h"

extern const char attn_gpu_pre[], attn_warp_pre[], attn_wgmma_pre[];

enum { ATJOBS = 16, ATWARPS = 8, ATWGROWS = 128 }; /* rows of a block */
enum { ATSQUARE = ATWGROWS * ATWGROWS * 2 }; /* bytes: rows x rows of bf16 */
typedef struct AttnJob {
    int keys; /* rows are keys, columns are queries */
    int nover;
    Axis *over[MAXD]; /* score axes of the job's results */
    int nloop;
    Axis *loop[MAXD]; /* the others */
    int nout;
    int out[MAXIN];    /* operands whose gradients it makes */
    int64_t split;     /* blocks that share an item */
    int stores, loads; /* gradients of scores, in work space */
} AttnJob;

typedef struct AttnGpu {
    Attn attn;
    int back, tensor; /* backward; on tensor cores */
    AttnView out, lse, dout, delta;
    Node *grad[MAXIN];
    AttnJob job[ATJOBS];
    int njob;
    int64_t shared;  /* bytes of shared memory a block */
    int64_t cluster; /* blocks of a cluster */
    int64_t blocks;  /* of the grid, */
    int64_t then;    /* of the second launch of a pair */
    int64_t pairs;   /* of launches; 0: one launch alone */
} AttnGpu;

int attn_can_cuda(const Graph *g, const Node *n);
void attn_lower_cuda(Graph *g, Group *group, Arena *a); /* and backward */
/* attn_jobs.c */
int64_t attn_inner_count(const Attn *attn, int op);
void attn_make_jobs(AttnGpu *attn);
int64_t attn_job_width(const AttnGpu *attn,
                       const AttnJob *job);   /* of its sums */
int attn_has_out(const AttnJob *job, int op); /* the gradient of op */
int64_t attn_most(const AttnGpu *attn);
AttnView attn_grad(const AttnGpu *attn, int op);
/* attn_dscores.c */
extern int64_t attn_space; /* bytes of work space; tests want less */
void attn_share_dscores(AttnGpu *attn);
const char *attn_dscores_at(AttnGpu *attn, const AttnJob *job);
int64_t attn_sum_turns(const AttnGpu *attn, const AttnJob *job);
const char *attn_waiting_at(AttnGpu *attn, const AttnJob *job, int out);
int64_t attn_combinations(const AttnGpu *attn,
                          const AttnJob *job);         /* a launch's */
void attn_warp_job(AttnGpu *attn, const AttnJob *job); /* attn_warp.c */
void attn_wg_job(AttnGpu *attn, const AttnJob *job);   /* attn_consumer.c */
void attn_wg_fetch(AttnGpu *attn, const AttnJob *job); /* what the job reads */
void attn_wg_open(AttnGpu *attn); /* forward: around a block's items */
void attn_wg_close(AttnGpu *attn);
int attn_wg_fits(AttnGpu *attn); /* also fills attn->shared */

/* attn_producer.c: how a job lies in shared memory, what its two roles both
 * say. */
enum { ATSLABS = ATDOTS + 2 };
/* An operand in shared memory: `n` rows along axis `a`, W columns, w of them
 * real, at byte `at` of its place. */
typedef struct AttnSlab {
    AttnView v;
    Axis *a, *in;
    int64_t w, W, at;
} AttnSlab;

/* A place of the ring is handed over in parts: forward, keys, then values. */
typedef struct AttnWg {
    AttnGpu *gpu;
    const AttnJob *job;
    int nrow, ncol;
    int held;  /* the first rows, which threads hold as left operands */
    int tight; /* a tile's weights wait in bf16 for their gradients */
    AttnSlab row[ATSLABS], col[ATSLABS]; /* of dots, then v or dout */
    int64_t cols;                        /* columns of a tile */
    int64_t stages, lines;               /* places of tiles; forward, of rows */
    int64_t rowbytes, colbytes;
    int64_t dscores;      /* byte of a place where they begin */
    int64_t tiles, total; /* of one combination, of all */
} AttnWg;

AttnWg attn_wg(AttnGpu *attn, const AttnJob *job);
AttnSlab attn_slab(const Attn *attn, AttnView v, Axis *a, Axis *in);
int attn_straight(const Attn *attn, const AttnSlab *slab, int64_t k);
int64_t attn_wg_sums(const AttnGpu *attn, const AttnJob *job);
int64_t attn_wg_tiles(const AttnWg *wg); /* byte where tiles begin */
int attn_wg_changes(const AttnWg *wg);
void attn_wg_line(AttnWg *wg);
void attn_wg_over(AttnWg *wg);
void attn_wg_place(AttnWg *wg, int depth);
void attn_wg_first(AttnWg *wg);
void attn_wg_follow(AttnWg *wg);
void attn_wg_next(AttnWg *wg, int depth);

#endif
