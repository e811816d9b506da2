#!/bin/sh
# activations: what plans of Qwen3-30B keep for the backward, without a GPU. A
# rank's memory is at most what `memory` gives, or what is stated; a step sends what it sends where
# nothing is stored again (train.recompute=0): no collective runs twice; a
# fallback, which gathers all tokens, fits where its step does. In 76 GiB masters
# wait in the host's memory.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/activations
rm -rf "$dir" && mkdir -p "$dir" || exit 2
bad=0

# result NAME FOUND: ok where nothing was found
result() {
    if [ -z "$2" ]; then echo "ok - activations: $1"; return; fi
    echo "not ok - activations: $1"
    echo "# $2"
    bad=1
}

# plan NAME KEYS...: makes $dir/NAME, what `show` says of it
plan() {
    name=$1
    shift
    "$PLEAT" compile "${model:-models/qwen3_moe.lua}" -o "$dir/plan" target=null \
        axes.batch=1 route.factor=1.25 "$@" >"$dir/log" 2>&1 &&
        "$PLEAT" show "$dir/plan" >"$dir/$name" 2>>"$dir/log" && return
    sed 's/^/# /' "$dir/log"
    result "$name" "no plan"
}

# most NAME GIB: the largest memory of a rank
most() {
    result "$1: at most $2 GiB" "$(awk -v most="$2" '
        /^memory of a rank/ { x = $6 == "GiB" ? $5 : $5 / 1024
            if (x > m) m = x }
        END { if (!m || m > most) print m " GiB" }' "$dir/$1")"
}

# sent NAME: collectives of the step
sent() {
    awk '/^program/ { step = $2 == "step" }
        step && /of them/ { for (i = 1; i < NF; i++)
            if ($(i + 1) ~ /^(all|reduce)/) print $i, $(i + 1) }' "$dir/$1"
}

# fallback NAME: of each stage
fallback() {
    result "$1: a fallback fits where its step does" "$(awk '
        /^program/ { p = $2 }
        /^  temporary/ { x = $3 ~ /^GiB/ ? $2 : $2 / 1024
            if (p == "step") step = x
            if (p == "step.fallback" && x > step)
                print x " GiB, step " step }' "$dir/$1")"
}

# Eight GPUs, and eight hosts of eight.
sed 's/^local layers, eps = [0-9]*/local layers, eps = 6/' models/qwen3_moe.lua >"$dir/few.lua"
model=$dir/few.lua
plan free world=8 fold.ep=8 train.batch=128 train.recompute=0
plan all world=8 fold.ep=8 train.batch=128 train.recompute=1e12
model=
plan one world=8 fold.ep=8 train.batch=128 memory=76GiB
plan named world=8 fold.ep=8 train.batch=128 fold.pair=0 \
    train.recompute=moe_act,layernorm
plan three world=8 fold.ep=8 train.batch=128 fold.zero=3 train.recompute=8
plan stages world=64 fold.ep=8 fold.pp=4 train.batch=512 fold.overlap=0 \
    train.recompute=2.4
most one 76
most named 94
most three 80
most stages 25
[ "$(sent all)" = "$(sent free)" ] && [ -n "$(sent all)" ] && no= || no=$(sent all)
result "all: no collective runs twice" "$no"
fallback stages
grep -q '^  offloaded' "$dir/one" && no= || no="nothing is offloaded"
result "one: masters wait in the host's memory" "$no"
exit $bad
