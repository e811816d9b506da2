/* attention.c: see attention.h. */
#include "attention.h"
#include "emurun.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOSTARGS = 32, MOSTRESULTS = 16 };

void attention_make(Attention *x, const Form *c, Dtype dt)
{
    attn_build(&x->right, c, Df64);
    attn_kernels(&x->right);
    attn_build(&x->r, c, dt);
    attn_kernels_cuda(&x->r);
}

/* ---- what should come ---------------------------------------------------- */

static void run_host(Run *r, const Group *k, void *lib)
{
    void *buf[MOSTARGS];
    int64_t iv[512];
    Entry *f;

    *(void **)&f = dlsym(lib, k->instr.kernel);
    for (int i = 0; i < k->narg; i++)
        buf[i] = attn_stored(k->arg[i], attn_known(r, k->arg[i]));
    buf[k->narg] = malloc((size_t)k->scratch + 1);
    for (int i = 0; i < k->instr.nword; i++)
        iv[i] = word_value(NULL, &k->instr.word[i], 0);
    f(buf, iv, 0, k->instr.launch.items);
    for (int i = 0; i < k->narg; i++) {
        double *v = attn_loaded(k->arg[i], buf[i]), **to = NULL;
        to = k->arg[i] == r->out ? &r->y : k->arg[i] == r->lse ? &r->l : NULL;
        for (int q = 0; q < r->m.nop; q++)
            to = k->arg[i] == r->grad[q] ? &r->dx[q] : to;
        if (to)
            *to = v;
        else
            free(v);
        free(buf[i]);
    }
    free(buf[k->narg]);
}

void attention_share(Attention *x, const Attention *prepared)
{
    x->right = prepared->right;
    memcpy(x->r.x, x->right.x, sizeof x->r.x);
    x->r.w = x->right.w;
}

int attention_prepare(Attention *x, int n)
{
    Group **all = NULL;

    for (int i = 0; i < n; i++) {
        vec_push(forever, all, &x[i].right.fwd);
        vec_push(forever, all, &x[i].right.bwd);
    }
    void *lib = host_compile(forever, all, 2 * n);
    for (int i = 0; i < n && lib; i++) {
        Run *r = &x[i].right;
        for (int k = 0; k < r->m.nop; k++)
            x[i].r.x[k] = r->x[k] = attn_values(r->m.op[k], r->c->scale);
        x[i].r.w = r->w = attn_values(r->out, 1);
        run_host(r, &r->fwd, lib);
        run_host(r, &r->bwd, lib);
    }
    return lib != NULL;
}

/* ---- running ------------------------------------------------------------- */

typedef struct Buffers {
    const Group *k;
    void *buf[MOSTARGS];
    size_t bytes[MOSTARGS]; /* of the group's, then of its work space */
} Buffers;

static const double *known(const Run *r, const Node *n, const double *delta)
{
    return n == r->delta ? delta : attn_known(r, n);
}

static void fill(Buffers *b, const Run *r, const Group *k, const double *delta)
{
    *b = (Buffers){ .k = k };
    for (int i = 0; i < k->narg; i++) {
        const Node *n = k->arg[i];
        size_t size = (size_t)(g_elems(n) * dtypes[n->dt].bytes);
        void *p = attn_stored(n, known(r, n, delta));
        b->bytes[i] = size + RUNGUARD;
        b->buf[i] = memset(malloc(b->bytes[i]), 0xff, b->bytes[i]);
        memcpy(b->buf[i], p, size);
        free(p);
    }
    b->bytes[k->narg] = (size_t)k->scratch;
    b->buf[k->narg] =
        memset(malloc((size_t)k->scratch + 1), 0xff, (size_t)k->scratch);
}

static double *result(const Buffers *b, const Node *n)
{
    for (int i = 0; i < b->k->narg; i++)
        if (b->k->arg[i] == n)
            return attn_loaded(n, b->buf[i]);
    die("attention: a result that the kernel does not have");
}

static void drop(Buffers *b, uint64_t *bits)
{
    for (int i = 0; i < b->k->narg; i++) {
        const uint8_t *p = b->buf[i];
        for (size_t k = 0; k < b->bytes[i]; k++)
            *bits = mix64(*bits, p[k]);
        free(b->buf[i]);
    }
    free(b->buf[b->k->narg]);
}

static int launch(Buffers *b, const Run *r, const Group *k, const double *delta)
{
    int64_t iv[16];

    fill(b, r, k, delta);
    for (int i = 0; i < k->instr.nword; i++)
        iv[i] = word_value(NULL, &k->instr.word[i], 0);
    return emurun_launch(k, b->buf, b->bytes, iv);
}

/* ---- comparing ----------------------------------------------------------- */

/* bf16 weights and results: 2^-9 each, and differences of such where a row's
 * gradients nearly cancel; of fp32 the rounding of as many terms. A row's own
 * size counts if it is not below a quarter of the largest's. */
static double allowed(const Run *r)
{
    return r->m.dt == Dbf16 ? 1.5e-2 : 2e-5;
}

static double size_of(const double *x, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += isinf(x[i]) ? 0 : x[i] * x[i];
    return sqrt(s);
}

static double row_error(const double *x, const double *y, int64_t n, int64_t w)
{
    double largest = 0, worst = 0;

    for (int64_t i = 0; i < n; i += w)
        largest = fmax(largest, size_of(y + i, w));
    for (int64_t i = 0; i < n; i += w) {
        double size = fmax(size_of(y + i, w), largest / 4);
        double e = attn_distance(x + i, y + i, w) * size_of(y + i, w) / size;
        if (size_of(y + i, w) == 0) /* a distance is not divided by 0 */
            e = size > 0 ? attn_distance(x + i, y + i, w) / size : 0;
        worst = e > worst || isnan(e) ? e : worst;
    }
    return isnan(worst) ? INFINITY : worst;
}

/* The largest of results [from, to), each of rows of its last axis. */
static double compare(Attention *x, const Buffers *b, int from, int to)
{
    Node *out[MOSTRESULTS], *want[MOSTRESULTS];
    const char *name[MOSTRESULTS];
    int n = attn_results(&x->r, out, name);
    double worst = 0;

    attn_results(&x->right, want, name);
    for (int i = from; i < n && i < to; i++) {
        const Run *r = &x->right;
        const double *y = i == 0 ? r->y : r->l;
        for (int q = 0; q < r->m.nop; q++)
            y = want[i] == r->grad[q] ? r->dx[q] : y;
        int64_t size = g_elems(want[i]);
        double *got = attn_summed(&x->r, out[i], result(b, out[i]), size);
        int64_t w = i == 1 ? 1 : want[i]->dim[want[i]->nd - 1].n;
        double e = row_error(got, y, size, w);
        worst = e > worst ? e : worst;
        free(got);
    }
    return worst / allowed(&x->r);
}

double attention_error(Attention *x, uint64_t *bits)
{
    Run *r = &x->r;
    Buffers b;
    double worst = INFINITY;

    *bits = 0;
    if (!launch(&b, r, &r->fwd, NULL)) {
        worst = compare(x, &b, 0, 2);
        r->y = result(&b, r->out);
        r->l = result(&b, r->lse);
    }
    drop(&b, bits);
    if (!(worst <= 1))
        return worst;
    double *delta = attn_deltas(r, r->y), back = INFINITY;
    if (!launch(&b, r, &r->bwd, delta))
        back = compare(x, &b, 2, MOSTRESULTS);
    drop(&b, bits);
    free(delta);
    free(r->y);
    free(r->l);
    r->y = r->l = NULL;
    return back > worst || isnan(back) ? back : worst;
}
