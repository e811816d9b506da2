/* null_device.c: the device of target=null. It executes nothing and prints a
 * report: memory by class and peak of the programs of each stage; collectives
 * by kind and group, seconds, bubble and FLOPs of a step; parameters that are
 * stored more than once. One core is enough for any number of ranks. */
#include <inttypes.h>

#include "../../ir/settings/keys.h"
#include "device.h"

/* ---- memory -------------------------------------------------------------- */

static void put_role(FILE *out, const Plan *p, int i)
{
    const Role *role = &p->role[i];
    int64_t sum[NBUFCLASS] = { 0 };

    for (int k = 0; k < role->nbuf; k++)
        sum[role->buf[k].cls] += role->buf[k].bytes;
    fprintf(out,
            "stage %d, %" PRId64 " rank%s: %" PRId64 " bytes each, %" PRId64
            " always\n  ",
            i, p->mesh->world / p->nrole, p->mesh->world == p->nrole ? "" : "s",
            role->arena, role->persist);
    for (int c = 0; c < Btemp; c++)
        fprintf(out, " %s %" PRId64 ",", bufclasses[c], sum[c]);
    for (int k = 0; k < role->nprog; k++)
        fprintf(out, "%s %s %" PRId64, k ? "," : " temporary in",
                programnames[role->prog[k].kind], role->prog[k].transient);
    fputc('\n', out);
}

/* ---- collectives --------------------------------------------------------- */

typedef struct Traffic {
    InstrKind kind;
    uint32_t atoms;
    double times, bytes; /* per rank and step */
} Traffic;

static int is_moved(InstrKind k)
{
    return instr_info(k)->cls == CLASScollective || k == Isend || k == Irecv;
}

static Traffic *traffic_of(const Role *role)
{
    const Program *prog = role_program(role, PGstep);
    Traffic *v = NULL;

    for (int f = 0; prog && f < prog->nphase; f++)
        for (int k = 0; k < prog->phase[f].n; k++) {
            const Instr *instr = &prog->instr[prog->phase[f].first + k];
            double n = (double)instr_runs(prog, f, instr);
            size_t i = 0;
            if (!is_moved(instr->kind))
                continue;
            while (i < vec_len(v) &&
                   (v[i].kind != instr->kind || v[i].atoms != instr->atoms))
                i++;
            if (i == vec_len(v))
                vec_push(forever, v,
                         ((Traffic){ instr->kind, instr->atoms, 0, 0 }));
            v[i].times += n;
            v[i].bytes += n * instr->bytes;
        }
    return v;
}

static void put_traffic(FILE *out, const Plan *p, int role)
{
    Traffic *traffic = traffic_of(&p->role[role]);
    char group[64];

    for (size_t i = 0; i < vec_len(traffic); i++) {
        mesh_words(p->mesh, traffic[i].atoms, group, sizeof group);
        fprintf(out, "%5d  %-14s %-12s %6" PRId64 " %9.0f %15.0f\n", role,
                instr_info(traffic[i].kind)->name, group,
                mesh_extent(p->mesh, traffic[i].atoms), traffic[i].times,
                traffic[i].bytes);
    }
}

/* ---- work and time ------------------------------------------------------- */

typedef struct Flops {
    double all, products,
        again; /* FLOPs per rank and step; again: recomputed */
} Flops;

static Flops flops_of(const Role *role)
{
    const Program *prog = role_program(role, PGstep);
    Flops w = { 0 };

    for (int f = 0; prog && f < prog->nphase; f++)
        for (int k = 0; k < prog->phase[f].n; k++) {
            const Instr *instr = &prog->instr[prog->phase[f].first + k];
            double n = (double)instr_runs(prog, f, instr);
            w.all += n * instr->flops;
            w.again += n * instr->again;
            if (instr_info(instr->kind)->cls == CLASSproduct)
                w.products += n * instr->flops;
        }
    return w;
}

/* Returns the bubble, the share of a step in which a stage waits, if all chunks
 * take the same time and transfers none: pp - 1 chunks fill and drain the
 * pipeline beside vpp chunks of each micro-batch; -1: the schedule has no such
 * formula. */
static double formula(const Plan *p)
{
    enum pp_schedule kind = opts_pp_schedule(p->opts);
    double vpp = (double)opts_int(p->opts, "fold.vpp"), pp = p->nrole;
    double m = (double)plan_micros(p, PGstep);

    if (kind != SCHEDULE1f1b && kind != SCHEDULEinterleaved)
        return -1;
    return (pp - 1) / (vpp * m + pp - 1);
}

static void put_stages(FILE *out, const Plan *p)
{
    Planned t = plan_time(forever, p, PGstep);
    double by_formula = formula(p), busy = 0;

    if (p->nrole > 1)
        fputs("\nstage  FLOP of a rank and step  seconds at work  idle\n", out);
    for (int i = 0; i < p->nrole; i++) {
        busy += t.busy[i];
        if (p->nrole > 1)
            fprintf(out, "%5d %24.0f %16.6g %5.1f %%\n", i,
                    flops_of(&p->role[i]).all, t.busy[i],
                    t.makespan > 0 ? 100 - 100 * t.busy[i] / t.makespan : 0);
    }
    fprintf(out, "\na step: %.6g s predicted, bubble %.1f %%", t.makespan,
            t.makespan > 0 ? 100 - 100 * busy / (t.makespan * p->nrole) : 0);
    if (p->nrole > 1 && by_formula >= 0)
        fprintf(out, " (%.1f %% by formula)", 100 * by_formula);
    fputs(t.stuck ? ", never ends: " : "", out);
    fprintf(out, "%s\n", t.stuck ? t.stuck : "");
}

static void put_work(FILE *out, const Plan *p)
{
    double ranks = (double)(p->mesh->world / p->nrole);
    Flops sum = { 0 };

    for (int i = 0; i < p->nrole; i++) {
        Flops w = flops_of(&p->role[i]);
        sum.all += ranks * w.all;
        sum.again += ranks * w.again;
        sum.products += ranks * w.products;
    }
    fprintf(out,
            "%.0f FLOP on all ranks, %.0f of them in products (%.6g by "
            "formula), %.0f done again by other ranks of a stage\n",
            sum.all, sum.products, p->flops, sum.again);
}

/* ---- parameters ---------------------------------------------------------- */

typedef struct CopyTotals {
    int64_t copies, tensors, bytes;
} CopyTotals;

/* Returns parameter bytes by the number of copies that all ranks hold. */
static CopyTotals *copies_of(const Plan *p, int64_t *once, int64_t *all)
{
    CopyTotals *v = NULL;

    *once = *all = 0;
    for (int i = 0; i < p->nrole; i++)
        for (int k = 0; k < p->role[i].ntensor; k++) {
            const Tensor *tensor = &p->role[i].tensor[k];
            int copy = tensor->kind == TKcopy;
            if (!tensor_is(tensor, PARAMETERS) && !copy)
                continue;
            int64_t one = tensor_elems(tensor) * dtypes[tensor->dt].bytes;
            int64_t held =
                tensor_held(tensor) * dtypes[tensor->dt].bytes *
                (p->mesh->world / p->nrole) /
                (tensor->run ? mesh_extent(p->mesh, tensor->shard) : 1);
            int64_t n = one ? held / one : 0;
            size_t j = 0;
            *once += copy ? 0 : one;
            *all += held;
            while (j < vec_len(v) && v[j].copies != n)
                j++;
            if (j == vec_len(v))
                vec_push(forever, v, ((CopyTotals){ n, 0, 0 }));
            v[j].tensors++;
            v[j].bytes += held;
        }
    return v;
}

static void put_params(FILE *out, const Plan *p)
{
    int64_t once, all;
    CopyTotals *v = copies_of(p, &once, &all);

    fprintf(out,
            "\nparameters: %" PRId64 " bytes once, %" PRId64 " on all ranks\n",
            once, all);
    for (size_t i = 0; i < vec_len(v); i++)
        fprintf(out,
                "  %" PRId64 " tensors %" PRId64 " times, %" PRId64 " bytes\n",
                v[i].tensors, v[i].copies, v[i].bytes);
}

static void report(FILE *out, const Plan *p)
{
    fprintf(out, "%s on %" PRId64 " ranks:", p->model, p->mesh->world);
    for (int a = 0; a < NMESH; a++)
        fprintf(out, " %s=%" PRId64, meshnames[a], p->mesh->size[a]);
    fputs("\n\n", out);
    for (int i = 0; i < p->nrole; i++)
        put_role(out, p, i);
    fputs("\nsent (recv: received) by a rank in a step\nstage  kind           "
          "group         ranks     times           bytes\n",
          out);
    for (int i = 0; i < p->nrole; i++)
        put_traffic(out, p, i);
    put_params(out, p);
    put_stages(out, p);
    put_work(out, p);
}

static int always(void)
{
    return 1;
}

const Device null_device = { .name = "null",
                             .count = always,
                             .report = report };
