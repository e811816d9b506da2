#!/bin/sh
# fail: what goes wrong under mpirun is said in one line, by one rank, and ends
# the run with a status that is not zero: a wrong world, a fold that does not
# divide, different plans, numbers that are no numbers, a dead rank, a stopped
# rank before and after the first step, and in a save; a disk that is slow is no
# failure. Shared memory of killed ranks is removed by the next run, that of others stays.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/fail
rm -rf "$dir" && mkdir -p "$dir" || exit 2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1
mpirun --version >/dev/null 2>&1 ||
    { echo "ok - fail # SKIP no mpirun"; exit 0; }
printf '1..%d\n' $((12 + (${PLEAT_ALL:-0} > 0)))
bad=0
limit=60                                # seconds of a command
small="axes.batch=2 axes.seq=16 train.batch=8 train.steps=100000"
small="$small train.log_every=1 fold.ep=4 data.train=../LICENSE data.valid=../LICENSE"

# is NAME STATUS TEXT command...: ends so, in time, with one line of error
# that has TEXT. "[host:pid] ..." are Open MPI's, of a stopped rank that wakes; so is
# what stands between two lines of dashes, and a NUL behind it (Open MPI 5),
# which is the line where it ended the ranks before they printed one.
is() {
    name=$1 want=$2 text=$3
    shift 3
    timeout $limit "$@" >"$dir/log" 2>"$dir/all"
    got=$?
    sed '/^-----/,/^-----/d; s/\x00//g; /^\[/d; /^$/d' "$dir/all" >"$dir/err"
    [ -s "$dir/err" ] || echo $(grep -av '^---' "$dir/all" | tr -d '\000') >"$dir/err"
    if [ $got -eq "$want" ] && [ "$(wc -l <"$dir/err")" = 1 ] &&
        grep -q -- "$text" "$dir/err"; then echo "ok - fail: $name"; return; fi
    echo "not ok - fail: $name (exit status $got, not $want)"
    sed 's/^/# /' "$dir/err" | head -n 20
    bad=1
}

# strike SIGNAL NAME: to one of the ranks of that run, once it steps
strike() {
    tries=0
    while ! grep -q '^step' "$dir/log" 2>/dev/null && [ $tries -lt 300 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill "-$1" "$(pgrep -f "^$PLEAT run.*name=$dir/$2" | tail -n 1)"
}

cd models || exit 2
# shellcheck disable=SC2086
{
"$PLEAT" compile tiny.lua $small world=4 -o "$dir/a.plan" >"$dir/log" || exit 1
"$PLEAT" compile tiny.lua $small world=4 seed=9 -o "$dir/b.plan" >"$dir/log" ||
    exit 1
is "wrong world" 1 "the plan is for 4 ranks, mpirun started 3" \
    mpirun -n 3 "$PLEAT" run "$dir/a.plan" name="$dir/world"
is "wrong world of a model" 1 "the plan is for 4 ranks, mpirun started 2" \
    mpirun -n 2 "$PLEAT" run tiny.lua $small world=4 name="$dir/model"
is "fold that does not divide" 1 "tp\*cp\*pp = 3" \
    mpirun -n 4 "$PLEAT" run tiny.lua $small fold.tp=3 name="$dir/fold"
is "no data" 1 "data.train" mpirun -n 4 "$PLEAT" run "$dir/a.plan" \
    data.train=nowhere name="$dir/data"
# segments NAME N: so many of the live run's segments are left, made old, after another run
segments() {
    touch -d '2 minutes ago' $mine
    mpirun -n 2 "$PLEAT" run tiny.lua $small world=4 name="$dir/sweep" >"$dir/log" 2>&1
    got=0
    for s in $mine; do [ ! -e "$s" ] || got=$((got + 1)); done
    if [ "$mine" ] && [ $got = "$2" ]; then echo "ok - fail: $1"; else
        echo "not ok - fail: $1 ($got are left)"
        bad=1
    fi
}
mpirun -n 2 "$PLEAT" run tiny.lua $small fold.ep=2 name="$dir/killed" >"$dir/log" 2>&1 &
mpirun=$!
strike 0 killed
ranks=$(pgrep -P $mpirun)
mine=$(grep -ho '/dev/shm/[a-z]*_segment.*' /proc/${ranks%%[!0-9]*}/maps | sort -u)
segments "shared memory of a run that lives stays" "$(echo "$mine" | wc -l)"
kill -9 $mpirun $ranks
wait
segments "that of killed ranks is removed" 0

is "different plans" 1 "another plan than rank 0" mpirun \
    -n 4 sh -c 'test "$OMPI_COMM_WORLD_RANK" = 3 && p=b || p=a
    exec "$0" run "$1/$p.plan" name="$1/plans"' "$PLEAT" "$dir"
is "no finite gradient" 3 "3 steps in a row without a finite gradient: first" \
    mpirun -n 4 "$PLEAT" run tiny.lua $small fold.dp=4 train.lr=1e30 name="$dir/nan"

rm "$dir/log"
strike KILL kill &
is "a rank dies" 137 \
    "\(step .* over .*tiny.lua:[0-9]*\|between steps\).*which is gone\|noticed that .* exited on signal 9" \
    mpirun -n 4 "$PLEAT" run "$dir/a.plan" name="$dir/kill"
wait
if [ "${PLEAT_ALL:-0}" -gt 0 ]; then    # as users have it
    rm "$dir/log"
    strike STOP default &
    limit=80
    is "a rank hangs, after a minute" 3 "no progress for 6[0-9] s; waits for rank .*does not answer" \
        mpirun -n 4 "$PLEAT" run "$dir/a.plan" name="$dir/default"
    wait
fi
export PLEAT_TIMEOUT=1.5
rm "$dir/log"
strike STOP stop &
is "a rank hangs" 3 "\(over .*tiny.lua:[0-9]*\|between steps\).*waits for rank .*does not answer" \
    mpirun -n 4 "$PLEAT" run "$dir/a.plan" name="$dir/stop"
wait
saves="fold.ep=2 train.batch=4 train.steps=4 train.save_every=2"
export FAULT_IN=optim.safetensors FAULT_RANK=1 ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0"
is "a rank hangs in a save" 3 "waits for rank 1 .*does not answer" \
    env FAULT=stop:1 LD_PRELOAD="$(dirname "$PLEAT")/tests/unit/faultfs.so" \
    mpirun -n 2 "$PLEAT" run tiny.lua $small $saves name="$dir/stopped"
FAULT=slow:1 LD_PRELOAD="$(dirname "$PLEAT")/tests/unit/faultfs.so" \
    mpirun -n 2 "$PLEAT" run tiny.lua $small $saves train.steps=6 name="$dir/slow" \
    >"$dir/log" 2>"$dir/err" && [ "$(cat "$dir/slow/ckpt/latest")" = step-00000006 ] &&
    grep -q "^training waited [0-9.]* s for the save before: its disk is slower" "$dir/log"
if [ $? = 0 ]; then echo "ok - fail: a slow disk is none, and is said"; else
    echo "not ok - fail: a slow disk is none, and is said"
    sed 's/^/# /' "$dir/log" | tail -n 20
    sed 's/^/# /' "$dir/err" | head -n 20
    bad=1
fi
}
exit $bad
