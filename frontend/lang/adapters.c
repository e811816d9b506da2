/* adapters.c: the parameters of low rank that lora() of the prelude adds to a
 * weight w [inputs outputs]: lora_A [inputs rank] and lora_B [outputs rank]. An
 * indexed weight has such a pair for each index. */
#include "../frontend.h"

/* Of which weight, a parameter or one with an index along `by`; the axes that
 * its product sums are its inputs. */
typedef struct Adapted {
    const Node *weight;
    const Param *param;
    const Axis *by; /* null: none */
    Axis *sum[MAXD];
    int nsum;
    Dim rank;
} Adapted;

/* Pushes lora_A, which begins as PEFT's, or lora_B, which begins at 0. */
static void push_part(lua_State *L, const Adapted *adapted, int inputs)
{
    Front *front = front_of(L);
    const Param *w = adapted->param;
    Param p = { .kind = TKparam, .init = inputs ? INITuniform : INITconst };
    double n = 1;

    p.path = intern(
        strf(front->g->arena, "%s.lora_%c", w->path, inputs ? 'A' : 'B'));
    for (int d = 0; d < w->nd; d++) {
        const Axis *a = w->dim[d].a;
        int input = axis_at(adapted->sum, adapted->nsum, a) >= 0;
        if (a == adapted->by || input == inputs)
            p.dim[p.nd++] = w->dim[d];
        n *= input ? (double)w->dim[d].n : 1;
    }
    p.dim[p.nd++] = adapted->rank;
    p.arg = inputs ? 1 / sqrt(n) : 0;
    Node *in[2] = { declare_lasting(front, &p), NULL }, *picked = in[0];
    if (adapted->by) {
        in[1] = adapted->weight->in[1];
        picked = make(front, Opick, 2, in);
        picked->at.pick = adapted->weight->at.pick;
        infer(current(front), picked);
    }
    push_node(L, picked);
}

/* adapters(w, axes, rank axis, rank, alpha): lora_A and lora_B of w, which is
 * summed over axes */
int lua_adapters(lua_State *L)
{
    Front *front = enter(L, "lora");
    const Node *n = use_any(front, need_value(L, 1, "the weight")), *w = n;
    Adapted to = { .weight = n };

    if (n->op == Opick) {
        to.by = n->at.pick.axis;
        w = n->in[0];
    }
    if (w->op != Oparam)
        err(front->loc,
            "lora: the weight must be a parameter, or one with an index, got "
            "%s",
            dims_text(front, w));
    to.param = g_param(front->g, w->at.param.path);
    to.nsum = axis_arg(L, 2, "axes", to.sum, MAXD);
    need_axes(front, w, to.sum, to.nsum);
    to.rank = (Dim){ one_axis(L, 3, "rank"), lua_tointeger(L, 4) };
    grow_axis(front, to.rank.a, to.rank.n);
    if (to.rank.a->role == ROLEnone)
        to.rank.a->role = ROLEother;
    Adapter a = { to.param, to.rank, lua_tonumber(L, 5) };
    if (!g_param(front->g, strf(front->g->arena, "%s.lora_A", to.param->path)))
        vec_push(front->g->arena, front->adapter, a); /* else by again() */
    push_part(L, &to, 1);
    push_part(L, &to, 0);
    return 2;
}
