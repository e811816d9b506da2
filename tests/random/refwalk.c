/* refwalk.c: loops over all index tuples of some axes, with the place of each
 * tuple in some tensors. A tensor without an axis stays where it is. */
#include <string.h>

#include "ref.h"

int val_axis(const Val *v, const Axis *a)
{
    for (int d = 0; d < v->nd; d++)
        if (v->a[d] == a)
            return d;
    return -1;
}

int walk_axis(const Walk *w, const Axis *a)
{
    for (int d = 0; d < w->nd; d++)
        if (w->a[d] == a)
            return d;
    return -1;
}

Walk walk_over(const Val *const *space, int nspace, const Val *const *v, int nv)
{
    Walk w = { .nv = nv };

    for (int s = 0; s < nspace; s++)
        for (int d = 0; d < space[s]->nd; d++)
            if (walk_axis(&w, space[s]->a[d]) < 0) {
                w.a[w.nd] = space[s]->a[d];
                w.len[w.nd++] = space[s]->len[d];
            }
    for (int k = 0; k < nv; k++)
        for (int d = 0; d < w.nd; d++) {
            int at = val_axis(v[k], w.a[d]);
            w.step[k][d] = at < 0 ? 0 : v[k]->step[at];
        }
    return w;
}

void walk_skip(Walk *w, int k, const Axis *a)
{
    int d = walk_axis(w, a);

    if (d >= 0)
        w->step[k][d] = 0;
}

int walk_next(Walk *w)
{
    for (int d = w->nd; d-- > 0;) {
        int64_t by = 1;
        if (++w->i[d] == w->len[d]) {
            by = 1 - w->len[d];
            w->i[d] = 0;
        }
        for (int k = 0; k < w->nv; k++)
            w->at[k] += by * w->step[k][d];
        if (by == 1)
            return 1;
    }
    return 0;
}
