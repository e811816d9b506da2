#!/bin/sh
# neighbours: no setting given by hand makes a plan fit that is refused without,
# over models, pipeline stages and limits: offloads, fold.zero. No offload given
# by hand is 1 % faster. PLEAT_ALL=1: 60 cases in place of 6; CASES=300 SEED=1:
# others, as many. precision.moments and the micro-batch change numbers: compile
# proposes them (search.sh).
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/neighbours
rm -rf "$dir" && mkdir -p "$dir" || exit 2
bad=0 cases=6 hand="moments moments,masters"
[ -z "$PLEAT_ALL" ] || cases=60
cases=${CASES:-$cases}
[ "$cases" = 6 ] || hand="moments masters moments,masters activations,moments,masters"

# layers MODEL N: a model of so many layers
layers() {
    sed "s/^\(local layers, .*eps = \)[0-9]*/\1$2/" "models/$1.lua" >"$dir/$1$2.lua"
}
for n in 2 3 4; do for m in qwen3_moe mixtral deepseek_v2_lite; do layers $m $n; done; done
cd "$dir" || exit 2

# price KEYS..: ms of a step and GiB of a rank; 1e9 where it does not fit
price() {
    "$PLEAT" compile "$@" target=null -o plan >said 2>&1 || { echo 1e9 0; return; }
    sed -n 's/.* \([0-9.]*\) GiB each, predicted \([0-9.]*\) ms.*/\2 \1/p' said
}

# check MODEL PP EP SHARE: at a SHARE of what lies between the least and all
check() {
    keys="$1.lua cluster=h100x$(($2 * $3)) fold.pp=$2 fold.ep=$3 train.batch=$((16 * $3)) axes.batch=1"
    # shellcheck disable=SC2086
    all=$(price $keys memory=9999GiB | cut -d' ' -f2)
    # shellcheck disable=SC2086
    "$PLEAT" compile $keys target=null memory=1B -o plan 2>&1 |
        sed -n 's/.*a rank needs \([0-9.]*\) GiB.*/\1/p' >least
    memory=$(awk -v a="$all" -v s="$4" '{ print $1 * 0.5 + s * (a - $1 * 0.5) }' least)
    # shellcheck disable=SC2086
    {
        price $keys memory="${memory}GiB"
        for k in $hand; do price $keys memory="${memory}GiB" train.offload=$k; done
        [ "$(head -n 1 prices)" != "1e9 0" ] || for k in 2 3; do
            price $keys memory="${memory}GiB" fold.zero=$k
        done
    } >prices
    if awk 'NR == 1 { own = $1; next } $1 * 1.01 < own { bad = 1 } END { exit bad || NR < 3 }' prices; then
        echo "ok - neighbours: $keys memory=${memory}GiB: $(head -n 1 prices) ms and GiB"
    else
        echo "not ok - neighbours: $keys memory=${memory}GiB" && bad=1
        sed 's/^/# /' prices
    fi
}

awk -v n="$cases" -v seed="${SEED:-49}" 'BEGIN {
    srand(seed); split("qwen3_moe mixtral deepseek_v2_lite", model, " "); split("2 3 4", layers, " ")
    for (i = 0; i < n; i++)
        print model[1 + i % 3] layers[1 + int(3 * rand())], 1 + (i + 1) % 3, 2 ^ int(3 * rand()), rand()
}' >list
while read -r model pp ep share; do
    check "$model" "$pp" "$ep" "$share"
done <list
exit $bad
