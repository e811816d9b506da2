/* cuts.c: sharding that the model states. Otherwise roles decide
 * (passes/sharding/sharding.c). An axis names its mesh axis:
 *
 *     axes { inner={ 1408, shard="tp" } }     before all that have a role
 *
 * or a mesh axis names its axes, in order of preference, with or without its
 * size:
 *
 *     fold { tp="inner hidden" }   fold { tp={ 2, "inner hidden" } }
 *
 * An axis whose size is not divisible is skipped. */
#include "../frontend.h"

enum { MOSTCUTS = 32 };

/* The mesh axes whose sharded axis roles choose. */
static const MeshAxis open_to[] = { Mtp, Mcp, Metp };
/* NMESH: not one of open_to. */
static MeshAxis mesh_axis(const char *s, size_t n)
{
    for (int i = 0; i < countof(open_to); i++) {
        const char *name = meshnames[open_to[i]];
        if (strlen(name) == n && !memcmp(name, s, n))
            return open_to[i];
    }
    return NMESH;
}

/* Appends a to the axes that m shards. */
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

/* Stores the string at the top of the stack until all axes are declared. */
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
