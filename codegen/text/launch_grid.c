/* launch_grid.c: the parameters and the grid of a kernel for GPUs. Sizes and
 * strides become constants of the text:
 *
 *     extern "C" __global__ void k_..(void *q0, void *q1, int64_t r3)
 *     {
 *         const Ptr buf[] = { { q0 }, { q1 } };
 *         const int64_t iv[] = { 768, 2048, 768, r3 };
 *         ...
 *
 * r3 is an integer that depends on the rank, or a key; the compiler folds the
 * rest. If k->instr.launch.then is set before, the last parameter says which
 * launch of the pairs it is. */
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

void cuda_put_parameters(Text *out, const Group *k)
{
    int nbuf = k->narg + (k->scratch > 0);

    for (int i = 0; i < nbuf; i++)
        put(out, "%svoid *q%d", i ? ", " : "", i);
    for (int i = 0; i < k->instr.nword; i++)
        if (of_rank(&k->instr.word[i]))
            put(out, ", int64_t r%d", i);
    if (k->instr.launch.then)
        put(out, ", int64_t launch");
    put(out, ")\n{\n    const Ptr buf[] = { ");
    for (int i = 0; i < nbuf; i++)
        put(out, "{ q%d }, ", i);
    put(out, "};\n    const int64_t iv[] = { ");
    for (int i = 0; i < k->instr.nword; i++)
        if (of_rank(&k->instr.word[i]))
            put(out, "r%d, ", i);
        else
            put(out, "%lld, ", (long long)k->instr.word[i].at.c);
    put(out, "%s};\n", k->instr.nword ? "" : "0 ");
}

void cuda_set_launch(Group *k, Arena *a, Launch l)
{
    Word *was = k->instr.word;
    int n = k->instr.nword;

    l.y = l.y ? l.y : 1;
    l.z = l.z ? l.z : 1;
    k->instr.launch = l;
    k->instr.word = NULL;
    k->instr.nword = 0;
    for (int i = 0; i < n; i++)
        if (of_rank(&was[i]))
            add_word(k, a, was[i]);
}
