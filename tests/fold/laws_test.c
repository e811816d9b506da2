/* laws_test: each law of ir/verify/laws.def is needed. For every law a mutant
 * of a legal plan is refused, and is accepted with only this law left out (or
 * ends its reader, where the law keeps others inside their arrays). A row below
 * says which kind of damage, to which plan; where in it is found by trying.
 * Laws that no single damage shows say why.
 *     laws_test [LAW]        the rows
 *     laws_test find N SEED  look for rows among N mutants of any kind
 *     laws_test LAW DAMAGE   in which plans would this row do? */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../ir/verify/verify.h"
#include "damages.h"
#include "mutantrun.h"

enum { SECONDS = 20, TRIES = 1000 };

static const char *const laws[] = {
#define LAW(id, text) #id,
#include "../../ir/verify/laws.def"
#undef LAW
};

/* The plans; from BARE on the same without what steps say of their values, of
 * which nothing is proved but that they stay in their memory. */
enum {
    MIX,
    TIED,
    RING,
    WINDOW,
    SHARDS,
    STAGES,
    CHOOSES,
    SPREAD,
    ROWS,
    STACKS,
    OFFLOADS,
    NUMBERS,
    PEERS,
    BARE
};

#define SMALL " axes.hidden=16 axes.seq=16 axes.ffn=16 axes.dim=4"
/* clang-format off */
static Base legal[BARE] = {
    [MIX]    = { .model = "tests/hf/mixtral-aux.lua", .keys = "fold.tp=2 fold.dp=2 fold.ep=4 fold.zero=0 train.batch=8 fold.overlap=0" },
    [TIED]   = { .model = "tests/models/tied.lua", .keys = "fold.pp=2 fold.cp=2 fold.dp=2 fold.ep=4 fold.vpp=2 fold.schedule=interleaved train.batch=16" },
    [RING]   = { .model = "tests/models/apart.lua", .keys = "fold.cp=4 fold.ring=1 fold.ep=2 route.factor=0.6 train.batch=4" },
    [WINDOW] = { .model = "tests/models/window.lua", .keys = "fold.tp=2 fold.cp=2 train.batch=4" SMALL },
    [SHARDS] = { .model = "tests/hf/mixtral.lua", .keys = "fold.dp=4 fold.ep=2 fold.zero=3 train.batch=16" },
    [STAGES] = { .model = "tests/models/tied.lua", .keys = "fold.pp=4 fold.layout=E|tt|t|tL fold.schedule=zerobubble train.batch=16" },
    [CHOOSES] = { .model = "tests/models/expert_choice.lua", .keys = "fold.tp=2 fold.dp=2 fold.ep=2 fold.etp=2 train.batch=8" SMALL },
    [SPREAD] = { .model = "tests/hf/mixtral-aux.lua", .keys = "fold.tp=2 fold.ep=2 train.batch=4 route.dispatcher=allgather", .spread = 1 },
    [STACKS] = { .model = "tests/models/folds.lua", .keys = "fold.dp=2 fold.ep=2 route.factor=1.9 axes.batch=8 axes.seq=16 axes.heads=2 train.batch=32 fold.overlap=0" },
    [OFFLOADS] = { .model = "tests/models/dropout.lua", .keys = "train.offload=activations train.batch=4 train.slices=2" },
    [NUMBERS] = { .model = "tests/models/apart.lua", .keys = "fold.dp=2 precision=fp8 precision.place=all precision.primary=all train.batch=4" },
    [PEERS] = { .model = "tests/hf/mixtral-aux.lua", .keys = "fold.ep=2 route.factor=1.5 route.dispatcher=peer train.batch=8", .gpu = 1 },
    [ROWS] = { .model = "tests/hf/mixtral-aux.lua", .keys = "axes.expert=7 fold.dp=2 fold.ep=2 route.factor=1.5 route.dispatcher=peer train.batch=8 fold.pair=1" },
};
/* clang-format on */
static struct {
    char *s;
    size_t len;
} texts[2 * BARE];

/* ---- rows ---------------------------------------------------------------- */

typedef struct Row {
    Law law;
    int plan;
    const char *damage; /* a kind (fields.c), or what mutant_set reads */
    int (*hand)(Mutant *m);
} Row;

/* clang-format off */
static const Row rows[] = {
    { Lbuf_aligned, RING, "buffer: place", NULL },
    { Lbuf_in_arena, RING, "buf offset: far", NULL },
    { Lwork_dtype, MIX, "buf dt: far", NULL },
    { Lbuf_class, MIX, "buf cls: near", NULL },
    { Lbuf_frame, SHARDS, "buf frame: far", NULL },
    { Lbuf_in_frame, BARE + STAGES, "buffer: another's place", NULL },
    { Lbufs_apart, TIED, "buffer: place", NULL },
    { Larena_size, BARE + SHARDS, "role persist: far", NULL },
    { Lphases_follow, WINDOW, "phase first: copy", NULL },
    { Lphases_cover, SHARDS, "phase n: far", NULL },
    { Lkernel_text, BARE + MIX, "the text of another kernel", text_of_another },
    { Llast_repeats, TIED, "instr last_only: near", NULL },
    { Lroles, RING, "roles: drop", NULL },
    { Linstr_buffer, OFFLOADS, "operand : far", NULL },
    { Linstr_alive, BARE + MIX, "operand : swap", NULL },
    { Lfield_range, BARE + MIX, "gemm beta = 2", NULL },
    { Lgemm_bounds, BARE + RING, "gemm ldc = 100000", NULL },
    { Lgmm_weights, BARE + RING, "number : near", NULL },
    { Lgmm_rows, BARE + MIX, "gmm cap = 1000000", NULL },
    { Lppermute_by, BARE + RING, "group atoms: far", NULL },
    { Lcomm_zigzag, BARE + WINDOW, "number : copy", NULL },
    { Lcomm_sends, BARE + WINDOW, "collective: more ranks", NULL },
    { Lcomm_receives, BARE + MIX, "collective: more ranks", NULL },
    { Lsig_there, BARE + MIX, "kernel sig = 1000000000", NULL },
    { Lsig_hash, BARE + WINDOW, "another kernel", NULL },
    { Lsig_operands, BARE + MIX, "an operand less", one_less },
    { Lsig_bounds, BARE + SHARDS, "extent : near", NULL },
    { Lragged_base, BARE + STACKS, "rows that begin where rows say", rows_from_rows },
    { Lsig_adds, MIX, "adds to nothing", adds_to_nothing },
    { Lkernel_there, BARE + SHARDS, "no kernel", no_kernel },
    { Lstack_place, STACKS, "a buffer beside its stack", beside_its_stack },
    { Lstack_rows, STACKS, "rows of a stack in none", rows_in_no_stack },
    { Lstack_word, STACKS, "rows of another layer", rows_of_another },
    { Lstack_order, STACKS, "rows behind those of another layer", behind_another },
    { Lmove_bounds, BARE + TIED, "transfer: count", NULL },
    { Lmove_peer, TIED, "group atoms: far", NULL },
    { Lmove_self, BARE + TIED, "transfer: peer", NULL },
    { Linstr_group, SHARDS, "instr atoms: far", NULL },
    { Ltable_full, BARE + MIX, "phase repeat: none", NULL },
    { Lrow_known, BARE + TIED, "turn phase: near", NULL },
    { Lrow_once, BARE + TIED, "turn phase: swap", NULL },
    { Ltable_repeats, BARE + TIED, "phase: repeats", NULL },
    { Ltable_life, BARE + TIED, "buf born: none", NULL },
    { Lframe_size, BARE + TIED, "frame: bytes", NULL },
    { Lframe_slots, TIED, "places: twice", NULL },
    { Lslot_known, TIED, "frame of : near", NULL },
    { Lslot_place, STAGES, "slot : near", NULL },
    { Lslots_apart, TIED, "slot : swap", NULL },
    { Laxis_role, MIX, "dim role: near", NULL },
    { Laxis_all, BARE + WINDOW, "dim n: none", NULL },
    { Laxis_pieces, BARE + TIED, "piece start: near", NULL },
    { Laxis_cut_once, BARE + WINDOW, "tensor shard: near", NULL },
    { Laxis_once, BARE + WINDOW, "dims: twice", NULL },
    { Lbucket_part, RING, "tensor shard: near", NULL },
    { Lbucket_end, BARE + SHARDS, "tensor at: swap", NULL },
    { Ltensor_bounds, BARE + RING, "tensor buf: none", NULL },
    { Ltensor_name, BARE + SHARDS, "tensor name: none", NULL },
    { Ltensor_dtype, BARE + SHARDS, "tensor dt: far", NULL },
    { Lone_tensor, RING, "outs: twice", NULL },
    { Lscalar_dtype, BARE + MIX, "in dt: none", NULL },
    { Lscalar_bounds, BARE + RING, "in dt: near", NULL },
    { Loutput_end, SHARDS, "ends: drop", NULL },
    { Loutput_name, MIX, "tensor name: far", NULL },
    { Ltensor_as_buffer, CHOOSES, "tensor dt: none", NULL },
    { Ltensor_class, WINDOW, "buf cls: near", NULL },
    { Ltensor_own, TIED, "buf name: far", NULL },
    { Lbucket_kind, WINDOW, "buf name @ optim.m.zero.0 = zero.0; buf name @ optim.v.zero.0 = zero.0", NULL },
    { Lmoment_axes, TIED, "dim axis: near", NULL },
    { Lmoment_place, SHARDS, "tensor at @ optim.v.layers.1.moe.w1 = 6144; tensor at @ optim.v.layers.1.moe.w3 = 0", NULL },
    { Lscalar_own, MIX, "in name @ bc1 = bc2", NULL },
    { Lscalar_as_buffer, MIX, "buf bytes @ step.lr + 1", NULL },
    { Lcopy_owner, BARE + TIED, "roles: drop", NULL },
    { Lone_owner, BARE + TIED, "tensor name: copy", NULL },
    { Lshared_alike, BARE + TIED, "dim axis: none", NULL },
    { Lshape_atoms, BARE + TIED, "shape dim cut: near", NULL },
    { Lshape_cut_once, MIX, "shape dim cut: far", NULL },
    { Lshape_scale, MIX, "shape scale: near", NULL },
    { Lshape_zigzag, RING, "shape dim zigzag: none", NULL },
    { Lshape_axis_once, RING, "shape dim axis: swap", NULL },
    { Lproduct_loops, SHARDS, "number : copy", NULL },
    { Lgather_blocks, MIX, "number : near", NULL },
    { Lppermute_ring, RING, "group atoms: copy", NULL },
    { Lint_place, WINDOW, "place : near", NULL },
    { Lprogram_order, MIX, "init before others", init_too_early },
    { Lhf_axis_once, SHARDS, "hf dims: drop", NULL },
    { Lhf_inside, SHARDS, "factor start: near", NULL },
    { Lhf_factor, SHARDS, "hf param: copy", NULL },
    { Lhf_param, SHARDS, "hf param: near", NULL },
    { Lhf_alike, MIX, "hf dims: later", NULL },
    { Lhf_apart, MIX, "factor start: near", NULL },
    { Lhf_full, SHARDS, "factor total: far", NULL },
    { Lfinds, MIX, "another value", NULL },
    { Lwait_sent, TIED, "drop a transfer", NULL },
    { Loutput_shape, MIX, "an output with its axes turned", output_turned },
    { Loutput_axes, MIX, "dim axis: far", NULL },
    { Lsend_waited, TIED, "drop a transfer", NULL },
    { Lend_once, TIED, "ends: twice", NULL },
    { Lend_said, SHARDS, "ends: drop", NULL },
    { Lend_value, SHARDS, "end value: copy", NULL },
    { Lend_whole, MIX, "value part[0]: near", NULL },
    { Lkernel_uses, SHARDS, "signature: uses", NULL },
    { Lsig_dtype, MIX, "signature dt: far", NULL },
    { Lsig_extents, MIX, "extents: exchange", NULL },
    { Lvalue_buffer, WINDOW, "value read: copy", NULL },
    { Lbuffer_value, SHARDS, "operand : near", NULL },
    { Lreads_lasting, MIX, "value read: far", NULL },
    { Lvalue_made, WINDOW, "value read: far", NULL },
    { Lvalue_size, SHARDS, "buf bytes + 4", NULL },
    { Lvalue_dtype, WINDOW, "buf dt: far", NULL },
    { Lreads_as, MIX, "value as: far", NULL },
    { Lcomm_over, WINDOW, "group atoms: near", NULL },
    { Lcomm_parts, MIX, "group atoms: copy", NULL },
    { Lterms_kept, SHARDS, "value part[1]: far", NULL },
    { Lparts_kept, RING, "value part[0]: none", NULL },
    { Lparts_new, SHARDS, "shape dim cut: near", NULL },
    { Ltype_kept, WINDOW, "value part[0]: far", NULL },
    { Linstr_dtype, WINDOW, "product: dtype", NULL },
    { Lvalue_once, WINDOW, "a clear twice", NULL },
    { Lstore_first, OFFLOADS, "a product stored over another's", stores_over },
    { Ladds_one, MIX, "a kernel that adds, said to store", stores_not },
    { Lfills, TIED, "transfer: count", NULL },
    { Lheight_program, RING, "program transient: near", NULL },
    { Lheight_arena, WINDOW, "heights", NULL },
    { Lrepeats, MIX, "phase name @ body = pre", NULL },
    { Lpair_inputs, ROWS, "the first twice", first_twice },
    { Lframe_apart, TIED, "buffer: another's place", NULL },
    { Lframe_full, TIED, "frames: twice", NULL },
    { Lreceived_is_sent, STAGES, "transfer: channel", NULL },
    { Lsent_is_received, TIED, "transfer: channel", NULL },
    { Lwide_same, TIED, "group atoms: near", NULL },
    { Llive_tight, MIX, "an idle buffer", idle_buffer },
    { Llive_tight, WINDOW, "swap neighbours", NULL },
    { Lbuf_life, BARE + MIX, "buf born = -1", NULL },
    { Lkernels_once, MIX, "kernels: twice", NULL },
    { Linstr_lacks, BARE + OFFLOADS, "operand = -1", NULL },
    { Lgmm_map, BARE + RING, "more experts than in the map", experts_without_map },
    { Lrows_sig, PEERS, "rows sent as narrower ones", sent_as_narrower },
    { Lsig_peers, PEERS, "an exchange by itself", exchange_alone },
    { Llaunch, PEERS, "more blocks than words", too_many_blocks },
    { Lrows_map, BARE + ROWS, "sendrows width = 1; sendrows pair = 1024", NULL },
    { Lrows_blocks, ROWS, "sendrows width = 1", NULL },
    { Lexchange_divides, BARE + CHOOSES, "alltoall a = 1", NULL },
    { Lexchange_zigzag, BARE + CHOOSES, "alltoall zig = 3", NULL },
    { Lexchange_blocks, CHOOSES, "alltoall swap = 1", NULL },
    { Ljoin_gaps, BARE + RING, "join gap + 4", NULL },
    { Lframe_life, BARE + TIED, "buf born = 0", NULL },
    { Lcall_life, BARE + TIED, "buf dies + 3", NULL },
    { Ltensor_frame, BARE + TIED, "tensor buf + 120", NULL },
    { Ltensor_buffer, MIX, "tensor buf = 100000000", NULL },
    { Lscalar_buffer, MIX, "in buf = 100000000", NULL },
    { Lscalar_frame, BARE + TIED, "in buf: far", NULL },
    { Lsecond_of, BARE + MIX, "tensor second: none", NULL },
    { Ltensor_once, BARE + MIX, "tensor name @ tokens = labels", NULL },
    { Ltensor_prefix, SHARDS, "tensor name @ optim.m.embed = optim.m.none", NULL },
    { Lmoment_owner, SHARDS, "tensor of @ optim.m.embed = 100000000", NULL },
    { Lmoment_shards, SHARDS, "tensor at @ layers.1.moe.w1 = 6144; tensor at @ layers.1.moe.w3 = 0", NULL },
    { Lmoment_bucket, SHARDS, "tensor buf: swap", NULL },
    { Lscalar_class, MIX, "buf cls @ step.lr = 4", NULL },
    { Lppermute_next, RING, "ppermute by = 2", NULL },
    { Lmay_write, WINDOW, "a forward that fills weights", forward_fills },
    { Lmust_write, WINDOW, "program kind = 1", NULL },
    { Linit_there, CHOOSES, "programs: drop", NULL },
    { Lnumbers_made, NUMBERS, "tensor kind @ embed = 1", NULL },
    { Lstep_there, MIX, "program kind @ step = 1", NULL },
    { Llast_adds, MIX, "instr last_only: near", NULL },
    { Lfallback_there, WINDOW, "out name @ loss = overflow; buf name @ result.loss = result.overflow", NULL },
    { Lhf_unrolled, SHARDS, "hf fixed = 1000000", NULL },
    { Lchannel_order, TIED, "swap neighbours", NULL },
    { Lwait_own, STAGES, "swap micro-batches of a call", NULL },
    { Lend_buffer, MIX, "end buf = 100000000", NULL },
    { Lkind_uses, SHARDS, "gemm beta = 0", NULL },
    { Lterms_new, MIX, "a term of what is whole", whole_as_term },
    { Lvalue_number, MIX, "value make = 100000000", NULL },
    { Lvalue_shape, MIX, "value shape = 100000000", NULL },
    { Lsame_programs, TIED, "programs: drop", NULL },
    { Linstr_atoms, BARE + MIX, "group atoms = 1048576", NULL },
    { Lexchange_halves, BARE + CHOOSES, "alltoall zig = 1; alltoall low = 1", NULL },
    { Lmember_follows, SHARDS, "tensor at @ layers.1.moe.w3 + 128; tensor at @ optim.m.layers.1.moe.w3 + 128; tensor at @ optim.v.layers.1.moe.w3 + 128", NULL },
    { Lmember_cut, SHARDS, "tensor shard @ layers.1.attn.wk = 1; tensor shard @ optim.m.layers.1.attn.wk = 1; tensor shard @ optim.v.layers.1.attn.wk = 1", NULL },
    { Lheight_lasting, WINDOW, "role persist + 256; program transient @ step + -256; program transient @ eval + -256", NULL },
    { Llaunch_range, BARE + MIX, "items below 0", no_items },
    { Llaunch, BARE + MIX, "no grain", no_grain },
    { Llaunch, BARE + MIX, "pairs without a second launch", pairs_of_none },
    { Lno_deadlock, TIED, "turns: later", NULL },
    { Lcopy_bounds, BARE + MIX, "a copy of too much", copy_too_much },
    { Lint_atoms, BARE + MIX, "an integer of no atom", stray_int },
    { Ltable_calls, BARE + MIX, "a table of nothing", table_of_nothing },
    { Lframes_calls, BARE + MIX, "a frame of nothing", frame_of_nothing },
    { Lmember_last, WINDOW, "a member less", member_less },
    { Lcomm_shape, MIX, "a sum with another axis", sum_renamed },
    { Lsame_type, STAGES, "a receipt with another axis", receipt_renamed },
    { Lend_shape, MIX, "a weight with another axis", weight_renamed },
    { Lfallback_not_step, RING, "the fallback for the step", step_is_fallback },
    { Lissue_kernel, SPREAD, "instr issue.priority: near", NULL },
    { Levent_once, SPREAD, "instr issue.record: copy", NULL },
    { Levent_waited, RING, "waits: drop", NULL },
    { Levent_recorded, SPREAD, "wait : copy", NULL },
    { Lstream_begins, SPREAD, "instr issue.stream: near", NULL },
    { Lstream_ends, SPREAD, "instr issue.stream: near", NULL },
    { Lclass_ordered, SPREAD, "wait : copy", NULL },
    { Laccess_ordered, SPREAD, "instr issue.stream: copy", NULL },
    { Lhost_copies, OFFLOADS, "what computes in the host's arena", into_host },
    { Lhost_kernels, MIX, "a kernel of the host in the device's memory", kernel_of_host },
    { Lhost_text, MIX, "a kernel of the host and of the device", text_of_both },
    { Lheight_host, OFFLOADS, "role host + 256", NULL },
    { Linstr_says, MIX, "a step that says nothing", says_nothing },
};
/* clang-format on */

/* Laws that no single damage shows, and why there they are. */
static const struct {
    Law law;
    const char *why;
} reasons[] = {
    { Lbuf_program, "others find a program by this number" },
    { Laxis_atoms, "others shift by these numbers" },
    { Ltensor_fills, "else a tensor and its buffer could both be wrong" },
    { Lmoment_master, "else masters and their bucket could both be missing" },
    { Lmoment_remainder,
      "else a parameter and its remainder could both be fp32" },
    { Ladds_in_order, "else stages could agree on another order" },
    { Lsame_micro, "else all rows of a stage could be for others" },
    { Lwide_count, "else the last sum of all stages could be missing" },
};

static const char *reason(int law)
{
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if ((int)reasons[i].law == law)
            return reasons[i].why;
    return NULL;
}

static int has_row(int law)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if ((int)rows[i].law == law)
            return 1;
    return 0;
}

static int check_all(void)
{
    int failed = 0;
    for (int i = 0; i < NLAW; i++)
        if (has_row(i) == (reason(i) != NULL)) {
            printf("not ok - laws: %s has a row, or a reason\n", laws[i]);
            failed++;
        }
    return failed;
}

/* ---- one mutant ---------------------------------------------------------- */

/* What a process found out; it may not live to its end. */
typedef struct Refusal {
    int law;   /* that refused the mutant; -1: none did */
    int alone; /* without it nothing did */
} Refusal;

static Refusal *shared;

/* kind -1: what the row says. Null: there is no such place. */
static char *mutant_of(Arena *a, const Row *r, int kind, uint64_t seed,
                       size_t *len)
{
    Mutant m = { .arena = a, .seed = seed };
    m.p = plan_parse(a, texts[r->plan].s, texts[r->plan].len, "base");
    int ok = r->hand    ? r->hand(&m)
             : kind < 0 ? mutant_set(&m, r->damage)
                        : mutant_damage(&m, kind);
    return ok ? plan_print(a, m.p, len) : NULL;
}

/* In a process of its own: without a law the others may lose their way. */
static void leave_out(Arena *a, const char *text, size_t len)
{
    shared->alone = 1; /* unless the process says otherwise */
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(1);
        alarm(SECONDS);
        law_off = shared->law;
        shared->alone = base_parse(a, text, len) != NULL;
        _exit(0);
    }
    waitpid(pid, &(int){ 0 }, 0);
}

/* want: a law, -1: any. */
static Refusal attempt(const Row *r, int kind, uint64_t seed, int want)
{
    Arena *a = arena_new();
    size_t len;
    char *text = mutant_of(a, r, kind, seed, &len);

    *shared = (Refusal){ .law = -1 };
    law_broken = -1;
    if (text && !base_parse(a, text, len))
        shared->law = law_broken;
    if (shared->law >= 0 && (want < 0 || shared->law == want))
        leave_out(a, text, len);
    arena_free(a);
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
        Refusal x = attempt(r, kind, mix64(1, (uint64_t)*tries), (int)r->law);
        if (x.law == (int)r->law && x.alone)
            return 1;
    }
    return 0;
}

/* only: names of laws, null: all. */
static int check(const char *only)
{
    int failed = check_all(), tries;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (only && !strstr(only, laws[rows[i].law]))
            continue;
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
        Refusal r = attempt(&(Row){ .plan = c.plan }, c.kind, h, -1);
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

/* A law that some damage alone shows: in which plans, after how many tries. */
static int look_in(const char *law, const char *damage)
{
    int tries;
    for (int i = 0; i < NLAW; i++)
        for (int p = 0; p < 2 * BARE && !strcmp(laws[i], law); p++) {
            Row r = { .law = (Law)i, .plan = p, .damage = damage };
            int ok = is_alone(&r, &tries);
            printf("# %d: %d, %d tries\n", p, ok, tries);
            fflush(stdout);
        }
    return 0;
}

/* ---- the whole ----------------------------------------------------------- */

static void make_plans(void)
{
    bases_make(legal, BARE);
    for (int i = 0; i < 2 * BARE; i++) {
        const Base *b = &legal[i % BARE];
        Plan *p = plan_parse(forever, b->text, b->len, "base");
        for (int r = 0; i >= BARE && r < p->nrole; r++)
            for (int k = 0; k < p->role[r].nprog; k++)
                for (int s = 0; s < p->role[r].prog[k].ninstr; s++)
                    p->role[r].prog[k].instr[s].flow = NULL;
        texts[i].s = plan_print(forever, p, &texts[i].len);
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
    return argc > 2 ? look_in(argv[1], argv[2])
                    : check(argc > 1 ? argv[1] : NULL);
}
