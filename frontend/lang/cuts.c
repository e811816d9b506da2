/* cuts.c: which mesh axes cut which axes, where the model says so. Without a
 * word, roles decide (passes/sharding/sharding.c). Of an axis:
 *
 *     axes { inner={ 1408, shard="tp" } }     before all that have a role
 *
 * and of a mesh axis, in this order, with or without its size:
 *
 *     fold { tp="inner hidden" }   fold { tp={ 2, "inner hidden" } }
 *
 * An axis that a size does not divide leaves its place to the next. */
#include "../frontend.h"

enum { MOSTCUTS = 32 };

/* Those that roles give a choice of axes. */
static const MeshAxis open_to[] = { Mtp, Mcp, Metp };
/* NMESH: none of them. */
static MeshAxis mesh_axis(const char *s, size_t n)
{
    for (int i = 0; i < countof(open_to); i++) {
        const char *name = meshnames[open_to[i]];
        if (strlen(name) == n && !memcmp(name, s, n))
            return open_to[i];
    }
    return NMESH;
}

/* As the next one of those that m cuts. */
static void take_cut(Front *front, MeshAxis m, Axis *a)
{
    char most = 0;

    for (int i = 0; i < front->g->naxis; i++)
        if (front->g->axis[i]->taken[m] > most)
            most = front->g->axis[i]->taken[m];
    if (most == MOSTCUTS)
        err(front->loc, "%s: more than %d axes", meshnames[m], MOSTCUTS);
    if (!a->taken[m])
        a->taken[m] = (char)(most + 1);
}

void cuts_of_axis(Front *front, Axis *a, const char *words)
{
    for (const char *word; (word = next_word(&words, " "));) {
        MeshAxis m = mesh_axis(word, strlen(word));
        if (m == NMESH)
            err(front->loc, "axes: '%s': shard is of tp, cp, etp, not '%s'",
                a->name, word);
        take_cut(front, m, a);
    }
}

/* The string at the top of the stack, for when all axes are declared. */
static void later(lua_State *L, Front *front, MeshAxis m)
{
    Arena *a = front->g->arena;

    vec_push(a, front->cuts,
             ((CutList){ m, strf(a, "%s", lua_tostring(L, -1)), front->loc }));
}

int cuts_of_fold(lua_State *L, Front *front, const char *table,
                 const char *name)
{
    MeshAxis m = mesh_axis(name, strlen(name));

    if (strcmp(table, "fold") || m == NMESH)
        return 0;
    if (lua_type(L, -1) == LUA_TSTRING) {
        later(L, front, m);
        return 1;
    }
    if (lua_type(L, -1) != LUA_TTABLE)
        return 0;
    lua_rawgeti(L, -1, 2);
    if (lua_rawlen(L, -2) != 2 || lua_type(L, -1) != LUA_TSTRING)
        err(front->loc,
            "fold.%s: write %s=2, %s=\"axes\" or %s={ 2, \"axes\" }", name,
            name, name, name);
    later(L, front, m);
    lua_pop(L, 1);
    lua_rawgeti(L, -1, 1);
    lua_replace(L, -2);
    return 0;
}

void cuts_finish(Front *front)
{
    Axis *v[MOSTCUTS];

    for (size_t i = 0; i < vec_len(front->cuts); i++) {
        front->loc = front->cuts[i].loc;
        front->fn = "fold";
        int n = axes_known(front, front->cuts[i].axes, v, MOSTCUTS);
        if (!n)
            err(front->loc, "fold.%s names no axis",
                meshnames[front->cuts[i].m]);
        for (int k = 0; k < n; k++)
            take_cut(front, front->cuts[i].m, v[k]);
    }
}
