#!/bin/sh
# random: random models of the language (tests/random) on a GPU made of this
# processor (README.md): losses, gradients and states of a step in fp64, fp32 and
# bf16 against the reference, as far apart as rounding may move them; of some,
# products of few bits, those in fp64 as near to the host's as fp64 is. Arguments
# are random_test's, in place of some seeds, with PLEAT_ALL=1 many.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/fake/random
. tests/fake/libs
fake_start "$dir" || exit 2
# examine ARGUMENTS...
examine() {
    on_gpu "" "$(dirname "$PLEAT")/tests/random/random_test" --only cuda,cudafp32,cudabf16 "$@"
}
bad=0
if [ $# = 0 ]; then
    examine --keys "precision.recipe=blockwise precision.place=all" \
        --seeds "1-$([ "$PLEAT_ALL" ] && echo 50 || echo 2)" || bad=1
    set -- --program tests/random/kept/cuda_wide_load_of_split_index.lua \
        --program tests/random/kept/cuda_in_place_of_what_all_read.lua \
        --program tests/random/kept/cuda_sum_in_one_order.lua \
        --seeds "1-$([ "$PLEAT_ALL" ] && echo 150 || echo 4)"
fi
examine "$@" && [ $bad = 0 ]
