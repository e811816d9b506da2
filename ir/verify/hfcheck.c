/* hfcheck.c: checks the map from parameters to Hugging Face tensors. A row maps
 * a whole parameter or state, each of its axes once, to a box of the tensor's
 * factors; the rows of a tensor fill it, and no two share an element. */
#include "verify.h"

typedef struct HfCheck {
    Arena *arena;
    const Plan *p;
} HfCheck;

static const char *wrong(const HfCheck *check, const HfMap *map,
                         const char *why)
{
    return strf(check->arena, "hf '%s' of '%s' %s", map->hf, map->param, why);
}

/* ---- a row --------------------------------------------------------------- */

static const Tensor *owner(const Plan *p, const char *name)
{
    for (int r = 0; r < p->nrole; r++) {
        int i = role_tensor(&p->role[r], name);
        const Tensor *t = i < 0 ? NULL : &p->role[r].tensor[i];
        if (t && tensor_is(t, MODELTENSORS))
            return t;
    }
    return NULL;
}

static const PlanDim *axis_of(const Tensor *tensor, const char *name)
{
    for (int d = 0; d < tensor->nd; d++)
        if (!strcmp(tensor->dim[d].axis, name))
            return &tensor->dim[d];
    return NULL;
}

static int is_inside(const HfFactor *factor)
{
    return factor->total >= 1 && factor->start >= 0 && factor->n >= 1 &&
           factor->start <= factor->total - factor->n;
}

/* Returns how often a row names an axis. */
static int named(const HfMap *map, const char *axis)
{
    int n = 0;
    for (int i = 0; i < map->nfix; i++)
        n += !strcmp(map->fixaxis[i], axis);
    for (int d = 0; d < map->nd; d++)
        for (int k = 0; k < map->dim[d].nf; k++)
            n += map->dim[d].f[k].axis && !strcmp(map->dim[d].f[k].axis, axis);
    return n;
}

static const char *factor_wrong(const Tensor *tensor, const HfFactor *factor)
{
    const PlanDim *d = factor->axis ? axis_of(tensor, factor->axis) : NULL;
    if (!is_inside(factor) && law(Lhf_inside))
        return "goes beyond an axis";
    if ((factor->axis ? !d || d->n != factor->n : factor->n != 1) &&
        law(Lhf_factor))
        return "has a factor that is no axis of it";
    return NULL;
}

static const char *row_wrong(const HfCheck *check, const HfMap *map)
{
    const Tensor *tensor = owner(check->p, map->param);
    const char *why = NULL;
    if (!tensor && law(Lhf_param))
        return wrong(check, map, "is for no parameter or state");
    for (int d = 0; d < map->nd && !why; d++)
        for (int k = 0; k < map->dim[d].nf && !why; k++)
            why = factor_wrong(tensor, &map->dim[d].f[k]);
    for (int i = 0; i < map->nfix && !why; i++) {
        const PlanDim *d = axis_of(tensor, map->fixaxis[i]);
        if ((!d || map->fixat[i] < -1 || map->fixat[i] >= d->n) &&
            law(Lhf_unrolled))
            why = "unrolls what is no axis of it";
    }
    for (int d = 0; d < tensor->nd && !why; d++)
        if (named(map, tensor->dim[d].axis) != 1 && law(Lhf_axis_once))
            why = strf(check->arena, "does not have axis '%s' once",
                       tensor->dim[d].axis);
    return why ? wrong(check, map, why) : NULL;
}

/* ---- a tensor ------------------------------------------------------------ */

static int64_t volume(const HfMap *map, int whole)
{
    int64_t n = 1;
    for (int d = 0; d < map->nd; d++)
        for (int k = 0; k < map->dim[d].nf; k++)
            n = sat_mul(n, whole ? map->dim[d].f[k].total : map->dim[d].f[k].n);
    return n;
}

static int same_factors(const HfMap *x, const HfMap *y)
{
    if (x->nd != y->nd)
        return 0;
    for (int d = 0; d < x->nd; d++) {
        if (x->dim[d].nf != y->dim[d].nf)
            return 0;
        for (int k = 0; k < x->dim[d].nf; k++)
            if (x->dim[d].f[k].total != y->dim[d].f[k].total)
                return 0;
    }
    return 1;
}

static int boxes_meet(const HfMap *x, const HfMap *y)
{
    for (int d = 0; d < x->nd; d++)
        for (int k = 0; k < x->dim[d].nf; k++) {
            const HfFactor *a = &x->dim[d].f[k], *b = &y->dim[d].f[k];
            if (a->start + a->n <= b->start || b->start + b->n <= a->start)
                return 0;
        }
    return 1;
}

static int by_tensor(const void *a, const void *b)
{
    const HfMap *x = *(HfMap *const *)a, *y = *(HfMap *const *)b;
    return strcmp(x->hf, y->hf);
}

/* Checks rows v[0] .. v[n-1] of one tensor. *at: the wrong row. */
static const char *tensor_wrong(const HfMap **v, int n, const HfMap **at)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        *at = v[i];
        if (!same_factors(v[i], v[0]) && law(Lhf_alike))
            return "has other factors than its other rows";
        for (int k = 0; k < i; k++)
            if (boxes_meet(v[i], v[k]) && law(Lhf_apart))
                return "shares elements with another";
        sum = sat_add(sum, volume(v[i], 0));
    }
    return sum != volume(v[0], 1) && law(Lhf_full) ? "does not fill its tensor"
                                                   : NULL;
}

const char *hf_tensors_wrong(Arena *a, const HfMap *map, int n,
                             const HfMap **at)
{
    const HfMap **v = alloc(a, ((size_t)n + 1) * sizeof *v);
    const char *why = NULL;
    for (int i = 0; i < n; i++)
        v[i] = &map[i];
    qsort(v, (size_t)n, sizeof *v, by_tensor);
    for (int i = 0, k; i < n && !why; i += k) {
        for (k = 1; i + k < n && !by_tensor(&v[i], &v[i + k]);)
            k++;
        why = tensor_wrong(v + i, k, at);
    }
    return why;
}

const char *hf_wrong(Arena *a, const Plan *p)
{
    HfCheck x = { a, p };
    const HfMap *at;
    for (int i = 0; i < p->nhf; i++) {
        const char *why = row_wrong(&x, &p->hf[i]);
        if (why)
            return why;
    }
    const char *why = hf_tensors_wrong(a, p->hf, p->nhf, &at);
    return why ? wrong(&x, at, why) : NULL;
}
