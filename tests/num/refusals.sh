#!/bin/sh
# refusals: plans that are refused though settings by hand fit, over random
# models, folds and limits about the least that they take. What changes no number is
# taken unasked: train.offload, train.recompute, fold.zero. What changes numbers
# is proposed: a smaller micro-batch, moments in bf16, another route.stash.
#     tests/num/refusals.sh [CASES [SEED]]      4 cases, 300 with PLEAT_ALL=1
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/refusals
rm -rf "$dir" && mkdir -p "$dir" || exit 2
wrong=0 refused=0 cases=4
[ -z "$PLEAT_ALL" ] || cases=300

for m in qwen3_moe mixtral deepseek_v2_lite olmoe; do
    for n in 2 3 4; do
        sed "s/^\(local layers, .*eps = \)[0-9]*/\1$n/" "models/$m.lua" >"$dir/$m$n.lua"
    done
done
cd "$dir" || exit 2

fits() { "$PLEAT" compile "$@" -o plan >said 2>&1; }

# by_hand KEYS..: the first setting with which a plan fits; nothing: none does
by_hand() {
    for zero in "" fold.zero=2 fold.zero=3; do
        for k in "train.recompute=1e12" "train.offload=moments,masters" \
            "train.recompute=1e12 train.offload=activations,moments,masters"; do
            # shellcheck disable=SC2086
            fits "$@" $zero $k && echo "$zero $k" && return
        done
    done
    [ "$proposed" = 1 ] || for k in axes.batch=1 precision.moments=bf16 route.stash=0 route.stash=1; do
        # shellcheck disable=SC2086
        fits "$@" $k && echo "$k, which is not proposed" && return
    done
}

# check SHARE KEYS..: at a SHARE of what it takes where all is rebuilt and waits
check() {
    share=$1 && shift
    fits "$@" train.recompute=1e12 train.offload=activations,moments,masters memory=9999GiB
    least=$(sed -n 's/.* \([0-9.]*\) GiB.*, predicted .*/\1/p' said)
    [ -n "$least" ] || { wrong=$((wrong + 1)) && echo "not ok - refusals: $*: $(head -n 1 said)" && return; }
    memory=$(awk -v a="$least" -v s="$share" 'BEGIN { printf "%.4fGiB", a * s }')
    cases=$((cases + 1))
    fits "$@" "memory=$memory" && return
    refused=$((refused + 1))
    proposed=$(grep -c '^it fits with ' said)
    hand=$(by_hand "$@" "memory=$memory")
    [ -z "$hand" ] || { wrong=$((wrong + 1)) && echo "not ok - refusals: $* memory=$memory: fits with $hand"; }
}

awk -v n="${1:-$cases}" -v seed="${2:-1}" 'function pick(s,    a) { return a[1 + int(split(s, a, " ") * rand())] }
BEGIN {
    srand(seed)
    for (i = 0; i < n; i++) {
        model = pick("qwen3_moe mixtral deepseek_v2_lite olmoe"); layers = pick("2 3 4")
        pp = pick("1 1 2"); tp = pick("1 1 2"); dp = pick("1 2 4")
        ep = dp * tp
        pp = pp > layers ? 1 : pp
        batch = pick("1 2")
        print 0.8 + 0.5 * rand(), model layers ".lua", "cluster=h100x" pp * tp * dp, \
            "fold.pp=" pp, "fold.tp=" tp, "fold.ep=" ep, "axes.batch=" batch, "train.batch=" batch * dp * pick("4 8")
    }
}' >list
cases=0
while read -r share keys; do
    # shellcheck disable=SC2086
    check "$share" $keys
done <list
[ $wrong = 0 ] && echo "ok - refusals: none of $refused of $cases plans that are refused fits by hand" && exit 0
echo "not ok - refusals: $wrong of $refused plans that are refused, of $cases, fit by hand" && exit 1
