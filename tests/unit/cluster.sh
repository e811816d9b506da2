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
grep -q "^link  *bytes/s " said && grep -q "^network  *bytes/s " said
result "help machines says units" $?
sed -n '/^a machine file/,$ { /^    /p }' said >example.machine
"$PLEAT" compile tiny.lua cluster=./example.machine target=null train.batch=256 axes.batch=1 -o p.plan >said 2>&1 &&
    "$PLEAT" show p.plan | grep -q "cluster.chip=h100 .*cluster.gemm=1e9:2.4e14,1e11:5.1e14"
result "its example is a machine file" $?
"$PLEAT" compile tiny.lua cluster=H100x2 target=null axes.batch=8 train.batch=16 -o p.plan >said 2>&1 &&
    "$PLEAT" show p.plan | grep -q "cluster.chip=h100 cluster.ranks=2"
result "a machine's name in upper case" $?

plain=$(step cluster=h100x16 fold.ep=4)
sorted=$(step cluster=h100x16 fold.ep=4 cluster.dispatch=1e10)
slower=$(step cluster=h100x16 fold.ep=4 cluster.dispatch=1e9)
echo "$plain $sorted $slower" | awk '{ exit !($1 < $2 && $2 < $3) }'
result "a dispatcher that sorts rows by copies takes longer: $plain < $sorted < $slower ms" $?

# recipes by what a chip multiplies
sed 's/^local layers, eps = 48,/local layers, eps = 1,/' ../../../models/qwen3_moe.lua >one.lua
fewer() { # chip recipe: predicted ms of a step
    "$PLEAT" compile one.lua target=null cluster="$1" memory=999GiB axes.batch=4 train.batch=4 -o p.plan $2 >said 2>&1
    sed -n 's/.*predicted \(.*\) ms a step/\1/p' said
}
bf16=$(fewer gb200 precision=bf16)
mxfp8=$(fewer gb200 "precision=fp8 precision.recipe=mxfp8")
echo "$bf16 $mxfp8" | awk '{ exit !($2 < 0.99 * $1) }' && ! grep -q warning said
result "mxfp8 is faster on a gb200: $mxfp8 ms, $bf16" $?
bf16=$(fewer h100 precision=bf16)
mxfp8=$(fewer h100 "precision=fp8 precision.recipe=mxfp8")
[ "$bf16" = "$mxfp8" ] && grep -q "warning: precision: no products of bf16 are of few bits" said
result "on an h100 it changes nothing, with a warning" $?
bf16=$(fewer a100 precision=bf16)
block=$(fewer a100 precision=fp8)
[ "$bf16" = "$block" ] && grep -q "since the machine 'a100' has no kernels for this recipe" said
result "nor does any recipe on an a100" $?

# ranks of tp send rounded rows and their scales to each other, which products read
sed 's/^local layers, \(.*\) = 32,/local layers, \1 = 1,/' ../../../models/llama3.lua >dense.lua
sent() { # keys: predicted ms of a step of two ranks
    "$PLEAT" compile dense.lua target=null cluster=h200x2 fold.tp=2 memory=999GiB axes.hidden=8192 axes.ffn=28672 \
        axes.seq=8192 train.batch=4 "$@" -o p.plan 2>&1 | sed -n 's/.*predicted \(.*\) ms a step/\1/p'
}
bf16=$(sent precision=bf16)
fp8=$(sent precision=fp8)
echo "$bf16 $fp8" | awk '{ exit !($2 < 0.97 * $1) }'
result "products of 8 bits are faster over tp ranks: $fp8 ms, $bf16" $?
# gradients of 8 bits are chosen by the rows of one rank
sed 's/^local layers, eps = 28,/local layers, eps = 1,/' ../../../models/qwen2_moe.lua >moe.lua
rows() { # keys: predicted ms of a step of four ranks
    "$PLEAT" compile moe.lua target=null cluster=h100x4 fold.ep=2 memory=999GiB train.batch=16 precision=fp8 "$@" \
        -o p.plan 2>&1 | sed -n 's/.*predicted \(.*\) ms a step/\1/p'
}
pays=$(rows precision.wgrad=pays)
none=$(rows precision.wgrad=none)
echo "$pays $none" | awk '{ exit !($1 > 0 && $1 <= $2) }'
result "which are no slower than those of bf16: $pays ms, $none" $?

# Muon's products are batched over experts and store bf16, one kernel between them
updates() {
    "$PLEAT" compile ../../../models/olmoe.lua cluster=h200x1 axes.seq=2048 train.batch=1 train.optimizer="$1" -o p.plan >said 2>&1
    sed -n 's/.*predicted \(.*\) ms a step/\1/p' said
}
adamw=$(updates adamw) muon=$(updates muon)
echo "$adamw $muon" | awk '{ exit !($2 > $1 && $2 < $1 + 310) }'
result "OLMoE's step by Muon takes at most 310 ms more than by AdamW: $muon ms, $adamw" $?

# a cluster of GPUs means plans for GPUs, unless a target is stated
for row in "cuda cluster=h100x2" "host cluster=laptop" "host cluster=h100x2 target=host"; do
    # shellcheck disable=SC2086
    "$PLEAT" compile tiny.lua axes.batch=8 train.batch=16 ${row#* } -o p.plan >said 2>&1 &&
        "$PLEAT" show p.plan | head -n 1 | grep -q " for ${row%% *}, "
    result "plans of ${row#* } are for ${row%% *}" $?
done

# a calibration, of few ranks and small sizes: which numbers, what follows
printf 'chip a100\ngemm 1e13 measured 1e6\ngemm 4e13 measured 1e13\nmemory 1e13 measured\nlaunch 0 measured\n' >sizes.machine
sizes=$(step cluster=./sizes.machine)
same=$(step cluster=a100 cluster.gemm=1e6:1e13,1e13:4e13 cluster.memory=1e13 cluster.launch=0)
low=$(step cluster=a100 cluster.gemm=1e13 cluster.memory=1e13 cluster.launch=0)
high=$(step cluster=a100 cluster.gemm=4e13 cluster.memory=1e13 cluster.launch=0)
echo "$low $sizes $high" | awk '{ exit !($1 > $2 && $2 > $3) }' && [ "$sizes" = "$same" ]
result "products by size lie between the numbers of two sizes: $low > $sizes > $high ms" $?
"$PLEAT" bench --calibrate here.machine target=host axes.seq=32 axes.batch=2 axes.hidden=32 \
    axes.wide=64 axes.ffn=64 axes.vocab=64 >said 2>&1 &&
    grep -q "^device ." here.machine && grep -q "^launch .* measured$" here.machine &&
    grep -q "^memory .* measured [0-9]" here.machine && grep -q "^grouped .* measured [0-9]" here.machine
result "calibrated: numbers by sizes" $?
"$PLEAT" bench tiny.lua axes.hidden=32 axes.ffn=32 axes.batch=2 axes.seq=16 train.batch=8 cluster=./here.machine >said 2>&1 &&
    grep -q "farthest from the plan first" said
result "what it says is planned and measured by" $?
sed 's/^device .*/device another/' here.machine >other.machine
"$PLEAT" bench tiny.lua train.batch=8 cluster=./other.machine >said 2>&1
[ $? = 1 ] && [ "$(grep -c 'error: ' said)" = 1 ] && grep -q "measured on another, this is" said
result "a calibration of another chip is refused" $?
"$PLEAT" bench --calibrate x.machine tiny.lua >said 2>&1
[ $? = 2 ] && grep -q "takes no model: 'tiny.lua'" said
result "a calibration takes no model" $?
cp tiny.lua kept.lua
"$PLEAT" bench --calibrate kept.lua target=host >said 2>&1
[ $? = 1 ] && grep -q "kept.lua is there and is not a machine file" said && cmp tiny.lua kept.lua
result "a calibration replaces no other file" $?

refuse "'h1000' is neither .*did you mean 'h100'" cluster=h1000x64
refuse "the cluster has 64 ranks (world=64, or cluster=h100x32)" cluster=h100x64 world=32
refuse "nearest legal: tp=2" cluster=h100x64 fold.tp=3
refuse "bare.machine:1: error: network 1e10: behind a number" cluster=./bare.machine
refuse "typo.machine:2: error: unknown key 'cluster.netwrk' (did you mean 'cluster.network'" cluster=./typo.machine
refuse "cluster.gemm: size '1e8' is not above" cluster=h100x8 cluster.gemm=1e9:1,1e8:2
refuse "cluster.gemm: '7' is not size:number" cluster=h100x8 cluster.gemm=1e9:1,7
refuse "cluster.network: -1 is below" cluster=h100x8 cluster.network=-1
refuse "cluster.link: at 0 a step would never end" cluster=h100x8 cluster.link=0
refuse "cluster.loop: at 0 a step would never end" cluster=h100x8 cluster.loop=1e9:1e12,1e10:0
refuse "cluster: h100x0 has no ranks" cluster=h100x0
refuse "cluster: h100x99999999999 has too many ranks" cluster=h100x99999999999
echo "# nothing" >empty.machine
refuse "the file 'empty.machine' says nothing of a machine" cluster=./empty.machine
refuse "nearest legal: ep=64" cluster=h100x64 fold.ep=512
exit $bad
