#!/bin/sh
# published: step times of folds that others published, and the step times that
# target=null predicts for the same folds. One row is one published figure:
#
#   NAME TFLOPS model cluster keys..
#
# TFLOPS is the published figure of a rank, by which the model's FLOPs divide; a
# row of seconds or tokens is given as such: "17.9s", "11636t" (a rank's a second).
# No number of machines.def is fitted to these rows. Routing is forced balance, as
# theirs. Memory is the machine's. Rows named 2026 are of data/published_2026.csv, bf16
# and mxfp8 of Megatron-Bridge's performance summary (26.04.01, bf16 of Qwen3-235B 25.11)
# with what its recipes state: modules recomputed, and whether a dispatcher sends a row
# for each choice (alltoall): its copies take the share of memory's speed that those of
# table 3 of arXiv 2504.14960 do (configs.sh), 0.64.
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
sed 's/^local layers, \(.*\) = 32,/local layers, \1 = 80,/' models/llama3.lua >"$dir/llama70.lua"
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
            print m, t >>"'"$dir/all.${name%%-*}"'" }'
    grep ^warning "$dir/log" | head -n 1
}
l70="axes.hidden=8192 axes.group=8 axes.ffn=28672 axes.seq=8192 train.batch=256 fold.pp=4 fold.vpp=5 fold.schedule=interleaved"
fp8="precision=fp8 precision.recipe"
alltoall=cluster.dispatch=4.2e12
again=train.recompute=layernorm,moe_act
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
bf16-gpt-oss-120b-gb300 19200t gpt_oss gb300x64 \$oss axes.batch=4 train.batch=1280 fold.ep=64 \$alltoall
bf16-gpt-oss-120b-gb200 16640t gpt_oss gb200x64 \$oss axes.batch=4 train.batch=1280 fold.ep=64 \$alltoall \$again
bf16-gpt-oss-120b-b300 15232t gpt_oss b300x64 \$oss axes.batch=4 train.batch=1280 fold.ep=8
bf16-gpt-oss-120b-b200 13568t gpt_oss b200x64 \$oss axes.batch=4 train.batch=1280 fold.ep=8 \$alltoall \$again
bf16-gpt-oss-120b-b200-ep64 8047t gpt_oss b200x64 \$oss axes.batch=4 train.batch=1280 fold.ep=64 \$alltoall \$again
bf16-qwen3-235b-gb300 6131t q235 gb300x256 \$q235 axes.batch=2 train.batch=8192 fold.pp=4 fold.vpp=12 fold.ep=16 fold.schedule=interleaved
bf16-qwen3-235b-gb200 4916t q235 gb200x256 \$q235 train.batch=8192 fold.pp=8 fold.vpp=3 fold.ep=32 fold.schedule=interleaved
mxfp8-qwen3-30b-gb300 31744t qwen3_moe gb300x8 axes.batch=8 train.batch=512 fold.ep=8 \$fp8=mxfp8
mxfp8-qwen3-30b-gb200 26112t qwen3_moe gb200x8 axes.batch=4 train.batch=512 fold.ep=8 \$fp8=mxfp8
mxfp8-qwen3-30b-b300 30720t qwen3_moe b300x8 axes.batch=8 train.batch=512 fold.ep=8 \$fp8=mxfp8
mxfp8-qwen3-30b-b200 27136t qwen3_moe b200x8 axes.batch=4 train.batch=512 fold.ep=8 \$fp8=mxfp8
mxfp8-qwen3-235b-gb300 6944t q235 gb300x256 \$q235 axes.batch=2 train.batch=8192 fold.pp=4 fold.vpp=12 fold.ep=32 fold.schedule=interleaved \$fp8=mxfp8
mxfp8-qwen3-235b-gb200 5680t q235 gb200x256 \$q235 train.batch=8192 fold.pp=8 fold.vpp=3 fold.ep=32 fold.schedule=interleaved \$fp8=mxfp8
mxfp8-qwen3-235b-b300 5936t q235 b300x256 \$q235 axes.batch=2 train.batch=8192 fold.pp=8 fold.ep=8 \$fp8=mxfp8 \$alltoall
mxfp8-qwen3-235b-b200 3776t q235 b200x256 \$q235 train.batch=8192 fold.pp=8 fold.ep=8 \$fp8=mxfp8 \$alltoall
mxfp8-llama3-70b-gb300 4864t llama70 gb300x64 \$l70 \$fp8=mxfp8
mxfp8-llama3-70b-gb200 3712t llama70 gb200x64 \$l70 fold.tp=2 \$fp8=mxfp8
END
for kind in 2026 bf16 mxfp8; do
    [ -s "$dir/all.$kind" ] && awk '{ e = $2 / $1 - 1; print e < 0 ? -e : e }' "$dir/all.$kind" | sort -n |
        awk -v kind=$kind '{ e[NR] = $1; s += $1 }
            END { printf "  %s, %d rows: off by %.1f %% in the mean, %.1f %% median, %.1f %% at most\n", kind, NR, 100 * s / NR, 100 * e[int((NR + 1) / 2)], 100 * e[NR] }'
done
