/* grouped_test: the texts of grouped products on tensor cores, run by the
 * emulation in several orders: every tile, experts without rows, with one, with
 * tiles that are not full, sizes that end inside of a box, weights cut out of
 * wider ones, results that are added to, sums of squares, rows in a stack. */
#include "emu.h"
#include "emurun.h"
#include "grouped.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* clang-format off */
#define UNEVEN 5, { 70, 0, 1, 129, 64 }
#define SIZES UNEVEN, 0, 0
#define FEW 0, 0, SIZES
#define STACK 0, 7, SIZES
#define MOST 40, { 3, 0, 0, 9, 1, 70, [31] = 5, [32] = 2, [39] = 1 }, 0, 0
#define MANY 0, 0, MOST
static const Product products[] = {
    /*              weight K    N   tw f32 tile            add sq terms more scaled base experts */
    { "rows",          0,  72, 200, 1, 0, { 128, 192, 1 }, 0, 0, 1, 0, FEW },
    { "rows turned",   0, 136, 264, 0, 0, { 128, 256, 0 }, 0, 0, 1, 0, STACK },
    { "rows f32",      0,  64, 136, 1, 1, { 128, 128, 1 }, 0, 0, 1, 24, FEW },
    { "rows narrow",   0,   8,   8, 0, 0, { 128, 64, 1 },  0, 0, 1, 8, FEW },
    { "rows low",      0, 200, 264, 1, 0, { 64, 256, 1 },  0, 0, 1, 0, FEW },
    { "sum",           0,  72, 200, 1, 0, { 128, 192, 1 }, 0, 0, 2, 0, STACK },
    { "sum turned",    0, 136, 264, 0, 1, { 128, 128, 1 }, 0, 0, 2, 8, FEW },
    { "many experts",  0,  40,  72, 1, 0, { 128, 128, 1 }, 0, 0, 1, 0, MANY },
    { "weights",       1, 136, 200, 0, 1, { 128, 192, 1 }, 0, 1, 1, 0, FEW },
    { "weights turned", 1, 200, 136, 1, 1, { 128, 256, 0 }, 1, 1, 1, 0, STACK },
    { "weights added", 1, 264, 200, 0, 1, { 128, 128, 1 }, 1, 1, 1, 16, FEW },
    { "weights bf16",  1,  72, 136, 0, 0, { 128, 64, 1 },  0, 1, 1, 0, FEW },
    { "weights updated", 1, 136, 200, 0, 1, { 128, 128, 1 }, 0, 1, 1, 0, 0, 0, UNEVEN, 2, 0 },
    { "weights updated apart", 1, 200, 136, 1, 1, { 128, 256, 0 }, 0, 0, 1, 16, 0, 0, UNEVEN, 3, 0 },
    { "weights updated narrow", 1, 264, 72, 0, 1, { 128, 64, 1 }, 0, 1, 1, 8, 0, 7, UNEVEN, 3, 0 },
    { "weights many",  1,   8,  40, 1, 1, { 64, 256, 1 },  0, 1, 1, 0, MANY },
    { "scaled",        0, 272, 328, 1, 0, { 128, 256, 0 }, 0, 0, 1, 0, 1, 0, SIZES },
    { "scaled high",   0, 144, 264, 1, 1, { 256, 128, 0 }, 0, 0, 1, 16, 1, 0, SIZES },
    { "scaled narrow", 0, 400, 200, 1, 0, { 128, 64, 0 },  0, 0, 1, 0, 1, 7, SIZES },
    { "scaled many",   0, 128, 136, 1, 0, { 128, 128, 0 }, 0, 0, 1, 0, 1, 0, MOST },
    { "scaled sum",    0, 272, 328, 1, 0, { 128, 256, 0 }, 0, 0, 2, 0, 1, 7, SIZES },
    { "scaled weights", 1, 144, 272, 0, 1, { 128, 256, 0 }, 0, 1, 1, 0, 1, 0, SIZES },
    { "scaled weights turned", 1, 208, 144, 1, 1, { 256, 128, 0 }, 1, 1, 1, 0, 1, 0, SIZES },
    { "scaled weights added", 1, 272, 160, 0, 1, { 128, 128, 0 }, 1, 1, 1, 16, 1, 0, SIZES },
    { "scaled weights bf16", 1, 80, 208, 0, 0, { 128, 192, 0 }, 0, 0, 1, 0, 1, 0, SIZES },
    { "scaled weights updated", 1, 144, 272, 0, 1, { 128, 128, 0 }, 0, 1, 1, 0, 1, 0, UNEVEN, 2, 0 },
    { "scaled weights updated turned", 1, 208, 144, 1, 1, { 128, 128, 0 }, 0, 0, 1, 16, 1, 0, UNEVEN, 2, 0 },
    { "scaled weights rounded", 1, 272, 144, 0, 1, { 128, 128, 0 }, 0, 1, 1, 0, 1, 0, UNEVEN, 2, 1 },
    { "weights rounded", 1, 200, 136, 1, 1, { 128, 128, 1 }, 0, 1, 1, 16, 0, 7, UNEVEN, 2, 1 },
    { "scaled weights many", 1, 16, 48, 1, 1, { 128, 64, 0 }, 0, 1, 1, 0, 1, 0, MOST },
};
/* clang-format on */
enum { NPRODUCT = sizeof products / sizeof *products, ORDERS = 4 };

int main(void)
{
    Group *k[NPRODUCT];
    int bad = 0;

    setenv("PLEAT_OPT", "0", 1); /* compilers take most of the time */
    for (int i = 0; i < NPRODUCT; i++)
        k[i] = product_group(forever, &products[i]);
    if (!emurun_compile(forever, k, NPRODUCT))
        return printf("not ok - grouped: texts do not compile\n"), 1;
    for (int i = 0; i < NPRODUCT; i++) {
        uint64_t bits[ORDERS];
        double worst = 0;
        int differ = 0;
        for (unsigned order = 0; order < ORDERS; order++) {
            emu_order(order);
            double e = product_error(&products[i], k[i], &bits[order]);
            worst = fmax(worst, e);
            differ += bits[order] != bits[0];
        }
        int wrong = !(worst <= 1) || differ;
        printf("%s - grouped %s: %.2f of what is allowed, bits differ in %d "
               "orders\n",
               wrong ? "not ok" : "ok", products[i].name, worst, differ);
        bad |= wrong;
    }
    emurun_close();
    return bad;
}
