#!/bin/sh
# card: tests/bench/card records a value with its command, runs cards again, and reports slower
# values, missed goals, failed commands and cards of other machines.
cd "$(dirname "$0")/../.." || exit 2
dir=$PWD/build/tests/card
rm -rf "$dir" && mkdir -p "$dir" || exit 2
card=$PWD/tests/bench/card bad=0
cd "$dir" || exit 2

# check NAME TEXT STATUS: `said` contains TEXT and the status of the last command was 0 or 1
check() {
    if [ "$status" = "$3" ] && grep -qF -e "$2" said; then echo "ok - card: $1"; return; fi
    echo "not ok - card: $1"
    sed 's/^/# /' said
    bad=1
}
try() { "$@" >said 2>&1; status=$?; }

echo 'step 41.5 ms, peer 49.8 ms' >out
try "$card" -g '< 50' -r 'peer ([0-9.]+) ms' 'a step' 'step +([0-9.]+) ms' "cat '$dir/out'"
check "value with its unit" "value:     41.5 ms" 0
check "spread of three runs" "spread:    41.5 to 41.5 of 3" 0
check "ratio of a reference" "ratio:     1.200 of 49.8" 0
cp said cards
try "$card" -n 1 'rate' '([0-9]+) TFLOP/s' 'echo at 500 TFLOP/s'
cat said >>cards
try "$card" --check cards
check "equal value" "pass - a step" 0
check "whole number" "pass - rate: 500" 0
try "$card" --table cards
check "table" "| a step | 41.5 ms | 41.5 to 41.5 of 3 | 1.200 of 49.8 | < 50 |" 0
echo 'step 47 ms, peer 49.8 ms' >out
try "$card" --check cards 'a step'
check "slower by 13 %" "fail - a step: 47" 1
echo 'step 47 ms, peer 56 ms' >out
try "$card" --check cards 'a step'
check "slower than on another machine, and so is the reference" "ratio 1.191, card 1.200" 0
echo 'step 30 ms, peer 49.8 ms' >out
try "$card" --check cards 'a step'
check "faster" "pass - a step: 30" 0
sed 's/^goal: .*/goal: < 29/' cards >missed
try "$card" --check missed 'a step'
check "missed goal" "fail - a step: 30" 1
sed 's/500/600/' cards >slow && sed -i 's/echo at 600/echo at 500/' slow
try "$card" --check slow rate
check "lower rate" "fail - rate: 500" 1
sed 's/^machine: .*/machine: 8 x abacus/' cards >other
try "$card" --check other rate
check "other machine" "skip - rate: measured on 8 x abacus" 0
rm out
try "$card" --check cards 'a step'
check "failed command" "fail - a step" 1
sed '/^pattern/d' cards >broken
try "$card" --check broken
check "card without a field" "a card lacks 'pattern': a step" 1
try "$card" 'w' 'x ([0-9]+)' 'echo y'
check "no value" "no value matches" 1
try "$card" -g 50 'w' '([0-9]+)' 'echo 1'
check "goal without a direction" "neither '< x' nor '> x'" 1
cd ../../.. || exit 2
"$card" --table tests/bench/claims >"$dir/table" && cp "$dir/table" "$dir/said"
while read -r row; do
    grep -qxF -e "$row" tests/bench/README.md || { echo "not in README.md: $row" >"$dir/said"; false; } || break
done <"$dir/table"
status=$?
cd "$dir" || exit 2
check "table of tests/bench/README.md" "" 0
exit $bad
