/* mesh.h: ranks, the two grids over them, and the atoms common to both */
#ifndef PLEAT_MESH_H
#define PLEAT_MESH_H

/* ---- mesh.c: ranks, both grids, their common atoms ----------------------- */

enum { MAXATOM = 16 };

typedef enum MeshAxis { /* first the dense grid, then the expert grid */
                        Mtp,
                        Mcp,
                        Mdp,
                        Mpp,
                        Metp,
                        Mep,
                        Medp,
                        NMESH
} MeshAxis;

/* rank's coordinate on an atom: (rank / stride) % size; atom 0 is fastest. */
typedef struct Atom {
    int64_t size, stride;
} Atom;

typedef struct Mesh {
    int64_t world;
    int64_t size[NMESH];
    const char *order; /* "tp-cp-dp-pp", first fastest */
    int natom;
    Atom atom[MAXATOM];
    uint32_t mask[NMESH]; /* atoms of each mesh axis */
} Mesh;

extern const char *const meshnames[NMESH]; /* "tp" ... "edp" */
/* Creates the common refinement of both grids. Sizes that are 0 get their
 * defaults; err() if sizes do not divide. */
Mesh *mesh_new(Arena *a, int64_t world, const int64_t size[NMESH],
               const char *order, const Loc *loc);
/* Would mesh_new accept it, with a valid order? */
int mesh_legal(int64_t world, const int64_t size[NMESH], const char *order);
/* Calls err() if s is not a valid order. */
void order_check(const char *s, const Loc *loc);
int64_t mesh_coord(const Mesh *m, int64_t rank, int atom);
int64_t mesh_extent(const Mesh *m, uint32_t atoms); /* product of sizes */
/* mesh_pos returns the position of rank in its group over atoms, later atoms
 * major; mesh_group fills ranks[mesh_extent] with the group's ranks in that
 * order. */
int64_t mesh_pos(const Mesh *m, uint32_t atoms, int64_t rank);
void mesh_group(const Mesh *m, uint32_t atoms, int64_t rank, int64_t *ranks);
/* grid.c: prints ranks by their coordinates in both grids, the groups of each
 * axis (put_groups: only these), the atoms. */
void put_grids(Text *out, const Mesh *m);
void put_groups(Text *out, const Mesh *m);
void put_ranks(Text *out, const int64_t *ranks, int64_t n); /* " {0-3}" */
/* Writes a set of atoms for messages: "tp", "cp*dp", "ep"; "part of dp". */
void mesh_words(const Mesh *m, uint32_t atoms, char *s, size_t size);

/* An integer that may depend on the rank: c + sum of k[i] * coordinate i. */
typedef struct RankAffine {
    int64_t c, k[MAXATOM];
    int64_t place; /* its meaning in a kernel: see rank_offsets.c */
} RankAffine;
RankAffine aff(int64_t c);
int64_t aff_at(const Mesh *m, const RankAffine *affine, int64_t rank);
/* A part of an axis: [start, start+len) in global indices. */
typedef struct Piece {
    RankAffine start;
    int64_t len;
} Piece;
/* Finds the pieces of an axis that `atoms` shard into equal parts of len: one
 * piece; slower atoms have larger steps. If C ranks over the atoms `zigzag`
 * hold two pieces, the axis has 2 C runs, and rank p has runs p and 2 C - 1 -
 * p, which balances the work under a causal mask. Other atoms divide each of
 * the two further:
 *
 *     C = 2, T = 2    p=0 t=0   [0 ..]  [6 ..]      in eighths
 *                     p=0 t=1   [1 ..]  [7 ..]
 *                     p=1 t=0   [2 ..]  [4 ..]
 *                     p=1 t=1   [3 ..]  [5 ..]
 *
 * Returns the number of pieces. */
enum { MAXPIECE = 2 };
int axis_pieces(const Mesh *m, int64_t len, uint32_t atoms, uint32_t zigzag,
                Piece out[MAXPIECE]);
/* Finds the pieces of n elements over R ranks, R not a divisor, n > R: rank r
 * has n / R elements from n / R * r on, then element n - n % R + r, which is
 * padding if it is not below n.
 *
 *     n = 8, R = 3    r=0  [0 1] [6]    r=1  [2 3] [7]    r=2  [4 5] [8]
 * */
void uneven_pieces(const Mesh *m, int64_t n, uint32_t atoms, Piece out[2]);
int64_t uneven_place(int64_t n, int64_t parts,
                     int64_t i); /* place of element i */

/* Text form: c, then "+k*a<atom>" terms, then "!place". */
void put_aff(Text *out, const RankAffine *affine);
RankAffine lex_aff(Lex *lex);
RankAffine code_aff(Codec *codec, RankAffine x);
/* Does it name atoms that the mesh lacks? */
int aff_stray(const Mesh *m, const RankAffine *affine);

#endif
