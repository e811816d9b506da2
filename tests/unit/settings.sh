#!/bin/sh
# settings: what is refused, whether or not anything would use it: every key and
# option by its row, in one line that names it and says what is allowed.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/settings
rm -rf "$dir" && mkdir -p "$dir" && cd "$dir" || exit 2
bad=0

# result NAME STATUS: of what was run last
result() {
    if [ "$2" = 0 ]; then echo "ok - settings: $1"; return; fi
    echo "not ok - settings: $1"
    sed 's/^/# /' said | head -n 10
    bad=1
}

# One stage, one rank, a constant rate: nothing here uses most keys.
cat >small.lua <<'END'
axes { batch=2, seq=4, hidden=8 }
train { min_lr=1e-5, skip_above="gnorm 10", ramp={ 2, 2, 4 }, no_decay={ "w", "b*" }, batch=4 }
data { split={ 9, 1 } }
fold { order="tp-cp-dp-pp", layout="E(t|)*2L", schedule="1f1b" }
loss("l", mean(param("w", "hidden") * param("bias", "hidden"), "hidden"))
END

"$PLEAT" check small.lua >said 2>&1
result "a model sets keys of every kind" $?

# A function as the learning rate's schedule is kept as points.
sed 's/^train { /train { schedule=function(t) return t < 0.5 and 1 or 2 - 2 * t end, /' small.lua >curve.lua
"$PLEAT" compile curve.lua -o curve.plan >said 2>&1 && grep -q '^option train.schedule "0:1,0.5:1,1:0"$' curve.plan
result "a schedule that is a function" $?
sed 's/return t < 0.5 and 1 or 2 - 2 \* t/return 1 - 2 * t/' curve.lua >low.lua
"$PLEAT" check low.lua >/dev/null 2>said
[ $? = 1 ] && grep -q "low.lua:2: error: train.schedule: the function must return a number, at least 0; of 0.501" said
result "one that falls below 0" $?

while read -r key text; do
    "$PLEAT" check small.lua "$key" >/dev/null 2>said
    [ $? = 1 ] && [ "$(wc -l <said)" = 1 ] && grep -qF -- "error: $text" said
    result "$key" $?
done <<'END'
train.no_decay=bais train.no_decay: no parameter is named 'bais' (did you mean 'bias'?)
train.no_decay=w,v* train.no_decay: no parameter is named 'v*'
train.decay=2 train.decay: 2 is above the largest value 1
train.schedule=0:1,0.5:1 train.schedule: '0:1,0.5:1' is no curve
train.schedule=0:1,0.5:-1,1:0 train.schedule: '0:1,0.5:-1,1:0' is no curve
train.schedule=cosin train.schedule: 'cosin' is not one of constant, linear, cosine, wsd, inverse_sqrt (did you mean 'cosine'?)
train.min_lr=1 train.min_lr: 1 is above train.lr=3e-4
train.eps=0 train.eps: 0 is below the least value 1e-37
train.slices=1025 train.slices: 1025 is above the largest value 1024
train.ramp=16,16 train.ramp: '16,16' is not 3 whole numbers above 0 like 16,16,8000
train.ramp=0,1,2 train.ramp: '0,1,2' is not 3 whole numbers above 0
data.split=1,-1 data.split: '1,-1' is not like 969,30,1: up to 3 numbers at least 0
data.split=0,0 data.split: '0,0' is not like 969,30,1
fold.schedule=zerobuble fold.schedule: 'zerobuble' is no file to read, nor one of 1f1b, interleaved, zerobubble, dualpipev (did you mean 'zerobubble'?)
fold.schedule=none.csv fold.schedule: 'none.csv' is no file to read
fold.layout=EtTL fold.layout EtTL, position 3: 'T' is none of E t m L | (did you mean 't'?)
fold.order=tp-cp-dp fold.order 'tp-cp-dp' lacks 'pp'
fold.order=tp-cp-dp-pp:2 fold.order 'tp-cp-dp-pp:2': between names stands '-'
fold.pp=4097 fold.pp: 4097 is above the largest value 4096
fold.vpp=0 fold.vpp: 0 is below the least value 1
memory=76 memory: '76' is not a size like 76GiB or 80GB
memory=-1GiB memory: '-1GiB' is not a size like 76GiB or 80GB
fold.balance=zigzg fold.balance: 'zigzg' is not one of zigzag, contiguous (did you mean 'zigzag'?)
END

# Of the command line too.
while read -r status args; do
    read -r text
    # shellcheck disable=SC2086
    "$PLEAT" $args >/dev/null 2>said
    [ $? = "$status" ] && head -n 1 said | grep -qF -- "error: $text"
    result "pleat $args" $?
done <<'END'
2
no command is given
2 chekc small.lua
unknown command 'chekc' (did you mean 'check'?)
2 check
check: which file?
2 check small.lua --fast
unknown option '--fast'
2 compile small.lua -o
option '-o' needs a value
2 help rnu
unknown command 'rnu' (did you mean 'run'?)
2 ckpt ls runs/x train.lr=1
ckpt takes no keys: train.lr=1
1 show runs/x fold.tp=2
fold.tp=2: what a plan does is compiled in
1 bench small.lua target=null
the plan is for target 'null'
1 compile small.lua train.batch=1000000000000
train.batch is 1000000000000: 1000000000000 micro-batches of 1, and a step has at most 1048576
1 check small.lua train.lr=1e-6
train.lr=1e-6 is below train.min_lr=1e-05 of small.lua:2: give both
1 run small.lua axes.hidden=1000000000000 target=host
out of memory: the plan needs
1 check nofile.lua
cannot read nofile.lua: No such file or directory
1 run . resume=1
cannot read .: Is a directory
2 data
data: which command?
2 ckpt ls
ckpt ls: a word is missing
1 generate runs/x --temperature nan
--temperature: 'nan' is not a number
1 generate runs/x --temperature -1
--temperature: -1 is below the least value 0
1 generate runs/x -n 99999999999999999999
-n: '99999999999999999999' is not an integer
1 generate runs/x -n 0
-n: 0 is below the least value 1
1 generate runs/x --topk -3
--topk: -3 is below the least value 1
1 show small.plan --rank -1
--rank: -1 is below the least value 0
1 run runs/x --replay 0
--replay: 0 is below the least value 1
END
: >small.plan
for args in "" --fast bench; do
    # shellcheck disable=SC2086
    "$PLEAT-run" $args >/dev/null 2>said
    [ $? = 2 ] && head -n 1 said | grep -q "error: "
    result "pleat-run $args" $?
done

# Each key that has a bound or words refuses what no key takes.
"$PLEAT" help keys >keys
awk '$2 ~ /^(int|num|bool|enum|pair|limits)$/ { sub(/=.*/, "", $1); print $1 }
    $2 !~ /^[a-z]+$/ && $3 ~ /^(int|num|bool|enum|pair|limits)$/ {
        sub(/=.*/, "", $1); print $1 }' keys >names
n=0
while read -r key; do
    "$PLEAT" check small.lua "$key=-x" >/dev/null 2>>said
    [ $? = 1 ] && n=$((n + 1))
done <names
[ "$n" -gt 40 ] && [ "$n" = "$(wc -l <names)" ]
result "$n keys refuse what is no value of theirs" $?
! grep -q "^route.re" keys
result "help keys shows no key that is not built" $?
exit $bad
