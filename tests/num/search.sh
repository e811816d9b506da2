#!/bin/sh
# search: what it chooses is what compiling the whole space finds: the fewest
# milliseconds of a plan that fits; more memory never gives a slower one. What is
# refused, what is said where nothing fits. PLEAT_ALL=1: on 16 ranks too.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/search
rm -rf "$dir" && mkdir -p "$dir" && cp models/tiny.lua tests/models/folds.lua "$dir" || exit 2
sed 's/^local layers, \(.*\) = [0-9]*,/local layers, \1 = 2,/' models/llama3.lua >"$dir/llama3.lua"
cd "$dir" || exit 2
bad=0
model=tiny small="target=null axes.seq=64 axes.vocab=64 train.batch=4" batch=axes.batch=1

result() {
    if [ "$2" = 0 ]; then echo "ok - search: $1"; else
        echo "not ok - search: $1" && bad=1
        sed 's/^/# /' said | head -n 5
    fi
}

# price KEYS..: ms of a step to six digits; nothing where it is refused
price() {
    # shellcheck disable=SC2086
    "$PLEAT" compile $model.lua $small "$@" -o p.plan >said 2>&1 || return
    "$PLEAT" show p.plan | sed -n '/^program step /{s/.*predicted \([0-9.]*\) ms.*/\1/p;q;}'
}

# space WORLD KEYS..: the price and keys of each point that compiles and fits
space() {
    world=$1 && shift
    for pp in 1 2 4; do for vpp in 1 2; do for tp in 1 2 4; do for etp in 1 2 4; do
        for ep in ${experts:-1 2 4 8}; do for kind in 1f1b interleaved zerobubble dualpipev; do
            for zero in 1 2 3; do
                case $pp-$vpp-$kind in
                1-2-* | 1-1-[!1]* | *-1-interleaved | *-1-dualpipev | *-2-1f1b | *-2-zero*) continue ;;
                esac
                [ $((tp * pp)) -gt "$world" ] || [ $((etp * ep * pp)) -gt "$world" ] ||
                    [ $etp -gt $tp ] || { [ $zero -gt 1 ] && [ $((tp * pp)) = "$world" ]; } &&
                    continue
                keys="fold.pp=$pp fold.vpp=$vpp fold.tp=$tp fold.etp=$etp fold.ep=$ep fold.schedule=$kind fold.zero=$zero"
                for key in $pin; do
                    case " $keys " in *" $key "*) ;; *) continue 2 ;; esac
                done
                # shellcheck disable=SC2086
                ms=$(price world=$world axes.batch=1 $keys "$@")
                [ -z "$ms" ] || echo "$ms $keys"
            done
        done; done
    done; done; done; done
}

# search KEYS..: the ms and the keys of the best
search() {
    # shellcheck disable=SC2086
    "$PLEAT" search $model.lua $small $batch --seconds 0 --json "$@" >said 2>&1 || return
    sed -n 's/.*"proven":true.*"best":{"keys":"\([^"]*\)","ms":\([0-9.]*\),.*"fits":true,"price":"compiled".*/\2 \1/p' said
}

# best KEYS..: search against all of a space
best() {
    world=$1 && shift
    pin=$1 && shift
    # shellcheck disable=SC2086
    set -- "$(search world=$world $pin "$@")" "$(space "$world" "$@" | sort -n | head -n 1)"
    echo "$1 $2" >said
    echo "$1" "$2" | awk '{ for (i = 2; $i !~ /^[0-9.]+$/; i++) continue
        exit !($1 > 0 && $1 - $i < 6e-4 && $i - $1 < 6e-4) }'
    result "$model: the best of $world ranks ${pin:-} is that of the whole space: ${1%% *} ms, ${2%% *}" $?
}

# listed KEYS..: search against all points of -d space, each compiled; of micro-batches too
listed() {
    batch=
    # shellcheck disable=SC2086
    "$PLEAT" search $model.lua $small "$@" -d space >points
    sed -n 's/.* GiB  //p' points >keys
    while read -r keys; do
        # shellcheck disable=SC2086
        echo "$(price "$@" $keys) $keys"
    done <keys | sort -n | sed -n '/^[0-9]/{p;q;}' >least
    # shellcheck disable=SC2046
    set -- $(search "$@" | cut -d' ' -f1) $(cut -d' ' -f1 least) "$(wc -l <keys)" "$(sed -n 's/ points are legal.*//p' points)"
    echo "$@" >said
    [ "$3" = "$4" ] && [ "$3" -gt 1 ] && echo "$1 $2" | awk '{ exit !($1 > 0 && $1 - $2 < 6e-4 && $2 - $1 < 6e-4) }'
    result "$model: the best is the least of all $3 points of -d space: $1 ms, $2" $?
    batch=axes.batch=1
}

# limits "KEYS.." LIMITS..: more memory never gives a slower plan
limits() {
    keys=$1 last=1e9 && shift
    for m in "$@"; do
        # shellcheck disable=SC2086
        now=$(search $keys memory="$m")
        now=${now%% *}
        [ -z "$now" ] && now=$last
        echo "$now $last" | awk '{ exit !($1 <= $2) }'
        result "$model: $m is no slower than less: $now ms" $?
        last=$now
    done
    [ "$last" != 1e9 ]
    result "$model: some of them fit" $?
}

best 2 ""
best 4 fold.ep=4
listed world=2
limits "world=2 fold.pp=1" 24MiB 32MiB
model=folds small="target=null train.batch=16"
[ -z "$PLEAT_ALL" ] || best 16 "fold.tp=2 fold.ep=4"
limits "world=4 fold.pp=2 fold.tp=1" 100KiB 180KiB
model=llama3 experts=1
small="target=null axes.seq=32 axes.hidden=32 axes.kv=2 axes.group=2 axes.dim=8 axes.ffn=64 axes.vocab=64 train.batch=16"
[ -z "$PLEAT_ALL" ] || best 16 fold.tp=2
best 8 "fold.tp=2"
model=tiny small="target=null axes.seq=64 axes.vocab=64 train.batch=4"

# What short plans and the schedule say of memory is what a compiled plan takes.
sed 's/^local layers, \(.*\) = [0-9]*,/local layers, \1 = 8,/' ../../../models/qwen3_moe.lua >eight.lua
for kind in "1f1b fold.pp=8" "zerobubble fold.pp=8" "interleaved fold.pp=4 fold.vpp=2" "dualpipev fold.pp=4 fold.vpp=2"; do
    # shellcheck disable=SC2086
    "$PLEAT" search eight.lua target=null world=64 fold.schedule=$kind fold.tp=1 fold.cp=1 fold.ep=8 fold.etp=1 \
        fold.zero=1 train.batch=512 axes.batch=1 axes.seq=512 axes.hidden=256 axes.ffn=256 axes.expert=16 \
        axes.vocab=256 --seconds 0 >said 2>&1
    ratio=$(sed -n 's/.*time estimated, [0-9.]* to \([0-9.]*\) of the memory.*/\1/p' said)
    echo "${ratio:-0}" | awk '{ exit !($1 > 0.85 && $1 < 1.15) }'
    result "memory of $kind is estimated: $ratio of it is taken" $?
done

# What is found depends on the clock only where it says so.
for i in 1 2; do
    search world=4 fold.tp=1 >best$i && sed 's/"seconds":[0-9.]*//' said >all$i
done
cmp -s best1 best2 && cmp -s all1 all2 && grep -q '"stopped":false' all1
result "two searches find the same" $?
# The clock holds: what is compiled by then, or that nothing is.
begun=$(date +%s)
# shellcheck disable=SC2086
"$PLEAT" search tiny.lua $small world=16 --seconds 3 >said 2>&1 && grep -q "^Stopped after --seconds 3: " said &&
    [ $(($(date +%s) - begun)) -le 6 ]
result "a search that the clock stops says so" $?
# shellcheck disable=SC2086
"$PLEAT" search tiny.lua $small world=4 --seconds 0.001 >said 2>&1
[ $? = 1 ] && grep -q "error: search: --seconds 0.001 ended before a plan was estimated" said
result "a search that has no time says so" $?

# The first line is an estimate, marked; each other names a faster compiled plan; the
# last is that of the end, whose fold is a row of the table.
# shellcheck disable=SC2086
"$PLEAT" search tiny.lua $small world=4 fold.tp=1 >said 2>steps
awk '/^estimated [0-9.]* ms a step in [0-9.]* s: fold/ { n += NR == 1; next }
    /^compiled / { if (NR > 2 && $2 >= last) exit 1; last = $2; keys = $0; sub(/.* s: /, "", keys); next }
    { exit 1 }
    END { exit !(n == 1 && last > 0 && last < 1e9 && keys != "") }' steps &&
    [ "$(sed -n '$s/.* s: //p' steps)" = "$(tail -n 1 said)" ] &&
    grep -q "^ *$(sed -n '$s/compiled \([0-9.]*\) .*/\1/p' steps) .* compiled *the best" said
result "it says an estimate, then plans, each faster" $?

# The fewest ranks within a time: fewer than all, and its keys compile to that.
# shellcheck disable=SC2086
least() { "$PLEAT" search tiny.lua $small cluster=h100x4 fold.tp=1 fold.pp=1 fold.ep=1 $batch "$@" >said 2>steps; }
least --least gpus --within 9
[ "$(sed -n 's/^GPUs: \([0-9]*\),.*/\1/p' steps | tr '\n' ' ')" = "4 2 1 " ] &&
    tail -n 1 said | grep -q ' cluster.chip=h100x1$'
result "the fewest ranks within a time: $(tail -n 1 said)" $?
least --least memory --within 9 && keys=$(tail -n 1 said)
# shellcheck disable=SC2086
"$PLEAT" compile tiny.lua $small cluster=h100x4 ${keys:-memory=1B} -o p.plan >said 2>&1 &&
    [ "${keys##*memory=}" != "$keys" ]
result "the least memory within a time: $keys" $?
# refuse WORDS COMMAND..
refuse() {
    words=$1 && shift
    "$PLEAT" "$@" >said 2>&1
    [ $? = 1 ] && [ "$(grep -c 'error: ' said)" = 1 ] && grep -q "$words" said
    result "refused: $*" $?
}
refuse "nearest legal: tp=2" search tiny.lua cluster=h100x8 fold.tp=3
refuse "nearest legal: ep=2" search tiny.lua cluster=h100x8 fold.ep=3
refuse "nearest legal: fold.vpp=2 in place of 3" search tiny.lua cluster=h100x8 fold.vpp=3
refuse "nearest legal: 12 ranks or train.batch=65" search tiny.lua cluster=h100x13
refuse "4096 ranks and 64 sequences a step (train.batch) have no legal fold .*: train.batch=128" search tiny.lua cluster=h100x4096
refuse "nearest legal: train.batch=1111111" search tiny.lua cluster=h100x9999999
refuse "world: 1000000000000 is not between 1 and" search tiny.lua target=null world=1000000000000
refuse "for how many ranks" search tiny.lua
refuse "\-\-least and \-\-within stand together" search tiny.lua cluster=h100x2 --least gpus
refuse "no plan is found that takes \-\-within 0.001 ms" search tiny.lua cluster=h100x2 --least gpus --within 0.001
refuse "no plan fits into 9.00 KiB of a rank; the least, .* is that of fold" search tiny.lua cluster=h100x32 memory=9KiB
refuse "not known yet whether a plan fits into 600.00 KiB of a rank: .* points are compiled" search tiny.lua cluster=h100x32 memory=600KiB
refuse "no plan fits into 1000.00 KiB of a rank; the least, .* is that of fold" search tiny.lua \
    cluster=h100x2 memory=1000KiB train.batch=4 axes.batch=1 --seconds 1
refuse "no fold or setting next to it fits: [1-9][0-9]* were compiled" compile tiny.lua target=null world=1 \
    axes.batch=1 train.batch=16 memory=20MiB train.offload=none
refuse "over the limit of .*; largest: .*tiny.lua:[0-9]*" compile tiny.lua target=null world=2 \
    axes.batch=4 train.batch=16 memory=44MiB fold.zero=1
keys=$(sed -n 's/^it fits with \([^(]*\) (.*/\1/p' said)
# shellcheck disable=SC2086
[ -n "$keys" ] && "$PLEAT" compile tiny.lua target=null world=2 train.batch=16 memory=44MiB $keys -o p.plan >said 2>&1
result "it fits with what is said: $keys" $?
"$PLEAT" compile tiny.lua target=null world=2 axes.batch=4 train.batch=16 memory=44MiB -o p.plan >said 2>&1 &&
    grep -q "it fits with fold.zero=2, which is taken" said
result "fold.zero is taken where a plan fits with it alone" $?
# A search that carries on from a run: what it measured corrects all times, its
# own fold has the time measured, its keys hold, those of the fold are free.
head -c 60000 ../../../tests/README.md >text
# shellcheck disable=SC2086
"$PLEAT" run tiny.lua target=host axes.seq=64 axes.batch=1 train.batch=4 \
    data.train=text train.steps=6 name=measured >said 2>&1 &&
    "$PLEAT" search tiny.lua from=measured --seconds 0 --json >said 2>&1
result "carries on from a run" $?
# word NAME: its number in the part on the run
word() { sed -n 's/.*"from":{.*"'"$1"'":\([0-9.]*\).*/\1/p' said; }
ms=$(sed -n 's/.*"ms":\([0-9.]*\),"predicted_ms":\([0-9.]*\),[^}]*"price":"measured".*/\1 \2/p' said)
echo "${ms:-0 0} $(word measured_ms) $(word predicted_ms) $(word kernels)" | awk '
    function near(a, b) { return a > 0 && a / b < 1.0001 && b / a < 1.0001 }
    { exit !(near($1, $3) && near($2, $4) && near($3, $4 * $5)) }'
result "the run's fold takes what it measured" $?
[ "$(grep -o '"keys":"[^"]*axes.batch=4"' said | head -n 1)" ]
result "its micro-batch does not bind" $?
"$PLEAT" search tiny.lua from=measured world=2 --seconds 0 >said 2>&1 &&
    grep -q "^measured: fold.zero=1 axes.batch=1$" said &&
    grep -q "^ predicted  *ms/step" said && grep -q "^Next, [0-9.]* ms a step:$" said
result "on more ranks" $?
refuse "measured on '.*', and the plans searched are for 'h100'" search tiny.lua from=measured cluster=h100x2
refuse "the model is not that of measured: 'axis seq" search tiny.lua from=measured axes.seq=32
refuse "from=nowhere is no run's folder" search tiny.lua from=nowhere world=2
exit $bad
