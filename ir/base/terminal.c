/* terminal.c: text for terminals. Control characters of names, sources and
 * generated text are escaped as \x1b, so a terminal executes none. */
#include <errno.h>
#include <unistd.h>

#include "base.h"

/* Is c a control character of ASCII except newline and tab, or the second byte
 * of one of U+0080 to U+009F? before: the preceding byte. */
static int controls(unsigned char c, unsigned char before)
{
    return (c < 32 && c != '\n' && c != '\t') || c == 127 ||
           (before == 0xc2 && c >= 0x80 && c < 0xa0);
}

void put_visible(Text *out, const char *s, size_t n, unsigned char *before)
{
    size_t from = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (controls(c, *before)) {
            putn(out, s + from, i - from);
            put(out, "\\x%02x", c);
            from = i + 1;
        }
        *before = c;
    }
    putn(out, s + from, n - from);
}

int visible_put(int fd, const char *s, size_t n)
{
    static unsigned char before;
    Text out = { .arena = arena_new() };

    put_visible(&out, s, n, &before);
    int bad = file_put(fd, out.s, out.len), why = errno;
    arena_free(out.arena);
    errno = why;
    return bad;
}

static ssize_t stream_put(void *ctx, const char *s, size_t n)
{
    (void)ctx;
    return visible_put(STDOUT_FILENO, s, n) ? 0 : (ssize_t)n;
}

void stdout_visible(void)
{
    FILE *f =
        fopencookie(NULL, "w", (cookie_io_functions_t){ .write = stream_put });

    if (!f)
        return;
    setvbuf(f, NULL, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
    fflush(stdout);
    stdout = f;
}
