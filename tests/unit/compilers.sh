#!/bin/sh
# compilers: what the kernels of other tests are compiled by (tests/cc.c, gcc -Og)
# and what users' are (-O3) make the same bits of losses and weights. Products of
# attention multiply whole vectors on this processor.
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
# Lanes that are multiplied one by one; nothing says how many there are elsewhere.
whole() {
    for f in "$dir"/cache/pleat/*.kernel; do objdump -d "$f"; done |
        awk '/<at_ker_f32.*>:/ { f = 1; n++ } /^$/ { f = 0 } f && /vfn?m(add|sub)[0-9]*s[sd]/ { print; bad = 1 }
            END { exit bad || !n }'
}

unset CC
export PLEAT_OPT=3 XDG_CACHE_HOME="$dir/cache"
is "as users compile" 0 train users
is "the same bits" 0 same tests users
[ "$(uname -m)" != x86_64 ] || is "whole vectors" 0 whole
exit $bad
