/* rank.c: `show --rank`: prints a rank's coordinates and groups in both grids,
 * its memory, its parts of tensors, and its schedule. Long lists are cut after
 * their first lines, with the number of the others. */
#include <inttypes.h>

#include "../commands.h"

enum { TENSORS = 12, SLOTS = 24 };

static const MeshAxis grids[2][3] = { { Mtp, Mcp, Mdp }, { Metp, Mep, Medp } };

static void put_place(Text *out, const Plan *p, int64_t rank)
{
    const Mesh *m = p->mesh;

    put(out, "rank %" PRId64 " of %" PRId64 " of %s: stage %d of %d", rank,
        m->world, p->model, role_of(p, rank), p->nrole);
    for (int g = 0; g < 2; g++) {
        put(out, "%s", g ? "; expert" : "; dense");
        for (int i = 0; i < 3; i++) {
            MeshAxis a = grids[g][i];
            put(out, " %s %" PRId64 "/%" PRId64, meshnames[a],
                mesh_pos(m, m->mask[a], rank), m->size[a]);
        }
    }
    put(out, "\n");
}

static void put_its_groups(Text *out, const Mesh *m, int64_t rank)
{
    int64_t *ranks = alloc(out->arena, (size_t)m->world * sizeof *ranks);

    for (int a = 0; a < NMESH; a++) {
        if (m->size[a] == 1)
            continue;
        mesh_group(m, m->mask[a], rank, ranks);
        put(out, "  %-4s", meshnames[a]);
        put_ranks(out, ranks, m->size[a]);
        put(out, "\n");
    }
}

static void put_memory(Text *out, const Role *role)
{
    int64_t sum[NBUFCLASS] = { 0 };
    int n[NBUFCLASS] = { 0 };

    for (int i = 0; i < role->nbuf; i++) {
        int here = !in_host(role, &role->buf[i]);
        sum[role->buf[i].cls] += here * role->buf[i].bytes;
        n[role->buf[i].cls] += here;
    }
    put(out, "\nmemory: %" PRId64 " bytes in one arena, %" PRId64 " always\n",
        role->arena, role->persist);
    for (int c = 0; c < NBUFCLASS; c++)
        if (n[c])
            put(out, "  %-8s %16" PRId64 " in %d buffers%s\n", bufclasses[c],
                sum[c], n[c], c >= Btemp ? ", sharing their space" : "");
    if (role->host)
        put(out, "  %-8s %16" PRId64 " offloaded to the host's memory\n", "",
            role->host);
    for (int i = 0; i < role->nprog; i++)
        put(out, "  %-8s %16" PRId64 " temporary in %s\n", "",
            role->prog[i].transient, programnames[role->prog[i].kind]);
}

/* ---- tensors ------------------------------------------------------------- */

/* Returns the elements of the tensor that the rank has. */
static int64_t elems_of(const Plan *p, const Tensor *tensor, int64_t rank,
                        int64_t *first)
{
    int64_t n = tensor_held(tensor), from = 0;

    if (tensor->run) {
        int64_t lo =
            mesh_pos(p->mesh, tensor->shard, rank) * tensor->run - tensor->at;
        int64_t hi = lo + tensor->run < n ? lo + tensor->run : n;
        from = lo < 0 ? 0 : lo;
        n = hi > from ? hi - from : 0;
    }
    *first = from;
    return n;
}

/* Appends "hidden 0-127 | heads 2-3 12-13". */
static void put_pieces(Text *out, const Plan *p, const Tensor *tensor,
                       int64_t rank)
{
    for (int d = 0; d < tensor->nd; d++) {
        const PlanDim *dim = &tensor->dim[d];
        put(out, "%s%s", d ? " | " : "  ", dim->axis);
        for (int i = 0; i < dim->npiece; i++) {
            int64_t at = aff_at(p->mesh, &dim->piece[i].start, rank);
            if (at < dim->n) /* the rest is padding */
                put(out, " %" PRId64 "-%" PRId64, at,
                    at + dim->piece[i].len - 1);
        }
        put(out, " of %" PRId64, dim->n);
    }
}

static void put_tensor(Text *out, const Plan *p, const Tensor *tensor,
                       int64_t rank)
{
    int64_t first, n = elems_of(p, tensor, rank, &first);

    put(out, "  %-6s %-5s %s:", tensor_kinds[tensor->kind].name,
        dtypes[tensor->dt].name, tensor->name);
    if (!n)
        put(out, "  nothing");
    else
        put_pieces(out, p, tensor, rank);
    if (n && tensor->run)
        put(out, ", of these elements %" PRId64 "-%" PRId64, first,
            first + n - 1);
    put(out, "\n");
}

typedef struct MemoryRow {
    TensorKind kind;
    int n;
    int64_t elems, of, bytes;
} MemoryRow;

static void put_totals(Text *out, const Plan *p, const Role *role, int64_t rank)
{
    MemoryRow *v = NULL;

    for (int i = 0; i < role->ntensor; i++) {
        const Tensor *x = &role->tensor[i];
        int64_t first, n = elems_of(p, x, rank, &first);
        size_t k = 0;
        while (k < vec_len(v) && v[k].kind != x->kind)
            k++;
        if (k == vec_len(v))
            vec_push(out->arena, v, ((MemoryRow){ .kind = x->kind }));
        v[k].n++;
        v[k].elems += n;
        v[k].of += tensor_elems(x);
        v[k].bytes += n * dtypes[x->dt].bytes;
    }
    for (size_t k = 0; k < vec_len(v); k++)
        put(out,
            "  %-6s %6d tensors, %" PRId64 " of %" PRId64 " elements, %" PRId64
            " bytes\n",
            tensor_kinds[v[k].kind].name, v[k].n, v[k].elems, v[k].of,
            v[k].bytes);
}

/* ---- slots --------------------------------------------------------------- */

static void put_turns(Text *out, const Program *prog)
{
    put(out, "\n%s:", programnames[prog->kind]);
    for (int f = 0; f < prog->nphase; f++)
        put(out, "%s %" PRId64 " x %s (%d instructions)", f ? "," : "",
            phase_runs(prog, f), prog->phase[f].name, prog->phase[f].n);
    put(out, "\n");
    for (int i = 0; i < prog->nslot && i < SLOTS; i++)
        put(out, "%s%s:%d",
            i == 0  ? "  "
            : i % 8 ? " "
                    : "\n  ",
            prog->phase[prog->slot[i].phase].name, prog->slot[i].micro);
    if (prog->nslot)
        put(out, prog->nslot > SLOTS ? " ... %d slots in all\n" : "\n",
            prog->nslot);
}

void report_rank(FILE *out, const Plan *p, int64_t rank)
{
    Text t = { .arena = forever };
    const Role *r;

    if (rank < 0 || rank >= p->mesh->world)
        err(NULL,
            "there is no rank %" PRId64 ": the plan is for %" PRId64
            " (0 to %" PRId64 ")",
            rank, p->mesh->world, p->mesh->world - 1);
    r = &p->role[role_of(p, rank)];
    put_place(&t, p, rank);
    put_its_groups(&t, p->mesh, rank);
    put_memory(&t, r);
    put(&t, "\ntensors\n");
    for (int i = 0; i < r->ntensor && i < TENSORS; i++)
        put_tensor(&t, p, &r->tensor[i], rank);
    if (r->ntensor > TENSORS)
        put(&t, "  ... %d more\n", r->ntensor - TENSORS);
    put_totals(&t, p, r, rank);
    if (role_prog(r, PGstep) >= 0)
        put_turns(&t, &r->prog[role_prog(r, PGstep)]);
    fwrite(t.s, 1, t.len, out);
}
