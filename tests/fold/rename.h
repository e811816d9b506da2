/* rename.h: a model's Lua text under other names. */
#ifndef RENAME_H
#define RENAME_H

#include "../../ir/plan.h"

typedef enum NameKind { NAMEaxis, NAMEscope, NAMElocal, NNAMEKIND } NameKind;
/* What stands for an (interned) name. */
typedef const char *NewName(void *ctx, NameKind kind, const char *name);

/* The text with its axes, scopes and locals renamed, the same lines; without
 * its hf{} tables, which speak of all of them. */
char *lua_rename(Arena *a, const char *text, NewName *name, void *ctx);

#endif
