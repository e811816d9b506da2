/* laws_test: each law of a plan (ir/laws.def) is needed. For every law there is
 * a mutant of a legal plan that is refused, and with only this law left out is
 * accepted (or ends the process that reads it, where the law keeps the others
 * inside their arrays). A row below says which kind of damage, to which plan;
 * where in it is found by trying. Laws that no single damage shows say why.
 *
 *     laws_test              the rows
 *     laws_test find N SEED  look for rows among N mutants of any kind */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mutantrun.h"

enum { SECONDS = 20, TRIES = 150 };

static const char *const laws[] = {
#define LAW(id, text) #id,
#include "../../ir/laws.def"
#undef LAW
};

/* The plans; from BARE on the same without what steps say of their values, of
 * which nothing is proved but that they stay in their memory. */
enum { MIX, TIED, RING, WINDOW, SHARDS, STAGES, CHOOSES, BARE };

#define SMALL " axes.hidden=16 axes.seq=16 axes.ffn=16 axes.dim=4"
/* clang-format off */
static Base legal[BARE] = {
    [MIX]    = { .model = "tests/hf/mixtral-aux.lua", .keys = "fold.tp=2 fold.dp=2 fold.ep=4 fold.zero=0 train.batch=8" },
    [TIED]   = { .model = "tests/models/tied.lua", .keys = "fold.pp=2 fold.cp=2 fold.dp=2 fold.ep=4 fold.vpp=2 fold.schedule=interleaved train.batch=16" },
    [RING]   = { .model = "tests/models/apart.lua", .keys = "fold.cp=4 fold.ring=1 fold.ep=2 route.factor=0.6 train.batch=4" },
    [WINDOW] = { .model = "tests/models/window.lua", .keys = "fold.tp=2 fold.cp=2 train.batch=4" SMALL },
    [SHARDS] = { .model = "tests/hf/mixtral-aux.lua", .keys = "fold.dp=4 fold.ep=2 fold.zero=3 train.batch=16" },
    [STAGES] = { .model = "tests/models/tied.lua", .keys = "fold.pp=4 fold.layout=E|tt|t|tL fold.schedule=zerobubble train.batch=16" },
    [CHOOSES] = { .model = "tests/models/expert_choice.lua", .keys = "fold.tp=2 fold.dp=2 fold.ep=2 fold.etp=2 train.batch=8" SMALL },
};
/* clang-format on */
static Plan *plans[2 * BARE];

/* ---- rows ---------------------------------------------------------------- */

typedef struct Row {
    Law law;
    int plan;
    const char *damage; /* a kind (fields.c), or what mutant_set reads */
} Row;

/* clang-format off */
static const Row rows[] = {
    { Lbuf_aligned, RING, "buffer: place" },
    { Lbuf_in_arena, RING, "buf offset: far" },
    { Lwork_dtype, MIX, "buf dt: far" },
    { Lbuf_class, MIX, "buf cls: near" },
    { Lbuf_frame, SHARDS, "buf frame: far" },
    { Lbuf_in_frame, BARE + TIED, "buffer: another's place" },
    { Lbufs_apart, TIED, "buffer: place" },
    { Larena_size, BARE + SHARDS, "role persist: far" },
    { Lphases_follow, SHARDS, "phase first: copy" },
    { Lphases_cover, SHARDS, "phase n: far" },
    { Lroles, RING, "roles: drop" },
    { Lstep_buffer, BARE + TIED, "operand : far" },
    { Lstep_alive, TIED, "operand : swap" },
    { Lgemm_dtype, BARE + MIX, "product: dtype" },
    { Lgemm_flags, BARE + MIX, "number : near" },
    { Lgemm_bounds, BARE + RING, "buf bytes: copy" },
    { Lgmm_dtype, BARE + SHARDS, "number : swap" },
    { Lgmm_flags, RING, "grouped product: sizes" },
    { Lgmm_weights, BARE + RING, "number : near" },
    { Lgmm_rows, BARE + SHARDS, "buf bytes: swap" },
    { Lcomm_dtype, BARE + TIED, "integers: exchange" },
    { Lrotate_by, BARE + RING, "group atoms: far" },
    { Lcomm_reduces, BARE + TIED, "number : near" },
    { Lcomm_zigzag, BARE + SHARDS, "number : copy" },
    { Lcomm_sends, BARE + SHARDS, "collective: more ranks" },
    { Lcomm_receives, BARE + MIX, "buf bytes: none" },
    { Luses_all, MIX, "step rw: far" },
    { Luses_known, BARE + SHARDS, "step rw: near" },
    { Lkernel_there, BARE + SHARDS, "step kind: none" },
    { Lmove_dtype, BARE + TIED, "integers: later" },
    { Lmove_bounds, BARE + TIED, "buf bytes: near" },
    { Lmove_peer, TIED, "group atoms: far" },
    { Lmove_self, BARE + TIED, "transfer: peer" },
    { Lonly_kernels_use, WINDOW, "step rw: copy" },
    { Lstep_buffers, WINDOW, "operands: twice" },
    { Lstep_ints, WINDOW, "integers: twice" },
    { Lstep_group, SHARDS, "step atoms: far" },
    { Ltable_full, BARE + MIX, "phase repeat: none" },
    { Lrow_known, BARE + TIED, "turn phase: near" },
    { Lrow_once, BARE + TIED, "turn phase: swap" },
    { Ltable_repeats, BARE + TIED, "phase: repeats" },
    { Ltable_life, BARE + TIED, "buf born: none" },
    { Lframe_size, BARE + TIED, "frame: bytes" },
    { Lframe_slots, TIED, "places: twice" },
    { Lslot_known, TIED, "frame of : near" },
    { Lslot_place, TIED, "slot : near" },
    { Lslots_apart, TIED, "slot : swap" },
    { Laxis_all, WINDOW, "dim n: none" },
    { Laxis_pieces, BARE + TIED, "piece start: near" },
    { Laxis_cut_once, BARE + WINDOW, "tensor shard: near" },
    { Laxis_once, BARE + WINDOW, "dims: twice" },
    { Lbucket_part, RING, "tensor shard: near" },
    { Lbucket_end, BARE + SHARDS, "tensor at: swap" },
    { Ltensor_bounds, BARE + RING, "tensor buf: none" },
    { Ltensor_name, BARE + SHARDS, "tensor name: none" },
    { Ltensor_kind, WINDOW, "tensor kind: none" },
    { Ltensor_dtype, BARE + SHARDS, "tensor dt: far" },
    { Lone_tensor, RING, "outs: twice" },
    { Lscalar_dtype, BARE + MIX, "in dt: none" },
    { Lscalar_bounds, BARE + RING, "in dt: near" },
    { Loutput_end, SHARDS, "ends: drop" },
    { Loutput_name, MIX, "tensor name: far" },
    { Ltensor_as_buffer, SHARDS, "tensor dt: none" },
    { Ltensor_class, MIX, "buf cls: copy" },
    { Ltensor_own, TIED, "buf name: far" },
    { Lbucket_kind, WINDOW, "buf name: none" },
    { Lmoment_axes, TIED, "dim axis: near" },
    { Lmoment_place, SHARDS, "tensor name: swap" },
    { Lscalar_own, MIX, "in name: none" },
    { Lscalar_as_buffer, WINDOW, "buf bytes: near" },
    { Lcopy_owner, BARE + TIED, "roles: drop" },
    { Lone_owner, BARE + TIED, "tensor name: copy" },
    { Lshared_alike, BARE + TIED, "dim axis: none" },
    { Lshape_atoms, BARE + TIED, "shape dim cut: near" },
    { Lshape_cut_once, MIX, "shape dim cut: far" },
    { Lshape_zigzag, RING, "shape dim zigzag: none" },
    { Lshape_axis_once, RING, "shape dim axis: swap" },
    { Lproduct_loops, SHARDS, "number : copy" },
    { Lgather_blocks, MIX, "number : near" },
    { Lrotate_ring, RING, "group atoms: copy" },
    { Lint_place, WINDOW, "place : near" },
    { Lprogram_order, MIX, "program name: copy" },
    { Lhf_axis_once, SHARDS, "hf dims: drop" },
    { Lhf_inside, SHARDS, "factor start: near" },
    { Lhf_factor, SHARDS, "hf param: copy" },
    { Lhf_param, SHARDS, "hf param: near" },
    { Lhf_alike, MIX, "hf dims: later" },
    { Lhf_apart, SHARDS, "factor start: near" },
    { Lhf_full, SHARDS, "factor total: far" },
    { Lfinds, MIX, "another value" },
    { Lwait_sent, TIED, "drop a transfer" },
    { Loutput_shape, MIX, "dims: later" },
    { Lsend_waited, TIED, "drop a transfer" },
    { Lend_once, TIED, "ends: twice" },
    { Lend_said, SHARDS, "ends: drop" },
    { Lend_value, SHARDS, "end value: copy" },
    { Lend_whole, MIX, "value part[0]: near" },
    { Lkernel_says, WINDOW, "step rw: copy" },
    { Lkernel_uses, SHARDS, "kernel: uses" },
    { Lvalue_buffer, RING, "value read: copy" },
    { Lbuffer_value, SHARDS, "operand : near" },
    { Lreads_lasting, MIX, "value read: far" },
    { Lvalue_made, WINDOW, "value read: far" },
    { Lvalue_size, SHARDS, "value shape: far" },
    { Lvalue_dtype, WINDOW, "buf dt: far" },
    { Lreads_as, MIX, "shape dim n: far" },
    { Lcomm_over, WINDOW, "group atoms: near" },
    { Lcomm_parts, MIX, "group atoms: copy" },
    { Lterms_kept, RING, "value part[1]: far" },
    { Lparts_kept, RING, "value part[0]: none" },
    { Lparts_new, TIED, "shape dim cut: far" },
    { Ltype_kept, RING, "value part[0]: far" },
    { Lstep_dtype, WINDOW, "product: dtype" },
    { Lvalue_once, WINDOW, "a clear twice" },
    { Lfills, TIED, "transfer: count" },
    { Lheight_program, RING, "program transient: near" },
    { Lheight_arena, WINDOW, "heights" },
    { Lrepeats, MIX, "phase name: far" },
    { Lframe_apart, TIED, "buffer: another's place" },
    { Lframe_full, TIED, "frames: twice" },
    { Lreceived_is_sent, TIED, "transfer: channel" },
    { Lsent_is_received, TIED, "transfer: channel" },
    { Lwide_same, TIED, "group atoms: near" },
    { Llive_used, SHARDS, "another operand" },
    { Llive_tight, WINDOW, "swap neighbours" },
    { Lbuf_program, MIX, "buf prog = 1000000" },
    { Lbuf_life, BARE + MIX, "buf born = -1" },
    { Lkernels_once, MIX, "kernels: twice" },
    { Lstep_lacks, BARE + MIX, "operand = -1" },
    { Lgemm_args, BARE + MIX, "integers: drop" },
    { Lgemm_negative, BARE + MIX, "gemm 2 = -1" },
    { Lgmm_negative, BARE + MIX, "gmm 9 = -1" },
    { Lgmm_map, BARE + RING, "buf bytes = 4" },
    { Lcomm_negative, BARE + MIX, "allreduce 2 = -1" },
    { Lexchange_flag, BARE + CHOOSES, "alltoall 6 = 2" },
    { Lexchange_divides, BARE + CHOOSES, "alltoall 2 = 1" },
    { Lexchange_zigzag, BARE + CHOOSES, "alltoall 7 = 3" },
    { Lexchange_blocks, CHOOSES, "alltoall 6 = 1" },
    { Litems_negative, BARE + MIX, "kernel 0 = -1" },
    { Lmove_channel, BARE + TIED, "send 3 = -1" },
    { Ljoin_whole, BARE + TIED, "join 0 = 0" },
    { Ljoin_parts, BARE + WINDOW, "swap neighbours" },
    { Ljoin_gaps, BARE + RING, "join 1 + 4" },
    { Lcalls_together, BARE + TIED, "phase repeat = 0" },
    { Lframe_life, BARE + TIED, "buf born = 0" },
    { Lcall_life, BARE + TIED, "buf frame = 0" },
    { Ltensor_frame, BARE + TIED, "tensor buf: near" },
    { Ltensor_buffer, MIX, "tensor buf = 100000000" },
    { Lscalar_buffer, MIX, "in buf = 100000000" },
    { Lscalar_frame, BARE + TIED, "in buf: far" },
    { Ltensor_once, BARE + MIX, "tensor name: copy" },
    { Ltensor_fills, MIX, "buf bytes: near" },
    { Ltensor_prefix, SHARDS, "tensor kind: copy" },
    { Lmoment_owner, SHARDS, "tensor name: far" },
    { Lmoment_shards, SHARDS, "tensor at: swap" },
    { Lscalar_class, MIX, "buf cls = 4" },
    { Lrotate_next, RING, "rotate 2 = 2" },
    { Lmay_write, WINDOW, "program name = forward" },
    { Lmust_write, WINDOW, "program name = step.fallback" },
    { Lfallback_there, RING, "program name = forward" },
    { Lhf_unrolled, MIX, "hf fixed = 1000000" },
    { Ladds_in_order, STAGES, "turns: exchange" },
    { Lchannel_order, TIED, "swap neighbours" },
    { Lwait_own, TIED, "turns: exchange" },
    { Lend_buffer, MIX, "end buf = 100000000" },
    { Lkind_uses, MIX, "gemm 10 = 1" },
    { Lterms_new, MIX, "value part[0]: near" },
    { Lints_same, MIX, "number : near" },
    { Lvalue_number, MIX, "value make = 100000000" },
    { Lvalue_shape, MIX, "value shape = 100000000" },
    { Lone_block, MIX, "allreduce 1 = 0" },
    { Lsame_programs, TIED, "program name = forward" },
    { Lsame_micro, TIED, "turns: exchange" },
    { Lwide_all, STAGES, "group atoms: near" },
    { Lno_deadlock, TIED, "turns: later" },
    { Lstep_atoms, BARE + MIX, "group atoms = 1048576" },
};
/* clang-format on */

/* ---- one mutant ---------------------------------------------------------- */

/* What a process found out; it may not live to its end. */
typedef struct Refusal {
    int law;   /* that refused the mutant; -1: none did */
    int alone; /* without it nothing did */
} Refusal;

static Refusal *shared;

/* kind -1: as `set` says. */
static void try_it(Plan *p, int kind, const char *set, uint64_t seed)
{
    Mutant m = { .arena = forever, .p = p, .seed = seed };
    size_t len;

    if (!(kind < 0 ? mutant_set(&m, set) : mutant_damage(&m, kind)))
        return;
    char *text = plan_print(forever, m.p, &len);
    law_broken = -1;
    if (base_parse(forever, text, len) || law_broken < 0)
        return;
    shared->alone = 1; /* unless another says so */
    shared->law = law_off = law_broken;
    shared->alone = base_parse(forever, text, len) != NULL;
}

static Refusal attempt(Plan *p, int kind, const char *set, uint64_t seed)
{
    *shared = (Refusal){ .law = -1 };
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(1);
        alarm(SECONDS);
        try_it(p, kind, set, seed);
        _exit(0);
    }
    waitpid(pid, &(int){ 0 }, 0);
    return *shared;
}

static int kind_named(const char *damage)
{
    for (int k = 0; k < mutant_kinds(); k++)
        if (!strcmp(mutant_kind(forever, k), damage))
            return k;
    return -1;
}

/* Is the law the only one to refuse some mutant of the row? */
static int is_alone(const Row *r, int *tries)
{
    int kind = kind_named(r->damage);
    for (*tries = 1; *tries <= TRIES; ++*tries) {
        Refusal x = attempt(plans[r->plan], kind, r->damage,
                            mix64((uint64_t)r->law, (uint64_t)*tries));
        if (x.law == (int)r->law && x.alone)
            return 1;
    }
    return 0;
}

static int check(void)
{
    int failed = 0, tries;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int ok = is_alone(&rows[i], &tries);
        printf("%sok - laws: %s: %s of %s%s, %d tries\n", ok ? "" : "not ",
               laws[rows[i].law], rows[i].damage,
               legal[rows[i].plan % BARE].model,
               rows[i].plan < BARE ? "" : " without values", tries);
        failed += !ok;
    }
    return failed != 0;
}

/* ---- looking ------------------------------------------------------------- */

/* A place where a law was broken: as likely, it is broken alone there. */
typedef struct Clue {
    int plan, kind;
} Clue;

static int find(int n, uint64_t seed)
{
    int alone[NLAW] = { 0 }, kinds = mutant_kinds();
    Clue *clue[NLAW] = { 0 }; /* vecs */

    for (int i = 0; i < n; i++) {
        uint64_t h = mix64(seed, (uint64_t)i);
        Clue c = { (int)((h >> 32) % (2 * BARE)), (int)(h % (uint64_t)kinds) };
        int law = (int)((h >> 16) % NLAW);
        if (i > n / 2 && !alone[law] && clue[law])
            c = clue[law][(h >> 40) % vec_len(clue[law])];
        Refusal r = attempt(plans[c.plan], c.kind, NULL, h);
        if (r.law < 0)
            continue;
        vec_push(forever, clue[r.law], c);
        if (r.alone && !alone[r.law]++)
            printf("    { L%s, %d, \"%s\" },\n", laws[r.law], c.plan,
                   mutant_kind(forever, c.kind));
        fflush(stdout);
    }
    for (int i = 0; i < NLAW; i++)
        if (!alone[i])
            printf("# %s: %zu %s\n", laws[i], vec_len(clue[i]),
                   clue[i] ? mutant_kind(forever, clue[i][0].kind) : "");
    return 0;
}

/* ---- the whole ----------------------------------------------------------- */

static void make_plans(void)
{
    bases_make(legal, BARE);
    for (int i = 0; i < 2 * BARE; i++) {
        const Base *b = &legal[i % BARE];
        Plan *p = plans[i] = base_parse(forever, b->text, b->len);
        for (int r = 0; i >= BARE && r < p->nrole; r++)
            for (int k = 0; k < p->role[r].nprog; k++)
                for (int s = 0; s < p->role[r].prog[k].nstep; s++)
                    p->role[r].prog[k].step[s].flow = NULL;
    }
}

int main(int argc, char **argv)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("no memory to share");
    make_plans();
    if (argc > 3 && !strcmp(argv[1], "find"))
        return find(atoi(argv[2]), strtoull(argv[3], NULL, 10));
    return check();
}
