#!/bin/sh
# settings: choices of plans against each by hand, by the predictions of target=null. For
# the models of models/ (two layers) and of tests/, and five machines, what a plan chooses
# where no key states it should be no slower than what any key states.
#
#   settings.sh [MODEL ...]   models whose names begin with one of these; default all
#
# Printed: what is slower by more than 0.1 %, and how many were compared.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT

# a line is a machine and its keys
machines="h200x1
h100x4 fold.ep=2
a100x4 fold.tp=2 fold.ep=2
gb200x4 fold.ep=4
h100x16 fold.ep=4 fold.zero=1"

# a line is what all plans have, and choices by hand
choices="precision=bf16 fold.pair=0 fold.pair=1 train.offload=none train.recompute=0 train.recompute=layernorm train.slices=1
precision=bf16 route.dispatcher=allgather route.dispatcher=alltoall route.dispatcher=peer
precision=fp8 precision=bf16 precision.wgrad=none precision.wgrad=all"

# predicted KEYS..: ms of a step of $model; nothing where it does not compile
predicted() {
    "$PLEAT" compile "$model" target=null route.balance=forced -o "$dir/p.plan" "$@" 2>&1 |
        sed -n 's/.*predicted \(.*\) ms a step$/\1/p'
}

# compare NAME CLUSTER KEYS..: lines "ms of the choice, ms by hand, what"
compare() {
    name=$1 cluster=$2 && shift 2
    echo "$choices" | while read -r all hands; do
        own=$(predicted cluster="$cluster" "$@" "$all")
        for hand in $hands; do
            echo "${own:-0} $(predicted cluster="$cluster" "$@" "$all" "$hand") $name $cluster $* $all $hand"
        done
    done
}

for file in models/*.lua tests/models/*.lua tests/hf/*.lua; do
    for only in "${@:-}"; do
        case $(basename "$file") in
        "$only"*)
            model=$dir/model.lua
            sed 's/^local layers, \(.*\) = [0-9]*,/local layers, \1 = 2,/' "$file" >"$model"
            echo "$machines" | while read -r machine; do # shellcheck disable=SC2086
                compare "$file" $machine
            done ;;
        esac
    done
done | awk '$2 + 0 > 0 && $1 > 0 { n++ } $2 + 0 > 0 && $1 > 1.001 * $2 { print " ", $0 } END { print "  " n " compared" }'
