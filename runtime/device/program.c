/* program.c: what devices and those who call them ask of a program. */
#include "device.h"

ScheduleSlot *course_rows(Arena *a, const Program *g)
{
    ScheduleSlot *v = NULL;
    int tabled = 0;

    for (int f = 0; f < g->nphase; f++) {
        for (int t = 0; t < g->phase[f].repeat; t++)
            vec_push(a, v, ((ScheduleSlot){ f, t, 0 }));
        for (int t = 0; t < g->nturn && !g->phase[f].repeat && !tabled; t++)
            vec_push(a, v, g->turn[t]);
        tabled |= !g->phase[f].repeat;
    }
    return v;
}

const char *instr_label(const Instr *s)
{
    return s->label    ? s->label
           : s->kernel ? s->kernel
                       : instr_info(s->kind)->name;
}
