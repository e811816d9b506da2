/* stubs.c: every function of the GPU libraries that runtime/process/syms.def
 * names, doing nothing, with success. The other files have those that must do
 * something. */
#include <stddef.h>
#include <stdint.h>

typedef struct NcclId {
    char c[128];
} NcclId;

typedef struct IpcHandle {
    char c[64];
} IpcHandle;

#define LIB(id, what, names, package)
#define OBJ(id, name)
#define STUB(name, ret, args)           \
    __attribute__((weak)) ret name args \
    {                                   \
        return 0;                       \
    }
#define SYM(id, name, ret, args) SYM_##id(name, ret, args)
#define SYM_blas(name, ret, args)
#define SYM_mpi(name, ret, args)
#define SYM_zstd(name, ret, args)
#define SYM_bz2(name, ret, args)
#define SYM_lzma(name, ret, args)
#define SYM_cuda     STUB
#define SYM_nvrtc    STUB
#define SYM_cublaslt STUB
#define SYM_nccl     STUB
#include "../../runtime/process/syms.def"
