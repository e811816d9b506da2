#!/bin/sh
# train: target=cuda trains on a GPU made of this processor (README.md), against
# target=host: losses, gradients and states in three precisions; the same bits
# by graphs, by plain launches, in every order of what runs beside each other,
# stopped and resumed; folds under mpirun.
#
# In fp64 sums come in another order, 1e-15 of a tensor's largest element;
# AdamW carries that on over three steps: 1e-12 shows any mistake. Tensors of
# fp32 and bf16 are held against fp64: no further from it than CHANCE times what
# the host's own are, and a floor of some roundings where the host's happen to
# be near.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/fake/train
. tests/fake/libs
fake_start "$dir" || exit 2
bad=0

# result NAME STATUS: and what stands in why
result() {
    if [ "$2" = 0 ]; then echo "ok - cuda $1: $(tail -n 1 "$dir/why")"; return; fi
    echo "not ok - cuda $1: $(tail -n 1 "$dir/why" | cut -c 1-300)"
    sed 's/^/# /' "$dir/log" | tail -n 5 | cut -c 1-300
    bad=1
}

tiny="tests/fake/tiny.lua"
steps=3
