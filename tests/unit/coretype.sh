#!/bin/sh
# coretype: which of OpenBLAS's kernels a run takes (runtime/process/coretype.c). The
# OpenBLAS is fakeblas.c's: its own choice, and which types are wrong or die, are
# set here. Types that this processor has are expected from its flags.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/coretype
rm -rf "$dir" && mkdir -p "$dir/lib" || exit 2
ln -s "$(dirname "$PLEAT")/tests/unit/fakeblas.so" "$dir/lib/libopenblas.so.0"
bad=0

flags=$(grep -m 1 ^flags /proc/cpuinfo)
has() { for w; do case " $flags " in *" $w "*) ;; *) return 1 ;; esac; done; }
types=
! has avx512f avx512dq avx512bw avx512vl avx512cd avx512_bf16 || types="$types Cooperlake"
! has avx512f avx512dq avx512bw avx512vl avx512cd || types="$types SkylakeX"
! has avx2 fma sse4a || types="$types Zen"
! has avx2 fma || types="$types Haswell"
! has avx || types="$types Sandybridge"
! has sse4_2 || types="$types Nehalem"
if [ "$(echo $types | wc -w)" -lt 2 ]; then
    echo "ok - coretype # SKIP this processor has no choice"
    exit 0
fi
# shellcheck disable=SC2086
set -- $types
first=$1 second=$2
printf '1..11\n'

# fake "NAME=VALUE ..." command...: with such an OpenBLAS, and no verdict kept
fake() {
    settings=$1
    shift
    [ "$keep" ] || rm -f "$dir"/cache/pleat/blas-*
    # shellcheck disable=SC2086
    env -u OPENBLAS_CORETYPE LD_LIBRARY_PATH="$dir/lib" FAKE_BLAS_OWN=Prescott \
        XDG_CACHE_HOME="$dir/cache" $settings "$@" >"$dir/log" 2>"$dir/err"
}

# doctor NAME SETTINGS TYPE [TEXT]: it takes TYPE, and says TEXT or nothing
doctor() {
    fake "$2" "$PLEAT" doctor
    grep -q "^blas *OpenBLAS 9.9.9, kernels for $3 " "$dir/log" &&
        if [ "$4" ]
        then grep -q "^ *warning: .*$4" "$dir/log"
        else ! grep -q "^ *warning: " "$dir/log"
        fi
    result "$1" $?
}

result() {
    if [ "$2" = 0 ]; then echo "ok - coretype: $1"; return; fi
    echo "not ok - coretype: $1"
    sed 's/^/# /' "$dir/log" "$dir/err" | tail -n 12
    bad=1
}

doctor "a newer processor" "" "$first" "takes this processor for a Prescott"
doctor "the best type computes wrong products" "FAKE_BLAS_WRONG=$first" "$second" Prescott
doctor "the best type dies" "FAKE_BLAS_DIES=$first" "$second" Prescott
doctor "its own choice is the best" "FAKE_BLAS_OWN=$first" "$first"
doctor "its own choice is wrong" "FAKE_BLAS_OWN=$first FAKE_BLAS_WRONG=$first" "$second" \
    "those for $first, .* wrong products"
all=$(echo "$@" | tr ' ' ,)
doctor "only its own choice is right" "FAKE_BLAS_WRONG=$all" Prescott
doctor "the user's choice" "OPENBLAS_CORETYPE=Haswell FAKE_BLAS_WRONG=Haswell" Haswell

fake "FAKE_BLAS_LOG=$dir/loads" "$PLEAT" doctor
before=$(wc -l <"$dir/loads")
keep=1 fake "FAKE_BLAS_LOG=$dir/loads" "$PLEAT" doctor
[ "$before" -gt 1 ] && [ "$(wc -l <"$dir/loads")" = $((before + 1)) ]
result "the verdict is kept: $before loads, then one" $?

run="$PLEAT run models/tiny.lua axes.batch=1 axes.seq=8 axes.hidden=16 axes.ffn=8
    axes.kv=2 train.batch=1 train.steps=1 target=host data.train=LICENSE data.valid=LICENSE name=$dir/run"
# shellcheck disable=SC2086
{
fake "FAKE_BLAS_WRONG=Prescott,$all" $run
[ $? = 1 ] && grep -q "^error: OpenBLAS computes wrong products" "$dir/err"
result "no type is right: one line, status 1" $?
fake "" $run
[ $? = 0 ] && grep -q "kernels for $first: by itself" "$dir/log" &&
    grep -q "^blas OpenBLAS 9.9.9, kernels for $first$" "$dir/run/tuned"
result "a run says it, and keeps it in its folder" $?
keep=1 fake "OPENBLAS_CORETYPE=$second" $run resume=1 train.steps=2
grep -A 1 "^blas .*kernels for $second" "$dir/log" | grep -q "^  was blas .*kernels for $first"
result "a resume on another type says so" $?
}
exit $bad
