#!/bin/sh
# limits: little memory, a small stack, a limit of file sizes, closed descriptors, no home, SIGCHLD ignored:
# one clear line and its exit status, or a run that goes on; never a signal, never
# a loop without end, and no file that another's text goes into.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/limits
rm -rf "$dir" && mkdir -p "$dir" && tar -xzf tests/data/runs/format1.tar.gz -C "$dir" || exit 2
rm -r "$dir/run"
cd "$dir" || exit 2
bad=0
run="$PLEAT run small.lua target=host train.steps=4 train.save_every=2"

# result NAME STATUS: ok when it is 0; else what was said
result() {
    if [ "$2" = 0 ]; then echo "ok - limits: $1"; return; fi
    echo "not ok - limits: $1"
    tail -n 12 said | sed 's/^/# /'
    bad=1
}

# ends LIMIT command...: with this limit (the words of ulimit); what it says goes
# to `said` by a pipe, which no limit of files cuts off; $got: its status. What
# never ends uses up a minute of a processor; a wait, five, on a loaded machine too.
ends() {
    limit=$1
    shift
    got=$( (ulimit -t 60 && ulimit $limit && timeout -s KILL 300 "$@" 2>&1; echo "status $?") |
        tee said | sed -n 's/^status //p')
    sed -i '/^status /d' said
}

# lines: how many, steps left out
lines() { grep -c -v "^step\|^val loss" said; }

$run name=whole >said 2>&1
result "without limits" $?

# From no memory to enough: what is said is one line, or nothing when it trained;
# where it trained and could not save, that.
# (The sanitizers' programs reserve more memory than any such limit, and their
# frames are larger.)
worst=0 stacks="24 256"
if $PLEAT doctor >said 2>&1 && (ulimit -v 2000000 && $PLEAT doctor >said 2>&1); then
    # The least of these limits with which a run ends well.
    enough=440000
    while ends "-v $enough" $run name=little; [ "$got" != 0 ] && [ $enough -lt 2000000 ]; do
        enough=$((enough + enough / 8))
        rm -rf little
    done
    # Just above what OpenBLAS needs others get less than they ask for.
    least=$((enough * 5 / 11)) most=$enough
    while [ $((most - least)) -gt 64 ]; do
        kib=$(((least + most) / 2))
        ends "-v $kib" $run name=little
        rm -rf little
        if grep -q "OpenBLAS needs" said; then least=$kib; else most=$kib; fi
    done
    for kib in $((enough / 44)) $((enough / 11)) $((enough * 3 / 11)) $((enough * 5 / 11)) \
        $((enough * 7 / 11)) $((enough * 9 / 11)) $enough $most $((most + 200)) $((most + 700)) $((most + 4000)); do
        rm -rf little
        ends "-v $kib" $run name=little
        [ "$got" = 0 ] || { [ "$got" = 1 ] && [ "$(lines)" = 1 ] && grep -q "memory\|map\|room" said; } ||
            { [ "$got" = 3 ] && grep -q "checkpoint not written: .*memory" said && grep -q "the last checkpoint, of step 4, was not" said; } ||
            { worst=1; echo "# $kib KiB: status $got, $(wc -l <said) lines"; sed "s/^/# $kib: /" said; }
    done
    result "little memory is one line" $worst
    ends "-v $least" env PLEAT_THREADS=2 $run name=blas
    [ "$got" = 1 ] && grep -q "out of memory: OpenBLAS needs [0-9]* MiB for [0-9]* threads" said
    result "OpenBLAS is not asked where it would ask for ever" $?
else
    echo "ok - limits: little memory is one line # SKIP a sanitizer's program"
    stacks=256
fi

# A stack that must not grow; a process that may raise its limit does.
for kib in $stacks; do
    ends "-s $kib" $run "name=stack$kib"
    [ "$got" = 0 ] || { [ "$got" = 1 ] && [ "$(lines)" = 1 ] &&
        grep -q "a stack of $kib KiB (ulimit -s) is too small" said; }
    result "a stack of $kib KiB" $?
done
ends "-Ss 256" $run name=soft
result "a soft limit of the stack is raised" "$got"

# A limit of file sizes: before the first step the end; afterwards a warning.
ends "-f 1" $run name=plain
[ "$got" = 1 ] && [ "$(lines)" = 1 ] && grep -q "cannot write .*: File too large" said
result "no file beyond a limit: one line" $?
ends "-f 600" $run name=partly axes.hidden=256
[ "$got" = 3 ] && grep -q "the last checkpoint, of step 4, was not written" said && [ "$(grep -c '"loss"' partly/metrics.jsonl)" = 4 ] &&
    grep -q "checkpoint not written: .*File too large" said
result "no checkpoint beyond a limit: training goes on, status 3" $?
# Closed descriptors: what a run prints goes nowhere, least of all into its files.
for closed in "<&-" ">&-" "2>&-" "<&- >&- 2>&-"; do
    rm -rf closed
    sh -c "$run name=closed $closed" >said 2>&1
    got=$?
    [ $got = 0 ] && [ "$(grep -c '"loss"' closed/metrics.jsonl)" = 4 ] &&
        ! grep -qv '^{"step": .*}$' closed/metrics.jsonl && "$PLEAT" ckpt verify closed >said 2>&1 &&
        ! grep -q "^step" closed/plan closed/tuned closed/config.lua
    result "closed: $closed" $?
done
# No place for compiled kernels where they belong: another one, and a line.
for home in "HOME=/dev/null XDG_CACHE_HOME=" "XDG_CACHE_HOME=/proc/none"; do
    rm -rf homeless
    env $home $run name=homeless >said 2>&1 && [ "$(grep -c "^warning: .*kept in .*XDG_CACHE_HOME" said)" = 1 ] &&
        grep -q "^step *4/4" said
    result "$home: a warning says where kernels are" $?
done
# Whoever starts it wants to know of no process's end; compilers are processes, too.
(trap '' CHLD && XDG_CACHE_HOME=$dir/cache $run name=deaf) >said 2>&1
result "SIGCHLD is ignored" $?
# A pipe that nobody reads any more.
($run name=pipe train.steps=40; echo $? >status) 2>said | head -n 1 >first
[ "$(cat status)" = 0 ] && [ "$(grep -c '"loss"' pipe/metrics.jsonl)" = 40 ]
result "a closed pipe does not end a run" $?
exit $bad
