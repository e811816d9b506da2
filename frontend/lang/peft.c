/* peft.c: rows of hf{} for adapters, in the format of PEFT. The weight that
 * hf{} maps to the tensor model.q.weight [outputs inputs] has
 *
 *     base_model.model.model.q.lora_A.weight [rank inputs]
 *     base_model.model.model.q.lora_B.weight [outputs rank]
 *
 * The key hf.adapter has the values of adapter_config.json. */
#include "../frontend.h"

static const char tail[] = ".weight";

int param_axis(const Param *param, const char *s, size_t n)
{
    for (int i = 0; i < param->nd; i++)
        if (strlen(param->dim[i].a->name) == n &&
            !strncmp(param->dim[i].a->name, s, n))
            return i;
    return -1;
}

/* Is a dimension of a tensor made of whole axes, inputs of w or outputs? */
static int is_of(Front *front, const HfDim *dim, const Param *w, char part)
{
    const Param *p =
        g_param(front->g, strf(front->g->arena, "%s.lora_%c", w->path, part));

    for (int i = 0; i < dim->nf; i++) {
        const HfFactor *f = &dim->f[i];
        if (!f->axis || f->n != f->total ||
            param_axis(p, f->axis, strlen(f->axis)) < 0)
            return 0;
    }
    return 1;
}

/* The only row of hf{} that maps the weight, a matrix [outputs inputs] named
 * "...weight"; null: there is none. */
static const HfMap *map_of(Front *front, const Param *w)
{
    const HfMap *m = NULL;
    int rows = 0;

    for (size_t i = 0; i < vec_len(front->g->hf); i++)
        if (front->g->hf[i].param == w->path) {
            m = &front->g->hf[i];
            rows++;
        }
    const char *dot = m ? strrchr(m->hf, '.') : NULL;
    return rows == 1 && dot && !strcmp(dot, tail) && m->nd == 2 &&
                   is_of(front, &m->dim[0], w, 'B') &&
                   is_of(front, &m->dim[1], w, 'A')
               ? m
               : NULL;
}

/* Rows of lora_A and lora_B; the module's name, once. */
static void add_maps(Front *front, const Adapter *adapter, HfMap w, Text *names)
{
    Arena *arena = front->g->arena;
    HfFactor rank = { adapter->rank.a->name, adapter->rank.n, 0,
                      adapter->rank.n };
    int n = (int)(strlen(w.hf) - strlen(tail)), at = n;

    for (int b = 0; b < 2; b++) {
        HfMap m = w;
        m.param = intern(strf(arena, "%s.lora_%c", w.param, "AB"[b]));
        m.hf = intern(strf(arena, "base_model.model.%.*s.lora_%c%s", n, w.hf,
                           "AB"[b], tail));
        m.dim[b] = (HfDim){ 1, { rank } };
        vec_push(arena, front->g->hf, m);
    }
    while (at > 0 && w.hf[at - 1] != '.')
        at--;
    const char *word = strf(arena, "\"%.*s\"", n - at, w.hf + at);
    if (!strstr(names->s, word))
        put(names, "%s%s", names->len ? ", " : "", word);
}

/* PEFT has one rank and one alpha for all. */
void peft_maps(Front *front)
{
    const Adapter *v = front->adapter;
    Text names = { .arena = front->g->arena };

    putn(&names, "", 0);
    for (size_t i = 0; i < vec_len(v); i++)
        if (!map_of(front, v[i].weight) || v[i].rank.n != v[0].rank.n ||
            v[i].alpha != v[0].alpha)
            return;
    for (size_t i = 0; i < vec_len(v); i++)
        add_maps(front, &v[i], *map_of(front, v[i].weight), &names);
    if (v)
        opts_set(front->g->opts, "hf.adapter",
                 strf(front->g->arena,
                      "{\"r\": %ld, \"lora_alpha\": %.17g, \"target_modules\": "
                      "[%s]}",
                      v[0].rank.n, v[0].alpha, names.s),
                 front->loc);
}
