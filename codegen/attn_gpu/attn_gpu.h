/* attn_gpu.h: attention kernels for GPUs, as jobs of rows and columns. */
#ifndef PLEAT_ATTN_GPU_H
#define PLEAT_ATTN_GPU_H

#include "../attn/attn.h"

extern const char attn_gpu_pre[], attn_warp_pre[], attn_wgmma_pre[];

/* ATWGROWS: rows of a block on tensor cores; ATWARPS: rows of a block
 * otherwise */
enum { ATJOBS = 16, ATWARPS = 8, ATWGROWS = 128 };
enum { ATSQUARE = ATWGROWS * ATWGROWS * 2 }; /* bytes: rows x rows of bf16 */
typedef struct AttnJob {
    int keys; /* rows are keys, columns are queries */
    int nover;
    Axis *over[MAXD]; /* score axes of the job's results */
    int nloop;
    Axis *loop[MAXD]; /* the other score axes */
    int nout;
    int out[MAXIN];    /* operands whose gradients it computes */
    int64_t split;     /* blocks that share an item */
    int stores, loads; /* stores, loads gradients of scores in workspace */
} AttnJob;

typedef struct AttnGpu {
    Attn attn;
    int back, tensor; /* backward; on tensor cores */
    AttnView out, lse, dout, delta;
    Node *grad[MAXIN];
    AttnJob job[ATJOBS];
    int njob;
    int64_t shared;  /* bytes of shared memory per block */
    int64_t cluster; /* blocks of a cluster */
    int64_t blocks;  /* blocks of the launch, */
    int64_t then;    /* blocks of the second launch of a pair */
    int64_t pairs;   /* pairs of launches; 0: one launch */
} AttnGpu;

/* Does the attention have a GPU kernel? attn_lower_cuda: the kernel of a group
 * with an attention, forward or backward. */
const char *attn_refused_cuda(const Graph *g, const Node *n);
void attn_lower_cuda(Graph *g, Group *group, Arena *a);
/* attn_jobs.c. attn_inner_count: elements per row of operand op.
 * attn_make_jobs: fills attn->job. attn_job_width: columns of the job's sums.
 * attn_has_out: does it compute the gradient of op? attn_most_width: largest
 * width of a job's sums. attn_gradient_view: the gradient of op. */
int64_t attn_inner_count(const Attn *attn, int op);
void attn_make_jobs(AttnGpu *attn);
int64_t attn_job_width(const AttnGpu *attn, const AttnJob *job);
int attn_has_out(const AttnJob *job, int op);
int64_t attn_most_width(const AttnGpu *attn);
AttnView attn_gradient_view(const AttnGpu *attn, int op);
/* attn_dscores.c. attn_workspace_bytes: wanted bytes of workspace; tests reduce
 * it. attn_share_dscores: decides whether jobs store and load gradients of
 * scores. attn_dscores_at, attn_waiting_at: their address for a tile, that of
 * the partial sums of result `out`. attn_sum_parts: parts over which a block's
 * sums continue. attn_combinations: combinations of a launch. */
extern int64_t attn_workspace_bytes;
void attn_share_dscores(AttnGpu *attn);
const char *attn_dscores_at(AttnGpu *attn, const AttnJob *job);
int64_t attn_sum_parts(const AttnGpu *attn, const AttnJob *job);
const char *attn_waiting_at(AttnGpu *attn, const AttnJob *job, int out);
int64_t attn_combinations(const AttnGpu *attn, const AttnJob *job);
void attn_warp_job(AttnGpu *attn, const AttnJob *job); /* attn_warp.c */
void attn_wg_job(AttnGpu *attn, const AttnJob *job);   /* attn_consumer.c */
void attn_wg_fetch(AttnGpu *attn, const AttnJob *job); /* loads of the job */
/* Forward: text before and behind the loop over a block's items. */
void attn_wg_open(AttnGpu *attn);
void attn_wg_close(AttnGpu *attn);
/* Do all jobs fit on tensor cores? Also sets attn->shared. */
int attn_wg_fits(AttnGpu *attn);

/* attn_producer.c: layout of a job in shared memory, and text that producer and
 * consumers share. */
enum { ATSLABS = ATDOTS + 2 };
/* An operand in shared memory: rows along axis `a`, W columns of which w are
 * used, at byte `at` of its stage. */
typedef struct AttnSlab {
    AttnView v;
    Axis *a, *in;
    int64_t w, W, at;
} AttnSlab;

/* A stage of the ring is handed over in parts; forward: keys, then values. */
typedef struct AttnWg {
    AttnGpu *gpu;
    const AttnJob *job;
    int nrow, ncol;
    int held;  /* leading operands of rows that stay in registers */
    int tight; /* weights of a tile wait in bf16 for their gradients */
    AttnSlab row[ATSLABS], col[ATSLABS]; /* dots, then values or dout */
    int64_t cols;                        /* columns of a tile */
    int64_t stages, lines; /* stages of tiles; buffers of rows (forward) */
    int64_t rowbytes, colbytes;
    int64_t dscores;      /* offset in a stage of gradients of scores */
    int64_t tiles, total; /* tiles of one combination, of all */
} AttnWg;

/* The layout of a job. attn_slab: rows of v along a, columns along `in`.
 * attn_straight: are its rows aligned vectors of k elements? attn_wg_sums:
 * columns of the job's sums. attn_wg_tiles: offset of the first stage.
 * attn_wg_changes: do rows change with the combination of loop axes? */
AttnWg attn_wg(AttnGpu *attn, const AttnJob *job);
AttnSlab attn_slab(const Attn *attn, AttnView v, Axis *a, Axis *in);
int attn_straight(const Attn *attn, const AttnSlab *slab, int64_t k);
int64_t attn_wg_sums(const AttnGpu *attn, const AttnJob *job);
int64_t attn_wg_tiles(const AttnWg *wg);
int attn_wg_changes(const AttnWg *wg);
/* Prints: the memory of the rows; the loop over visible tiles; a tile's
 * columns; the first visible tile of an item and the step to the next
 * (forward); the step to the next stage. */
void attn_wg_line(AttnWg *wg);
void attn_wg_over(AttnWg *wg);
void attn_wg_place(AttnWg *wg, int depth);
void attn_wg_first(AttnWg *wg);
void attn_wg_follow(AttnWg *wg);
void attn_wg_next(AttnWg *wg, int depth);

#endif
