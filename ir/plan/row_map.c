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
