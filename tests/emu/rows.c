/* rows.c: the table of instructions, and how a statement's are executed. */
#include "rows.h"

#include <stdlib.h>
#include <string.h>

#define F(name) 1u << F##name
#define ROW(name, f, fields, flags, least, most, check) \
    { name, run_##f, (fields) | 1u << Fflag, flags, least, most, check },
const OpRow ptx_rows[] = {
#include "rows.def"
    { 0 }
};

static Ptx *program_of(Site *s)
{
    Out log = { 0 };

    s->program = ptx_parse(s->text, s->constraints, &log);
    if (!s->program)
        fail(EILLEGALINSTRUCTION, "%s", log.s);
    return s->program;
}

void ptx_run(Site *s, const Arg *arg)
{
    const Ptx *p = s->program ? s->program : program_of(s);
    SlotGroup f; /* registers are not touched where there are none */

    f.t = machine.now;
    f.arg = arg;
    f.constraints = s->constraints;
    memset(f.reg, 0xff, (size_t)p->nreg * sizeof *f.reg);
    for (int k = 0; k < p->n; k++) {
        const Insn *i = &p->insn[k];
        if (i->guard >= 0 && (f.reg[i->guard] == 0) != i->unless)
            continue;
        f.t->insn = i;
        i->row->run(&f, i);
    }
    f.t->insn = NULL;
}
