#!/bin/sh
# null: counted over all ranks a fold does the work of one rank and stores its
# parameters, apart from what it lists as held several times. FLOPs may differ
# by 1 %: scalars and norms of parameters are worked out by every rank.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/null
rm -rf "$dir" && mkdir -p "$dir" || exit 2
cd models || exit 2
one= bad=0 n=0

# counts FILE: bytes once, bytes of all, bytes listed, bytes listed once, FLOPs
counts() {
    awk '/^parameters:/ { once = $2; all = $5 }
        / tensors .* times, / { listed += $5; single += $5 / $3 }
        /FLOP on all ranks/ { flops = $1 }
        END { printf "%.0f %.0f %.0f %.0f %.0f\n", once, all, listed, single,
              flops }' "$1"
}

# fold KEYS...
fold() {
    n=$((n + 1))
    if ! "$PLEAT" run tiny.lua target=null train.batch=128 axes.batch=8 \
        axes.seq=64 "$@" >"$dir/log" 2>&1; then
        echo "not ok - null: $*"
        sed 's/^/# /' "$dir/log" | head -n 5
        bad=1
        return
    fi
    got=$(counts "$dir/log")
    one=${one:-$got}
    if echo "$one $got" | awk '{ d = $10 / $5 - 1
        exit !($6 == $1 && $7 == $8 && $9 == $1 && d < .01 && d > -.01) }'
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
printf '1..%d\n' $n
exit $bad
