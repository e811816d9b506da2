/* datatool.c: `data tokenize` converts texts to tokens; `data inspect`
 * describes a file of tokens or texts and prints its beginning. */
#include "../../ir/settings/keys.h"
#include "data.h"

enum { SHOWN = 16, SAMPLE = 400 }; /* tokens and bytes of a sample */

/* ---- tokenize ------------------------------------------------------------ */

/* Returns text_args with the byte tokenizer instead of none. */
static TextArgs tokenizer_args(const Opts *opts)
{
    TextArgs a = text_args(opts);

    if (!a.t) {
        a.t = tokenizer_bytes();
        a.eod = 0;
    }
    return a;
}

static int do_tokenize(int n, char **word, const Opts *opts, const char *out)
{
    const char *const *path = (const char *const *)word;
    size_t len = out ? strlen(out) : 0;
    double start = monotonic();

    if (!len || n < 1)
        err(NULL, "data tokenize: which files, and -o where to? (FILE -o "
                  "PREFIX tokenizer=tokenizer.json)");
    if (len > 4 && (ends_with(out, ".bin") || ends_with(out, ".idx")))
        out = strf(forever, "%.*s", (int)len - 4, out);
    output_need(strf(forever, "%s.bin", out), OUTtokens, path, (size_t)n);
    output_need(strf(forever, "%s.idx", out), OUTindex, path, (size_t)n);
    TextArgs a = tokenizer_args(opts);
    TextCount c = tokenize(&a, path, n, opts_data_format(opts), out);
    double s = monotonic() - start;
    size_t k = 0;
    const char *end = a.eod >= 0 ? tokenizer_text(a.t, a.eod, &k) : NULL;
    if (a.eod == 0 && a.t->bytes)
        end = "a zero byte", k = strlen(end);
    printf("%s.bin, %s.idx: %ld documents (%ld empty), %ld tokens (%s), "
           "%.*s after each document\n",
           out, out, c.docs, c.empty, c.tokens,
           a.t->vocab < 65500 ? "u16" : "i32", end ? (int)k : 7,
           end ? end : "nothing");
    printf("%.1f MB of text in %.1f s, %.1f MB/s; %.2f bytes a token\n",
           (double)c.bytes * 1e-6, s, (double)c.bytes * 1e-6 / s,
           c.tokens ? (double)c.bytes / (double)c.tokens : 0);
    if (!c.tokens)
        warn(NULL, "%s.bin has no tokens: no run can read it", out);
    return 0;
}

/* ---- inspect ------------------------------------------------------------- */

static const char *const elems[NELEM] = { "u8",  "i8",  "u16", "i16", "i32",
                                          "u32", "i64", "f32", "f64" };

/* Prints text on one line, with escapes such as \n and \x1b, without an
 * incomplete last character. */
static void print_sample(const char *s, size_t n)
{
    size_t k = n < SAMPLE ? n : SAMPLE;
    int64_t bad = utf8_bad(s, k);

    if (bad >= 0 && (size_t)bad + 4 > k)
        k = (size_t)bad;
    putchar('"');
    for (size_t i = 0; i < k; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '\n' || c == '\t' || c == '\r')
            printf("\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
        else if (c < ' ' || c == 127)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
    printf("\"%s\n", k < n ? " ..." : "");
}

/* Returns the number of documents of a Megatron index, including empty ones
 * (format: indexed.c). */
static int64_t documents(const Tokens *tokens)
{
    int64_t bounds;

    memcpy(&bounds, tokens->idx + 26, sizeof bounds);
    return bounds - 1;
}

static void print_docs(const Tokens *tokens)
{
    int64_t least = INT64_MAX, most = 0, start;

    for (int64_t i = 0; i < tokens->docs; i++) {
        int64_t n = tokens_doc(tokens, i, &start);
        if (n < 0)
            err(NULL, "%s: document %ld lies outside the file", tokens->path,
                i);
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    if (tokens->docs > 1)
        printf("  documents  %ld, of %ld to %ld tokens\n", tokens->docs, least,
               most);
    if (tokens->idx && documents(tokens) != tokens->docs)
        printf("  index      %ld sequences of %ld documents\n", tokens->docs,
               documents(tokens));
}

static void print_range(const Tokens *tokens)
{
    double least = 0, most = 0;

    for (int64_t i = 0; i < tokens->n; i++) {
        double v = tokens_at(tokens, i);
        least = !i || v < least ? v : least;
        most = !i || v > most ? v : most;
    }
    printf("  tokens     %ld (%s), from %g to %.17g\n", tokens->n,
           elems[tokens->e], least, most);
    if (tokens->rows)
        printf("  rows       %ld of %ld\n", tokens->rows, tokens->cols);
}

static void print_first(const Tokens *tokens, const Tokenizer *tokenizer)
{
    int64_t start = 0, n = tokens->docs ? tokens_doc(tokens, 0, &start) : 0;
    int32_t id[SAMPLE];
    Text s = { .arena = forever };

    n = n < SAMPLE ? n : SAMPLE;
    put(&s, "%s", "");
    printf("  first     ");
    for (int64_t i = 0; i < n; i++) {
        double v = tokens_at(tokens, start + i);
        id[i] = v >= 0 && v < INT32_MAX ? (int32_t)v : -1;
        if (i < SHOWN)
            printf(" %g", v);
    }
    printf("%s\n", n > SHOWN ? " ..." : "");
    if (tokenizer)
        decode(tokenizer, id, n, &s);
    else if (tokens->e == EU8)
        putn(&s, (const char *)tokens->data + start, (size_t)n);
    if (s.len) {
        printf("  text       ");
        print_sample(s.s, s.len);
    }
}

static int do_inspect(int n, char **path, const Opts *opts, const char *out)
{
    const Tokenizer *tokenizer = text_args(opts).t;
    Tokens tokens;

    (void)out;
    for (int i = 0; i < n; i++) {
        const char *name = path[i], *bin = strf(forever, "%s.bin", name);
        if (access(name, F_OK) && !access(bin, F_OK))
            name = bin; /* the file that data.train needs */
        const char *why = tokens_open(forever, name, opts_data_format(opts),
                                      tokenizer ? tokenizer->vocab : 0,
                                      opts_str(opts, "data.field"), &tokens);
        if (why)
            err(NULL, "%s %s", name, why);
        printf("%s: %s%s%s, %ld bytes\n", name,
               key_word_text("data.format", (int)tokens.format),
               tokens.packed ? " inside " : "",
               tokens.packed ? tokens.packed : "", tokens.size);
        print_range(&tokens);
        print_docs(&tokens);
        print_first(&tokens, format_is_text(tokens.format) ? NULL : tokenizer);
        tokens_close(&tokens);
    }
    return n < 1;
}

/* ---- commands ------------------------------------------------------------ */

static const struct {
    /* clang-format off */
    const char *name, *args, *doc;
    int (*f)(int n, char **path, const Opts *o, const char *out);
} commands[] = {
    { "tokenize", "FILE ... -o PREFIX tokenizer=tokenizer.json",
      "tokens of texts as Megatron's PREFIX.bin and PREFIX.idx", do_tokenize },
    { "inspect", "FILE ... [tokenizer=tokenizer.json]",
      "what a file holds: form, documents, tokens, a sample", do_inspect },
    { "blend", "0.7 PATH 0.3 PATH [axes.seq=4096 train.steps=1000 order=...] "
      "[-o PREFIX]",
      "what a blend will give; -o writes its order as Megatron's .npy",
      blend_command },
};
/* clang-format on */

int data_command(int n, char **word, const Opts *opts, const char *out)
{
    Text t = { .arena = forever };
    int known = 0;

    if (out && !*file_name(out))
        err(NULL, "data: -o '%s' names no files; -o %stokens would", out, out);
    for (int i = 0; i < countof(commands) && n > 0; i++)
        if (!strcmp(commands[i].name, word[0]) &&
            (n > 1 || commands[i].f == blend_command))
            return commands[i].f(n - 1, word + 1, opts, out);
    for (int i = 0; i < countof(commands); i++) {
        known |= n > 0 && !strcmp(commands[i].name, word[0]);
        put(&t, "\ndata %s %s\n    %s", commands[i].name, commands[i].args,
            commands[i].doc);
    }
    if (!n)
        err_usage("data: which command?%s", t.s);
    err_usage("data %s: %s%s", word[0],
              known ? "which files?" : "there is no such command", t.s);
}
