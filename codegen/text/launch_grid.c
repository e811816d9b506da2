/* launch_grid.c: the parameters and the grid of a kernel for GPUs. Sizes and
 * strides become constants of the text:
 *
 *     extern "C" __global__ void k_..(void *q0, void *q1, int64_t r5)
 *     {
 *         const Ptr buf[] = { { q0 }, { q1 } };
 *         const int64_t iv[] = { 0, 0, 768, 2048, 768, r5 };
 *         ...
 *
 * r5 is an integer that depends on the rank, or a key; the compiler folds the
 * rest. */
#include "text.h"

/* What is a parameter of the kernel and no constant of its text: what depends
 * on the rank, and keys and doubles, which would make every text its own. */
static int of_rank(const Word *x)
{
    if (x->type != WORDint)
        return 1;
    for (int i = 0; i < MAXATOM; i++)
        if (x->at.k[i])
            return 1;
    return 0;
}

void cuda_put_parameters(Text *t, const Group *k)
{
    int nbuf = k->narg + (k->scratch > 0);

    for (int i = 0; i < nbuf; i++)
        put(t, "%svoid *q%d", i ? ", " : "", i);
    for (int i = 0; i < k->instr.nword; i++)
        if (of_rank(&k->instr.word[i]))
            put(t, ", int64_t r%d", i);
    put(t, ")\n{\n    const Ptr buf[] = { ");
    for (int i = 0; i < nbuf; i++)
        put(t, "{ q%d }, ", i);
    put(t, "};\n    const int64_t iv[] = { ");
    for (int i = 0; i < k->instr.nword; i++)
        if (of_rank(&k->instr.word[i]))
            put(t, "r%d, ", i);
        else
            put(t, "%lld, ", (long long)k->instr.word[i].at.c);
    put(t, "};\n");
}

/* The instruction's integers from now on: the grid, then those of the rank. */
void cuda_set_grid(Group *k, Arena *a, int64_t x, int64_t threads, int64_t y,
                   int64_t z)
{
    Word *was = k->instr.word;
    int n = k->instr.nword;

    k->instr.word = NULL;
    k->instr.nword = 0;
    add_size(k, a, x);
    add_size(k, a, threads);
    add_size(k, a, y);
    add_size(k, a, z);
    add_size(k, a, 0);
    for (int i = 0; i < n; i++)
        if (of_rank(&was[i]))
            add_word(k, a, was[i]);
}
