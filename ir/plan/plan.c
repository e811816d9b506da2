/* plan.c: names of plans' enums, and queries of a plan. */
#include "plan.h"

const char *const bufclasses[NBUFCLASS] = {
    [Bparam] = "param", [Bstate] = "state", [Boptim] = "optim",
    [Bio] = "io",       [Btemp] = "temp",   [Bscratch] = "scratch",
    [Bstash] = "stash",
};

const TensorInfo tensor_kinds[NTENSORKIND] = {
#define TENSOR(id, cls, prefix) { #id, cls, prefix },
#include "tensors.def"
};

/* ---- queries ------------------------------------------------------------- */

const char *const axisroles[NROLE] = {
    "none",  "micro", "row", "batch", "seq",    "key",
    "heads", "group", "ffn", "vocab", "choice", "other",
};

int role_of(const Plan *p, int64_t rank)
{
    if (p->nrole == 1)
        return 0;
    return (int)mesh_pos(p->mesh, p->mesh->mask[Mpp], rank);
}

int frame_in_host(const SlotGroup *group)
{
    return group->nslot && group->slot[0] >= HOSTSPACE;
}

int in_host(const Role *role, const Buf *b)
{
    return b->frame ? frame_in_host(&role->prog[b->prog].frame[b->frame - 1])
                    : b->offset >= HOSTSPACE;
}

double expert_bytes(const Program *prog, int routed)
{
    double sum = 0;

    for (int f = 0; f < prog->nphase; f++)
        for (int i = 0; i < prog->phase[f].n; i++) {
            const Instr *instr = &prog->instr[prog->phase[f].first + i];
            if (instr->experts && moves_rows(instr->kind) == routed)
                sum += instr->bytes * (double)instr_runs(prog, f, instr);
        }
    return sum;
}

uint32_t *plan_groups(Arena *a, const Plan *p, int is(InstrKind))
{
    uint32_t *seen = NULL;

    for (int r = 0; r < p->nrole; r++)
        for (int g = 0; g < p->role[r].nprog; g++)
            for (int k = 0; k < p->role[r].prog[g].ninstr; k++) {
                const Instr *instr = &p->role[r].prog[g].instr[k];
                size_t i = 0;
                while (i < vec_len(seen) && seen[i] != instr->atoms)
                    i++;
                if (is(instr->kind) && i == vec_len(seen))
                    vec_push(a, seen, instr->atoms);
            }
    return seen;
}

int role_tensor(const Role *role, const char *name)
{
    for (int i = 0; i < role->ntensor; i++)
        if (!role->tensor[i].second && !strcmp(role->tensor[i].name, name))
            return i;
    return -1;
}

int kind_prefix(TensorKind kind, const char *name)
{
    const char *prefix = tensor_kinds[kind].prefix, *end;
    size_t n = strlen(prefix);

    if (strncmp(name, prefix, n))
        return -1;
    if (kind != TKmoment)
        return (int)n;
    end = strchr(name + n, '.');
    return end ? (int)(end + 1 - name) : -1;
}

const Tensor *tensor_companion(const Role *role, const Tensor *of,
                               TensorKind kind)
{
    for (int i = 0; i < role->ntensor; i++)
        if (role->tensor[i].kind == kind &&
            &role->tensor[role->tensor[i].of] == of)
            return &role->tensor[i];
    return NULL;
}

int tensor_is(const Tensor *tensor, unsigned kinds)
{
    return (int)(kinds >> tensor->kind & 1);
}

int is_copy(const Tensor *tensor)
{
    return tensor_is(tensor, COPIEDTENSORS);
}

int role_prog(const Role *role, ProgramKind k)
{
    for (int i = 0; i < role->nprog; i++)
        if (role->prog[i].kind == k)
            return i;
    return -1;
}

const Program *role_program(const Role *role, ProgramKind k)
{
    int i = role_prog(role, k);

    return i < 0 ? NULL : &role->prog[i];
}

const PlanDim *tensor_axis(const Tensor *tensor, AxisRole k)
{
    for (int d = 0; d < tensor->nd; d++)
        if (tensor->dim[d].role == k)
            return &tensor->dim[d];
    return NULL;
}

int names_tokens(const char *was, Dtype of, const char *name, Dtype dt)
{
    int known = !strcmp(was, "tokens");

    return !known && (!strcmp(name, "tokens") ||
                      (dtypes[of].kind != 'i' && dtypes[dt].kind == 'i'));
}

int64_t plan_tokens(const Plan *p)
{
    const Tensor *best = NULL;
    int64_t n = 1;

    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++) {
            const Tensor *t = &p->role[r].tensor[i];
            if (t->kind == TKinput &&
                (!best || names_tokens(best->name, best->dt, t->name, t->dt)))
                best = t;
        }
    for (int d = 0; best && d < best->nd; d++)
        n = sat_mul(n, best->dim[d].n);
    return best ? n : 0;
}

int role_named(const char *s)
{
    return word_index(s, axisroles, NROLE);
}

int64_t sat_mul(int64_t a, int64_t b)
{
    int64_t v;
    if (!__builtin_mul_overflow(a, b, &v) && v > -HUGEBYTES && v < HUGEBYTES)
        return v;
    return (a < 0) == (b < 0) ? HUGEBYTES : -HUGEBYTES;
}

int64_t sat_add(int64_t a, int64_t b)
{
    int64_t v;
    if (!__builtin_add_overflow(a, b, &v) && v > -HUGEBYTES && v < HUGEBYTES)
        return v;
    return a < 0 ? -HUGEBYTES : HUGEBYTES;
}

const char *place_text(Arena *a, const char *file, int line)
{
    return file ? strf(a, " (%s:%d)", file, line) : "";
}
