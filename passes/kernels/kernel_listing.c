/* kernel_listing.c: prints groups for -d fuse and -d sched: stored values,
 * family, ops computed, values read.
 *
 *     %h = gemm dot reads %x %w                    f32 [micro batch seq ffn]
 *     %a = loop silu mul, sum reads %h %g          f32 [micro batch seq ffn] */
#include "kernels.h"

static void put_names(Text *out, Node *const *v, int n)
{
    for (int i = 0; i < n; i++)
        put(out, "%s%%%s", i ? " " : "", v[i]->name);
}

static const char *stored(Arena *a, const Group *group)
{
    Text t = { .arena = a };

    put_names(&t, group->out, group->nout);
    return t.s ? t.s : "";
}

/* Returns the ops in order; consecutive equal ops once. */
static const char *computed(Arena *a, const Group *group)
{
    Text out = { .arena = a };

    put(&out, "%s", families[group->fam]);
    for (int i = 0; i < group->n; i++)
        if (i == 0 || group->node[i]->op != group->node[i - 1]->op)
            put(&out, " %s", optab[group->node[i]->op].name);
    if (group->nin)
        put(&out, " reads ");
    put_names(&out, group->in, group->nin);
    return out.s;
}

static const char *type_of(Arena *a, const Group *group)
{
    Text t = { .arena = a };

    if (!group->nout || group->out[0]->dt == Dnone)
        return NULL;
    put(&t, "%s ", dtypes[group->out[0]->dt].name);
    print_dims(&t, group->out[0]);
    return t.s;
}

char *groups_print(Arena *a, Group *const *k, int fold)
{
    size_t n = vec_len(k);
    ListingLine *v = alloc(a, (n + 1) * sizeof *v);
    Text out = { .arena = a };

    for (size_t i = 0; i < n; i++)
        v[i] =
            (ListingLine){ .name = stored(a, k[i]),
                           .what = computed(a, k[i]),
                           .type = type_of(a, k[i]),
                           .reg = k[i]->reg,
                           .path = k[i]->n ? k[i]->node[0]->scope->path : "" };
    put_lines(&out, v, n, "    ", " = ", fold);
    return out.s ? out.s : "";
}
