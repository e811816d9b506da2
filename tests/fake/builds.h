/* builds.h: kernel texts that become kernels of the emulator. */
#ifndef PLEAT_FAKE_BUILDS_H
#define PLEAT_FAKE_BUILDS_H

#include "../emu/emu.h"

typedef struct Source Source;

/* Of this text, which it keeps; the same text is the same source. */
Source *source_of(const char *text);
/* Compiled now if it is not yet; null: it cannot be, and a line says why. */
EmuModule *source_built(Source *s);

#endif
