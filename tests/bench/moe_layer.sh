#!/bin/sh
# moe_layer.sh [GPUS]: TFLOP/s a GPU of an expert layer, forward and backward, with
# its norm, router, exchange and gradients of weights: Qwen3's widths (2048, 768,
# 128 experts, 8 of them a token), experts spread over all GPUs (1), FLOPs of
# experts' products alone. Whole steps, as a run has them, of models without
# attention: what two layers more take in each of two micro-batches more, so
# neither the head nor updates count. Routing of equal loads (BALANCE=learned:
# learned); medians of ROUNDS (3). TOKENS="8192 .." a GPU, multiples of 4096; KEYS
# for other plans.
cd "$(dirname "$0")/../.." || exit 2
gpus=${1:-1}
: "${PLEAT:=build/pleat}" "${ROUNDS:=3}" "${TOKENS:=8192 16384 32768}"
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
export NCCL_NVLS_ENABLE=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# compile TOKENS LAYERS MICROS
compile() {
    sed -e "s/^local layers, eps = [0-9]*/local layers, eps = $2/" \
        -e 's/^  local h = x + scope("attn".*/  local h = x/' -e '/^hf {/,/^}/d' \
        models/qwen3_moe.lua >"$dir/$2.lua"
    # shellcheck disable=SC2086
    "$PLEAT" compile "$dir/$2.lua" target=cuda train.clip=0 world="$gpus" \
        fold.ep="$gpus" axes.vocab=4096 axes.batch=$(($1 / 4096)) \
        train.batch=$(($1 / 4096 * gpus * $3)) route.balance="${BALANCE:-forced}" \
        $KEYS -o "$dir/$2.$3" >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
}

# bench PLAN: milliseconds of a step
bench() {
    if [ "$gpus" = 1 ]; then "$PLEAT" bench "$1"
    else mpirun -np "$gpus" --bind-to none "$PLEAT" bench "$1"; fi >"$dir/out" 2>&1 ||
        tail -n 3 "$dir/out" >&2
    sed -n '$s/^ms \([0-9.]*\) .*/\1/p' "$dir/out"
}

for tokens in $TOKENS; do
    for layers in 2 4; do
        for micros in 2 4; do compile "$tokens" $layers $micros; done
    done
    for i in $(seq "$ROUNDS"); do
        echo "$(bench "$dir/4.4") $(bench "$dir/4.2") $(bench "$dir/2.4") $(bench "$dir/2.2")"
    done | awk '{ print ($1 - $2 - $3 + $4) / 4 }' | sort -g |
        awk -v tokens="$tokens" -v gpus="$gpus" '
            { v[NR] = $1 }
            END {
                ms = v[int((NR + 1) / 2)]
                flop = 3 * tokens * 8 * 3 * 2 * 2048 * 768 / 1e9
                printf "%d GPUs %7d tokens: %.3f ms a layer, %.0f TFLOP/s\n", gpus, tokens, ms, flop / ms
            }'
done
