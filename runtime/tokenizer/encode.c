/* encode.c: encoders, and the steps that encode a text. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tokenizer.h"

/* ---- encoders ------------------------------------------------------------ */

Encoder *encoder_new(const Tokenizer *tokenizer)
{
    Encoder *e = enlarge(NULL, sizeof *e);
    size_t cuts = vec_len(tokenizer->cut);

    *e = (Encoder){ .t = tokenizer,
                    .cut = enlarge(NULL, (cuts + 1) * sizeof *e->cut) };
    memset(e->cut, 0, (cuts + 1) * sizeof *e->cut);
    return e;
}

void encoder_free(Encoder *encoder)
{
    pcre2_match_data_free(encoder->match);
    pcre2_match_context_free(encoder->context);
    pcre2_jit_stack_free(encoder->stack);
    for (size_t i = 0; i < vec_len(encoder->t->cut); i++)
        free(encoder->cut[i].s);
    free(encoder->cut);
    free(encoder->normal[0].s);
    free(encoder->normal[1].s);
    free(encoder->id);
    free(encoder->memo);
    free(encoder->symbol);
    free(encoder->prev);
    free(encoder->next);
    free(encoder->heap);
    free(encoder);
}

static void put_template(Encoder *encoder, const int32_t *v)
{
    for (size_t i = 0; i < vec_len(v); i++)
        encode_id(encoder, v[i]);
}

void decode(const Tokenizer *tokenizer, const int32_t *id, int64_t n, Text *out)
{
    int strip = tokenizer->strip;

    for (int64_t i = 0; i < n; i++) {
        size_t len;
        const char *s = tokenizer_text(tokenizer, id[i], &len);
        int skip = s && strip && len && *s == ' ';
        if (s)
            putn(out, s + skip, len - (size_t)skip);
        strip = strip && !len;
    }
}

const char *encode(Encoder *encoder, const char *s, size_t n, int flags)
{
    encoder->n = 0;
    encoder->why = NULL;
    encoder->first = 1;
    if (flags & ENCtemplate)
        put_template(encoder, encoder->t->before);
    for (size_t i = 0; encoder->t->bytes && i < n; i++)
        encode_id(encoder, (unsigned char)s[i]);
    if (!encoder->t->bytes)
        added_split(encoder, 0, s, n);
    if (flags & ENCtemplate)
        put_template(encoder, encoder->t->after);
    return encoder->why;
}
