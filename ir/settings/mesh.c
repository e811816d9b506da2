/* mesh.c: one set of ranks as two grids.
 *
 *     dense    tp x cp x dp x pp          expert   etp x ep x edp x pp
 *
 * Only the pipeline must agree: its groups are the same sets in both. A rank
 * number without its pp digit is the number in its stage. Each grid cuts that
 * number at the running products of its sizes; all cuts together are the common
 * refinement, and the range between two cuts is an atom:
 *
 *     tp=2 dp=4      cuts at 2, 8
 *     ep=4 edp=2     cuts at 4, 8      atoms 2 (1..2), 2 (2..4), 2 (4..8)
 *     tp = {0}  dp = {1,2}  ep = {0,1}  edp = {2}
 *
 * Atoms of tp and etp are split into primes. A fold whose cuts do not divide
 * each other has no atoms and is refused, with the nearest legal value. */
#include "settings.h"

enum { NPLACE = 4, LARGEST = 1 << 24 };

const char *const meshnames[NMESH] = {
    [Mtp] = "tp",   [Mcp] = "cp", [Mdp] = "dp",   [Mpp] = "pp",
    [Metp] = "etp", [Mep] = "ep", [Medp] = "edp",
};

/* ---- rank order ---------------------------------------------------------- */

/* Axes of a grid, the first varies fastest. */
typedef struct GridAxes {
    MeshAxis axis[NPLACE];
    int n;
} GridAxes;
typedef struct GridOrder {
    GridAxes dense, expert;
    int64_t within, host;
} GridOrder;

static void push(GridAxes *axes, MeshAxis a)
{
    axes->axis[axes->n++] = a;
}

/* Places a word of the order in the dense grid, the expert grid or both. */
static void place(GridOrder *order, int word, int epnamed)
{
    static const MeshAxis dense[] = { Mtp, Mcp, Mdp, Mpp };
    static const MeshAxis expert[] = { Metp, NMESH, Medp, Mpp };
    if (word == 4) {
        push(&order->expert, Mep);
        return;
    }
    push(&order->dense, dense[word]);
    if (dense[word] == Mdp && !epnamed)
        push(&order->expert, Mep);
    if (expert[word] != NMESH)
        push(&order->expert, expert[word]);
}

/* Parses "tp-cp-dp-pp": the expert grid has etp for tp, ep edp for dp; "ep" may
 * have another place ("tp-cp-ep-dp-pp" is Megatron's spelling). ":4" at the
 * end: ranks that share parameters shard them within groups of 4, so there is a
 * cut at the end of such a group. ":0:8": hosts have 8 ranks; there is a cut at
 * the end of a host, if it divides the others. */
static GridOrder order_read(const char *s, const Loc *loc)
{
    static const char *const names[] = { "tp", "cp", "dp", "pp", "ep" };
    GridOrder o = { 0 };
    int seen[5] = { 0 }, epnamed = strstr(s, "ep") != 0;
    size_t len = strcspn(s, ":");
    char *rest = NULL;
    o.within = s[len] ? strtoll(s + len + 1, &rest, 10) : 0;
    o.host = rest && *rest ? strtoll(rest + 1, 0, 10) : 0;
    for (const char *p = s, *end = s + len; p <= end;) {
        size_t n = strcspn(p, "-:");
        int w = 0;
        while (w < 5 && (strlen(names[w]) != n || strncmp(names[w], p, n)))
            w++;
        if (w == 5)
            err(loc, "fold.order '%s': '%.*s' is not one of tp, cp, ep, dp, pp",
                s, (int)n, p);
        if (seen[w]++)
            err(loc, "fold.order '%s' names '%s' twice", s, names[w]);
        place(&o, w, epnamed);
        p += n + 1;
    }
    for (int w = 0; w < 4; w++)
        if (!seen[w])
            err(loc, "fold.order '%s' lacks '%s' (the default is tp-cp-dp-pp)",
                s, names[w]);
    return o;
}

void order_check(const char *s, const Loc *loc)
{
    if (strchr(s, ':'))
        err(loc, "fold.order '%s': between names stands '-'", s);
    order_read(s, loc);
}

/* ---- sizes --------------------------------------------------------------- */

typedef enum FoldError { NONE, DENSE, EXPERT, STAGES, CUTS } FoldError;

/* State of solving a fold. */
typedef struct FoldSolve {
    int64_t world, size[NMESH];
    int64_t at[2 * NPLACE + 2]; /* cuts of the number in a stage, ascending */
    int ncut;
    int64_t ppstride;
    int64_t bad[2]; /* CUTS: the two that do not divide */
} FoldSolve;

static int64_t times(int64_t a, int64_t b)
{
    return a > LARGEST / b ? LARGEST + 1 : a * b;
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a;
}

/* Sets sizes that were not given: dp and edp to the rest of the world, others
 * to 1. */
static FoldError fill(FoldSolve *solve)
{
    int64_t *n = solve->size;
    for (int a = 0; a < NMESH; a++)
        if (!n[a] && a != Mdp && a != Medp)
            n[a] = 1;
    int64_t dense = times(times(n[Mtp], n[Mcp]), n[Mpp]);
    int64_t expert = times(times(n[Metp], n[Mep]), n[Mpp]);
    if (!solve->world)
        solve->world = n[Mdp] ? times(dense, n[Mdp])
                              : times(dense, expert / gcd(dense, expert));
    if (dense > solve->world || solve->world % dense)
        return DENSE;
    if (!n[Mdp])
        n[Mdp] = solve->world / dense;
    if (n[Mdp] != solve->world / dense)
        return DENSE;
    if (expert > solve->world || solve->world % expert)
        return EXPERT;
    if (!n[Medp])
        n[Medp] = solve->world / expert;
    return n[Medp] == solve->world / expert ? NONE : EXPERT;
}

/* Returns the product of the sizes before pp. */
static int64_t below_pp(const FoldSolve *solve, const GridAxes *axes)
{
    int64_t p = 1;
    for (int i = 0; i < axes->n && axes->axis[i] != Mpp; i++)
        p *= solve->size[axes->axis[i]];
    return p;
}

static void cut(FoldSolve *solve, int64_t at)
{
    int i = solve->ncut;
    for (int k = 0; k < solve->ncut; k++)
        if (solve->at[k] == at)
            return;
    for (; i > 0 && solve->at[i - 1] > at; i--)
        solve->at[i] = solve->at[i - 1];
    solve->at[i] = at;
    solve->ncut++;
}

static void cut_grid(FoldSolve *solve, const GridAxes *axes)
{
    int64_t p = 1;
    for (int i = 0; i < axes->n; i++)
        if (axes->axis[i] != Mpp)
            cut(solve, p *= solve->size[axes->axis[i]]);
}

/* Cuts groups of n ranks inside those that differ only along these axes. */
static void cut_within(FoldSolve *solve, const GridAxes *grid_axes,
                       uint32_t axes, int64_t n)
{
    int64_t p = 1, all = 1;
    for (int i = 0; i < grid_axes->n; i++)
        if (axes >> grid_axes->axis[i] & 1)
            all *= solve->size[grid_axes->axis[i]];
    for (int i = 0; i < grid_axes->n && !(axes >> grid_axes->axis[i] & 1); i++)
        if (grid_axes->axis[i] != Mpp)
            p *= solve->size[grid_axes->axis[i]];
    if (n > 0 && n < all)
        cut(solve, times(p, n));
}

/* Cuts at the end of a host in a stage, if hosts consist of whole parts of
 * it. */
static void cut_hosts(FoldSolve *solve, int64_t host)
{
    int i = 0;

    if (host > solve->ppstride)
        host = host % solve->size[Mpp] ? 0 : host / solve->size[Mpp];
    while (i < solve->ncut && solve->at[i] < host)
        i++;
    if (i > 0 && i < solve->ncut && solve->at[i] % host == 0 &&
        host % solve->at[i - 1] == 0)
        cut(solve, host);
}

static FoldError solve(FoldSolve *fold_solve, const GridOrder *order)
{
    FoldError f = fill(fold_solve);
    if (f)
        return f;
    fold_solve->ppstride = below_pp(fold_solve, &order->dense);
    if (fold_solve->size[Mpp] > 1 &&
        fold_solve->ppstride != below_pp(fold_solve, &order->expert))
        return STAGES;
    fold_solve->ncut = 0;
    cut(fold_solve, 1);
    cut_grid(fold_solve, &order->dense);
    cut_grid(fold_solve, &order->expert);
    cut_within(fold_solve, &order->dense, 1u << Mcp | 1u << Mdp, order->within);
    cut_within(fold_solve, &order->expert, 1u << Medp, order->within);
    for (int i = 1; i < fold_solve->ncut; i++)
        if (fold_solve->at[i] % fold_solve->at[i - 1]) {
            fold_solve->bad[0] = fold_solve->at[i - 1];
            fold_solve->bad[1] = fold_solve->at[i];
            return CUTS;
        }
    cut_hosts(fold_solve, order->host);
    return NONE;
}

/* ---- refusals ------------------------------------------------------------ */

/* Returns the nearest legal value of an axis with all others as given; 0:
 * none. */
static int64_t legal(const FoldSolve *fold_solve, const GridOrder *order,
                     MeshAxis a)
{
    int64_t beyond = fold_solve->size[a] - fold_solve->world,
            from = beyond > 1 ? beyond : 1;

    for (int64_t d = from; d < from + fold_solve->world; d++)
        for (int up = 0; up < 2; up++) {
            FoldSolve t = *fold_solve;
            t.size[a] += up ? d : -d;
            if (t.size[a] > 0 && fold_solve->world % t.size[a] == 0 &&
                !solve(&t, order))
                return t.size[a];
        }
    return 0;
}

/* Returns " (nearest legal: ep=4, or etp=2)": single changes. */
static const char *advice(const FoldSolve *solve, const GridOrder *order,
                          unsigned axes)
{
    Text out = { .arena = forever };
    putn(&out, "", 0);
    for (int a = 0; a < NMESH; a++) {
        if (!(axes >> a & 1) || solve->size[a] < 1 ||
            (solve->size[a] == 1 && a != Mdp))
            continue;
        int64_t n = legal(solve, order, (MeshAxis)a);
        if (n)
            put(&out, "%s%s=%ld",
                out.len ? ", or " : " (nearest legal: ", meshnames[a], n);
    }
    if (out.len)
        put(&out, ")");
    return out.s;
}

/* Returns "tp*cp*pp = 3*1*1 = 3". */
static const char *product(const FoldSolve *solve, const MeshAxis *axis, int n)
{
    Text out = { .arena = forever };
    int64_t p = 1;
    for (int i = 0; i < n; i++) {
        put(&out, "%s%s", i ? "*" : "", meshnames[axis[i]]);
        p = times(p, solve->size[axis[i]]);
    }
    for (int i = 0; i < n; i++)
        put(&out, "%s%ld", i ? "*" : " = ", solve->size[axis[i]]);
    put(&out, " = %ld", p);
    return out.s;
}

/* Returns the nearest legal size of groups that hold shards. */
static int64_t legal_within(const FoldSolve *fold_solve, const GridOrder *order)
{
    for (int64_t d = 1; d <= fold_solve->world; d++)
        for (int up = 0; up < 2; up++) {
            FoldSolve t = *fold_solve;
            GridOrder q = *order;
            q.within += up ? d : -d;
            if (q.within > 0 && !solve(&t, &q))
                return q.within;
        }
    return 1;
}

static _Noreturn void refuse(FoldError f, const FoldSolve *given,
                             const FoldSolve *fold_solve,
                             const GridOrder *order, const Loc *loc)
{
    static const MeshAxis dense[] = { Mtp, Mcp, Mpp, Mdp };
    static const MeshAxis expert[] = { Metp, Mep, Mpp, Medp };
    enum {
        TP = 1 << Mtp,
        CP = 1 << Mcp,
        DP = 1 << Mdp,
        PP = 1 << Mpp,
        ETP = 1 << Metp,
        EP = 1 << Mep
    };
    FoldSolve g = *given;
    g.world = fold_solve->world;
    for (int a = 0; a < NMESH; a++)
        if (!g.size[a] && a != Mdp && a != Medp)
            g.size[a] = 1;
    long long w = fold_solve->world;
    if (w > LARGEST)
        err(loc, "fold: more than %d ranks", LARGEST);
    if (f == DENSE && g.size[Mdp])
        err(loc, "fold: %s, but the world has %lld ranks%s",
            product(&g, dense, 4), w, advice(&g, order, TP | CP | DP));
    if (f == DENSE)
        err(loc, "fold: %s does not divide the %lld ranks of the world%s",
            product(&g, dense, 3), w, advice(&g, order, TP | CP | PP));
    if (f == EXPERT && g.size[Medp])
        err(loc, "fold: %s, but the world has %lld ranks%s",
            product(&g, expert, 4), w, advice(&g, order, ETP | EP));
    if (f == EXPERT)
        err(loc, "fold: %s does not divide the %lld ranks of the world%s",
            product(&g, expert, 3), w, advice(&g, order, ETP | EP | PP));
    if (f == STAGES)
        err(loc,
            "fold: pipeline stages differ between the grids: below pp lie %ld "
            "ranks of the dense and %ld of the expert grid (put pp last in "
            "order)",
            below_pp(fold_solve, &order->dense),
            below_pp(fold_solve, &order->expert));
    FoldSolve t = *given;
    GridOrder whole = *order;
    whole.within = 0;
    if (order->within && !solve(&t, &whole))
        err(loc,
            "fold: shards within %ld ranks cut a stage at %ld and at %ld "
            "ranks, which do not divide each other (nearest legal: %ld)",
            order->within, fold_solve->bad[0], fold_solve->bad[1],
            legal_within(fold_solve, order));
    err(loc,
        "fold: the dense and the expert grid cut a stage at %ld and at %ld "
        "ranks, which do not divide each other%s",
        fold_solve->bad[0], fold_solve->bad[1],
        advice(&g, order, ETP | EP | TP | CP));
}

/* ---- atoms --------------------------------------------------------------- */

static void add_atom(Mesh *m, int64_t size, int64_t stride)
{
    if (m->natom == MAXATOM)
        die("mesh: more than %d atoms", MAXATOM);
    if (size > 1)
        m->atom[m->natom++] = (Atom){ size, stride };
}

/* Creates the atoms between the cuts of a stage, and pp's with its stride. */
static void make_atoms(Mesh *m, const FoldSolve *solve)
{
    int64_t pp = solve->size[Mpp];
    for (int i = 1; i < solve->ncut; i++) {
        int64_t at = solve->at[i - 1];
        if (at == solve->ppstride)
            add_atom(m, pp, at);
        add_atom(m, solve->at[i] / at, at >= solve->ppstride ? at * pp : at);
    }
    if (solve->at[solve->ncut - 1] == solve->ppstride)
        add_atom(m, pp, solve->ppstride);
}

/* Splits tp and etp into primes, small ones first, so that a tensor axis too
 * short for all of tp takes a part of it and the next axis the rest: kv=4 with
 * tp=8. */
static void split_atoms(Mesh *m)
{
    Mesh old = *m;
    m->natom = 0;
    for (int i = 0; i < old.natom; i++) {
        Atom a = old.atom[i];
        int split = (old.mask[Mtp] | old.mask[Metp]) >> i & 1;
        for (int64_t q = 2; split && q < a.size; q++)
            while (a.size % q == 0 && a.size > q) {
                add_atom(m, q, a.stride);
                a = (Atom){ a.size / q, a.stride * q };
            }
        add_atom(m, a.size, a.stride);
    }
}

/* Assigns to each axis the atoms whose strides are in its range of the rank. */
static void name_atoms(Mesh *m, const GridAxes *axes)
{
    int64_t from = 1;
    for (int i = 0; i < axes->n; i++) {
        int64_t to = from * m->size[axes->axis[i]];
        m->mask[axes->axis[i]] = 0;
        for (int k = 0; k < m->natom; k++)
            if (m->atom[k].stride >= from && m->atom[k].stride < to)
                m->mask[axes->axis[i]] |= 1u << k;
        from = to;
    }
}

int64_t mesh_coord(const Mesh *m, int64_t rank, int atom)
{
    return rank / m->atom[atom].stride % m->atom[atom].size;
}

int64_t mesh_extent(const Mesh *m, uint32_t atoms)
{
    int64_t n = 1;
    for (int i = 0; i < m->natom; i++)
        if (atoms >> i & 1)
            n *= m->atom[i].size;
    return n;
}

int64_t mesh_pos(const Mesh *m, uint32_t atoms, int64_t rank)
{
    int64_t pos = 0, n = 1;
    for (int i = 0; i < m->natom; i++)
        if (atoms >> i & 1) {
            pos += n * mesh_coord(m, rank, i);
            n *= m->atom[i].size;
        }
    return pos;
}

/* Returns the smallest set of a grid's axes that equals these atoms; 0:
 * none. */
static unsigned axes_of(const Mesh *m, uint32_t atoms, unsigned among)
{
    unsigned best = 0;

    for (unsigned v = 1; v < 1u << NMESH; v++) {
        uint32_t sum = 0;
        if (v & ~among)
            continue;
        for (int a = 0; a < NMESH; a++)
            sum |= v >> a & 1 ? m->mask[a] : 0;
        if (sum == atoms &&
            (!best || __builtin_popcount(v) < __builtin_popcount(best)))
            best = v;
    }
    return best;
}

void mesh_words(const Mesh *m, uint32_t atoms, char *s, size_t size)
{
    enum {
        DENSEGRID = 1 << Mtp | 1 << Mcp | 1 << Mdp | 1 << Mpp,
        EXPERTGRID = 1 << Metp | 1 << Mep | 1 << Medp | 1 << Mpp
    };
    unsigned axes = axes_of(m, atoms, DENSEGRID);
    unsigned other = axes_of(m, atoms, EXPERTGRID);
    size_t n = 0;

    if (!axes ||
        (other && __builtin_popcount(other) < __builtin_popcount(axes)))
        axes = other;
    *s = 0;
    for (int a = 0; a < NMESH && n < size; a++)
        if (axes ? axes >> a & 1 : (m->mask[a] & atoms) != 0)
            n += (size_t)snprintf(s + n, size - n, "%s%s%s", n ? "*" : "",
                                  axes ? "" : "part of ", meshnames[a]);
}

void mesh_group(const Mesh *m, uint32_t atoms, int64_t rank, int64_t *ranks)
{
    int64_t n = 1;
    for (int i = 0; i < m->natom; i++)
        if (atoms >> i & 1)
            rank -= mesh_coord(m, rank, i) * m->atom[i].stride;
    ranks[0] = rank;
    for (int i = 0; i < m->natom; i++) {
        if (!(atoms >> i & 1))
            continue;
        for (int64_t c = 1; c < m->atom[i].size; c++)
            for (int64_t k = 0; k < n; k++)
                ranks[c * n + k] = ranks[k] + c * m->atom[i].stride;
        n *= m->atom[i].size;
    }
}

RankAffine aff(int64_t c)
{
    return (RankAffine){ .c = c };
}

/* Adds the coordinates over `atoms` to affine, the fastest with factor
 * `stride`. */
static void step_by(const Mesh *m, RankAffine *affine, uint32_t atoms,
                    int64_t stride)
{
    for (int i = 0; i < m->natom; i++)
        if (atoms >> i & 1) {
            affine->k[i] = stride;
            stride *= m->atom[i].size;
        }
}

int axis_pieces(const Mesh *m, int64_t len, uint32_t atoms, uint32_t zigzag,
                Piece out[MAXPIECE])
{
    uint32_t z = atoms & zigzag, inside = atoms & ~zigzag;

    out[0] = (Piece){ aff(0), z ? len / 2 : len };
    if (inside)
        step_by(m, &out[0].start, inside, out[0].len);
    if (!z)
        return 1;
    int64_t run = len / 2 * mesh_extent(m, inside);
    out[1] = out[0];
    step_by(m, &out[0].start, z, run);
    step_by(m, &out[1].start, z, -run);
    out[1].start.c = (2 * mesh_extent(m, z) - 1) * run;
    return 2;
}

void uneven_pieces(const Mesh *m, int64_t n, uint32_t atoms, Piece out[2])
{
    int64_t ranks = mesh_extent(m, atoms), each = n / ranks;

    out[0] = (Piece){ aff(0), each };
    out[1] = (Piece){ aff(each * ranks), 1 };
    step_by(m, &out[0].start, atoms, each);
    step_by(m, &out[1].start, atoms, 1);
}

int64_t uneven_place(int64_t n, int64_t parts, int64_t i)
{
    int64_t each = n / parts, rest = i - each * parts;

    if (n % parts == 0)
        return i;
    return rest < 0 ? i + i / each : rest * (each + 1) + each;
}

int64_t aff_at(const Mesh *m, const RankAffine *affine, int64_t rank)
{
    int64_t v = affine->c;
    for (int i = 0; i < m->natom; i++)
        if (affine->k[i])
            v += affine->k[i] * mesh_coord(m, rank, i);
    return v;
}

int mesh_legal(int64_t world, const int64_t size[NMESH], const char *order)
{
    GridOrder o = order_read(order, NULL);
    FoldSolve v = { .world = world };

    memcpy(v.size, size, sizeof v.size);
    return solve(&v, &o) == NONE;
}

Mesh *mesh_new(Arena *a, int64_t world, const int64_t size[NMESH],
               const char *order, const Loc *loc)
{
    GridOrder o = order_read(order, loc);
    FoldSolve given = { .world = world };
    if (world < 0 || world > LARGEST)
        err(loc, "world: %ld is not between 1 and %d", world, LARGEST);
    for (int i = 0; i < NMESH; i++) {
        given.size[i] = size[i];
        if (size[i] < 0 || size[i] > LARGEST)
            err(loc, "%s: %ld is not between 1 and %d", meshnames[i], size[i],
                LARGEST);
    }
    FoldSolve v = given;
    FoldError f = solve(&v, &o);
    if (f || v.world > LARGEST)
        refuse(f, &given, &v, &o, loc);
    Mesh *m = alloc(a, sizeof *m);
    m->world = v.world;
    memcpy(m->size, v.size, sizeof m->size);
    m->order = intern(order);
    make_atoms(m, &v);
    name_atoms(m, &o.dense);
    name_atoms(m, &o.expert);
    split_atoms(m);
    name_atoms(m, &o.dense);
    name_atoms(m, &o.expert);
    return m;
}

/* Appends aff = int { "+" int "*a" atom } [ "!" place ]. */
void put_aff(Text *out, const RankAffine *affine)
{
    putn(out, " ", 1);
    put_int(out, affine->c);
    for (int i = 0; i < MAXATOM; i++)
        if (affine->k[i]) {
            putn(out, "+", 1);
            put_int(out, affine->k[i]);
            putn(out, "*a", 2);
            put_int(out, i);
        }
    if (affine->place) {
        putn(out, "!", 1);
        put_int(out, affine->place);
    }
}

/* Parses aff = int { "+" int "*a" atom }. */
RankAffine lex_aff(Lex *lex)
{
    if (!lex_more(lex))
        lex_err(lex, "the line ends too early");
    RankAffine a = aff(lex_digits(lex));
    while (lex->p < lex->end && *lex->p == '+') {
        lex->p++;
        int64_t k = lex_digits(lex);
        if (lex->end - lex->p < 3 || lex->p[0] != '*' || lex->p[1] != 'a')
            lex_err(lex, "expected '*a' and an atom");
        lex->p += 2;
        int64_t at = lex_digits(lex);
        if (at < 0 || at >= MAXATOM)
            lex_err(lex, "atom %ld of %d", at, MAXATOM);
        a.k[at] = k;
    }
    if (lex->p < lex->end && *lex->p == '!') {
        lex->p++;
        a.place = lex_digits(lex);
    }
    return a;
}

RankAffine code_aff(Codec *codec, RankAffine x)
{
    if (codec->in)
        return lex_aff(codec->in);
    put_aff(codec->out, &x);
    return x;
}

int aff_stray(const Mesh *m, const RankAffine *affine)
{
    for (int i = m->natom; i < MAXATOM; i++)
        if (affine->k[i])
            return 1;
    return 0;
}
