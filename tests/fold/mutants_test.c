/* mutants_test: the verifier against damaged plans. Plans of many models in
 * many folds are changed in one place each (mutants.c, fields.c), printed with
 * valid hashes and read again. What is not refused is run, and must give the
 * bits of the original: then the damage means nothing. With the line "executed"
 * of the original each is refused. So is each plan with another byte in the
 * texts of kernels. All of the plans themselves must be accepted.
 *
 *     mutants_test                600 mutants of a few plans
 *     PLEAT_ALL=1 mutants_test    10,000 of all
 *     mutants_test N [SEED]       so many; PLEAT_SAY=1 says each
 *     mutants_test N SEED KIND    of those the ones of a kind, as it is said */
#include <stdlib.h>
#include <string.h>

#include "mutantrun.h"
#include "../unit/mend.h"

enum { FEW = 320, MANY = 10000 };

/* Share of the mutants that change a result which must be refused. */
static const double GOAL = 0.995;

static int failed, unsigned_taken;

static void say(int ok, const char *what)
{
    printf("%sok - mutants: %s\n", ok ? "" : "not ", what);
    fflush(stdout);
    failed += !ok;
}

/* What both have around the first byte in which they differ. */
static void show_place(const char *mark, const char *s, size_t at, size_t n)
{
    enum { AROUND = 60 };
    size_t from = at < AROUND ? 0 : at - AROUND;
    size_t to = at + AROUND < n ? at + AROUND : n;
    printf("#   %s ", mark);
    for (size_t i = from; i < to; i++)
        putchar(s[i] == '\n' ? '|' : s[i]);
    printf("\n");
}

static void show(const Base *b, int kind, const char *text, size_t len,
                 Verdict v)
{
    size_t at = 0, least = b->len < len ? b->len : len;
    int n = (int)strcspn(base_message, "\n");
    printf("# %s: %s of %s %s%s%.*s\n", mutant_verdicts[v],
           mutant_kind(forever, kind), b->model, b->keys,
           v == REFUSED || v == STOPPED ? ": " : "",
           v == REFUSED || v == STOPPED ? n : 0, base_message);
    while (at < least && b->text[at] == text[at])
        at++;
    show_place("-", b->text, at, b->len);
    show_place("+", text, at, len);
    fflush(stdout);
}

/* Is it refused when only its last line is mended? Changes text. */
static int is_signed(const Base *b, char *text, size_t len)
{
    Arena *a = arena_new();
    memcpy(executed_hash(text, len), executed_hash(b->text, b->len),
           HASHDIGITS);
    mend_plan(text, len, 0);
    int refused = !base_parse(a, text, len);
    arena_free(a);
    return refused;
}

/* Of n plans with another byte in a text, how many are taken; of them those in
 * texts of kernels with all hashes mended but their names. */
static int texts_taken(const Base *b, int n, uint64_t seed)
{
    int taken = 0;
    for (int i = 0; i < n; i++) {
        Arena *a = arena_new();
        char *s = memcpy(alloc(a, b->len + 1), b->text, b->len);
        char *from = memmem(s, b->len, "\nprelude ", 9);
        char *kernels = memmem(s, b->len, "\nkernel k_", 10);
        size_t bytes = (size_t)(executed_hash(s, b->len) - 10 - from);
        char *at = from + 1 + mix64(seed, (uint64_t)i) % (bytes - 1);
        *at ^= (char)(1 << i % 7);
        mend_plan(s, b->len, at > kernels);
        taken += base_parse(a, s, b->len) != NULL;
        arena_free(a);
    }
    return taken;
}

/* What became of one mutant; NVERDICT: there is no such place in the plan.
 * only: others than of this kind are taken to be refused. */
static Verdict try_one(Base *b, int kind, uint64_t seed, const char *only)
{
    Arena *a = arena_new();
    Mutant m = { .arena = a, .seed = seed };
    Verdict v = NVERDICT;
    size_t len;

    m.p = plan_parse(a, b->text, b->len, "base");
    char *text = mutant_damage(&m, kind) ? plan_print(a, m.p, &len) : NULL;
    if (text && (len != b->len || memcmp(text, b->text, len))) {
        int looked_at = !only || !strcmp(only, mutant_kind(a, kind));
        v = looked_at ? base_verdict(b, text, len) : REFUSED;
        if (v > SAME || (looked_at && getenv("PLEAT_SAY")))
            show(b, kind, text, len, v);
        unsigned_taken += !is_signed(b, text, len);
    }
    arena_free(a);
    return v;
}

/* Signatures that differ in nothing but the kernel: what is declared tells
 * texts apart, so the hash of what they compute leaves nothing out. */
static int texts_alike(const Plan *p)
{
    Table *seen = table_new(forever);
    int alike = 0;
    for (int i = 0; i < p->nsig; i++) {
        KernelSignature d = p->sig[i];
        const char *name = d.kernel;
        d.kernel = "";
        set_signature_hash(&d);
        void **at = table_at(seen, d.hash);
        alike += *at && strcmp(*at, name);
        *at = (void *)(uintptr_t)name;
    }
    return alike;
}

static void check_bases(Base *b, int n)
{
    int bad = 0, alike = 0;
    for (int i = 0; i < n; i++) {
        alike += texts_alike(b[i].plan);
        Arena *a = arena_new();
        if (!base_parse(a, b[i].text, b[i].len)) {
            printf("# %s %s: %s\n", b[i].model, b[i].keys, base_message);
            bad++;
        }
        arena_free(a);
    }
    printf("# %d plans\n", n);
    say(!bad, "the plans themselves are accepted");
    say(!alike, "kernels that declare the same have the same text");
}

int main(int argc, char **argv)
{
    int all = getenv("PLEAT_ALL") != NULL, kinds = mutant_kinds();
    int want = argc > 1 ? atoi(argv[1]) : all ? MANY : FEW, made = 0;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    int count[NVERDICT + 1] = { 0 }, nb = all ? NBASE : NFEW, used = 0,
                         texts = 0;
    char *seen = alloc(forever, (size_t)kinds + 1);

    bases_make(bases, nb);
    check_bases(bases, nb);
    for (int i = 0; made < want && i < 100 * want; i++) {
        uint64_t h = mix64(seed, (uint64_t)i);
        int kind = (int)(h % (uint64_t)kinds);
        Verdict v = try_one(&bases[(h >> 32) % (uint64_t)nb], kind, h,
                            argc > 3 ? argv[3] : NULL);
        count[v]++;
        made += v != NVERDICT;
        used += v != NVERDICT && !seen[kind];
        seen[kind] |= v != NVERDICT;
    }
    for (int i = 0; i < nb; i++)
        texts += texts_taken(&bases[i], all ? 1000 : 20, seed);
    say(!texts, "another byte in a text is refused");
    say(!unsigned_taken, "what has only the last line mended is refused");
    int holes = count[OTHER] + count[STOPPED] + count[CRASHED];
    printf("# %d mutants of %d kinds: %d refused, %d compute the same, %d "
           "something else, %d stop, %d crash\n",
           made, used, count[REFUSED], count[SAME], count[OTHER],
           count[STOPPED], count[CRASHED]);
    printf("# of those that change a result at least %.2f %% are refused\n",
           100.0 * count[REFUSED] / (count[REFUSED] + holes));
    say(made == want && used >= 30, "of 30 kinds");
    say(count[REFUSED] >= GOAL * (count[REFUSED] + holes),
        "what changes a result is refused");
    return failed != 0;
}
