/* rename.h: a model's Lua text under other names, and its plan without any. */
#ifndef RENAME_H
#define RENAME_H

#include "../../ir/graph/graph.h"

typedef enum NameKind { NAMEaxis, NAMEscope, NAMElocal, NNAMEKIND } NameKind;
/* What stands for an (interned) name. */
typedef const char *NewName(void *ctx, NameKind kind, const char *name);

/* The text with its axes, scopes and locals renamed, the same lines; without
 * its hf{} tables, which speak of all of them. */
char *lua_rename(Arena *a, const char *text, NewName *name, void *ctx);

/* ---- names.c ------------------------------------------------------------- */

/* Words for names. Of a text that is to be compiled none should be in it. */
typedef struct Names {
    const char *const *word;     /* ends with null; null: random ones */
    const char *text;            /* whose words are not taken; or null */
    const char **was[NNAMEKIND]; /* vecs; the k-th gets the k-th word */
} Names;

/* The compiler's own words and those that models use. */
extern const char *const usual_words[];
NewName new_word;  /* ctx: Names */
NewName same_word; /* the name itself */

char *plan_without_names(Plan *p); /* its text; changes p */
/* Null, or the first line in which two plans' texts differ, of both. */
const char *first_difference(const char *x, const char *y);

#endif
