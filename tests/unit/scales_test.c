/* scales_test: scales of blocks, as kernels make them, by the formulas that
 * Transformer Engine and torchao publish: data/scales.py makes the sums. */
#include "hostrun.h"
#include "trials.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BF16 = 0x7f80, COUNT = BF16 + 200000 };

typedef struct Inputs {
    Graph *g;
    Node *amax, *tensor; /* of a block, of all of the tensor that it is in */
} Inputs;

/* ---- formulas ------------------------------------------------------------ */

static Node *ew(const Inputs *in, Op op, Node *a, Node *b)
{
    return g_ew(in->g, op, NULL, a, b, NULL);
}

static Node *number(const Inputs *in, double x)
{
    return g_const(in->g, NULL, Df32, x);
}

static Node *current(const Inputs *in, double most)
{
    return ew(in, Oamax_scale, in->amax, number(in, most));
}

static Node *block(const Inputs *in, double most)
{
    return ew(in, Opow2_scale, in->amax, number(in, most));
}

static Node *mx_stored(const Inputs *in, double most)
{
    return g_cast(in->g, ew(in, Omx_inverse, in->amax, number(in, most)),
                  De8m0);
}

static Node *mx(const Inputs *in, double most)
{
    return ew(in, Omx_scale, g_cast(in->g, mx_stored(in, most), Df32), NULL);
}

static Node *nv_tensor(const Inputs *in)
{
    return ew(in, Oamax_scale, in->tensor, number(in, 6 * 448));
}

static Node *nv_stored(const Inputs *in, double most)
{
    (void)most;
    return g_cast(in->g, ew(in, Onv_inverse, in->amax, nv_tensor(in)), De4m3);
}

static Node *nv(const Inputs *in, double most)
{
    return ew(in, Onv_scale, g_cast(in->g, nv_stored(in, most), Df32),
              nv_tensor(in));
}

/* clang-format off */
static const struct {
    const char *name;
    Node *(*make)(const Inputs *in, double most);
    double most;
    float least; /* amax that the published formula takes as it is */
    uint64_t want;
} rows[] = {
    { "te current e4m3", current,   448,   0,      0x3062708a6af92da7 },
    { "te current e5m2", current,   57344, 0,      0xd78ee512b64e0552 },
    { "te block",        block,     448,   0,      0x937c44d614000000 },
    { "torchao tensor",  current,   448,   1e-12f, 0xab94061bd3350d9b },
    { "torchao power",   block,     448,   1e-12f, 0x9097a40d94800000 },
    { "te mx stored",    mx_stored, 448,   0,      0x60cccec646c00000 },
    { "te mx",           mx,        448,   0,      0x51e4aea83e000000 },
    { "te nv stored",    nv_stored, 0,     1e-30f, 0xd961272ab0b00000 },
    { "te nv",           nv,        0,     1e-30f, 0xc52242a4383e1279 },
};
/* clang-format on */
enum { NROW = sizeof rows / sizeof *rows };

/* ---- numbers ------------------------------------------------------------- */

static uint32_t mixed(uint32_t i)
{
    uint32_t z = i * 0x9e3779b9u + 0x7f4a7c15u;

    z = (z ^ z >> 16) * 0x85ebca6bu;
    z = (z ^ z >> 13) * 0xc2b2ae35u;
    return z ^ z >> 16;
}

static float of_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static uint32_t bits_of(double x)
{
    float y = (float)x;
    uint32_t u;

    memcpy(&u, &y, sizeof u);
    return u;
}

/* 0 and all positive numbers of bf16, then fp32 of random bits; finite. */
static float amax_at(uint32_t i)
{
    uint32_t u = mixed(i - BF16) & 0x7fffffff;

    return of_bits(i < BF16 ? i << 16 : u >= 0x7f800000u ? u - 0x40000000u : u);
}

/* Of a tensor that may have such a block: 1 to 2^14 times as much, and more. */
static float tensor_at(uint32_t i)
{
    float part = 1 + of_bits(mixed(i) & 0x3fffffff);

    return fminf(amax_at(i) * part * of_bits((127 + i % 14) << 23), FLT_MAX);
}

/* ---- the test ------------------------------------------------------------ */

static Node *input(Graph *g, const char *name, float (*at)(uint32_t i))
{
    Axis *a = g_axis(g, "n");
    Node *x = g_node(g, Oparam, NULL, 0, NULL);
    double *v = alloc(g->arena, COUNT * sizeof *v);

    a->n = COUNT;
    x->at.param.path = intern(name);
    x->dt = Df32;
    x->dim[x->nd++] = (Dim){ a, COUNT };
    infer(g, x);
    for (uint32_t i = 0; i < COUNT; i++)
        v[i] = (double)at(i);
    host_set(g, x, v);
    return x;
}

/* The sum of bits of row r's results by weights. */
static uint64_t sum_of(int r, const double *v)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < COUNT; i++)
        if (amax_at(i) >= rows[r].least)
            sum += (uint64_t)bits_of(v[i]) * (mixed(i + 77) | 1);
    return sum;
}

int main(void)
{
    Arena *a = arena_new();
    Graph *g = g_new(a, "scales");
    Inputs in = { g, input(g, "amax", amax_at), input(g, "tensor", tensor_at) };
    Node *out[NROW];
    int failed = 0;

    for (int r = 0; r < NROW; r++) {
        Node *x = rows[r].make(&in, rows[r].most);
        out[r] = g_node(g, Ooutput, NULL, 1, &x);
        out[r]->at.output.name = intern(rows[r].name);
        infer(g, out[r]);
    }
    Group **k = trial_groups(g, &T_host, a);
    void *lib = host_compile(a, k, (int)vec_len(k));
    if (!lib)
        return printf("not ok - scales: kernels do not compile\n"), 1;
    host_run(g, k, (int)vec_len(k), host_step, lib);
    for (int r = 0; r < NROW; r++) {
        uint64_t sum = sum_of(r, host_get(g, out[r]->in[0], a));
        failed += sum != rows[r].want;
        printf("%sok - scales %s of %d amax: %016llx\n",
               sum == rows[r].want ? "" : "not ", rows[r].name, COUNT,
               (unsigned long long)sum);
    }
    return failed != 0;
}
