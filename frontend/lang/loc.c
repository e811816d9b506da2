/* loc.c: Lua's stack -> Loc. Equal locations share one object. */
#include "../frontend.h"

enum { DEEPEST = 64, CALLERS = 8 };

static const Loc *kept(Front *front, const char *file, int line, const Loc *up)
{
    uint64_t h = mix64(mix64(mix64(0, KEYP(file)), (uint64_t)line), KEYP(up));

    for (;; h++) {
        void **slot = table_at(front->locs, h);
        Loc *l = *slot;
        if (!l) {
            *slot = l = alloc(forever, sizeof *l);
            *l = (Loc){ file, line, up };
        }
        if (l->file == file && l->line == line && l->up == up)
            return l;
    }
}

const Loc *here(lua_State *L)
{
    Front *front = front_of(L);
    const Loc *loc = NULL;
    lua_Debug ar;
    struct {
        const char *file;
        int line;
    } at[CALLERS];
    int n = 0;

    for (int level = 0; level < DEEPEST && n < CALLERS; level++) {
        if (!lua_getstack(L, level, &ar))
            break;
        lua_getinfo(L, "Sl", &ar);
        if (ar.source[0] != '@' || ar.currentline < 1)
            continue;
        at[n].file = intern(ar.source + 1);
        at[n++].line = ar.currentline;
    }
    while (n-- > 0)
        loc = kept(front, at[n].file, at[n].line, loc);
    return loc ? loc : kept(front, front->file, 0, NULL);
}
