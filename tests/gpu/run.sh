#!/bin/sh
# run.sh [GPUS]: the tests that need GPUs, as TAP. Needs build/pleat alone: plans
# are made here. Stated tolerances are of the loss, relative to the host's:
#   fp32   1e-4 over 100 steps     other orders of sums, which training amplifies
#   bf16   2e-2 over 100 steps     ... and roundings to 8 bits
#   folds  2e-2 against one GPU    the same in bf16
# Replay against plain launches, and two runs: every digit the log keeps.
cd "$(dirname "$0")/../.." || exit 2
PLEAT=$PWD/${PLEAT:-build/pleat} gpus=${1:-1} steps=${STEPS:-100}
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
export NCCL_NVLS_ENABLE=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
passed=0 failed=0

result() {
    if [ "$2" = 0 ]; then echo "ok - gpu: $1"; passed=$((passed + 1))
    else echo "not ok - gpu: $1"; failed=$((failed + 1)); sed 's/^/# /' "$dir/why" | tail -n 5; fi
}

# train NAME RANKS key=value...: losses of all steps to NAME.loss
train() {
    name=$1 ranks=$2
    shift 2
    cmd="$PLEAT run models/tiny.lua train.steps=$steps train.log_every=1 train.eval_every=0 name=$dir/$name"
    if [ "$ranks" = 1 ]; then $cmd "$@"
    else mpirun -np "$ranks" --bind-to none $cmd "$@"; fi >"$dir/$name.out" 2>&1 ||
        { cat "$dir/$name.out" >"$dir/why"; return 1; }
    sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([-+.0-9e]*\).*/\1 \2/p' \
        "$dir/$name/metrics.jsonl" >"$dir/$name.loss"
    [ "$(wc -l <"$dir/$name.loss")" -ge "$steps" ]
}

# close A B tolerance: largest relative difference of the losses
close() {
    paste "$dir/$1.loss" "$dir/$2.loss" | awk -v tol="$3" '
        NF != 4 || $1 != $3 { bad = 1; print "other steps: " $0 }
        { d = ($2 - $4) / $4; d = d < 0 ? -d : d; if (d > most) { most = d; at = $1 } }
        END { printf "largest difference %g at step %d, allowed %g\n", most, at, tol
              exit bad || !NR || most > tol }' >"$dir/why"
}

same() { cmp "$dir/$1.loss" "$dir/$2.loss" >"$dir/why" 2>&1; }

for type in fp32 bf16; do
    tol=1e-4 && [ $type = bf16 ] && tol=2e-2
    train host.$type 1 target=host precision=$type &&
        train cuda.$type 1 target=cuda precision=$type && close cuda.$type host.$type $tol
    result "$steps steps of tiny.lua, $type, against the host" $?
    train again.$type 1 target=cuda precision=$type && same cuda.$type again.$type
    result "two runs, $type: the same bits" $?
    PLEAT_NOGRAPH=1 train plain.$type 1 target=cuda precision=$type &&
        same cuda.$type plain.$type
    result "plain launches against replay, $type: the same bits" $?
done
for fold in 2:fold.ep=2 2:fold.tp=2 2:fold.cp=2 2:fold.pp=2 2:fold.dp=2 \
    4:fold.ep=4 4:fold.pp=4 "4:fold.pp=2 fold.ep=2" "4:fold.tp=2 fold.ep=4" \
    "4:fold.cp=4 fold.ep=2"; do
    n=${fold%%:*} keys=${fold#*:}
    [ "$n" -le "$gpus" ] || continue
    id=$(echo "f$n$keys" | tr ' =' '__')
    # shellcheck disable=SC2086
    train "$id" "$n" target=cuda precision=bf16 $keys && close "$id" cuda.bf16 2e-2
    result "$n GPUs, $keys, against one" $?
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
