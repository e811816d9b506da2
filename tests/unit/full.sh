#!/bin/sh
# full: a disk that fills up while a run saves. Training goes on with the same
# losses and ends with status 3, the checkpoint before stays whole, and the run
# continues from it when there is room again. The disk is a small tmpfs in a namespace of its own; where
# that is not allowed, nothing is tested.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/full
mkdir -p "$dir" || exit 2
if [ "$1" != inside ]; then
    if unshare -rm mount -t tmpfs -o size=64m none "$dir" 2>/dev/null
    then exec unshare -rm sh "$0" inside
    fi
    echo "1..1"
    echo "ok - full: no file system of our own here # SKIP"
    exit 0
fi
mount -t tmpfs -o size=64m none "$dir" || exit 2
printf '1..%d\n' 15
bad=0

# is NAME command...: it succeeds
is() {
    name=$1
    shift
    if "$@" >"$dir/said" 2>&1; then echo "ok - full: $name"; return; fi
    echo "not ok - full: $name"
    tail -n 20 "$dir/said" "$dir/log" | sed 's/^/# /'
    bad=1
}

keys="target=host axes.batch=1 axes.seq=16 axes.hidden=32 axes.ffn=64 train.batch=1 train.steps=300
    train.save_every=100 train.keep=0 train.log_every=100 data.train=LICENSE data.valid="
saved() { ls -d "$dir/run/ckpt/step-00000$1"; }

# Stopped once the first checkpoint is there, until the disk is full.
"$PLEAT" run models/tiny.lua $keys name="$dir/run" >"$dir/log" 2>&1 &
pid=$!
while kill -0 $pid 2>/dev/null && ! saved 100 >/dev/null 2>&1; do sleep 0.01; done
kill -STOP $pid
is "the first checkpoint is saved" saved 100
is "before the second" sh -c "! ls -d $dir/run/ckpt/step-00000200"
dd if=/dev/zero of="$dir/fill" bs=4k >/dev/null 2>&1
kill -CONT $pid
wait $pid
status=$?
is "training goes on to its end, which is a failure" test $status = 3
is "and says so" grep -q "the last checkpoint, of step 300, was not written" "$dir/log"
is "it is said that there is no checkpoint" grep -q "checkpoint not written: .*No space left" "$dir/log"
is "the last step is taken" grep -q "step *300/300" "$dir/log"
is "the first checkpoint is whole" "$PLEAT" ckpt verify "$dir/run"
is "nothing else is left" test "$(ls -A "$dir/run/ckpt" | tr '\n' ' ')" = "latest step-00000100 "

# With room again it goes on from there, to the same loss.
rm "$dir/fill"
cp "$dir/log" "$dir/first"
is "it continues" "$PLEAT" run models/tiny.lua $keys name="$dir/run" resume=1
cp "$dir/said" "$dir/log"
is "from the first checkpoint" grep -q "resume at step 100" "$dir/log"
is "to the same loss" sh -c "a=\$(sed -n 's/.*300\/300 | \(loss [0-9.]*\).*/\1/p' $dir/first)
    b=\$(sed -n 's/.*300\/300 | \(loss [0-9.]*\).*/\1/p' $dir/log); echo \$a, \$b; [ \"\$a\" ] && [ \"\$a\" = \"\$b\" ]"

# No room from the start: for one checkpoint, for all that the run keeps.
# short KIB key=value ...: a new run with so much left; what it says is in log
short() {
    left=$1
    shift
    rm -rf "$dir/new" "$dir/fill"
    dd if=/dev/zero of="$dir/fill" bs=1k count=$(($(df -k --output=avail "$dir" | tail -n 1) - left)) \
        2>/dev/null
    "$PLEAT" run models/tiny.lua $keys train.steps=3 name="$dir/new" "$@" >"$dir/log" 2>&1
}
short 1000
status=$?
is "no room for a checkpoint is said before the first step" test $status = 1
is "with both sizes" grep -q "^error: a checkpoint of this run takes 0.00[1-9] GiB, and .*/new/ckpt has room for 0.00[0-5]" "$dir/log"
short 5000 train.save_every=1
is "nor for all that are kept" grep -q "^warning: this run's checkpoints take .* GiB more, and .* has room for" "$dir/log"
rm -r "$dir/new" "$dir/fill"
"$PLEAT" run models/tiny.lua $keys train.steps=3 train.save_every=1 train.snapshot=0.0001 name="$dir/waits" >"$dir/log" 2>&1
is "without memory for a copy saves wait, and that is said" grep -q "^checkpoints: training waits for each; beside training they need 0.00[1-9] GiB of this host's memory, and there are 0.000" "$dir/log"
exit $bad
