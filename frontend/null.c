/* null.c: `run` for target=null. Nothing is executed: of each stage its memory
 * by class and the height of its programs, of a step its collectives by kind
 * and group, its seconds, bubble and FLOPs, of the parameters what is stored
 * more than once. One core is enough for any number of ranks.                */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "frontend.h"

/* How often a rank runs a phase in one step.                                 */
static double times_of(const Program *p, int phase)
{
    double n = (double)p->phase[phase].repeat;

    for (int i = 0; i < p->nturn && !p->phase[phase].repeat; i++)
        n += p->turn[i].phase == phase;
    return n;
}

static const Program *step_of(const Role *r)
{
    int i = role_prog(r, "step");

    return i < 0 ? NULL : &r->prog[i];
}

/* ---- memory -------------------------------------------------------------- */

static void put_role(FILE *out, const Plan *p, int i)
{
    const Role *r = &p->role[i];
    int64_t sum[NBUFCLASS] = { 0 };

    for (int k = 0; k < r->nbuf; k++)
        sum[r->buf[k].cls] += r->buf[k].bytes;
    fprintf(out, "stage %d, %" PRId64 " rank%s: %" PRId64 " bytes each, %"
            PRId64 " always\n  ", i, p->mesh->world / p->nrole,
            p->mesh->world == p->nrole ? "" : "s", r->arena, r->persist);
    for (int c = 0; c < Btemp; c++)
        fprintf(out, " %s %" PRId64 ",", bufclasses[c], sum[c]);
    for (int k = 0; k < r->nprog; k++)
        fprintf(out, "%s %s %" PRId64, k ? "," : " temporary in",
                r->prog[k].name, r->prog[k].transient);
    fputc('\n', out);
}

/* ---- collectives --------------------------------------------------------- */

typedef struct Traffic {
    StepKind kind;
    uint32_t atoms;
    double times, bytes;          /* of one rank and step                     */
} Traffic;

static int is_sent(StepKind k)
{
    return k == Sallgather || k == Sreducescatter || k == Sallreduce ||
           k == Salltoall || k == Srotate || k == Ssend;
}

static double sent_bytes(const Mesh *m, const Step *s)
{
    if (s->kind == Ssend)
        return (double)(s->iv[1].c * dtypes[s->iv[0].c].bytes);
    double share = 1 - 1 / (double)mesh_extent(m, s->atoms);
    return s->kind == Sallreduce ? 2 * share * (double)s->iv[1].c *
               (double)s->iv[2].c * dtypes[s->iv[0].c].bytes : s->bytes;
}

static Traffic *traffic_of(const Plan *p, const Role *r)
{
    const Program *g = step_of(r);
    Traffic *v = NULL;

    for (int f = 0; g && f < g->nphase; f++)
        for (int k = 0; k < g->phase[f].n; k++) {
            const Step *s = &g->step[g->phase[f].first + k];
            size_t i = 0;
            if (!is_sent(s->kind))
                continue;
            while (i < vec_len(v) && (v[i].kind != s->kind ||
                                      v[i].atoms != s->atoms))
                i++;
            if (i == vec_len(v))
                vec_push(forever, v, ((Traffic){ s->kind, s->atoms, 0, 0 }));
            v[i].times += times_of(g, f);
            v[i].bytes += times_of(g, f) * sent_bytes(p->mesh, s);
        }
    return v;
}

static void put_traffic(FILE *out, const Plan *p, int role)
{
    Traffic *v = traffic_of(p, &p->role[role]);
    char group[64];

    for (size_t i = 0; i < vec_len(v); i++) {
        mesh_words(p->mesh, v[i].atoms, group, sizeof group);
        fprintf(out, "%5d  %-14s %-12s %6" PRId64 " %9.0f %15.0f\n", role,
                stepinfo[v[i].kind].name, group,
                mesh_extent(p->mesh, v[i].atoms), v[i].times, v[i].bytes);
    }
}

/* ---- time ---------------------------------------------------------------- */

static double phase_secs(const Program *p, int f)
{
    double s = 0;

    for (int k = 0; k < p->phase[f].n; k++)
        s += p->step[p->phase[f].first + k].secs;
    return s;
}

/* Seconds outside of the table.                                              */
static double rest_secs(const Program *p)
{
    double s = 0;

    for (int f = 0; f < p->nphase; f++)
        s += phase_secs(p, f) * (double)p->phase[f].repeat;
    return s;
}

static double step_secs(const Plan *p, double *bubble)
{
    double rest = 0, busy = 0;

    for (int i = 0; i < p->nrole; i++) {
        const Program *g = step_of(&p->role[i]);
        double s = g ? rest_secs(g) : 0;
        rest = s > rest ? s : rest;
    }
    *bubble = 0;
    if (p->nrole < 2)
        return rest;
    const Schedule *s = plan_schedule(p, p->model);
    double *cost = alloc(forever, NJOB * (size_t)s->chunks * sizeof *cost);
    for (int i = 0; i < p->nrole; i++) {
        const Program *g = step_of(&p->role[i]);
        for (int f = 0; g && f < g->nphase; f++) {
            const char *name = g->phase[f].name;
            const char *job = strchr(jobnames, *name);
            char *end;
            long c = strtol(name + 1, &end, 10);
            if (*name && job && end > name + 1 && !*end && c < s->chunks)
                cost[(job - jobnames) * s->chunks + c] = phase_secs(g, f);
        }
    }
    Timing t = schedule_time(forever, s, cost, 0);
    for (int i = 0; i < s->ranks; i++)
        busy += t.busy[i];
    *bubble = 1 - busy / (s->ranks * t.makespan);
    return rest + t.makespan;
}

/* Of all ranks; products: of matrix products only.                           */
static double all_flops(const Plan *p, int products)
{
    double n = 0;

    for (int i = 0; i < p->nrole; i++) {
        const Program *g = step_of(&p->role[i]);
        for (int f = 0; g && f < g->nphase; f++)
            for (int k = 0; k < g->phase[f].n; k++) {
                const Step *s = &g->step[g->phase[f].first + k];
                int is = s->kind == Sgemm || s->kind == Sgmm ||
                         s->kind == Sgmmw;
                n += is || !products ? times_of(g, f) * s->flops *
                         (double)(p->mesh->world / p->nrole) : 0;
            }
    }
    return n;
}

/* ---- parameters ---------------------------------------------------------- */

typedef struct Copies { int64_t copies, tensors, bytes; } Copies;

/* By how often all ranks together hold them.                                 */
static Copies *copies_of(const Plan *p, int64_t *once, int64_t *all)
{
    Copies *v = NULL;

    *once = *all = 0;
    for (int i = 0; i < p->nrole; i++)
        for (int k = 0; k < p->role[i].ntensor; k++) {
            const Tensor *t = &p->role[i].tensor[k];
            int copy = !strcmp(t->kind, "copy");
            if (strcmp(t->kind, "param") && !copy)
                continue;
            int64_t one = tensor_elems(t) * dtypes[t->dt].bytes;
            int64_t held = tensor_held(t) * dtypes[t->dt].bytes *
                           (p->mesh->world / p->nrole);
            int64_t n = one ? held / one : 0;
            size_t j = 0;
            *once += copy ? 0 : one;
            *all += held;
            while (j < vec_len(v) && v[j].copies != n)
                j++;
            if (j == vec_len(v))
                vec_push(forever, v, ((Copies){ n, 0, 0 }));
            v[j].tensors++;
            v[j].bytes += held;
        }
    return v;
}

static void put_params(FILE *out, const Plan *p)
{
    int64_t once, all;
    Copies *v = copies_of(p, &once, &all);

    fprintf(out, "\nparameters: %" PRId64 " bytes once, %" PRId64
            " on all ranks\n", once, all);
    for (size_t i = 0; i < vec_len(v); i++)
        fprintf(out, "  %" PRId64 " tensors %" PRId64 " times, %" PRId64
                " bytes\n", v[i].tensors, v[i].copies, v[i].bytes);
}

void report_null(FILE *out, const Plan *p)
{
    double bubble, secs = step_secs(p, &bubble);

    fprintf(out, "%s on %" PRId64 " ranks:", p->model, p->mesh->world);
    for (int a = 0; a < NMESH; a++)
        fprintf(out, " %s=%" PRId64, meshnames[a], p->mesh->size[a]);
    fputs("\n\n", out);
    for (int i = 0; i < p->nrole; i++)
        put_role(out, p, i);
    fputs("\nsent by a rank in a step\nstage  kind           group         "
          "ranks     times           bytes\n", out);
    for (int i = 0; i < p->nrole; i++)
        put_traffic(out, p, i);
    put_params(out, p);
    fprintf(out, "\na step: %.6g s predicted, bubble %.1f %%\n%.0f FLOP on all "
            "ranks, %.0f of them in products (%.6g by formula)\n", secs,
            100 * bubble, all_flops(p, 0), all_flops(p, 1), p->flops);
}
