/* attn_test: the texts of attention for GPUs, run by the emulation in several
 * orders: on tensor cores with every kind of mask, group and width, in tiles
 * that end within, and by warps. */
#include "attention.h"
#include "emu.h"
#include "emurun.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* clang-format off */
static const struct {
    Form c;
    Dtype dt;
    int orders;
    int64_t space; /* of backward, where it is to be less */
} forms[] = {
    /*                batch kv group seq key dim rot vdim */
    { { "causal d64",   { 1, 1, 2, 150, 150, 64, 1, 64 }, attn_causal, 0.5 }, Dbf16, 4, 0 },
    { { "full d128",    { 1, 2, 1, 129, 77, 128, 1, 128 }, attn_plain, 0.5 }, Dbf16, 3, 0 },
    { { "gqa 4 d32",    { 2, 1, 4, 70, 70, 32, 1, 32 }, attn_causal, 0.5 }, Dbf16, 3, 0 },
    { { "chunks d64",   { 1, 2, 1, 200, 200, 64, 1, 64 }, attn_chunks, 0.5 }, Dbf16, 2, 0 },
    { { "window d64",   { 1, 2, 1, 200, 200, 64, 1, 64 }, attn_window, 0.5 }, Dbf16, 2, 0 },
    { { "capped d64",   { 1, 1, 2, 70, 70, 64, 1, 64 }, attn_capped, 0.5 }, Dbf16, 2, 0 },
    { { "late d128",    { 1, 1, 1, 140, 140, 128, 1, 128 }, attn_late, 0.5 }, Dbf16, 2, 0 },
    { { "d48 odd",      { 1, 2, 1, 129, 129, 48, 1, 40 }, attn_causal, 0.5 }, Dbf16, 2, 0 },
    { { "d20 odd",      { 1, 1, 1, 33, 65, 20, 1, 17 }, attn_plain, 0.5 }, Dbf16, 2, 0 },
    { { "d256",         { 1, 1, 2, 140, 140, 256, 1, 256 }, attn_causal, 0.5 }, Dbf16, 2, 0 },
    { { "mla 128+64",   { 1, 2, 1, 150, 150, 128, 64, 128 }, attn_mla, 0.5 }, Dbf16, 2, 0 },
    { { "mla 64+64",    { 1, 2, 1, 129, 300, 64, 64, 64 }, attn_mla, 0.5 }, Dbf16, 2, 0 },
    { { "mla 48+32",    { 1, 2, 1, 150, 63, 48, 32, 96 }, attn_mla, 0.5 }, Dbf16, 2, 0 },
    { { "d128 v64",     { 1, 1, 2, 300, 300, 128, 1, 64 }, attn_causal, 0.5 }, Dbf16, 2, 0 },
    { { "gqa 8 d120",   { 1, 1, 8, 127, 127, 120, 1, 120 }, attn_causal, 0.5 }, Dbf16, 2, 0 },
    { { "turns of batch", { 2, 1, 1, 200, 200, 128, 1, 128 }, attn_window, 0.5 }, Dbf16, 2, 1 << 17 },
    { { "turns of heads", { 1, 1, 4, 140, 140, 128, 1, 128 }, attn_causal, 0.5 }, Dbf16, 2, 3 << 15 },
    { { "turns shared",   { 1, 1, 4, 140, 70, 96, 1, 96 }, attn_plain, 0.5 }, Dbf16, 2, 1 << 17 },
    { { "one",          { 1, 1, 1, 1, 1, 64, 1, 64 }, attn_causal, 0.5 }, Dbf16, 2, 0 },
    { { "warps d24",    { 1, 2, 2, 70, 70, 24, 1, 24 }, attn_causal, 0.5 }, Df32, 2, 0 },
    { { "warps documents", { 1, 2, 1, 75, 75, 10, 6, 9 }, attn_documents, 0.3 }, Df32, 2, 0 },
    { { "warps latent", { 1, 3, 1, 66, 66, 5, 7, 1 }, attn_latent, 0.5 }, Dbf16, 2, 0 },
};
/* clang-format on */
enum { NFORM = sizeof forms / sizeof *forms };

static Attention all[NFORM];

int main(int argc, char **argv)
{
    int64_t space = attn_workspace_bytes;
    Group **k = NULL;
    int bad = 0;

    for (int i = 0; i < NFORM; i++) {
        attn_workspace_bytes = forms[i].space ? forms[i].space : space;
        attention_make(&all[i], &forms[i].c, forms[i].dt);
        if (argc > 1 && !strstr(forms[i].c.name, argv[1]))
            continue;
        vec_push(forever, k, &all[i].r.fwd);
        vec_push(forever, k, &all[i].r.bwd);
    }
    if (!attention_prepare(all, NFORM) ||
        !emurun_compile(forever, k, (int)vec_len(k)))
        return printf("not ok - attention: kernels do not compile\n"), 1;
    for (int i = 0; i < NFORM; i++) {
        uint64_t bits, first = 0;
        double worst = 0;
        int differ = 0;
        if (argc > 1 && !strstr(forms[i].c.name, argv[1]))
            continue;
        for (unsigned order = 0; order < (unsigned)forms[i].orders; order++) {
            emu_order(order);
            worst = fmax(worst, attention_error(&all[i], &bits));
            first = order ? first : bits;
            differ += bits != first;
        }
        int turns = all[i].r.bwd.instr.launch.pairs > 1;
        int wrong = !(worst <= 1) || differ || turns != (forms[i].space > 0);
        printf("%s - attention %s: %.2f of what is allowed, bits differ in %d "
               "orders\n",
               wrong ? "not ok" : "ok", forms[i].c.name, worst, differ);
        fflush(stdout);
        bad |= wrong;
    }
    emurun_close();
    return bad;
}
