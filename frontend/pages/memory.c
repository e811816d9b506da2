/* memory.c: the memory of a rank in `show`, and the warning about a plan that
 * exceeds the machine's memory. */
#include "../frontend.h"

static int64_t limit_of(const Plan *p)
{
    return memory_limit(p->opts, target_named(p->target));
}

/* ---- show ---------------------------------------------------------------- */

/* Returns the snapshot bytes of a stage's first rank, which are the largest. */
static int64_t snapshot_of_stage(const Plan *p, const Role *role)
{
    int64_t rank = 0;

    while (&p->role[role_of(p, rank)] != role)
        rank++;
    return snapshot_bytes(forever, p, rank);
}

void report_stage_memory(FILE *out, const Plan *p, const Role *role)
{
    int64_t sum[NBUFCLASS] = { 0 };
    int count[NBUFCLASS] = { 0 };

    for (int i = 0; i < role->nbuf; i++) {
        const Buf *b = &role->buf[i];
        if (in_host(role, b))
            continue;
        count[b->cls]++;
        sum[b->cls] += b->bytes;
    }
    fprintf(out, "\nmemory of a rank  %12s  peak, all in one arena\n",
            bytes_text(role->arena));
    for (int c = 0; c < NBUFCLASS; c++)
        if (count[c])
            fprintf(out, "  %-14s  %12s  in %d buffers%s\n", bufclasses[c],
                    bytes_text(sum[c]), count[c],
                    c >= Btemp ? ", sharing their space" : "");
    fprintf(out, "  %-14s  %12s\n", "alive always", bytes_text(role->persist));
    if (limit_of(p))
        fprintf(out, "  %-14s  %12s\n", "limit", bytes_text(limit_of(p)));
    if (role->host)
        fprintf(out, "  %-14s  %12s  of the host's, in an arena of their own\n",
                "offloaded", bytes_text(role->host));
    if (role_prog(role, PGstep) >= 0)
        fprintf(out,
                "  %-14s  %12s  at most, of the host's: a checkpoint written "
                "beside training\n",
                "snapshot", bytes_text(snapshot_of_stage(p, role)));
}

/* ---- a plan that does not fit -------------------------------------------- */

typedef struct
    Owner {         /* buffers of a class that belong to a line of the model */
    const Buf *buf; /* the largest */
    int64_t bytes;
} Owner;

/* Returns the instruction of a program at which most bytes are alive. */
static int busiest(const Role *role, int prog)
{
    int n = role->prog[prog].ninstr, at = 0;
    int64_t *more = alloc(forever, sizeof *more * (size_t)(n + 2)), sum = 0;
    int64_t most = 0;

    for (int i = 0; i < role->nbuf; i++)
        if (role->buf[i].prog == prog && !role->buf[i].stack &&
            !in_host(role, &role->buf[i])) {
            more[role->buf[i].born] += role->buf[i].bytes;
            more[role->buf[i].dies + 1] -= role->buf[i].bytes;
        }
    for (int i = 0; i < n; i++) {
        sum += more[i];
        at = sum > most ? i : at;
        most = sum > most ? sum : most;
    }
    return at;
}

static int same_owner(const Buf *a, const Buf *b)
{
    return a->cls == b->cls && a->line == b->line &&
           (a->file == b->file ||
            (a->file && b->file && !strcmp(a->file, b->file)));
}

static void add_owner(Owner **v, const Buf *b, int64_t bytes)
{
    size_t i = 0;

    while (i < vec_len(*v) && !same_owner((*v)[i].buf, b))
        i++;
    if (i == vec_len(*v))
        vec_push(forever, *v, ((Owner){ b, 0 }));
    (*v)[i].bytes += bytes;
    if (b->bytes > (*v)[i].buf->bytes)
        (*v)[i].buf = b;
}

static int by_bytes(const void *a, const void *b)
{
    const Owner *x = a, *y = b;

    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* Returns the owners of a stage's memory at its peak, largest first. */
static Owner *owners_of(const Role *role)
{
    Owner *v = NULL;
    int prog = 0;

    for (int i = 1; i < role->nprog; i++)
        if (role->prog[i].transient > role->prog[prog].transient)
            prog = i;
    int at = busiest(role, prog);
    for (int i = 0; i < role->nbuf; i++) {
        const Buf *b = &role->buf[i];
        int alive = b->frame || (b->born <= at && at <= b->dies);
        int slots =
            b->frame ? role->prog[b->prog].frame[b->frame - 1].nslot : 1;
        if (!in_host(role, b) &&
            (b->prog < 0 || (b->prog == prog && alive && !b->stack)))
            add_owner(&v, b, b->bytes * slots);
    }
    qsort(v, vec_len(v), sizeof *v, by_bytes);
    return v;
}

const char *memory_wrong(const Plan *p)
{
    const Role *role = p->role;
    int64_t limit = limit_of(p);
    Text t = { .arena = forever };

    for (int i = 1; i < p->nrole; i++)
        role = p->role[i].arena > role->arena ? &p->role[i] : role;
    if (!limit || role->arena <= limit)
        return NULL;
    Owner *owner = owners_of(role);
    for (size_t i = 0; i < vec_len(owner) && i < 3; i++) {
        const Buf *b = owner[i].buf;
        put(&t, "%s %s %s", i ? "," : "", bytes_text(owner[i].bytes),
            bufclasses[b->cls]);
        if (b->file)
            put(&t, " (%s:%d)", b->file, b->line);
    }
    return strf(forever, "a rank needs %s, %s over the limit of %s; largest:%s",
                bytes_text(role->arena), bytes_text(role->arena - limit),
                bytes_text(limit), t.s);
}
