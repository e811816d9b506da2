#!/bin/sh
# strikes: a fault at a call to the file system while a command writes (faultfs.c):
# kill, power failure, full disk, error, short write. After it each output is the old
# file, the new file or none. Status 0 means the new files; a failure leaves no
# temporary file; the command repeated writes the new files. Checkpoints and the folder
# of a run: crash_test. One call of each writer for every other fault; with PLEAT_ALL all.
#
#     strikes.sh [word]     writers whose names have the word
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
root=$PWD dir=$PWD/build/tests/strikes bin=$(dirname "$PLEAT")
rm -rf "$dir" && mkdir -p "$dir/made" && tar -xzf tests/data/runs/format1.tar.gz -C "$dir" || exit 2
cd "$dir" || exit 2
. "$root/tests/expect"
only=${1-} modes="kill power torn enospc full eio short" tried=0 one_in=2

# struck FAULT command...
struck() {
    fault=$1
    shift
    rm -rf grave run && mkdir grave
    env LD_PRELOAD="$bin/tests/unit/faultfs.so" ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 FAULT="$fault" \
        FAULT_IN="$dir/case" FAULT_LOG="$dir/calls" FAULT_GRAVE="$dir/grave" FAULT_TOP="$dir/case" "$@" >log 2>&1
}

# same A B: files or folders; numbers of a calibration are measured anew
same() {
    case $1 in
    *.machine) [ -e "$2" ] && [ "$(cut -d' ' -f1 "$1" | uniq)" = "$(cut -d' ' -f1 "$2" | uniq)" ] ;;
    *) diff -rq -x "*.pieces" "$1" "$2" >/dev/null 2>&1 ;;
    esac
}

loss() {
    sed -n 's/.*"loss": \([^,]*\),.*/\1/p' run/metrics.jsonl 2>/dev/null
}

all_new() {
    for f in $files; do same "case/$f" "new/$f" || return 1; done
    [ "$(loss)" = "$first" ]
}

all_whole() {
    for f in $files; do
        [ ! -e "case/$f" ] || same "case/$f" "new/$f" || same "case/$f" "old/$f" || return 1
    done
}

no_temporary() {
    [ -z "$(find case -name '*pleat-tmp')" ]
}

# after FAULT STATUS command...: null, or what is wrong
after() {
    fault=$1 status=$2
    shift 2
    all_whole || { echo "an output is neither old nor new"; return; }
    case $fault in
    short:*) [ "$status" = 0 ] || echo "a short write is a failure" ;;
    kill:* | power:* | torn:*) ;;
    *) no_temporary || echo "a temporary file is left" ;;
    esac
    [ "$status" != 0 ] || all_new || echo "status 0, and not all is new"
    [ "$again" = no ] || { [ "$again" = yes ] && all_new; } ||
        { rm -rf run && "$@" >log 2>&1 && all_new && no_temporary; } || echo "repeated it does not write all"
}

# strikes NAME "FILES" command...: to FILES of the folder case; old/ is what was there
strikes() {
    name=$1 files=$2
    shift 2
    case $name in *"$only"*) ;; *) return ;; esac
    rm -rf case calls new && cp -r old case
    struck count:0 "$@"
    ok=$? wrong=0 first=$(loss) n=$(sort -n calls | tail -n 1 | cut -d' ' -f1)
    mv case new
    step=$n
    [ -z "${PLEAT_ALL-}" ] || step=$every
    for mode in $modes; do
        k=$((1 + 9 * tried % step)) tried=$((tried + 1))
        [ -n "${PLEAT_ALL-}" ] || [ $((tried % one_in)) = 0 ] || continue
        while [ "$k" -le "$n" ]; do
            rm -rf case calls && cp -r old case
            struck "$mode:$k" "$@"
            why=$(after "$mode:$k" $? "$@")
            [ -z "$why" ] || { wrong=1 && echo "# $name, $mode at call $k ($(grep "^$k " calls)): $why"; }
            k=$((k + step))
        done
    done
    test=strikes
    [ $ok = 0 ] && [ "$n" -gt 3 ] && [ $wrong = 0 ]
    ended "$name, $n calls" $? "status $ok"
}

# replaces NAME "FILES" command...: where files of the same kind are there already
replaces() {
    rm -rf old case && mkdir case
    what=$1 outputs=$2
    shift 2
    case $what in *"$only"*) ;; *) return ;; esac
    "$@" >log 2>&1
    mv case old
    for f in $outputs; do echo "the old file" >>"old/$f"; done
    strikes "$what" "$outputs" "$@"
}

is "a run" 0 "$PLEAT" run "$root/tests/hf/olmoe.lua" target=host train.steps=1 data.train="$root/tests/hf/tokens.npy" \
    data.valid="$root/tests/hf/tokens.npy" name=made/run
is "a plan" 0 "$PLEAT" compile "$root/models/tiny.lua" fold.pp=2 world=2 axes.batch=1 train.batch=4 -o made/two.plan
is "weights" 0 "$PLEAT" export made/run made/hf
cp "$root/README.md" made/book.txt
echo '{"model_type": "a test"}' >made/hf/config.json

again=yes every=1
replaces "a plan" a.plan "$PLEAT" compile small.lua -o "$dir/case/a.plan"
replaces "a drawing" a.dot "$PLEAT" check small.lua --dot "$dir/case/a.dot"
replaces "a page" a.html "$PLEAT" show made/two.plan --html "$dir/case/a.html"
replaces "a timeline" a.trace "$PLEAT" show made/two.plan --trace "$dir/case/a.trace"
replaces "a snapshot" a.pickle "$PLEAT" show made/two.plan --snapshot "$dir/case/a.pickle"
replaces "a schedule" a.csv "$PLEAT" show made/two.plan --csv "$dir/case/a.csv"
replaces "a run's page" w.html "$PLEAT" watch made/run -o "$dir/case/w.html"
all=$modes every=32 # its plans are measured each time
[ -n "${PLEAT_ALL-}" ] || { modes=full one_in=1; }
replaces "a calibration" a.machine "$PLEAT" bench --calibrate "$dir/case/a.machine" axes.seq=32 axes.batch=2 \
    axes.hidden=32 axes.wide=64 axes.ffn=64 axes.vocab=64
modes=$all every=1 one_in=2
replaces "tokens" "t.bin t.idx" "$PLEAT" data tokenize made/book.txt -o "$dir/case/t"
replaces "a blend's order" "b-dataset_index.npy b-dataset_sample_index.npy" \
    "$PLEAT" data blend 1 made/book.txt data.format=bytes -o "$dir/case/b"

rm -rf old && mkdir old
strikes "an export" out "$PLEAT" export made/run "$dir/case/out"
again=no # what is there is not written again
strikes "a new model" "my.lua .luarc.json .luacheckrc .pleat/pleat.lua" "$PLEAT" new tiny "$dir/case/my.lua"
mkdir old/run && cp made/run/plan old/run
strikes "an import of weights" "run/hf run/ckpt/step-00000000" "$PLEAT" ckpt import-hf made/hf "$dir/case/run"

# What is kept of a run for the next one, kernels and tokens: all runs have one loss.
mkdir old/cache && again=always every=3
XDG_CACHE_HOME=$dir/case/cache && export XDG_CACHE_HOME
strikes "the cache" "" "$PLEAT" run small.lua target=host train.steps=1 data.train=made/book.txt data.eod=a \
    axes.vocab=256 name="$dir/run"
[ "$only" ] || [ "$first" ]
ended "runs have a loss" $? none

# Who adds a writer adds a row here, or a case of crash_test.
writers="frontend/cli/commands.c runtime/ckpt/ckpt_write.c runtime/ckpt/ckptdir.c runtime/ckpt/convert.c
runtime/ckpt/hffolder.c runtime/data/binidx.c runtime/data/blendtool.c runtime/data/tokenize.c
runtime/device/host.c runtime/process/cache.c runtime/train/log.c runtime/train/rundir.c"
(cd "$root" && grep -rlE '(output_open|file_replace|folder_open|file_create|file_write)\(' frontend passes codegen \
    runtime --include='*.c' | sort) >log
[ "$(cat log)" = "$(echo $writers | tr ' ' '\n')" ]
ended "all writers are struck" $? "others write too"
exit $bad
