/* file.h: files: inputs, outputs that get their name when they are complete,
 * folders. base.h includes it. */
#ifndef PLEAT_FILE_H
#define PLEAT_FILE_H

/* ---- file.c: inputs ------------------------------------------------------ */

/* Returns a descriptor for reading, or -1 and errno. FIFOs, devices and folders
 * are refused: reading one might wait forever. */
int file_open(const char *path);
FILE *file_stream(const char *path); /* a stream for fread; null and errno */
const char *file_why(void);          /* strerror(errno) of these functions */
/* Returns a whole file and a zero byte after it; null and errno. */
char *file_read(Arena *a, const char *path, size_t *n);
char *file_need(Arena *a, const char *path, size_t *n); /* or err() */

/* ---- file.c: names and folders ------------------------------------------- */

/* These return 0 once the change is synced, or -1 and errno. */
int file_move(const char *from, const char *to); /* replaces a file */
int file_sync(const char *path);                 /* syncs a file or folder */
int folder_exists(const char *path);
int folder_make(const char *path);             /* EEXIST: there is one */
int folders_make(const char *path);            /* and missing parent folders */
int file_put(int fd, const void *p, size_t n); /* writes all n bytes; no sync */
int file_flush(int fd);                        /* fsync */
int file_close(int fd, int bad); /* bad: returns -1 and keeps errno */
char *file_folder(Arena *a, const char *path); /* folder that contains path */
const char *file_name(const char *path);       /* part after the last '/' */
int file_stem(const char *path);               /* bytes before the extension */

/* ---- output.c: the only functions that create files ---------------------- */

typedef enum OutputKind { /* rows of outputs.def */
#define OUTPUT(kind, ...) OUT##kind,
#include "outputs.def"
} OutputKind;

/* Returns the first bytes of each output of a kind; NUL-terminated. */
const char *output_start(OutputKind kind);
/* Calls err() if an output of that kind would replace a file of another kind,
 * or one of the n files that the command reads. */
void output_need(const char *path, OutputKind kind, const char *const *input,
                 size_t n);

/* An output is written under a temporary name, `.NAME.pleat-tmp`, in the folder
 * of its final name. output_commit syncs it, renames it and syncs the folder. A
 * failure removes the temporary file; a kill leaves it to the next writer of
 * the name or to folder_sweep. An existing file keeps its mode, a link's target
 * is replaced, a device or a pipe is written in place. A second process that
 * writes the same name gets EBUSY. */
typedef struct Output {
    FILE *file; /* unsynced; output_commit reports its first error */
    char *path, *temp;
    int fd, error, in_place;
    unsigned mode; /* mode of the replaced file; 0: there is none */
} Output;

/* Returns null and errno on failure; EEXIST: a file of another kind exists. */
Output *output_open(Arena *a, const char *path, OutputKind kind);
/* Commits n outputs of one folder. The last is the index, without which the
 * others are not read: an old index is removed before the first rename, the new
 * one is renamed last. Returns 0, or -1 and errno. A failure, or a null output,
 * leaves all old files or none. */
int output_commit(Output **output, int n);
void output_drop(Output *output);
/* Writes an output of n bytes. Returns 0, or -1 and errno. */
int file_replace(const char *path, OutputKind kind, const void *p, size_t n);

/* A folder of outputs, written under a temporary name beside its final one. */
typedef struct OutputFolder {
    char *path, *temp;
    int fd; /* holds the lock */
} OutputFolder;

/* Creates the empty temporary folder; on failure temp is null, and errno is
 * set. */
OutputFolder folder_open(Arena *a, const char *path);
/* Returns 0, or -1 and errno. The final name must be free or an empty
 * folder. */
int folder_commit(OutputFolder *folder);
void folder_drop(OutputFolder *folder);
/* Returns the names in a folder but "." and "..", sorted; a vec, empty if there
 * is no such folder. *why: 0, or errno where names are missing. */
char **folder_names(Arena *a, const char *path, int *why);
/* Removes temporary files and folders of killed processes. */
void folder_sweep(const char *path);

/* Creates a file without a final name: in a temporary folder, a lock, a log.
 * flags: O_TRUNC, O_APPEND. Returns a descriptor, or -1 and errno. */
int file_create(const char *path, int flags);
/* Creates such a file with n bytes and syncs it. */
int file_write(const char *path, const void *p, size_t n);

#endif
