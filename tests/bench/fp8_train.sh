#!/bin/sh
# bench/fp8_train.sh TEXT [STEPS [key=value ...]]: what products of few bits cost a
# model that trains: four layers of Qwen3-30B's widths cut to an eighth, its 128
# experts, on bytes of TEXT, in bf16 and by each recipe, all products that may be of
# few bits, three seeds each (SEEDS="1 2 .."). Of the last tenth of the steps the
# mean loss, over seeds, and how far it is from bf16's; each row has the spread of
# its seeds.
cd "$(dirname "$0")/../.." || exit 2
PLEAT=${PLEAT:-build/pleat}
[ $# -gt 0 ] || { sed -n '2,7s/^# //p' "$0"; exit 2; }
text=$1 steps=${2:-1000}
shift $(($# > 1 ? 2 : 1))
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
sed 's/^local layers, eps = 48/local layers, eps = 4/' models/qwen3_moe.lua >"$dir/model.lua"

# run NAME SEED keys...: prints the mean of the last losses
run() {
    name=$1 seed=$2
    shift 2
    $PLEAT run "$dir/model.lua" name="$dir/$name" seed="$seed" data.train="$text" train.steps="$steps" \
        axes.hidden=256 axes.kv=1 axes.group=4 axes.dim=128 axes.ffn=96 axes.vocab=256 axes.seq=512 \
        axes.batch=16 train.batch=16 train.lr=1e-3 train.min_lr=1e-4 train.warmup=$((steps / 10)) \
        train.eval_every=0 train.save_every=0 hf.except= precision.place=all "$@" >"$dir/log" 2>&1 ||
        { tail -n 3 "$dir/log" >&2; exit 1; }
    sed -n 's/^{"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' "$dir/$name/metrics.jsonl" |
        awk -v from=$((steps - steps / 10)) '$1 > from { s += $2; n++ } END { printf "%.6f\n", s / n }'
    rm -rf "${dir:?}/$name"
}

printf '%-10s %10s %10s %10s %10s\n' recipe loss "from bf16" least most
for recipe in bf16 ${RECIPES:-blockwise mxfp8}; do
    policy="precision.policy=fp8 precision.recipe=$recipe"
    [ "$recipe" != bf16 ] || policy=precision.policy=bf16
    for seed in ${SEEDS:-1 2 3}; do
        # shellcheck disable=SC2086
        run "$recipe$seed" $seed $policy "$@" || exit 1
    done | awk -v recipe="$recipe" -v file="$dir/bf16" 'NR == 1 { least = most = $1 }
        { sum += $1; if ($1 < least) least = $1; if ($1 > most) most = $1 }
        END { if (!NR) exit 1
              mean = sum / NR; if (recipe == "bf16") print mean >file; else getline bf16 <file
              printf "%-10s %10.5f %9.3f%% %9.3f%% %9.3f%%\n", recipe, mean,
                  recipe == "bf16" ? 0 : 100 * (mean / bf16 - 1), 100 * (least / mean - 1),
                  100 * (most / mean - 1) }' || exit 1
done
