/* shardtext.c: prints and parses sharding types and sets of atoms:
 *
 *     shards  = "@" { where ":" shard }             "@ dp:batch tp:+"
 *     atoms   = where { "," where } | "none"        "tp,dp"
 *     where   = mesh axis | "a" atom
 *     shard   = axis | "+" | "+max" | "+min" | "~"           (absent: whole)
 * */
#include "graph.h"

static const char *const terms[] = { "+", "+max", "+min" };

/* ---- printing ------------------------------------------------------------ */

static const MeshAxis grids[2][4] = { { Mtp, Mcp, Mdp, Mpp },
                                      { Metp, Mep, Medp, Mpp } };

/* Returns an atom that represents all of mask, -1: they differ, -2: none. */
static int uniform(const Mesh *m, const Shard *sh, uint32_t mask)
{
    int first = -2;

    for (int i = 0; i < m->natom; i++) {
        if (!(mask >> i & 1))
            continue;
        if (first < 0)
            first = i;
        else if (!same_shard(&sh[i], &sh[first]))
            return -1;
    }
    return first;
}

static void put_shard(Text *out, const char *where, const Shard *s)
{
    if (s->k != R)
        put(out, "%s%s:%s", out->len ? " " : "@ ", where,
            s->k == S   ? s->a->name
            : s->k == P ? terms[s->op]
                        : "~");
}

/* Prints by the axes of one grid if they suffice, otherwise atom by atom. */
const char *shard_text(Arena *a, const Graph *g, const Node *n)
{
    Text out = { .arena = a };
    const Mesh *m = g->mesh;

    if (!m || g->level == LOGICAL)
        return NULL;
    for (int k = 0; k < 2; k++) {
        int whole = 1;
        for (int i = 0; i < 4; i++)
            whole &= uniform(m, n->sh, m->mask[grids[k][i]]) != -1;
        for (int i = 0; whole && i < 4; i++) {
            int at = uniform(m, n->sh, m->mask[grids[k][i]]);
            if (at >= 0)
                put_shard(&out, meshnames[grids[k][i]], &n->sh[at]);
        }
        if (whole)
            return out.s;
    }
    for (int i = 0; i < m->natom; i++)
        put_shard(&out, strf(a, "a%d", i), &n->sh[i]);
    return out.s;
}

void put_atoms(Text *out, const Mesh *m, uint32_t set)
{
    const char *comma = "";

    for (int k = 0; m && k < 2; k++) {
        uint32_t sum = 0;
        for (int i = 0; i < 4; i++)
            if ((m->mask[grids[k][i]] & ~set) == 0)
                sum |= m->mask[grids[k][i]];
        if (sum != set || !set)
            continue;
        for (int i = 0; i < 4; i++) {
            uint32_t mask = m->mask[grids[k][i]];
            if (!mask || mask & ~set)
                continue;
            put(out, "%s%s", comma, meshnames[grids[k][i]]);
            comma = ",";
        }
        return;
    }
    for (int i = 0; i < MAXATOM; i++)
        if (set >> i & 1) {
            put(out, "%sa%d", comma, i);
            comma = ",";
        }
    if (!set)
        put(out, "none");
}

/* ---- parsing ------------------------------------------------------------- */

Axis *lex_axis(const Lex *lex, const Graph *g, const char *name)
{
    const char *all[64];
    size_t n = 0;

    for (int i = 0; i < g->naxis; i++) {
        if (g->axis[i]->name == name)
            return g->axis[i];
        if (n < 64)
            all[n++] = g->axis[i]->name;
    }
    lex_err(lex, "unknown axis '%s'%s", name, did_you_mean(name, all, n));
}

/* Returns the set of atoms in the n bytes at s. */
static uint32_t lex_where(const Lex *lex, const Mesh *m, const char *s,
                          size_t n)
{
    for (int i = 0; m && i < NMESH; i++)
        if (strlen(meshnames[i]) == n && !memcmp(meshnames[i], s, n))
            return m->mask[i];
    int at = n > 1 && s[0] == 'a' ? atoi(s + 1) : -1;
    if (at < 0 || at >= MAXATOM)
        lex_err(lex, "'%.*s' is no mesh axis and no atom", (int)n, s);
    return 1u << at;
}

static Shard lex_shard(const Lex *lex, const Graph *g, const char *s)
{
    int op = word_index(s, terms, 3);
    if (op >= 0)
        return (Shard){ .k = P, .op = (Reduce)op };
    if (!strcmp(s, "~"))
        return (Shard){ .k = F };
    return (Shard){ .k = S, .a = lex_axis(lex, g, intern(s)) };
}

void lex_shards(Lex *lex, Graph *g, Node *n)
{
    Shard sh[MAXATOM] = { 0 };

    if (!lex_mark(lex, '@'))
        return;
    while (lex_more(lex) && *lex->p != '!') {
        const char *s = lex_word(lex), *colon = strchr(s, ':');
        if (!colon)
            lex_err(lex, "'%s' is not mesh-axis:shard", s);
        uint32_t set = lex_where(lex, g->mesh, s, (size_t)(colon - s));
        Shard h = lex_shard(lex, g, colon + 1);
        for (int i = 0; i < MAXATOM; i++)
            if (set >> i & 1)
                sh[i] = h;
    }
    n->sh = g_type(g, sh);
}

int64_t lex_atoms(Lex *lex, const Mesh *m)
{
    uint32_t set = 0;

    if (lex_take(lex, "none"))
        return 0;
    do {
        const char *s = lex_word(lex);
        set |= lex_where(lex, m, s, strlen(s));
    } while (lex_mark(lex, ','));
    return set;
}
