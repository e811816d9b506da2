/* hf.c: parameters under Hugging Face names. A row of the plan's table says how
 * one of their tensors, or a part of one, lies in one of our parameters: each
 * dim of theirs is a mixed radix of our axes, major first, an axis possibly at
 * an offset inside a longer digit; our remaining axes are fixed ("expert 3").
 * So an element of ours is at an affine function of its indices, both ways.
 *
 * Files spell experts in two ways, one tensor each (the Hub) or all fused, gate
 * and up together (what transformers holds): rows written in the first find
 * the second too. FP8 tensors come with the scales of their blocks. */
#include "ckpt.h"

/* ---- one row of the table ------------------------------------------------ */

int64_t hf_dim(const HfDim *dim)
{
    int64_t n = 1;

    for (int i = 0; i < dim->nf; i++)
        n *= dim->f[i].total;
    return n;
}

static int dim_at(const Tensor *tensor, const char *axis)
{
    for (int d = 0; d < tensor->nd; d++)
        if (!strcmp(tensor->dim[d].axis, axis))
            return d;
    err(&(Loc){ tensor->file, tensor->line, NULL },
        "hf: parameter '%s' has no axis '%s'", tensor->name, axis);
}

/* base, strides and fixed axes; *cover: elements that the row carries. */
static View row_view(const HfMap *map, const Tensor *tensor, int64_t *cover)
{
    View v = { 0 };
    int64_t step = 1;

    *cover = 1;
    for (int d = 0; d < tensor->nd; d++)
        v.fix[d] = -1;
    for (int i = 0; i < map->nfix; i++)
        v.fix[dim_at(tensor, map->fixaxis[i])] = map->fixat[i];
    for (int k = map->nd - 1; k >= 0; k--)
        for (int i = map->dim[k].nf - 1; i >= 0; i--) {
            const HfFactor *factor = &map->dim[k].f[i];
            v.base += factor->start * step;
            if (factor->axis && *factor->axis) {
                v.stride[dim_at(tensor, factor->axis)] = step;
                *cover *= factor->n;
            }
            step *= factor->total;
        }
    for (int d = 0; d < tensor->nd; d++)
        if (v.fix[d] >= 0)
            v.base -= v.fix[d] * v.stride[d];
    return v;
}

static void check_row(const HfRow *row, const StTensor *scale)
{
    const HfMap *map = row->h;
    const StTensor *tensor = row->s;
    int ok = tensor->nd == map->nd;

    for (int k = 0; k < map->nd && ok; k++)
        ok = tensor->n[k] == hf_dim(&map->dim[k]);
    if (!ok) {
        Text a = { .arena = forever }, b = { .arena = forever };
        for (int k = 0; k < tensor->nd; k++)
            put(&a, "%s%ld", k ? " " : "", tensor->n[k]);
        for (int k = 0; k < map->nd; k++)
            put(&b, "%s%ld", k ? " " : "", hf_dim(&map->dim[k]));
        err(NULL, "'%s' is [%s] in %s, parameter '%s' makes it [%s]",
            tensor->name, a.s ? a.s : "", row->f->path, map->param,
            b.s ? b.s : "");
    }
    if (st_isscaled(tensor->dt) && !scale)
        err(NULL, "'%s' in %s is %s without '%s_scale_inv'", tensor->name,
            row->f->path, st_name(tensor->dt), tensor->name);
    if (!st_isfloat(tensor->dt) && !st_isscaled(tensor->dt))
        err(NULL, "'%s' in %s is %s; convert it to F32, BF16 or F16 first",
            tensor->name, row->f->path, st_name(tensor->dt));
}

/* ---- spellings ----------------------------------------------------------- */

/* Names with one tensor an expert, and the fused tensor that holds all of them:
 * rows of experts, in each `parts` matrices, of which this one is number at. */
/* clang-format off */
static const struct { const char *hub, *state; int at, parts; } fused[] = {
    {".experts.%.gate_proj.weight", ".experts.gate_up_proj", 0, 2},
    {".experts.%.up_proj.weight", ".experts.gate_up_proj", 1, 2},
    {".experts.%.down_proj.weight", ".experts.down_proj", 0, 1},
    {".block_sparse_moe.experts.%.w1.weight", ".mlp.experts.gate_up_proj", 0, 2},
    {".block_sparse_moe.experts.%.w3.weight", ".mlp.experts.gate_up_proj", 1, 2},
    {".block_sparse_moe.experts.%.w2.weight", ".mlp.experts.down_proj", 0, 1},
    {".block_sparse_moe.gate.weight", ".mlp.gate.weight", 0, 1},
};
/* clang-format on */

/* Where pattern ends name s, % for "{axis}"; -1: it does not. */
static int ends_like(const char *s, const char *pattern)
{
    const char *star = strchr(pattern, '%'), *tail = star ? star + 1 : "";
    size_t head = star ? (size_t)(star - pattern) : strlen(pattern);

    for (const char *p = strchr(s, *pattern); p; p = strchr(p + 1, *pattern)) {
        const char *q = p + head;
        if (strncmp(p, pattern, head))
            continue;
        if (star && (*q != '{' || !(q = strchr(q, '}'))))
            continue;
        if (!strcmp(star ? q + 1 : q, tail))
            return (int)(p - s);
    }
    return -1;
}

/* The row as fused names spell it; 0: they do not. */
static int respell(const HfMap *map, const Tensor *tensor, HfMap *to)
{
    for (int i = 0; i < countof(fused); i++) {
        int at = ends_like(map->hf, fused[i].hub), unrolled = map->nfix == 1;
        if (at < 0 || unrolled != (strchr(fused[i].hub, '%') != NULL))
            continue;
        *to = *map;
        to->hf = strf(forever, "%.*s%s", at, map->hf, fused[i].state);
        if (!unrolled)
            return 1;
        if (map->fixat[0] >= 0 || map->nd == MAXD || !map->nd)
            return 0;
        int64_t n = 0, rows = hf_dim(&map->dim[0]);
        for (int d = 0; d < tensor->nd; d++)
            if (!strcmp(tensor->dim[d].axis, map->fixaxis[0]))
                n = tensor->dim[d].n;
        memcpy(to->dim + 1, map->dim, (size_t)map->nd * sizeof *map->dim);
        to->dim[0] = (HfDim){ 1, { { map->fixaxis[0], n, 0, n } } };
        to->nd++;
        to->nfix = 0;
        HfDim *d = &to->dim[1];
        if (fused[i].parts > 1 && d->nf == 1) {
            d->f[0].total = rows * fused[i].parts;
            d->f[0].start = rows * fused[i].at;
        }
        return fused[i].parts == 1 || map->dim[0].nf == 1;
    }
    return 0;
}

/* ---- rows ---------------------------------------------------------------- */

typedef struct HfRows {
    const Plan *p;
    StFile **file;
    int n;
    int last; /* the file where the last one was */
    const char *what;
    unsigned how;
    const char *source; /* name of a key from.SCOPE; null: that of `from` */
    HfRow *v;           /* vec */
} HfRows;

static StTensor *find_tensor(HfRows *rows, const char *name)
{
    for (int i = 0; i < rows->n; i++) {
        int at = (rows->last + i) % rows->n;
        StTensor *t = st_find(rows->file[at], name);
        if (t) {
            rows->last = at;
            return t;
        }
    }
    return NULL;
}

/* A parameter or state by its name; null: no role has it. */
static const Tensor *plan_tensor(const Plan *p, const char *name)
{
    for (int r = 0; r < p->nrole; r++) {
        int i = role_tensor(&p->role[r], name);
        if (i >= 0)
            return &p->role[r].tensor[i];
    }
    return NULL;
}

/* Their tensor of a row: the element type, and scales if it has them. */
static void attach(HfRows *rows, HfRow *row)
{
    row->s = find_tensor(rows, row->h->hf);
    if (!row->s)
        return;
    row->f = rows->file[rows->last];
    StTensor *scale =
        find_tensor(rows, strf(forever, "%s_scale_inv", row->h->hf));
    const StFile *file = rows->file[rows->last];
    check_row(row, scale);
    row->v.data = row->f->data + row->s->begin;
    row->v.dt = row->s->dt;
    if (!scale)
        return;
    row->v.cols = row->s->nd == 2 ? row->s->n[1] : 0;
    if (row->s->nd != 2 || scale->nd != 2 || scale->dt != FTF32 ||
        scale->n[0] != (row->s->n[0] + 127) / 128 ||
        scale->n[1] != (row->s->n[1] + 127) / 128 ||
        (uintptr_t)(file->data + scale->begin) % 4)
        err(NULL, "'%s' in %s is not one F32 for each block of 128 x 128",
            scale->name, file->path);
    row->v.scale = (const void *)(file->data + scale->begin);
    scale->taken = scale->n[0] * scale->n[1];
}

/* N of "model.layers.N.", or -1. */
static int64_t layer_of(const char *name)
{
    static const char head[] = "model.layers.";

    return strncmp(name, head, sizeof head - 1)
               ? -1
               : strtoll(name + sizeof head - 1, NULL, 10);
}

static int has_layer(const HfRows *rows, int64_t layer)
{
    for (int i = 0; i < rows->n; i++)
        for (int k = 0; k < rows->file[i]->n; k++)
            if (layer_of(rows->file[i]->t[k].name) == layer)
                return 1;
    return 0;
}

static _Noreturn void missing(const HfRows *rows, const HfMap *map)
{
    int64_t layer = layer_of(map->hf);

    if (layer >= 0 && !has_layer(rows, layer))
        err(NULL,
            "%s has no layer %ld, which the model has: are there fewer "
            "layers, or none that predicts a token further (MTP)? No '%s' for "
            "parameter '%s'",
            rows->what, layer, map->hf, map->param);
    err(NULL, "%s has no tensor '%s' for parameter '%s'", rows->what, map->hf,
        map->param);
}

static void add_row(HfRows *rows, const HfMap *map, const Tensor *tensor,
                    int64_t *filled)
{
    HfRow x = { .h = map, .t = tensor, .elems = tensor_elems(tensor) };
    int64_t cover;

    x.v = row_view(map, tensor, &cover);
    if (rows->n)
        attach(rows, &x);
    if (rows->n && !x.s && tensor_is(tensor, PARAMETERS) &&
        (rows->how & HFadapters || rows->source ||
         !ckpt_begins(rows->p, map->param)))
        missing(rows, map);
    if (x.s)
        x.s->taken += cover;
    *filled += cover;
    vec_push(forever, rows->v, x);
}

/* map, or with {axis} in its name one row for each index of the axis. */
static void unroll(HfRows *rows, const HfMap *map, const Tensor *tensor,
                   int64_t *filled)
{
    int i = 0;

    while (i < map->nfix && map->fixat[i] >= 0)
        i++;
    if (i == map->nfix) {
        add_row(rows, map, tensor, filled);
        return;
    }
    char *word = strf(forever, "{%s}", map->fixaxis[i]);
    const char *at = strstr(map->hf, word);
    int head = at ? (int)(at - map->hf) : (int)strlen(map->hf);
    const char *rest = at ? at + strlen(word) : "";
    for (int64_t k = 0; k < tensor->dim[dim_at(tensor, map->fixaxis[i])].n;
         k++) {
        HfMap *one = alloc(forever, sizeof *one);
        *one = *map;
        one->hf = strf(forever, "%.*s%ld%s", head, map->hf, k, rest);
        one->fixat[i] = k;
        unroll(rows, one, tensor, filled);
    }
}

/* ---- nothing missing, nothing left --------------------------------------- */

/* Does a load of these rows concern the row of that tensor? *name: as its files
 * have it. */
static int concerns(const HfRows *rows, const char **name)
{
    const char *colon = strchr(*name, ':');
    size_t n = colon ? (size_t)(colon - *name) : 0;

    if (rows->how & HFadapters)
        return hf_is_adapter(*name);
    if (!rows->source || !colon)
        return !rows->source && !colon;
    *name = colon + 1;
    return strlen(rows->source) == n && !strncmp(rows->source, colon - n, n);
}

int hf_is_adapter(const char *name)
{
    static const char head[] = "base_model.model.";

    return !strncmp(name, head, sizeof head - 1);
}

static void refuse_unnamed(const HfRows *rows)
{
    const Plan *p = rows->p;
    const char *rest;

    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++) {
            const Tensor *tensor = &p->role[r].tensor[i];
            int k = 0;
            while (k < p->nhf && strcmp(p->hf[k].param, tensor->name))
                k++;
            if (k == p->nhf && tensor_is(tensor, PARAMETERS) &&
                opts_source(p->opts, tensor->name, &rest) == rows->source &&
                !(rows->n && ckpt_begins(p, tensor->name)))
                err(&(Loc){ tensor->file, tensor->line, NULL },
                    "hf{} does not name parameter '%s'", tensor->name);
        }
}

/* filled: by row of the plan. */
static void refuse_unfilled(const HfRows *rows, const int64_t *filled)
{
    const Plan *p = rows->p;

    for (int i = 0; i < p->nhf; i++) {
        const char *name = p->hf[i].hf;
        if (!concerns(rows, &name))
            continue;
        const Tensor *tensor = plan_tensor(p, p->hf[i].param);
        int64_t n = 0;
        for (int k = 0; k < p->nhf && n < tensor_elems(tensor); k++)
            n += !strcmp(p->hf[k].param, tensor->name) ? filled[k] : 0;
        if (n < tensor_elems(tensor))
            err(&(Loc){ tensor->file, tensor->line, NULL },
                "%s fills %ld of %ld elements of parameter '%s'", rows->what, n,
                tensor_elems(tensor), tensor->name);
    }
}

/* Tied weights are stored again by some: a copy of one that was taken, or what
 * is computed anyway. */
static int is_spare(const HfRows *rows, const StFile *file,
                    const StTensor *tensor)
{
    static const char freq[] = ".inv_freq";
    size_t n = strlen(tensor->name), k = sizeof freq - 1;

    if (n > k && !strcmp(tensor->name + n - k, freq))
        return 1;
    for (size_t i = 0; i < vec_len(rows->v); i++) {
        const StTensor *st_tensor = rows->v[i].s;
        if (st_tensor && st_tensor->dt == tensor->dt &&
            st_tensor->nd == tensor->nd &&
            !memcmp(st_tensor->n, tensor->n, sizeof st_tensor->n) &&
            !memcmp(rows->v[i].f->data + st_tensor->begin,
                    file->data + tensor->begin,
                    (size_t)(tensor->end - tensor->begin)))
            return 1;
    }
    return 0;
}

/* A layer beyond the model's that joins a position with the token after it: it
 * predicts a token further (MTP) and changes nothing of what the others do, so
 * a model without it may leave it out. */
static int64_t further_layer(HfRows *rows)
{
    int64_t beyond = 0;

    for (size_t i = 0; i < vec_len(rows->v); i++) {
        int64_t k = layer_of(rows->v[i].h->hf) + 1;
        beyond = k > beyond ? k : beyond;
    }
    const char *name = strf(forever, "model.layers.%ld.eh_proj.weight", beyond);
    return beyond && find_tensor(rows, name) ? beyond : INT64_MAX;
}

static void refuse_leftovers(HfRows *rows)
{
    Text names = { .arena = forever };
    int64_t left = 0, ignored = 0, further = further_layer(rows);

    for (int i = 0; i < rows->n; i++)
        for (int k = 0; k < rows->file[i]->n; k++) {
            const StTensor *tensor = &rows->file[i]->t[k];
            int64_t elems = (tensor->end - tensor->begin) / tensor->bytes;
            int beyond =
                tensor->taken < elems && layer_of(tensor->name) >= further;
            ignored += beyond;
            if (tensor->taken >= elems || beyond ||
                is_spare(rows, rows->file[i], tensor))
                continue;
            if (left++ < 3)
                put(&names, "%s'%s'", left > 1 ? ", " : "", tensor->name);
        }
    if (left)
        err(NULL, "%s has %ld tensor%s that no parameter takes: %s%s",
            rows->what, left, left > 1 ? "s" : "", names.s,
            left > 3 ? ", ..." : "");
    if (ignored)
        warn(NULL,
             "%s: %ld tensors of layers from %ld on, which predict a token "
             "further (MTP), are ignored: the model has none",
             rows->what, ignored, further);
}

/* Do the files have the first tensor of this row? */
static int is_there(HfRows *rows, const HfMap *map)
{
    const char *open = strchr(map->hf, '{'),
               *end = open ? strchr(open, '}') : 0;

    return find_tensor(rows, end ? strf(forever, "%.*s0%s",
                                        (int)(open - map->hf), map->hf, end + 1)
                                 : map->hf) != NULL;
}

HfRow *hf_rows(const Plan *p, StFile **file, int n, const char *what,
               unsigned how, const char *source)
{
    HfRows r = { p, file, n, 0, what, how, source, NULL };
    int64_t *filled = alloc(forever, ((size_t)p->nhf + 1) * sizeof *filled);

    if (!p->nhf)
        err(NULL,
            "the model has no hf{} table, which names its parameters as "
            "%s does (pleat help hf)",
            n ? what : "a Hugging Face folder");
    if (!(how & HFadapters))
        refuse_unnamed(&r);
    for (int i = 0; i < p->nhf; i++) {
        HfMap *h = alloc(forever, sizeof *h);
        *h = p->hf[i];
        if (!concerns(&r, &h->hf))
            continue;
        const Tensor *tensor = plan_tensor(p, h->param);
        HfMap *other = alloc(forever, sizeof *other);
        if (!tensor)
            err(NULL, "hf: the model has no parameter '%s'", h->param);
        if ((n ? !is_there(&r, h) : how & HFfused) &&
            respell(h, tensor, other) && (!n || is_there(&r, other)))
            h = other;
        unroll(&r, h, tensor, &filled[i]);
    }
    refuse_unfilled(&r, filled);
    if (!source || !ckpt_is_from(p, what))
        refuse_leftovers(&r);
    return r.v;
}

/* ---- loading ------------------------------------------------------------- */

static void load_tensor(Exec *exec, const HfRow *row, int64_t rank,
                        const Tensor *tensor)
{
    if (tensor && tensor->kind != TKnumbers) /* its master makes it */
        view_load(exec->plan->mesh, tensor, rank, &row->v,
                  exec_buf(exec, rank, tensor->buf));
}

static void load_row(Exec *exec, const HfRow *row)
{
    for (int64_t k = 0; k < exec->comm->n; k++) {
        int64_t rank = exec->comm->first + k;
        const Role *r = exec_role(exec, rank);
        int i = role_tensor(r, row->h->param);
        if (i < 0)
            continue;
        const Tensor *t = &r->tensor[i];
        load_tensor(exec, row, rank, t);
        load_tensor(exec, row, rank, tensor_companion(r, t, TKmaster));
        load_tensor(exec, row, rank, tensor_companion(r, t, TKremainder));
    }
}

void hf_load(Exec *exec, StFile **file, int n, const char *what, unsigned how,
             const char *source)
{
    HfRow *row = hf_rows(exec->plan, file, n, what, how, source);

    for (size_t i = 0; i < vec_len(row); i++)
        if (row[i].s)
            load_row(exec, &row[i]);
}
