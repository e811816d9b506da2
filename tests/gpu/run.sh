#!/bin/sh
# run.sh [GPUS]: the tests that need GPUs, as TAP. Needs build/pleat and the test
# programs that `ninja gpu-test` builds; plans are made here.
#
# Kernels and models against the host's: rows_test.c, models_test.c,
# routes_test.c, hf_test.c, budget_test.c say their tolerances.
#
# 100 steps of tiny.lua against the host. Distances are the largest relative
# difference of a loss from the host's run in fp64, over all steps so far.
# Training a router amplifies: two runs of the *host* in fp32 that sum in another
# order (one rank, tp=2, ep=2) are 1e-7 from fp64 after ten steps, 4e-4 after 30
# and 1e-2 after 50, when the first tokens have gone to other experts. So:
#   fp64   1e-8 over all steps: what the log prints. The amplification, 1e5, acts
#          on roundings of 1e-16; an error of 1e-8 in any kernel would show
#   fp32   5e-7 over the first 10 steps, 4 roundings of a loss, where little is
#          amplified: an error of 1e-5 in a kernel would show;
#          then no further than twice the farthest of three runs of the host
#   bf16   2e-3 over the first 10 steps, half a rounding; then the same. What a
#          kernel of this type may do is held tighter in rows_test.c
# Replay against plain launches, and two runs: every digit the log keeps. Folds
# against one GPU in fp64 as above: 1e-8.
#
# STEPS=n instead of 100. HOST=folder: keep the host's losses there.
# ONLY="rows train ..." chooses parts, TYPES="fp64" and FOLDS="4:fold.ep=4,..." of
# folds.
cd "$(dirname "$0")/../.." || exit 2
case ${PLEAT:=build/pleat} in /*) ;; *) PLEAT=$PWD/$PLEAT ;; esac
gpus=${1:-1} steps=${STEPS:-100} bin=${BIN:-${PLEAT%/*}/tests}
only=${ONLY:-rows products models routes hf budget train saves folds bad}
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
host=${HOST:-$dir}
export NCCL_NVLS_ENABLE=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
passed=0 failed=0

wanted() { case " $only " in *" $1 "*) ;; *) false ;; esac; }

result() {
    reap
    if [ "$2" = 0 ]; then
        echo "ok - gpu: $1: $(tail -n 1 "$dir/why")"
        passed=$((passed + 1))
    else
        echo "not ok - gpu: $1"
        failed=$((failed + 1))
        sed 's/^/# /' "$dir/why" | tail -n 5
    fi
}

# count NAME STATUS TAP ERR: what a program left; one that ends otherwise than by
# its results has failed
count() {
    cat "$3"
    passed=$((passed + $(grep -c '^ok' "$3")))
    bad=$(grep -c '^not ok' "$3") && failed=$((failed + bad))
    if [ "$2" != 0 ] && [ "$bad" = 0 ] || ! grep -q '^ok' "$3"; then
        echo "not ok - gpu: $1: exit status $2"
        failed=$((failed + 1))
        tail -n 5 "$4" | sed 's/^/# /'
    fi
}

# start PART PROGRAM [argument...]: if the part is wanted, beside those that were started,
# on the next GPU: most of their time goes to compilers
started=0
start() {
    wanted "$1" || return 0
    name=$2 started=$((started + 1))
    shift 2
    at=$dir/started.$started
    echo "${name##*/} $*" >"$at"
    { CUDA_VISIBLE_DEVICES=$((started % gpus)) "$bin/$name" "$@" >"$at.tap" 2>"$at.err"
        echo $? >"$at.end"; mv "$at.end" "$at.rc"; } &
}

# reap: results of those that have ended, once each
reap() {
    for rc in "$dir"/started.*.rc; do
        [ -e "$rc" ] || return 0
        at=${rc%.rc}
        count "$(cat "$at")" "$(cat "$rc")" "$at.tap" "$at.err"
        mv "$rc" "$at.counted"
    done
}

finish() {
    while [ "$(ls "$dir"/started.*.counted 2>/dev/null | wc -l)" -lt $started ]; do
        reap
        sleep 0.2
    done
}

# train FOLDER NAME RANKS key=value...: losses of all steps to FOLDER/NAME.loss
train() {
    to=$1 name=$2 ranks=$3
    shift 3
    [ -s "$to/$name.loss" ] && return
    cmd="$PLEAT run models/tiny.lua train.steps=$steps train.log_every=1 train.eval_every=0 name=$dir/$name"
    if [ "$ranks" = 1 ]; then $cmd "$@"
    else mpirun -np "$ranks" --bind-to none --oversubscribe $cmd "$@"; fi >"$dir/$name.out" 2>&1 ||
        { cat "$dir/$name.out" >"$dir/why"; return 1; }
    sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([-+.0-9e]*\).*/\1 \2/p' \
        "$dir/$name/metrics.jsonl" >"$dir/loss"
    [ "$(wc -l <"$dir/loss")" -ge "$steps" ] && mv "$dir/loss" "$to/$name.loss"
}

# far A B [steps]: largest relative difference of the losses, or "inf"
far() {
    paste "$1" "$2" | head -n "${3:-$steps}" | awk '
        NF != 4 || $1 != $3 || $2 != $2 + 0 { bad = 1 }
        { d = ($2 - $4) / $4; d = d < 0 ? -d : d; if (d > most) most = d }
        END { if (bad || !NR) print "inf"; else printf "%g\n", most }'
}

# within NAME DISTANCE LIMIT: and the reason
within() {
    echo "$1 by $2, at most $3" >"$dir/why"
    [ "$2" != inf ] && awk "BEGIN { exit !($2 <= $3) }"
}

same() {
    cmp "$dir/$1.loss" "$dir/$2.loss" >"$dir/why" 2>&1 && echo equal >"$dir/why"
}

host_runs() {
    train "$host" host.fp64 1 target=host precision=fp64 || return 1
    for type in fp32 bf16; do
        train "$host" host.$type 1 target=host precision=$type &&
            train "$host" host.$type.tp 2 target=host precision=$type fold.tp=2 &&
            train "$host" host.$type.ep 2 target=host precision=$type fold.ep=2 || return 1
    done
}

# Twice how far the host's runs of this type are from fp64.
spread() {
    for fold in "" .tp .ep; do
        far "$host/host.$1$fold.loss" "$host/host.fp64.loss"
    done | sort -g | tail -n 1 | awk '{ print 2 * $1 }'
}

against_host() {
    type=$1 early=$2 limit=$3
    train "$dir" cuda.$type 1 target=cuda precision=$type &&
        within "differs from the host's fp64" \
            "$(far "$dir/cuda.$type.loss" "$host/host.fp64.loss" "$early")" "$limit"
    result "$early steps of tiny.lua, $type" $?
    [ "$early" = "$steps" ] && return
    within "differs from the host's fp64" \
        "$(far "$dir/cuda.$type.loss" "$host/host.fp64.loss")" "$(spread $type)"
    result "$steps steps of tiny.lua, $type" $?
}

training() {
    if ! host_runs; then
        result "the host's runs" 1
        return
    fi
    against_host fp64 "$steps" 1e-8
    against_host fp32 10 5e-7
    against_host bf16 10 2e-3
    for type in fp32 bf16; do
        train "$dir" again.$type 1 target=cuda precision=$type && same cuda.$type again.$type
        result "two runs, $type" $?
        PLEAT_NOGRAPH=1 train "$dir" plain.$type 1 target=cuda precision=$type &&
            same cuda.$type plain.$type
        result "plain launches against replay, $type" $?
    done
}

# saved NAME GPUS key=value...: a run that saves in every few steps
saved() {
    name=$1 n=$2
    shift 2
    rm -rf "$dir/$name.loss" "${dir:?}/$name"
    train "$dir" "$name" "$n" target=cuda precision=bf16 train.save_every=7 train.keep=0 "$@"
}

# Saves beside training against saves that wait: all bytes of all checkpoints.
saves() {
    n=$1
    shift
    saved waits "$n" train.snapshot=0 "$@" && saved beside "$n" "$@" &&
        grep "^checkpoints: written beside training" "$dir/beside.out" >"$dir/why" &&
        for s in "$dir"/waits/ckpt/step-*; do
            for f in model.safetensors optim.safetensors; do
                cmp "$s/$f" "$dir/beside/ckpt/${s##*/}/$f" >"$dir/why" 2>&1 || return 1
            done
        done && echo "$(ls -d "$dir"/waits/ckpt/step-* | wc -l) checkpoints are equal" >"$dir/why"
}

# Folds sum in other orders: fp64 shows an error, bf16 runs the kernels of that
# type and the collectives on it.
all_folds="2:fold.ep=2,2:fold.tp=2,2:fold.cp=2,2:fold.pp=2,2:fold.dp=2,4:fold.ep=4
    4:fold.pp=2 fold.ep=2,4:fold.tp=2 fold.ep=4,4:fold.cp=4 fold.ep=2,4:fold.pp=4
    4:fold.dp=2 fold.tp=2 fold.ep=4 fold.zero=3,4:fold.ep=4 route.factor=0.3
    4:fold.pp=2 fold.vpp=2 fold.schedule=interleaved fold.ep=2"

# fold TYPE STEPS LIMIT GPUS key=value...
fold() {
    type=$1 first=$2 limit=$3 n=$4
    shift 4
    id=$(echo "$type$n$*" | tr ' =.' '___')
    train "$dir" "$id" "$n" target=cuda precision="$type" "$@" &&
        within "differs from one GPU" \
            "$(far "$dir/$id.loss" "$dir/cuda.$type.loss" "$first")" "$limit" &&
        case $* in
        *factor*) grep -q '"fallback": true' "$dir/$id/metrics.jsonl" ||
            { echo "no step fell back" >"$dir/why"; false; } ;;
        esac
    result "$n GPUs, $*, $type, $first steps" $?
}

folds() {
    echo "${FOLDS:-$all_folds}" | tr ',' '\n' | sed 's/^ *//' >"$dir/folds"
    for type in ${TYPES:-fp64 bf16}; do
        first=$steps limit=1e-8
        [ $type = fp64 ] || { first=10 limit=2e-3; }
        train "$dir" cuda.$type 1 target=cuda precision=$type
        while IFS=: read -r n keys; do
            # shellcheck disable=SC2086
            [ "$n" -gt "$gpus" ] || fold $type $first $limit "$n" $keys </dev/null
        done <"$dir/folds"
    done
}

# strike SIGNAL TEXT: a rank gets it once there is a checkpoint; the other says
# TEXT in one line and ends, and the checkpoint is good
strike() {
    name=$dir/strike.$1
    PLEAT_TIMEOUT=3 timeout 60 mpirun -np 2 --bind-to none "$PLEAT" run models/tiny.lua \
        target=cuda fold.tp=2 train.batch=16 train.steps=1000000 train.eval_every=0 \
        train.save_every=50 train.keep=2 name="$name" >"$dir/out" 2>"$dir/err" &
    run=$! tries=0
    until [ -e "$name/ckpt/latest" ] || [ $tries = 300 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill "-$1" "$(pgrep -f "^$PLEAT run.*name=$name" | tail -n 1)"
    wait $run
    status=$?
    grep -v '^\[' "$dir/err" >"$dir/why"
    [ $status != 0 ] && [ $status != 124 ] && [ "$(wc -l <"$dir/why")" = 1 ] &&
        grep -q "^rank [01] .*waits for rank [01] .*which $2" "$dir/why" &&
        ! pgrep -f "^$PLEAT run.*name=$name" >"$dir/left" &&
        "$PLEAT" ckpt verify "$name/ckpt/$(cat "$name/ckpt/latest")" >"$dir/out" 2>&1
    result "a rank gets $1" $?
}

export TEST_TARGET=cuda
for i in 0 1 2 3; do start hf hf/hf_test tests/hf $i 4; done    # the longest first
start models gpu/models_test
for type in f64 f32 bf16 dropout; do start rows gpu/rows_test $type; done
start products bench/gmm_bench 131072 "few gmm_wgrad"
start routes gpu/routes_test
start budget num/budget_test
if wanted train; then training; fi
if wanted saves; then
    saves 1
    result "saves beside training" $?
    PLEAT_NODES=10 saves 1
    result "saves beside training, a graph a row" $?
    if [ "$gpus" -gt 1 ]; then
        saves 2 fold.ep=2
        result "saves beside training, 2 GPUs" $?
    fi
fi
if wanted folds; then folds; fi
finish
if wanted bad && [ "$gpus" -gt 1 ]; then
    strike KILL "is gone"
    strike STOP "does not answer"
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
