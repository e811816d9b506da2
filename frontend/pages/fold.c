/* fold.c: `show --fold`: draws both grids, their groups, and the layers of each
 * pipeline stage. */
#include "../commands.h"

/* Returns the length of a path's unit, up to its first numeric component. */
static size_t unit_length(const char *path, int64_t *number)
{
    for (const char *s = path; *s; s++) {
        size_t n = s == path || s[-1] == '.' ? strspn(s, "0123456789") : 0;
        if (n && (s[n] == '.' || !s[n])) {
            *number = strtoll(s, NULL, 10);
            return (size_t)(s - path);
        }
    }
    *number = -1;
    return strcspn(path, ".");
}

typedef struct UnitRange {
    const char *name;
    int64_t from, to;
} UnitRange;

/* Appends "embed, layers.0-2, norm, head": units with parameters, neighbours
 * joined. */
static void put_units(Text *out, const Role *role)
{
    UnitRange *v = NULL;

    for (int i = 0; i < role->ntensor; i++) {
        const Tensor *tensor = &role->tensor[i];
        int64_t number;
        int same = 0;
        if (!tensor_is(tensor, PARAMETERS | 1 << TKcopy))
            continue;
        const char *name =
            internn(tensor->name, unit_length(tensor->name, &number));
        for (size_t k = 0; k < vec_len(v); k++)
            if (v[k].name == name && number <= v[k].to + 1 &&
                number >= v[k].from) {
                v[k].to = number > v[k].to ? number : v[k].to;
                same = 1;
            }
        if (!same)
            vec_push(out->arena, v, ((UnitRange){ name, number, number }));
    }
    for (size_t k = 0; k < vec_len(v); k++) {
        put(out, "%s%s", k ? ", " : "", v[k].name);
        if (v[k].from >= 0)
            put(out, "%ld", v[k].from);
        if (v[k].to > v[k].from)
            put(out, "-%ld", v[k].to);
    }
    put(out, vec_len(v) ? "" : "no parameters");
}

void report_fold(FILE *out, const Plan *p)
{
    enum { SHOWN = 16 };
    Text t = { .arena = forever };
    const Mesh *m = p->mesh;

    put(&t, "%s, %ld rank%s, order %s\n  dense ", p->model, m->world,
        m->world == 1 ? "" : "s", m->order);
    for (int a = Mtp; a <= Mpp; a++)
        put(&t, " %s=%ld", meshnames[a], m->size[a]);
    put(&t, "\n  expert");
    for (int a = Metp; a <= Medp; a++)
        put(&t, " %s=%ld", meshnames[a], m->size[a]);
    put(&t, " pp=%ld\n\n", m->size[Mpp]);
    put_grids(&t, m);
    put(&t, "\n");
    for (int i = 0; i < p->nrole && i < SHOWN; i++) {
        put(&t, "stage %d: ", i);
        put_units(&t, &p->role[i]);
        put(&t, "\n");
    }
    if (p->nrole > SHOWN)
        put(&t, "... %d more stages\n", p->nrole - SHOWN);
    fwrite(t.s, 1, t.len, out);
}
