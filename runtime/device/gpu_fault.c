/* gpu_fault.c: handles a GPU that has failed: an illegal address, a trap, an
 * error in its memory. All later calls return the error, and no other context
 * of the process works. To name the call that failed, the process executes its
 * own command again and waits after each call ($PLEAT_SYNC). A training run
 * repeats only the steps in flight ($PLEAT_AGAIN), from its last checkpoint:
 * run_again of train.c. */
#include "gpu.h"

enum { ARGS = 1 << 16, MAXARG = 1024 };

static struct {
    Gpu *gpu;
    ProgramKind prog;
    int64_t step;
    void (*first)(void); /* see fault_first */
} run;

void fault_first(void (*f)(void))
{
    run.first = f;
}

void fault_launching(Gpu *gpu, ProgramKind prog, int64_t step)
{
    run.gpu = gpu;
    run.prog = prog;
    run.step = step;
}

/* Is it one of these errors: ECC, address, timeout, assert, stack, instruction,
 * alignment, address space, program counter, launch? */
static int is_fault(int error)
{
    return error == 214 || error == 700 || error == 702 || error == 710 ||
           (error >= 714 && error <= 719);
}

/* Executes this process's command again. Returns if that fails. */
static void start_again(int64_t step)
{
    char *arg[MAXARG + 1] = { NULL }, *s = calloc(1, ARGS + 1), number[32];
    FILE *f = fopen("/proc/self/cmdline", "r");
    size_t n = s && f ? fread(s, 1, ARGS, f) : 0;
    int k = 0;

    for (size_t i = 0; i < n && k < MAXARG; i += strlen(s + i) + 1)
        arg[k++] = s + i;
    snprintf(number, sizeof number, "%ld", step);
    setenv("PLEAT_SYNC", "1", 1);
    setenv("PLEAT_AGAIN", number, 1);
    fflush(NULL);
    if (run.first)
        run.first();
    if (k && n < ARGS)
        execv("/proc/self/exe", arg);
}

static _Noreturn void say_fault(const Gpu *gpu, const char *name, int64_t step,
                                int error)
{
    const char *text = "?";
    char when[64] = "";

    dl.cuGetErrorString(error, &text);
    if (step >= 0)
        snprintf(when, sizeof when, " of step %ld", step + 1);
    if (!launched() && !gpu->each) {
        warn(NULL, "GPU: %s in program %s%s; once more, call by call", text,
             name, when);
        start_again(step);
    }
    err(NULL,
        "GPU of rank %ld: %s in program %s%s (PLEAT_SYNC=1 tells in which "
        "call)",
        gpu->rank, text, name, when);
}

void gpu_fault(int error)
{
    if (!run.gpu)
        return;
    if (!is_fault(error))
        error = dl.cuStreamQuery(run.gpu->stream[STREAMcompute]);
    if (is_fault(error) && !run.gpu->each)
        say_fault(run.gpu, programnames[run.prog], run.step, error);
}

void gpu_ok(int error, const char *what)
{
    const char *text = "?";

    if (!error)
        return;
    gpu_fault(error);
    dl.cuGetErrorString(error, &text);
    err(NULL, "GPU: %s: %s", what, text);
}
