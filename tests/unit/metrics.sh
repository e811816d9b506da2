#!/bin/sh
# metrics: what a run keeps of its experts without being told to, against the same
# written in the model; on one rank, on ranks that share experts, and off.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/metrics
rm -rf "$dir" && mkdir -p "$dir" || exit 2
. tests/expect

sed 's/^  metric("least".*/  metric("load", 8 * max(load, "expert"))\
  metric("ranks", 4 * max(sum(split(load, "expert", "owner own"), "own"), "owner"))\
  metric("spread", -sum(load * log(maximum(load, 1e-30)), "expert") \/ math.log(8))/
    s/vocab=256 }/vocab=256, owner=4, own=2 }/' models/tiny.lua >"$dir/own.lua"
# run NAME key=value...: two steps, their lines in NAME.lines
run() {
    to=$1
    shift
    "$PLEAT" run "$dir/own.lua" target=host axes.batch=2 axes.seq=16 axes.hidden=16 axes.ffn=16 train.batch=8 \
        train.steps=2 data.train=LICENSE data.valid= name="$dir/$to" "$@" || return
    grep '"loss"' "$dir/$to/metrics.jsonl" >"$dir/$to.lines"
}
# same NAME OURS MINE: in both steps and all three layers of a run
same() {
    is "$1: $2, as the model has it" 0 awk -v a="$2" -v b="$3" '
        function field(k) {
            k = "\"layers." l ".moe." k "\": "
            i = index($0, k)
            return i ? substr($0, i + length(k)) + 0 : -1
        }
        { for (l = 0; l < 3; l++) { d = field(a) - field(b); n += field(a) > 0 && d < 1e-6 && d > -1e-6 } }
        END { exit n != 6 }' "$dir/$1.lines"
}
# vectors NAME: the load of each of eight experts, in every layer and step; the largest is expert_load
vectors() {
    is "$1: each expert's load" 0 awk '
        { for (l = 0; l < 3; l++) {
            k = "\"layers." l ".moe.expert_loads\": ["
            m = "\"layers." l ".moe.expert_load\": "
            s = substr($0, index($0, k) + length(k)); e = split(substr(s, 1, index(s, "]") - 1), v, ", ")
            sum = most = 0
            for (i = 1; i <= e; i++) { sum += v[i]; most = v[i] > most ? v[i] : most }
            d = most / substr($0, index($0, m) + length(m))
            n += index($0, k) && e == 8 && sum > 7.99 && sum < 8.01 && d > 0.999 && d < 1.001
        } } END { exit n != 6 }' "$dir/$1.lines"
}
loads() { head -1 "$dir/$1.lines" | grep -o 'expert_loads": [^]]*'; }
is "a run" 0 run one train.vectors_every=1
says "the fullest expert of all layers is in the line" " | expert_load "
vectors one
is "histograms of them" 0 grep -qa "metric.layers.2.moe.expert_loads" "$dir"/one/events*
same one expert_load load
same one expert_entropy spread
is "without ranks there is no load of them" 1 grep rank_load "$dir/one.lines"
is "the largest of the layers" 0 awk '{ most = 0
    for (l = 0; l < 3; l++) { k = "\"layers." l ".moe.expert_load\": "; v = substr($0, index($0, k) + length(k)) + 0; most = v > most ? v : most }
    k = ", \"expert_load\": "; n += substr($0, index($0, k) + length(k)) + 0 == most } END { exit n != 2 }' "$dir/one.lines"
is "on four ranks of experts" 0 run four fold.ep=4 world=4 train.vectors_every=1
vectors four
is "are those of one rank" 0 [ "$(loads one)" = "$(loads four)" ]
same four expert_load load
same four rank_load ranks
is "in stages" 0 run stages fold.pp=3 world=3 train.vectors_every=1
vectors stages
is "in stages" 0 [ "$(loads one)" = "$(loads stages)" ]
is "where ranks share experts unevenly" 0 run uneven fold.ep=3 world=3 train.batch=6 train.vectors_every=1
vectors uneven
same stages expert_load load
is "experts that are told to be even" 0 run even route.balance=forced
is "vectors are told every 100 steps, and at the last" 0 [ "$(grep -c expert_loads "$dir/even.lines")" = 1 ]
is "are" 0 grep -q '"layers.1.moe.expert_load": 1, "layers.1.moe.expert_entropy": 1[,.]' "$dir/even.lines"
is "experts drawn by odds, with clones" 0 run clones fold.ep=4 world=4 axes.seq=128 route.clones=1 route.balance=assumed route.assume=zipf:1
is "clones take rows of the fullest rank" 0 awk '
    function load(k) { return substr($0, index($0, k "\": ") + length(k) + 3) + 0 }
    { for (l = 0; l < 3; l++) n += load("layers." l ".moe.rank_load") > 1.4 && load("layers." l ".moe.clone_load") < 1.15 }
    END { exit n != 6 }' "$dir/clones.lines"
"$PLEAT" compile "$dir/own.lua" world=4 fold.ep=4 route.clones=1 route.assume=zipf:1 -o /dev/null -d why >"$dir/why" 2>&1
is "as is expected of such odds" 0 grep -q "has 1.93 times an equal share of rows, with clones 1.03, of which clones have at most 0.5:" "$dir/why"
is "of what is chosen, not of what is kept" 0 run kept route.policy=capacity route.factor=0.5
same kept expert_load load
is "not asked for" 0 run off train.expert_metrics=0
is "there are none" 1 grep -q "expert_load" "$dir/off.lines"
for key in tokens_per_s tflops_per_rank memory_gib; do
    is "a line has $key" 0 grep -q "\"$key\": [0-9]" "$dir/one.lines"
    is "TensorBoard too" 0 grep -qa "$key" "$dir"/one/events*
done
printf '1..%d\n' $n
exit $bad
