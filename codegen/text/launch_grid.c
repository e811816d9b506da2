/* launch_grid.c: parameters and grid of a GPU kernel. Sizes and strides become
 * constants of the text:
 *
 *     extern "C" __global__ void k_..(void *q0, void *q1, int64_t r3)
 *     {
 *         const Ptr buf[] = { { q0 }, { q1 } };
 *         const int64_t iv[] = { 768, 2048, 768, r3 };
 *         ...
 *
 * r3 is a word that depends on the rank, or a random key; the compiler folds
 * the constants. If group->instr.launch.then is set (two launches of one
 * kernel), the last parameter is the number of the launch. */
#include "text.h"

/* Is the word a kernel parameter? Words that depend on the rank are; so are
 * keys and doubles, which would otherwise make each text unique. */
static int is_parameter(const Word *word)
{
    if (word->type != WORDint)
        return 1;
    for (int i = 0; i < MAXATOM; i++)
        if (word->at.k[i])
            return 1;
    return 0;
}

void cuda_put_parameters(Text *out, const Group *group)
{
    int nbuf = group->narg + (group->scratch > 0);

    for (int i = 0; i < nbuf; i++)
        put(out, "%svoid *q%d", i ? ", " : "", i);
    for (int i = 0; i < group->instr.nword; i++)
        if (is_parameter(&group->instr.word[i]))
            put(out, ", int64_t r%d", i);
    if (group->instr.launch.then)
        put(out, ", int64_t launch");
    put(out, ")\n{\n    const Ptr buf[] = { ");
    for (int i = 0; i < nbuf; i++)
        put(out, "{ q%d }, ", i);
    put(out, "};\n    const int64_t iv[] = { ");
    for (int i = 0; i < group->instr.nword; i++)
        if (is_parameter(&group->instr.word[i]))
            put(out, "r%d, ", i);
        else
            put(out, "%ld, ", group->instr.word[i].at.c);
    put(out, "%s};\n", group->instr.nword ? "" : "0 ");
}

void cuda_set_launch(Group *group, Arena *a, Launch l)
{
    Word *was = group->instr.word;
    int n = group->instr.nword;

    l.y = l.y ? l.y : 1;
    l.z = l.z ? l.z : 1;
    group->instr.launch = l;
    group->instr.word = NULL;
    group->instr.nword = 0;
    for (int i = 0; i < n; i++)
        if (is_parameter(&was[i]))
            add_word(group, a, was[i]);
}
