/* phases.c: names of a program's phases: "start", regions, calls of a pipeline
 * stage. */
#include "plan.h"

const char *const regions[NREGION] = { "den", "pre", "body", "post" };
const char jobnames[] = "FBIW";
static const char *const rownames[] = { "", "send.", "recv.", "wait." };
static const char start_name[] = "start";

/* ---- calls --------------------------------------------------------------- */

const char *call_name(Arena *a, const Call *call)
{
    const char *row = rownames[call->k];

    if (call->k == ROWwork)
        return strf(a, "%c%d", jobnames[call->w], call->chunk);
    return strf(a, "%s%c%d.%c%d", row, jobnames[call->w], call->chunk,
                jobnames[call->to], call->other);
}

/* Reads "F3" and moves s after it. Returns 0 if it is none. */
static int read_job(const char **s, WorkKind *kind, int *chunk)
{
    const char *job = **s ? strchr(jobnames, **s) : NULL;
    char *end;

    if (!job)
        return 0;
    *kind = (WorkKind)(job - jobnames);
    *chunk = (int)strtol(*s + 1, &end, 10);
    *s = end;
    return 1;
}

int call_named(Arena *a, const char *name, Call *call)
{
    const char *s = name;

    *call = (Call){ .k = ROWwork };
    for (int k = ROWsend; k <= ROWwait; k++)
        if (!strncmp(name, rownames[k], strlen(rownames[k]))) {
            call->k = (RowKind)k;
            s = name + strlen(rownames[k]);
        }
    int ok = read_job(&s, &call->w, &call->chunk);
    if (ok && call->k != ROWwork)
        ok = *s++ == '.' && read_job(&s, &call->to, &call->other);
    return ok && !strcmp(call_name(a, call), name);
}

/* ---- phases -------------------------------------------------------------- */

int64_t phase_micro(const Phase *phase, int64_t run, int second)
{
    return phase->pair ? 2 * run + second : run;
}

int phase_names(const Program *prog, const Phase *phase, int buf)
{
    for (int k = phase->first; k < phase->first + phase->n; k++)
        for (int i = 0; i < prog->instr[k].nbuf; i++)
            if (prog->instr[k].buf[i] == buf)
                return 1;
    return 0;
}

Phase phase_of_region(Region r, int start)
{
    return (Phase){ .name = start ? start_name : regions[r], .reg = r };
}

Phase phase_of_call(Arena *a, const Call *call)
{
    return (Phase){ .name = call_name(a, call), .reg = REGbody, .call = *call };
}

int phase_named(Arena *a, const char *name, Phase *phase)
{
    Call c;
    int r = word_index(name, regions, NREGION);
    if (r >= 0) {
        *phase = phase_of_region((Region)r, 0);
        return 1;
    }
    if (!strcmp(name, start_name)) {
        *phase = phase_of_region(REGpre, 1);
        return 1;
    }
    if (!call_named(a, name, &c))
        return 0;
    *phase = phase_of_call(a, &c);
    return 1;
}

const Phase *instr_phase(const Program *prog, int instr)
{
    for (int i = 0; i < prog->nphase; i++)
        if (instr >= prog->phase[i].first &&
            instr < prog->phase[i].first + prog->phase[i].n)
            return &prog->phase[i];
    return NULL;
}
