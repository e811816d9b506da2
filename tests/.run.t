#!/bin/sh
# run [-u] [group | file ...]: run tests and count them. Every result is a line
# of TAP, "ok - name" or "not ok - name", whoever prints it; the folder of a test
# is its group, its suffix says how it runs:
#
#   x_test.c a program (build/tests/<group>/x_test), cmocka's or its own loop
#   x.sh     a script
#   x.ir     a graph: `# run pass,pass` on line 1 (none: only parsed), printed
#            again, compared with what stands after `# >>>` (none: itself)
#   x.lua    a model with a mistake: `-- pleat arguments` on line 1, where % is
#            the file (none: check %), compared with x.err, stderr and status
#
# -u writes what came out into the .ir and .err files. The last line printed is
# "N passed, N failed"; the exit status is 1 if any failed.
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C CUDA_VISIBLE_DEVICES="" PLEAT=${PLEAT:-build/pleat}   # no GPU but by name
export PLEAT_OPT=${PLEAT_OPT-g}                # kernels of the host: soon compiled (all at -O0: twice the time)
if ${CC:-cc} -fira-region=one -E -x c /dev/null >/dev/null 2>&1; then  # gcc, in a third less time
    export CC="${CC:-cc} -fira-region=one"
fi
export PLEAT_THREADS=${PLEAT_THREADS-1}         # tests run side by side instead
export OMPI_MCA_mpi_yield_when_idle=1          # ranks that wait leave the processor to others
export MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_MMAP_THRESHOLD_=1073741824   # pages stay
export PLEAT_POISON=${PLEAT_POISON-1}          # what nobody wrote is NaN
export PLEAT_CHECK=${PLEAT_CHECK-1}            # graphs are checked after every pass
case $PLEAT in /*) ;; *) PLEAT=$PWD/$PLEAT ;; esac
bin=$(dirname "$PLEAT")
groups="hf fold fake unit random emu fuzz run num ir tidy err pass gen"      # the long ones first
[ -x "$bin/tests/passtool" ] || { echo "run: no test programs in $bin: ninja programs" >&2; exit 2; }

# ---- one test file; its TAP goes to stdout ---------------------------------

# golden name expected-file got-file
golden() {
    if cmp -s "$2" "$3"; then echo "ok - $1"; return; fi
    if [ "$update" ]; then cp "$3" "$2"; echo "ok - $1 (rewritten)"; return; fi
    echo "not ok - $1"
    diff -uN "$2" "$3" | sed -n '3,40s/^/# /p'
}

# A program may print any number of results. A crash, silence, and fewer results
# than cmocka announced are failures too.
program() {
    t=$1 got=$2
    shift 2
    timeout 600 env CMOCKA_MESSAGE_OUTPUT=TAP "$@" >"$got" 2>"$got.err"
    rc=$?
    cat "$got"
    set -- $(awk '/^1\.\.[0-9]/ { n += substr($1, 4) } /^(not )?ok/ { k++ }
        /^not ok/ && !/# SKIP/ { bad++ } END { print n + 0, k + 0, bad + 0 }' "$got")
    if [ $rc -ne 0 ] && [ "$3" = 0 ] || [ "$2" = 0 ] || [ "$2" -lt "$1" ]; then
        echo "not ok - $t: exit status $rc after $2 results"
        tail -n 20 "$got.err" | sed 's/^/# /'
    elif [ $rc -ne 0 ]; then
        tail -n 20 "$got.err" | sed 's/^/# /'
    fi
}

graph() {
    passes=$(sed -n '1s/^# run //p' "$1")
    sed '/^# >>>/,$d' "$1" >"$2.in"
    if grep -q '^# >>>' "$1"
    then sed '/^# >>>/q' "$1" >"$2.want"
    elif [ "$passes" ]
    then { cat "$1"; echo "# >>>"; } >"$2.want"   # a new test
    else : >"$2.want"
    fi
    cp "$2.want" "$2.got"
    "$bin/tests/passtool" "${passes:--}" "$1" >>"$2.got" 2>&1 ||
        echo "# exit status $?" >>"$2.got"
    cp "$1" "$2.want"
    golden "$1" "$2.want" "$2.got"
    [ -z "$update" ] || cp "$2.want" "$1"
}

mistake() {
    args=$(sed -n '1s/^-- pleat //p' "$1" | sed "s|%|${1##*/}|g")
    (cd "${1%/*}" && timeout 600 "$PLEAT" ${args:-check "${1##*/}"}) \
        >/dev/null 2>"$2.got"
    echo "exit status $?" >>"$2.got"
    golden "$1" "${1%.lua}.err" "$2.got"
}

one() {
    t0=$(date +%s%N)
    got=$out/$(echo "${1#tests/}" | tr / -)
    case $1 in
    *_test.c) program "$1" "$got" "$bin/${1%.c}" ;;
    *.sh)  program "$1" "$got" sh "$1" ;;
    *.ir)  graph "$1" "$got" ;;
    *.lua) mistake "$1" "$got" ;;
    tests/tidy) program "$1" "$got" sh "$1" ;;
    esac >"$got.tap"; times >"/tmp/w/times/$(basename "$got")"
    echo $((($(date +%s%N) - t0) / 10000000)) >"$got.time"
}

# ---- groups ------------------------------------------------------------------

files_of() {
    case $1 in
    tidy) echo tests/tidy ;;
    err)  ls tests/err/*.lua ;;
    *)    ls tests/"$1"/*_test.c tests/"$1"/*.sh tests/"$1"/*.ir ;;
    esac 2>/dev/null
}

# outputs suffix files...: what those files left
outputs() {
    suffix=$1
    shift
    for f; do echo "$out/$(echo "${f#tests/}" | tr / -)$suffix"; done
}

# A group's line, after what failed in it. Seconds are those of its tests, which
# share the processors with other groups'.
report() {
    g=$1
    shift
    taps=$(outputs .tap "$@") n=$#
    awk '/^not ok/ { show = 1 } /^ok/ || /^1\.\./ || /# SKIP/ { show = 0 } show' $taps
    t=$(cat $(outputs .time "$@") | awk '{ t += $1 } END { print t / 100 }')
    set -- $(awk '/# SKIP/ { s++; next } /^ok/ { p++ } /^not ok/ { f++ }
        END { print p + 0, f + 0, s + 0 }' $taps)
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=
    [ "$3" = 0 ] || skipped=", $3 skipped"
    printf '%-6s %8.2f s  %4d files  %s\n' "$g" "$t" "$n" \
        "$1 passed, $2 failed$skipped"
}

# The five files that took longest, with their seconds.
longest() {
    for f in $(echo "$all" | sed 's/.* //'); do
        echo "$(cat "$(outputs .time "$f")") ${f#tests/}"
    done | sort -rn | head -n 5 | awk '{
        printf "%s %s %.0f s", NR == 1 ? "longest:" : ",", $2, $1 / 100
    } END { print "" }'
}

update=
[ "$1" != -u ] || { update=-u; shift; }
[ "$1" != --one ] || { one "$2"; exit; }
[ $# -gt 0 ] || set -- $groups
out=$(mktemp -d) && export out && trap 'rm -rf "$out"' EXIT
all=$(for g; do
    case $g in */*) echo "$g $g" ;; *) files_of "$g" | sed "s|^|$g |" ;; esac
done)
echo "$all" | sed 's/.* //' |      # two more than processors: some tests wait
    xargs -P $(($(nproc) + 2)) -I '{}' sh tests/run $update --one '{}'
passed=0 failed=0
for g; do
    files=$(echo "$all" | sed -n "s|^$g ||p")
    [ -z "$files" ] || report "$g" $files
done
longest
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
