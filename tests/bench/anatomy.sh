#!/bin/sh
# anatomy: what DeepSeek-V3 takes of a rank's memory, line by line, as published for
# Megatron-Core (arXiv 2603.07685: bf16, TP1 PP4 VPP4 EP64 on 256 GPUs, 4,096 tokens,
# 16 layers with experts on a rank, 60 layers of a micro-batch alive, GiB), and as a
# plan of that fold has it on stage 1, which has layers only. A saving is what
# train.recompute of that module no longer keeps. Its rows of experts are kept once
# (memory-efficient permutation, 26.3 GiB), as a plan does. What is published as saved
# by recomputing comes on top of activations of 8 bits: the activation of experts is 64
# MiB of a layer, a byte each of 32,768 rows of 2,048, and norms are 140: copies of 8
# bits for two projections of attention and the shared expert, 28 each, 56 for the router.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
sed 's/^\(local layers, dense_layers, eps =\) [0-9]*, [0-9]*,/\1 64, 0,/; s/^\(local mtp, mtp_weight =\) 1,/\1 0,/
    /^  \["layers.{i}.ffn.w/d' models/deepseek_v3.lua >"$dir/v3.lua"

# part RECOMPUTE KEYS..: GiB of parameters, of the optimizer, kept by a micro-batch
part() {
    again=$1 && shift
    "$PLEAT" compile "$dir/v3.lua" target=null world=256 fold.pp=4 fold.vpp=4 fold.ep=64 fold.schedule=interleaved \
        train.batch=1024 memory=9999GiB route.balance=forced route.factor=1 train.recompute="$again" "$@" -o "$dir/p.plan" \
        >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 2; }
    "$PLEAT" show "$dir/p.plan" | awk '
        $1 == "stage" { stage = $2 }
        stage != 1 { next }
        $1 == "program" { program = $2 }
        $1 == "param" || $1 == "optim" || ($1 == "frames" && program == "step") { out = out " " $2 }
        END { print out }'
}
# line NAME PUBLISHED OURS WHY
line() {
    awk -v name="$1" -v p="$2" -v o="$3" -v why="$4" 'BEGIN {
        printf "  %-44s published %6.2f GiB, planned %6.2f (%+5.1f %%)%s\n", name, p, o, 100 * (o / p - 1), why ? ": " why : "" }'
}
share() { awk -v a="$1" -v b="$2" 'BEGIN { print (a - b) * 60 / 16 }'; }

# shellcheck disable=SC2046
set -- $(part 0)
kept=$3 weights=$(awk -v p="$1" 'BEGIN { print 3 * p }')
line "weights and gradients, 2 and 4 bytes" 36.42 "$weights"
line "masters and moments" 32.15 "$2" \
    "of experts' masters what their parameters have not, 16 bits"
line "activations" 104.77 "$(share "$kept" 0)"
line "all of it" 173.34 "$(awk -v w="$weights" -v o="$2" -v a="$(share "$kept" 0)" 'BEGIN { print w + o + a }')"
# shellcheck disable=SC2046
set -- $(part mla_up_proj)
line "saved: mla_up_proj" 30.40 "$(share "$kept" "$3")" \
    "a key's part with positions is kept once, not for each of 128 heads (64 MiB of a layer)"
# shellcheck disable=SC2046
set -- $(part layernorm)
line "saved: layernorm" 8.20 "$(share "$kept" "$3")" \
    "two norms of 7,168, one of 1,536, one of 512 in bf16 are 128 MiB of a layer"
few="precision=fp8 precision.place=all"
# shellcheck disable=SC2046,SC2086
set -- $(part 0 $few) $(part moe_act $few)
line "saved: moe_act, of 8 bits" 3.80 "$(share "$3" "$6")"
