/* grid.c: prints both grids: ranks by their coordinates, the groups of each
 * mesh axis, atoms. Long output is abbreviated. */
#include "settings.h"

enum { ACROSS = 8, GROUPS = 6, STAGES = 4, LINES = 24, GAP = 4 };

static const MeshAxis dense[] = { Mtp, Mcp, Mdp },
                      expert[] = { Metp, Mep, Medp };

/* Ranks of a stage in the order of a grid's coordinates, tp or etp first. */
typedef struct GridRanks {
    const MeshAxis *axis; /* three */
    int64_t n, *rank;
    int64_t across; /* ranks in a row */
} GridRanks;

static int64_t place(const Mesh *m, const MeshAxis *axis, int64_t rank)
{
    int64_t q = 0, n = 1;

    for (int i = 0; i < 3; i++) {
        q += n * mesh_pos(m, m->mask[axis[i]], rank);
        n *= m->size[axis[i]];
    }
    return q;
}

/* Returns the ranks in a row: whole axes that fit, then a part of the next
 * one. */
static int64_t row_of(const Mesh *m, const MeshAxis *axis)
{
    int64_t n = 1, all = m->world / m->size[Mpp];

    for (int i = 0; i < 3; i++) {
        int64_t s = m->size[axis[i]];
        if (n > 1 && s > 1 && n * s == all && s <= ACROSS)
            return n;
        if (n * s > ACROSS) {
            int64_t part = ACROSS / n;
            while (part > 1 && s % part)
                part--;
            return n * part;
        }
        n *= s;
    }
    return n;
}

static GridRanks grid_of(Arena *a, const Mesh *m, const MeshAxis *axis,
                         int64_t stage)
{
    GridRanks g = { axis, m->world / m->size[Mpp], NULL, row_of(m, axis) };

    g.rank = alloc(a, (size_t)g.n * sizeof *g.rank);
    for (int64_t r = 0; r < m->world; r++)
        if (mesh_pos(m, m->mask[Mpp], r) == stage)
            g.rank[place(m, axis, r)] = r;
    return g;
}

static int digits(int64_t v)
{
    int n = 1;

    while (v >= 10) {
        v /= 10;
        n++;
    }
    return n;
}

/* Appends "dp1 cp0 | 4 5 6 7", with the coordinates that are constant in a
 * row. */
static void put_row(Text *out, const Mesh *m, const GridRanks *ranks,
                    int64_t row)
{
    int64_t first = row * ranks->across, whole = 1;
    Text label = { .arena = out->arena };

    if (first >= ranks->n)
        return;
    put(&label, "%s", "");
    for (int i = 0; i < 3; i++) {
        MeshAxis x = ranks->axis[i];
        whole *= m->size[x];
        if (m->size[x] > 1 && ranks->across < whole) {
            Text more = { .arena = out->arena };
            put(&more, "%s%ld %s", meshnames[x],
                mesh_pos(m, m->mask[x], ranks->rank[first]), label.s);
            label = more;
        }
    }
    put(out, "%10s|", label.s);
    for (int64_t i = first; i < first + ranks->across; i++)
        put(out, " %*ld", digits(m->world - 1), ranks->rank[i]);
}

static void pad_to(Text *out, size_t start, int64_t width)
{
    while ((int64_t)(out->len - start) < width)
        put(out, " ");
}

static void put_axes(Text *out, const Mesh *m, const GridRanks *ranks)
{
    int64_t n = 1;

    put(out, "  along a row:");
    for (int i = 0; i < 3; i++) {
        if (m->size[ranks->axis[i]] > 1 && n < ranks->across)
            put(out, " %s", meshnames[ranks->axis[i]]);
        n *= m->size[ranks->axis[i]];
    }
    if (ranks->across == 1)
        put(out, " -");
}

static void put_stage(Text *out, const Mesh *m, int64_t stage, int64_t lines)
{
    Arena *a = out->arena;
    GridRanks d = grid_of(a, m, dense, stage), e = grid_of(a, m, expert, stage);
    int64_t rows =
        d.n / d.across > e.n / e.across ? d.n / d.across : e.n / e.across;
    int64_t width = 12 + d.across * (digits(m->world - 1) + 1) + GAP;
    width = width < 36 ? 36 : width;
    size_t start = out->len;

    put(out, m->size[Mpp] > 1 ? "stage %lld, dense" : "dense",
        (long long)stage);
    put_axes(out, m, &d);
    pad_to(out, start, width);
    put(out, "expert");
    put_axes(out, m, &e);
    put(out, "\n");
    for (int64_t r = 0; r < rows && r < lines; r++) {
        start = out->len;
        put_row(out, m, &d, r);
        if (r < e.n / e.across)
            pad_to(out, start, width);
        put_row(out, m, &e, r);
        put(out, "\n");
    }
    if (rows > lines)
        put(out, "   ... %ld more rows\n", rows - lines);
}

/* Appends "{0-3}", "{0 2 4 6}" or "{0 8 .. 56}". */
void put_ranks(Text *out, const int64_t *r, int64_t n)
{
    int64_t stride = n > 1 ? r[1] - r[0] : 1, even = 1;

    for (int64_t i = 1; i < n; i++)
        even &= r[i] - r[i - 1] == stride;
    if (n > 2 && even && stride == 1) {
        put(out, " {%ld-%ld}", r[0], r[n - 1]);
        return;
    }
    put(out, " {");
    for (int64_t i = 0; i < n; i++)
        if (n <= 5 || i < 2 || i == n - 1)
            put(out, i ? " %ld" : "%ld", r[i]);
        else if (i == 2)
            put(out, " ..");
    put(out, "}");
}

void put_groups(Text *out, const Mesh *m)
{
    int64_t *ranks = alloc(out->arena, (size_t)m->world * sizeof *ranks);

    for (int x = 0; x < NMESH; x++) {
        int64_t shown = 0, groups = m->world / m->size[x];
        if (m->size[x] == 1)
            continue;
        put(out, "%-4s %ld group%s of %ld:", meshnames[x], groups,
            groups == 1 ? "" : "s", m->size[x]);
        for (int64_t r = 0; r < m->world && shown < GROUPS; r++) {
            if (mesh_pos(m, m->mask[x], r))
                continue;
            mesh_group(m, m->mask[x], r, ranks);
            put_ranks(out, ranks, m->size[x]);
            shown++;
        }
        put(out, groups > shown ? " ...\n" : "\n");
    }
}

void put_grids(Text *out, const Mesh *m)
{
    int64_t pp = m->size[Mpp], shown = pp < STAGES ? pp : STAGES;

    for (int64_t s = 0; s < shown; s++)
        put_stage(out, m, s, LINES / shown < 2 ? 2 : LINES / shown);
    if (pp > shown)
        put(out, "... %ld more stages, each %ld ranks on\n", pp - shown,
            m->world / pp);
    put(out, "\n");
    put_groups(out, m);
    put(out, "\natoms:");
    for (int i = 0; i < m->natom; i++) {
        put(out, "%s %ld (", i ? "," : "", m->atom[i].size);
        for (int x = 0, n = 0; x < NMESH; x++)
            if (m->mask[x] >> i & 1)
                put(out, n++ ? " %s" : "%s", meshnames[x]);
        put(out, ", every %ld)", m->atom[i].stride);
    }
    put(out, m->natom ? "\n" : " none\n");
}
