#!/bin/sh
# first: compare --first names the first value in which two runs differ, and
# nothing where only the fold or the precision does.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/first
rm -rf "$dir" && mkdir -p "$dir" || exit 2
. tests/expect
keys="data.train=LICENSE data.valid= train.steps=1 train.batch=8 target=host
    axes.batch=2 axes.seq=16 axes.hidden=32 axes.kv=2 axes.dim=8 axes.ffn=16"

# run NAME MODEL KEYS...: the folder of a run of one step on one rank
run() {
    name=$1 model=$2
    shift 2
    # shellcheck disable=SC2086
    "$PLEAT" run "$model" name="$dir/$name" $keys "$@"
}
# fold NAME KEYS...: run a's folder with the plan of a fold
fold() {
    cp -r "$dir/a" "$dir/$1" || return
    name=$1
    shift
    # shellcheck disable=SC2086
    "$PLEAT" compile models/tiny.lua $keys "$@" -o "$dir/$name/plan"
}
first() {
    "$PLEAT" compare "$dir/$1" "$dir/$2" --first
}

is "a run" 0 run a models/tiny.lua
is "itself" 0 first a a
says "itself" ' values of the first step agree to 0, '
is "fp64" 0 run double models/tiny.lua precision=fp64
is "another precision" 0 first a double
is "bf16" 0 run bf16 models/tiny.lua precision=bf16
is "fewer bits" 0 first a bf16
for keys2 in "fold.tp=2" "fold.cp=2" "fold.pp=2" "fold.dp=2 fold.ep=2 fold.zero=3" \
    "fold.cp=2 fold.tp=2 fold.ep=2 fold.etp=2" "fold.dp=4 fold.ep=4 fold.pair=1"; do
    rm -rf "$dir/fold"
    # shellcheck disable=SC2086
    is "$keys2" 0 fold fold $keys2
    is "folds agree: $keys2" 0 first a fold
    [ "$(sed 's/ .*//' "$dir/log")" -ge 20 ]
    ended "values of $keys2" $? "few values"
done
is "a seed" 0 run seed models/tiny.lua seed=7
is "another seed" 1 first a seed
says "another seed" 'first difference: gather (models/tiny.lua:'
line=$(grep -n 'math.sqrt(size("dim"))' models/tiny.lua | cut -d: -f1)
sed "${line}s/math.sqrt/1.5 * math.sqrt/" models/tiny.lua >"$dir/scaled.lua"
is "a model" 0 run scaled "$dir/scaled.lua"
is "another line" 1 first a scaled
says "another line" "first difference: d.layers.0.attn.part (models/tiny.lua:$((line + 1))), relative error "
exit $bad
