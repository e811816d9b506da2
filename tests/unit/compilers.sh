#!/bin/sh
# compilers: what the kernels of other tests are compiled by (tests/cc.c, gcc -Og)
# and what users' are (-O3) make the same bits of losses and weights.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/compilers
rm -rf "$dir" && mkdir -p "$dir" || exit 2
. tests/expect

# train NAME
train() {
    "$PLEAT" run tests/hf/mixtral-aux.lua target=host train.batch=4 train.steps=3 precision=fp8 \
        data.train=README.md name="$dir/$1" || return
    grep -o '"loss": *[^,]*\|"gnorm": *[^,]*' "$dir/$1/metrics.jsonl" >"$dir/$1.lines"
    [ -s "$dir/$1.lines" ]
}
same() {
    cmp "$dir/$1.lines" "$dir/$2.lines" || return
    for f in model optim; do
        cmp "$dir/$1/ckpt/step-00000003/$f.safetensors" "$dir/$2/ckpt/step-00000003/$f.safetensors" || return
    done
}

is "as tests compile" 0 train tests
unset CC
export PLEAT_OPT=3
is "as users compile" 0 train users
is "the same bits" 0 same tests users
exit $bad
