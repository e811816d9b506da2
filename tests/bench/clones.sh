#!/bin/sh
# clones.sh [GPUS]: a step of LAYERS (4) layers of Qwen3's widths, experts spread
# over all GPUs (2), whose router is skewed (ODDS, zipf:1: experts are drawn by
# route.assume, the hottest on the first GPU), without clones of hot experts and
# with CLONES (0 1 2 4) slots for them on each GPU (route.clones). Printed are the
# rows of the fullest GPU over an equal share, as expected; milliseconds of a step,
# predicted and measured (medians of ROUNDS, 3, alternately; PREDICT=1: not
# measured); GiB of a GPU. BATCH (4) sequences a micro-batch, MICROS (2) of them a
# step, MODEL (qwen3_moe), KEYS for other plans.
cd "$(dirname "$0")/../.." || exit 2
gpus=${1:-2}
: "${PLEAT:=build/pleat}" "${ROUNDS:=3}" "${CLONES:=0 1 2 4}" "${ODDS:=zipf:1}" \
    "${LAYERS:=4}" "${BATCH:=4}" "${MICROS:=2}" "${MODEL:=qwen3_moe}"
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
export NCCL_NVLS_ENABLE=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

sed -e "s/^local layers, eps = [0-9]*/local layers, eps = $LAYERS/" -e '/^hf {/,/^}/d' \
    "models/$MODEL.lua" >"$dir/model.lua"
for n in $CLONES; do
    # shellcheck disable=SC2086
    "$PLEAT" compile "$dir/model.lua" target=cuda train.clip=0 world="$gpus" \
        fold.ep="$gpus" axes.batch="$BATCH" train.batch=$((BATCH * MICROS * gpus)) \
        route.balance=assumed route.assume="$ODDS" route.factor=2 route.clones="$n" \
        $KEYS -o "$dir/$n" -d why >"$dir/$n.why" 2>&1 || { tail -n 3 "$dir/$n.why"; exit 1; }
done
# bench PLAN: milliseconds of a step
bench() {
    mpirun -np "$gpus" --bind-to none "$PLEAT" bench "$1" >"$dir/out" 2>&1 ||
        tail -n 3 "$dir/out" >&2
    sed -n '$s/^ms \([0-9.]*\) .*/\1/p' "$dir/out"
}
for i in $([ "$PREDICT" ] || seq "$ROUNDS"); do
    for n in $CLONES; do bench "$dir/$n" >>"$dir/$n.ms"; done
done
word() { sed -n "s/.*$1 \([0-9.]*\) $2.*/\1/p" "$dir/$3.why" | head -n 1; }
for n in $CLONES; do
    load=$(word "with clones" "*, of which" "$n")
    [ "$n" != 0 ] || for k in $CLONES; do
        [ "$k" = 0 ] || load=$(word "fullest rank has" times "$k")
    done
    ms=$([ ! -s "$dir/$n.ms" ] || sort -g "$dir/$n.ms" |
        awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')
    "$PLEAT" show "$dir/$n" >"$dir/show"
    echo "$n ${load:--} $(sed -n 's/^program step .*predicted \([0-9.]*\) ms/\1/p' "$dir/show") ${ms:--}" \
        "$(sed -n 's/^memory of a rank *\([0-9.]*\) GiB.*/\1/p' "$dir/show")"
done | awk -v gpus="$gpus" '
    { printf "%d GPUs, %d clones: fullest %s, predicted %s ms, measured %s ms, %s GiB\n", gpus, $1, $2, $3, $4, $5 }'
