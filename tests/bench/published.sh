#!/bin/sh
# published: step times of folds that others published, and the step times that
# target=null predicts for the same folds. One row is one published figure:
#
#   NAME TFLOPS model cluster keys..
#
# TFLOPS is the published figure of a rank, by which the model's FLOPs divide; a
# row of seconds or tokens is given as such: "17.9s", "11636t" (a rank's a second).
# No number of machines.def is fitted to these rows. Routing is forced balance, as
# theirs. Memory is the machine's.
#
#   published.sh [NAME ...]   rows whose names begin with one of these; default all
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT

# GPT-OSS 120B: Mixtral's form, every other layer a window. Biases and sinks are
# left out: they are no products.
sed 's/^local layers, \(.*\) = [0-9]*,/local layers, \1 = 36,/
     s/^local chosen, \(.*\) = 2,/local chosen, \1 = 4,/
     s/^local function attend(x)/local function attend(x, window)/
     s/scope("attn", attend, \(scope(.*)\))$/scope("attn", attend, \1, i % 2 * 128)/
     s/^local function layer(x)/local function layer(x, i)/
     s/layer, x)$/layer, x, i)/' models/mixtral.lua >"$dir/gpt_oss.lua"
sed 's/^local layers, eps = 48,/local layers, eps = 94,/' models/qwen3_moe.lua >"$dir/q235.lua"
cp models/qwen3_moe.lua models/deepseek_v2_lite.lua models/deepseek_v3.lua "$dir"
q235="axes.hidden=4096 axes.group=16 axes.ffn=1536"
oss="axes.hidden=2880 axes.kv=8 axes.group=8 axes.dim=64 axes.ffn=2880 axes.expert=128 axes.vocab=201088"

row() { # name figure model cluster keys..
    name=$1 figure=$2 model=$3 cluster=$4 && shift 4
    "$PLEAT" compile "$dir/$model.lua" target=null cluster="$cluster" route.balance=forced axes.seq=4096 "$@" \
        -o "$dir/p.plan" >"$dir/log" 2>&1 ||
        { echo "  $name: $(grep -v ^warning "$dir/log" | head -n 1)" && return; }
    "$PLEAT" show "$dir/p.plan" | awk -v name="$name" -v figure="$figure" -v ranks="${cluster##*x}" '
        / [PEZ]FLOP$/ { for (i = 2; i <= NF; i++) if ($i ~ /^tokens/) { tokens = $(i - 1); gsub(",", "", tokens) } flop = $(NF - 1) * ($NF ~ "^P" ? 1e15 : 1e18) }
        $1 == "program" && !n++ { for (i = 3; i < NF; i++) if ($i == "predicted") t = $(i + 1) / 1e3 }
        /^memory of a rank/ { memory = $5 }
        END {
            m = figure ~ /s$/ ? figure + 0 : figure ~ /t$/ ? tokens / ranks / figure : flop / ranks / 1e12 / figure
            printf "  %-40s published %8.3f s, predicted %8.3f %+6.1f %%, %s GiB\n", name, m, t, 100 * (t / m - 1), memory
            print m, t >>"'"$dir/all"'" }'
    grep ^warning "$dir/log" | head -n 1
}
fp8="precision=fp8 precision.recipe"
while read -r name figure model cluster keys; do
    for only in "${@:-}"; do
        case $name in
        "$only"*) # shellcheck disable=SC2086
            eval "row $name $figure $model $cluster $keys" ;;
        esac
    done
done <<END
2026-000-qwen3-235b-h100-bf16 302.0 q235 h100x256 \$q235 train.batch=2048 fold.tp=2 fold.pp=8 fold.vpp=4 fold.ep=32 fold.schedule=interleaved
2026-002-qwen3-235b-gb200-mxfp8 876.2 q235 gb200x128 \$q235 train.batch=8192 fold.ep=64 \$fp8=mxfp8
2026-004-qwen3-30b-h100-fp8 242.9 qwen3_moe h100x32 train.batch=256 fold.ep=8 \$fp8=blockwise
2026-006-qwen3-30b-gb200-bf16 504.2 qwen3_moe gb200x16 axes.batch=4 train.batch=512 fold.ep=16
2026-008-qwen3-30b-gb200-mxfp8 598.1 qwen3_moe gb200x16 axes.batch=4 train.batch=512 fold.ep=16 \$fp8=mxfp8
2026-010-qwen3-235b-gb200-mxfp8 17.90534s q235 gb200x256 \$q235 train.batch=8192 fold.pp=8 fold.vpp=3 fold.ep=32 fold.schedule=interleaved \$fp8=mxfp8
2026-012-gpt-oss-120b-gb300-mxfp8 2.48114s gpt_oss gb300x64 \$oss axes.batch=4 train.batch=1280 fold.ep=16 \$fp8=mxfp8
2026-014-deepseek-16b-h100-bf16 11636t deepseek_v2_lite h100x8 train.batch=32 fold.zero=3
2026-016-qwen3-30b-b300-mxfp8 OOM qwen3_moe b300x8 axes.batch=8 train.batch=512 fold.ep=8 \$fp8=mxfp8
END
[ -s "$dir/all" ] && sort "$dir/all" | awk '{ e = $2 / $1 - 1; print e < 0 ? -e : e }' | sort -n |
    awk '{ e[NR] = $1; s += $1 } END { printf "  %d rows: off by %.1f %% in the mean, %.1f %% median, %.1f %% at most\n", NR, 100 * s / NR, 100 * e[int((NR + 1) / 2)], 100 * e[NR] }'
