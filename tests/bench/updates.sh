#!/bin/sh
# bench/updates.sh [ROUNDS]: experts' weights updated by the products that make their
# gradients (train.skip_bad=0) and behind them (1), with experts' products of 8 bits:
# ms a step, alternately, of one GPU, and of that the experts' gradients and updates;
# GiB of both plans; what is predicted. Before that a small model trains a few steps
# both ways: the same bits. Cluster: KEYS.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
rounds=${1:-2}
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
sed 's/^local layers, eps = [0-9]*/local layers, eps = 2/' models/mixtral.lua >"$dir/mixtral.lua"
sed 's/^local layers, dense_layers, eps = [0-9]*, [0-9]*/local layers, dense_layers, eps = 2, 1/
    s/^local mtp, mtp_weight = 1/local mtp, mtp_weight = 0/' models/deepseek_v3.lua >"$dir/deepseek.lua"

# train NAME SKIP keys...
train() {
    name=$1 skip=$2
    shift 2
    "$PLEAT" run "$dir/mixtral.lua" target=cuda precision=fp8 precision.place=all precision.wgrad=all hf.except= \
        train.steps=4 train.eval_every=0 train.clip=0 train.skip_bad="$skip" axes.batch=4 train.batch=4 \
        data.train=LICENSE axes.vocab=256 name="$dir/$name" "$@" >"$dir/log" 2>&1 || tail -n 3 "$dir/log"
}
# same WORDS keys...
same() {
    words=$1
    shift
    # shellcheck disable=SC2086
    set -- ${AXES:-axes.seq=384 axes.hidden=512 axes.kv=1 axes.group=4 axes.ffn=784} "$@"
    train apart 1 "$@"
    train product 0 "$@"
    printf '%-34s %s\n' "$words" "$("$PLEAT" ckpt diff "$dir/apart" "$dir/product" 2>&1 | tail -n 1 | sed "s#$dir/##g")"
    rm -rf "${dir:?}/apart" "${dir:?}/product"
}

# plan MODEL PRIMARY SKIP keys...
plan() {
    model=$1 primary=$2 skip=$3
    shift 3
    # shellcheck disable=SC2086
    "$PLEAT" compile "$dir/$model.lua" target=cuda precision=fp8 precision.primary="$primary" train.clip=0 \
        train.skip_bad="$skip" "$@" $KEYS -o "$dir/$model.$primary.$skip.plan" >"$dir/$model.$primary.$skip.log" 2>&1 ||
        cat "$dir/$model.$primary.$skip.log"
}
# time PLAN: its step's ms are added to PLAN.ms
time_plan() {
    "$PLEAT" bench "$1" >"$dir/out" 2>&1 || tail -n 2 "$dir/out"
    part=$(awk '$1 == $1 + 0 && /gmm_wgrad|post\.layers.*moe\.w[123]/ { s += $1 } END { printf "%.2f", s }' "$dir/out")
    echo "$(tail -n 1 "$dir/out" | tr ' ' '\n' | grep -A1 '^ms$' | tail -n 1) $part" >>"$1.ms"
}
# of MODEL PRIMARY SKIP: the least of its times, with what is experts' of that, GiB,
# what is predicted
of() {
    ms=$(sort -g "$dir/$1.$2.$3.plan.ms" | head -n 1)
    echo "$ms $(sed -n 's/.*, \([0-9.]* GiB\), predicted \([0-9.]*\) ms.*/\1 \2/p' "$dir/$1.$2.$3.log")"
}

same "primary=none"
same "primary=all" precision.primary=all
same "primary=all, gradients of bf16" precision.primary=all precision.wgrad=none
for primary in all none; do
    for skip in 1 0; do
        plan mixtral $primary $skip axes.batch=4 train.batch=4
    done
done
for skip in 1 0; do
    plan deepseek all $skip axes.expert=64 axes.batch=2 train.batch=2
done
for round in $(seq "$rounds"); do
    for p in mixtral.all mixtral.none deepseek.all; do
        for skip in 1 0; do
            [ "$round" -gt 1 ] && [ $p = deepseek.all ] || time_plan "$dir/$p.$skip.plan"
        done
    done
done
printf '%-24s %-42s %s\n' "model, primary" "apart: ms, experts', GiB, predicted" "by the product"
for p in "mixtral all" "mixtral none" "deepseek all"; do
    # shellcheck disable=SC2086
    printf '%-24s %-42s %s\n' "$p" "$(of $p 1)" "$(of $p 0)"
done
