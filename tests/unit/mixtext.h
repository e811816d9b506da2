/* mixtext.h: made-up text for tokenizers, the same everywhere and always. */
#ifndef MIXTEXT_H
#define MIXTEXT_H

#include <stddef.h>

/* About `bytes` of prose in twenty scripts, program text, numbers, marks out of
 * order, rare spaces, long runs, and characters of all planes: documents with
 * 0x1e between them, which is in none. malloc'd; *len without the final NUL. */
char *mix_text(size_t bytes, size_t *len);

#endif
