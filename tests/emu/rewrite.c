/* rewrite.c: a preprocessed kernel text as C++ that calls the emulation.
 *
 *     asm volatile("text" : "=r"(x) : "l"(p) : "memory")
 *         -> emu_asm(emu_sites + 7, emu_out<'r'>(x), emu_in<'l'>(p))
 *     __shared__ T a[4], b;
 *         -> places of the block's memory, by references
 *     extern __shared__ T room[];
 *         -> a pointer to what the launch gives
 *     __global__ void __launch_bounds__(384) k(...) {...}
 *         -> without those words, and a record emu_info_k behind it
 *
 * and a table of the asm statements at the end. What is not understood fails
 * with a line that says so. */
#include "machine.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Rewrite {
    const char *s; /* where we are */
    Out out, sites, *log;
    int nsite, depth, bad;
    /* the kernel whose body we are in: its name, the depth outside of it */
    char kernel[128];
    int in, threads, cluster[3];
} Rewrite;

/* ---- growing text -------------------------------------------------------- */

void out_add(Out *o, const char *s, size_t n)
{
    if (o->n + n + 1 > o->cap) {
        o->cap = (o->n + n + 1) * 2;
        o->s = realloc(o->s, o->cap);
    }
    memcpy(o->s + o->n, s, n);
    o->n += n;
    o->s[o->n] = 0;
}

void out_put(Out *o, const char *format, ...)
{
    char part[1024];
    va_list ap;

    va_start(ap, format);
    int n = vsnprintf(part, sizeof part, format, ap);
    va_end(ap);
    out_add(o, part, (size_t)n < sizeof part ? (size_t)n : sizeof part - 1);
}

static void refuse(Rewrite *r, const char *what)
{
    if (!r->bad)
        out_put(r->log, "error: %s near: %.60s\n", what, r->s);
    r->bad = 1;
}

/* ---- tokens -------------------------------------------------------------- */

static int is_word(int c)
{
    return isalnum(c) || c == '_';
}

/* Bytes of the token at s; a string or a number is one, :: is two. */
static size_t token(const char *s)
{
    size_t n = 1;

    if (is_word((unsigned char)*s)) {
        while (is_word((unsigned char)s[n]))
            n++;
        return n;
    }
    if (*s != '"' && *s != '\'')
        return *s != 0;
    while (s[n] && s[n] != *s)
        n += s[n] == '\\' && s[n + 1] ? 2 : 1;
    return n + (s[n] != 0);
}

static int at_word(const char *s, const char *word)
{
    size_t n = strlen(word);

    return !strncmp(s, word, n) && !is_word((unsigned char)s[n]);
}

static void skip_space(Rewrite *r)
{
    while (isspace((unsigned char)*r->s))
        r->s++;
}

static int accept(Rewrite *r, const char *what)
{
    size_t n = strlen(what);

    skip_space(r);
    if (is_word((unsigned char)*what) ? !at_word(r->s, what)
                                      : strncmp(r->s, what, n) != 0)
        return 0;
    r->s += n;
    return 1;
}

static void expect(Rewrite *r, const char *what)
{
    if (!accept(r, what))
        refuse(r, what);
}

/* From an opening bracket to behind the one that closes it. */
static const char *bracketed(Rewrite *r)
{
    const char *from = r->s;
    int depth = 0;

    do {
        depth += strchr("([{", *r->s) != NULL;
        depth -= strchr(")]}", *r->s) != NULL;
        r->s += token(r->s);
    } while (depth && *r->s);
    if (depth)
        refuse(r, "an open bracket");
    return from;
}

/* ---- asm ----------------------------------------------------------------- */

/* Neighbouring strings, as they stand, to a table. */
static void strings(Rewrite *r, Out *to)
{
    skip_space(r);
    if (*r->s != '"')
        refuse(r, "asm without its text");
    for (; *r->s == '"'; skip_space(r)) {
        size_t n = token(r->s);
        out_add(to, r->s, n);
        out_add(to, " ", 1);
        r->s += n;
    }
}

/* What neighbouring strings hold, which is short and without escapes. */
static void constraint(Rewrite *r, char to[8])
{
    size_t k = 0;

    for (skip_space(r); *r->s == '"'; skip_space(r)) {
        size_t n = token(r->s);
        for (size_t i = 1; i + 1 < n && k < 7; i++)
            to[k++] = r->s[i];
        r->s += n;
    }
    to[k] = 0;
}

/* "+f"(x), ..: which operands, to the call; their constraints to the table. */
static void operands(Rewrite *r, const char *how)
{
    do {
        char c[8];
        skip_space(r);
        if (*r->s != '"')
            return;
        constraint(r, c);
        int is_out = *c == '+' || *c == '=';
        char type = c[is_out];
        if (!type || c[is_out + 1] || !strchr("hrlfdn", type)) {
            refuse(r, "a constraint that PTX lacks");
            return;
        }
        out_put(&r->sites, "%c%c", is_out ? *c : '_', type);
        const char *from = bracketed(r);
        out_put(&r->out, ", emu_%s<'%c'>(", how, type);
        out_add(&r->out, from, (size_t)(r->s - from));
        out_add(&r->out, ")", 1);
    } while (accept(r, ","));
}

static void rewrite_asm(Rewrite *r)
{
    while (accept(r, "volatile") || accept(r, "__volatile__"))
        ;
    expect(r, "(");
    out_put(&r->out, "\nemu_asm(emu_sites + %d", r->nsite++);
    out_add(&r->sites, "    { ", 6);
    strings(r, &r->sites);
    out_add(&r->sites, ", \"", 3);
    if (accept(r, ":"))
        operands(r, "out");
    if (accept(r, ":"))
        operands(r, "in");
    if (accept(r, ":"))
        while (!r->bad && !accept(r, ")")) { /* what it spoils */
            skip_space(r);
            r->s += token(r->s);
        }
    else
        expect(r, ")");
    out_add(&r->sites, "\", 0 },\n", 8);
    out_add(&r->out, ")", 1);
}

/* ---- shared memory ------------------------------------------------------- */

static void copy_text(char *to, size_t cap, const char *s, size_t n)
{
    n = n < cap - 1 ? n : cap - 1;
    memcpy(to, s, n);
    to[n] = 0;
}

/* alignas(16), __align__(16), nothing. */
static void alignment(Rewrite *r, char *to, size_t cap)
{
    while (accept(r, "__align__") || accept(r, "alignas")) {
        skip_space(r);
        const char *from = bracketed(r);
        copy_text(to, cap, from, (size_t)(r->s - from));
    }
}

/* A type ends before the word that a bracket, a comma or the end follows. */
static void type_text(Rewrite *r, char *to, size_t cap)
{
    const char *from = r->s;
    int angle = 0;

    while (*r->s && *r->s != ';') {
        size_t n = token(r->s);
        const char *next = r->s + n;
        while (isspace((unsigned char)*next))
            next++;
        if (!angle && is_word((unsigned char)*r->s) && strchr("[,;", *next))
            break;
        angle += (*r->s == '<') - (*r->s == '>');
        r->s = next;
    }
    copy_text(to, cap, from, (size_t)(r->s - from));
}

static void shared_place(Rewrite *r, const char *type, const char *align)
{
    char name[128], dims[512] = "";
    size_t n = token(r->s);

    copy_text(name, sizeof name, r->s, n);
    r->s += n;
    skip_space(r);
    const char *from = r->s;
    while (*r->s == '[') {
        bracketed(r);
        skip_space(r);
    }
    copy_text(dims, sizeof dims, from, (size_t)(r->s - from));
    out_put(&r->out,
            "static EmuSlot emu_at_%s = { sizeof(%s %s), "
            "alignof(%s) > %s ? alignof(%s) : %s, 0, 0 }; ",
            name, type, dims, type, align, type, align);
    out_put(&r->out, "%s (&%s) %s = *(%s (*) %s)emu_api->shared(&emu_at_%s);",
            type, name, dims, type, dims, name);
}

static void rewrite_shared(Rewrite *r, int is_extern)
{
    char align[64] = "1", type[256];

    out_put(&r->out, "\n");
    alignment(r, align, sizeof align);
    skip_space(r);
    type_text(r, type, sizeof type);
    if (is_extern) {
        size_t n = token(r->s);
        out_put(&r->out, "%s *const %.*s = (%s *)emu_api->dynamic();", type,
                (int)n, r->s, type);
        r->s += n;
        expect(r, "[");
        expect(r, "]");
        expect(r, ";");
        return;
    }
    do {
        skip_space(r);
        shared_place(r, type, align);
    } while (!r->bad && accept(r, ","));
    expect(r, ";");
}

/* ---- kernels ------------------------------------------------------------- */

static void numbers(Rewrite *r, int *to, int most)
{
    expect(r, "(");
    for (int i = 0; !r->bad; i++) {
        skip_space(r);
        char *end;
        long v = strtol(r->s, &end, 0);
        if (end == r->s)
            refuse(r, "no number");
        if (i < most)
            to[i] = (int)v;
        r->s = end;
        if (accept(r, ")"))
            return;
        expect(r, ",");
    }
}

/* Words before a kernel's parameters; its name is what they follow. */
static void rewrite_global(Rewrite *r)
{
    out_put(&r->out, "\n");
    r->threads = 0;
    r->cluster[0] = r->cluster[1] = r->cluster[2] = 1;
    while (*r->s && !r->bad) {
        size_t n = token(r->s);
        if (accept(r, "__launch_bounds__")) {
            numbers(r, &r->threads, 1);
            continue;
        }
        if (accept(r, "__cluster_dims__")) {
            numbers(r, r->cluster, 3);
            continue;
        }
        skip_space(r);
        n = token(r->s);
        if (*r->s == '(')
            break;
        if (is_word((unsigned char)*r->s))
            copy_text(r->kernel, sizeof r->kernel, r->s, n);
        out_add(&r->out, r->s, n);
        out_add(&r->out, " ", 1);
        r->s += n;
    }
    const char *from = bracketed(r);
    out_add(&r->out, from, (size_t)(r->s - from));
    skip_space(r);
    r->in = *r->s == '{' ? r->depth + 1 : 0;
}

static void close_kernel(Rewrite *r)
{
    out_put(&r->out,
            "\nextern \"C\" { EmuKernelInfo emu_info_%s = { emu_call<%s>, "
            "emu_count(%s), %d, { %d, %d, %d } }; }\n",
            r->kernel, r->kernel, r->kernel, r->threads, r->cluster[0],
            r->cluster[1], r->cluster[2]);
    r->in = 0;
}

/* ---- all of it ----------------------------------------------------------- */

static void one(Rewrite *r)
{
    const char *at = r->s;

    if (!strncmp(at, "#pragma unroll", 14)) { /* clang++ would read it */
        r->s += strcspn(at, "\n");
        return;
    }
    if (accept(r, "asm") || accept(r, "__asm__")) {
        rewrite_asm(r);
        return;
    }
    if (accept(r, "__global__")) {
        rewrite_global(r);
        return;
    }
    int is_extern = accept(r, "extern");
    if (accept(r, "__shared__")) {
        rewrite_shared(r, is_extern);
        return;
    }
    r->s = at;
    r->depth += (*at == '{') - (*at == '}');
    size_t n = token(at);
    out_add(&r->out, at, n);
    r->s += n;
    if (*at == '}' && r->in == r->depth + 1)
        close_kernel(r);
}

char *emu_rewrite(const char *text, Out *log)
{
    Rewrite r = { .s = text, .log = log };

    while (*r.s && !r.bad)
        one(&r);
    out_put(&r.out, "\nextern \"C\" { EmuSite emu_sites[] = {\n");
    out_add(&r.out, r.sites.s ? r.sites.s : "", r.sites.n);
    out_put(&r.out, "    { 0, 0, 0 } }; }\n");
    free(r.sites.s);
    if (!r.bad)
        return r.out.s;
    free(r.out.s);
    return NULL;
}
