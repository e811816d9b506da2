/* row_map.c: the map of an exchange of rows: map_layout's words of a map with
 * a block of rows for each rank. */
#include "plan.h"

RowsMap rows_map(const RowsArgs *args, int64_t ranks)
{
    RowsMap m = { .pair = ranks + 1 };

    m.row = sat_add(m.pair, sat_mul(ranks, args->pair));
    m.n = sat_add(m.row, sat_mul(ranks, args->tokens));
    return m;
}

static KernelOperand operand(Arena *a, Dtype dt, int nd, int64_t x, int64_t y,
                             int64_t z)
{
    int64_t *n = alloc(a, 3 * sizeof *n);

    n[0] = x;
    n[1] = y;
    n[2] = z;
    return (KernelOperand){ dt, nd, n, 0 };
}

void declare_rows(Arena *a, const Instr *instr, int64_t ranks,
                  KernelSignature *signature)
{
    const RowsArgs *args = &instr->rows;
    KernelOperand *v = alloc(a, 3 * sizeof *v);
    int blocks = instr->kind == Isendrows; /* the operand that has them */

    v[!blocks] = operand(a, args->dt, 2, args->tokens, args->width, 0);
    v[blocks] = operand(a, args->dt, 3, ranks, args->pair, args->width);
    v[2] = operand(a, Di32, 1, rows_map(args, ranks).n, 0, 0);
    signature->use = "rwr";
    signature->op = v;
    signature->nword = 0;
}

int moves_rows(InstrKind k)
{
    return k == Isendrows || k == Ireturnrows;
}

int plan_shares(const Plan *p)
{
    for (int r = 0; r < p->nrole; r++)
        for (int g = 0; g < p->role[r].nprog; g++)
            for (int i = 0; i < p->role[r].prog[g].ninstr; i++)
                if (moves_rows(p->role[r].prog[g].instr[i].kind))
                    return 1;
    return 0;
}
