/* special.c: which tokens stand for the beginning and the end of a text, and
 * for padding: what tokenizer_config.json beside a tokenizer.json says. */
#include "tokenizer.h"

/* Its text; null: the file does not say. */
static const char *said(const Tokenizer *tokenizer, const char *key,
                        const Loc *loc)
{
    json_error_t e;
    const char *slash = strrchr(tokenizer->path, '/');
    char *path =
        strf(forever, "%.*stokenizer_config.json",
             slash ? (int)(slash - tokenizer->path + 1) : 0, tokenizer->path);
    json_t *config = json_load_file(path, 0, &e);
    if (!config && !access(path, F_OK))
        err(loc, "%s: %s (data.eod=TOKEN does without it)", path, e.text);
    const json_t *v = json_object_get(config, key);
    const char *s = json_string_value(
        json_is_object(v) ? json_object_get(v, "content") : v);

    s = s ? intern(s) : NULL;
    json_decref(config);
    return s;
}

int32_t tokenizer_special(const Tokenizer *tokenizer, const char *key,
                          const Loc *loc)
{
    const char *s = tokenizer->bytes ? NULL : said(tokenizer, key, loc);

    return s ? tokenizer_id(tokenizer, s) : -1;
}

int32_t tokenizer_end(const Tokenizer *tokenizer, const char *name,
                      const Loc *loc)
{
    /* clang-format off */
    static const char *const usual[] = {
        "<|endoftext|>",
        "<|end_of_text|>",
        "</s>",
        "<eos>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    };
    /* clang-format on */
    int32_t id = name ? tokenizer_id(tokenizer, name)
                      : tokenizer_special(tokenizer, "eos_token", loc);

    if (name && id < 0)
        err(loc, "data.eod: %s has no token '%s'", tokenizer->path, name);
    if (tokenizer->bytes && !name)
        return 0; /* bytes: as jsonl.c */
    for (int i = 0; id < 0 && i < countof(usual); i++)
        id = tokenizer_id(tokenizer, usual[i]);
    return id;
}
