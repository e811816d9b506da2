#!/bin/sh
# gpu.sh PEER.py [GPUS]: tokens a second and memory of ours and of a PyTorch peer,
# measured alternately in one run on the same GPUs: the same widths, layers,
# sequence, sequences a micro-batch and micro-batches a step; bf16 with fp32
# masters, no clipping. Times are medians of ROUNDS rounds (3) of a few steps, of
# which each side prints its own median or mean. Needs build/pleat and PyTorch.
#
#   plan     GiB of the plan, on one GPU      outside   all else we take there
#   peer     the most that PyTorch's tensors took at once; its context, kernels
#            and what its allocator keeps beside them is not in it
#   host     milliseconds of our host's work a step, without waiting
#   unhid    percent of our step that its collectives take beside what runs under
#            them, of several GPUs: see runtime/train/bench.c
#
# With more GPUs: 16 layers, experts over all of them; else the rows of one.
# RUNS="qwen3:4:1:1:learned ..." chooses rows: model, layers, sequences,
# micro-batches, learned routing or forced equal loads (both sides).
# PEER=0 leaves the peer out, OURS=0 us. STEPS (10), WARMUP (5): the peer's. KEYS:
# of our plans, as cluster=h100x4 where the GPUs are no H200.
cd "$(dirname "$0")/../.." || exit 2
peer=$1 gpus=${2:-1} rounds=${ROUNDS:-3}
[ -n "$peer" ] || { sed -n '2,20s/^# *//p' tests/bench/gpu.sh; exit 2; }
case ${PLEAT:=build/pleat} in /*) ;; *) PLEAT=$PWD/$PLEAT ;; esac
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
export NCCL_NVLS_ENABLE=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if [ "$gpus" = 1 ]; then
    rows=${RUNS:-qwen3:4:1:1:learned qwen3:4:1:1:forced qwen3:4:4:1:learned \
        qwen3:4:4:1:forced qwen3:4:4:4:learned qwen3:4:4:4:forced \
        mixtral:2:4:1:learned mixtral:2:4:1:forced}
else
    rows=${RUNS:-qwen3:16:1:1:learned qwen3:16:1:1:forced qwen3:16:2:2:forced}
fi

median() { sort -g | awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : "-" }'; }
# field NAME: of the peer's object; word NAME: of our last line
field() { sed -n "s/.*\"$1\": \([0-9.e+-]*\).*/\1/p" "$dir/out" | tail -n 1; }
word() { tail -n 1 "$dir/out" | tr ' ' '\n' | grep -A1 "^$1\$" | tail -n 1; }

# A model of ours with fewer layers.
cut_model() {
    case $1 in qwen3) set -- qwen3_moe "$2" ;; esac
    sed "s/^local layers, eps = [0-9]*/local layers, eps = $2/" "models/$1.lua"
}

# read ROW: model layers batch accum balance
split() {
    IFS=: read -r model layers batch accum balance <<EOF
$1
EOF
}

compile() {
    split "$1"
    cut_model "$model" "$layers" >"$dir/$1.lua"
    # shellcheck disable=SC2086
    "$PLEAT" compile "$dir/$1.lua" target=cuda axes.batch="$batch" train.clip=0 \
        train.batch=$((batch * accum * gpus)) world="$gpus" fold.ep="$gpus" \
        route.balance="$balance" $KEYS -o "$dir/$1.plan" >"$dir/$1.log" 2>&1 ||
        cat "$dir/$1.log"
}

ours() {
    if [ "$gpus" = 1 ]; then "$PLEAT" bench "$dir/$1.plan"
    else mpirun -np "$gpus" --bind-to none "$PLEAT" bench "$dir/$1.plan"
    fi >"$dir/out" 2>&1 || tail -n 2 "$dir/out"
    for w in ms host_ms arena_gib outside_gib not_hidden; do word $w >>"$dir/$1.$w"; done
}

theirs() {
    split "$1"
    preset=qwen3-30b-a3b equal=0
    [ "$model" != mixtral ] || preset=mixtral-8x7b
    [ "$balance" != forced ] || equal=1
    set -- "$1" --preset $preset --layers "$layers" --batch "$batch" --accum "$accum" \
        --balanced $equal --steps "${STEPS:-10}" --warmup "${WARMUP:-5}"
    id=$1
    shift
    if [ "$gpus" = 1 ]; then python3 "$peer" "$@"
    else torchrun --nproc-per-node "$gpus" "$peer" --ep "$gpus" "$@"
    fi >"$dir/out" 2>&1 || tail -n 2 "$dir/out"
    field step_ms_median >>"$dir/$id.peer_ms"
    field peak_mem_gib >>"$dir/$id.peer_gib"
}

# print ROW: medians of what was measured so far
print() {
    split "$1"
    for w in ms peer_ms host_ms arena_gib outside_gib peer_gib not_hidden; do
        if [ -s "$dir/$1.$w" ]; then median <"$dir/$1.$w"; else echo -; fi
    done | tr '\n' ' ' | awk -v n="$model $layers $batch/$accum $balance" \
        -v tok=$((batch * accum * gpus * 4096)) '
        function rate(ms) { return ms > 0 ? sprintf("%.0f", tok / ms * 1e3) : "-" }
        { ratio = ($1 > 0 && $2 > 0) ? sprintf("%.3f", $2 / $1) : "-"
          $6 = $6 > 0 ? sprintf("%.2f", $6) : "-"
          printf "%-26s %9s %9s %6s %8s %8s %7s %7s %7s %7s %6s\n", n, rate($1),
              rate($2), ratio, $1, $2, $3, $4, $5, $6, $7 }'
}

for row in $rows; do compile "$row" & done
wait
printf '%-26s %9s %9s %6s %8s %8s %7s %7s %7s %7s %6s\n' "model layers batch/accum" \
    "ours t/s" "peer t/s" ratio "ours ms" "peer ms" "host" "plan" "outside" "peer" "unhid"
for row in $rows; do
    [ -s "$dir/$row.plan" ] || continue
    for i in $(seq "$rounds"); do
        [ "${OURS:-1}" = 0 ] || ours "$row"
        [ "${PEER:-1}" = 0 ] || theirs "$row"
    done
    print "$row"
done
