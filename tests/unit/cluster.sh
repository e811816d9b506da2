#!/bin/sh
# cluster: machines by name and by file: which numbers prices come from, what
# follows from a cluster, what is refused.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/cluster
rm -rf "$dir" && mkdir -p "$dir" && cp models/tiny.lua "$dir" && cd "$dir" || exit 2
bad=0

result() {
    if [ "$2" = 0 ]; then echo "ok - cluster: $1"; else
        echo "not ok - cluster: $1" && bad=1
        sed 's/^/# /' said | head -n 5
    fi
}

# step KEYS..: predicted ms of a step
step() {
    "$PLEAT" compile tiny.lua target=null axes.batch=64 axes.seq=512 train.batch=2048 \
        -o p.plan "$@" >said 2>&1
    sed -n 's/.*predicted \(.*\) ms a step/\1/p' said
}

# refuse WORDS KEYS..: one line that says so, status 1
refuse() {
    words=$1 && shift
    "$PLEAT" compile tiny.lua target=null -o p.plan "$@" >said 2>&1
    [ $? = 1 ] && [ "$(grep -c 'error: ' said)" = 1 ] && grep -q "$words" said
    result "refused: $*" $?
}

printf 'chip h100\nranks 16\n# ours\nnetwork 1e10 measured\nhost 4 datasheet\n' >my.machine
printf 'network 1e10\n' >bare.machine
printf 'chip h100\nnetwrk 1e10 fitted\n' >typo.machine
plain=$(step world=16 fold.ep=8)
same=$(step cluster=h200x16 fold.ep=8 fold.host=0)
[ -n "$plain" ] && [ "$plain" = "$same" ]
result "an h200 is what target=null has: $plain ms, $same" $?
far=$(step cluster=h200x16 fold.ep=8)
echo "$plain $far" | awk '{ exit !($2 > $1) }'
result "two hosts take longer than one: $far ms" $?
slow=$(step cluster=./my.machine fold.ep=8)
echo "$far $slow" | awk '{ exit !($2 > $1) }'
result "hosts of four by a file: $slow ms" $?
"$PLEAT" show p.plan >said
grep -q "world=16" said && grep -q "fold.host=4 " said && grep -q "cluster.network=1e10 " said
result "the plan says its cluster" $?
keys=$(step cluster=h100x16 cluster.network=1e10 cluster.host=4 fold.ep=8)
[ "$keys" = "$slow" ]
result "keys say what a file does: $keys ms" $?
{ cat tiny.lua; echo 'cluster { chip="h100x16", network=1e10, host=4 }'; } >ours.lua
mv ours.lua tiny.lua
lua=$(step fold.ep=8)
[ "$lua" = "$slow" ]
result "cluster{} says what a file does: $lua ms" $?
cp ../../../models/tiny.lua tiny.lua
"$PLEAT" compile tiny.lua cluster=a100_40x8 target=null -o p.plan >said 2>&1 &&
    "$PLEAT" show p.plan >said && grep -q "limit  *37.25 GiB" said
result "a machine's memory is the limit" $?
"$PLEAT" help machines >said && grep -q "^link .*2.6e+11m" said && grep -q "^m measured" said
result "help machines" $?

refuse "'h1000' is neither .*did you mean 'h100'" cluster=h1000x64
refuse "the cluster has 64 ranks (world=64, or cluster=h100x32)" cluster=h100x64 world=32
refuse "nearest legal: tp=2" cluster=h100x64 fold.tp=3
refuse "bare.machine:1: error: network 1e10: behind a number" cluster=./bare.machine
refuse "typo.machine:2: error: unknown key 'cluster.netwrk' (did you mean 'cluster.network'" cluster=./typo.machine
refuse "cluster.network: -1 is below" cluster=h100x8 cluster.network=-1
exit $bad
