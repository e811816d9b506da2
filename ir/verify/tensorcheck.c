/* tensorcheck.c: what must hold of a plan's tensors and scalars: what the
 * runtime fills, reads, saves and loads by name.
 *
 *   axes      ranks hold equal parts of an axis, as axis_pieces makes them, or
 *             of what lasts parts that differ by one element, as uneven_pieces
 *             does: together all of it, each element once, or all the same
 *   tensors   have the class, dtype and size of their buffer, and its name,
 *             unless they are members of a bucket; members follow each other
 *             and fill it
 *   sets      everything that lives always belongs to one tensor or scalar, or
 *             is a bucket; a parameter that is trained has its moments, with
 *             its own axes and pieces; stages agree on what they share
 *
 * Each function returns null or what is wrong. */
#include "verify.h"

static const TensorInfo *kind_of(const Tensor *tensor)
{
    return &tensor_kinds[tensor->kind];
}

static const char *wrong(const PlanCheck *check, const Tensor *tensor,
                         const char *why)
{
    return strf(check->arena, "role %d: tensor '%s'%s %s", check->role,
                tensor->name,
                place_text(check->arena, tensor->file, tensor->line), why);
}

/* ---- axes ---------------------------------------------------------------- */

/* Atoms that an axis' pieces depend on. */
static int same_pieces(const PlanDim *x, const PlanDim *y)
{
    if (x->axis != y->axis && strcmp(x->axis, y->axis))
        return 0;
    if (x->n != y->n || x->npiece != y->npiece)
        return 0;
    return !memcmp(x->piece, y->piece, sizeof *x->piece * (size_t)x->npiece);
}

/* Do so many ranks have all n elements where each has room for len of them, and
 * some a place of padding? */
static int is_uneven(int64_t n, int64_t len, int64_t ranks)
{
    return len > 1 && n < sat_mul(len, ranks) && n > sat_mul(len - 1, ranks);
}

/* Are the pieces what ranks hold of an axis cut over those atoms? */
static const char *axis_wrong(const PlanCheck *check, const Tensor *tensor,
                              const PlanDim *dim)
{
    const Mesh *m = check->p->mesh;
    uint32_t cut = plan_dim_cut(dim);
    uint32_t zigzag = is_zigzag(dim) ? m->mask[Mcp] : 0;
    int64_t len = 0, ranks;
    Piece want[MAXPIECE];

    if ((cut >> m->natom || cut & m->mask[Mpp]) && law(Laxis_atoms))
        return strf(
            check->arena,
            "has an axis '%s' cut over other atoms than those of a stage",
            dim->axis);
    for (int i = 0; i < dim->npiece; i++)
        len = sat_add(len, dim->piece[i].len);
    ranks = mesh_extent(m, cut);
    int uneven = !tensor_is(tensor, 1 << TKinput | 1 << TKoutput) && !zigzag &&
                 is_uneven(dim->n, len, ranks);
    if ((dim->n < 1 || sat_mul(len, ranks) != dim->n) && !uneven &&
        law(Laxis_all))
        return strf(check->arena, "does not have all of axis '%s' on its ranks",
                    dim->axis);
    PlanDim like = {
        .axis = dim->axis, .n = dim->n, .npiece = 2, .piece = want
    };
    if (uneven)
        uneven_pieces(m, dim->n, cut, want);
    else
        like.npiece = axis_pieces(m, len, cut, zigzag, want);
    if (!same_pieces(dim, &like) && law(Laxis_pieces))
        return strf(check->arena,
                    "has other pieces of axis '%s' than ranks hold", dim->axis);
    return NULL;
}

static const char *axes_wrong(const PlanCheck *check, const Tensor *tensor)
{
    uint32_t seen = tensor->shard;
    for (int i = 0; i < tensor->nd; i++) {
        const char *why = axis_wrong(check, tensor, &tensor->dim[i]);
        uint32_t cut = plan_dim_cut(&tensor->dim[i]);
        if (why)
            return why;
        if (seen & cut && law(Laxis_cut_once))
            return strf(check->arena,
                        "is cut twice over the ranks that cut axis '%s'",
                        tensor->dim[i].axis);
        seen |= cut;
        for (int k = 0; k < i; k++)
            if (!strcmp(tensor->dim[i].axis, tensor->dim[k].axis) &&
                law(Laxis_once))
                return strf(check->arena, "has axis '%s' twice",
                            tensor->dim[i].axis);
    }
    return NULL;
}

static int64_t local_elems(const Tensor *tensor)
{
    int64_t n = 1;
    for (int d = 0; d < tensor->nd; d++) {
        int64_t len = 0;
        for (int k = 0; k < tensor->dim[d].npiece; k++)
            len = sat_add(len, tensor->dim[d].piece[k].len);
        n = sat_mul(n, len);
    }
    return n;
}

/* ---- a tensor and its buffer --------------------------------------------- */

/* Elements of its buffer up to the last that a tensor has on any rank. */
static int64_t reach(const Tensor *tensor, int64_t end)
{
    int64_t last =
        tensor->run ? end - tensor->at / tensor->run * tensor->run : end;
    return tensor->run && last > tensor->run ? tensor->run : last;
}

static const char *place_wrong(const PlanCheck *check, const Tensor *tensor)
{
    const Mesh *m = check->p->mesh;
    const Buf *b = &check->r->buf[tensor->buf];
    int64_t end = sat_add(tensor->at, local_elems(tensor));
    if ((tensor->at < 0 || tensor->run < 0 || (!tensor->run && tensor->shard) ||
         (uint64_t)tensor->shard >> m->natom || tensor->shard & m->mask[Mpp]) &&
        law(Lbucket_part))
        return "is a part of no bucket";
    if ((end >= HUGEBYTES ||
         (tensor->run &&
          end > sat_mul(tensor->run, mesh_extent(m, tensor->shard)))) &&
        law(Lbucket_end))
        return "goes beyond its bucket";
    if (b->frame && law(Ltensor_frame))
        return "lies in a frame";
    return sat_mul(reach(tensor, end), dtypes[tensor->dt].bytes) > b->bytes &&
                   law(Ltensor_bounds)
               ? "is larger than its buffer"
               : NULL;
}

/* The parameter that a tensor belongs to, or itself; null: there is none. */
static const Tensor *parameter_of(const PlanCheck *check, const Tensor *tensor)
{
    unsigned kinds = tensor->kind == TKscales ? 1u << TKnumbers : PARAMETERS;
    if (!tensor_is(tensor, COMPANIONS))
        return tensor;
    if (tensor->of < 0 || tensor->of >= check->r->ntensor)
        return NULL;
    const Tensor *of = &check->r->tensor[tensor->of];
    return tensor_is(of, kinds) ? of : NULL;
}

static const char *tensor_wrong(const PlanCheck *check, const Tensor *tensor)
{
    const char *why;
    if (!*tensor->name && law(Ltensor_name))
        return "has no name";
    if ((tensor->buf < 0 || tensor->buf >= check->r->nbuf) &&
        law(Ltensor_buffer))
        return "names a buffer that does not exist";
    if (dtypes[tensor->dt].bytes == 0 && law(Ltensor_dtype))
        return "has a dtype without size";
    if (!parameter_of(check, tensor) && law(Lmoment_owner))
        return "belongs to no parameter";
    why = axes_wrong(check, tensor);
    return why ? why : place_wrong(check, tensor);
}

static int by_name(const void *a, const void *b)
{
    const Tensor *x = *(Tensor *const *)a, *y = *(Tensor *const *)b;
    int v = strcmp(x->name, y->name);
    return v ? v : x->second - y->second;
}

/* A role's tensors by name, for bsearch. */
static const Tensor **sorted(Arena *a, const Role *role)
{
    const Tensor **v = alloc(a, ((size_t)role->ntensor + 1) * sizeof *v);
    for (int i = 0; i < role->ntensor; i++)
        v[i] = &role->tensor[i];
    qsort(v, (size_t)role->ntensor, sizeof *v, by_name);
    return v;
}

static const char *twice(const PlanCheck *check)
{
    const Tensor **v = sorted(check->arena, check->r);
    for (int i = 0; i < check->r->ntensor; i++) {
        const Tensor *t = v[i], *last = i ? v[i - 1] : NULL;
        if (last && !by_name(&last, &t) && law(Ltensor_once))
            return wrong(check, t, "has the name of another");
        if (t->second && (!last || strcmp(last->name, t->name) != 0) &&
            law(Lsecond_of))
            return wrong(check, t, "is a pair's second and there is no first");
    }
    return NULL;
}

static const char *scalar_wrong(const PlanCheck *check, const Scalar *scalar)
{
    if ((scalar->buf < 0 || scalar->buf >= check->r->nbuf) &&
        law(Lscalar_buffer))
        return "names a buffer that does not exist";
    if (dtypes[scalar->dt].bytes == 0 && law(Lscalar_dtype))
        return "has a dtype without size";
    if (check->r->buf[scalar->buf].frame && law(Lscalar_frame))
        return "lies in a frame";
    if (scalar_elems(scalar) * dtypes[scalar->dt].bytes >
            check->r->buf[scalar->buf].bytes &&
        law(Lscalar_bounds))
        return "is larger than its buffer";
    return 0;
}

static const char *scalars_wrong(const PlanCheck *check, const Scalar *scalar,
                                 int n)
{
    const char *why;
    for (int i = 0; i < n; i++)
        if ((why = scalar_wrong(check, &scalar[i])))
            return strf(check->arena, "role %d: scalar '%s' %s", check->role,
                        scalar[i].name, why);
    return 0;
}

const char *tensors_wrong(const PlanCheck *check)
{
    const Role *role = check->r;
    const char *why = twice(check);
    for (int i = 0; i < role->ntensor && !why; i++)
        if ((why = tensor_wrong(check, &role->tensor[i])))
            why = wrong(check, &role->tensor[i], why);
    if (!why)
        why = scalars_wrong(check, role->in, role->nin);
    return why ? why : scalars_wrong(check, role->out, role->nout);
}

/* ---- buffers of their own, or buckets ------------------------------------ */

static int is_end(const PlanCheck *check, int buf)
{
    for (int k = 0; k < check->r->nprog; k++)
        for (int i = 0; i < check->r->prog[k].nend; i++)
            if (check->r->prog[k].end[i].buf == buf)
                return 1;
    return check->r->buf[buf].prog < 0;
}

/* A buffer of outputs has the name of one. */
static const char *output_wrong(const PlanCheck *check, const Tensor *tensor)
{
    const Buf *b = &check->r->buf[tensor->buf];
    int at = role_tensor(check->r, b->name);
    if (!is_end(check, tensor->buf) && law(Loutput_end))
        return "is not there at the end";
    int own =
        b->prog < 0 || (at >= 0 && check->r->tensor[at].buf == tensor->buf);
    return !own && law(Loutput_name) ? "lies in the buffer of another" : NULL;
}

/* Is its name, which files know it by, that of its kind and parameter? */
static int has_own_name(const PlanCheck *check, const Tensor *tensor)
{
    int n = kind_prefix(tensor->kind, tensor->name);

    return n >= 0 &&
           !strcmp(tensor->name + n, check->r->tensor[tensor->of].name);
}

static int same_prefix(const Tensor *tensor, const char *bucket)
{
    int n = kind_prefix(tensor->kind, tensor->name);

    return n < 0 || !strncmp(bucket, tensor->name, (size_t)n);
}

static const char *buffer_wrong(const PlanCheck *check, const Tensor *tensor)
{
    const Buf *b = &check->r->buf[tensor->buf];
    const TensorInfo *info = kind_of(tensor);
    int64_t n = tensor->run ? tensor->run : local_elems(tensor);

    if (tensor->dt != b->dt && law(Ltensor_as_buffer))
        return "has another dtype than its buffer";
    if (sat_mul(n, dtypes[tensor->dt].bytes) != b->bytes && law(Ltensor_fills))
        return "is not as large as its buffer";
    if (tensor->kind == TKoutput)
        return output_wrong(check, tensor);
    if ((b->cls != info->cls || b->prog >= 0) && law(Ltensor_class))
        return "lies in a buffer of another class";
    if (tensor_is(tensor, COMPANIONS) && !has_own_name(check, tensor) &&
        law(Ltensor_prefix))
        return "has not the name of its kind and parameter";
    if (!tensor->run)
        return (tensor->at || strcmp(b->name, tensor->name) != 0) &&
                       law(Ltensor_own)
                   ? "lies in the buffer of another"
                   : NULL;
    return !same_prefix(tensor, b->name) && law(Lbucket_kind)
               ? "lies in the bucket of another kind"
               : NULL;
}

static int64_t padded(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static int by_place(const void *a, const void *b)
{
    const Tensor *x = *(Tensor *const *)a, *y = *(Tensor *const *)b;
    return x->buf != y->buf ? x->buf - y->buf
                            : (x->at > y->at) - (x->at < y->at);
}

/* Members of a bucket follow each other from its first element to the last, cut
 * over the same ranks. */
static const char *members_wrong(const PlanCheck *check)
{
    const Tensor **v = NULL, *last = NULL;
    for (int i = 0; i < check->r->ntensor; i++)
        if (check->r->tensor[i].run)
            vec_push(check->arena, v, &check->r->tensor[i]);
    vec_sort(v, by_place);
    for (size_t i = 0; i < vec_len(v); i++) {
        const Tensor *t = v[i], *next = i + 1 < vec_len(v) ? v[i + 1] : NULL;
        int first = !last || last->buf != t->buf;
        int64_t ranks = mesh_extent(check->p->mesh, t->shard);
        int64_t end = padded(t->at + local_elems(t), PACKALIGN);
        if ((first
                 ? t->at != 0
                 : padded(last->at + local_elems(last), PACKALIGN) != t->at) &&
            law(Lmember_follows))
            return wrong(check, t, "does not follow in its bucket");
        if (!first && (t->run != last->run || t->shard != last->shard) &&
            law(Lmember_cut))
            return wrong(check, t, "is cut otherwise than its bucket");
        if ((!next || next->buf != t->buf) &&
            padded(end, PACKRUN * ranks) != t->run * ranks && law(Lmember_last))
            return wrong(check, t, "does not end its bucket");
        last = t;
    }
    return NULL;
}

/* ---- what belongs together ----------------------------------------------- */

/* The axes of kept are those of tensor, in order; a moment that lies by itself
 * may lack some. */
static int same_axes(const Tensor *tensor, const Tensor *kept)
{
    int lacks = tensor_is(kept, MOMENTS) && !kept->run, k = 0;

    for (int d = 0; d < tensor->nd; d++)
        if (k < kept->nd && same_pieces(&tensor->dim[d], &kept->dim[k]))
            k++;
        else if (!lacks)
            return 0;
    return k == kept->nd;
}

static int same_place(const Tensor *x, const Tensor *y)
{
    return x->at == y->at && x->run == y->run && x->shard == y->shard;
}

/* The name of its buffer, behind that of its kind. */
static const char *bucket_of(const PlanCheck *check, const Tensor *tensor)
{
    const char *name = check->r->buf[tensor->buf].name;
    int n = kind_prefix(tensor->kind, name);
    return name + (n < 0 ? 0 : n);
}

static int same_bucket(const PlanCheck *check, const Tensor *a,
                       const Tensor *tensor)
{
    return !a->run || !strcmp(bucket_of(check, a), bucket_of(check, tensor));
}

/* What the optimizer keeps of a parameter; null: nothing. */
typedef struct KeptTensors {
    const Tensor *first, *master, *remainder, *moment; /* one of the moments */
} KeptTensors;

/* One of the tensors kept beside a parameter, of which first is one. */
static const char *companion_wrong(const PlanCheck *check, const Tensor *tensor,
                                   const Tensor *kept, const Tensor *first)
{
    if (!same_axes(tensor, kept) && law(Lmoment_axes))
        return "has other axes or pieces than its moments";
    if (!same_place(kept, first) && law(Lmoment_place))
        return "has moments in different parts of their buckets";
    if (!same_bucket(check, kept, first) && law(Lmoment_bucket))
        return "has moments in different buckets";
    return NULL;
}

static const char *parameter_wrong(const PlanCheck *check, const Tensor *tensor,
                                   const KeptTensors *kept)
{
    const Tensor *first = kept->first, *left = kept->remainder;

    if (first && tensor->run && !same_place(tensor, first) &&
        law(Lmoment_shards))
        return "has moments in other parts of their buckets";
    if (first && !same_bucket(check, tensor, first) && law(Lmoment_bucket))
        return "has moments in another bucket";
    if (left &&
        (kept->master || tensor->dt != Dbf16 || left->dt != Di16 ||
         tensor->run != left->run) &&
        law(Lmoment_remainder))
        return "is not half of a master";
    int needs =
        tensor->kind == TKnumbers || (kept->moment && tensor->dt == Dbf16);
    return needs && !kept->master && !left && law(Lmoment_master)
               ? "has no master"
               : NULL;
}

static void keep_tensor(KeptTensors *kept, const Tensor *tensor)
{
    const Tensor **of = tensor->kind == TKmaster      ? &kept->master
                        : tensor->kind == TKremainder ? &kept->remainder
                                                      : &kept->moment;

    *of = tensor;
    kept->first = kept->first ? kept->first : tensor;
}

static const char *families_wrong(const PlanCheck *check)
{
    const Role *role = check->r;
    const char *why = NULL;
    KeptTensors *kept =
        alloc(check->arena, ((size_t)role->ntensor + 1) * sizeof *kept);

    for (int i = 0; i < role->ntensor; i++) {
        const Tensor *t = &role->tensor[i], *of = &role->tensor[t->of];
        if (!tensor_is(t, MASTERS | MOMENTS))
            continue;
        keep_tensor(&kept[t->of], t);
        if ((why = companion_wrong(check, of, t, kept[t->of].first)))
            return wrong(check, of, why);
    }
    for (int i = 0; i < role->ntensor; i++) {
        const Tensor *t = &role->tensor[i];
        if (tensor_is(t, PARAMETERS) &&
            (why = parameter_wrong(check, t, &kept[i])))
            return wrong(check, t, why);
    }
    return NULL;
}

/* ---- what lives always --------------------------------------------------- */

static const char *blocks_wrong(const PlanCheck *check, const Scalar *scalar,
                                int n, const char *block, int *owners)
{
    for (int i = 0; i < n; i++) {
        const Buf *b = &check->r->buf[scalar[i].buf];
        if (strcmp(b->name,
                   strf(check->arena, "%s.%s", block, scalar[i].name)) &&
            law(Lscalar_own))
            return strf(check->arena,
                        "role %d: scalar '%s' lies in the buffer of another",
                        check->role, scalar[i].name);
        if ((b->dt != scalar[i].dt ||
             b->bytes !=
                 scalar_elems(&scalar[i]) * dtypes[scalar[i].dt].bytes) &&
            law(Lscalar_as_buffer))
            return strf(
                check->arena,
                "role %d: scalar '%s' has another dtype than its buffer",
                check->role, scalar[i].name);
        if ((b->cls != Bio || b->prog >= 0) && law(Lscalar_class))
            return strf(
                check->arena,
                "role %d: scalar '%s' lies in a buffer of another class",
                check->role, scalar[i].name);
        owners[scalar[i].buf]++;
    }
    return NULL;
}

/* Each buffer belongs to one tensor or scalar, or to the members of a bucket */
static const char *owners_wrong(const PlanCheck *check)
{
    const Role *role = check->r;
    int *owners =
        alloc(check->arena, ((size_t)role->nbuf + 1) * sizeof *owners);
    const char *why = blocks_wrong(check, role->in, role->nin, "step", owners);
    why = why ? why
              : blocks_wrong(check, role->out, role->nout, "result", owners);
    for (int i = 0; i < role->ntensor && !why; i++)
        if (role->tensor[i].kind != TKoutput)
            owners[role->tensor[i].buf] +=
                !(role->tensor[i].run && owners[role->tensor[i].buf]);
    for (int i = 0; i < role->nbuf && !why; i++)
        if (role->buf[i].prog < 0 && owners[i] != 1 && law(Lone_tensor))
            why =
                strf(check->arena, "role %d: buffer '%s' belongs to %d tensors",
                     check->role, role->buf[i].name, owners[i]);
    return why;
}

static int by_axis(const void *a, const void *b)
{
    const PlanDim *const *x = a, *const *y = b;

    return strcmp((*x)->axis, (*y)->axis);
}

static const char *roles_wrong(const PlanCheck *check)
{
    size_t n = 0, most = (size_t)check->r->ntensor * MAXD + 1;
    const PlanDim **v = alloc(check->arena, most * sizeof *v);

    for (int i = 0; i < check->r->ntensor; i++)
        for (int d = 0; d < check->r->tensor[i].nd; d++)
            v[n++] = &check->r->tensor[i].dim[d];
    qsort(v, n, sizeof *v, by_axis);
    for (size_t i = 1; i < n; i++)
        if (v[i]->role != v[i - 1]->role && !by_axis(v + i, v + i - 1) &&
            law(Laxis_role))
            return strf(check->arena, "role %d: axis '%s' has two roles",
                        check->role, v[i]->axis);
    return NULL;
}

const char *tensors_loose(const PlanCheck *check)
{
    const Role *role = check->r;
    const char *why = NULL;
    for (int i = 0; i < role->ntensor && !why; i++)
        if ((why = buffer_wrong(check, &role->tensor[i])))
            why = wrong(check, &role->tensor[i], why);
    why = why ? why : members_wrong(check);
    why = why ? why : families_wrong(check);
    why = why ? why : roles_wrong(check);
    return why ? why : owners_wrong(check);
}

/* ---- stages -------------------------------------------------------------- */

typedef struct Placed {
    const Tensor *t;
    int role;
} Placed;

static int by_name_and_role(const void *a, const void *b)
{
    const Placed *x = a, *y = b;
    int v = strcmp(x->t->name, y->t->name);
    return v ? v : x->role - y->role;
}

/* A weight belongs to one stage; later ones that read it have copies. What
 * several stages have is the same to all. */
const char *shared_wrong(Arena *a, const Plan *p)
{
    Placed *v = NULL;
    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++)
            vec_push(a, v, ((Placed){ &p->role[r].tensor[i], r }));
    vec_sort(v, by_name_and_role);
    for (size_t i = 0; i < vec_len(v); i++) {
        const Tensor *t = v[i].t, *x = i ? v[i - 1].t : NULL;
        PlanCheck c = { .arena = a, .p = p, .role = v[i].role };
        if (x && strcmp(x->name, t->name))
            x = NULL;
        if (!x && is_copy(t) && law(Lcopy_owner))
            return wrong(&c, t, "is a copy that no stage before it owns");
        if (x && !is_copy(t) && t->kind != TKinput && law(Lone_owner))
            return wrong(&c, t, "has another stage for an owner");
        if (x &&
            (t->dt != x->dt || (t->kind == TKinput) != (x->kind == TKinput) ||
             !same_axes(t, x)) &&
            law(Lshared_alike))
            return wrong(&c, t, "is not what other stages have");
    }
    return NULL;
}
