#!/bin/sh
# null: counted over all ranks a fold does the work of one rank and stores its
# parameters, apart from what it lists: parameters that several ranks hold, FLOPs
# that several ranks of a stage do. The rest may differ by 0.05 % of the FLOPs:
# buckets are packed and unpacked (zero=3: for each use, 0.05 % more), experts'
# parts of a token added (on the token's rank, where rows are exchanged: 0.05 %
# more, and as much with etp), masks and norms of parameters worked out by every stage; a ring merges
# what its passes found, 0.25 % more.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/null
rm -rf "$dir" && mkdir -p "$dir" || exit 2
cd models || exit 2
one= bad=0 n=0

# counts FILE: bytes once, bytes of all, bytes listed, bytes listed once, FLOPs
# without those done again
counts() {
    awk '/^parameters:/ { once = $2; all = $5 }
        / tensors .* times, / { listed += $5; single += $5 / $3 }
        /FLOP on all ranks/ { for (i = 1; i < NF; i++)
            if ($(i + 1) == "done") flops = $1 - $i }
        END { printf "%.0f %.0f %.0f %.0f %.0f\n", once, all, listed, single,
              flops }' "$1"
}

# fold KEYS...
fold() {
    n=$((n + 1)) may=50
    case $* in *fold.ring*) may=$((may + 250)) ;; esac
    case $* in *zero=3*) may=$((may + 50)) ;; esac
    case $* in *ep=4*) may=$((may + 50)) ;; esac
    case $* in *etp=2*ep=4*) may=$((may + 50)) ;; esac
    if ! "$PLEAT" run tiny.lua target=null train.batch=128 axes.batch=8 \
        axes.seq=64 "$@" >"$dir/log" 2>&1; then
        echo "not ok - null: $*"
        sed 's/^/# /' "$dir/log" | head -n 5
        bad=1
        return
    fi
    got=$(counts "$dir/log")
    one=${one:-$got}
    if echo "$one $got $may" | awk '{ d = $10 / $5 - 1
        exit !($6 == $1 && $7 == $8 && $9 == $1 && d * 1e5 < $11 && d * 1e5 > -$11) }'
    then echo "ok - null: $*"
    else
        echo "not ok - null: $*"
        echo "# one rank $one, here $got"
        bad=1
    fi
}

fold world=1
for w in 2 4 8; do
    fold world=$w
    for tp in 1 2; do
        for cp in 1 2; do
            for ep in 1 2 4; do
                [ $((tp * cp)) -le $w ] && [ $ep -le $w ] &&
                    fold world=$w fold.tp=$tp fold.cp=$cp fold.ep=$ep
            done
        done
    done
done
fold world=8 fold.etp=2 fold.ep=4 fold.tp=2
fold world=16 fold.etp=2 fold.ep=8 fold.tp=2
for pp in 2 4; do
    for vpp in 1 2; do
        [ $((pp * vpp)) -gt 4 ] && continue
        for zero in 0 1; do
            fold world=8 fold.pp=$pp fold.vpp=$vpp fold.zero=$zero \
                fold.schedule=$([ $vpp = 1 ] && echo 1f1b || echo interleaved)
        done
    done
    fold world=16 fold.pp=$pp fold.tp=2 fold.ep=2
    fold world=16 fold.pp=$pp fold.cp=2 fold.ep=4 fold.schedule=zerobubble
done
fold world=8 fold.cp=4
fold world=8 fold.cp=4 fold.ring=1
fold world=8 fold.zero=0
fold world=8 fold.zero=3 fold.tp=2
fold world=8 fold.zero=3 fold.ep=4 fold.hybrid=2
# 16,384 ranks on one core: every parameter of the model stands in the report.
n=$((n + 1)) keys="world=16384 fold.tp=2 fold.pp=16 fold.vpp=2 fold.ep=64"
if "$PLEAT" run deepseek_v3.lua target=null train.batch=16384 $keys \
    fold.schedule=interleaved >"$dir/log" 2>&1 &&
    grep -q '^parameters: 1365272944640 bytes once' "$dir/log" &&
    grep -q '^stage 15, 1024 ranks:' "$dir/log"
then echo "ok - null: DeepSeek-V3, $keys"
else
    echo "not ok - null: DeepSeek-V3, $keys"
    sed 's/^/# /' "$dir/log" | head -n 5
    bad=1
fi
printf '1..%d\n' $n
exit $bad
