#!/bin/sh
# wire: rows that go to experts as numbers of 8 bits and scales, or rounded after
# they came: the same bits of losses and weights; the bytes of the rows.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
export KERNELS=gcc
dir=$PWD/build/tests/wire
rm -rf "$dir" && mkdir -p "$dir" || exit 2
. tests/expect

common="train.batch=8 precision=fp8 precision.place=all data.train=README.md"

# run RANKS WIRE DISPATCHER
run() {
    mpirun --oversubscribe --allow-run-as-root -n "$1" "$PLEAT" run tests/hf/mixtral-aux.lua $common axes.hidden=256 fold.ep="$1" \
        target=host train.steps=2 precision.wire="$2" route.dispatcher="$3" name="$dir/$1$2$3" || return
    grep -o '"loss": *[^,]*\|"gnorm": *[^,]*' "$dir/$1$2$3/metrics.jsonl" >"$dir/$1$2$3.lines"
    [ -s "$dir/$1$2$3.lines" ]
}
same() {
    cmp "$dir/$1.lines" "$dir/$2.lines" || return
    for f in model optim; do
        cmp "$dir/$1/ckpt/step-00000002/$f.safetensors" "$dir/$2/ckpt/step-00000002/$f.safetensors" || return
    done
}

for ranks in 2 4; do
    for way in alltoall peer; do
        is "$ranks ranks, $way, sent in e4m3" 0 run $ranks all $way
        is "$ranks ranks, $way, rounded after they came" 0 run $ranks arrived $way
        is "$ranks ranks, $way: the same bits" 0 same ${ranks}all$way ${ranks}arrived$way
    done
done
is "rows as they are" 0 run 2 none alltoall
is "other bits than those" 1 cmp "$dir/2nonealltoall.lines" "$dir/2allalltoall.lines"

# bytes HIDDEN WIRE: what a step exchanges; what goes beside the rows, choices and
# their weights, is the same for each hidden.
bytes() {
    "$PLEAT" run tests/hf/mixtral-aux.lua $common axes.hidden="$1" fold.ep=2 target=null train.steps=1 \
        route.dispatcher=alltoall precision.wire="$2" name="$dir/null" 2>&1 | awk '$2 == "alltoall" { print $NF }'
}
# All four transfers of a layer's rows, beside bf16's.
share() {
    wide=$(bytes 512 none) thin=$(bytes 256 none)
    few=$(bytes 512 all) fewer=$(bytes 256 all)
    awk -v a="$few" -v b="$fewer" -v c="$wide" -v d="$thin" \
        'BEGIN { printf "%.3f of the bytes of bf16\n", (a - b) / (c - d) }'
}
is "bytes of rows" 0 share
says "dispatch in e4m3, combine in bf16: 0.76" "0.758 of the bytes of bf16"
printf '1..%d\n' $n
exit $bad
