/* questions.c: multiple-choice questions, a JSON object a line in HellaSwag's
 * format: "ctx", "endings", and the right one's number, "label". If
 * "activity_label", "ctx_a" and "ctx_b" exist too, the text is composed from
 * them as by lm-evaluation-harness (lm_eval/tasks/hellaswag/utils.py). */
#include <ctype.h>
#include <utf8proc.h>

#include "../../ir/settings/keys.h"
#include "data.h"

/* ---- Python's string functions ------------------------------------------- */

static int32_t next_char(const char *s, size_t n, size_t *at)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t len = utf8proc_iterate((const uint8_t *)s + *at,
                                            (utf8proc_ssize_t)(n - *at), &c);

    *at += len > 0 ? (size_t)len : 1;
    return c;
}

/* str.isspace() */
static int is_space(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);

    return (c >= 9 && c <= 13) || (c >= 28 && c <= 31) || c == 133 ||
           k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL ||
           k == UTF8PROC_CATEGORY_ZP;
}

size_t text_stripped(const char *s, size_t *first)
{
    size_t n = strlen(s), end = 0;

    *first = n;
    for (size_t at = 0; at < n;) {
        size_t here = at;
        if (is_space(next_char(s, n, &at)))
            continue;
        *first = here < *first ? here : *first;
        end = at;
    }
    return end;
}

/* str.strip(), " [title]" to ". ", re.sub("\\[.*?\\]", ""), "  " to " " */
static const char *cleaned(Arena *a, const char *text)
{
    static const char title[] = " [title]";
    size_t first, end = text_stripped(text, &first);
    const char *s =
        strf(a, "%.*s", end > first ? (int)(end - first) : 0, text + first);
    Text marked = { .arena = a }, bare = { .arena = a }, out = { .arena = a };

    for (; *s; s++) {
        int is = !strncmp(s, title, sizeof title - 1);
        putn(&marked, is ? ". " : s, is ? 2 : 1);
        s += is ? sizeof title - 2 : 0;
    }
    for (s = marked.s ? marked.s : ""; *s; s++) {
        size_t n = *s == '[' ? strcspn(s, "]\n") : 0;
        if (n && s[n] == ']')
            s += n;
        else
            putn(&bare, s, 1);
    }
    for (s = bare.s ? bare.s : ""; *s; s++) {
        putn(&out, s, 1);
        s += s[0] == ' ' && s[1] == ' ';
    }
    return out.s ? out.s : "";
}

/* str.capitalize(), except for characters whose other case is several
 * characters. */
static const char *capitalized(Arena *a, const char *s)
{
    Text out = { .arena = a };
    size_t n = strlen(s);

    for (size_t at = 0; at < n;) {
        uint8_t code[4];
        int begins = !at;
        int32_t c = next_char(s, n, &at);
        c = begins ? utf8proc_totitle(c) : utf8proc_tolower(c);
        putn(&out, (const char *)code, (size_t)utf8proc_encode_char(c, code));
    }
    return out.s ? out.s : "";
}

/* ---- one line ------------------------------------------------------------ */

/* Returns a number, or the number in a text; -1: neither. */
static int64_t label_of(Arena *a, JsonValue line)
{
    JsonValue v = jv_get(line, "label");
    const char *s = jv_text(a, v, NULL);
    int64_t x;

    if (jv_int(v, &x))
        return x;
    return s && isdigit((unsigned char)*s) && !s[1] ? *s - '0' : -1;
}

static const char *context_of(Arena *a, JsonValue line, int *clean)
{
    const char *label = jv_text(a, jv_get(line, "activity_label"), NULL);
    const char *first = jv_text(a, jv_get(line, "ctx_a"), NULL);
    const char *second = jv_text(a, jv_get(line, "ctx_b"), NULL);

    *clean = label && first && second;
    if (!*clean)
        return jv_text(a, jv_get(line, "ctx"), NULL);
    return cleaned(a,
                   strf(a, "%s: %s %s", label, first, capitalized(a, second)));
}

/* Returns null, or the error of the line. */
static const char *take_question(Arena *a, JsonValue line, Question *question)
{
    JsonValue endings = jv_get(line, "endings"), key, v;
    int clean = 0;

    *question = (Question){ .context = context_of(a, line, &clean),
                            .right = label_of(a, line) };
    if (!question->context)
        return "has no \"ctx\" that is a text";
    for (size_t at = 0; jv_next(endings, &at, &key, &v);) {
        const char *s = jv_text(a, v, NULL);
        if (!s)
            return "has an ending that is no text";
        vec_push(a, question->ending, clean ? cleaned(a, s) : s);
    }
    if (vec_len(question->ending) < 2)
        return "has no \"endings\", two or more";
    if (question->right < 0 ||
        question->right >= (int64_t)vec_len(question->ending))
        return "has no \"label\" that is the number of an ending, from 0";
    return NULL;
}

Question *questions_read(Arena *a, const char *path)
{
    TextRows rows;
    Question *all = NULL, q;
    const char *why = rows_open(&rows, path, FORMATjsonl, NULL), *row;
    size_t n;

    while (!why && (row = rows_next(&rows, &n))) {
        JsonError e;
        JsonValue v;
        why = jv_open(row, n, &v, &e) ? e.why : take_question(a, v, &q);
        if (why)
            err(&(Loc){ path, (int)rows.number, NULL }, "%s", why);
        vec_push(a, all, q);
    }
    const char *broken = rows_close(&rows);
    why = why ? why : broken;
    if (why)
        err(NULL, "%s %s", path, why);
    arena_free(rows.mem);
    if (!vec_len(all))
        err(NULL, "%s has no questions", path);
    return all;
}
