/* file.h: whole files: inputs, outputs that appear under their name when they
 * are complete, folders. base.h includes it. */
#ifndef PLEAT_FILE_H
#define PLEAT_FILE_H

/* ---- file.c: inputs ------------------------------------------------------ */

/* A descriptor for reading, or -1 and errno. A path that is no regular file (a
 * FIFO, a device, a folder) is refused before it is read: reading might wait
 * for ever. */
int file_open(const char *path);
FILE *file_stream(const char *path); /* the same for fread; or null */
const char *file_why(void);          /* strerror(errno) of these functions */
/* A whole file, a zero behind it. Null: errno says why. */
char *file_read(Arena *a, const char *path, size_t *n);
char *file_need(Arena *a, const char *path, size_t *n); /* or err() */

/* ---- file.c: names and folders ------------------------------------------- */

/* These return 0, and the result lasts if the machine stops now; or -1, and
 * errno. */
int file_move(const char *from, const char *to); /* replaces a file */
int file_sync(const char *path);                 /* of a file or folder */
int folder_exists(const char *path);
int folder_make(const char *path);             /* EEXIST: there is one */
int folders_make(const char *path);            /* with those above it */
int file_put(int fd, const void *p, size_t n); /* all of them; no sync */
int file_flush(int fd);                        /* fsync */
int file_close(int fd, int bad); /* -1, and errno as it was, if it is bad */
char *file_folder(Arena *a, const char *path); /* that has path's name */
const char *file_name(const char *path);       /* behind the last '/' */
int file_stem(const char *path);               /* bytes before its ending */

/* ---- output.c: the only functions that create files ---------------------- */

typedef enum OutputKind { /* rows of outputs.def */
#define OUTPUT(kind, ...) OUT##kind,
#include "outputs.def"
} OutputKind;

/* The first bytes of each output of a kind; NUL-terminated. */
const char *output_start(OutputKind kind);
/* err() where an output of that kind would replace a file of another kind, or
 * one of the n files that the command reads. */
void output_need(const char *path, OutputKind kind, const char *const *input,
                 size_t n);

/* An output is written under a temporary name, `.NAME.pleat-tmp`, in the folder
 * of its final name. output_commit syncs it, renames it and syncs the folder. A
 * failure removes the temporary file; a kill leaves it to the next writer of
 * the name or to folder_sweep. An existing file keeps its mode, a link's target
 * is replaced, a device or a pipe is written in place. A second process that
 * writes the same name gets EBUSY. */
typedef struct Output {
    FILE *file; /* unsynced; its first error is kept for output_commit */
    char *path, *temp;
    int fd, error, in_place;
    unsigned mode; /* of the file that is replaced; 0: there is none */
} Output;

/* Null: errno says why, EEXIST: a file of another kind is there. */
Output *output_open(Arena *a, const char *path, OutputKind kind);
/* 0, or -1 and errno. Commits n outputs of one folder of which the last is the
 * index, without which the others are not read: an old index is removed before
 * a new file takes its name, the new one is renamed last. A failure, or an
 * output that is null, leaves all of the old files, or none. */
int output_commit(Output **output, int n);
void output_drop(Output *output);
/* An output of n bytes; 0, or -1 and errno. */
int file_replace(const char *path, OutputKind kind, const void *p, size_t n);

/* A folder of outputs, written under a temporary name beside its final one. */
typedef struct OutputFolder {
    char *path, *temp;
    int fd; /* holds the lock */
} OutputFolder;

/* The temporary folder, empty; temp is null where errno says why. */
OutputFolder folder_open(Arena *a, const char *path);
/* 0, or -1 and errno. The final name is free or an empty folder. */
int folder_commit(OutputFolder *folder);
void folder_drop(OutputFolder *folder);
/* Remove temporary files and folders that killed processes left there. */
void folder_sweep(const char *path);

/* A file that has no final name of its own: in a temporary folder, a lock, a
 * log. flags: O_TRUNC, O_APPEND. A descriptor, or -1 and errno. */
int file_create(const char *path, int flags);
/* The same with n bytes, synced. */
int file_write(const char *path, const void *p, size_t n);

#endif
