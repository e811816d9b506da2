/* count_test: how many kernels and products one layer of models/tiny.lua takes.
 * A layer reads, forward: norm | q k v | rope q, rope k | attention | o | add
 * and norm | gate | softmax | topk | gate weights, load | route | dispatch | w1
 * w3 | silu, weights | w2 | combine, add and the next norm. A change of these
 * numbers is a change of the compiler worth a look: fewer is the aim. */
#include <string.h>

#include "../../frontend/frontend.h"

typedef struct Count {
    const char *prefix;
    int kernels, products;
} Count;

static const Count want[] = {
    { "layers.1.", 15, 8 },
    { "d.layers.1.", 9, 16 },
};

static Plan *tiny(void)
{
    Opts *o = opts_new(forever);

    opts_set(o, "world", "1", NULL);
    Trace t = trace("models/tiny.lua", o, TRACEquiet);
    CompileOptions co = { .source = t.source, .nsource = t.nsource };
    return compile(t.g, &T_host, &co);
}

static Count count(const Program *p, const char *prefix)
{
    Count c = { prefix, 0, 0 };

    for (int i = 0; i < p->nphase; i++)
        for (int k = 0; k < p->phase[i].n; k++) {
            const Instr *s = &p->instr[p->phase[i].first + k];
            if (strcmp(p->phase[i].name, "body") ||
                strncmp(s->label, prefix, strlen(prefix)))
                continue;
            c.kernels += s->kind == Ikernel;
            c.products += s->kind != Ikernel;
        }
    return c;
}

int main(void)
{
    Plan *p = tiny();
    const Role *r = &p->role[0];
    int failed = 0;

    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        Count c = count(&r->prog[role_prog(r, PGstep)], want[i].prefix);
        int ok = c.kernels == want[i].kernels && c.products == want[i].products;
        failed += !ok;
        printf("%sok - %s* of tiny.lua: %d kernels and %d products, %d and %d "
               "expected\n",
               ok ? "" : "not ", c.prefix, c.kernels, c.products,
               want[i].kernels, want[i].products);
    }
    return failed != 0;
}
