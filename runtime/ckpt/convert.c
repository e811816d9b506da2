/* convert.c: checkpoints from Hugging Face folders and back: boxes of which
 * source tensors make a tensor, and in which file it goes. tensor_copy.c
 * moves them. */
#include "ckpt.h"

/* ---- parts --------------------------------------------------------------- */

static void add_part(Arena *a, OutTensor *tensor, const HfRow *row,
                     const int64_t *to, int64_t tobase, const View *from)
{
    Share p = { { .to = tobase, .from = from->base }, *from };
    int64_t n = 1;

    for (int d = 0; d < row->t->nd; d++) {
        int64_t fix = row->v.fix[d] < 0 ? 0 : row->v.fix[d];
        int64_t len = row->v.fix[d] < 0 ? row->t->dim[d].n : 1;
        p.p.to += fix * to[d];
        p.p.from += fix * from->stride[d];
        strided_loop(&p.p, len, to[d], from->stride[d]);
        n *= len;
    }
    strided_merge(&p.p);
    tensor->filled += n;
    if (!tensor->part)
        tensor->from = from->dt;
    else if (tensor->from && (from->dt != tensor->from ||
                              !from->scale != !tensor->part[0].v.scale))
        tensor->from = FTnone;
    vec_push(a, tensor->part, p);
}

/* ---- files --------------------------------------------------------------- */

const char *tensors_write(Arena *a, Pool *pool, OutTensor *out, int file,
                          const char *path, PieceWrite how)
{
    StTensor *v = NULL;
    size_t len;
    int64_t total;

    for (size_t i = 0; i < vec_len(out); i++) {
        out[i].st.taken = (int64_t)i;
        if (out[i].file == file)
            vec_push(a, v, out[i].st);
    }
    char *head = st_header(a, v, (int)vec_len(v), &len, &total);
    FilePart *box = NULL, first = { .bytes = (int64_t)len, .size = 1 };
    first.from = head;
    vec_push(a, box, first);
    for (size_t i = 0; i < vec_len(v); i++) {
        FilePart b = { .made = &out[v[i].taken], .size = 1 };
        b.at = (int64_t)len + v[i].begin;
        b.bytes = v[i].end - v[i].begin;
        vec_push(a, box, b);
    }
    const char *why = how == PWplain ? ckpt_layout(a, path, head, len, total)
                                     : pieces_layout(a, path, head, len, total);
    return why ? why : pieces_write(a, pool, path, NULL, box, total, how);
}

/* ---- in ------------------------------------------------------------------ */

static OutTensor *import_outs(Arena *a, const HfRow *row)
{
    OutTensor *v = NULL;

    for (size_t i = 0; i < vec_len(row); i++) {
        const HfRow *r = &row[i];
        int64_t stride[MAXD], step = 1;
        if (!r->s)
            continue;
        if (!vec_len(v) || strcmp(v[vec_len(v) - 1].st.name, r->t->name)) {
            OutTensor o = { .st = ckpt_describe(a, r->t, r->t->name) };
            vec_push(a, v, o);
        }
        for (int d = r->t->nd - 1; d >= 0; step *= r->t->dim[d--].n)
            stride[d] = step;
        add_part(a, &v[vec_len(v) - 1], r, stride, 0, &r->v);
    }
    for (size_t i = 0; i < vec_len(v); i++) {
        int kept = v[i].from && st_isfloat(v[i].from);
        v[i].st.dt = kept ? v[i].from : FTF32;
        v[i].st.bytes = st_bytes(v[i].st.dt);
    }
    return v;
}

int convert_import(const Plan *p, const char *hf, const char *dir)
{
    Arena *a = forever;
    hf_agree(p, hf);
    StFile **file = ckpt_files(a, hf);
    int n = (int)vec_len(file);
    OutTensor *out = import_outs(a, hf_rows(p, file, n, hf, 0, NULL));
    Pool *pool = pool_open(0);
    State s = { .seed = (uint64_t)opts_int(p->opts, "seed") };
    char *ckpt = strf(a, "%s/ckpt", dir), *tmp = ckpt_folder(a, ckpt, 0);
    if (ckpt_exists(ckpt))
        err(NULL, "%s has checkpoints already", dir);
    if (!access(strf(a, "%s/hf", dir), F_OK))
        err(NULL, "%s/hf is there already: an import makes it", dir);
    const char *why = hf_copy(hf, strf(a, "%s/hf", dir));
    if (!why)
        why = ckpt_begin(a, ckpt, tmp);
    int begun = !why;
    for (int k = MODEL; k <= OPTIM && !why; k++) /* moments: none, zero */
        why = tensors_write(a, pool, out, k, strf(a, "%s/%s", tmp, ckptfile[k]),
                            PWhashed);
    if (!why)
        why = ckpt_end(a, pool, ckpt, tmp, &s, NULL);
    pool_close(pool);
    int bad = ckpt_complain(why);
    if (bad && begun)
        ckpt_remove(a, tmp);
    for (int i = 0; i < n; i++)
        st_close(file[i]);
    return bad ? 1 : 0;
}

/* ---- out ----------------------------------------------------------------- */

static int by_hf(const void *a, const void *b)
{
    const HfRow *const *x = a, *const *y = b;
    int c = strcmp((*x)->h->hf, (*y)->h->hf);

    return c ? c : *x < *y ? -1 : *x > *y;
}

/* The first row of each of their tensors says which number it has; numbers in
 * the order of the rows. */
static int *number_tensors(Arena *a, const HfRow *row)
{
    size_t n = vec_len(row);
    const HfRow **v = alloc(a, (n + 1) * sizeof *v);
    int *first = alloc(a, (n + 1) * sizeof *first), count = 0;

    for (size_t i = 0; i < n; i++)
        v[i] = &row[i];
    qsort(v, n, sizeof *v, by_hf);
    for (size_t i = 0, k = 0; i < n; i++) {
        k = i && !strcmp(v[i]->h->hf, v[k]->h->hf) ? k : i;
        first[v[i] - row] = (int)(v[k] - row);
    }
    for (size_t i = 0; i < n; i++)
        first[i] = first[i] == (int)i ? count++ : first[first[i]];
    return first;
}

static OutTensor new_out(const HfRow *row)
{
    OutTensor o = { .st = { .name = row->h->hf, .nd = row->h->nd } };

    for (int d = 0; d < row->h->nd; d++)
        o.st.n[d] = hf_dim(&row->h->dim[d]);
    return o;
}

/* dt: of most tensors. States and those of the list keep their own, as the
 * correction bias of a router: rounded to bf16 it would change the experts of
 * most tokens. */
static OutTensor *export_outs(Arena *a, const HfRow *row, StFile **file,
                              int nfile, FileType dt, const char *float32)
{
    int *number = number_tensors(a, row);
    OutTensor *v = NULL;

    for (size_t i = 0; i < vec_len(row); i++) {
        const HfRow *r = &row[i];
        StFile *st_file = NULL;
        StTensor *s = st_find_in(file, nfile, r->t->name, &st_file);
        if (!s)
            err(NULL, "%s has no tensor '%s'", file[0]->path, r->t->name);
        if (number[i] == (int)vec_len(v))
            vec_push(a, v, new_out(r));
        v[number[i]].state |= r->t->kind == TKstate;
        View from = ckpt_view(st_file, s, r->t);
        add_part(a, &v[number[i]], r, r->v.stride, r->v.base, &from);
    }
    for (size_t i = 0; i < vec_len(v); i++) {
        StTensor *s = &v[i].st;
        int own = !dt || v[i].state ||
                  strstr(float32, strf(a, "\n%s\n", s->name)) != NULL;
        s->dt = !own ? dt : v[i].from ? v[i].from : FTF32;
        s->bytes = st_bytes(s->dt);
        if (v[i].filled != st_elems(s))
            err(NULL, "hf{} fills %ld of %ld elements of '%s'", v[i].filled,
                st_elems(s), s->name);
    }
    return v;
}

/* lora_A or lora_B of the weight of that name; null: there is none. */
static const OutTensor *adapter(Arena *a, const Table *named, const char *name,
                                char part)
{
    int n = (int)strlen(name) - (int)strlen(".weight");

    return table_get(named,
                     KEYP(intern(strf(a, "base_model.model.%.*s.lora_%c.weight",
                                      n, name, part))));
}

/* Takes the adapters out of a vec of tensors and adds them to their weights. */
static OutTensor *merge_adapters(Arena *a, OutTensor *out, double scale)
{
    Table *named = table_new(a);
    OutTensor *v = NULL;
    int left = 0;

    for (size_t i = 0; i < vec_len(out); i++)
        *table_at(named, KEYP(intern(out[i].st.name))) = &out[i];
    for (size_t i = 0; i < vec_len(out); i++) {
        StTensor *st = &out[i].st;
        if (hf_is_adapter(st->name)) {
            st->dt = FTF64;
            st->bytes = st_bytes(FTF64);
            left++;
            continue;
        }
        out[i].low = (LowRank){ adapter(a, named, st->name, 'A'),
                                adapter(a, named, st->name, 'B'), scale };
        left -= out[i].low.a ? 2 : 0;
        vec_push(a, v, out[i]);
    }
    if (left)
        err(NULL, "export: adapters can only be added to one tensor an expert "
                  "(hub), not to fused ones");
    return v;
}

/* The narrowest of the tensors: config.json has one for all. */
static FileType folder_dtype(const OutTensor *tensor)
{
    FileType dt = FTnone;

    for (size_t i = 0; i < vec_len(tensor); i++)
        if (!dt || tensor[i].st.bytes < st_bytes(dt))
            dt = tensor[i].st.dt;
    return dt;
}

/* Files of at most `shard` bytes, but one tensor each at least. */
static int deal(OutTensor *tensor, int64_t shard)
{
    int64_t held = 0;
    int k = 0;

    for (size_t i = 0; i < vec_len(tensor); i++) {
        int64_t bytes = st_elems(&tensor[i].st) * tensor[i].st.bytes;
        if (held && held + bytes > shard) {
            k++;
            held = 0;
        }
        held += bytes;
        tensor[i].file = k;
    }
    return k + 1;
}

static const char *shard_name(Arena *a, int k, int n, unsigned how)
{
    return how & HFadapters ? "adapter_model.safetensors"
           : n == 1         ? "model.safetensors"
                    : strf(a, "model-%05d-of-%05d.safetensors", k + 1, n);
}

static int write_weight_map(Arena *a, const OutTensor *tensor, int nfile,
                            const char *to)
{
    Text map = { .arena = a };
    int64_t total = 0;

    for (size_t i = 0; i < vec_len(tensor); i++) {
        total += st_elems(&tensor[i].st) * tensor[i].st.bytes;
        put(&map, i ? ",\n    " : "    ");
        put_json(&map, tensor[i].st.name);
        put(&map, ": \"%s\"", shard_name(a, tensor[i].file, nfile, 0));
    }
    char *s = strf(a,
                   "{\n  \"metadata\": {\n    \"total_size\": %ld\n  },\n"
                   "  \"weight_map\": {\n%s\n  }\n}\n",
                   total, map.s);
    return file_write(to, s, strlen(s))
               ? ckpt_complain(ckpt_why(a, "cannot write", to))
               : 0;
}

/* What lies beside the weights. 0, or -1 with a warning. */
static int finish_export(const Plan *p, const char *from,
                         const OutputFolder *to, FileType dt, unsigned how)
{
    return how & HFadapters ? hf_write_adapter(p, to->temp)
                            : hf_finish_export(p, from, to->temp, dt);
}

int convert_export(const Plan *p, const char *from, const char *hf, FileType dt,
                   unsigned how, int64_t shard)
{
    Arena *a = forever;
    hf_need_empty(hf);
    StFile **file = ckpt_files(a, from);
    int n = (int)vec_len(file), bad = 0;
    HfRow *row = hf_rows(p, NULL, 0, hf, how, NULL);
    OutTensor *out = export_outs(a, row, file, n, dt, hf_float32_list(p, from));
    if (how & HFadapters && !row)
        err(NULL, "export: the model has no adapters that PEFT can name: of "
                  "lora() with one rank and alpha, beside weights in hf{}");
    if (!(how & HFadapters))
        out = merge_adapters(a, out, hf_adapter_scale(p));
    int nfile = deal(out, how & HFadapters ? INT64_MAX : shard);
    hf_check(p, from);
    Pool *pool = pool_open(0);

    OutputFolder to = folder_open(a, hf);
    if (!to.temp)
        err(NULL, "cannot make %s: %s", hf, strerror(errno));
    for (int k = 0; k < nfile && !bad; k++)
        bad = ckpt_complain(tensors_write(
            a, pool, out, k,
            strf(a, "%s/%s", to.temp, shard_name(a, k, nfile, how)), PWplain));
    pool_close(pool);
    if (!bad && nfile > 1)
        bad = write_weight_map(
            a, out, nfile, strf(a, "%s/model.safetensors.index.json", to.temp));
    if (!bad)
        bad = finish_export(p, from, &to, dt ? dt : folder_dtype(out), how);
    if (bad)
        folder_drop(&to);
    else if (folder_commit(&to))
        bad = ckpt_complain(ckpt_why(a, "cannot write", hf));
    else
        printf("wrote %s: %d files of weights\n", hf, nfile);
    for (int i = 0; i < n; i++)
        st_close(file[i]);
    return bad ? 1 : 0;
}
