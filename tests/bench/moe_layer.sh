#!/bin/sh
# moe_layer.sh [GPUS]: an expert layer of Qwen3's widths (2048, 768, 128 experts,
# 8 of them a token), router, exchange and gradients of weights included: TFLOP/s
# a GPU of the experts' products, forward, backward and both. Experts are spread
# over all GPUs (1). Times are sums of rank 0's clocks around every instruction of
# the layer, nothing beside it; sums over a token's experts come with the residual
# that they are added to, or the norm whose gradient they are. Medians of ROUNDS (3); learned routing of made-up
# tokens; TOKENS="8192 .." a GPU, multiples of 4096; KEYS for other plans.
cd "$(dirname "$0")/../.." || exit 2
gpus=${1:-1}
: "${PLEAT:=build/pleat}" "${ROUNDS:=3}" "${TOKENS:=8192 16384 32768}"
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
export NCCL_NVLS_ENABLE=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
sed 's/^local layers, eps = [0-9]*/local layers, eps = 1/' models/qwen3_moe.lua >"$dir/model.lua"

bench() {
    if [ "$gpus" = 1 ]; then "$PLEAT" bench "$1"
    else mpirun -np "$gpus" --bind-to none "$PLEAT" bench "$1"; fi
}

for tokens in $TOKENS; do
    # shellcheck disable=SC2086
    "$PLEAT" compile "$dir/model.lua" target=cuda train.clip=0 world="$gpus" \
        fold.ep="$gpus" fold.overlap=0 fold.pair=0 axes.batch=$((tokens / 4096)) \
        train.batch=$((tokens / 4096 * gpus)) $KEYS -o "$dir/plan" >"$dir/log" 2>&1 ||
        { cat "$dir/log"; exit 1; }
    : >"$dir/rounds"
    for i in $(seq "$ROUNDS"); do
        PLEAT_LINES=1000 bench "$dir/plan" >"$dir/out" 2>&1 || tail -n 3 "$dir/out"
        awk '$10 ~ /^layers\.\*\.(moe\.|add)/ { forward += $1 }
             $10 ~ /^d\.layers\.\*\.(moe\.|ffn_norm\..*gather)/ { backward += $1 }
             /part of the model/ { exit }
             END { print forward, backward }' "$dir/out" >>"$dir/rounds"
    done
    sort -g "$dir/rounds" | awk -v tokens="$tokens" -v gpus="$gpus" '
        { f[NR] = $1; b[NR] = $2 }
        END {
            i = int((NR + 1) / 2)
            flop = tokens * 8 * 3 * 2 * 2048 * 768 / 1e9
            if (f[i] > 0 && b[i] > 0)
                printf "%d GPUs %7d tokens: forward %.3f ms %.0f, backward %.3f ms %.0f, both %.0f TFLOP/s\n",
                    gpus, tokens, f[i], flop / f[i], b[i], 2 * flop / b[i],
                    3 * flop / (f[i] + b[i])
        }'
done
