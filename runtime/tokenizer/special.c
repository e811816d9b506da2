/* special.c: beginning-of-text, end-of-text and padding tokens, named by
 * tokenizer_config.json beside a tokenizer.json. */
#include "tokenizer.h"

/* Returns the text of a token: a string, or the "content" of an object; null:
 * the file does not name it. */
static const char *named(const Tokenizer *tokenizer, const char *key,
                         const Loc *loc)
{
    const char *path = strf(forever, "%s/tokenizer_config.json",
                            file_folder(forever, tokenizer->path));
    JsonError e;
    JsonValue config;

    if (jv_load(forever, path, &config, &e))
        err(loc, "%s:%ld: %s (data.eod=TOKEN does without it)", path, e.line,
            e.why);
    JsonValue v = jv_get(config, key);
    if (jv_kind(v) == JSONobject)
        v = jv_get(v, "content");
    return jv_text(forever, v, NULL);
}

int32_t tokenizer_special(const Tokenizer *tokenizer, const char *key,
                          const Loc *loc)
{
    const char *s = tokenizer->bytes ? NULL : named(tokenizer, key, loc);

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
        return 0; /* byte tokens: the same end as in jsonl.c */
    for (int i = 0; id < 0 && i < countof(usual); i++)
        id = tokenizer_id(tokenizer, usual[i]);
    return id;
}
