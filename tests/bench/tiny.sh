#!/bin/sh
# bench/tiny.sh [ROUNDS]: a step of models/tiny.lua on this machine's CPU, ours and
# PyTorch's (torch_tiny.py), alternately, the best of each: tokens a second and the
# quotient. Both get the kernels of OpenBLAS that ours chooses: Debian's PyTorch
# uses that library too; others bring their own. PYTHON names one that has torch.
cd "$(dirname "$0")/../.." || exit 2
PLEAT=${PLEAT:-build/pleat}
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
row() { printf '  %-56s %14s  %s\n' "$1" "$2" "$3"; }
more() { printf '%s\n%s\n' "$1" "$2" | sort -g | tail -n 1; }

core=$($PLEAT doctor | sed -n 's/^blas .*kernels for \([A-Za-z0-9]*\).*/\1/p')
export OPENBLAS_CORETYPE="${OPENBLAS_CORETYPE:-$core}"
row "kernels of OpenBLAS" "$OPENBLAS_CORETYPE"
ours1=0 ours2=0 theirs=0 line=
for round in $(seq "${1:-1}"); do
    for threads in 1 2; do
        PLEAT_THREADS=$threads $PLEAT run models/tiny.lua name="$dir/run$round$threads" target=host \
            train.steps=40 data.train=LICENSE data.valid=LICENSE train.eval_steps=1 \
            >"$dir/log" 2>&1 || { tail -n 3 "$dir/log"; exit 1; }
        tps=$(sed -n 's/.*"tokens_per_s": *\([0-9.e+]*\).*/\1/p' \
            "$dir/run$round$threads/metrics.jsonl" | sort -g | tail -n 1)
        if [ $threads = 1 ]; then ours1=$(more "$ours1" "$tps"); else ours2=$(more "$ours2" "$tps"); fi
    done
    peer=$("${PYTHON:-/usr/bin/python3}" tests/bench/torch_tiny.py 2>&1 | tail -n 1)
    tps=$(echo "$peer" | sed -n 's/.*tokens\/s \([0-9]*\).*/\1/p')
    theirs=$(more "$theirs" "${tps:-0}")
    [ "$theirs" != "${tps:-0}" ] || line=$peer
done
fastest=$(more "$ours1" "$ours2")
row "pleat, threads: 1" "$(printf %.0f "$ours1") tok/s"
row "pleat, threads: 2" "$(printf %.0f "$ours2") tok/s"
echo "  $line"
[ "$theirs" = 0 ] || row "pleat over torch" "$(awk "BEGIN { printf \"%.2f\", $fastest / $theirs }")x" "goal >= 1.5"
echo "fastest $fastest" >"${FASTEST:-/dev/null}"
