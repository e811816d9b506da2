/* report.c: reports of `check` about a model and of `show` about a plan. */
#include <inttypes.h>
#include <jansson.h>

#include "../frontend.h"

/* ---- numbers for people -------------------------------------------------- */

/* Returns "46,702,792,704" for 46702792704. */
static const char *commas(int64_t v)
{
    char *s = strf(forever, "%" PRId64, v);
    Text out = { .arena = forever };
    size_t n = strlen(s);

    for (size_t i = 0; i < n; i++)
        put(&out, "%s%c", i && s[i - 1] != '-' && (n - i) % 3 == 0 ? "," : "",
            s[i]);
    return out.s;
}

const char *bytes_text(int64_t v)
{
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double x = (double)v;
    int u = 0;

    for (; x >= 1024 && u < 4; u++)
        x /= 1024;
    return strf(forever, u ? "%.2f %s" : "%.0f %s", x, unit[u]);
}

static const char *scaled(double x)
{
    static const char *const unit[] = {
        "", " k", " M", " G", " T", " P", " E"
    };
    int u = 0;

    for (; x >= 1000 && u < 6; u++)
        x /= 1000;
    return strf(forever, "%.2f%s", x, unit[u]);
}

/* ---- check --------------------------------------------------------------- */

/* Parameters whose paths differ only in numbers. */
typedef struct ParamRow {
    const char *pattern; /* "layers.*.attn.wq" */
    const Param *p;
    int64_t first, last, count;
} ParamRow;

const char *pattern_of(const char *path, int64_t *number)
{
    Text out = { .arena = forever };

    *number = -1;
    for (const char *s = path; *s;) {
        size_t n = s == path || s[-1] == '.' ? strspn(s, "0123456789") : 0;
        if (n && (s[n] == '.' || !s[n])) {
            if (*number < 0)
                *number = strtoll(s, NULL, 10);
            put(&out, "*");
        } else {
            putn(&out, s, n = 1);
        }
        s += n;
    }
    return intern(out.s ? out.s : "");
}

static int like(const ParamRow *row, const char *pattern, const Param *param)
{
    if (row->pattern != pattern || row->p->nd != param->nd ||
        row->p->kind != param->kind)
        return 0;
    return !memcmp(row->p->dim, param->dim,
                   (size_t)param->nd * sizeof *param->dim);
}

static void add_row(ParamRow **rows, const Param *param)
{
    int64_t number;
    const char *pattern = pattern_of(param->path, &number);

    for (size_t i = 0; i < vec_len(*rows); i++) {
        ParamRow *r = &(*rows)[i];
        if (!like(r, pattern, param))
            continue;
        r->first = number < r->first ? number : r->first;
        r->last = number > r->last ? number : r->last;
        r->count++;
        return;
    }
    ParamRow r = { pattern, param, number, number, 1 };
    vec_push(forever, *rows, r);
}

/* Returns "layers.0-31.attn.wq". */
static const char *row_name(const ParamRow *row)
{
    Text out = { .arena = forever };
    int done = 0;

    for (const char *s = row->pattern; *s; s++)
        if (*s != '*')
            putn(&out, s, 1);
        else if (done++)
            put(&out, "*");
        else if (row->first == row->last)
            put(&out, "%" PRId64, row->first);
        else
            put(&out, "%" PRId64 "-%" PRId64, row->first, row->last);
    return out.s;
}

static const char *row_axes(const Param *param)
{
    Text out = { .arena = forever };

    for (int i = 0; i < param->nd; i++)
        put(&out, "%s%s=%" PRId64, i ? " " : "", param->dim[i].a->name,
            param->dim[i].n);
    return out.s ? out.s : "";
}

void report_model(FILE *out, const Graph *g)
{
    ParamRow *rows = NULL;
    int64_t params, active, states = 0;
    double flops = flops_per_token(g, &params, &active);
    int wide = 9, axes = 4;

    for (size_t i = 0; i < vec_len(g->param); i++) {
        add_row(&rows, g->param[i]);
        if (g->param[i]->kind == TKstate)
            states += param_elems(g->param[i]);
    }
    for (size_t i = 0; i < vec_len(rows); i++) {
        int w = (int)strlen(row_name(&rows[i]));
        int a = (int)strlen(row_axes(rows[i].p));
        wide = w > wide ? w : wide;
        axes = a > axes ? a : axes;
    }
    fprintf(out, "%-*s  %-*s  %19s\n", wide, "parameter", axes, "axes",
            "elements");
    for (size_t i = 0; i < vec_len(rows); i++)
        fprintf(out, "%-*s  %-*s  %19s%s\n", wide, row_name(&rows[i]), axes,
                row_axes(rows[i].p),
                commas(param_elems(rows[i].p) * rows[i].count),
                rows[i].p->kind == TKstate ? "  state" : "");
    fprintf(out, "\nparameters       %22s\n", commas(params));
    if (states)
        fprintf(out, "with states      %22s\n", commas(params + states));
    fprintf(out, "active per token %22s\n", commas(active));
    fprintf(out, "FLOPs per token  %22s\n", commas((int64_t)(flops + 0.5)));
}

void report_optimizers(FILE *out, const Graph *g)
{
    const Node **all = optimizers_of(g);
    const char *most = opts_str(g->opts, "train.optimizer"), *last = NULL;
    ParamRow *rows = NULL;

    for (size_t i = 0; i < vec_len(g->param); i++)
        if (g->param[i]->kind == TKparam)
            add_row(&rows, g->param[i]);
    for (size_t i = 0; i < vec_len(rows); i++) {
        const UpdateRule rule = update_rule(g, all, rows[i].p);
        if (is_frozen_rule(&rule))
            continue;
        const char *name = rule.optimizer->at.optimizer.name;
        if (!strcmp(name, most))
            continue;
        if (!last)
            fprintf(out, "optimizer %s", most);
        if (name != last)
            fprintf(out, "; %s:", name);
        fprintf(out, " %s", row_name(&rows[i]));
        last = name;
    }
    if (last)
        fputc('\n', out);
}

void report_json(FILE *out, const Graph *g)
{
    ParamRow *rows = NULL;
    int64_t params, active;
    double flops = flops_per_token(g, &params, &active);
    json_t *all = json_array(), *j;

    for (size_t i = 0; i < vec_len(g->param); i++)
        add_row(&rows, g->param[i]);
    for (size_t i = 0; i < vec_len(rows); i++) {
        const ParamRow *row = &rows[i];
        j = json_pack("{s:s, s:s, s:I, s:b}", "name", row_name(row), "axes",
                      row_axes(row->p), "elements",
                      (json_int_t)(param_elems(row->p) * row->count), "state",
                      row->p->kind == TKstate);
        json_array_append_new(all, j);
    }
    j = json_pack("{s:I, s:I, s:I, s:o}", "parameters", (json_int_t)params,
                  "active", (json_int_t)active, "flops_per_token",
                  (json_int_t)(flops + 0.5), "params", all);
    json_dumpf(j, out, JSON_COMPACT);
    json_decref(j);
}

/* ---- show ---------------------------------------------------------------- */

/* Prints a stage's calls and the values that its micro-batches keep. */
static void show_table(FILE *out, const Program *prog)
{
    int64_t kept = 0;
    int calls = 0, most = 0;

    if (!prog->nslot)
        return;
    for (int f = 0; f < prog->nphase; f++)
        calls += prog->phase[f].repeat == 0;
    for (int f = 0; f < prog->nframe; f++) {
        kept += prog->frame[f].bytes;
        most = prog->frame[f].nslot > most ? prog->frame[f].nslot : most;
    }
    fprintf(out,
            "  table           %d rows, %d calls for %d micro-batches\n"
            "  frames          %12s  kept by a micro-batch, in %d frames of at "
            "most %d slots\n",
            prog->nslot, calls, prog->nslot / calls, bytes_text(kept),
            prog->nframe, most);
}

/* Prints the bytes that ranks exchange, and the exposed time. */
static void show_transfers(FILE *out, const Plan *plan, const Program *prog,
                           double makespan)
{
    double all = 0, open = makespan - plan_bare(plan, prog->kind);

    for (int f = 0; f < prog->nphase; f++)
        for (int i = 0; i < prog->phase[f].n; i++) {
            const Instr *instr = &prog->instr[prog->phase[f].first + i];
            InstrClass k = instr_info(instr->kind)->cls;
            if (k == CLASScollective || k == CLASStransfer)
                all += instr->secs * (double)instr_runs(prog, f, instr);
        }
    if (all > 0)
        fprintf(out,
                "  transfers       %.3f ms, not hidden %.3f ms: %.1f %% of the "
                "program\n",
                1e3 * all, 1e3 * open, 100 * open / makespan);
}

/* Prints bytes and seconds of rows sent to experts and back, hidden or
 * exposed. */
static void show_experts(FILE *out, const Program *prog)
{
    double routed = expert_bytes(prog, 1), fixed = expert_bytes(prog, 0);
    double secs = 0;

    for (int f = 0; f < prog->nphase; f++)
        for (int i = 0; i < prog->phase[f].n; i++) {
            const Instr *instr = &prog->instr[prog->phase[f].first + i];
            if (instr->experts)
                secs += instr->secs * (double)instr_runs(prog, f, instr);
        }
    if (routed + fixed > 0)
        fprintf(out,
                "  to experts      %12s  sent by a rank, and back%s, %.3f ms\n",
                bytes_text((int64_t)(routed + fixed)),
                routed > 0 ? ", as routes are expected" : "", 1e3 * secs);
}

/* Prints a phase and the sum of its instructions' seconds. */
static void show_phase(FILE *out, const Program *prog, int f)
{
    const Phase *phase = &prog->phase[f];
    double secs[2] = { 0 }; /* seconds of each run; of the last run only */
    int n[2] = { 0 };

    for (int i = phase->first; i < phase->first + phase->n; i++) {
        n[prog->instr[i].last_only]++;
        secs[prog->instr[i].last_only] += prog->instr[i].secs;
    }
    fprintf(out,
            "  %-14s  %5d instructions, %" PRId64 " time%s%s, %.3f ms each\n",
            phase->name, n[0], phase_runs(prog, f),
            phase_runs(prog, f) == 1 ? "" : "s",
            phase->pair ? ", two micro-batches each" : "", 1e3 * secs[0]);
    if (n[1])
        fprintf(out, "  %-14s  %5d instructions, once, %.3f ms\n",
                "  its last run", n[1], 1e3 * secs[1]);
}

static void show_program(FILE *out, const Plan *plan, int role,
                         const Program *prog)
{
    int kinds[NINSTR] = { 0 };
    Planned t = plan_time(forever, plan, prog->kind);

    for (int i = 0; i < prog->ninstr; i++)
        kinds[prog->instr[i].kind]++;
    fprintf(out, "\nprogram %-8s  %5d instructions, predicted %.3f ms",
            programnames[prog->kind], prog->ninstr, 1e3 * t.makespan);
    if (plan->nrole > 1)
        fprintf(out, ", %.1f %% of it at work",
                t.makespan > 0 ? 100 * t.busy[role] / t.makespan : 100.0);
    fputc('\n', out);
    if (t.stuck)
        fprintf(out, "  never ends: %s\n", t.stuck);
    show_transfers(out, plan, prog, t.makespan);
    show_experts(out, prog);
    for (int f = 0; f < prog->nphase; f++)
        show_phase(out, prog, f);
    show_table(out, prog);
    fputs("  of them ", out);
    for (int k = 0, n = 0; k < NINSTR; k++)
        if (kinds[k])
            fprintf(out, "%s%d %s", n++ ? ", " : "", kinds[k],
                    instr_info(k)->name);
    if (prog->rebuilt > 0)
        fprintf(
            out,
            "\n  rebuilding      %.3f ms of what is not kept for the backward",
            1e3 * prog->rebuilt);
    fprintf(out, "\n  temporary       %12s, lower bound %s (%+.2f %%)\n",
            bytes_text(prog->transient), bytes_text(prog->bound),
            prog->bound ? 100.0 * (double)(prog->transient - prog->bound) /
                              (double)prog->bound
                        : 0.0);
}

/* Prints "m.plan: 8 ranks, 61.20 GiB each, a step in 512.3 ms". */
void report_line(FILE *out, const char *name, const Plan *p)
{
    int64_t most = 0;
    int same = 1;

    for (int i = 0; i < p->nrole; i++) {
        most = p->role[i].arena > most ? p->role[i].arena : most;
        same &= p->role[i].arena == p->role->arena;
    }
    fprintf(out, "%s: %" PRId64 " rank%s, %s%s%s", name, p->mesh->world,
            p->mesh->world == 1 ? "" : "s", same ? "" : "at most ",
            bytes_text(most), p->mesh->world == 1 ? "" : " each");
    if (role_prog(p->role, PGstep) >= 0)
        fprintf(out, ", predicted %.1f ms a step", 1e3 * plan_secs(p, PGstep));
    fputc('\n', out);
}

void report_plan(FILE *out, const Plan *p)
{
    const Mesh *m = p->mesh;
    size_t text = p->prelude ? strlen(p->prelude) : 0;
    const char *key, *value;

    for (int i = 0; i < p->nkernel; i++)
        text += strlen(p->kernel[i].text);
    fprintf(out, "%s for %s, %" PRId64 " rank%s:", p->model, p->target,
            m->world, m->world == 1 ? "" : "s");
    for (int a = 0; a < NMESH; a++)
        fprintf(out, " %s=%" PRId64, meshnames[a], m->size[a]);
    fprintf(out,
            "\n%s parameters, %s active; a step has %s tokens and %sFLOP\n",
            commas(p->params), commas(p->active), commas(p->tokens),
            scaled(p->flops));
    for (int i = 0; i < p->nrole; i++) {
        const Role *role = &p->role[i];
        if (p->nrole > 1)
            fprintf(out, "\nstage %d\n", i);
        report_stage_memory(out, p, role);
        for (int k = 0; k < role->nprog; k++)
            show_program(out, p, i, &role->prog[k]);
    }
    fprintf(out, "\n%d kernels, %s of text; %d Hugging Face names\n",
            p->nkernel, bytes_text((int64_t)text), p->nhf);
    for (int i = 0; opts_each(p->opts, i, &key, &value); i++)
        fprintf(out, "%s%s=%s", i ? " " : "", key, value);
    fputc('\n', out);
}

static int by_offset(const void *a, const void *b)
{
    const Buf *x = *(const Buf *const *)a, *y = *(const Buf *const *)b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x > y) - (x < y);
}

/* Prints every buffer by offset: offset, bytes, class ("host": offloaded),
 * program and instructions in which it is alive, name, source line, slots if
 * micro-batches of a pipeline keep it (0: no), separated by tabs. */
void report_memory(FILE *out, const Plan *p)
{
    fputs("stage\toffset\tbytes\tclass\tdtype\tprogram\tborn\tdies\tname\tline"
          "\tslots\n",
          out);
    for (int i = 0; i < p->nrole; i++) {
        const Role *role = &p->role[i];
        const Buf **v = alloc(forever, ((size_t)role->nbuf + 1) * sizeof *v);
        for (int k = 0; k < role->nbuf; k++)
            v[k] = &role->buf[k];
        qsort(v, (size_t)role->nbuf, sizeof *v, by_offset);
        for (int k = 0; k < role->nbuf; k++) {
            const Buf *b = v[k];
            fprintf(
                out, "%d\t%" PRId64 "\t%" PRId64 "\t%s\t%s\t%s\t%d\t%d\t%s\t",
                i, b->offset % HOSTSPACE, b->bytes,
                in_host(role, b) ? "host" : bufclasses[b->cls],
                dtypes[b->dt].name,
                b->prog < 0 ? "all" : programnames[role->prog[b->prog].kind],
                b->born, b->dies, b->name);
            if (b->file)
                fprintf(out, "%s:%d", b->file, b->line);
            fprintf(out, "\t%d\n",
                    b->frame ? role->prog[b->prog].frame[b->frame - 1].nslot
                             : 0);
        }
    }
}

/* ---- show --kernel ------------------------------------------------------- */

typedef struct KernelName { /* a name that --kernel accepts */
    const char *name;       /* the kernel's name, or the label of a call */
    const char *kernel;
    const char *call; /* a C comment with the call's place, or "" */
} KernelName;

/* Adds the calls of a stage's program to the vec. */
static void add_calls(KernelName **v, int stage, const Program *prog)
{
    for (int i = 0; i < prog->ninstr; i++) {
        const Instr *instr = &prog->instr[i];
        const char *s = instr_label(instr);
        const char *call =
            strf(forever, "// stage %d, program %s, instruction %d '%s'%s\n",
                 stage, programnames[prog->kind], i, s,
                 place_text(forever, instr->file, instr->line));
        if (instr->kernel)
            vec_push(forever, *v, ((KernelName){ s, instr->kernel, call }));
    }
}

/* Prints the calls and the text of a kernel if `name` is one of its names in v.
 * Returns 0 if it is not. */
static int print_kernel(FILE *out, const Kernel *kernel, const KernelName *v,
                        const char *name)
{
    Text calls = { .arena = forever };
    int named = 0;

    for (size_t i = 0; i < vec_len(v); i++)
        if (!strcmp(v[i].kernel, kernel->name)) {
            put(&calls, "%s", v[i].call);
            named |= !strcmp(v[i].name, name);
        }
    if (named)
        fprintf(out, "%s%s\n", calls.s, kernel->text);
    return named;
}

void report_kernel(FILE *out, const Plan *p, const char *name)
{
    KernelName *v = NULL;
    const char **names = NULL; /* vec */
    int found = 0;

    if (!strcmp(p->target, "null"))
        err(NULL, "kernels of a plan for target=null have no text");
    for (int i = 0; i < p->nkernel; i++)
        vec_push(forever, v,
                 ((KernelName){ p->kernel[i].name, p->kernel[i].name, "" }));
    for (int i = 0; i < p->nrole; i++)
        for (int k = 0; k < p->role[i].nprog; k++)
            add_calls(&v, i, &p->role[i].prog[k]);
    for (int i = 0; i < p->nkernel; i++)
        found |= print_kernel(out, &p->kernel[i], v, name);
    for (size_t i = 0; i < vec_len(v); i++)
        vec_push(forever, names, v[i].name);
    if (!found)
        err(NULL, "no kernel and no call of a kernel is named '%s'%s", name,
            did_you_mean(name, names, vec_len(names)));
}
