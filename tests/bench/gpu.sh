#!/bin/sh
# gpu.sh PEER.py [GPUS]: tokens a second of ours and of a PyTorch peer, measured
# alternately in one run on the same GPUs: the same widths, layers, sequence,
# sequences a micro-batch and micro-batches a step; bf16 with fp32 masters, no
# clipping. Times are medians of ROUNDS rounds (3). Needs build/pleat and PyTorch.
# With 4 GPUs: 16 layers, experts over all of them; else the rows of one GPU.
# BALANCED=1 forces equal loads on both sides (default: learned routing).
# PEER=0 leaves the peer out, RUNS="qwen3:4:1:1 ..." chooses rows
# (model:layers:sequences:micro-batches).
cd "$(dirname "$0")/../.." || exit 2
peer=$1 gpus=${2:-1} rounds=${ROUNDS:-3}
[ -n "$peer" ] || { sed -n 2,9p tests/bench/gpu.sh; exit 2; }
PLEAT=$PWD/${PLEAT:-build/pleat}
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
export NCCL_NVLS_ENABLE=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
balance=learned && [ "${BALANCED:-0}" = 1 ] && balance=forced
if [ "$gpus" = 1 ]; then
    rows=${RUNS:-qwen3:4:1:1 qwen3:4:4:1 qwen3:4:4:4 mixtral:2:4:1}
else
    rows=${RUNS:-qwen3:16:1:1 qwen3:16:2:2}
fi

median() { sort -n | awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : "" }'; }
field() { sed -n "s/.*\"$1\": \([0-9.e+-]*\).*/\1/p" | tail -n 1; }
word() { tail -n 1 "$1" | tr ' ' '\n' | grep -A1 "^$2\$" | tail -n 1; }

# A model of ours with fewer layers.
cut() {
    case $1 in
    qwen3) sed "s/^local layers, eps = 48/local layers, eps = $2/" models/qwen3_moe.lua ;;
    mixtral) sed "s/^local layers = 32/local layers = $2/" models/mixtral.lua ;;
    esac
}

ours() {
    if [ "$gpus" = 1 ]; then "$PLEAT" bench "$1"
    else mpirun -np "$gpus" --bind-to none "$PLEAT" bench "$1"; fi
}

theirs() {
    if [ "$gpus" = 1 ]; then python3 "$peer" "$@"
    else torchrun --nproc-per-node "$gpus" "$peer" --ep "$gpus" "$@"; fi
}

printf '%-24s %12s %12s %7s %9s %9s %9s\n' "model layers batch/accum" "ours tok/s" \
    "peer tok/s" ratio "ours ms" "peer ms" "host ms"
for row in $rows; do
    IFS=: read -r model layers batch accum <<EOF
$row
EOF
    cut "$model" "$layers" >"$dir/m.lua"
    "$PLEAT" compile "$dir/m.lua" target=cuda axes.batch="$batch" train.clip=0 \
        train.batch=$((batch * accum * gpus)) world="$gpus" fold.ep="$gpus" \
        route.balance="$balance" \
        -o "$dir/m.plan" >"$dir/log" 2>&1 || { cat "$dir/log"; continue; }
    preset=qwen3-30b-a3b && [ "$model" = mixtral ] && preset=mixtral-8x7b
    : >"$dir/a" && : >"$dir/b" && : >"$dir/h"
    for i in $(seq "$rounds"); do
        ours "$dir/m.plan" >"$dir/out" 2>&1 || tail -n 2 "$dir/out"
        word "$dir/out" ms >>"$dir/a"
        word "$dir/out" host_ms >>"$dir/h"
        [ "$PEER" = 0 ] && continue
        theirs --preset $preset --layers "$layers" --batch "$batch" \
            --accum "$accum" --balanced "${BALANCED:-0}" >"$dir/out" 2>&1 ||
            tail -n 2 "$dir/out"
        field step_ms_median <"$dir/out" >>"$dir/b"
    done
    echo "$(median <"$dir/a") $(median <"$dir/b") $(median <"$dir/h")" |
        awk -v n="$model $layers $batch/$accum" -v PEER="$PEER" \
            -v tok=$((batch * accum * gpus * 4096)) '
        { a = $1; b = PEER == "0" ? 0 : $2; h = $NF
          printf "%-24s %12.0f %12s %7s %9.2f %9s %9.3f\n", n, tok / a * 1e3,
              b ? sprintf("%.0f", tok / b * 1e3) : "-",
              b ? sprintf("%.3f", b / a) : "-", a, b ? b : "-", h }'
done
