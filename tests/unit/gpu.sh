#!/bin/sh
# gpu: what is around the kernels of a run on GPUs, on machines without one. The
# GPU is that of tests/fake, idle: it computes nothing, and gives results that
# tell which run they are of. Which target `run` takes, when results are read, what becomes of
# steps without an update, and each error: one line, its exit status.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/fakegpu
. tests/fake/libs
rm -rf "$dir" && fake_libs "$dir/lib" || exit 2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 XDG_CACHE_HOME="$dir/cache"
small="axes.batch=2 axes.seq=16 axes.hidden=16 axes.ffn=16 train.batch=4 train.log_every=1"
wide="axes.hidden=128 axes.ffn=256"      # where memory matters
small="$small data.train=../LICENSE data.valid=tail:0.1 train.eval_every=4 train.eval_steps=2"
bad=0
printf '1..29\n'

result() {
    if [ "$2" = 0 ]; then echo "ok - gpu: $1"; return; fi
    echo "not ok - gpu: $1"
    sed 's/^/# /' "$dir/log" "$dir/err" | tail -n 12
    bad=1
}

# gpu SETTINGS command...: with such a GPU. What stands between two lines of dashes, and a
# NUL behind it, is Open MPI 5's.
gpu() {
    settings=$1
    shift
    FAKE_GPU="idle=1 $settings" LD_LIBRARY_PATH=$dir/lib timeout 60 "$@" \
        >"$dir/log" 2>"$dir/err"
    set -- $?
    sed -i '/^-----/,/^-----/d; s/\x00//g; /^$/d' "$dir/err"
    return "$1"
}

# is NAME STATUS TEXT SETTINGS command...: ends so, TEXT in the last line it says
is() {
    name=$1 want=$2 text=$3
    shift 3
    gpu "$@"
    got=$?
    [ $got = "$want" ] && grep -v "^report this file: " "$dir/err" | tail -n 1 | grep -q -- "$text"
    result "$name" $?
}

# losses RUN: "step loss" a line
losses() {
    sed -n 's/^{"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' \
        "$dir/$1/metrics.jsonl"
}

cd models || exit 2
run="$PLEAT run tiny.lua $small train.steps=2 train.eval_every=0"
# shellcheck disable=SC2086
{
gpu "count=2 name=H200" "$PLEAT" doctor && grep -q "^GPU 1 .*H200, sm_90a" "$dir/log" &&
    grep -q "^one GPU *can run" "$dir/log"
result "doctor" $?

# run 1: init; 2-5: steps; 6 7: validation; ...
gpu "" "$PLEAT" run tiny.lua $small train.steps=6 name="$dir/late" && losses late |
    awk '{ r = $1 + 1 + ($1 > 4 ? 2 : 0); if ($1 != NR || $2 - 1 - r / 1000 > 1e-6 ||
        $2 - 1 - r / 1000 < -1e-6) bad = 1 } END { exit bad || NR != 6 }'
result "run is for a GPU; each step's own results, the last one's too" $?
grep -q "outside of the plan" "$dir/late/memory" && grep -q "^step *6/6" "$dir/log"
result "what memory is used for" $?
gpu "" "$PLEAT" run tiny.lua $small train.steps=8 resume=1 name="$dir/late" &&
    losses late | awk 'END { exit NR != 8 || $1 != 8 }'
result "resume" $?

gpu "" $run train.steps=3 train.trace=3 name="$dir/trace" &&
    awk '/"tid": 1,.*"kernel": "k_.*"at": "tiny.lua:/ { n++ } /"tid": 0/ { rows++ }
        END { exit n < 50 || rows < 3 }' "$dir/trace/trace.0.json"
result "a step's trace: rows, kernels, lines of the model" $?

# tuned RUN N: all products of that run take algorithm N
tuned() {
    awk -v n="$2" '/,/ { k++; bad += substr($2, 1, 16) != sprintf("%016x", n) }
        END { exit bad || !k }' "$dir/$1/tuned"
}

gpu "" env PLEAT_NODES=10 "$PLEAT" run tiny.lua $small train.steps=6 name="$dir/rows" &&
    grep -q "nodes in the graph of step" "$dir/rows/memory" && losses late | head -n 6 >"$dir/log" &&
    losses rows | cmp - "$dir/log" >"$dir/err"
result "a graph a row, where one graph would be too large" $?

(export XDG_CACHE_HOME="$dir/tune"
    gpu "fast=2" $run name="$dir/tune1" && tuned tune1 2 &&
        gpu "fast=3" $run name="$dir/tune2" && tuned tune2 2)
result "products take the fastest algorithm, and the same in the next run" $?
(export XDG_CACHE_HOME="$dir/other"
    sed -i 's/,\(.*\)0 /,\11 /' "$dir/tune2/tuned"
    gpu "fast=3" $run train.steps=4 resume=1 name="$dir/tune1" && tuned tune1 2 &&
        gpu "fast=3" $run train.steps=4 resume=1 name="$dir/tune2" && tuned tune2 3)
result "a resumed run takes what it had; damaged lines are measured again" $?

gpu "" $run train.batch=8 train.steps=4 train.ramp=4,4,8 name="$dir/ramp" &&
    grep -q "batch 8 from step 3" "$dir/log" && losses ramp | awk 'END { exit NR != 4 }'
result "a batch that grows" $?
gpu "nan=3-3" "$PLEAT" run tiny.lua $small train.steps=3 name="$dir/nan" &&
    losses nan | awk '$1 == 2 && $2 == "null" { n++ } END { exit NR != 3 || n != 1 }'
result "a step without a finite gradient is passed over" $?
gpu "nan=3-4" "$PLEAT" run tiny.lua $small train.steps=6 name="$dir/nan2"
result "two of them too" $?
is "three end the run, and the first NaN is named" 3 \
    "3 steps in a row without a finite gradient: first NaN in .* (tiny.lua:[0-9]*)" "nan=3-5 poison=30" \
    "$PLEAT" run tiny.lua $small train.steps=9 name="$dir/nan3"
is "out of memory" 1 "out of memory on GPU 0 .* GiB are free .*param" "memory=8" \
    "$PLEAT" run tiny.lua $small $wide name="$dir/memory"
is "a kernel that is refused" 70 "internal error: NVRTC refuses kernel .*it is refused.*its text is in" \
    "refuse=__global__" env XDG_CACHE_HOME="$dir/fresh" "$PLEAT" run tiny.lua $small name="$dir/refuse"
[ "$(find "$dir/fresh" -name '*.cu' | wc -l)" = 1 ] && [ "$(find "$dir/fresh" -name '*.log' | wc -l)" = 1 ]
result "its text and log are kept" $?
is "an illegal address" 3 "tiny.lua:[0-9]*: error: GPU: an illegal memory access.* in step 1, kernel k_" \
    "illegal=9" "$PLEAT" run tiny.lua $small name="$dir/illegal"
# run 1: init; 2-4: steps. Again: 1: init; 2 3: steps 3 and 4 from the checkpoint of step 2,
# which is there: the save waits
is "a fault that does not happen again" 3 "did not fail again in step 3, .* from the values of step 2 " \
    "fault=4" "$PLEAT" run tiny.lua $small $wide train.save_every=2 train.snapshot=0 name="$dir/fault"
grep -q "warning: GPU: an illegal memory access .*in program step of step 3; once more" "$dir/err" &&
    [ "$(cat "$dir/fault/ckpt/latest")" = step-00000002 ] && losses fault | awk 'END { exit NR != 2 }'
result "what it had done stays" $?
is "another architecture" 1 "are for sm_90a .*this GPU is A100, sm_80" "name=A100 major=8" \
    "$PLEAT" run tiny.lua $small precision=bf16 name="$dir/arch"
is "no GPU" 1 "target=cuda needs a GPU and there is none" "count=0" \
    "$PLEAT" run tiny.lua $small target=cuda name="$dir/none"
if mpirun --version >/dev/null 2>&1; then
    is "mixed GPUs" 1 "mixed GPUs: rank 1 has A100 (sm_90a), rank 0 H200" \
        "count=2 name1=A100" mpirun -n 2 "$PLEAT" run tiny.lua $small \
        target=cuda fold.dp=2 name="$dir/mixed"
    is "too few GPUs" 1 "too few GPUs .*2 ranks, ranks 0 and 1 would share GPU 0" \
        "count=1" mpirun -n 2 "$PLEAT" run tiny.lua $small target=cuda fold.dp=2 name="$dir/few"
    # ends NAME FOLDER TEXT SETTINGS: one line that has TEXT, status 3; all ranks
    # abort all their communicators, and nobody takes what that left for results
    ends() {
        rm -f "$dir/aborts"
        gpu "count=2 $4" env PLEAT_TIMEOUT=1.5 FAKE_LOG="$dir/aborts" mpirun -n 2 \
            "$PLEAT" run tiny.lua $small fold.tp=2 target=cuda train.save_every=1 \
            train.steps=9 train.eval_every=0 name="$dir/$2"
        [ $? = 3 ] && [ "$(wc -l <"$dir/err")" = 1 ] && grep -q "$3" "$dir/err" &&
            [ "$(losses "$2" | wc -l)" = 2 ]
        result "$1" $?
    }
    # whole N: N ranks ended all that they had
    whole() {
        [ "$(awk '$1 == $3 { n++ } END { print n + 0 }' "$dir/aborts")" = "$1" ]
    }
    ends "a peer fails" broken "^rank [01] (host .*): step 3 [a-z]* over tp (tiny.lua:[0-9]*): NCCL: remote process exited" \
        "broken=4"
    whole 2
    result "both ranks abort" $?
    ends "a collective that never ends" stuck \
        "^rank [01] (host .*): step 3 [a-z]* over tp (tiny.lua:[0-9]*): no progress for [0-9] s" "stuck=4"
    whole 2 && [ "$(cat "$dir/stuck/ckpt/latest")" = step-00000002 ] &&
        "$PLEAT" ckpt verify "$dir/stuck/ckpt/step-00000002" >"$dir/log" 2>&1
    result "both ranks abort, the last checkpoint stands" $?
    ends "an abort that hangs" hangs "NCCL: remote process exited" "broken=4 abort=hangs"
    gpu "count=2" mpirun -n 2 "$PLEAT" run tiny.lua $small train.batch=8 train.steps=4 \
        train.ramp=4,4,8 fold.ep=2 train.eval_every=0 name="$dir/ramp2" &&
        losses ramp2 | awk 'END { exit NR != 4 }'
    result "a batch that grows on two" $?
    # run 2: step 1; 3: step 2, held; 4: step 1 again; 5: step 2; 6: step 3, held; ...
    gpu "count=2" mpirun -n 2 "$PLEAT" run tiny.lua $small train.steps=3 fold.ep=2 \
        route.factor=1.5 train.eval_every=0 name="$dir/full" &&
        [ "$(grep -c '"fallback": true' "$dir/full/metrics.jsonl")" = 3 ] &&
        [ "$(losses full | awk '{ printf "%d:%.3f ", $1, $2 }')" = "1:1.004 2:1.007 3:1.009 " ]
    result "a step that overflows runs again, and the one that was in flight behind it" $?
else
    echo "ok - gpu: mixed GPUs # SKIP no mpirun"
    echo "ok - gpu: too few GPUs # SKIP no mpirun"
    for name in "a peer fails" "both ranks abort" "a collective that never ends" \
        "both ranks abort, the last checkpoint stands" "an abort that hangs"; do
        echo "ok - gpu: $name # SKIP no mpirun"
    done
    echo "ok - gpu: a batch that grows on two # SKIP no mpirun"
    echo "ok - gpu: a step that overflows runs again, and the one that was in flight behind it # SKIP no mpirun"
fi
}
exit $bad
