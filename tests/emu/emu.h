/* emu.h: runs CUDA kernel texts on this machine. A text is compiled as C++ with
 * its inline PTX kept as text and executed as written, by the rules of the ISA
 * and not by what our kernels happen to do. Threads of a block (of a cluster)
 * are contexts that give way where they wait.
 *
 * What is asynchronous lands at any legal moment, and what is read too soon is
 * poison (all bits set: a NaN in every format): see emu_order. */
#ifndef PLEAT_EMU_H
#define PLEAT_EMU_H

#include <stddef.h>

/* Kernel text as NVRTC would get it -> an image (bytes of a shared object). 0:
 * fine; else *log says why. *log and *image are malloc'ed. */
int emu_compile(const char *src, const char *const *options, int noptions,
                char **log, void **image, size_t *size);

/* The text as the preprocessor leaves it, malloc'ed; null: it is refused. */
char *emu_flatten(const char *src);

typedef struct EmuModule EmuModule;
typedef struct EmuKernel EmuKernel;
EmuModule *emu_load(const void *image, size_t size); /* null: not ours */
void emu_unload(EmuModule *m);
EmuKernel *emu_kernel(EmuModule *m, const char *name); /* null: none */

/* Shared memory that it may take, its variables' with it; at first 227 KiB. */
void emu_allow(EmuKernel *k, unsigned bytes);

/* Runs it to its end. params: as cuLaunchKernel's, a pointer to each argument.
 * 0, or a CUDA error number with a line on stderr (illegal instruction or
 * address, deadlock, misaligned, wrong use). One at a time in a process; others
 * wait. */
int emu_launch(EmuKernel *k, const unsigned grid[3], const unsigned block[3],
               unsigned shared_bytes, void **params);

/* Which of the legal orders later launches take. 0: blocks and threads in turn,
 * what is asynchronous as late as may be; 1: backwards, copies at once; others:
 * by chance. At first EMU_SEED of the environment, or 0. */
void emu_order(unsigned seed);

/* When set, asked before PTX and copies touch n bytes of global memory; 0: they
 * are not the device's, the launch fails. */
extern int (*emu_check)(const void *p, size_t n);

#endif
