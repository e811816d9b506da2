/* readers.h: everything that reads files other people made, for fuzzers and
 * mutants. No reader may crash, hang or ask for absurd amounts of memory,
 * whatever its bytes are. */
#ifndef READERS_H
#define READERS_H

#include "../../frontend/frontend.h"

typedef struct FuzzReader {
    const char *name;
    const char *file;                   /* what the bytes are called, in dir */
    const char *seeds;                  /* patterns of good files, or .. */
    char *(*make)(Arena *a, size_t *n); /* .. a good file */
    /* What stands beside it in dir, before; or null. */
    void (*beside)(Arena *a, const char *dir);
    /* Bytes after mutation made whole again (hashes); or null. */
    size_t (*mend)(const char *dir, char *s, size_t n);
    /* Read all of it. Null, or why not; or err(). */
    const char *(*read)(Arena *a, const char *path);
    int strict; /* no other bytes than a seed's are taken */
    int cost;   /* of reading one: about 0.1 ms each */
    /* Of texts: what takes the place of their words in half of the mutants. */
    const char *words;
} FuzzReader;

extern const FuzzReader fuzz_readers[]; /* ends with name null */
const FuzzReader *fuzz_reader(const char *name);

/* All good files of a reader. A vec. */
typedef struct Seed {
    const char *name;
    char *s;
    size_t n;
} Seed;
Seed *fuzz_seeds(Arena *a, const FuzzReader *r);
void fuzz_write(const char *path, const char *s, size_t n);
/* s[0, n) as the reader's file in dir, read: null when it was taken, else the
 * reason. Not for two threads. */
const char *fuzz_read(Arena *a, const FuzzReader *r, const char *dir, char *s,
                      size_t n);

#endif
