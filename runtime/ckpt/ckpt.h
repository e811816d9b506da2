/* ckpt.h: tensors in files: safetensors, checkpoints of a run, Hugging Face
 * folders. */
#ifndef PLEAT_CKPT_H
#define PLEAT_CKPT_H

#include "../exec/exec.h"
#include "../tokenizer/tokenizer.h"

/* Types of elements in files; each has its row of filetypes.def. */
typedef enum FileType {
    FTnone,
#define FILETYPE(name, bytes, kind, dtype) FT##name,
#include "filetypes.def"
    FTcount
} FileType;

/* A source of elements for one tensor: element (i0, i1, ...) of the tensor is
 * at base + sum of i[d] * stride[d]. Dims with fix[d] >= 0 are loaded only
 * there. */
typedef struct View {
    const uint8_t *data;
    FileType dt;
    int64_t base, stride[MAXD], fix[MAXD];
    /* Blocks of 128 x 128 elements of a matrix `cols` wide have a scale each.*/
    const float *scale;
    int64_t cols;
} View;
double view_get(const View *view, int64_t at);  /* the source's element */
float view_scale(const View *view, int64_t at); /* its scale; 1: it has none */
/* How many elements from `at` on, `step` apart, lie in the same block. */
int64_t view_same(const View *view, int64_t at, int64_t step);

/* ---- safetensors.c ------------------------------------------------------- */

typedef struct StTensor {
    const char *name;
    FileType dt;
    int bytes; /* of an element */
    int nd;
    int64_t n[MAXD];
    int64_t begin, end; /* in the data part */
    int64_t taken;      /* elements loaded from it */
    const char *axes;   /* our files: "expert hidden ffn"; else null*/
} StTensor;

typedef struct StFile {
    const char *path;
    const uint8_t *map, *data;
    int64_t size; /* of the file */
    int fd;       /* open as long as it is mapped */
    int n;
    StTensor *t; /* sorted by name */
} StFile;

/* Null and *out, or the reason why the file is refused. */
const char *st_open(Arena *a, const char *path, StFile **out);
StFile *st_need(Arena *a, const char *path); /* or err() */
void st_close(StFile *file);
StTensor *st_find(const StFile *file, const char *name);
/* In the first of n files that has it; null: none. */
StTensor *st_find_in(StFile *const *file, int n, const char *name, StFile **in);
double st_get(FileType dt, const uint8_t *p, int64_t i);
/* n elements, `step` apart, of a dtype that floats hold; 0: they do not. */
int st_floats(FileType dt, const uint8_t *p, int64_t at, int64_t step,
              int64_t n, float *to);
void st_set(FileType dt, uint8_t *p, int64_t i, double v); /* of floats */
int st_bytes(FileType dt);                                 /* of an element */
int st_isfloat(FileType dt);      /* of 16 bits and more */
int st_isscaled(FileType dt);     /* of 8 bits, with scales beside */
const char *st_name(FileType dt); /* "F32" ... */
FileType st_type(Dtype dt);       /* that our files store dt as */
int64_t st_elems(const StTensor *tensor);
/* Lay out n tensors (name, dt, bytes, nd, n and axes set), largest elements
 * first: sets begin and end, returns the header with its length, *total the
 * file's size. */
char *st_header(Arena *a, StTensor *tensor, int n, size_t *len, int64_t *total);

/* ---- ckpt.c hf.c: saved runs --------------------------------------------- */

typedef struct State {       /* state.json */
    int64_t step;            /* steps done */
    int64_t tokens, samples; /* seen so far; samples is the data position*/
    int64_t skipped;         /* steps without an update (NaN or infinity)*/
    int64_t began;           /* step at which the optimizer's states were 0 */
    uint64_t seed;
    const char *plan; /* hash of the plan */
} State;

/* Write dir/step-NNNNNNNN and dir/latest, while all wait. 0, or -1 with a
 * warning. */
int ckpt_save(Exec *exec, const char *dir, const State *state);
/* One of its files: head and data, and what this process writes of them. */
typedef struct CkptFile {
    char *head;
    size_t len;
    int64_t total;        /* bytes */
    struct FilePart *box; /* vec; from: the tensors themselves */
} CkptFile;
CkptFile ckpt_file(Arena *a, Exec *exec, int file);
int64_t ckpt_bytes(Arena *a, const Plan *p); /* of the files, by the plan */
/* Bytes of a rank's arena that it writes into checkpoints, by place: a vec. to:
 * where they are in a copy of all of them. */
typedef struct Extent {
    int64_t at, bytes, to;
} Extent;
Extent *ckpt_ranges(Arena *a, const Plan *p, int64_t rank);
/* The newest good checkpoint of dir into exec; earlier ones with a note when
 * the newest is damaged. 0: there is none. */
int ckpt_resume(Exec *exec, const char *dir, State *state);
/* A verified one, whose state.json is *state. The optimizer's states begin at 0
 * where it lacks any of them: state->began is its step then. */
void ckpt_load(Exec *exec, const char *path, State *state);
/* Weights from a checkpoint, a run, a Hugging Face folder or a file; err()
 * names what is left over or missing. */
void ckpt_from(Exec *exec, const char *path);
void ckpt_from_keys(Exec *exec); /* of `from` and of each from.SCOPE */
/* Is the folder `from` too, which fills parameters that equal others? */
int ckpt_is_from(const Plan *p, const char *path);
int ckpt_has_from(const Opts *opts); /* is `from` given, or from.SCOPE? */
/* Null, or why the checkpoint folder is damaged. Prints nothing. */
const char *ckpt_verify(Arena *a, const char *dir, State *state);
/* May a parameter be missing in the weights of `from`, by the key `new`? */
int ckpt_begins(const Plan *p, const char *param);
void hf_load(Exec *exec, StFile **file, int n, const char *what, unsigned how,
             const char *source);
/* The files behind a `from`: a vec. Those of a Hub folder; null: it has none.
 */
StFile **ckpt_files(Arena *a, const char *path);
StFile **folder_weights(Arena *a, const char *dir);

/* ckptdir.c: the folder of one checkpoint. Functions that say why something was
 * not written return null if it was; threads may call them. One is made in
 * ckpt_folder(), between ckpt_begin() and ckpt_end(), which gives it its name;
 * ckpt_remove() is for what came to nothing. tuned: null, or a file's text. */
enum { MODEL, OPTIM, STATE, NCKPTFILE };
extern const char *const ckptfile[NCKPTFILE];
const char *ckpt_begin(Arena *a, const char *dir, const char *tmp);
const char *ckpt_end(Arena *a, Pool *pool, const char *dir, const char *tmp,
                     const State *state, const Text *tuned);
/* A file of its full size with its head, so that a full disk shows here. */
const char *ckpt_layout(Arena *a, const char *path, const char *head,
                        size_t len, int64_t total);
char *ckpt_why(Arena *a, const char *what, const char *path); /* and errno */
int ckpt_complain(const char *why); /* not null: a warning, and -1 */
/* A tensor as our files hold it, and the view of one that they hold. */
StTensor ckpt_describe(Arena *a, const Tensor *tensor, const char *name);
View ckpt_view(const StFile *file, const StTensor *st_tensor,
               const Tensor *tensor);
char *hash_text(Arena *a, const void *p, size_t n); /* XXH3-128, 32 digits */
/* ckpt_verify with these threads; by all processes together, the first one
 * judging; of state.json alone. */
const char *ckpt_read(Arena *a, Pool *pool, const char *dir, State *state);
const char *ckpt_verify_together(Arena *a, struct Comm *comm, const char *dir,
                                 State *state);
const char *ckpt_state(Arena *a, const char *dir, State *state);

/* ckpt_retention.c: the folders of a run's checkpoints */
char *ckpt_folder(Arena *a, const char *dir, int64_t step);
int ckpt_exists(const char *dir);
int64_t ckpt_last(const char *dir); /* the newest step by its name; -1 */
/* The newest checkpoint that verifies, with a note for each that does not.
 * comm: all its processes do so together; null: this one alone. */
char *ckpt_newest(Arena *a, const char *dir, State *state, struct Comm *comm);
/* The folder tmp becomes that of its step, in place of one that is there. */
const char *ckpt_place(Arena *a, const char *dir, const char *tmp,
                       int64_t step);
void ckpt_remove(Arena *a, const char *path);
void ckpt_sweep(Arena *a, const char *dir); /* what crashes have left */
/* Those before the newest, which is whole, go when `most` newer ones are whole;
 * 0: none goes. What is whole is found out once. */
typedef struct Known {
    int64_t step;
    int whole;
} Known;
typedef struct Retention {
    Arena *mem;
    int64_t most;
    Known *known; /* vec */
} Retention;
void ckpt_knows(Retention *retention, int64_t step, int whole);
/* Before the first step: err() when the disk has no room for one checkpoint, a
 * warning when it has not for all that will be there. */
void ckpt_room(const char *dir, int64_t bytes, int64_t keep, int64_t saves);
void ckpt_prune(Arena *a, Pool *pool, Retention *retention, const char *dir,
                int64_t newest);

/* ckpt_write.c: what this process holds of a file: a tensor's part, in bytes of
 * the file [at, at + bytes), elements of `size` bytes; t null: bytes as they
 * are, or, made not null, what it makes of other files. */
typedef struct FilePart {
    const Tensor *t;
    int64_t rank, at, bytes, size;
    const void *from;
    const void *remainder; /* not null: from is in bf16, the file's elements are
                              both joined */
    const struct OutTensor *made;
} FilePart;
enum { CKPTPIECE = 4 << 20 }; /* bytes that a thread writes at once */
/* By one process: as ckpt_layout. By all: their boxes, a vec; then, of what no
 * process had whole, every parts-th piece is read back. Null, or why not. The
 * hashes are kept beside until pieces_remove. */
const char *pieces_layout(Arena *a, const char *path, const char *head,
                          size_t len, int64_t total);
typedef enum PieceWrite {
    PWhashed, /* hashes of pieces are kept beside */
    PWplain
} PieceWrite;
const char *pieces_write(Arena *a, Pool *pool, const char *path, const Mesh *m,
                         const FilePart *box, int64_t bytes, PieceWrite how);
const char *pieces_rest(Arena *a, Pool *pool, const char *path, int64_t part,
                        int64_t parts);
void pieces_remove(Arena *a, const char *path);
/* Hashes of a file's pieces: those kept beside it, or null; those which all
 * processes find, each for a part. */
const void *pieces_kept(Arena *a, const char *path);
const void *pieces_shared(Arena *a, Pool *pool, struct Comm *comm,
                          const char *path);
/* The hash of a file and its size; known: its pieces', or null. Of the whole,
 * as checkpoints of before have it. Null: it cannot be read, or is empty. */
char *pieces_hash(Arena *a, Pool *pool, const char *path, const void *known,
                  int64_t *bytes);
char *pieces_whole(Arena *a, const char *path);

/* snapshot.c: a copy of what this process writes, in the host's memory */
typedef struct Snapshot Snapshot;
int64_t snapshot_bytes(Arena *a, const Plan *p, int64_t rank); /* planned */
int64_t snapshot_size(const Snapshot *snapshot); /* of all ranks here */
/* All processes; null: saves wait. A line about it to t. */
Snapshot *snapshot_open(Arena *a, Exec *exec, Text *out);
void snapshot_close(Snapshot *snapshot);
/* Take it: what lasts may change again when the second one, which any thread
 * may call, has returned 0; a GPU waits for that by itself. -1: it failed. */
void snapshot_start(Snapshot *snapshot);
/* Is some of it copied by this process, before anything writes it again? */
int snapshot_by_threads(const Snapshot *snapshot);
int snapshot_wait(Snapshot *snapshot, Pool *pool);
const void *snapshot_of(const Snapshot *snapshot, int64_t rank, const void *p);

/* ckpt_save.c: checkpoints while training goes on. All processes call these. */
typedef struct Saver Saver;
typedef enum SaveHow { SAVEbeside, SAVEwaits } SaveHow;
typedef struct Saved { /* how a save went */
    int64_t step, bytes;
    int64_t snapshot; /* bytes of this process' part; 0: none was taken */
    int bad;
    /* seconds: in which training stopped, of the snapshot, of all */
    double stopped, copied, took;
} Saved;
/* keep: whole checkpoints that stay, 0: all; good: the step of one known to be
 * whole, or -1. SAVEbeside: if there is room; a line about it to t. */
Saver *saver_open(Exec *exec, const char *dir, int64_t keep, int64_t good,
                  SaveHow how, Text *out);
void saver_close(Saver *saver); /* when none is in flight */
/* A save of what x holds now, when none is in flight. tuned may be null. */
void saver_save(Saver *saver, const State *state, const Text *tuned,
                SaveHow how);
/* Not null, once: a save is done; why it failed was said. Saves go on in here,
 * so it is to be called often. */
const Saved *saver_poll(Saver *saver);
const Saved *saver_wait(Saver *saver); /* ... until none is in flight */
/* Before this process ends or becomes another: waits for a save in flight that
 * needs no other process. */
void saver_finish(void);

/* ckptool.c: `ckpt ls DIR` and its kin; the exit status. */
int ckpt_command(int n, char **arg);
int ckpt_export(char **arg); /* RUN OUT [bf16] [fused] [5GB], null */

/* Copy what of view rank holds into dst, converted to t's dtype. */
void view_load(const Mesh *m, const Tensor *tensor, int64_t rank,
               const View *view, void *dst);

/* One Hugging Face tensor of one parameter: where it stands, and the view of
 * it; scale: null, or what each 128 x 128 block is multiplied by. */
typedef struct HfRow {
    const HfMap *h;
    const Tensor *t;
    const StFile *f;
    StTensor *s;   /* null when one looks for no file */
    int64_t elems; /* of the parameter */
    View v;
} HfRow;
enum {
    HFfused = 1,   /* without files: experts fused */
    HFadapters = 2 /* adapters alone, all of them */
};
/* A vec: every row of the plan's hf{}, unrolled, as the files spell it (one
 * tensor an expert, or all fused); err() where tensors and parameters do not
 * fill each other. No files: as `how` says. source: parameters
 * of that scope of a key from.SCOPE alone; null: all that are below none. */
HfRow *hf_rows(const Plan *p, StFile **file, int n, const char *what,
               unsigned how, const char *source);
int hf_is_adapter(const char *name); /* is it of PEFT? */
int64_t hf_dim(const HfDim *dim);    /* its size */

/* ---- strided_copy.c: from one order of elements to another --------------- */

typedef struct Stride {
    int64_t n, to, from;
} Stride; /* elements */
typedef struct Strided {
    int n;
    Stride loop[MAXD]; /* slowest of `to` first */
    int64_t to, from;  /* of the first element */
} Strided;
void strided_loop(Strided *strided, int64_t n, int64_t to, int64_t from);
void strided_merge(Strided *strided);
int64_t strided_room(const Strided *strided); /* elements turned at once */
/* The boxes of p whose places in the destination lie in [lo, hi). */
typedef void BoxFn(void *ctx, const Stride *l, int n, int64_t to, int64_t from);
void strided_boxes(const Strided *strided, int64_t lo, int64_t hi, BoxFn *fn,
                   void *ctx);
/* Elements of `size` bytes; `to` holds the destination from element lo on. */
void strided_copy(const Strided *strided, int size, const uint8_t *from,
                  uint8_t *to, int64_t lo, int64_t hi);

/* ---- tensor_copy.c: tensors of files made of boxes of others ------------- */

/* A box of a tensor, where it goes. Its file is mapped. */
typedef struct Share {
    Strided p;
    View v;
} Share;

/* scale b a is added to a tensor: b [outputs rank], a [rank inputs], in F64. */
typedef struct LowRank {
    const struct OutTensor *a, *b;
    double scale;
} LowRank;

typedef struct OutTensor {
    StTensor st;    /* of the file that it goes to */
    int file;       /* which one */
    FileType from;  /* of all parts; FTnone: several */
    int state;      /* a part of it is a state of the model */
    int64_t filled; /* elements that parts bring */
    Share *part;    /* vec */
    LowRank low;    /* a null: none */
} OutTensor;

/* Bytes [lo, hi) of the tensor, whole elements, to `to`; raw: CKPTPIECE bytes
 * of this thread. hi - lo is at most CKPTPIECE. */
void tensor_gather(const OutTensor *tensor, int64_t lo, int64_t hi, uint8_t *to,
                   uint8_t *raw);
/* The disk is asked for what these bytes are made of. */
void tensor_ahead(const OutTensor *tensor, int64_t lo, int64_t hi);
/* ---- hfconfig.c: config.json --------------------------------------------- */

/* The object that positions' numbers stand in; no value: none. How they are
 * stretched, "yarn"; "": they are not. */
JsonValue hf_config_positions(JsonValue config);
const char *hf_config_stretch(JsonValue config);
/* Of "a*b+c|d": keys and numbers with + * /, true as 1; after | the value where
 * the rest is not there. A key that the config lacks has the value that
 * transformers gives it for the model_type. NaN: there is none. */
double hf_config_value(JsonValue config, const char *s);
int hf_config_says(JsonValue config, const char *key); /* itself? */
/* Null, or how the folder's config.json differs from the model's ("has x = 1,
 * the model 2"). except: keys that may differ, or null. */
const char *hf_config_differs(Arena *a, JsonValue model, JsonValue folder,
                              const char *except);
/* The folder's config, which may be no value, with the model's values; a vec.
 */
JsonMember *hf_config_merge(Arena *a, JsonValue model, JsonValue folder);
/* Null, or which quantization_config it has that is not read. */
const char *hf_config_unread(Arena *a, JsonValue config);

/* ---- hffolder.c: what lies beside weights -------------------------------- */

/* A file of a run, by its folder or by a checkpoint's; null: none. */
char *run_file_near(Arena *a, const char *folder, const char *name);
JsonValue hf_config_read(const char *folder); /* no value: none; or err() */
/* err() where config.json in the folder, or beside the file, has other numbers
 * than the model's hf{ config={..} }. */
void hf_agree(const Plan *p, const char *path);
/* err() where adapter_config.json in the folder has another rank or alpha than
 * the model's lora(), or kinds of adapters that are not read. */
void hf_agree_adapter(const Plan *p, const char *dir);
double hf_adapter_scale(const Plan *p); /* alpha / rank */
/* The snapshot that refs/main names, of a folder in the Hub's cache; else path.
 */
const char *hub_snapshot(const char *path);
/* Sets `from` to its snapshot and data.tokenizer, where it is not given, to
 * that of `from`. */
void settle_from(Opts *opts);
/* Copies config.json and others to a new folder `to`, if there are some. Null,
 * or what failed. */
const char *hf_copy(const char *from, const char *to);
/* The same of the files beside the weights of `from`, to `hf` of a run's
 * folder, unless that is there; then hf_check. */
const char *hf_keep(const Plan *p, const char *dir);
/* err() where an export of the run could not read its tokenizer or the JSON
 * files that it kept. */
void hf_check(const Plan *p, const char *run);
/* Names of tensors, each between two newlines, that stay in fp32 where an
 * export of the run narrows others: those that the folder of the weights had so
 * beside narrower ones, and _keep_in_fp32_modules_strict of transformers. */
const char *hf_float32_list(const Plan *p, const char *run);
void hf_need_empty(const char *to); /* or err() */
/* adapter_config.json in `to`. 0, or -1 with a warning. */
int hf_write_adapter(const Plan *p, const char *to);
/* config.json, generation_config.json, the tokenizer, beside weights of dtype
 * dt in `to`. 0, or -1 with a warning. */
int hf_finish_export(const Plan *p, const char *from, const char *to,
                     FileType dt);

/* ---- convert.c: checkpoints to and from Hugging Face folders ------------- */

/* Those of `out` (a vec) that go to this file, with their header. Null, or why
 * it was not written. */
const char *tensors_write(Arena *a, Pool *pool, OutTensor *out, int file,
                          const char *path, PieceWrite how);
/* Weights in the folder or file `hf` become step 0 of the run in dir. */
int convert_import(const Plan *p, const char *hf, const char *dir);
/* A checkpoint, or a run's newest, as a new folder that transformers reads.
 * dt: FTF32, FTBF16, FTF16, or FTnone: as stored; how: of hf_rows; shard: bytes
 * of a file at most. Adapters are added to their weights, or, with HFadapters,
 * written alone in PEFT's format. */
int convert_export(const Plan *p, const char *from, const char *hf, FileType dt,
                   unsigned how, int64_t shard);

#endif
