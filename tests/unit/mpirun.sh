#!/bin/sh
# mpirun: pipelines of the demo model in four processes and in one: the same
# checkpoints to the byte, and every stage ran the rows of its table.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/mpirun
rm -rf "$dir" && mkdir -p "$dir" || exit 2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1
if ! mpirun --version >/dev/null 2>&1; then
    echo "ok - mpirun # SKIP there is none"
    exit 0
fi
small="axes.batch=1 axes.seq=16 axes.hidden=32 axes.ffn=32 axes.dim=8
    train.batch=8 train.steps=2 train.trace=2 data.train=LICENSE
    data.valid=LICENSE train.eval_steps=2"
bad=0

# result NAME STATUS: ok when it is 0
result() {
    if [ "$2" -eq 0 ]; then echo "ok - mpirun: $1"; return; fi
    echo "not ok - mpirun: $1"
    sed 's/^/# /' "$dir/log" | tail -n 8
    bad=1
}

# Memory of two ranks on each of two machines, by name.
test=$(dirname "$PLEAT")/tests/unit/device_test
CMOCKA_MESSAGE_OUTPUT=TAP timeout 120 mpirun -n 4 tests/onhost 2 "$test" >"$dir/log" 2>&1
result "ranks of a machine write each other's memory" \
    $(($(grep -c '^ok .* peers' "$dir/log") - 4))

# A run compared with one in another precision: rank 0 compiles both plans.
timeout 60 mpirun -n 2 "$PLEAT" run models/tiny.lua target=host $small fold.ep=2 \
    name="$dir/compared" precision.policy=fp8 precision.place=all precision.compare=bf16:1 >"$dir/log" 2>&1
result "two precisions compared on two ranks" \
    $(($(grep -c 'gradients of the first step' "$dir/log") - 1))

# rows FILE STAGE: what the trace says that the stage ran, "F0 3" a line
rows() {
    sed -n "s/^{\"name\": \"\([^\"]*\)\", \"ph\": \"X\", \"pid\": $2, \"tid\": 0,.*\"micro\": \([0-9]*\).*/\1 \2/p" "$1"
}

# table PLAN STAGE: the rows of its program step, in the same form. A slot names
# a phase and, when it is not the phase's next, "=micro".
table() {
    awk -v stage="$2" '
        /^role / { role++ }
        /^program / { step = $2 == "step" && role == stage + 1; n = 0 }
        step && /^phase / { name[n++] = $2 }
        step && /^slots / {
            for (i = 2; i <= NF; i++) {
                if ($i == "&") continue
                sub(/&$/, "", $i)
                if (split($i, p, "=") > 1) micro[p[1]] = p[2]
                print name[p[1]], micro[p[1]]++ + 0
            }
        }' "$1"
}

# same NAME keys...: one process, then four, have the same values
same() {
    name=$1
    shift
    # shellcheck disable=SC2086
    "$PLEAT" run models/tiny.lua $small "$@" world=4 name="$dir/$name.one" \
        >"$dir/log" 2>&1
    result "$name in one process" $?
    # shellcheck disable=SC2086
    mpirun -n 4 "$PLEAT" run models/tiny.lua $small "$@" \
        name="$dir/$name.four" >"$dir/log" 2>&1
    result "$name in four" $?
    for f in model optim; do
        cmp "$dir/$name.one/ckpt/step-00000002/$f.safetensors" \
            "$dir/$name.four/ckpt/step-00000002/$f.safetensors" >"$dir/log" 2>&1
        result "$name: the same $f" $?
    done
}

# both NAME keys...: that, and two stages run what their tables say
both() {
    same "$@"
    wrong=0
    for r in 0 1 2 3; do
        stage=$((r / 2))
        table "$dir/$name.one/plan" $stage >"$dir/want"
        for t in one/trace.0 four/trace.$r; do
            rows "$dir/$name.$t.json" $stage | grep -v "^p" >"$dir/got"
            grep -q "^F[01] 3$" "$dir/want" &&
                diff "$dir/want" "$dir/got" >"$dir/log" || wrong=1
        done
    done
    result "$name: the rows of the table" $wrong
}

both 1f1b fold.pp=2 fold.tp=2
both zerobubble fold.pp=2 fold.ep=2 fold.schedule=zerobubble precision=bf16 \
    route.dispatcher=peer
same hosts fold.dp=2 fold.tp=2 fold.ep=4 fold.host=2 fold.pair=1 route.dispatcher=hosts \
    route.factor=0

grep -q '"expert_bytes": [1-9]' "$dir/hosts.one/metrics.jsonl" &&
    grep -q '"expert_bytes": [1-9]' "$dir/hosts.four/metrics.jsonl"
result "a run counts what goes to experts" $?

# The stage that has all layers waits for the other least: in a step by the
# clock, in one that is traced by its instructions.
for trace in 0 2; do
    # shellcheck disable=SC2086
    mpirun -n 2 "$PLEAT" run models/tiny.lua $small fold.pp=2 fold.layout='E|tttL' train.trace=$trace \
        name="$dir/uneven.$trace" >"$dir/log" 2>&1 &&
        grep -q "step    2/2 .* | slowest rank 1 [0-9.]* ms, fastest 0 [0-9.]* | " "$dir/log" &&
        sed -n 's/.*"step_ms": \([0-9.]*\).*"slowest_rank": 1, "fastest_rank": 0, "slowest_ms": \([0-9.]*\), "fastest_ms": \([0-9.]*\).*/\1 \2 \3/p' \
            "$dir/uneven.$trace/metrics.jsonl" | awk '$1 >= $2 && $2 > $3 && $3 > 0 { n++ } END { exit n != 2 }'
    result "the slowest and the fastest rank (train.trace=$trace)" $?
done

# A run that states no fold: its keys give the same bits in one process; it goes
# on in that fold, and one that states a fold does not search.
# shellcheck disable=SC2086
{
fold=$small; small="$small train.trace=0"
mpirun -n 2 "$PLEAT" run models/tiny.lua $small train.batch=1 name="$dir/free" >"$dir/log" 2>&1
keys=$(sed -n 's/^fold: \(.*\) (dp=.*/\1/p' "$dir/log")
result "a run without a fold chooses one: $keys" $((${#keys} == 0))
"$PLEAT" run models/tiny.lua $small train.batch=1 world=2 $keys name="$dir/chosen" >"$dir/log" 2>&1 &&
    cmp "$dir/free/ckpt/step-00000002/model.safetensors" "$dir/chosen/ckpt/step-00000002/model.safetensors" >"$dir/log" 2>&1
result "its keys choose it again" $?
for more in "models/tiny.lua $small train.batch=1 name=$dir/free train.steps=3" "$dir/free train.steps=4"; do
    grep '"fold\.' "$dir/free/config.lua" >"$dir/want"
    mpirun -n 2 "$PLEAT" run $more resume=1 </dev/null >"$dir/log" 2>&1 && ! grep -q "^fold:" "$dir/log" &&
        grep -q "^step    \([34]\)/\1" "$dir/log" && grep '"fold\.' "$dir/free/config.lua" | diff "$dir/want" - >>"$dir/log"
    result "it goes on in its fold: ${more##* }" $?
done
small=$fold
}

# Rows go through memory, which two machines do not share.
# shellcheck disable=SC2086
timeout 60 mpirun -n 2 tests/onhost 1 "$PLEAT" run models/tiny.lua $small train.trace=0 \
    fold.ep=2 route.dispatcher=peer name="$dir/far" \
    </dev/null >"$dir/log" 2>&1
[ $? = 1 ] && [ "$(grep -c "error: .*ranks 0 and 1 are on different machines" "$dir/log")" = 1 ]
result "rows through memory of two machines are one line" $?
timeout 60 mpirun -n 2 tests/onhost 1 env OMPI_COMM_WORLD_LOCAL_SIZE=1 "$PLEAT" run \
    models/tiny.lua $small train.trace=0 fold.ep=2 name="$dir/apart" </dev/null >"$dir/log" 2>&1 &&
    grep -q "^option fold.host 1$" "$dir/apart/plan" && ! grep -q "^sendrows" "$dir/apart/plan"
result "two machines are known, and share none unasked" $?

# A step with copies in place of its collectives reads nothing that nobody wrote.
# shellcheck disable=SC2086
"$PLEAT" compile models/tiny.lua $small world=2 fold.ep=2 fold.pair=1 route.dispatcher=peer \
    -o "$dir/bench.plan" >"$dir/log" 2>&1 &&
    PLEAT_POISON=1 mpirun -n 2 "$PLEAT" bench "$dir/bench.plan" >"$dir/log" 2>&1 &&
    grep -q "^not hidden: .* ms with [1-9][0-9]* collectives left out: copies of [0-9.]*[1-9]" "$dir/log" &&
    ! grep -q "not finite" "$dir/log" &&
    tail -n 1 "$dir/log" | grep -q " not_hidden -*[0-9.]* ranks 2 "
result "bench leaves collectives out" $?

# A batch that grows: three plans, all made before MPI starts.
ramp="$small train.steps=3 train.trace=0 train.ramp=4,2,8 fold.ep=2 fold.pair=1 train.save_every=0"
# shellcheck disable=SC2086
{
"$PLEAT" run models/tiny.lua $ramp world=2 name="$dir/ramp.one" >"$dir/log" 2>&1
result "train.ramp in one process" $?
mpirun -n 2 "$PLEAT" run models/tiny.lua $ramp name="$dir/ramp.two" \
    </dev/null >"$dir/log" 2>&1 && grep -q "batch 6 from step 2" "$dir/log"
result "in two" $?
mpirun -n 2 "$PLEAT" run models/tiny.lua $ramp resume=1 train.steps=4 \
    name="$dir/ramp.two" </dev/null >"$dir/log" 2>&1 &&
    "$PLEAT" run models/tiny.lua $ramp resume=1 train.steps=4 world=2 \
        name="$dir/ramp.one" >>"$dir/log" 2>&1
result "both go on" $?
cmp "$dir/ramp.one/ckpt/step-00000004/model.safetensors" \
    "$dir/ramp.two/ckpt/step-00000004/model.safetensors" >"$dir/log" 2>&1
result "with the same bits" $?
timeout 60 mpirun -n 2 "$PLEAT" run models/tiny.lua $ramp train.ramp=4,3,8 \
    name="$dir/ramp.bad" </dev/null >"$dir/log" 2>&1
[ $? = 1 ] && [ "$(grep -c "does not reach train.batch=8" "$dir/log")" = 1 ]
result "one that misses is one line" $?
}

# Rank 0's clock ends it after some step, the same on both.
# shellcheck disable=SC2086
timeout 120 mpirun -n 2 "$PLEAT" run models/tiny.lua $small fold.ep=2 train.trace=0 train.steps=1000000 \
    train.save_every=0 train.hours=0.0003 name="$dir/hours" </dev/null >"$dir/log" 2>&1
[ $? = 4 ] &&
    [ "$(grep -c "^train.hours are over: stopped at step" "$dir/log")" = 1 ] &&
    step=$(sed -n 's/^train.hours are over: stopped at step \([0-9]*\);.*/\1/p' "$dir/log") &&
    [ "$(ls "$dir/hours/ckpt")" = "$(printf 'latest\nstep-%08d' "$step")" ] &&
    [ "$(wc -l <"$dir/hours/metrics.jsonl")" -ge "$step" ]
result "train.hours end both ranks after one step" $?
grep -q "^sendrows" "$dir/hours/plan"
result "one machine's memory is shared unasked" $?

# A state that both stages read, so one has a copy, and two that change places: a run
# that stops has the same bits.
cat >"$dir/states.lua" <<'END'
axes { batch=2, seq=16, hidden=16, out=16, vocab=256 }
local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local seen = state("seen", "hidden", constant(1))
local p, q = state("p", "hidden", constant(1)), state("q", "hidden", constant(2))
local x = embed(tokens, param("embed", "vocab hidden"))
for i = 0, 3 do
  x = scope("layers." .. i, function()
    local y = tanh(dot(x * seen, param("w1", "hidden out"), "hidden"))
    return x + dot(y, param("w2", "out hidden"), "out")
  end)
end
update(seen, 0.5 * seen + mean(x, "batch seq") + 0.1 * p)
update(p, q)
update(q, p)
x = dot(x, param("head", "vocab hidden"), "hidden")
loss("lm", mean(cross_entropy(f32(x), labels, "vocab"), "batch seq"))
fold { pp=2, layout="Ett|ttL" }
train { batch=8, steps=4, lr=1e-2 }
END
run="$PLEAT run $dir/states.lua target=host data.train=LICENSE"
$run world=2 name="$dir/states.one" >"$dir/log" 2>&1 && grep -q "^tensor seen copied" "$dir/states.one/plan"
result "a state with a copy, two that change places" $?
mpirun -n 2 $run train.steps=2 name="$dir/states.two" >"$dir/log" 2>&1 &&
    mpirun -n 2 "$PLEAT" run "$dir/states.two" resume=1 train.steps=4 >"$dir/log" 2>&1 &&
    for f in model optim; do
        cmp "$dir/states.one/ckpt/step-00000004/$f.safetensors" \
            "$dir/states.two/ckpt/step-00000004/$f.safetensors" >"$dir/log" 2>&1 || break
    done && [ ! -s "$dir/log" ]
result "go on in two processes, to the byte" $?

# Files longer than a piece (runtime/ckpt/ckpt_write.c), of which each process has a part.
for n in 1 4; do
    run="$PLEAT run models/tiny.lua axes.batch=1 axes.seq=16 train.batch=4 train.steps=1
        data.train=LICENSE fold.tp=2 world=4 name=$dir/pieces.$n"
    # shellcheck disable=SC2086
    if [ $n = 1 ]; then $run; else mpirun -n 4 $run; fi >"$dir/log" 2>&1 &&
        "$PLEAT" ckpt verify "$dir/pieces.$n/ckpt/step-00000001" >>"$dir/log" 2>&1
    result "a checkpoint of many pieces, $n processes" $?
    grep safetensors "$dir/pieces.$n/ckpt/step-00000001/index" >"$dir/index.$n"
done
cmp "$dir/index.1" "$dir/index.4" >"$dir/log" 2>&1
result "its hashes are the same" $?

# Damage in the part that rank 3 reads: rank 0 says so, once, and all take the
# checkpoint before.
resumed() {
    # shellcheck disable=SC2086
    mpirun -n 4 $run train.steps=$1 resume=1 >"$dir/out" 2>"$dir/log"
}
resumed 2 && printf damaged | dd of="$dir/pieces.4/ckpt/step-00000002/optim.safetensors" \
    bs=1 seek=21000000 conv=notrunc 2>"$dir/log" && resumed 3 &&
    grep -q "^resume at step 1$" "$dir/out" && [ "$(wc -l <"$dir/log")" = 1 ] &&
    grep -q "step-00000002 is not used: optim.safetensors is damaged" "$dir/log"
result "a damaged checkpoint is found together" $?
exit $bad
